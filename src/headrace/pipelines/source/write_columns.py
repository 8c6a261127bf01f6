"""The columns a sink takes, and which of their rows go to which topic. No I/O."""

from collections.abc import Callable, Iterator

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    StringType,
    StructType,
    TimestampType,
)

from headrace.pipelines.source.write_failures import SinkError

_SHOWN_MAX = 60


def check_columns(schema: StructType, topic: str | None) -> None:
    """Raise SinkError for a schema that cannot be written, with what to do about it."""
    names = schema.fieldNames()
    known = ", ".join(_COLUMNS)
    for name in names:
        if name not in _COLUMNS:
            raise SinkError(
                f"column {name} is none of those that a sink takes ({known});"
                " drop it, or put it into value"
            )
        if names.count(name) > 1:
            raise SinkError(f"there are {names.count(name)} columns {name}; keep one")
    if "value" not in names:
        raise SinkError(
            f"there is no column value, only {', '.join(names) or 'none at all'};"
            " make one, as in to_json(struct(*)) AS value"
        )
    if topic is None and "topic" not in names:
        raise SinkError("rows go to no topic; give option topic, or a column topic")
    for column in schema.fields:
        is_fit, wanted, remedy = _COLUMNS[column.name]
        if not is_fit(column.dataType):
            raise SinkError(
                f"column {column.name} is {column.dataType.simpleString()}, and must be {wanted};"
                f" use {remedy}"
            )


def _is_cell(kind: DataType) -> bool:
    return isinstance(kind, BinaryType | StringType)


def _is_text(kind: DataType) -> bool:
    return isinstance(kind, StringType)


def _is_int(kind: DataType) -> bool:
    return isinstance(kind, IntegerType)


def _is_time(kind: DataType) -> bool:
    return isinstance(kind, TimestampType)


def _are_headers(kind: DataType) -> bool:
    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
        return False
    types = {part.name: part.dataType for part in kind.elementType.fields}
    return types.keys() == {"key", "value"} and _is_text(types["key"]) and _is_cell(types["value"])


_HEADERS = "array<struct<key:string,value:binary>>"
_COLUMNS: dict[str, tuple[Callable[[DataType], bool], str, str]] = {
    "key": (_is_cell, "binary or string", "CAST(... AS STRING) AS key"),
    "value": (_is_cell, "binary or string", "to_json(struct(*)) AS value"),
    "headers": (_are_headers, _HEADERS, "array(struct('name' AS key, ... AS value)) AS headers"),
    "partition": (_is_int, "int", "CAST(... AS INT) AS partition"),
    "topic": (_is_text, "string", "CAST(... AS STRING) AS topic"),
    "timestamp": (_is_time, "timestamp", "CAST(... AS TIMESTAMP) AS timestamp"),
}


def by_topic(
    batch: pa.RecordBatch, topic: str | None, first_row: int = 0
) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The rows of a batch with the topic they go to, in their order within it.

    `first_row` counts the rows before, for the message about one without a topic. A batch for one
    topic is passed on as it is; another is copied once, however many topics it has.
    """
    if "topic" not in batch.schema.names:
        assert topic is not None, "checked with the schema"
        yield topic, batch
        return
    rows = batch.drop_columns(["topic"])
    if topic is not None:
        yield topic, rows
        return
    topics = batch.column("topic").dictionary_encode()
    names = topics.dictionary.to_pylist()
    _check_topics(batch, topics, names, first_row)
    if len(names) == 1:
        yield names[0], rows
        return
    # This sort is stable.
    rows = rows.take(pc.array_sort_indices(topics.indices))
    counts = {one["values"]: one["counts"] for one in pc.value_counts(topics.indices).to_pylist()}
    start = 0
    for code, name in enumerate(names):
        yield name, rows.slice(start, counts[code])
        start += counts[code]


def _check_topics(
    batch: pa.RecordBatch, topics: pa.Array, names: list[str], first_row: int
) -> None:
    if not topics.null_count and "" not in names:
        return
    column = batch.column("topic")
    is_missing = pc.fill_null(pc.equal(column, pa.scalar("", column.type)), True)
    row = pc.index(is_missing, True).as_py()
    shown = [
        f"{name} {_short(batch.column(name)[row].as_py())}"
        for name in ("key", "value")
        if name in batch.schema.names
    ]
    raise SinkError(
        f"row {first_row + row} of a task ({', '.join(shown)}) has no topic;"
        " give every row one, or set option topic"
    )


def _short(value: bytes | str | None) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}..."
