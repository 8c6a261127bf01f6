# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False
"""Decoding of record batches into columns for Arrow.

Rule: only records that `record_scan` has checked are copied. All sizes are known by then, so every
column is allocated once, and the copying needs no GIL.
"""

from __future__ import annotations

try:
    import cython
except ImportError:
    from headrace.protocol import _cython_shim as cython

from headrace.errors import CorruptBatch
from headrace.protocol.columns import BinaryColumn, Columns, HeaderColumn, utf8_column
from headrace.protocol.compression import EXPANDED_BYTES_MAX

if cython.compiled:
    from cython.cimports.headrace.protocol.arrays import int32s, uint8s
    from cython.cimports.headrace.protocol.record_scan import BatchReader
    from cython.cimports.libc.string import memcpy
else:
    from headrace.protocol.arrays import int32s, uint8s
    from headrace.protocol.record_scan import BatchReader

COMPILED = cython.compiled

_INT32_MAX = cython.declare(cython.longlong, 0x7FFFFFFF)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _copy_cells(
    payload: cython.p_const_uchar,
    starts: cython.p_int,
    sizes: cython.p_int,
    count: cython.Py_ssize_t,
    row: cython.Py_ssize_t,
    offsets: cython.p_int,
    data: cython.p_uchar,
) -> cython.void:
    """Append cells to a column that has `row` rows so far."""
    index: cython.Py_ssize_t
    start: cython.Py_ssize_t
    size: cython.Py_ssize_t
    at: cython.Py_ssize_t = offsets[row]
    for index in range(count):
        size = sizes[index]
        if size > 0:
            start = starts[index]
            if cython.compiled:
                memcpy(data + at, payload + start, size)
            else:
                data[at : at + size] = payload[start : start + size]
            at += size
        offsets[row + index + 1] = cython.cast(cython.int, at)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _mark_valid(
    sizes: cython.p_int,
    count: cython.Py_ssize_t,
    row: cython.Py_ssize_t,
    bits: cython.p_uchar,
) -> cython.void:
    index: cython.Py_ssize_t
    for index in range(row, row + count):
        if sizes[index - row] >= 0:
            bits[index >> 3] |= cython.cast(cython.uchar, 1 << (index & 7))


@cython.final
@cython.cclass
class _GrowingColumn:
    """A `BinaryColumn` being filled, batch by batch."""

    length: cython.Py_ssize_t
    row: cython.Py_ssize_t
    nulls: cython.longlong
    offsets: bytearray
    data: bytearray
    validity: bytearray

    def __init__(self, parts: list) -> None:
        """Allocate a column for all of `parts`, which are (count, cells) pairs."""
        total: cython.longlong = 0
        self.length = 0
        self.row = 0
        self.nulls = 0
        for count, cells in parts:
            self.length += count
            self.nulls += cells.nulls
            total += cells.total
        self.offsets = bytearray((self.length + 1) * 4)
        self.data = bytearray(total)
        self.validity = bytearray((self.length + 7) // 8) if self.nulls else None

    @cython.cfunc
    def add(self, payload: cython.p_const_uchar, cells, count: cython.Py_ssize_t):
        starts: cython.p_int = int32s(cells.starts)
        sizes: cython.p_int = int32s(cells.sizes)
        offsets: cython.p_int = int32s(self.offsets)
        data: cython.p_uchar = uint8s(self.data)
        row: cython.Py_ssize_t = self.row
        with cython.nogil:
            _copy_cells(payload, starts, sizes, count, row, offsets, data)
        if self.nulls:
            _mark_valid(sizes, count, row, uint8s(self.validity))
        self.row += count

    @cython.cfunc
    def finished(self):
        return BinaryColumn(self.length, self.offsets, self.data, self.validity, self.nulls)


@cython.cfunc
def _header_offsets(scans: list, length: cython.Py_ssize_t) -> bytearray:
    offsets = bytearray((length + 1) * 4)
    ends: cython.p_int = int32s(offsets)
    counts: cython.p_int
    index: cython.Py_ssize_t
    count: cython.Py_ssize_t
    row: cython.Py_ssize_t = 0
    for scan in scans:
        count = scan.count
        counts = int32s(scan.header_counts)
        for index in range(count):
            ends[row + 1] = ends[row] + counts[index]
            row += 1
    return offsets


@cython.cfunc
def _columns(
    scans: list,
    next_offset,
    position,
    with_keys: cython.bint,
    with_values: cython.bint,
    with_headers: cython.bint,
):
    counted: list = scans if with_headers else []
    keys: _GrowingColumn = _GrowingColumn(
        [(scan.count, scan.keys) for scan in scans] if with_keys else []
    )
    values: _GrowingColumn = _GrowingColumn(
        [(scan.count, scan.values) for scan in scans] if with_values else []
    )
    names: _GrowingColumn = _GrowingColumn([(scan.header_count, scan.names) for scan in counted])
    header_values: _GrowingColumn = _GrowingColumn(
        [(scan.header_count, scan.header_values) for scan in counted]
    )
    view: cython.const[cython.uchar][::1]
    payload: cython.p_const_uchar
    length: cython.Py_ssize_t = 0
    offsets: list = []
    timestamps: list = []
    for scan in scans:
        view = scan.payload
        payload = cython.address(view[0]) if cython.compiled else view
        length += scan.count
        if with_keys:
            keys.add(payload, scan.keys, scan.count)
        if with_values:
            values.add(payload, scan.values, scan.count)
        if with_headers and scan.header_count:
            names.add(payload, scan.names, scan.header_count)
            header_values.add(payload, scan.header_values, scan.header_count)
        # The scan's arrays are for all records of the batch; some may be before `from_offset`.
        offsets.append(memoryview(scan.offsets)[: scan.count * 8])
        timestamps.append(memoryview(scan.timestamps)[: scan.count * 8])
    return Columns(
        length,
        bytearray().join(offsets),
        bytearray().join(timestamps),
        keys.finished(),
        values.finished(),
        HeaderColumn(
            _header_offsets(counted, length if with_headers else 0),
            utf8_column(names.finished()),
            header_values.finished(),
        ),
        next_offset,
        position,
    )


def decode_columns(
    buffer,
    start: cython.Py_ssize_t = 0,
    end=None,
    from_offset: cython.longlong = 0,
    max_bytes: cython.longlong = EXPANDED_BYTES_MAX,
    check_crcs: cython.bint = True,
    with_control: cython.bint = False,
    total_bytes_max: cython.longlong = _INT32_MAX,
    with_keys: cython.bint = True,
    with_values: cython.bint = True,
    with_headers: cython.bint = True,
):
    """The records of all whole batches in [start, end), from `from_offset` on, as columns.

    Control batches are left out unless asked for. Decoding stops early, and `end_position` says so,
    before a batch that would exceed `total_bytes_max`, and before a corrupt batch that follows good
    ones: the next call raises its error. A column that is not wanted is checked all the same, but
    has no rows.
    """
    reader: BatchReader = BatchReader(
        buffer, start, end, from_offset, max_bytes, check_crcs, with_control
    )
    expanded: cython.longlong = 0
    scans: list = []
    while True:
        position, next_offset = reader.position, reader.next_offset
        try:
            scan = reader.read()
        except CorruptBatch:
            if not scans:
                raise
            scan = None
        if scan is None:
            return _columns(
                scans, reader.next_offset, reader.position, with_keys, with_values, with_headers
            )
        # The decompressed size limits every column, whose offsets are int32. The first batch is
        # always decoded, or a reader could never get past a large batch.
        expanded += scan.size
        if scans and expanded > min(total_bytes_max, _INT32_MAX):
            return _columns(scans, next_offset, position, with_keys, with_values, with_headers)
        scans.append(scan)
