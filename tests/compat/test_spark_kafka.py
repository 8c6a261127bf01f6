"""Our data source beside Spark's own, on one broker: the same rows, read, written and streamed.

It takes Spark's Kafka connector from Maven; where that cannot be fetched the tests say why.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import headrace
from headrace.pipelines.datasource.delivery import SinkTask, deliver
from headrace.pipelines.datasource.exactly_once import ExactlyOnce
from headrace.pipelines.datasource.read_options import TOPIC_IDS
from headrace.pipelines.datasource.write_options import stream_write_options
from headrace.testing import Broker
from headrace.types import uuid_text

OURS, THEIRS = "headrace", "kafka"
TIME_MS = 1_700_000_000_000
COUNT = 500


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@pytest.fixture(scope="module")
def topic(broker: Broker) -> str:
    """Keys and values that are null, empty or not; headers; times; every codec."""
    name = broker.create_topic(partitions=3)
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        with headrace.Producer(
            bootstrap_servers=broker.bootstrap_servers,
            compression_type=codec,
        ) as producer:
            for number in range(COUNT // 5):
                producer.send(
                    name,
                    (None, b"", b"value %d" % number)[number % 3],
                    key=(b"key %d" % number, None, b"")[number % 4 % 3],
                    headers=[("a", b"1"), ("a", None), ("é", b"")][: number % 4] or None,
                    timestamp_ms=TIME_MS + number * 1000,
                    partition=number % 2,
                )
    return name


def read(spark: SparkSession, kind: str, broker: Broker, topic: str, **more: str) -> DataFrame:
    reader = spark.read.format(kind)
    reader = reader.option("kafka.bootstrap.servers", broker.bootstrap_servers)
    return reader.options(subscribe=topic, includeHeaders="true", **more).load()


def rows(frame: DataFrame) -> list[tuple[object, ...]]:
    return sorted((tuple(row) for row in frame.collect()), key=lambda row: (row[2], row[3], row[4]))


def bounds(topic: str, *offsets: int) -> str:
    return json.dumps({topic: {str(number): offset for number, offset in enumerate(offsets)}})


def test_a_batch_has_the_same_schema_and_rows(
    spark: SparkSession, broker: Broker, topic: str
) -> None:
    ours, theirs = (read(spark, kind, broker, topic) for kind in (OURS, THEIRS))
    assert ours.schema == theirs.schema
    found = rows(ours)
    assert found == rows(theirs)
    assert len(found) == COUNT


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("startingOffsets", bounds("T", 100, -2, 0)),
        ("endingOffsets", bounds("T", 17, -1, -1)),
        ("startingTimestamp", str(TIME_MS + 50_000)),
        ("endingTimestamp", str(TIME_MS + 50_000)),
    ],
)
def test_both_begin_and_end_at_the_same_place(
    spark: SparkSession, broker: Broker, topic: str, option: str, value: str
) -> None:
    given = {option: value.replace('"T"', f'"{topic}"')}
    given["startingOffsetsByTimestampStrategy"] = "latest"
    found = rows(read(spark, OURS, broker, topic, **given))
    assert found == rows(read(spark, THEIRS, broker, topic, **given))
    assert 0 < len(found) < COUNT


@pytest.mark.parametrize(("writer", "reader"), [(OURS, THEIRS), (THEIRS, OURS)])
def test_what_one_writes_the_other_reads(
    spark: SparkSession, broker: Broker, topic: str, writer: str, reader: str
) -> None:
    copy = broker.create_topic(partitions=3)
    source = read(spark, reader, broker, topic).select("key", "value", "partition", "headers")
    (
        source.write.format(writer)
        .option("kafka.bootstrap.servers", broker.bootstrap_servers)
        .option("topic", copy)
        .option("includeHeaders", "true")
        .mode("append")
        .save()
    )
    columns = ("partition", "offset", "key", "value", "headers")
    copied = read(spark, reader, broker, copy).select(*columns).orderBy(*columns[:2])
    original = read(spark, reader, broker, topic).select(*columns).orderBy(*columns[:2])
    assert copied.collect() == original.collect()


def test_both_leave_out_what_was_aborted(spark: SparkSession, broker: Broker) -> None:
    """A task that fails, and its second attempt: Spark's own source reads what was committed."""
    topic = broker.create_topic()
    options = stream_write_options({"kafka.bootstrap.servers": broker.bootstrap_servers})
    values = pa.record_batch({"value": [b"one", b"two"]})

    def failing() -> Iterator[tuple[str, pa.RecordBatch]]:
        yield topic, values
        raise KeyError("in the middle")

    with pytest.raises(KeyError):
        deliver(ExactlyOnce(options, SinkTask("compat", 0, 0, 0)), failing())
    deliver(ExactlyOnce(options, SinkTask("compat", 0, 0, 1)), [(topic, values)])
    committed = {"kafka.isolation.level": "read_committed"}
    ours, theirs = (
        rows(read(spark, entry, broker, topic, **committed)) for entry in (OURS, THEIRS)
    )
    assert ours == theirs
    assert [row[1] for row in ours] == [b"one", b"two"]


def test_a_stream_has_the_same_rows(
    spark: SparkSession, broker: Broker, topic: str, tmp_path: Path
) -> None:
    found = {}
    for kind in (OURS, THEIRS):
        stream = (
            spark.readStream.format(kind)
            .option("kafka.bootstrap.servers", broker.bootstrap_servers)
            .options(subscribe=topic, includeHeaders="true", startingOffsets="earliest")
            .option("maxOffsetsPerTrigger", "120")
            .load()
        )
        query = (
            stream.writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / f"{kind}-checkpoint"))
            .trigger(availableNow=True)
            .start(str(tmp_path / kind))
        )
        assert query.awaitTermination(120)
        assert len([entry for entry in query.recentProgress if entry["numInputRows"]]) > 1
        found[kind] = rows(spark.read.parquet(str(tmp_path / kind)))
    assert found[OURS] == found[THEIRS]
    assert len(found[OURS]) == COUNT


def test_a_checkpoint_of_theirs_has_offsets_of_the_same_form(
    spark: SparkSession, broker: Broker, topic: str, tmp_path: Path
) -> None:
    """Progress of both is read by the same dashboards; ours has the ids of topics besides."""
    ends = []
    for kind in (OURS, THEIRS):
        stream = (
            spark.readStream.format(kind)
            .option("kafka.bootstrap.servers", broker.bootstrap_servers)
            .options(subscribe=topic, startingOffsets="earliest")
            .load()
        )
        checkpoint = tmp_path / kind
        query = (
            stream.writeStream.format("noop")
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)
        last = max((checkpoint / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
        ends.append(json.loads(last.read_text().splitlines()[-1]))
    with headrace.Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        topic_id = uuid_text(admin.describe_topic(topic).topic_id)
    ours, theirs = ends
    assert ours == theirs | {TOPIC_IDS: {topic: topic_id}}
