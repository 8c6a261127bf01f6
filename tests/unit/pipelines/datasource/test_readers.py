"""A range of offsets, read from a broker as a task of Spark reads it."""

import logging
import os
from collections.abc import Iterator

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

import headrace
from headrace.client.errors import Unreachable
from headrace.pipelines.datasource import brokers, readers
from headrace.pipelines.datasource.errors import DataLoss, SourceError
from headrace.pipelines.datasource.offset_ranges import OffsetRange, RangePartition
from headrace.pipelines.datasource.readers import StreamReader, read_range
from headrace.testing import Broker
from headrace.types import TopicPartition, uuid_text
from tests.unit.pipelines.datasource.brokers import fill, offsets, options, table

VALUES = [b"%d" % number * (number % 50) for number in range(100)]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(in_process=True) as running:
        yield running
        brokers.close_idle()


@pytest.fixture(scope="module")
def topic(broker: Broker) -> str:
    """A topic with a hundred records, in batches of seven."""
    name = broker.create_topic()
    fill(broker, name, VALUES)
    return name


def delete_before(broker: Broker, topic: str, offset: int) -> None:
    with headrace.Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        admin.delete_records({TopicPartition(topic, 0): offset})


def test_a_range_has_its_offsets_and_nothing_else(broker: Broker, topic: str) -> None:
    settings = options(broker, topic)
    whole = table(settings, topic, 0, 100)
    assert whole["value"].to_pylist() == VALUES
    assert whole["key"].to_pylist() == [b"%d" % number for number in range(100)]
    assert offsets(settings, topic, 3, 98) == list(range(3, 98))
    assert offsets(settings, topic, 10, 11) == [10]
    assert offsets(settings, topic, 5, 5) == []


def test_small_fetches_and_small_batches_change_nothing(broker: Broker, topic: str) -> None:
    small = options(
        broker, topic, kafka_max_partition_fetch_bytes="100", maxBatchRows="4", columns="value"
    )
    batches = list(read_range(small, OffsetRange(topic, 0, 2, 90)))
    assert max(batch.num_rows for batch in batches) == 4
    values = [value for batch in batches for value in batch.column(0).to_pylist()]
    assert values == VALUES[2:90]


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_compressed_records_are_the_same(broker: Broker, codec: str) -> None:
    name = broker.create_topic()
    fill(broker, name, VALUES, compression_type=codec)
    assert table(options(broker, name), name, 0, 100)["value"].to_pylist() == VALUES


def test_a_worker_uses_its_connection_again(broker: Broker, topic: str) -> None:
    settings = options(broker, topic, kafka_client_id="again")
    offsets(settings, topic, 0, 50)
    [link] = brokers._idle[tuple(sorted(settings.client.items()))]
    assert offsets(settings, topic, 50, 100) == list(range(50, 100))
    assert brokers._idle[tuple(sorted(settings.client.items()))] == [link]


def test_what_is_not_read_to_its_end_disturbs_nobody(broker: Broker, topic: str) -> None:
    settings = options(broker, topic, kafka_max_partition_fetch_bytes="100")
    begun = read_range(settings, OffsetRange(topic, 0, 0, 100))
    assert next(begun)["offset"][0].as_py() == 0
    begun.close()  # type: ignore[attr-defined]
    assert offsets(settings, topic, 90, 100) == list(range(90, 100))


def test_a_fork_opens_connections_of_its_own(
    broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = options(broker, topic)
    offsets(settings, topic, 0, 10)
    parents = [link for idle in brokers._idle.values() for link in idle]
    assert parents
    monkeypatch.setattr(brokers, "_owner", os.getpid() + 1)
    assert offsets(settings, topic, 0, 10) == list(range(10))
    [(own,)] = brokers._idle.values()
    assert own not in parents
    for link in parents:
        link.close()


def test_offsets_that_are_gone_are_an_error(broker: Broker) -> None:
    name = broker.create_topic()
    fill(broker, name, VALUES)
    delete_before(broker, name, 40)
    with pytest.raises(DataLoss, match=f"{name}-0: offsets 10 to 39 are gone.*failOnDataLoss"):
        offsets(options(broker, name), name, 10, 100)


def test_or_are_passed_over(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    name = broker.create_topic()
    fill(broker, name, VALUES)
    delete_before(broker, name, 40)
    settings = options(broker, name, failOnDataLoss="false")
    with caplog.at_level(logging.WARNING):
        assert offsets(settings, name, 10, 60) == list(range(40, 60))
        assert offsets(settings, name, 10, 30) == []
    assert f"{name}-0: offsets 10 to 39 are gone" in caplog.text
    assert "10 to 29" in caplog.text


def test_a_topic_that_is_deleted_is_a_loss(broker: Broker) -> None:
    name = broker.create_topic()
    fill(broker, name, VALUES[:10])
    settings = options(broker, name)
    offsets(settings, name, 0, 10)
    with headrace.Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        admin.delete_topic(name)
    with pytest.raises(DataLoss, match=f"topic {name} does not exist"):
        offsets(settings, name, 0, 10)
    lenient = options(broker, name, failOnDataLoss="false")
    assert offsets(lenient, name, 0, 10) == []


def test_a_partition_that_ends_too_early_is_a_loss(
    broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "LAG_S_MAX", 0.0)
    settings = options(broker, topic, kafka_fetch_max_wait_ms="1")
    with pytest.raises(DataLoss, match="offsets 100 to 119 are gone: the partition ends at"):
        offsets(settings, topic, 90, 120)
    with pytest.raises(DataLoss, match="offsets 110 to 119 are gone"):
        offsets(settings, topic, 110, 120)
    lenient = options(broker, topic, kafka_fetch_max_wait_ms="1", failOnDataLoss="false")
    assert offsets(lenient, topic, 90, 120) == list(range(90, 100))


def test_a_corrupt_batch_is_named(broker: Broker) -> None:
    name = broker.create_topic()
    fill(broker, name, VALUES[:21])
    path = broker.data_dir / f"{name}-0" / "00000000000000000000.log"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    batches = read_range(options(broker, name), OffsetRange(name, 0, 0, 21))
    assert next(batches).num_rows == 14
    with pytest.raises(SourceError, match=f"{name}-0 has a corrupt batch at offset 14.*log dump"):
        next(batches)


def test_nobody_there_is_said_in_time() -> None:
    # All the time of the world for an attempt, and none for a second one.
    late = {"kafka_retry_backoff_ms": "2000000", "kafka_retry_backoff_max_ms": "2000000"}
    with Broker(in_process=True) as gone:
        settings = options(gone, kafka_request_timeout_ms="1000000", **late)
    with pytest.raises(Unreachable, match=r"gave up after .*headrace up"):
        offsets(settings, "any", 0, 10)
    assert not brokers._idle.get(tuple(sorted(settings.client.items())))


def test_an_answer_that_was_lost_on_its_way_is_asked_for_again() -> None:
    with Broker(in_process=True, proxied=True) as broker:
        name = broker.create_topic()
        fill(broker, name, VALUES)
        settings = options(broker, name, kafka_max_partition_fetch_bytes="100")
        batches = read_range(settings, OffsetRange(name, 0, 0, 100))
        first = next(batches).num_rows
        with broker.cut_off():
            pass
        assert first + sum(batch.num_rows for batch in batches) == 100
        brokers.close_idle()


def test_a_range_of_a_topic_that_was_created_again_is_a_loss(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    name = broker.create_topic()
    fill(broker, name, [b"old"] * 5)
    with headrace.Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        planned = admin.describe_topic(name).topic_id
        admin.delete_topic(name)
        admin.create_topic(name)
    fill(broker, name, [b"new"] * 9)
    range_of_old = OffsetRange(name, 0, 0, 5, uuid_text(planned))
    with pytest.raises(DataLoss, match=f"topic {name} was deleted and created again"):
        list(read_range(options(broker, name), range_of_old))
    with caplog.at_level(logging.WARNING):
        assert list(read_range(options(broker, name, failOnDataLoss="false"), range_of_old)) == []
    assert "deleted and created again" in caplog.text


def test_a_stream_does_not_take_a_topic_created_again_for_the_one_it_has_read(
    broker: Broker,
) -> None:
    name = broker.create_topic()
    fill(broker, name, [b"old"] * 10)
    with headrace.Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        settings = options(broker, name, startingOffsets="earliest")
        reader = StreamReader(settings)
        checkpoint = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
        assert checkpoint[name] == {"0": 10}
        reader.stop()
        admin.delete_topic(name)
        admin.create_topic(name)
    fill(broker, name, [b"new"] * 15)
    restarted = StreamReader(settings)
    with pytest.raises(DataLoss, match=f"topic {name} was deleted and created again"):
        restarted.latestOffset(checkpoint, ReadAllAvailable())
    restarted.stop()
    allowed = StreamReader(options(broker, name, recreatedTopics="earliest"))
    end = allowed.latestOffset(checkpoint, ReadAllAvailable())
    parts = allowed.partitions(checkpoint, end)
    ranges = [part.range for part in parts if isinstance(part, RangePartition)]
    assert [(part.start, part.end) for part in ranges] == [(0, 15)]
    assert offsets(settings, name, ranges[0].start, ranges[0].end) == list(range(15))
    allowed.stop()
