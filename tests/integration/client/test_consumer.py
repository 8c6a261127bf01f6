"""The consumer alone: what other clients wrote, read as rows and columns, from anywhere."""

import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import kafka
import pytest

from headrace.client.consumer.consumer import Consumer
from headrace.client.errors import (
    Closed,
    IllegalState,
    NoOffset,
    SerializationFailed,
    TimedOut,
    Unreachable,
)
from headrace.errors import ConfigError, UnknownTopic
from headrace.protocol.consumer_records import ConsumerRecord
from headrace.testing.time_limits import scaled
from headrace.types import TopicPartition
from tests.integration.client.feeding import CODECS, create_topic, feed
from tests.support import BrokerProcess, unused_port

WAIT_MS = 30_000


@pytest.fixture
def address(shared_broker: BrokerProcess) -> str:
    return shared_broker.address


@pytest.fixture
def tp(address: str, topic: str) -> TopicPartition:
    """A partition of a new topic."""
    create_topic(address, topic, 1)
    return TopicPartition(topic, 0)


@pytest.fixture
def consumer(address: str, tp: TopicPartition) -> Iterator[Consumer]:
    """A consumer of that partition, from its beginning on."""
    with Consumer(bootstrap_servers=address, auto_offset_reset="earliest") as consumer:
        consumer.assign([tp])
        yield consumer


def read(consumer: Consumer, count: int, max_records: int | None = None) -> list[ConsumerRecord]:
    """Exactly the next `count` records."""
    records: list[ConsumerRecord] = []
    while len(records) < count:
        part = consumer.poll(WAIT_MS, max_records)
        assert part, f"only {len(records)} of {count} records came"
        records += part
    assert len(records) == count
    return records


def numbers(count: int) -> list[bytes]:
    return [b"value %d" % number for number in range(count)]


@pytest.mark.parametrize("codec", CODECS)
def test_what_librdkafka_wrote_is_read(
    address: str, tp: TopicPartition, consumer: Consumer, codec: str
) -> None:
    feed(address, tp.topic, numbers(5000), codec=codec, headers=[("codec", codec.encode())])
    records = read(consumer, 5000)
    assert [record.value for record in records] == numbers(5000)
    assert [record.offset for record in records] == list(range(5000))
    assert records[0].headers == (("codec", codec.encode()),)
    assert consumer.position(tp) == 5000
    assert consumer.lag() == {tp: 0}


@pytest.mark.parametrize("codec", CODECS)
def test_what_kafka_python_wrote_is_read(
    address: str, tp: TopicPartition, consumer: Consumer, codec: str
) -> None:
    compression = None if codec == "none" else codec
    producer = kafka.KafkaProducer(bootstrap_servers=address, compression_type=compression)
    for value in numbers(500):
        producer.send(tp.topic, value, key=b"k", headers=[("h", b"1")], timestamp_ms=1234)
    producer.close()
    records = read(consumer, 500)
    assert [record.value for record in records] == numbers(500)
    assert {(record.key, record.timestamp, record.headers) for record in records} == {
        (b"k", 1234, (("h", b"1"),))
    }


def test_nulls_and_empty_values_are_told_apart(
    address: str, tp: TopicPartition, consumer: Consumer
) -> None:
    cells: list[tuple[bytes | None, bytes | None]] = [
        (b"", None),
        (None, b""),
        (b"k", b"v"),
        (b"", b""),
    ]
    producer = kafka.KafkaProducer(bootstrap_servers=address)
    for key, value in cells:
        producer.send(tp.topic, value, key=key, partition=0)
    producer.close()
    assert [(record.key, record.value) for record in read(consumer, 4)] == cells
    consumer.seek_to_beginning(tp)
    batch = consumer.poll_arrow(WAIT_MS)
    assert [(row["key"], row["value"]) for row in batch.to_pylist()] == cells


def test_columns_are_what_rows_are(address: str, tp: TopicPartition, consumer: Consumer) -> None:
    keys = [b"key %d" % n if n % 3 else None for n in range(2000)]
    feed(address, tp.topic, numbers(2000), keys=keys, headers=[("a", b"1"), ("b", None)])
    rows = read(consumer, 2000)
    consumer.seek_to_beginning(tp)
    columns: list[Any] = []
    while len(columns) < 2000:
        batch = consumer.poll_arrow(WAIT_MS)
        assert batch.num_rows, "the rest of the records did not come"
        columns += batch.to_pylist()
    assert [
        (column["topic"], column["partition"], column["offset"], column["key"], column["value"])
        for column in columns
    ] == [(row.topic, row.partition, row.offset, row.key, row.value) for row in rows]
    assert [round(column["timestamp"].timestamp() * 1000) for column in columns] == [
        row.timestamp for row in rows
    ]
    assert columns[0]["headers"] == [{"key": "a", "value": b"1"}, {"key": "b", "value": None}]
    assert consumer.position(tp) == 2000


def test_columns_can_be_limited_and_are_empty_when_nothing_comes(
    address: str, tp: TopicPartition, consumer: Consumer
) -> None:
    feed(address, tp.topic, numbers(1000), keys=[b"k" if n % 2 else None for n in range(1000)])
    sizes: list[int] = []
    offsets: list[int] = []
    keys: list[bytes | None] = []
    while len(offsets) < 1000:
        batch = consumer.poll_arrow(WAIT_MS, max_records=301)
        sizes.append(batch.num_rows)
        offsets += batch.column("offset").to_pylist()
        keys += batch.column("key").to_pylist()
    assert (max(sizes), offsets) == (301, list(range(1000)))
    assert keys == [b"k" if n % 2 else None for n in range(1000)]
    nothing = consumer.poll_arrow(0)
    assert nothing.num_rows == 0
    assert nothing.schema == batch.schema


def test_a_poll_returns_no_more_than_it_may(
    address: str, tp: TopicPartition, consumer: Consumer
) -> None:
    feed(address, tp.topic, numbers(1200))
    assert len(consumer.poll(WAIT_MS)) == 500
    assert len(consumer.poll(WAIT_MS, max_records=7)) == 7
    assert consumer.position(tp) == 507
    assert [record.offset for record in read(consumer, 693)] == list(range(507, 1200))


def test_many_tiny_batches_are_one_poll(
    address: str, tp: TopicPartition, consumer: Consumer
) -> None:
    feed(address, tp.topic, numbers(300), batch_size=1)
    assert [record.offset for record in read(consumer, 300)] == list(range(300))


def test_a_poll_that_finds_nothing_ends_in_time(consumer: Consumer) -> None:
    begun = time.monotonic()
    assert consumer.poll(timeout_ms=0) == []
    assert consumer.poll(timeout_ms=300) == []
    assert 0.3 <= time.monotonic() - begun < scaled(5)


def test_new_records_end_a_wait(address: str, tp: TopicPartition, consumer: Consumer) -> None:
    assert consumer.poll(100) == []
    writer = threading.Thread(target=feed, args=(address, tp.topic, [b"late"]))
    writer.start()
    assert [record.value for record in consumer.poll(WAIT_MS)] == [b"late"]
    writer.join()


def test_seeking_goes_anywhere(address: str, tp: TopicPartition, consumer: Consumer) -> None:
    feed(address, tp.topic, numbers(1000))
    read(consumer, 500, max_records=500)
    for offset in (7, 900, 0):
        consumer.seek(tp, offset)
        assert consumer.position(tp) == offset
        assert consumer.poll(WAIT_MS)[0].offset == offset
    consumer.seek_to_end(tp)
    assert consumer.position(tp) == 1000
    assert consumer.poll(0) == []
    consumer.seek_to_beginning()
    assert consumer.position(tp) == 0
    assert consumer.poll(WAIT_MS)[0].offset == 0


def test_a_seek_in_a_loop_is_heard_at_the_next_record(
    address: str, tp: TopicPartition, consumer: Consumer
) -> None:
    feed(address, tp.topic, numbers(100))
    seen = []
    for record in consumer:
        seen.append(record.offset)
        if len(seen) == 3:
            consumer.seek(tp, 50)
        if len(seen) == 5:
            break
    assert seen == [0, 1, 2, 50, 51]
    assert consumer.position(tp) == 52


def test_paused_partitions_rest(address: str, topic: str) -> None:
    create_topic(address, topic, 2)
    left, right = TopicPartition(topic, 0), TopicPartition(topic, 1)
    feed(address, topic, numbers(10), partition=0)
    feed(address, topic, numbers(10), partition=1)
    with Consumer(bootstrap_servers=address, auto_offset_reset="earliest") as consumer:
        consumer.assign([left, right])
        consumer.pause(left)
        assert {record.partition for record in read(consumer, 10)} == {1}
        assert consumer.paused() == {left}
        assert consumer.poll(200) == []
        consumer.resume([left])
        assert {record.partition for record in read(consumer, 10)} == {0}
        consumer.pause(consumer.assignment())
        assert consumer.paused() == {left, right}
        consumer.resume(consumer.assignment())
        assert consumer.paused() == set()


def test_a_pause_in_a_loop_is_heard_at_the_next_record(address: str, topic: str) -> None:
    create_topic(address, topic, 1)
    feed(address, topic, numbers(10))
    with Consumer(
        topic,
        bootstrap_servers=address,
        auto_offset_reset="earliest",
        consumer_timeout_ms=int(scaled(500)),
    ) as consumer:
        seen = []
        for record in consumer:
            seen.append(record.offset)
            if len(seen) == 4:
                consumer.pause(consumer.assignment())
        assert seen == [0, 1, 2, 3]
        consumer.resume(consumer.assignment())
        assert [record.offset for record in consumer] == list(range(4, 10))


def test_a_loop_ends_when_nothing_came_for_long_enough(address: str, tp: TopicPartition) -> None:
    feed(address, tp.topic, numbers(700))
    with Consumer(
        tp.topic,
        bootstrap_servers=address,
        auto_offset_reset="earliest",
        consumer_timeout_ms=int(scaled(500)),
    ) as consumer:
        assert [record.offset for record in consumer] == list(range(700))
        feed(address, tp.topic, [b"more"])
        assert next(consumer).value == b"more"


def test_resets_begin_where_they_say(address: str, tp: TopicPartition) -> None:
    # Hours apart: a duration counts from the reset on, which comes whenever the machine has time.
    base, hour_ms = 1_700_000_000_000, 3_600_000
    for number in range(10):
        feed(address, tp.topic, [b"%d" % number], timestamp=base + number * hour_ms)
    moment = datetime.fromtimestamp((base + 6.5 * hour_ms) / 1000, UTC)
    ago_s = (time.time() * 1000 - base - 4.5 * hour_ms) / 1000
    policies: dict[Any, int] = {
        "earliest": 0,
        base + 3 * hour_ms: 3,
        moment: 7,
        moment.isoformat(): 7,
        f"by_duration:PT{ago_s:.3f}S": 5,
        base + 100 * hour_ms: 10,
        "latest": 10,
    }
    for policy, first in policies.items():
        with Consumer(bootstrap_servers=address, auto_offset_reset=policy) as consumer:
            consumer.assign([tp])
            assert consumer.position(tp) == first, policy


def test_without_a_policy_the_application_has_to_say(address: str, tp: TopicPartition) -> None:
    feed(address, tp.topic, numbers(3))
    with Consumer(bootstrap_servers=address, auto_offset_reset="none") as consumer:
        consumer.assign([tp])
        for _ in range(2):
            with pytest.raises(NoOffset, match=f'{tp} has no position.*is "none"; seek'):
                consumer.poll(WAIT_MS)
        consumer.seek(tp, 2)
        assert consumer.poll(WAIT_MS)[0].offset == 2
        consumer.seek(tp, 99)
        with pytest.raises(NoOffset, match=f"offset 99 of {tp} does not exist"):
            consumer.poll(WAIT_MS)
        consumer.seek(tp, 0)
        assert consumer.poll(WAIT_MS)[0].offset == 0


def test_a_position_that_does_not_exist_is_reset(
    address: str, tp: TopicPartition, consumer: Consumer
) -> None:
    feed(address, tp.topic, numbers(3))
    consumer.seek(tp, 1_000_000)
    assert consumer.poll(WAIT_MS)[0].offset == 0


def test_offsets_are_found_by_time_and_at_the_ends(
    address: str, tp: TopicPartition, consumer: Consumer
) -> None:
    base = 1_700_000_000_000
    for number in range(3):
        feed(address, tp.topic, [b"x"], timestamp=base + number * 1000)
    found = consumer.offsets_for_times({tp: base + 1})[tp]
    assert found is not None
    assert (found.offset, found.timestamp) == (1, base + 1000)
    assert consumer.offsets_for_times({tp: base + 9999}) == {tp: None}
    assert consumer.beginning_offsets([tp]) == {tp: 0}
    assert consumer.end_offsets(tp) == {tp: 3}
    assert consumer.partitions_for(tp.topic) == [0]
    assert consumer.partitions_for("nowhere-at-all") is None
    assert tp.topic in consumer.topics()
    with pytest.raises(UnknownTopic, match="has no partition 9"):
        consumer.end_offsets(TopicPartition(tp.topic, 9))


def test_values_are_deserialized_and_errors_can_be_skipped(
    address: str, tp: TopicPartition
) -> None:
    feed(address, tp.topic, [b'{"n": 0}', b'{"n": 1}', b"oops", b'{"n": 3}'])
    with Consumer(
        bootstrap_servers=address, auto_offset_reset="earliest", value_deserializer="json"
    ) as consumer:
        consumer.assign([tp])
        assert [record.value["n"] for record in consumer.poll(WAIT_MS)] == [0, 1]
        with pytest.raises(SerializationFailed, match=f"{tp} offset 2: value_deserializer"):
            consumer.poll(WAIT_MS)
        assert consumer.position(tp) == 2
        consumer.seek(tp, 3)
        assert [record.value["n"] for record in consumer.poll(WAIT_MS)] == [3]


def test_without_a_group_everything_subscribed_to_is_read(address: str, topic: str) -> None:
    create_topic(address, topic, 3)
    for partition in range(3):
        feed(address, topic, numbers(5), partition=partition)
    with Consumer(topic, bootstrap_servers=address, auto_offset_reset="earliest") as consumer:
        assert len(read(consumer, 15)) == 15
        assert consumer.assignment() == {TopicPartition(topic, number) for number in range(3)}
        assert consumer.subscription() == {topic}
        with pytest.raises(ConfigError, match="give the consumer a group_id"):
            consumer.commit()
        with pytest.raises(ConfigError, match="give the consumer a group_id"):
            consumer.committed()


def test_a_topic_may_come_later(
    start_broker: Callable[..., BrokerProcess], caplog: pytest.LogCaptureFixture
) -> None:
    address = start_broker(**{"auto.create.topics.enable": "false"}).address
    with Consumer("later", bootstrap_servers=address, auto_offset_reset="earliest") as consumer:
        assert consumer.poll(500) == []
        create_topic(address, "later", 1)
        feed(address, "later", [b"there"])
        assert [record.value for record in consumer.poll(WAIT_MS)] == [b"there"]
    assert caplog.text.count("topic later does not exist (yet)") == 1


def test_a_partition_that_does_not_exist_is_an_error(address: str, tp: TopicPartition) -> None:
    with Consumer(bootstrap_servers=address) as consumer:
        consumer.assign([TopicPartition(tp.topic, 5)])
        with pytest.raises(UnknownTopic, match=f"{tp.topic} has no partition 5; it has 1"):
            consumer.poll(WAIT_MS)
        consumer.assign([TopicPartition("nowhere-at-all", 0)])
        with pytest.raises(UnknownTopic, match="nowhere-at-all does not exist"):
            consumer.poll(WAIT_MS)


def test_nobody_there_is_said_after_the_request_timeout() -> None:
    address = f"127.0.0.1:{unused_port()}"
    with Consumer("any", bootstrap_servers=address, request_timeout_ms=1000) as consumer:
        assert consumer.poll(0) == []
        begun = time.monotonic()
        with pytest.raises(Unreachable, match=f"no broker at {address} has answered for"):
            consumer.poll(WAIT_MS)
        assert time.monotonic() - begun < scaled(10)
        with pytest.raises((TimedOut, Unreachable), match=address):
            consumer.end_offsets(TopicPartition("any", 0))


def test_a_consumer_that_was_closed_says_so(address: str, tp: TopicPartition) -> None:
    consumer = Consumer(tp.topic, bootstrap_servers=address)
    consumer.poll(100)
    consumer.close()
    consumer.close()
    assert "closed" in repr(consumer)
    for call in (
        consumer.poll,
        consumer.poll_arrow,
        consumer.commit,
        consumer.unsubscribe,
        consumer.topics,
        lambda: next(consumer),
        lambda: consumer.seek(tp, 0),
        lambda: consumer.pause(tp),
        lambda: consumer.subscribe("x"),
    ):
        with pytest.raises(Closed, match="closed; make a new one"):
            call()


def test_calls_that_do_not_fit_are_refused(address: str, tp: TopicPartition) -> None:
    with Consumer(tp.topic, bootstrap_servers=address) as consumer:
        with pytest.raises(IllegalState, match="cannot read partitions besides"):
            consumer.assign([tp])
        with pytest.raises(IllegalState, match="cannot read a pattern besides"):
            consumer.subscribe(pattern="x")
        with pytest.raises(IllegalState, match="give one of the two"):
            consumer.subscribe(["x"], pattern="x")
        with pytest.raises(IllegalState, match="is not assigned"):
            consumer.seek(TopicPartition("elsewhere", 0), 1)
        consumer.unsubscribe()
        consumer.assign([tp])
        assert consumer.assignment() == {tp}


def test_a_second_thread_that_polls_is_refused(tp: TopicPartition, consumer: Consumer) -> None:
    errors: list[Exception] = []
    inside = threading.Event()

    def poll() -> None:
        inside.set()
        consumer.poll(2000)

    thread = threading.Thread(target=poll)
    thread.start()
    inside.wait()
    while not errors and thread.is_alive():
        try:
            consumer.poll(0)
        except IllegalState as error:
            errors.append(error)
    thread.join()
    assert "called by another thread; a consumer is for one thread at a time" in str(errors[0])


def test_metrics_tell_what_was_read(address: str, tp: TopicPartition, consumer: Consumer) -> None:
    feed(address, tp.topic, numbers(100))
    read(consumer, 100)
    metrics = consumer.metrics()
    assert metrics["records-consumed-total"] == 100
    assert metrics["bytes-consumed-total"] > 700
    assert metrics["fetch-total"] >= 1
    assert metrics["records-lag-max"] == 0
    assert consumer.lag() == {tp: 0}
