"""The columns of a declared schema, as far as they are known without Spark. Pure."""

import json
import re
from typing import Any

from headrace.options import nearest
from headrace.pipelines.spec.model import Decode, FormatSource, Source, TopicSource

# The columns of the data source by default.
RECORD_COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")

_TYPES = {
    *("BOOLEAN", "TINYINT", "BYTE", "SMALLINT", "SHORT", "INT", "INTEGER", "BIGINT", "LONG"),
    *("FLOAT", "REAL", "DOUBLE", "DECIMAL", "DEC", "NUMERIC", "STRING", "CHAR", "CHARACTER"),
    *("VARCHAR", "BINARY", "DATE", "TIME", "TIMESTAMP", "TIMESTAMP_NTZ", "TIMESTAMP_LTZ"),
    *("INTERVAL", "ARRAY", "MAP", "STRUCT", "VARIANT", "VOID", "GEOMETRY", "GEOGRAPHY"),
}
_FIELD = re.compile(
    r"(?:`(?P<quoted>(?:[^`]|``)+)`\s*:?\s*|(?P<plain>\w+)(?:\s*:\s*|\s+))(?P<type>[A-Za-z_]\w*)"
)


def ddl_columns(schema: str) -> tuple[str, ...]:
    """The columns of a schema in Spark's DDL. Raises ValueError with the problem."""
    if schema.lstrip().startswith("{"):
        return _struct_columns(schema)
    columns = []
    for field in _split(schema):
        match = _FIELD.match(field)
        if match is None:
            raise ValueError(
                f"{field!r} is no column: write its name and its type, as in id BIGINT"
            )
        kind = match["type"]
        if kind.upper() not in _TYPES:
            near = nearest(kind, _TYPES)
            hint = f"; did you mean {near}?" if near else "; use Spark's: STRING, BIGINT, ..."
            raise ValueError(f"{kind!r} in {field!r} is no type of Spark{hint}")
        columns.append(match["quoted"].replace("``", "`") if match["quoted"] else match["plain"])
    _refuse_doubled(columns)
    return tuple(columns)


def avro_columns(schema: str) -> tuple[str, ...]:
    """The columns of an Avro record schema. Raises ValueError with the problem."""
    try:
        document = json.loads(schema)
    except ValueError as error:
        raise ValueError(f"it is not JSON: {error}") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    _parse_avro(document)
    if not isinstance(document, dict) or document.get("type") not in ("record", "error"):
        raise ValueError("it must be that of a record, whose fields become the columns")
    fields = document.get("fields")
    if not isinstance(fields, list) or not all(isinstance(field, dict) for field in fields):
        raise ValueError("its 'fields' must be a list of fields")
    return tuple(str(field.get("name")) for field in fields)


def source_columns(source: Source) -> tuple[str, ...] | None:
    """The columns of a source; None if only Spark knows them, or the schema is invalid."""
    try:
        match source:
            case TopicSource(decode=decode):
                return decoded_columns(decode)
            case FormatSource(schema=str(schema)):
                return ddl_columns(schema)
    except ValueError:
        pass
    return None


def decoded_columns(decode: Decode) -> tuple[str, ...] | None:
    """The columns of a decoded value, then the kept columns of the record."""
    if decode.format == "raw":
        return None if decode.keep else RECORD_COLUMNS
    if decode.schema is None:
        return None
    columns = avro_columns if decode.format == "avro" else ddl_columns
    return (*columns(decode.schema), *decode.keep.values())


def _parse_avro(document: Any) -> None:
    try:
        import fastavro  # noqa: PLC0415 - optional: without it the schema is read where it is used
        from fastavro.schema import SchemaParseException, UnknownType  # noqa: PLC0415
    except ImportError:
        return
    try:
        fastavro.parse_schema(document)
    except UnknownType as error:
        raise ValueError(f"it has an unknown type: {error.name}") from None
    except (SchemaParseException, KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _struct_columns(schema: str) -> tuple[str, ...]:
    try:
        document = json.loads(schema)
        return tuple(str(field["name"]) for field in document["fields"])
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ValueError("it is no struct in the JSON form of Spark") from None


def _split(schema: str) -> list[str]:
    """The fields of a schema: the text between commas outside of brackets and quotes."""
    fields, depth, start = [], 0, 0
    quote = ""
    for at, character in enumerate(schema):
        if quote:
            quote = "" if character == quote else quote
        elif character in "`'\"":
            quote = character
        elif character in "<(":
            depth += 1
        elif character in ">)":
            depth -= 1
        elif character == "," and depth == 0:
            fields.append(schema[start:at].strip())
            start = at + 1
        if depth < 0:
            break
    if depth or quote:
        raise ValueError("its brackets or quotes do not match")
    return [*fields, schema[start:].strip()]


def _refuse_doubled(columns: list[str]) -> None:
    lower = [name.lower() for name in columns]
    doubled = [name for name in columns if lower.count(name.lower()) > 1]
    if doubled:
        raise ValueError(f"it has two columns named {doubled[0]!r}")
