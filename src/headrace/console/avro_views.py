"""Avro object containers as text: their records as JSON, by the schema that they carry.

Pure. Rule: schema and data come from strangers. A schema that could make a reader work or recurse
without reading data is refused before any record is read, so that the work is bounded by the bytes.
"""

import json
from collections.abc import Mapping
from io import BytesIO
from typing import Any, NamedTuple

MAGIC = b"Obj\x01"
RECORDS_MAX = 100
_TEXT_CHARS_MAX = 1024 * 1024
# A block of zeros grows a thousandfold when it is decompressed.
_COMPRESSED_BYTES_MAX = 16 * 1024
_DEPTH_MAX = 32
_TYPES_MAX = 10_000


class AvroRefused(ValueError):
    """A schema or a container that is not read, although it may be right."""


class _Extent(NamedTuple):
    """The fewest bytes of a value, and the types that are read for it at most once each."""

    bytes_min: int
    types: int


def container_text(data: bytes) -> str:
    """The records of an Avro object container as JSON, the first hundred; empty if it is none."""
    if not data.startswith(MAGIC):
        return ""
    import fastavro  # noqa: PLC0415  # Few topics have Avro.

    try:
        reader = fastavro.reader(BytesIO(data))
        if reader.codec not in ("null", "deflate"):
            return ""
        if reader.codec == "deflate" and len(data) > _COMPRESSED_BYTES_MAX:
            return ""
        _SchemaCheck().check(reader.writer_schema)
        parts: list[str] = []
        size = 0
        for record in reader:
            parts.append(json.dumps(record, indent=2, default=_plain, ensure_ascii=False))
            size += len(parts[-1])
            if size > _TEXT_CHARS_MAX:
                return ""
            if len(parts) == RECORDS_MAX:
                break
    except Exception:  # Whatever a damaged container makes of the library.
        return ""
    return "\n".join(parts)


def _plain(value: Any) -> str:
    return f"0x{value.hex()}" if isinstance(value, bytes) else str(value)


class _SchemaCheck:
    """The check of a schema: no recursion, not deep, nothing that repeats without taking bytes."""

    def __init__(self) -> None:
        self._named: dict[str, _Extent] = {}

    def check(self, schema: Any) -> None:
        """AvroRefused if reading by this schema is not bounded by the data."""
        self._extent(schema, 0)

    def _extent(self, schema: Any, depth: int) -> _Extent:
        if depth > _DEPTH_MAX:
            raise AvroRefused("a schema too deep")
        if isinstance(schema, list):
            members = [self._extent(member, depth + 1) for member in schema]
            return _bounded(1, sum(member.types for member in members))
        if isinstance(schema, Mapping):
            return self._complex(schema, depth)
        if schema in self._named:
            return self._named[schema]
        sizes = {"null": 0, "float": 4, "double": 8}
        known = {"boolean", "int", "long", "bytes", "string"}
        if schema not in sizes and schema not in known:
            # It names itself from within, or nothing.
            raise AvroRefused("a recursive schema")
        return _Extent(sizes.get(schema, 1), 1)

    def _complex(self, schema: Mapping[str, Any], depth: int) -> _Extent:
        kind = schema["type"]
        match kind:
            case "record" | "error":
                fields = [self._extent(field["type"], depth + 1) for field in schema["fields"]]
                found = _bounded(
                    sum(field.bytes_min for field in fields), sum(field.types for field in fields)
                )
            case "enum":
                found = _Extent(1, 1)
            case "fixed":
                found = _Extent(int(schema["size"]), 1)
            case "array" | "map":
                item = self._extent(schema["items" if kind == "array" else "values"], depth + 1)
                if kind == "array" and item.bytes_min < 1:
                    raise AvroRefused("items without bytes")
                return _bounded(1, item.types)
            case _:
                return self._extent(kind, depth + 1)
        self._named[schema["name"]] = found
        return found


def _bounded(bytes_min: int, types: int) -> _Extent:
    if types >= _TYPES_MAX:
        raise AvroRefused("a schema too large")
    return _Extent(bytes_min, types + 1)
