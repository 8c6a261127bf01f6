# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False
"""Batches out of columns: rows of Arrow-shaped buffers become one record batch.

Rule: buffers are checked against their row range first, so that the loop that writes, without the
GIL, stays inside of them. Bad ones are the caller's mistake: a `ValueError`.
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
from headrace.protocol.compression import compress
from headrace.protocol.payload import seal

if cython.compiled:
    from cython.cimports.cpython.bytearray import PyByteArray_AS_STRING
    from cython.cimports.libc.string import memcpy

COMPILED = cython.compiled

_INT32_MAX = cython.declare(cython.longlong, 0x7FFFFFFF)
_INT64_MAX = cython.declare(cython.longlong, 0x7FFFFFFFFFFFFFFF)
_INT64_MIN = cython.declare(cython.longlong, -1 - _INT64_MAX)

# The most that the numbers of a record, and of a header, take beside their bytes.
_RECORD_OVERHEAD_MAX = cython.declare(cython.longlong, 36)
_HEADER_OVERHEAD_MAX = cython.declare(cython.longlong, 10)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def number_size(number: cython.longlong) -> cython.longlong:
    """How many bytes a number of a record takes; `column_encoder.pxd` lets `builder` ask too."""
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
    """Write a number as records hold it; return the position after it."""
    zigzag: cython.ulonglong = (cython.cast(cython.ulonglong, number) << 1) ^ cython.cast(
        cython.ulonglong, number >> 63
    )
    while zigzag > 127:
        out[position] = cython.cast(cython.uchar, (zigzag & 127) | 128)
        position += 1
        zigzag >>= 7
    out[position] = cython.cast(cython.uchar, zigzag)
    return position + 1


@cython.cfunc
def _uint8s(array: bytearray) -> cython.p_uchar:
    if cython.compiled:
        return cython.cast(cython.p_uchar, PyByteArray_AS_STRING(array))
    else:
        return array


@cython.final
@cython.cclass
class _Int32s:
    """An int32 array that holds at least `count` numbers."""

    at: cython.p_const_int
    _view: cython.const[cython.int][::1]

    def __init__(self, buffer: object, count: cython.Py_ssize_t) -> None:
        view = byte_view(buffer)
        if len(view) // 4 < count:
            raise ValueError(f"{len(view)} bytes hold no {count} int32 numbers")
        self._view = view[: count * 4].cast("i")
        if cython.compiled:
            self.at = cython.address(self._view[0])
        else:
            self.at = self._view


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _ascending(
    offsets: cython.p_const_int,
    start: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    limit: cython.longlong,
) -> cython.bint:
    """Whether offsets[start] to offsets[end] never step back and stay in [0, limit]."""
    index: cython.Py_ssize_t
    steps_back: cython.int = 0
    for index in range(start, end):
        steps_back |= offsets[index] > offsets[index + 1]
    return not steps_back and offsets[start] >= 0 and offsets[end] <= limit


@cython.final
@cython.cclass
class _Cells:
    """The cells [start, end) of a `BinaryColumn`, proven to lie in its data; None is all null."""

    absent: cython.bint
    nullable: cython.bint
    offsets: cython.p_const_int
    data: cython.p_const_uchar
    bits: cython.p_const_uchar
    first_bit: cython.Py_ssize_t
    total: cython.longlong
    _offsets: _Int32s
    _data_view: cython.const[cython.uchar][::1]
    _bits_view: cython.const[cython.uchar][::1]

    def __init__(self, column, start: cython.Py_ssize_t, end: cython.Py_ssize_t) -> None:
        self.absent = column is None
        self.nullable = False
        self.total = 0
        if column is None:
            return
        data = byte_view(column.data)
        self._offsets = _Int32s(column.offsets, end + 1)
        self._data_view = data
        self.offsets = self._offsets.at
        if not _ascending(self.offsets, start, end, len(data)):
            raise ValueError(f"offsets of a column do not fit its {len(data)} bytes of data")
        self.total = cython.cast(cython.longlong, self.offsets[end]) - self.offsets[start]
        if column.validity is not None:
            bits = byte_view(column.validity)
            self.first_bit = column.validity_start
            if not 0 <= self.first_bit <= len(bits) * 8 - end:
                raise ValueError(f"{len(bits)} bytes of validity do not cover {end} rows")
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
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _cell_size(cells: _Cells, row: cython.Py_ssize_t) -> cython.longlong:
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
    cells: _Cells,
    row: cython.Py_ssize_t,
    size: cython.longlong,
) -> cython.Py_ssize_t:
    start: cython.Py_ssize_t
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
    """What a cell takes in a record: its length, and that many bytes unless it is null."""
    return number_size(size) + (size if size > 0 else 0)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _has_null(cells: _Cells, start: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.bint:
    row: cython.Py_ssize_t
    nulls: cython.Py_ssize_t = 0
    for row in range(start, end):
        nulls += _cell_size(cells, row) < 0
    return nulls > 0


@cython.final
@cython.cclass
class _Rows:
    """The rows [start, end) of all columns of a batch, bound and checked."""

    start: cython.Py_ssize_t
    end: cython.Py_ssize_t
    timestamps: cython.p_const_longlong
    max_timestamp: cython.longlong
    has_headers: cython.bint
    header_offsets: cython.p_const_int
    keys: _Cells
    values: _Cells
    names: _Cells
    header_values: _Cells
    size_max: cython.longlong
    _times_view: cython.const[cython.longlong][::1]
    _header_offsets: _Int32s

    def __init__(self, start, end, timestamps, keys, values, headers) -> None:
        times = byte_view(timestamps)
        self.start = start
        self.end = len(times) // 8 if end is None else end
        if not 0 <= self.start < self.end <= len(times) // 8:
            raise ValueError(f"rows [{start}, {self.end}) are not some of {len(times) // 8}")
        self._times_view = times[: self.end * 8].cast("q")
        if cython.compiled:
            self.timestamps = cython.address(self._times_view[0])
        else:
            self.timestamps = self._times_view
        if not _bind_timestamps(self):
            raise ValueError("timestamps of one batch are too far apart")
        self.keys = _Cells(keys, self.start, self.end)
        self.values = _Cells(values, self.start, self.end)
        self.size_max = (self.end - self.start) * _RECORD_OVERHEAD_MAX
        self.size_max += self.keys.total + self.values.total
        self._bind_headers(headers)

    @cython.cfunc
    def _bind_headers(self, headers):
        first: cython.Py_ssize_t = 0
        last: cython.Py_ssize_t = 0
        self.has_headers = headers is not None
        if headers is None:
            self.names = self.header_values = _Cells(None, 0, 0)
            return
        self._header_offsets = _Int32s(headers.offsets, self.end + 1)
        self.header_offsets = self._header_offsets.at
        if not _ascending(self.header_offsets, self.start, self.end, headers.names.length):
            raise ValueError(f"header offsets do not fit {headers.names.length} headers")
        first = self.header_offsets[self.start]
        last = self.header_offsets[self.end]
        self.names = _Cells(headers.names, first, last)
        self.header_values = _Cells(headers.values, first, last)
        if _has_null(self.names, first, last):
            raise ValueError("a header has no name")
        self.size_max += (last - first) * _HEADER_OVERHEAD_MAX
        self.size_max += self.names.total + self.header_values.total


@cython.cfunc
def _bind_timestamps(rows: _Rows) -> cython.bint:
    """Find the greatest timestamp; false if a delta from the first would be no int64."""
    row: cython.Py_ssize_t
    base: cython.longlong = rows.timestamps[rows.start]
    greatest: cython.longlong = base
    least: cython.longlong = base
    for row in range(rows.start, rows.end):
        greatest = max(greatest, rows.timestamps[row])
        least = min(least, rows.timestamps[row])
    rows.max_timestamp = greatest
    return greatest <= _INT64_MAX + min(base, 0) and least >= _INT64_MIN + max(base, 0)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _write_records(
    out: cython.p_uchar,
    position: cython.Py_ssize_t,
    rows: _Rows,
    keys: _Cells,
    values: _Cells,
    names: _Cells,
    header_values: _Cells,
) -> cython.Py_ssize_t:
    """Write all rows from `position` on; return where they end."""
    row: cython.Py_ssize_t
    index: cython.longlong
    entry: cython.Py_ssize_t
    headers: cython.longlong = 0
    size: cython.longlong
    key_size: cython.longlong
    value_size: cython.longlong
    time_delta: cython.longlong
    base_timestamp: cython.longlong = rows.timestamps[rows.start]
    for row in range(rows.start, rows.end):
        index = row - rows.start
        time_delta = rows.timestamps[row] - base_timestamp
        key_size = _cell_size(keys, row)
        value_size = _cell_size(values, row)
        size = 1 + number_size(time_delta) + number_size(index)
        size += _cell_bytes(key_size) + _cell_bytes(value_size)
        if rows.has_headers:
            headers = rows.header_offsets[row + 1] - rows.header_offsets[row]
            for entry in range(rows.header_offsets[row], rows.header_offsets[row + 1]):
                size += _cell_bytes(_cell_size(names, entry))
                size += _cell_bytes(_cell_size(header_values, entry))
        size += number_size(headers)
        position = put_number(out, position, size)
        out[position] = 0  # attributes: a record has none
        position = put_number(out, position + 1, time_delta)
        position = put_number(out, position, index)
        position = _put_cell(out, position, keys, row, key_size)
        position = _put_cell(out, position, values, row, value_size)
        position = put_number(out, position, headers)
        if headers > 0:
            for entry in range(rows.header_offsets[row], rows.header_offsets[row + 1]):
                size = _cell_size(names, entry)
                position = _put_cell(out, position, names, entry, size)
                size = _cell_size(header_values, entry)
                position = _put_cell(out, position, header_values, entry, size)
    return position


@cython.cfunc
def _write_batch(rows: _Rows) -> bytearray:
    """The records of `rows` after room for a header."""
    if rows.size_max + HEADER_SIZE > _INT32_MAX:
        raise ValueError(f"rows [{rows.start}, {rows.end}) are too large for one batch")
    keys: _Cells = rows.keys
    values: _Cells = rows.values
    names: _Cells = rows.names
    header_values: _Cells = rows.header_values
    batch = bytearray(rows.size_max + HEADER_SIZE)
    position: cython.Py_ssize_t = HEADER_SIZE
    out: cython.p_uchar = _uint8s(batch)
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
) -> bytearray:
    """One batch of the rows [start, end), which must be some.

    `timestamps` is an int64 array, `keys` and `values` are `BinaryColumn`s or None for nulls only,
    `headers` is a `HeaderColumn` or None for no headers.
    """
    rows: _Rows = _Rows(start, end, timestamps, keys, values, headers)
    batch: bytearray = _write_batch(rows)
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
    seal(
        batch,
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        attributes=attributes,
        last_offset_delta=rows.end - rows.start - 1,
        base_timestamp=rows.timestamps[rows.start],
        max_timestamp=rows.max_timestamp,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        record_count=rows.end - rows.start,
    )
    return batch
