"""Arrow record batches from decoded columns: one batch for each `poll_arrow`.

Pure. Rule: the columns of a single partition are wrapped without a copy; those of several
partitions are copied to concatenate them.
"""

from collections.abc import Sequence
from functools import cache
from struct import pack
from typing import TYPE_CHECKING, Any

from headrace.errors import ConfigError
from headrace.protocol.columns import BinaryColumn, Columns, HeaderColumn
from headrace.types import Buffer, TopicPartition

if TYPE_CHECKING:
    import pyarrow


@cache
def arrow_schema() -> "pyarrow.Schema":
    """The columns of every batch that `poll_arrow` returns."""
    pa = _pyarrow()
    header = pa.struct([("key", pa.string()), ("value", pa.binary())])
    return pa.schema(
        [
            ("topic", pa.dictionary(pa.int32(), pa.string())),
            ("partition", pa.int32()),
            ("offset", pa.int64()),
            ("timestamp", pa.timestamp("ms", tz="UTC")),
            ("key", pa.binary()),
            ("value", pa.binary()),
            ("headers", pa.list_(header)),
        ]
    )


def to_arrow(pieces: Sequence[tuple[TopicPartition, Columns]]) -> "pyarrow.RecordBatch":
    """The records of one or several partitions, in the order of `pieces`, as one batch."""
    pa = _pyarrow()
    schema = arrow_schema()
    if not pieces:
        return pa.RecordBatch.from_pylist([], schema=schema)
    topics = list(dict.fromkeys(tp.topic for tp, _ in pieces))
    names = pa.array(topics, pa.string())
    parts = [
        _arrays(schema, names, topics.index(tp.topic), tp.partition, columns)
        for tp, columns in pieces
    ]
    arrays = parts[0] if len(parts) == 1 else map(pa.concat_arrays, zip(*parts, strict=True))
    return pa.RecordBatch.from_arrays(list(arrays), schema=schema)


@cache
def _pyarrow() -> Any:
    try:
        import pyarrow  # noqa: PLC0415 - a client without columns needs none
        import pyarrow.compute  # noqa: PLC0415
    except ImportError:
        raise ConfigError("poll_arrow needs pyarrow: pip install pyarrow") from None
    return pyarrow


def _arrays(
    schema: "pyarrow.Schema", names: Any, topic: int, partition: int, columns: Columns
) -> list[Any]:
    """The arrays of one partition's records, in the schema's order."""
    pa = _pyarrow()
    count = columns.length
    numbers = {
        "partition": pack("i", partition) * count,
        "offset": columns.offsets,
        "timestamp": columns.timestamps,
    }
    indices = array_over(pa.int32(), count, [None, pack("i", topic) * count])
    return [
        pa.DictionaryArray.from_arrays(indices, names),
        *(array_over(schema.field(name).type, count, [None, numbers[name]]) for name in numbers),
        binary_array(pa.binary(), columns.keys),
        binary_array(pa.binary(), columns.values),
        _headers(schema.field("headers").type, count, columns.headers),
    ]


def array_over(
    kind: Any, count: int, buffers: Sequence[Buffer | None], nulls: int = 0, children: Any = None
) -> Any:
    """An Arrow array over existing buffers, without a copy."""
    pa = _pyarrow()
    memory = [None if buffer is None else pa.py_buffer(buffer) for buffer in buffers]
    return pa.Array.from_buffers(kind, count, memory, nulls, children=children)


def binary_array(kind: Any, column: BinaryColumn) -> Any:
    """A `binary` or `string` array over the buffers of a column."""
    buffers = [_validity(column), column.offsets, column.data]
    return array_over(kind, column.length, buffers, column.null_count)


def _validity(column: BinaryColumn) -> Buffer | None:
    """The validity bits of a column, starting at its row 0."""
    if column.validity is None or column.null_count == 0:
        return None
    if column.validity_start == 0:
        return column.validity
    pa = _pyarrow()
    # A slice may start within a byte. Arrow can read from there for all buffers of an array alike,
    # but the offsets do start at row 0, so the bits are moved there too.
    bits = pa.Array.from_buffers(
        pa.bool_(), column.length, [None, pa.py_buffer(column.validity)], 0, column.validity_start
    )
    return memoryview(pa.compute.invert(pa.compute.invert(bits)).buffers()[1])


def _headers(kind: Any, count: int, headers: HeaderColumn) -> Any:
    pa = _pyarrow()
    fields = list(kind.value_type)
    pairs = [binary_array(pa.string(), headers.names), binary_array(pa.binary(), headers.values)]
    entries = pa.StructArray.from_arrays(pairs, fields=fields)
    return array_over(kind, count, [None, headers.offsets], children=[entries])
