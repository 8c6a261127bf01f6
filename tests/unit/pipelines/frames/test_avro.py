"""Avro schemas as Spark's columns, and values that are of a schema or bad with a reason."""

import io
import json
import struct
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.pipelines.frames.avro import AvroReader, AvroSchemaError, avro_schema, spark_type


def record(*fields: tuple[str, Any], name: str = "R") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": n, "type": t} for n, t in fields]}


def logical(carrier: str, kind: str, **more: Any) -> dict[str, Any]:
    return {"type": carrier, "logicalType": kind, **more}


def columns(schema: Any) -> str:
    return spark_type(avro_schema(json.dumps(schema))).simpleString()


@pytest.mark.parametrize(
    ("kind", "column"),
    [
        ("boolean", "boolean"),
        ("int", "int"),
        ("long", "bigint"),
        ("float", "float"),
        ("double", "double"),
        ("bytes", "binary"),
        ("string", "string"),
        (["null", "string"], "string"),
        (["string", "null"], "string"),
        (["string"], "string"),
        (logical("int", "date"), "date"),
        (logical("long", "timestamp-millis"), "timestamp"),
        (logical("long", "timestamp-micros"), "timestamp"),
        (logical("long", "local-timestamp-micros"), "timestamp_ntz"),
        (logical("bytes", "decimal", precision=9, scale=2), "decimal(9,2)"),
        (logical("fixed", "decimal", precision=9, name="D", size=4), "decimal(9,0)"),
        (logical("string", "uuid"), "string"),
        (logical("int", "time-millis"), "int"),
        (logical("long", "time-micros"), "bigint"),
        (logical("long", "timestamp-nanos"), "bigint"),
        (logical("string", "no-such-type"), "string"),
        ({"type": "fixed", "name": "F", "size": 3}, "binary"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, "string"),
        ({"type": "array", "items": ["null", "int"]}, "array<int>"),
        ({"type": "map", "values": {"type": "array", "items": "int"}}, "map<string,array<int>>"),
        (record(("x", "int"), name="Inner"), "struct<x:int>"),
        ({"type": "string"}, "string"),
    ],
)
def test_types_have_their_like_in_spark(kind: Any, column: str) -> None:
    assert columns(record(("f", kind))) == f"struct<f:{column}>"


def test_a_named_type_can_be_named_again() -> None:
    inner = record(("x", "int"), name="shop.Inner")
    outer = record(("a", inner), ("b", ["null", "Inner"]), name="shop.R")
    assert columns(outer) == "struct<a:struct<x:int>,b:struct<x:int>>"


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ("string", "the Avro schema is not of a record"),
        (record(("a", ["int", "string"])), "a: a union of int, string, where Spark's columns have"),
        (record(("a", "null")), "a: a column of nothing but null"),
        (record(("a", record(("r", ["null", "In"]), name="In"))), "a.r: In contains itself"),
        (record(("a", record(name="In"))), "a: a record without fields"),
        (record(("a", {"type": "fixed", "name": "F", "size": 0})), "a: fixed F has no bytes"),
        (record(("a", "strnig")), "not an Avro schema: strnig"),
        (record(("a", {"type": "array"})), "not an Avro schema: 'items' is missing"),
        (record(("a", logical("bytes", "decimal"))), "a: a decimal without a precision"),
        (
            record(("a", {"type": "array", "items": logical("bytes", "decimal", precision=40)})),
            "a[]: 40 digits, and Spark has 38",
        ),
    ],
)
def test_a_schema_that_cannot_be_columns_is_refused(schema: Any, text: str) -> None:
    with pytest.raises(AvroSchemaError) as caught:
        columns(schema)
    assert str(caught.value).startswith(text)


def test_text_that_is_no_json_is_refused() -> None:
    with pytest.raises(AvroSchemaError, match="not an Avro schema: Expecting"):
        avro_schema("{")


SCHEMA = record(
    ("id", "long"),
    ("name", ["null", "string"]),
    ("price", logical("bytes", "decimal", precision=4, scale=2)),
    ("kind", {"type": "enum", "name": "E", "symbols": ["A", "B"]}),
    ("at", logical("long", "timestamp-micros")),
    ("tags", {"type": "array", "items": record(("n", "int"), name="Tag")}),
    ("more", {"type": "map", "values": "double"}),
)
READER = AvroReader(json.dumps(SCHEMA))
PARSED = avro_schema(READER.schema)


def value(**changes: Any) -> bytes:
    out = io.BytesIO()
    row = {"id": 7, "name": "x", "price": Decimal("1.50"), "kind": "A", "at": 5, "tags": []}
    fastavro.schemaless_writer(
        out, fastavro.parse_schema(SCHEMA), row | {"more": {"m": 1.5}} | changes
    )
    return out.getvalue()


def results(*values: bytes | None, reader: AvroReader = READER) -> list[Any]:
    [array] = reader.results(iter([pa.array(values, pa.binary())]))
    return [
        (entry["record"] and entry["record"]["id"], entry["reason"]) for entry in array.to_pylist()
    ]


def test_values_are_of_the_schema_to_the_last_byte() -> None:
    good = value()
    assert results(good, None, good[:-1], good + b"\x00", b"") == [
        (7, None),
        (None, None),
        (None, "it ends too early"),
        (None, "1 bytes follow what the schema describes"),
        (None, "it ends too early"),
    ]


def test_a_value_that_fits_avro_and_no_column_costs_no_other() -> None:
    large = bytearray(value())
    at = large.index(b"\x00\x96")
    large[at : at + 2] = b"\x7f\xff"
    one, two, three = results(value(id=1), bytes(large), value(id=3))
    assert (one, three) == ((1, None), (3, None))
    assert two[0] is None and two[1].startswith("not of the schema: ")


@given(st.binary(max_size=40), st.integers(0, 30), st.integers(0, 5))
def test_no_bytes_are_too_bad_to_be_told(junk: bytes, start: int, cut: int) -> None:
    good = value(tags=[{"n": 1}])
    [(_, reason)] = results(good[:start] + junk + good[start + cut :])
    assert reason is None or reason


def test_framing_is_stepped_over_and_checked() -> None:
    framed = AvroReader(READER.schema, framed=True, schema_ids=frozenset({3, 300}))
    head = struct.pack(">bI", 0, 300)
    other = struct.pack(">bI", 0, 4)
    assert results(head + value(), value(), other + value(), b"\x00\x00", reader=framed) == [
        (7, None),
        (None, "its first byte is 0x0e, and 0x00 in Confluent's framing"),
        (None, "written with schema 4, which is not among the schemaIds declared"),
        (None, "shorter than the five bytes of Confluent's framing"),
    ]
    assert results(other + value(), reader=AvroReader(READER.schema, framed=True)) == [(7, None)]
