# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False
"""A scan of a batch's records, which checks them and notes the positions of their fields.

Rule: one pass, without the GIL, checks every length and number against the bytes that are there,
before anything is copied; a malformed record is a `CorruptBatch`.
"""

from __future__ import annotations

try:
    import cython
except ImportError:
    from headrace.protocol import _cython_shim as cython

from headrace.errors import CorruptBatch, ErrorCode
from headrace.protocol.batch import HEADER_SIZE, RefusedBatch, byte_view, check_batch, read_header
from headrace.protocol.compression import EXPANDED_BYTES_MAX, record_bytes

if cython.compiled:
    from cython.cimports.cpython.bytes import PyBytes_FromStringAndSize
    from cython.cimports.cpython.unicode import PyUnicode_DecodeUTF8
    from cython.cimports.headrace.protocol.arrays import int32s, int64s
else:
    from headrace.protocol.arrays import int32s, int64s

COMPILED = cython.compiled

_INT32_MAX = cython.declare(cython.longlong, 0x7FFFFFFF)
_INT64_MAX = cython.declare(cython.longlong, 0x7FFFFFFFFFFFFFFF)
_INT64_MIN = cython.declare(cython.longlong, -1 - _INT64_MAX)

# A record has at least its length, attributes, two deltas, two lengths and a header count, a header
# two lengths. Counts are compared with these before memory is allocated for them.
_RECORD_SIZE_MIN = cython.declare(cython.Py_ssize_t, 7)
_HEADER_SIZE_MIN = cython.declare(cython.Py_ssize_t, 2)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _long_number(
    data: cython.p_const_uchar,
    position: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    bits: cython.int,
) -> tuple[cython.longlong, cython.Py_ssize_t]:
    number: cython.ulonglong = 0
    byte: cython.int
    shift: cython.int = 0
    while position < end and shift < bits:
        byte = data[position]
        position += 1
        # The last byte that a number may have holds the rest of its bits.
        if shift + 7 > bits and byte >= 1 << (bits - shift):
            break
        number |= cython.cast(cython.ulonglong, byte & 127) << shift
        if byte < 128:
            return (
                cython.cast(cython.longlong, number >> 1)
                ^ -cython.cast(cython.longlong, number & 1),
                position,
            )
        shift += 7
    return 0, -1


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _number(
    data: cython.p_const_uchar,
    position: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    bits: cython.int = 32,
) -> tuple[cython.longlong, cython.Py_ssize_t]:
    """The zig-zag varint of at most `bits` bits, and the position after it, -1 if malformed."""
    byte: cython.int
    if position < end:
        byte = data[position]
        if byte < 128:
            return (byte >> 1) ^ -(byte & 1), position + 1
    return _long_number(data, position, end, bits)


@cython.final
@cython.cclass
class CellPositions:
    """The positions of the keys, values, header names or header values of a batch."""

    def __init__(self, count: cython.Py_ssize_t) -> None:
        self.starts = bytearray(count * 4)
        self.sizes = bytearray(count * 4)
        self.total = 0
        self.nulls = 0
        self._starts = int32s(self.starts)
        self._sizes = int32s(self.sizes)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _put_cell(
    cells: CellPositions,
    index: cython.Py_ssize_t,
    start: cython.Py_ssize_t,
    size: cython.longlong,
) -> cython.void:
    cells._starts[index] = cython.cast(cython.int, start)
    cells._sizes[index] = cython.cast(cython.int, size)
    if size < 0:
        cells.nulls += 1
    else:
        cells.total += size


@cython.final
@cython.cclass
class RecordScan:
    """The checked layout of a batch's records from `from_offset` on."""

    def __init__(self, payload: object, header, from_offset: cython.longlong) -> None:
        count: cython.Py_ssize_t = header.record_count
        self.payload = payload
        self.size = len(payload)
        self.leader_epoch = header.leader_epoch
        self.is_log_append_time = header.is_log_append_time
        self.count = 0
        self.max_timestamp = _INT64_MIN
        self.offsets = bytearray(count * 8)
        self.timestamps = bytearray(count * 8)
        self.header_count = 0
        self.header_counts = bytearray(count * 4)
        self.keys = CellPositions(count)
        self.values = CellPositions(count)
        self._view = payload
        self._data = cython.address(self._view[0]) if cython.compiled else payload
        self._base_offset = header.base_offset
        self._last_offset_delta = header.last_offset_delta
        self._base_timestamp = header.base_timestamp
        # With deltas beyond these a timestamp would not fit an int64.
        self._time_delta_min = _INT64_MIN - min(self._base_timestamp, 0)
        self._time_delta_max = _INT64_MAX - max(self._base_timestamp, 0)
        self._from_offset = from_offset
        self._offsets = int64s(self.offsets)
        self._timestamps = int64s(self.timestamps)
        self._header_start_array = bytearray(count * 4)
        self._header_starts = int32s(self._header_start_array)
        self._header_counts = int32s(self.header_counts)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _skip_headers(
    data: cython.p_const_uchar,
    position: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    count: cython.longlong,
) -> cython.Py_ssize_t:
    """The position after `count` headers, or -1 if they are not all well-formed."""
    size: cython.longlong
    while count > 0:
        count -= 1
        size, position = _number(data, position, end)
        if position < 0 or size < 0 or size > end - position:
            return -1
        position += size
        size, position = _number(data, position, end)
        if position < 0 or size < -1 or size > end - position:
            return -1
        position += max(size, 0)
    return position


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _scan_record(
    scan: RecordScan,
    keys: CellPositions,
    values: CellPositions,
    position: cython.Py_ssize_t,
    previous: cython.longlong,
) -> tuple[cython.longlong, cython.Py_ssize_t]:
    """The offset delta of the record at `position` and its end, which is -1 if it is malformed."""
    data: cython.p_const_uchar = scan._data
    end: cython.Py_ssize_t
    key_at: cython.Py_ssize_t
    value_at: cython.Py_ssize_t
    headers_at: cython.Py_ssize_t
    size: cython.longlong
    time_delta: cython.longlong
    delta: cython.longlong
    key_size: cython.longlong
    value_size: cython.longlong
    headers: cython.longlong
    size, position = _number(data, position, scan.size)
    if position < 0 or size < _RECORD_SIZE_MIN - 1 or size > scan.size - position:
        return 0, -1
    end = position + size
    # A byte of record attributes, which Kafka does not use.
    time_delta, position = _number(data, position + 1, end, 64)
    if position < 0 or time_delta < scan._time_delta_min or time_delta > scan._time_delta_max:
        return 0, -1
    delta, position = _number(data, position, end)
    # Compaction leaves gaps; an offset that does not rise is damage.
    if position < 0 or delta <= previous or delta > scan._last_offset_delta:
        return 0, -1
    key_size, position = _number(data, position, end)
    if position < 0 or key_size < -1 or key_size > end - position:
        return 0, -1
    key_at = position
    position += max(key_size, 0)
    value_size, position = _number(data, position, end)
    if position < 0 or value_size < -1 or value_size > end - position:
        return 0, -1
    value_at = position
    position += max(value_size, 0)
    headers, position = _number(data, position, end)
    if position < 0 or headers < 0 or headers > (end - position) // _HEADER_SIZE_MIN:
        return 0, -1
    headers_at = position
    if headers > 0:
        position = _skip_headers(data, position, end, headers)
    if position != end:
        return 0, -1
    scan.max_timestamp = max(scan.max_timestamp, scan._base_timestamp + time_delta)
    if scan._base_offset + delta >= scan._from_offset:
        scan._offsets[scan.count] = scan._base_offset + delta
        scan._timestamps[scan.count] = scan._base_timestamp + time_delta
        scan._header_starts[scan.count] = cython.cast(cython.int, headers_at)
        scan._header_counts[scan.count] = cython.cast(cython.int, headers)
        scan.header_count += headers
        _put_cell(keys, scan.count, key_at, key_size)
        _put_cell(values, scan.count, value_at, value_size)
        scan.count += 1
    return delta, end


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _scan_records(
    scan: RecordScan, keys: CellPositions, values: CellPositions, count: cython.longlong
) -> cython.longlong:
    """Fill `scan`; return -1, or the number of the first malformed record.

    The number is `count` if bytes follow the last record.
    """
    position: cython.Py_ssize_t = 0
    delta: cython.longlong = -1
    index: cython.longlong
    for index in range(count):
        delta, position = _scan_record(scan, keys, values, position, delta)
        if position < 0:
            return index
    return -1 if position == scan.size else count


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _scan_headers(scan: RecordScan, names: CellPositions, values: CellPositions) -> cython.bint:
    """Fill the header cells of `scan`; False if the bytes changed since they were counted."""
    position: cython.Py_ssize_t
    row: cython.Py_ssize_t
    size: cython.longlong
    entry: cython.Py_ssize_t = 0
    end: cython.Py_ssize_t = 0
    for row in range(scan.count):
        position = scan._header_starts[row]
        end += scan._header_counts[row]
        while entry < end:
            size, position = _number(scan._data, position, scan.size)
            if position < 0 or size < 0 or size > scan.size - position:
                return False
            _put_cell(names, entry, position, size)
            size, position = _number(scan._data, position + size, scan.size)
            if position < 0 or size < -1 or size > scan.size - position:
                return False
            _put_cell(values, entry, position, size)
            position += max(size, 0)
            entry += 1
    return True


def scan_batch(
    buffer, header, from_offset: cython.longlong, max_bytes: cython.longlong
) -> RecordScan:
    """Decompress a batch and check its records, but not its CRC."""
    payload = byte_view(record_bytes(buffer, header, min(max_bytes, _INT32_MAX)))
    count: cython.longlong = header.record_count
    if count > len(payload) // _RECORD_SIZE_MIN:
        raise CorruptBatch(f"{len(payload)} bytes cannot hold {count} records")
    scan: RecordScan = RecordScan(payload, header, from_offset)
    keys: CellPositions = scan.keys
    values: CellPositions = scan.values
    malformed: cython.longlong
    with cython.nogil:
        malformed = _scan_records(scan, keys, values, count)
    if malformed == count:
        raise CorruptBatch(f"something follows the {count} records of the batch")
    if malformed >= 0:
        raise CorruptBatch(f"record {malformed} of {count} is malformed")
    row: cython.Py_ssize_t
    append_time: cython.longlong = header.max_timestamp
    if scan.is_log_append_time:
        for row in range(scan.count):
            scan._timestamps[row] = append_time
    scan.names = CellPositions(scan.header_count)
    scan.header_values = CellPositions(scan.header_count)
    if scan.header_count and not _scan_headers(scan, scan.names, scan.header_values):
        raise CorruptBatch("the batch changed while it was decoded")
    return scan


def check_records(
    buffer,
    header,
    max_bytes: cython.longlong = EXPANDED_BYTES_MAX,
    compacted: cython.bint = False,
) -> int:
    """Decompress a batch and check every record; return their greatest timestamp."""
    if not compacted and header.record_count != header.last_offset_delta + 1:
        raise RefusedBatch(
            ErrorCode.INVALID_RECORD,
            f"batch has {header.record_count} records for {header.last_offset_delta + 1} offsets",
        )
    scan: RecordScan = scan_batch(buffer, header, 0, max_bytes)
    return scan.max_timestamp if scan.count else -1


@cython.cfunc
def cell_of(scan: RecordScan, cells: CellPositions, index: cython.Py_ssize_t):
    """A cell as a bytes object, or None."""
    start: cython.Py_ssize_t = cells._starts[index]
    size: cython.Py_ssize_t = cells._sizes[index]
    if size < 0:
        return None
    if cython.compiled:
        return PyBytes_FromStringAndSize(cython.cast(cython.p_const_char, scan._data) + start, size)
    else:
        return bytes(scan._data[start : start + size])


@cython.cfunc
def headers_of(scan: RecordScan, first: cython.Py_ssize_t, end: cython.Py_ssize_t) -> tuple:
    """The headers [first, end) of a batch, as (name, value) pairs.

    Invalid UTF-8 in a name is replaced, as Kafka's Java client does.
    """
    names: CellPositions = scan.names
    index: cython.Py_ssize_t
    headers: list = []
    for index in range(first, end):
        if cython.compiled:
            name = PyUnicode_DecodeUTF8(
                cython.cast(cython.p_const_char, scan._data) + names._starts[index],
                names._sizes[index],
                b"replace",
            )
        else:
            name = cell_of(scan, names, index).decode(errors="replace")
        headers.append((name, cell_of(scan, scan.header_values, index)))
    return tuple(headers)


@cython.final
@cython.cclass
class BatchReader:
    """A reader of successive batches in [start, end) of a buffer from a log or a fetch.

    `position` is after the last batch that was read or skipped, `next_offset` the offset to
    continue at. Control batches are skipped unless asked for, as are batches that end before
    `from_offset`; a partial batch is the end.
    """

    def __init__(
        self,
        buffer: object,
        start: cython.Py_ssize_t,
        end: object,
        from_offset: cython.longlong,
        max_bytes: cython.longlong,
        check_crcs: cython.bint,
        with_control: cython.bint,
    ) -> None:
        self._view = byte_view(buffer)
        self._limit = len(self._view) if end is None else min(len(self._view), end)
        self.position = start
        self.next_offset = from_offset
        self._from_offset = from_offset
        self._max_bytes = max_bytes
        self._check_crcs = check_crcs
        self._with_control = with_control

    def read(self):
        """The scan of the next batch, or None at the end. A corrupt batch moves no position."""
        scan: RecordScan = None
        while scan is None and self._limit - self.position >= HEADER_SIZE:
            header = read_header(self._view, self.position)
            if header.size > self._limit - self.position:
                break
            if header.next_offset > self._from_offset and (
                self._with_control or not header.is_control
            ):
                if self._check_crcs:
                    check_batch(self._view, header, True)
                scan = scan_batch(self._view, header, self._from_offset, self._max_bytes)
            self.position += header.size
            self.next_offset = max(self.next_offset, header.next_offset)
        return scan
