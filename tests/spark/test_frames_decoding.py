"""Values become columns, and records that do not fit go where their source says, with a reason."""

import datetime as dt
import io
import json
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

import fastavro
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from headrace.pipelines.frames.decoding import (
    DEAD_LETTER_COLUMNS,
    KAFKA_COLUMNS,
    columns_to_read,
    dead_letters,
    good_rows,
)
from headrace.pipelines.spec.model import (
    BuildError,
    Decode,
    OnError,
    Pipeline,
    SourceLocation,
    TopicSource,
)

RECORDS = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP,"
    " timestampType INT, headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)
AT = dt.datetime(2026, 3, 1, 12, 30, 0, 250_000, tzinfo=dt.UTC)
PIPELINE = Pipeline("shop", (), ())


def records(spark: SparkSession, values: Iterable[bytes | None]) -> DataFrame:
    rows = [
        (b"k%d" % at, value, "orders", 3, 100 + at, AT, 0, [("trace", b"\x00\xff")])
        for at, value in enumerate(values)
    ]
    return spark.createDataFrame(rows, RECORDS).coalesce(1)


def source(**decode: Any) -> TopicSource:
    return TopicSource("orders", ("orders",), decode=Decode(**decode))


def good(source: TopicSource, frame: DataFrame) -> list[tuple[Any, ...]]:
    read = frame.select(*columns_to_read(source.decode))
    return [tuple(row) for row in good_rows(PIPELINE, source, read).collect()]


def bad(source: TopicSource, frame: DataFrame) -> dict[bytes, str]:
    """The values of the dead letters and their reasons."""
    letters = dead_letters(PIPELINE, source, frame.select(*DEAD_LETTER_COLUMNS)).collect()
    return {
        bytes(letter.value): bytes(header.value).decode()
        for letter in letters
        for header in letter.headers
        if header.key == "headrace.reason"
    }


JSON = {
    b'{"id": 1, "at": "2026-01-01T00:00:00Z", "to": {"zip": 7}, "tags": [1, 2]}': None,
    b' {"tags": null, "id": 2, "unknown": true} ': None,
    b"not json": "not JSON",
    b'{"id": 1': "not JSON",
    b"": "not JSON",
    b"null": "not a JSON object",
    b"5": "not a JSON object",
    b'[{"id": 1}, {"id": 2}]': "not a JSON object",
    b'{"id": 1} {"id": 2}': "more than one JSON object",
    b'{"id": 1}}': "not of the schema",
    b'{"id": "x"}': "id: x is no BIGINT",
    b'{"id": 1.5}': "id: 1.5 is no BIGINT",
    b'{"id": 1, "at": "soon"}': "at: soon is no TIMESTAMP",
    b'{"id": 1, "to": {"zip": "x"}}': "not of the schema",
    b'{"id": 1, "tags": ["x"]}': 'tags: ["x"] is no ARRAY<INT>',
    b'{"at": null}': "id: missing, and declared NOT NULL",
    b'{"id": 1, "x": "\xff"}': "not valid UTF-8",
}


def test_json_fits_its_schema_or_is_bad_with_a_reason(spark: SparkSession) -> None:
    schema = "id BIGINT NOT NULL, at TIMESTAMP, to STRUCT<zip: INT>, tags ARRAY<INT>"
    orders = source(format="json", schema=schema, keep={"offset": "offset"})
    frame = records(spark, JSON)
    rows = good(orders, frame)
    assert [row[-1] for row in rows] == [100, 101]
    assert rows[0][0] == 1 and rows[0][2:4] == ((7,), [1, 2])
    assert rows[1] == (2, None, None, None, 101)
    reasons = bad(orders, frame)
    expected = {value: reason for value, reason in JSON.items() if reason}
    assert reasons.keys() == expected.keys()
    assert {v: r for v, r in reasons.items() if not r.startswith(expected[v])} == {}


def test_csv_is_one_line_of_its_schema(spark: SparkSession) -> None:
    orders = source(format="csv", schema="id BIGINT, `the name` STRING", options={"sep": ";"})
    values = [b"1;a", b"2;\r\n", b'3;"a;\nb"', b"x;a", b"1", b"1;a;b", b"", b"1;a\n2;b", None]
    frame = records(spark, values)
    assert good(orders, frame) == [(1, "a"), (2, None), (3, "a;\nb")]
    assert bad(orders, frame) == {
        b"x;a": "id: x is no BIGINT",
        b"1": "not one line of 2 fields",
        b"1;a;b": "not one line of 2 fields",
        b"": "empty",
        b"1;a\n2;b": "not one line of 2 fields",
    }


AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "ms", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "us", "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}]},
        {
            "name": "price",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2},
        },
        {"name": "uid", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["NEW", "OLD"]}},
        {"name": "was", "type": ["Kind", "null"]},
        {"name": "tags", "type": {"type": "array", "items": ["null", "string"]}},
        {"name": "counts", "type": {"type": "map", "values": "int"}},
        {"name": "mac", "type": {"type": "fixed", "name": "Mac", "size": 2}},
        {
            "name": "to",
            "type": [
                "null",
                {"type": "record", "name": "To", "fields": [{"name": "zip", "type": "int"}]},
            ],
        },
    ],
}
ORDER = {
    "id": 1,
    "day": dt.date(2026, 1, 2),
    "ms": dt.datetime(2026, 1, 2, 3, 4, 5, 6000, tzinfo=dt.UTC),
    "us": dt.datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=dt.UTC),
    "price": Decimal("1234.50"),
    "uid": "c9f3b1f0-0000-4000-8000-000000000001",
    "kind": "NEW",
    "was": "OLD",
    "tags": ["a", None],
    "counts": {"x": 1},
    "mac": b"\x01\x02",
    "to": {"zip": 7},
}


def avro_value(order: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(AVRO), order)
    return out.getvalue()


def test_avro_has_the_types_of_its_schema(spark: SparkSession) -> None:
    orders = source(format="avro", schema=json.dumps(AVRO), keep={"key": "key"})
    whole = avro_value(ORDER)
    nulls = avro_value(ORDER | {"us": None, "was": None, "to": None, "tags": []})
    frame = records(spark, [whole, nulls, None, whole[:-1], whole + b"\x00\x00"])
    read = good_rows(PIPELINE, orders, frame)
    assert read.drop("key").schema.simpleString() == (
        "struct<id:bigint,day:date,ms:timestamp,us:timestamp,price:decimal(6,2),uid:string,"
        "kind:string,was:string,tags:array<string>,counts:map<string,int>,mac:binary,"
        "to:struct<zip:int>>"
    )
    first, second, tombstone = (row.asDict(recursive=True) for row in read.collect())
    assert first == {
        **ORDER,
        "ms": ORDER["ms"].replace(tzinfo=None),  # type: ignore[attr-defined]
        "us": ORDER["us"].replace(tzinfo=None),  # type: ignore[attr-defined]
        "key": b"k0",
    }
    assert [second[name] for name in ("us", "was", "to", "tags")] == [None, None, None, []]
    assert tombstone == dict.fromkeys(ORDER) | {"key": b"k2"}
    assert bad(orders, frame) == {
        whole[:-1]: "it ends too early",
        whole + b"\x00\x00": "2 bytes follow what the schema describes",
    }


def test_dead_letters_are_what_they_were_and_say_where_they_came_from(spark: SparkSession) -> None:
    orders = source(format="json", schema="id INT")
    frame = records(spark, [b'{"id": 1}', b"?"])
    [letter] = dead_letters(PIPELINE, orders, frame).collect()
    assert (letter.key, letter.value) == (b"k1", b"?")
    assert {header.key: bytes(header.value) for header in letter.headers} == {
        "trace": b"\x00\xff",
        "headrace.reason": b"not JSON",
        "headrace.pipeline": b"shop",
        "headrace.source": b"orders",
        "headrace.topic": b"orders",
        "headrace.partition": b"3",
        "headrace.offset": b"101",
        "headrace.timestamp": b"2026-03-01T12:30:00.250Z",
    }
    again = spark.createDataFrame(
        [(letter.key, letter.value, "orders", 0, 7, AT, 0, letter.headers)], RECORDS
    )
    [second] = dead_letters(PIPELINE, orders, again).collect()
    names = [header.key for header in second.headers]
    assert len(names) == len(set(names)) == 8


def test_a_value_is_decoded_once_whatever_is_asked_of_its_columns(spark: SparkSession) -> None:
    orders = source(format="json", schema="id INT, name STRING", keep={"partition": "partition"})
    rows = good_rows(PIPELINE, orders, records(spark, []))
    asked = rows.where("id > 3 AND partition = 1").groupBy("name").count()
    plan = asked._jdf.queryExecution().optimizedPlan().toString()
    # The parser that tells why a value is bad reads fields as texts; it runs on bad values only.
    assert plan.count("from_json(StructField(record,StructType(StructField(id,IntegerType") == 1


def test_a_pipeline_that_is_to_fail_fails_though_nothing_of_the_record_is_asked_for(
    spark: SparkSession,
) -> None:
    orders = source(
        format="json", schema="id INT", on_error=OnError.FAIL, keep={"partition": "partition"}
    )
    frame = records(spark, [b'{"id": 1}', b"?"])
    read = frame.select(*columns_to_read(orders.decode))
    with pytest.raises(PySparkException) as caught:
        good_rows(PIPELINE, orders, read).groupBy().count().collect()
    assert (
        "\nheadrace.pipelines.frames.errors.DecodeError: pipeline shop: source orders: record"
        " orders-3@101 is no json of the declared schema: not JSON; correct the schema, or set"
        " on_error to dead-letter or drop\n"
    ) in str(caught.value)
    fitting = good_rows(PIPELINE, orders, read.where("offset = 100"))
    plan = fitting._jdf.queryExecution().analyzed().toString()
    assert "headrace.pipelines" in plan and "\nheadrace" not in plan
    assert [tuple(row) for row in fitting.collect()] == [(1, 3)]
    assert fitting.schema.simpleString() == "struct<id:int,partition:int>"


@pytest.mark.parametrize(
    ("decode", "text"),
    [
        ({"format": "json"}, "json needs a schema; declare one under decode"),
        ({"format": "xml", "schema": "a INT"}, "no format 'xml'; use one of json, csv, avro"),
        (
            {"format": "json", "schema": "id BIGNIT"},
            'unsupported data type "BIGNIT"; write the schema as "id BIGINT, at TIMESTAMP"',
        ),
        (
            {"format": "csv", "schema": "id INT", "options": {"MODE": "FAILFAST"}},
            "option MODE is decided by on_error; leave it out",
        ),
        (
            {"format": "json", "schema": "id INT, Key STRING", "keep": {"key": "key"}},
            "two columns are named key; give one another name, as in keep: {key: key_of_record}",
        ),
        ({"format": "avro", "schema": '"int"'}, "the Avro schema is not of a record"),
        (
            {"format": "avro", "schema": json.dumps(AVRO), "options": {"schemaIds": "x"}},
            "option schemaIds is 'x'; write numbers and commas, as in '3,7'",
        ),
        (
            {"format": "avro", "schema": json.dumps(AVRO), "options": {"id": "1"}},
            "no option 'id'; Avro has schemaIds only",
        ),
    ],
)
def test_a_declaration_that_says_no_way_to_decode_is_refused(
    spark: SparkSession, decode: dict[str, Any], text: str
) -> None:
    with pytest.raises(BuildError) as caught:
        good_rows(PIPELINE, source(**decode, place=SourceLocation("a.yaml", 4)), records(spark, []))
    assert str(caught.value).startswith(f"a.yaml:4: source orders: {text}")


def test_raw_records_are_what_they_are(spark: SparkSession) -> None:
    frame = records(spark, [None, b"\xff"])
    kept = source(format="raw", keep={"offset": "at", "headers": "headers"})
    assert good(kept, frame) == [
        (None, 100, [("trace", b"\x00\xff")]),
        (b"\xff", 101, [("trace", b"\x00\xff")]),
    ]
    assert good_rows(PIPELINE, source(), frame.drop("headers")).columns == list(KAFKA_COLUMNS)
