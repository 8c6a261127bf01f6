# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False
"""Encoding of columns, in the buffers of Arrow arrays, into a record batch.

Rule: buffers are checked against their row range first, so that the loop that writes, without the
GIL, stays within them. Bad buffers are the caller's mistake: a `ValueError`.
"""

from __future__ import annotations

try:
    import cython
except ImportError:
    from headrace.protocol import _cython_shim as cython

from headrace.protocol.batch import (
    CONTROL_BIT,
    HEADER_SIZE,
    NO_PRODUCER_ID,
    TRANSACTIONAL_BIT,
    byte_view,
)
from headrace.protocol.compression import compress, write_header

if cython.compiled:
    from cython.cimports.cpython.bytearray import PyByteArray_Resize
    from cython.cimports.headrace.protocol.arrays import uint8s
    from cython.cimports.headrace.protocol.prefetching import prefetch
    from cython.cimports.libc.string import memcpy
else:
    from headrace.protocol.arrays import uint8s

COMPILED = cython.compiled

_INT32_MAX = cython.declare(cython.longlong, 0x7FFFFFFF)
_INT64_MAX = cython.declare(cython.longlong, 0x7FFFFFFFFFFFFFFF)
_INT64_MIN = cython.declare(cython.longlong, -1 - _INT64_MAX)

# Selected rows are scattered in memory: they are prefetched so many rows ahead.
_ROWS_AHEAD = cython.declare(cython.Py_ssize_t, 32)

# The maximal bytes of the numbers of a record, and of a header, beside keys, values and names.
_RECORD_OVERHEAD_MAX = cython.declare(cython.longlong, 36)
_HEADER_OVERHEAD_MAX = cython.declare(cython.longlong, 10)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def number_size(number: cython.longlong) -> cython.longlong:
    """The encoded size of a zig-zag varint; `column_encoder.pxd` exports it."""
    zigzag: cython.ulonglong = (cython.cast(cython.ulonglong, number) << 1) ^ cython.cast(
        cython.ulonglong, number >> 63
    )
    size: cython.longlong = 1
    while zigzag > 127:
        zigzag >>= 7
        size += 1
    return size


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def put_number(
    out: cython.p_uchar, position: cython.Py_ssize_t, number: cython.longlong
) -> cython.Py_ssize_t:
    """Write a zig-zag varint; return the position after it."""
    zigzag: cython.ulonglong = (cython.cast(cython.ulonglong, number) << 1) ^ cython.cast(
        cython.ulonglong, number >> 63
    )
    while zigzag > 127:
        out[position] = cython.cast(cython.uchar, (zigzag & 127) | 128)
        position += 1
        zigzag >>= 7
    out[position] = cython.cast(cython.uchar, zigzag)
    return position + 1


@cython.final
@cython.cclass
class Int32s:
    """An int32 array that holds at least `count` numbers."""

    def __init__(self, buffer: object, count: cython.Py_ssize_t) -> None:
        view = byte_view(buffer)
        if len(view) // 4 < count:
            raise ValueError(f"{len(view)} bytes hold no {count} int32 numbers")
        self._view = view[: count * 4].cast("i")
        if cython.compiled:
            self.at = cython.address(self._view[0])
        else:
            self.at = self._view


@cython.final
@cython.cclass
class ColumnCells:
    """The cells of a `BinaryColumn` of at least `count` rows; None is a column of nulls.

    Invariant: only rows for which `prove` returned true are read.
    """

    def __init__(self, column, count: cython.Py_ssize_t) -> None:
        self.absent = column is None
        self.nullable = False
        self.total = 0
        if column is None:
            return
        data = byte_view(column.data)
        self._offsets = Int32s(column.offsets, count + 1)
        self._data_view = data
        self.offsets = self._offsets.at
        self.data_size = len(data)
        if column.validity is not None:
            bits = byte_view(column.validity)
            self.first_bit = column.validity_start
            if not 0 <= self.first_bit <= len(bits) * 8 - count:
                raise ValueError(f"{len(bits)} bytes of validity do not cover {count} rows")
            self._bits_view = bits
            self.nullable = True
        if cython.compiled:
            self.data = cython.address(self._data_view[0])
            if self.nullable:
                self.bits = cython.address(self._bits_view[0])
        else:
            self.data = data
            if self.nullable:
                self.bits = self._bits_view


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def prove(cells: ColumnCells, start: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.bint:
    """Whether the offsets of cells [start, end) rise within the data; adds their bytes up."""
    index: cython.Py_ssize_t
    steps_back: cython.int = 0
    if cells.absent:
        return True
    for index in range(start, end):
        steps_back |= cells.offsets[index] > cells.offsets[index + 1]
    cells.total += cython.cast(cython.longlong, cells.offsets[end]) - cells.offsets[start]
    return not steps_back and cells.offsets[start] >= 0 and cells.offsets[end] <= cells.data_size


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def cell_size(cells: ColumnCells, row: cython.Py_ssize_t) -> cython.longlong:
    """The size of a cell, -1 if it is null."""
    bit: cython.Py_ssize_t
    if cells.absent:
        return -1
    if cells.nullable:
        bit = cells.first_bit + row
        if not (cells.bits[bit >> 3] >> (bit & 7)) & 1:
            return -1
    return cells.offsets[row + 1] - cells.offsets[row]


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _put_cell(
    out: cython.p_uchar,
    position: cython.Py_ssize_t,
    cells: ColumnCells,
    row: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    start: cython.Py_ssize_t
    size: cython.longlong = cell_size(cells, row)
    position = put_number(out, position, size)
    if size > 0:
        start = cells.offsets[row]
        if cython.compiled:
            memcpy(out + position, cells.data + start, size)
        else:
            out[position : position + size] = cells.data[start : start + size]
        position += size
    return position


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _cell_bytes(size: cython.longlong) -> cython.longlong:
    """The encoded size of a cell: its length, and its bytes unless it is null."""
    return number_size(size) + (size if size > 0 else 0)


@cython.final
@cython.cclass
class BoundRows:
    """The rows [start, end) of all columns, or of a selection of rows, with checked buffers."""

    def __init__(self, start, end, timestamps, keys, values, headers, selection) -> None:
        times = byte_view(timestamps)
        count: cython.Py_ssize_t = len(times) // 8
        choices: cython.Py_ssize_t = count
        self.selected = selection is not None
        if selection is not None:
            choices = len(byte_view(selection)) // 4
            self._selection = Int32s(selection, choices)
            self.selection = self._selection.at
        self.start = start
        self.end = choices if end is None else end
        if not 0 <= self.start < self.end <= choices:
            raise ValueError(f"rows [{start}, {self.end}) are not some of {choices}")
        self._times_view = times[: count * 8].cast("q")
        if cython.compiled:
            self.timestamps = cython.address(self._times_view[0])
        else:
            self.timestamps = self._times_view
        # Rows from this limit on are not read, in any column.
        limit: cython.Py_ssize_t = self.end
        if self.selected:
            limit = _selection_limit(self)
            if not 0 < limit <= count:
                raise ValueError(f"a selected row is not one of {count}")
        self._bind(keys, values, headers, limit)

    @cython.cfunc
    def _bind(self, keys, values, headers, limit: cython.Py_ssize_t):
        entries: cython.Py_ssize_t = 0
        sound: cython.bint
        self.has_headers = headers is not None
        self.header_total = 0
        self.keys = ColumnCells(keys, limit)
        self.values = ColumnCells(values, limit)
        if headers is not None:
            entries = headers.names.length
            self._header_offsets = Int32s(headers.offsets, limit + 1)
            self.header_offsets = self._header_offsets.at
        self.names = ColumnCells(None if headers is None else headers.names, entries)
        self.header_values = ColumnCells(None if headers is None else headers.values, entries)
        with cython.nogil:
            sound = _prove_cells(self, self.keys, self.values)
        if not sound:
            raise ValueError("offsets of a column do not fit its bytes of data")
        if headers is not None:
            with cython.nogil:
                sound = _prove_headers(self, self.names, self.header_values, entries)
            if not sound:
                raise ValueError(f"header offsets do not fit {entries} headers, or one has no name")
        self.size_max = (self.end - self.start) * _RECORD_OVERHEAD_MAX
        self.size_max += self.keys.total + self.values.total
        self.size_max += self.header_total * _HEADER_OVERHEAD_MAX
        self.size_max += self.names.total + self.header_values.total


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _selection_limit(rows: BoundRows) -> cython.Py_ssize_t:
    """The greatest selected row plus one, 0 if a selected row is negative."""
    index: cython.Py_ssize_t
    least: cython.int = 0
    greatest: cython.int = 0
    for index in range(rows.start, rows.end):
        least = min(least, rows.selection[index])
        greatest = max(greatest, rows.selection[index])
    return cython.cast(cython.Py_ssize_t, greatest) + 1 if least == 0 else 0


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _prove_cells(rows: BoundRows, keys: ColumnCells, values: ColumnCells) -> cython.bint:
    index: cython.Py_ssize_t
    row: cython.Py_ssize_t
    sound: cython.bint = True
    if not rows.selected:
        return prove(keys, rows.start, rows.end) and prove(values, rows.start, rows.end)
    # Scattered cells are checked one by one, so that the cost depends on the batch alone.
    for index in range(rows.start, rows.end):
        row = rows.selection[index]
        sound = sound and prove(keys, row, row + 1) and prove(values, row, row + 1)
    return sound


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _prove_headers(
    rows: BoundRows, names: ColumnCells, values: ColumnCells, entries: cython.Py_ssize_t
) -> cython.bint:
    index: cython.Py_ssize_t
    row: cython.Py_ssize_t
    first: cython.Py_ssize_t
    end: cython.Py_ssize_t
    entry: cython.Py_ssize_t
    for index in range(rows.start, rows.end):
        row = rows.selection[index] if rows.selected else index
        first = rows.header_offsets[row]
        end = rows.header_offsets[row + 1]
        if not 0 <= first <= end <= entries:
            return False
        if not prove(names, first, end) or not prove(values, first, end):
            return False
        for entry in range(first, end):
            if cell_size(names, entry) < 0:
                return False
        rows.header_total += end - first
    return True


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def row_at(rows: BoundRows, index: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """The row of the columns at `index`, which counts selected rows if there is a selection."""
    return rows.selection[index] if rows.selected else index


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def time_fits(base: cython.longlong, timestamp: cython.longlong) -> cython.bint:
    """Whether the timestamp delta of a record fits an int64."""
    return timestamp <= _INT64_MAX + base if base < 0 else timestamp >= _INT64_MIN + base


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _bind_timestamps(rows: BoundRows) -> cython.bint:
    """Find the base and the greatest timestamp; False if a delta does not fit an int64."""
    index: cython.Py_ssize_t
    base: cython.longlong = rows.timestamps[row_at(rows, rows.start)]
    greatest: cython.longlong = base
    least: cython.longlong = base
    for index in range(rows.start, rows.end):
        greatest = max(greatest, rows.timestamps[row_at(rows, index)])
        least = min(least, rows.timestamps[row_at(rows, index)])
    rows.base_timestamp = base
    rows.max_timestamp = greatest
    return time_fits(base, greatest) and time_fits(base, least)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def record_size(
    rows: BoundRows,
    keys: ColumnCells,
    values: ColumnCells,
    names: ColumnCells,
    header_values: ColumnCells,
    row: cython.Py_ssize_t,
    index: cython.longlong,
    time_delta: cython.longlong,
) -> cython.longlong:
    """The encoded size of record number `index` of a batch, without its length field."""
    entry: cython.Py_ssize_t
    headers: cython.longlong = 0
    size: cython.longlong = 1 + number_size(time_delta) + number_size(index)
    size += _cell_bytes(cell_size(keys, row)) + _cell_bytes(cell_size(values, row))
    if rows.has_headers:
        headers = rows.header_offsets[row + 1] - rows.header_offsets[row]
        for entry in range(rows.header_offsets[row], rows.header_offsets[row + 1]):
            size += _cell_bytes(cell_size(names, entry))
            size += _cell_bytes(cell_size(header_values, entry))
    return size + number_size(headers)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _write_records(
    out: cython.p_uchar,
    position: cython.Py_ssize_t,
    rows: BoundRows,
    keys: ColumnCells,
    values: ColumnCells,
    names: ColumnCells,
    header_values: ColumnCells,
) -> cython.Py_ssize_t:
    """Write all rows as records from `position` on; return their end."""
    index: cython.Py_ssize_t
    row: cython.Py_ssize_t
    ahead: cython.Py_ssize_t
    number: cython.longlong
    entry: cython.Py_ssize_t
    size: cython.longlong
    time_delta: cython.longlong
    for index in range(rows.start, rows.end):
        row = row_at(rows, index)
        if cython.compiled and rows.selected and index + _ROWS_AHEAD < rows.end:
            ahead = rows.selection[index + _ROWS_AHEAD]
            if not keys.absent:
                prefetch(keys.data + keys.offsets[ahead], keys.data + keys.offsets[ahead + 1])
            if not values.absent:
                prefetch(
                    values.data + values.offsets[ahead], values.data + values.offsets[ahead + 1]
                )
        number = index - rows.start
        time_delta = rows.timestamps[row] - rows.base_timestamp
        size = record_size(rows, keys, values, names, header_values, row, number, time_delta)
        position = put_number(out, position, size)
        out[position] = 0  # attributes: a record has none
        position = put_number(out, position + 1, time_delta)
        position = put_number(out, position, number)
        position = _put_cell(out, position, keys, row)
        position = _put_cell(out, position, values, row)
        if not rows.has_headers:
            position = put_number(out, position, 0)
            continue
        size = rows.header_offsets[row + 1] - rows.header_offsets[row]
        position = put_number(out, position, size)
        for entry in range(rows.header_offsets[row], rows.header_offsets[row + 1]):
            position = _put_cell(out, position, names, entry)
            position = _put_cell(out, position, header_values, entry)
    return position


@cython.cfunc
def _write_batch(rows: BoundRows) -> bytearray:
    """A batch of `rows`, whose header is not written yet."""
    if rows.size_max + HEADER_SIZE > _INT32_MAX:
        raise ValueError(f"rows [{rows.start}, {rows.end}) are too large for one batch")
    if not _bind_timestamps(rows):
        raise ValueError("timestamps of one batch are too far apart")
    keys: ColumnCells = rows.keys
    values: ColumnCells = rows.values
    names: ColumnCells = rows.names
    header_values: ColumnCells = rows.header_values
    batch = bytearray(0 if cython.compiled else rows.size_max + HEADER_SIZE)
    if cython.compiled:
        PyByteArray_Resize(batch, rows.size_max + HEADER_SIZE)  # unlike bytearray(n), not zeroed
    position: cython.Py_ssize_t = HEADER_SIZE
    out: cython.p_uchar = uint8s(batch)
    with cython.nogil:
        position = _write_records(out, position, rows, keys, values, names, header_values)
    del batch[position:]
    return batch


def encode_columns(
    timestamps,
    keys,
    values,
    headers=None,
    start=0,
    end=None,
    *,
    base_offset=0,
    leader_epoch=-1,
    compression: cython.int = 0,
    level=None,
    producer_id=NO_PRODUCER_ID,
    producer_epoch=-1,
    base_sequence=-1,
    transactional: cython.bint = False,
    control: cython.bint = False,
    rows=None,
) -> bytearray:
    """Encode the rows [start, end), at least one, as a batch.

    `timestamps` is an int64 array, `keys` and `values` are `BinaryColumn`s or None for nulls only,
    `headers` is a `HeaderColumn` or None for no headers. `rows` is an int32 array of row numbers,
    of which `start` and `end` select a range, or None for the rows in their order.
    """
    chosen: BoundRows = BoundRows(start, end, timestamps, keys, values, headers, rows)
    batch: bytearray = _write_batch(chosen)
    attributes: cython.int = compression
    if transactional:
        attributes |= TRANSACTIONAL_BIT
    if control:
        attributes |= CONTROL_BIT
    if compression:
        with memoryview(batch) as view, view[HEADER_SIZE:] as records:
            compressed = compress(compression, records, level)
        batch = bytearray(HEADER_SIZE)
        batch += compressed
    write_header(
        batch,
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        attributes=attributes,
        last_offset_delta=chosen.end - chosen.start - 1,
        base_timestamp=chosen.base_timestamp,
        max_timestamp=chosen.max_timestamp,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        record_count=chosen.end - chosen.start,
    )
    return batch
