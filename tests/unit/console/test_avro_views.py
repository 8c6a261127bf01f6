"""Avro object containers as text, those of strangers too."""

import json
import time
from io import BytesIO
from typing import Any

import fastavro
import pytest

from headrace.console.avro_views import RECORDS_MAX, container_text
from headrace.console.record_views import cell_view

ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"]},
        {"name": "raw", "type": "bytes"},
        {"name": "lines", "type": {"type": "array", "items": "string"}},
    ],
}
VALUE = {"id": 2**60, "note": "<b>\u202e", "raw": b"\x00\xff", "lines": ["a", "b"]}


def container(schema: Any, records: list[Any], codec: str = "null") -> bytes:
    buffer = BytesIO()
    fastavro.writer(buffer, schema, records, codec=codec)
    return buffer.getvalue()


@pytest.mark.parametrize("codec", ["null", "deflate"])
def test_a_container_is_shown_as_json(codec: str) -> None:
    data = container(ORDER, [VALUE, VALUE], codec)
    view = cell_view(data, len(data), len(data))
    assert view.kind == "Avro"
    name, text = view.views[0]
    assert name == "Avro"
    assert "\u202e" not in text
    assert '"raw": "0x00ff"' in text
    assert str(2**60) in text
    assert view.views[-1][0] == "Hex"


def test_a_cut_damaged_or_long_container_is_shown_as_far_as_it_is_safe() -> None:
    data = container(ORDER, [VALUE] * 300)
    assert container_text(data).count('"id"') == RECORDS_MAX
    assert cell_view(data[:-9], len(data), len(data)).kind == "bytes"
    assert container_text(data[:60]) == ""
    for place in range(4, len(data), 97):
        container_text(data[:place] + b"\xff\xff" + data[place + 2 :])


LIST = {
    "type": "record",
    "name": "List",
    "fields": [{"name": "next", "type": ["null", "List"]}],
}
NOTHINGS = {"type": "array", "items": "null"}
EMPTY = {"type": "array", "items": {"type": "record", "name": "E", "fields": []}}


def doubling() -> Any:
    """A record of 2^40 empty records."""
    schema: Any = {"type": "record", "name": "R0", "fields": []}
    for number in range(1, 41):
        fields = [{"name": "a", "type": schema}, {"name": "b", "type": f"R{number - 1}"}]
        schema = {"type": "record", "name": f"R{number}", "fields": fields}
    return schema


@pytest.mark.parametrize("schema", [LIST, NOTHINGS, EMPTY], ids=["list", "nulls", "empty"])
def test_schemas_that_work_without_bytes_are_not_read(schema: Any) -> None:
    record = {"next": None} if schema is LIST else []
    data = container(schema, [record])
    if schema is not LIST:
        # In place of the empty array: 2^50 items, each of no bytes.
        count = (1 << 51).to_bytes(8, "little")
        varint = bytearray()
        number = int.from_bytes(count, "little")
        while number > 0x7F:
            varint.append(number & 0x7F | 0x80)
            number >>= 7
        varint.append(number)
        sync = data[-16:]
        head = data[: data.index(sync)]
        body = bytes(varint) + b"\x00"
        data = head + sync + b"\x02" + bytes([len(body) * 2]) + body + sync
    begun = time.process_time()
    assert container_text(data) == ""
    assert time.process_time() - begun < 1


def test_a_schema_that_doubles_is_not_read() -> None:
    header = {
        "magic": fastavro.schema.parse_schema("null") and b"Obj\x01",
        "meta": {"avro.schema": json.dumps(doubling()).encode(), "avro.codec": b"null"},
        "sync": b"s" * 16,
    }
    shape = {
        "type": "record",
        "name": "Header",
        "fields": [
            {"name": "magic", "type": {"type": "fixed", "name": "M", "size": 4}},
            {"name": "meta", "type": {"type": "map", "values": "bytes"}},
            {"name": "sync", "type": {"type": "fixed", "name": "S", "size": 16}},
        ],
    }
    buffer = BytesIO()
    fastavro.schemaless_writer(buffer, shape, header)
    data = buffer.getvalue() + b"\x02\x00" + b"s" * 16
    begun = time.process_time()
    assert container_text(data) == ""
    assert time.process_time() - begun < 1
