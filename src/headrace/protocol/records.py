# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Records of a batch as rows, one object each.

Rows are decoded from what `record_scan` has checked, and encoded by way of columns, so that there
is only one encoder.
"""

from __future__ import annotations

try:
    import cython
except ImportError:
    from headrace.protocol import _cython_shim as cython

from headrace.errors import CorruptBatch
from headrace.protocol.batch import byte_view
from headrace.protocol.column_encoder import encode_columns
from headrace.protocol.columns import BinaryColumn, HeaderColumn
from headrace.protocol.compression import EXPANDED_BYTES_MAX

if cython.compiled:
    from cython.cimports.headrace.protocol.arrays import int32s, int64s
    from cython.cimports.headrace.protocol.record_scan import (
        BatchReader,
        RecordScan,
        cell_of,
        headers_of,
    )
else:
    from headrace.protocol.arrays import int32s, int64s
    from headrace.protocol.record_scan import BatchReader, RecordScan, cell_of, headers_of

COMPILED = cython.compiled

_INT32_MAX = cython.declare(cython.longlong, 0x7FFFFFFF)


@cython.final
@cython.no_gc
@cython.freelist(256)
@cython.cclass
class Record:
    """A record of a log. Unpacks like a tuple of its five fields."""

    offset = cython.declare(cython.longlong, visibility="readonly")
    timestamp = cython.declare(cython.longlong, visibility="readonly")
    key = cython.declare(object, visibility="readonly")
    value = cython.declare(object, visibility="readonly")
    headers = cython.declare(tuple, visibility="readonly")

    def __init__(self, offset, timestamp, key, value, headers=()) -> None:
        self.offset = offset
        self.timestamp = timestamp
        self.key = key
        self.value = value
        self.headers = tuple(headers)

    def __iter__(self):
        return iter((self.offset, self.timestamp, self.key, self.value, self.headers))

    def __eq__(self, other: object) -> bool:
        return tuple(self) == tuple(other) if isinstance(other, Record) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return (
            f"Record(offset={self.offset}, timestamp={self.timestamp}, key={self.key!r}, "
            f"value={self.value!r}, headers={self.headers!r})"
        )


@cython.cfunc
def _add_records(records: list, scan: RecordScan):
    record: Record
    row: cython.Py_ssize_t
    first: cython.Py_ssize_t = 0
    end: cython.Py_ssize_t
    for row in range(scan.count):
        record = Record.__new__(Record)
        record.offset = scan._offsets[row]
        record.timestamp = scan._timestamps[row]
        record.key = cell_of(scan, scan.keys, row)
        record.value = cell_of(scan, scan.values, row)
        end = first + scan._header_counts[row]
        record.headers = headers_of(scan, first, end) if end > first else ()
        first = end
        records.append(record)


def decode_rows(
    buffer,
    header=None,
    from_offset: cython.longlong = 0,
    max_bytes: cython.longlong = EXPANDED_BYTES_MAX,
    check_crcs: cython.bint = True,
) -> list:
    """The records of one batch; without a header, of every whole batch that is no control batch.

    Records before `from_offset` are left out: a fetch response begins with a whole batch.
    """
    start: cython.Py_ssize_t = 0
    end = None
    if header is not None:
        start = header.position
        end = start + header.size
        if end > len(byte_view(buffer)):
            raise CorruptBatch(f"batch of {header.size} bytes is cut off")
    with_control: cython.bint = header is not None and header.is_control
    reader: BatchReader = BatchReader(
        buffer, start, end, from_offset, max_bytes, check_crcs, with_control
    )
    records: list = []
    scan: RecordScan = reader.read()
    while scan is not None:
        _add_records(records, scan)
        scan = reader.read()
    return records


@cython.cfunc
def _column(cells: list):
    """A column of bytes-like objects and None."""
    count: cython.Py_ssize_t = len(cells)
    offsets = bytearray((count + 1) * 4)
    ends: cython.p_int = int32s(offsets)
    validity = bytearray((count + 7) // 8)
    total: cython.longlong = 0
    nulls: cython.Py_ssize_t = 0
    index: cython.Py_ssize_t
    for index in range(count):
        cell = cells[index]
        if cell is None:
            nulls += 1
        else:
            total += len(cell)
            validity[index >> 3] |= 1 << (index & 7)
        if total > _INT32_MAX:
            raise ValueError("records are too large for one batch")
        ends[index + 1] = cython.cast(cython.int, total)
    data = b"".join([cell for cell in cells if cell is not None] if nulls else cells)
    return BinaryColumn(count, offsets, data, validity if nulls else None, nulls)


@cython.cfunc
def _header_column(header_lists: list):
    """The headers of all records as a column; None if no record has any."""
    offsets = bytearray((len(header_lists) + 1) * 4)
    ends: cython.p_int = int32s(offsets)
    row: cython.Py_ssize_t
    names: list = []
    values: list = []
    for row in range(len(header_lists)):
        for name, value in header_lists[row]:
            names.append(name.encode())
            values.append(value)
        ends[row + 1] = cython.cast(cython.int, len(names))
    return HeaderColumn(offsets, _column(names), _column(values)) if names else None


def encode_batch(records, **options) -> bytearray:
    """Encode (timestamp, key, value, headers) rows as a batch; options as in `encode_columns`."""
    rows: list = list(records)
    timestamps = bytearray(len(rows) * 8)
    times: cython.p_longlong = int64s(timestamps)
    index: cython.Py_ssize_t
    keys: list = []
    values: list = []
    header_lists: list = []
    for index in range(len(rows)):
        timestamp, key, value, headers = rows[index]
        times[index] = timestamp
        keys.append(key)
        values.append(value)
        header_lists.append(headers)
    return encode_columns(
        timestamps, _column(keys), _column(values), _header_column(header_lists), **options
    )
