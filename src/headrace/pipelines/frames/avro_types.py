"""Which Spark type the values of an Avro type have.

Rule: a type that Spark has no like of is refused by its path, never bent into another.
"""

import json
from collections.abc import Mapping
from typing import Any

import fastavro
from fastavro.schema import SchemaParseException, UnknownType
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from headrace.errors import ConfigError

Schema = Any

_PRIMITIVES: dict[str, DataType] = {
    "boolean": BooleanType(),
    "int": IntegerType(),
    "long": LongType(),
    "float": FloatType(),
    "double": DoubleType(),
    "bytes": BinaryType(),
    "string": StringType(),
}
# Logical types that are read as themselves. The others are read as the type that carries them: a
# UUID is its text, a time of day its number of milli- or microseconds.
_LOGICAL: dict[tuple[str, str | None], DataType] = {
    ("int", "date"): DateType(),
    ("long", "timestamp-millis"): TimestampType(),
    ("long", "timestamp-micros"): TimestampType(),
    ("long", "local-timestamp-millis"): TimestampNTZType(),
    ("long", "local-timestamp-micros"): TimestampNTZType(),
}
_PRECISION_MAX = 38


class AvroSchemaError(ConfigError):
    """An Avro schema that is none, or one that Spark cannot have as columns."""


def avro_schema(text: str) -> Schema:
    """The Avro schema of its JSON text, of a record, with what is not read as itself left out."""
    try:
        parsed = fastavro.parse_schema(json.loads(text))
    except KeyError as error:
        raise AvroSchemaError(f"not an Avro schema: {error} is missing") from None
    except (ValueError, SchemaParseException, UnknownType, TypeError) as error:
        raise AvroSchemaError(f"not an Avro schema: {error}") from None
    if not (isinstance(parsed, dict) and parsed["type"] == "record"):
        raise AvroSchemaError("the Avro schema is not of a record, whose fields become columns")
    return fastavro.parse_schema(_readable(json.loads(text)))


def spark_type(schema: Schema) -> StructType:
    """The columns of a record of this schema, which `avro_schema` gave. All may be null."""
    record = _Types().of(schema, "")
    assert isinstance(record, StructType)
    return record


def _readable(schema: Schema) -> Schema:
    """The schema without the logical types that are not read as themselves."""
    if isinstance(schema, list):
        return [_readable(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    inside = {"type", "items", "values", "fields"}
    kept = {key: _readable(value) if key in inside else value for key, value in schema.items()}
    carrier, logical = kept.get("type"), kept.get("logicalType")
    if not isinstance(carrier, str) or not _read_as_itself(carrier, logical):
        kept.pop("logicalType", None)
    return kept


def _read_as_itself(carrier: str, logical: str | None) -> bool:
    if logical == "decimal":
        return carrier in ("bytes", "fixed")
    return (carrier, logical) in _LOGICAL


class _Types:
    """The types of one schema; a named type is met whole once and by its name after that."""

    def __init__(self) -> None:
        self._named: dict[str, DataType | None] = {}

    def of(self, schema: Schema, path: str) -> DataType:
        match schema:
            case list():
                return self._union(schema, path)
            case str():
                return self._by_name(schema, path)
            case {"type": "array", "items": items}:
                return ArrayType(self.of(items, f"{path}[]"))
            case {"type": "map", "values": values}:
                return MapType(StringType(), self.of(values, f"{path}{{}}"))
            case {"logicalType": "decimal"}:
                return self._decimal(schema, path)
            case {"type": "record", "name": name, "fields": fields}:
                return self._record(name, fields, path)
            case {"type": "enum", "name": name}:
                return self._known(name, StringType())
            case {"type": "fixed", "name": name, "size": size}:
                if size == 0:
                    raise AvroSchemaError(f"{path}: fixed {name} has no bytes")
                return self._known(name, BinaryType())
            case {"type": str(carrier), "logicalType": str(logical)}:
                return _LOGICAL[carrier, logical]
            case {"type": inner}:
                return self.of(inner, path)
        raise AvroSchemaError(f"{path}: no Avro type: {schema}")

    def _by_name(self, name: str, path: str) -> DataType:
        if name == "null":
            raise AvroSchemaError(f"{path}: a column of nothing but null; leave the field out")
        found = _PRIMITIVES.get(name) or self._named[name]
        if found is None:
            raise AvroSchemaError(f"{path}: {name} contains itself, which Spark has no type for")
        return found

    def _known(self, name: str, kind: DataType) -> DataType:
        self._named[name] = kind
        return kind

    def _union(self, union: list[Schema], path: str) -> DataType:
        some = [one for one in union if one != "null"]
        if len(some) != 1:
            raise AvroSchemaError(
                f"{path}: a union of {', '.join(map(_name, union))}, where Spark's columns have one"
                " type; only a union of null and one other is read"
            )
        return self.of(some[0], path)

    def _record(self, name: str, fields: list[Mapping[str, Any]], path: str) -> DataType:
        if not fields:
            raise AvroSchemaError(f"{path or name}: a record without fields")
        self._named[name] = None
        columns = [
            StructField(
                field["name"], self.of(field["type"], f"{path}.{field['name']}".lstrip("."))
            )
            for field in fields
        ]
        return self._known(name, StructType(columns))

    def _decimal(self, schema: Mapping[str, Any], path: str) -> DataType:
        precision, scale = schema.get("precision", 0), schema.get("scale", 0)
        if precision < 1:
            raise AvroSchemaError(f"{path}: a decimal without a precision")
        if precision > _PRECISION_MAX:
            raise AvroSchemaError(f"{path}: {precision} digits, and Spark has {_PRECISION_MAX}")
        kind = DecimalType(precision, scale)
        return self._known(schema["name"], kind) if "name" in schema else kind


def _name(schema: Schema) -> str:
    return schema if isinstance(schema, str) else schema.get("name") or str(schema["type"])
