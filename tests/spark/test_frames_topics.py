"""Pipelines over topics of a real broker: what sinks are given, and what becomes of bad records."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import headrace
from headrace.pipelines.frames.dataframes import dead_letter_frame, dead_letter_sources, sink_frame
from headrace.pipelines.spec.model import (
    BuildError,
    ConsoleSink,
    DeadLetters,
    Decode,
    OnError,
    Pipeline,
    Sink,
    SqlStep,
    TopicSource,
)
from headrace.testing import Broker

AVRO = {
    "type": "record",
    "name": "Price",
    "fields": [{"name": "item", "type": "string"}, {"name": "cents", "type": "long"}],
}


def framed(schema_id: int, item: bytes, cents: int) -> bytes:
    """A record of AVRO as Confluent's serializer writes it; all numbers are small."""
    return struct.pack(">bI", 0, schema_id) + bytes([2 * len(item)]) + item + bytes([2 * cents])


def collected(frame: DataFrame, checkpoint: Path) -> list[Any]:
    given: list[Any] = []
    query = (
        frame.writeStream.foreachBatch(lambda batch, _: given.extend(batch.collect()))
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return given


def test_topics_become_rows_and_bad_records_dead_letters_with_their_origin(
    spark: SparkSession, spark_broker: Broker, tmp_path: Path
) -> None:
    servers = spark_broker.bootstrap_servers
    with headrace.Admin(bootstrap_servers=servers) as admin:
        admin.create_topic("build-orders", partitions=2)
    with headrace.Producer(bootstrap_servers=servers) as producer:
        for partition, value in [
            (0, b'{"id": 1, "item": "tea"}'),
            (0, b'{"id": "one"}'),
            (1, None),
            (1, b'{"id": 2, "item": "jam"}'),
        ]:
            producer.send(
                "build-orders", value, key="k", partition=partition, headers=[("trace", b"t")]
            )
        producer.send("build-prices", framed(3, b"tea", 5))
        producer.send("build-prices", framed(4, b"jam", 6))
        producer.flush()
    orders = TopicSource(
        "orders",
        ("build-orders",),
        decode=Decode("json", "id BIGINT, item STRING", keep={"key": "key", "partition": "part"}),
        options={"startingOffsets": "earliest"},
    )
    prices = TopicSource(
        "prices",
        pattern="build-pric.*",
        decode=Decode("avro", json.dumps(AVRO), framing="confluent", options={"schemaIds": "3"}),
        streaming=False,
    )
    priced = SqlStep(
        "priced",
        "SELECT CAST(key AS STRING) AS key, id, cents, part FROM orders"
        " LEFT JOIN prices USING (item)",
    )
    made = Pipeline(
        "shop",
        (orders, prices),
        (Sink("out", "priced", ConsoleSink()),),
        (priced,),
        broker={"bootstrap.servers": servers},
        group="the-shop",
        dead_letters=DeadLetters("build-dead"),
    )
    assert dead_letter_sources(made) == [orders, prices]
    rows = collected(sink_frame(spark, made, made.sinks[0]), tmp_path / "out")
    assert sorted(map(tuple, rows), key=repr) == [
        ("k", 1, 5, 0),
        ("k", 2, None, 1),
        ("k", None, None, 1),
    ]
    [bad] = collected(dead_letter_frame(spark, made, orders), tmp_path / "orders")
    headers = {header.key: bytes(header.value).decode() for header in bad.headers}
    assert (bad.key, bad.value, headers.pop("trace")) == (b"k", b'{"id": "one"}', "t")
    assert headers.pop("headrace.timestamp").endswith("Z")
    assert headers == {
        "headrace.reason": "id: one is no BIGINT",
        "headrace.pipeline": "shop",
        "headrace.source": "orders",
        "headrace.topic": "build-orders",
        "headrace.partition": "0",
        "headrace.offset": "1",
    }


def test_an_option_that_is_none_is_told(
    spark: SparkSession,
) -> None:
    def text(**options: str) -> str:
        orders = TopicSource("orders", ("orders",), options=options, streaming=False)
        made = Pipeline("shop", (orders,), (Sink("out", "orders", ConsoleSink()),))
        with pytest.raises(BuildError) as caught:
            sink_frame(spark, made, made.sinks[0])
        return str(caught.value)

    assert text(startingOffset="earliest") == (
        "source orders: unknown option 'startingoffset' of format \"headrace\"; did you mean"
        " startingOffsets?"
    )


def test_only_sources_that_can_fail_and_are_read_have_dead_letters() -> None:
    def source(name: str, decode: Decode) -> TopicSource:
        return TopicSource(name, (name,), decode=decode)

    read = source("read", Decode("json", "id INT"))
    sources = (
        read,
        source("unread", Decode("json", "id INT")),
        source("raw", Decode()),
        source("dropped", Decode("json", "id INT", on_error=OnError.DROP)),
    )
    sql = "SELECT 1 FROM read, raw, dropped -- unread"
    sinks = (Sink("out", "all", ConsoleSink()),)
    made = Pipeline("shop", sources, sinks, (SqlStep("all", sql),))
    assert dead_letter_sources(made) == [read]
