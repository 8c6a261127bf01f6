"""The sink on a real Spark and a real broker: what arrives, and what is said when it does not."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import headrace
from headrace.pipelines.datasource.delivery import AtLeastOnce, SinkTask, WrittenSpan, deliver
from headrace.pipelines.datasource.write_options import batch_write_options
from headrace.protocol.murmur2 import partition_for_key
from headrace.testing import Broker
from headrace.types import TopicPartition

BEGIN_MS = 1_700_000_000_000


def records(broker: Broker, *topics: str) -> list[headrace.ConsumerRecord]:
    """All records of topics that are committed, those of a partition in order."""
    with headrace.Consumer(
        bootstrap_servers=broker.bootstrap_servers, isolation_level="read_committed"
    ) as consumer:
        partitions = [
            TopicPartition(topic, number)
            for topic in topics
            for number in consumer.partitions_for(topic) or ()
        ]
        consumer.assign(partitions)
        consumer.seek_to_beginning(*partitions)
        ends = consumer.end_offsets(partitions)
        found: list[headrace.ConsumerRecord] = []
        while any(consumer.position(tp) < ends[tp] for tp in partitions):
            found += consumer.poll(timeout_ms=1_000)
    return found


def write(frame: DataFrame, broker: Broker, **options: str) -> None:
    """Append a frame's rows."""
    writer = frame.write.format("headrace").mode("append")
    writer.option("kafka.bootstrap.servers", broker.bootstrap_servers).options(**options).save()


def failure(frame: DataFrame, broker: Broker, **options: str) -> str:
    """The line in which a failed write says why."""
    with pytest.raises(PySparkException) as caught:
        write(frame, broker, **options)
    return next(line for line in str(caught.value).splitlines() if line.startswith("headrace."))


def test_every_column_arrives_in_the_topic_its_row_names(
    spark: SparkSession, spark_broker: Broker
) -> None:
    few, many = spark_broker.create_topic(partitions=1), spark_broker.create_topic(partitions=5)
    number = sf.col("id")
    text = number.cast("string")
    frame = (
        spark.range(0, 3000, 1, 3)
        .withColumn("topic", sf.when(number % 3 == 0, few).otherwise(many))
        .withColumn("key", sf.when(number % 10 < 9, text))
        .withColumn("value", sf.when(number % 10 > 0, text).cast("binary"))
        .withColumn("partition", sf.when(number == 1, sf.lit(4)))
        .withColumn("timestamp", sf.timestamp_millis(number + BEGIN_MS))
        .withColumn("headers", sf.expr("if(id % 2 = 0, array(struct('n' AS key, value)), null)"))
    )
    write(frame.drop("id"), spark_broker)

    found = records(spark_broker, few, many)
    assert sorted(record.timestamp - BEGIN_MS for record in found) == list(range(3000))
    latest: dict[tuple[str, int, bool, int], int] = {}
    for record in found:
        id = record.timestamp - BEGIN_MS
        name = str(id).encode()
        assert record.topic == (few if id % 3 == 0 else many)
        assert record.key == (name if id % 10 < 9 else None)
        assert record.value == (name if id % 10 > 0 else None)
        assert list(record.headers) == ([("n", record.value)] if id % 2 == 0 else [])
        if record.topic == many and record.key is not None:
            assert record.partition == (4 if id == 1 else partition_for_key(record.key, 5))
        # The rows of a task that have keys stay in order in each partition.
        task = (record.topic, record.partition, record.key is None, id // 1000)
        assert latest.get(task, -1) < id
        latest[task] = id


def test_a_stream_is_written_in_any_mode_and_its_topic_option_wins(
    spark: SparkSession, spark_broker: Broker, tmp_path: Path
) -> None:
    rows, totals = spark_broker.create_topic(), spark_broker.create_topic()
    spark.range(100).selectExpr(
        "'x' AS key", "'elsewhere' AS topic", "string(id) AS value"
    ).write.parquet(str(tmp_path / "in"))
    source = spark.readStream.schema("key STRING, topic STRING, value STRING").parquet(
        str(tmp_path / "in")
    )
    counted = source.groupBy("key").agg(sf.count("*").cast("string").alias("value"))

    def run(frame: DataFrame, topic: str, mode: str) -> None:
        writer = frame.writeStream.format("headrace").outputMode(mode)
        writer = writer.option("kafka.bootstrap.servers", spark_broker.bootstrap_servers)
        writer = writer.option("checkpointLocation", str(tmp_path / topic)).option("topic", topic)
        writer.trigger(availableNow=True).start().awaitTermination()

    run(source, rows, "append")
    run(counted, totals, "complete")
    assert sorted(int(record.value) for record in records(spark_broker, rows)) == list(range(100))
    assert [(record.key, record.value) for record in records(spark_broker, totals)] == [
        (b"x", b"100")
    ]


def test_what_cannot_be_written_is_said_with_its_remedy(
    spark: SparkSession, spark_broker: Broker
) -> None:
    topic = spark_broker.create_topic(partitions=2)
    frame = spark.range(0, 2, 1, 1).selectExpr("string(id) AS value")

    refused = failure(frame.withColumn("offset", sf.lit(1)), spark_broker, topic=topic)
    assert "column offset is none of those that a sink takes" in refused
    with pytest.raises(PySparkException, match=r"a topic cannot be overwritten; use \.mode"):
        frame.write.format("headrace").mode("overwrite").save()
    assert failure(frame.withColumn("partition", sf.lit(7)), spark_broker, topic=topic).endswith(
        f"SinkError: rows for topic {topic}: column 'partition' has 7, but the topic's partitions"
        " are 0 to 1; leave it null to have one chosen"
    )
    some = frame.withColumn("topic", sf.when(sf.col("value") == "0", topic))
    assert failure(some, spark_broker).endswith(
        "SinkError: row 1 of a task (value '1') has no topic;"
        " give every row one, or set option topic"
    )
    assert records(spark_broker, topic) == []


BATCH = pa.record_batch({"key": ["a", "b"], "value": ["1", "2"]})


def test_a_delivery_tells_what_it_has_written_where(spark_broker: Broker) -> None:
    one, other = spark_broker.create_topic(), spark_broker.create_topic()
    options = batch_write_options({"kafka.bootstrap.servers": spark_broker.bootstrap_servers})
    task = SinkTask("query", 3, 1, 0)
    for first in (0, 4):
        written = deliver(AtLeastOnce(options, task), [(one, BATCH), (other, BATCH), (one, BATCH)])
        assert written.task is task
        assert written.rows == 6
        assert written.spans == {
            TopicPartition(one, 0): WrittenSpan(4, first, first + 3),
            TopicPartition(other, 0): WrittenSpan(2, first // 2, first // 2 + 1),
        }


def test_a_delivery_that_fails_ends_its_producer_without_waiting_for_answers() -> None:
    with Broker(in_process=True, proxied=True) as broker:
        topic = broker.create_topic()
        options = batch_write_options(
            {"kafka.bootstrap.servers": broker.bootstrap_servers, "kafka.client.id": "failing"}
        )

        def rows() -> Iterator[tuple[str, pa.RecordBatch]]:
            yield topic, BATCH
            broker.slow(latency_ms=60_000)
            yield topic, BATCH
            raise KeyError("the query's own")

        with pytest.raises(KeyError, match="the query's own"):
            deliver(AtLeastOnce(options, SinkTask(None, None, 0, 0)), rows())
        assert not [thread for thread in threading.enumerate() if "failing" in thread.name]
