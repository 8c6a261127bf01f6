"""Avro as a value format: schemas, Spark types, and a reader that makes Arrow arrays by `fastavro`.

Rule: a value matches its schema to the last byte or it is bad, and the reason is stored beside it.
"""

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import fastavro
import pyarrow as pa
from fastavro.read import SchemaResolutionError
from fastavro.schema import SchemaParseException, UnknownType
from pyspark.sql import Column
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.pandas.types import to_arrow_type
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
from headrace.pipelines.spec.model import BuildError, TopicSource

# The Spark type of each Avro type.
#
# Rule: a type without a Spark equivalent is refused, with its path, never converted to another.


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
# Logical types that are kept. The others are read as their underlying type: a UUID as its text, a
# time of day as its number of milli- or microseconds.
_LOGICAL: dict[tuple[str, str | None], DataType] = {
    ("int", "date"): DateType(),
    ("long", "timestamp-millis"): TimestampType(),
    ("long", "timestamp-micros"): TimestampType(),
    ("long", "local-timestamp-millis"): TimestampNTZType(),
    ("long", "local-timestamp-micros"): TimestampNTZType(),
}
_PRECISION_MAX = 38


class AvroSchemaError(ConfigError):
    """An invalid Avro schema, or one that has no equivalent as Spark columns."""


def avro_schema(text: str) -> Schema:
    """The Avro record schema in a JSON text, without the logical types that are not kept."""
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
    """The Spark columns of a record schema from `avro_schema`. All are nullable."""
    record = _AvroTypes().of(schema, "")
    assert isinstance(record, StructType)
    return record


def _readable(schema: Schema) -> Schema:
    """The schema without the logical types that are not kept."""
    if isinstance(schema, list):
        return [_readable(branch) for branch in schema]
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


class _AvroTypes:
    """The Spark types of one schema; a named type is defined once and then referred to by name."""

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
        some = [branch for branch in union if branch != "null"]
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


_FRAME = struct.Struct(">bI")
_ENDS_EARLY = "it ends too early"
_UNREADABLE = (ArithmeticError, LookupError, TypeError, ValueError, SchemaResolutionError)

Record = dict[str, Any]


@dataclass(frozen=True)
class AvroReader:
    """Reads values of one schema, given as its JSON text.

    With `framed`, a value starts as Confluent's serializers write it: a zero byte and the number
    of its schema in the registry, which must be one of `schema_ids` if there are any.
    """

    schema: str
    framed: bool = False
    schema_ids: frozenset[int] = frozenset()

    @property
    def record_type(self) -> StructType:
        """The columns of a record."""
        return spark_type(avro_schema(self.schema))

    @property
    def result_type(self) -> StructType:
        """The type of a decoded value: a record or a reason, or neither for a null value."""
        return StructType(
            [StructField("record", self.record_type), StructField("reason", StringType())]
        )

    def results(self, values: Iterator[pa.Array]) -> Iterator[pa.Array]:
        """The values as arrays of `result_type`."""
        schema = avro_schema(self.schema)
        kind = to_arrow_type(self.record_type, timezone="UTC")
        for array in values:
            read = [self.read(value, schema) for value in array.to_pylist()]
            records, reasons = _arrow_records(read, kind)
            yield pa.StructArray.from_arrays(
                [records, pa.array(reasons, pa.string())], names=["record", "reason"]
            )

    def read(self, value: bytes | None, schema: Schema) -> tuple[Record | None, str | None]:
        """The record in a value, or the reason why there is none. `schema` is the parsed one."""
        if value is None:
            return None, None
        stream = BytesIO(value)
        reason = self._unframed(stream, value) if self.framed else None
        if reason:
            return None, reason
        try:
            record = fastavro.schemaless_reader(stream, schema, None)
        except EOFError:
            return None, _ENDS_EARLY
        except _UNREADABLE as error:
            early = stream.tell() == len(value) and isinstance(error, IndexError)
            return None, _ENDS_EARLY if early else f"not of the schema: {error}"
        rest = len(value) - stream.tell()
        if rest:
            return None, f"{rest} bytes follow what the schema describes"
        assert isinstance(record, dict)
        return record, None

    def _unframed(self, stream: BytesIO, value: bytes) -> str | None:
        """Skip the framing; returns the reason if it is invalid."""
        if len(value) < _FRAME.size:
            return "shorter than the five bytes of Confluent's framing"
        magic, schema_id = _FRAME.unpack(stream.read(_FRAME.size))
        if magic:
            return f"its first byte is {value[0]:#04x}, and 0x00 in Confluent's framing"
        if self.schema_ids and schema_id not in self.schema_ids:
            return f"written with schema {schema_id}, which is not among the schemaIds declared"
        return None


def _arrow_records(
    read: Sequence[tuple[Record | None, str | None]], kind: pa.DataType
) -> tuple[pa.Array, list[str | None]]:
    """The records as one array, and the reasons.

    Values that Avro allows and a column does not, such as a decimal with too many digits, are found
    only here: then each record is converted alone, so that a bad one costs no other.
    """
    records, reasons = [record for record, _ in read], [reason for _, reason in read]
    try:
        return pa.array(records, kind), reasons
    except (pa.ArrowException, OverflowError):
        pass
    for at, record in enumerate(records):
        try:
            pa.array([record], kind)
        except (pa.ArrowException, OverflowError) as error:
            records[at], reasons[at] = None, f"not of the schema: {error}"
    return pa.array(records, kind), reasons


_SCHEMA_IDS = "schemaIds"


@dataclass(frozen=True)
class AvroFormat:
    """Values that an AvroReader decodes."""

    reader: AvroReader
    record_type: StructType

    def attempt(self, value: Column) -> Column:
        reader = self.reader

        def decode(values: Iterator[pa.Array]) -> Iterator[pa.Array]:
            return reader.results(values)

        # Its type hints have no structs, which it accepts nevertheless.
        decoder = arrow_udf(decode, reader.result_type)  # type: ignore[call-overload]
        decoded: Column = decoder(value)
        return decoded

    def record(self, attempt: Column) -> Column:
        return attempt["record"]

    def reason(self, value: Column, attempt: Column) -> Column:
        return attempt["reason"]


def avro_format(source: TopicSource, schema: str) -> AvroFormat:
    """The format of a source, from its Avro schema as JSON text."""
    place, part = source.decode.place or source.place, f"source {source.name}"
    for name in source.decode.options:
        if name != _SCHEMA_IDS:
            remedy = f"Avro has {_SCHEMA_IDS} only, for framing: confluent"
            raise BuildError(place, part, f"no option {name!r}", remedy)
    ids = source.decode.options.get(_SCHEMA_IDS, "")
    try:
        reader = AvroReader(
            schema,
            framed=source.decode.framing == "confluent",
            schema_ids=frozenset(int(text) for text in ids.split(",") if text.strip()),
        )
        return AvroFormat(reader, reader.record_type)
    except AvroSchemaError as error:
        raise BuildError(place, part, str(error), "correct the schema under decode") from error
    except ValueError:
        remedy = "write numbers and commas, as in '3,7'"
        raise BuildError(place, part, f"option {_SCHEMA_IDS} is {ids!r}", remedy) from None
