"""Topics as targets of pipelines, with real Spark and a real broker."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import headrace
from headrace.pipelines import sinks
from headrace.pipelines.spec.model import (
    DeadLetters,
    OutputMode,
    Pipeline,
    Sink,
    SourceLocation,
    SpecError,
    TopicSink,
    TopicSource,
    Trigger,
)
from headrace.testing import Broker
from headrace.types import TopicPartition

NOW = Trigger(available_now=True)
PLACE = SourceLocation("orders.yaml", 12)
ORDERS = (
    '{"id": 1, "region": "north", "at": "2026-01-01T00:00:01Z", "tags": {"a": "b"}}\n'
    '{"id": 2, "region": "south", "at": "2026-01-01T00:00:02Z"}\n'
)


def declared(broker: Broker, **more: Any) -> Pipeline:
    properties = {"bootstrap.servers": broker.bootstrap_servers}
    return Pipeline("orders", sources=(), sinks=(), broker=properties, **more)


@pytest.fixture
def orders(spark: SparkSession, tmp_path: Path) -> DataFrame:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "0.json").write_text(ORDERS)
    schema = "id BIGINT, region STRING, at TIMESTAMP, tags MAP<STRING, STRING>"
    return spark.readStream.schema(schema).json(str(tmp_path / "in"))


def records(broker: Broker, topic: str, count: int) -> list[headrace.ConsumerRecord]:
    found: list[headrace.ConsumerRecord] = []
    with headrace.Consumer(bootstrap_servers=broker.bootstrap_servers) as consumer:
        partitions = [
            TopicPartition(topic, entry) for entry in consumer.partitions_for(topic) or ()
        ]
        consumer.assign(partitions)
        consumer.seek_to_beginning(*partitions)
        while len(found) < count:
            found += consumer.poll(timeout_ms=10_000)
    return sorted(found, key=lambda record: record.value or b"")


def run(spark: SparkSession, pipeline: Pipeline, sink: Sink, frame: DataFrame, to: Path) -> None:
    query = sinks.writer(spark, pipeline, sink, frame, checkpoint=str(to), trigger=NOW).start()
    assert query.name == sink.name
    query.awaitTermination()


def test_expressions_make_the_records(
    spark: SparkSession, spark_broker: Broker, orders: DataFrame, tmp_path: Path
) -> None:
    topic = spark_broker.create_topic(partitions=3)
    target = TopicSink(
        topic_expression=f"concat('{topic}', '')",
        key="id",
        headers="tags",
        partition="id",
        timestamp="at",
        options={"kafka.compression.type": "gzip"},
    )
    sink = Sink("out", "orders", target)
    run(spark, declared(spark_broker), sink, orders, tmp_path / "c")
    one, two = records(spark_broker, topic, 2)
    assert (one.key, one.partition, one.timestamp) == (b"1", 1, 1767225601000)
    assert [(header[0], header[1]) for header in one.headers] == [("a", b"b")]
    assert one.value == (
        b'{"id":1,"region":"north","at":"2026-01-01T00:00:01.000Z","tags":{"a":"b"}}'
    )
    assert (two.key, two.partition, list(two.headers)) == (b"2", 2, [])


def test_an_aggregate_says_what_its_keys_have_now(
    spark: SparkSession, spark_broker: Broker, orders: DataFrame, tmp_path: Path
) -> None:
    topic = spark_broker.create_topic(partitions=1)
    target = TopicSink(topic, key="region", value="struct(count AS n)")
    counts = orders.groupBy("region").count()
    sink = Sink("counts", "orders", target, OutputMode.UPDATE)
    run(spark, declared(spark_broker), sink, counts, tmp_path / "c")
    found = records(spark_broker, topic, 2)
    assert {record.key: record.value for record in found} == {
        b"north": b'{"n":1}',
        b"south": b'{"n":1}',
    }


def test_dead_letters_go_to_their_topic(
    spark: SparkSession, spark_broker: Broker, orders: DataFrame, tmp_path: Path
) -> None:
    topic = spark_broker.create_topic(partitions=1)
    pipeline = declared(spark_broker, dead_letters=DeadLetters(topic))
    letters = orders.selectExpr(
        "CAST(NULL AS BINARY) AS key",
        "CAST(region AS BINARY) AS value",
        "array(struct('headrace.reason' AS key, CAST('odd' AS BINARY) AS value)) AS headers",
    )
    source = TopicSource("orders", ("orders",), place=PLACE)
    where: dict[str, Any] = {"checkpoint": str(tmp_path / "c"), "trigger": NOW}
    query = sinks.dead_letters_writer(spark, pipeline, source, letters, **where).start()
    assert query.name == "dead-letters-orders"
    query.awaitTermination()
    found = records(spark_broker, topic, 2)
    assert [record.value for record in found] == [b"north", b"south"]
    assert [(header[0], header[1]) for header in found[0].headers] == [("headrace.reason", b"odd")]
    with pytest.raises(SpecError, match=r"orders\.yaml:12: source orders .* add dead_letters"):
        sinks.dead_letters_writer(spark, declared(spark_broker), source, letters, **where)


@pytest.mark.parametrize(
    ("target", "said"),
    [
        (TopicSink("t", key="regoin"), "key: regoin: .*regoin.*; the columns are id, region, at"),
        (TopicSink("t", value="to_json("), "no SQL expression; correct it"),
        (TopicSink("t", headers="region"), "headers: region: .* this is string; rewrite it"),
        (TopicSink("t", value="nothing(id)"), "value: nothing"),
    ],
)
def test_expressions_that_do_not_fit(
    spark: SparkSession,
    spark_broker: Broker,
    orders: DataFrame,
    tmp_path: Path,
    target: TopicSink,
    said: str,
) -> None:
    sink = Sink("out", "orders", target, place=PLACE)
    with pytest.raises(SpecError, match=said) as caught:
        run(spark, declared(spark_broker), sink, orders, tmp_path / "c")
    assert str(caught.value).startswith("orders.yaml:12: sink out: ")
    assert "\n" not in str(caught.value)
