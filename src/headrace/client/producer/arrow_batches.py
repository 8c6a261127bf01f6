"""Arrow tables cut into record batches by partition, without an object per record."""

from collections.abc import Callable, Iterator, Sequence
from struct import pack
from typing import Any, NamedTuple

from headrace.client.producer.accumulator import Buffers
from headrace.client.producer.partitioners import checked
from headrace.client.producer_options import PartitionerFunction, ProducerOptions
from headrace.errors import ConfigError
from headrace.protocol.column_encoder import encode_columns
from headrace.protocol.columns import BinaryColumn, HeaderColumn
from headrace.protocol.partitioning import cut_rows, group_rows, partitions_of_keys
from headrace.types import Buffer

# Arrow tables cut into record batches by partition, without an object per record.
#
# Pure. Rule: everything is checked before the first batch is handed out, so a table is sent whole
# or refused whole. Buffers are used without a copy; only columns of other Arrow types are cast.


# Offsets in a column are int32. Half of their range is left for the growth by a cast.
_PIECE_BYTES_MAX = 1 << 30

_COLUMNS = ("value", "key", "headers", "partition", "timestamp")

# Further columns of a consumer's table. They are the origin of a record, so they are ignored.
_IGNORED = ("topic", "offset")


class _RowColumns(NamedTuple):
    """The columns of some rows of the table, as arguments of `encode_columns`."""

    timestamps: Buffer
    keys: BinaryColumn | None
    values: BinaryColumn | None
    headers: HeaderColumn | None


class ColumnBatch:
    """Rows of one partition that make one record batch.

    `raw_bytes` is the size of the batch before compression.
    """

    __slots__ = ("_end", "_rows", "_source", "_start", "count", "partition", "raw_bytes")

    def __init__(
        self,
        source: _RowColumns,
        rows: Buffer | None,
        start: int,
        end: int,
        partition: int,
        raw_bytes: int,
    ) -> None:
        self._source = source
        self._rows = rows
        self._start = start
        self._end = end
        self.partition = partition
        self.count = end - start
        self.raw_bytes = raw_bytes

    def encode(
        self,
        *,
        compression: int = 0,
        level: int | None = None,
        producer_id: int = -1,
        producer_epoch: int = -1,
        base_sequence: int = -1,
        transactional: bool = False,
    ) -> bytearray:
        """The batch. It may be made again, under other producer numbers."""
        return encode_columns(
            *self._source,
            self._start,
            self._end,
            rows=self._rows,
            compression=compression,
            level=level,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            transactional=transactional,
        )

    def __repr__(self) -> str:
        return (
            f"ColumnBatch(partition={self.partition}, count={self.count}, "
            f"raw_bytes={self.raw_bytes})"
        )


# The partition is chosen when the batch is delivered.
_STICKY = -1


def plan_batches(
    batch: Any,
    *,
    partition_count: int,
    sticky: Callable[[], int],
    batch_bytes_max: int,
    now_ms: int,
    record_bytes_max: int | None = None,
    hash_keys: bool = True,
) -> Iterator[ColumnBatch]:
    """Cut a `RecordBatch`, a `Table` or an object that Arrow can read as one into record batches.

    A row goes to the partition in its `partition` column, else to that of its key (unless
    `hash_keys` is off), else with its neighbours to the result of `sticky`, called once per batch.
    Rows of a partition keep their order. A row too large for `batch_bytes_max` gets a batch of its
    own of at most `record_bytes_max`. Invalid input is a TypeError or a ValueError, raised before
    the first batch is returned.
    """
    table = as_table(batch)
    _check_names(table.schema.names)
    limits = (batch_bytes_max, record_bytes_max or batch_bytes_max)
    planned: list[ColumnBatch] = []
    first_row = 0
    for piece in _pieces(table, batch_bytes_max):
        planned += _plan_piece(piece, first_row, partition_count, limits, now_ms, hash_keys)
        first_row += piece.num_rows
    return _settled(planned, sticky)


def _settled(planned: Sequence[ColumnBatch], sticky: Callable[[], int]) -> Iterator[ColumnBatch]:
    for batch in planned:
        if batch.partition == _STICKY:
            batch.partition = sticky()
        yield batch


def _pyarrow() -> Any:
    try:
        import pyarrow  # noqa: PLC0415 - a client without columns needs none
        import pyarrow.compute  # noqa: PLC0415
    except ImportError:
        raise ConfigError("send_arrow needs pyarrow: pip install pyarrow") from None
    return pyarrow


def as_table(batch: Any) -> Any:
    """The argument of `send_arrow` as a table; TypeError if it cannot be read as one."""
    pa = _pyarrow()
    if isinstance(batch, pa.Table):
        return batch
    if isinstance(batch, pa.RecordBatch):
        return pa.Table.from_batches([batch])
    if hasattr(batch, "__arrow_c_stream__"):
        return pa.table(batch)
    raise TypeError(
        f"send_arrow takes a pyarrow.RecordBatch or a pyarrow.Table, not {type(batch).__name__}"
    )


def _check_names(names: Sequence[str]) -> None:
    if "value" not in names:
        raise ValueError(
            f"there is no column 'value' among {', '.join(map(repr, names)) or 'no columns'}; "
            "rename the one that holds the records' values"
        )
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"there are {names.count(name)} columns {name!r}; keep one")
        if name not in _COLUMNS and name not in _IGNORED:
            raise ValueError(
                f"column {name!r} is none of {', '.join(_COLUMNS)}; drop it, or put it into 'value'"
            )


def _pieces(table: Any, batch_bytes_max: int) -> Iterator[Any]:
    """The table in pieces: none too large for int32 offsets, small chunks combined."""
    chunks = max(table.column("value").num_chunks, 1)
    if chunks > 1 and table.nbytes // chunks < 4 * batch_bytes_max:
        table = table.combine_chunks()
    pending = list(reversed(table.to_batches()))
    while pending:
        piece = pending.pop()
        middle = piece.num_rows // 2
        if middle and sum(map(_expanded_bytes, piece.columns)) > _PIECE_BYTES_MAX:
            pending += [piece.slice(middle), piece.slice(0, middle)]
        elif piece.num_rows:
            yield piece


def _expanded_bytes(array: Any) -> int:
    """An upper bound of the size in bytes of an array's rows, when none share bytes."""
    pa = _pyarrow()
    if not pa.types.is_dictionary(array.type) or pa.types.is_primitive(array.type.value_type):
        return int(array.nbytes)
    lengths = pa.compute.binary_length(array.dictionary.cast(pa.large_binary()))
    return len(array) * int(pa.compute.max(lengths).as_py() or 0)


def _plan_piece(
    piece: Any,
    first_row: int,
    partition_count: int,
    limits: tuple[int, int],
    now_ms: int,
    hash_keys: bool,
) -> list[ColumnBatch]:
    columns = dict(zip(piece.schema.names, piece.columns, strict=True))
    source = _RowColumns(
        _timestamps(columns.get("timestamp"), piece.num_rows, now_ms),
        _cells("key", columns.get("key")),
        _cells("value", columns["value"]),
        _headers(columns.get("headers")),
    )
    given = _given_partitions(columns.get("partition"), partition_count)
    keys = source.keys if hash_keys else None
    rows, groups = _groups(keys, given, piece.num_rows, partition_count)
    cut: list[tuple[int, ColumnBatch]] = []
    for partition, start, end in groups:
        bounds, sizes = cut_rows(*source, rows, start, end, *limits, first_row)
        for number, raw_bytes in enumerate(sizes):
            begin, behind = bounds[number], bounds[number + 1]
            batch = ColumnBatch(source, rows, begin, behind, partition, raw_bytes)
            cut.append((number, batch))
    # Round robin over partitions: they are written in parallel, and adjacent batches are read
    # together.
    cut.sort(key=lambda numbered: numbered[0])
    return [batch for _, batch in cut]


def _groups(
    keys: BinaryColumn | None, given: Any, count: int, partition_count: int
) -> tuple[Buffer | None, list[tuple[int, int, int]]]:
    """A selection of rows, and the (partition, start, end) of its ranges."""
    keyless = keys is None or keys.null_count == count
    if given is None and keyless:
        return None, [(_STICKY, 0, count)]
    pa = _pyarrow()
    # The number after the last partition marks rows that may go to any partition.
    anywhere = pa.scalar(partition_count, pa.int32())
    chosen = anywhere
    if keys is not None and not keyless:
        chosen = _int32_array(partitions_of_keys(keys, partition_count))
        if keys.null_count:
            chosen = pa.compute.if_else(pa.compute.less(chosen, 0), anywhere, chosen)
    if given is not None:
        chosen = pa.compute.coalesce(given, chosen)
    rows, bounds = group_rows(_numbers(chosen, 4), partition_count + 1)
    places = [*range(partition_count), _STICKY]
    spans = zip(places, bounds, bounds[1:], strict=False)
    return rows, [(place, start, end) for place, start, end in spans if start < end]


def _int32_array(numbers: bytearray) -> Any:
    pa = _pyarrow()
    return pa.Array.from_buffers(pa.int32(), len(numbers) // 4, [None, pa.py_buffer(numbers)])


def _numbers(array: Any, size: int) -> Buffer:
    """The numbers of an array without nulls, of `size` bytes each."""
    start = array.offset * size
    return memoryview(array.buffers()[1])[start : start + len(array) * size]


def _stored(array: Any) -> Any:
    """The array behind an extension type, a dictionary or run ends."""
    pa = _pyarrow()
    if isinstance(array, pa.ExtensionArray):
        return _stored(array.storage)
    if pa.types.is_dictionary(array.type):
        return _stored(array.dictionary_decode())
    if pa.types.is_run_end_encoded(array.type):
        return _stored(pa.compute.run_end_decode(array))
    return array


def _given_partitions(array: Any, partition_count: int) -> Any:
    """The checked `partition` column; null for a row without a partition."""
    if array is None:
        return None
    pa = _pyarrow()
    array = _stored(array)
    if pa.types.is_null(array.type):
        return None
    if not pa.types.is_integer(array.type):
        raise TypeError(f"column 'partition' has the type {array.type}; cast it to int32")
    ends = pa.compute.min_max(array).as_py()
    for partition in (ends["min"], ends["max"]):
        if partition is not None and not 0 <= partition < partition_count:
            raise ValueError(
                f"column 'partition' has {partition}, but the topic's partitions are "
                f"0 to {partition_count - 1}; leave it null to have one chosen"
            )
    return array.cast(pa.int32())


def _timestamps(array: Any, count: int, now_ms: int) -> Buffer:
    """Milliseconds as int64; `now_ms` for a row without a timestamp."""
    pa = _pyarrow()
    if array is None or pa.types.is_null(array.type):
        return pack("q", now_ms) * count
    array = _stored(array)
    if pa.types.is_timestamp(array.type):
        # Finer units lose the part below a millisecond; coarser ones may overflow, which is an
        # error.
        loses = array.type.unit in {"us", "ns"}
        try:
            array = array.cast(pa.timestamp("ms", array.type.tz), safe=not loses)
        except pa.ArrowInvalid as error:
            raise ValueError(f"column 'timestamp': {error}") from None
    elif not pa.types.is_integer(array.type) or array.type == pa.uint64():
        raise TypeError(
            f"column 'timestamp' has the type {array.type}; "
            "cast it to timestamp('ms') or to int64 milliseconds"
        )
    array = pa.compute.fill_null(array.cast(pa.int64()), now_ms)
    least = pa.compute.min(array).as_py()
    if least < 0:
        raise ValueError(f"column 'timestamp' has {least} ms; Kafka's times start at 0, in 1970")
    return _numbers(array, 8)


def _cells(name: str, array: Any) -> BinaryColumn | None:
    """A column of bytes or text; None if all of it is null."""
    if array is None:
        return None
    pa = _pyarrow()
    types = pa.types
    given = array.type
    array = _stored(array)
    if types.is_null(array.type):
        return None
    if types.is_binary_view(array.type) or types.is_string_view(array.type):
        array = array.cast(pa.large_binary())
    elif types.is_fixed_size_binary(array.type):
        array = array.cast(pa.binary())
    if types.is_large_binary(array.type) or types.is_large_string(array.type):
        offsets, data = _narrowed(array)
    elif types.is_binary(array.type) or types.is_string(array.type):
        _, ends, data = array.buffers()
        start = array.offset * 4
        offsets = memoryview(ends)[start : start + (len(array) + 1) * 4]
    else:
        raise TypeError(
            f"column {name!r} has the type {given}; cast it to binary or string, or encode it"
        )
    nulls = array.null_count
    bits = array.buffers()[0] if nulls else None
    return BinaryColumn(len(array), offsets, data or b"", bits, nulls, array.offset)


def _narrowed(array: Any) -> tuple[Buffer, Any]:
    """The int64 offsets of an array as int32, and the data they refer to."""
    pa = _pyarrow()
    _, ends, data = array.buffers()
    wide = pa.Array.from_buffers(pa.int64(), len(array) + 1, [None, ends], offset=array.offset)
    first, last = wide[0].as_py(), wide[-1].as_py()
    narrow = pa.compute.subtract(wide, wide[0]).cast(pa.int32())
    return _numbers(narrow, 4), data.slice(first, last - first) if data is not None else None


def _headers(array: Any) -> HeaderColumn | None:
    """A column of lists of (key, value) pairs, or of maps; None if no row has a header."""
    if array is None:
        return None
    pa = _pyarrow()
    given = array.type
    array = _stored(array)
    if pa.types.is_null(array.type):
        return None
    array = _as_list(array)
    if array is None or not _are_pairs(array.type.value_type):
        raise TypeError(
            f"column 'headers' has the type {given}; give it as "
            "list<struct<key: string, value: binary>> or map<string, binary>"
        )
    entries = array.flatten()
    names, values = entries.field("key"), entries.field("value")
    if entries.null_count or names.null_count:
        raise ValueError("column 'headers' has a header without a key")
    if not len(entries):
        return None
    # A null list has no headers, whatever its offsets say.
    counts = pa.compute.fill_null(pa.compute.list_value_length(array), 0)
    ends = pa.compute.cumulative_sum(counts.cast(pa.int32()))
    offsets = pack("i", 0) + bytes(_numbers(ends, 4))
    name_cells = _cells("headers", names)
    if name_cells is None:
        raise ValueError("column 'headers' has a header without a key")
    return HeaderColumn(offsets, name_cells, _cells("headers", values) or _no_cells(len(values)))


def _are_pairs(kind: Any) -> bool:
    is_struct = bool(_pyarrow().types.is_struct(kind))
    return is_struct and sorted(field.name for field in kind) == ["key", "value"]


def _as_list(array: Any) -> Any:
    """A list of any kind unchanged, a map as a list of pairs; None for any other type."""
    pa = _pyarrow()
    types = pa.types
    if types.is_map(array.type):
        pair = pa.struct([("key", array.type.key_type), ("value", array.type.item_type)])
        return array.cast(pa.list_(pair))
    is_list = (
        types.is_list(array.type)
        or types.is_large_list(array.type)
        or types.is_fixed_size_list(array.type)
        or types.is_list_view(array.type)
        or types.is_large_list_view(array.type)
    )
    return array if is_list else None


def _no_cells(count: int) -> BinaryColumn:
    """A column of nulls."""
    return BinaryColumn(count, bytes(4 * (count + 1)), b"", bytes((count + 7) // 8), count)


def planned(
    topic: str, table: Any, buffers: Buffers, options: ProducerOptions, *, now_ms: int
) -> Iterator[ColumnBatch]:
    """The batches for a known topic; invalid columns raise at once."""
    count = buffers.partition_count(topic)
    partitioner = checked(options.partitioner)
    if not isinstance(partitioner, str):
        table = _partitioned(topic, table, partitioner, count)
    return plan_batches(
        table,
        partition_count=count,
        sticky=lambda: buffers.sticky(topic),
        batch_bytes_max=min(options.max_request_size, options.buffer_memory),
        now_ms=now_ms,
        hash_keys=partitioner == "murmur2",
    )


def _partitioned(topic: str, table: Any, partitioner: PartitionerFunction, count: int) -> Any:
    """The columns plus every row's partition, from the application's function, called per row."""
    table = as_table(table)
    names = table.schema.names
    nothing = [None] * table.num_rows
    keys = table.column("key").to_pylist() if "key" in names else nothing
    given = table.column("partition").to_pylist() if "partition" in names else nothing
    chosen = [
        partitioner(topic, key.encode() if isinstance(key, str) else key, count)
        if partition is None
        else partition
        for key, partition in zip(keys, given, strict=True)
    ]
    if "partition" in names:
        table = table.drop_columns(["partition"])
    return table.append_column("partition", [chosen])
