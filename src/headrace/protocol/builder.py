# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The builder of a record batch, which encodes record by record into a growing buffer.

Rule: a record is checked and measured before a byte is written, so a refused record leaves the
batch unchanged. Only the encoded bytes of a record are kept.
"""

from __future__ import annotations

try:
    import cython
except ImportError:
    from headrace.protocol import _cython_shim as cython

from headrace.protocol.batch import HEADER_SIZE, NO_PRODUCER_ID, TRANSACTIONAL_BIT
from headrace.protocol.compression import compress, write_header

if cython.compiled:
    from cython.cimports.cpython.bytearray import PyByteArray_Resize
    from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_GET_SIZE
    from cython.cimports.headrace.protocol.arrays import uint8s
    from cython.cimports.headrace.protocol.column_encoder import number_size, put_number, time_fits
    from cython.cimports.libc.string import memcpy
else:
    from headrace.protocol.arrays import uint8s
    from headrace.protocol.column_encoder import number_size, put_number, time_fits

COMPILED = cython.compiled

_HEADER_SIZE = cython.declare(cython.Py_ssize_t, HEADER_SIZE)
_INT32_MAX = cython.declare(cython.longlong, 0x7FFFFFFF)
_INT64_MAX = cython.declare(cython.longlong, 0x7FFFFFFFFFFFFFFF)
_INT64_MIN = cython.declare(cython.longlong, -1 - _INT64_MAX)
_NONE = cython.declare(cython.longlong, -1)

# Most partitions of a topic see few records at a time, so a buffer starts small and doubles.
_CAPACITY_MIN = cython.declare(cython.Py_ssize_t, 1024)


@cython.cfunc
def _bytes_of(cell, field) -> bytes:
    """A copy of a bytes-like object, which may be mutable, as bytes."""
    try:
        return bytes(memoryview(cell))
    except TypeError:
        raise TypeError(f"{field} must be bytes or None, not {type(cell).__name__}") from None


@cython.cfunc
def _header_cells(headers) -> list:
    """The names and values of headers, alternating and checked; a value may be None."""
    cells: list = []
    for name, value in headers:
        if not isinstance(name, str):
            raise TypeError(f"a header's name must be str, not {type(name).__name__}")
        cells.append(name.encode())
        if value is not None and type(value) is not bytes:
            value = _bytes_of(value, f"header {name!r}")
        cells.append(value)
    return cells


@cython.cfunc
@cython.inline
def _cell_size(cell: bytes | None) -> cython.Py_ssize_t:
    if cell is None:
        return -1
    return PyBytes_GET_SIZE(cell) if cython.compiled else len(cell)


@cython.cfunc
@cython.inline
def _cell_bytes(size: cython.Py_ssize_t) -> cython.longlong:
    """The encoded size of a key or value: its length, and its bytes unless it is null."""
    return number_size(size) + (size if size > 0 else 0)


@cython.final
@cython.no_gc
@cython.cclass
class BatchBuilder:
    """A batch being filled. Not thread-safe.

    Invariant: `size_bytes` of the buffer are a header's room and `count` whole records. It is at
    most `size_bytes_max`, unless the only record is larger by itself.
    """

    size_bytes_max = cython.declare(cython.Py_ssize_t, visibility="readonly")
    size_bytes = cython.declare(cython.Py_ssize_t, visibility="readonly")
    count = cython.declare(cython.Py_ssize_t, visibility="readonly")
    base_timestamp = cython.declare(cython.longlong, visibility="readonly")
    max_timestamp = cython.declare(cython.longlong, visibility="readonly")
    _buffer: bytearray
    _capacity: cython.Py_ssize_t

    def __init__(self, size_bytes_max: cython.Py_ssize_t) -> None:
        self.size_bytes_max = size_bytes_max
        self.clear()

    def clear(self) -> None:
        """Drop all records and release their memory."""
        self._buffer = bytearray()
        self._capacity = 0
        self.size_bytes = _HEADER_SIZE
        self.count = 0
        self.base_timestamp = _NONE
        self.max_timestamp = _NONE

    def append(self, timestamp, key, value, headers=()) -> int:
        """Add a record; return its size in bytes, or 0 if it does not fit.

        A builder without records takes a record of any size. Timestamps are milliseconds.
        """
        time: cython.longlong = self._checked_timestamp(timestamp)
        key_bytes: bytes = (
            key if key is None or type(key) is bytes else _bytes_of(key, "a record's key")
        )
        value_bytes: bytes = (
            value if value is None or type(value) is bytes else _bytes_of(value, "a record's value")
        )
        header_cells: list = _header_cells(headers) if headers else None
        # From here on no other code can run, so nothing below can change in between.
        time_delta: cython.longlong = 0
        if self.count > 0:
            if not time_fits(self.base_timestamp, time):
                raise ValueError(
                    f"timestamp {time} is too far from the batch's first, {self.base_timestamp}"
                )
            time_delta = time - self.base_timestamp
        size: cython.longlong = 1 + number_size(time_delta) + number_size(self.count)
        size += _cell_bytes(_cell_size(key_bytes)) + _cell_bytes(_cell_size(value_bytes))
        if header_cells is None:
            size += 1
        else:
            size += number_size(len(header_cells) // 2)
            for cell in header_cells:
                size += _cell_bytes(_cell_size(cell))
        total: cython.longlong = size + number_size(size)
        if self.size_bytes + total > self.size_bytes_max and self.count > 0:
            return 0
        self._make_room(total)
        self._write(size, time_delta, key_bytes, value_bytes, header_cells)
        if self.count == 0:
            self.base_timestamp = self.max_timestamp = time
        elif time > self.max_timestamp:
            self.max_timestamp = time
        self.count += 1
        return total

    @cython.cfunc
    @cython.exceptval(-2, check=True)
    def _checked_timestamp(self, timestamp) -> cython.longlong:
        if not isinstance(timestamp, int):
            raise TypeError(f"a timestamp must be int, not {type(timestamp).__name__}")
        try:
            time: cython.longlong = timestamp
        except OverflowError:
            raise ValueError(f"timestamp {timestamp} is no int64") from None
        if not cython.compiled and not _INT64_MIN <= time <= _INT64_MAX:
            raise ValueError(f"timestamp {timestamp} is no int64")
        return time

    @cython.cfunc
    def _make_room(self, size: cython.longlong):
        needed: cython.longlong = self.size_bytes + size
        if needed <= self._capacity:
            return
        if needed > _INT32_MAX:
            raise ValueError(f"a record of {size} bytes is too large for any batch")
        capacity: cython.Py_ssize_t = max(_CAPACITY_MIN, self._capacity * 2)
        capacity = max(min(capacity, self.size_bytes_max), needed)
        if cython.compiled:
            PyByteArray_Resize(self._buffer, capacity)
        else:
            self._buffer.extend(bytes(capacity - self._capacity))
        self._capacity = capacity

    @cython.cfunc
    def _write(
        self,
        size: cython.longlong,
        time_delta: cython.longlong,
        key: bytes | None,
        value: bytes | None,
        header_cells: list | None,
    ):
        out: cython.p_uchar = uint8s(self._buffer)
        position: cython.Py_ssize_t = put_number(out, self.size_bytes, size)
        out[position] = 0  # attributes: a record has none
        position = put_number(out, position + 1, time_delta)
        position = put_number(out, position, self.count)
        position = _put_cell(out, position, key)
        position = _put_cell(out, position, value)
        if header_cells is None:
            position = put_number(out, position, 0)
        else:
            position = put_number(out, position, len(header_cells) // 2)
            for cell in header_cells:
                position = _put_cell(out, position, cell)
        self.size_bytes = position

    def finish(
        self,
        *,
        compression: cython.int = 0,
        level=None,
        producer_id=NO_PRODUCER_ID,
        producer_epoch=-1,
        base_sequence=-1,
        transactional: cython.bint = False,
        last: cython.bint = False,
    ) -> bytearray:
        """The batch of all records so far.

        The builder keeps the records: `finish` may be called again, with another producer id, epoch
        or sequence. With `last` the buffer is returned without a copy, and the builder is empty.
        """
        if self.count == 0:
            raise ValueError("a batch has at least one record")
        batch: bytearray
        if last and not compression:
            batch = self._buffer
            del batch[self.size_bytes :]
            self._capacity = self.size_bytes
        else:
            with memoryview(self._buffer) as whole:
                if compression:
                    with whole[_HEADER_SIZE : self.size_bytes] as records:
                        batch = bytearray(_HEADER_SIZE)
                        batch += compress(compression, records, level)
                else:
                    with whole[: self.size_bytes] as written:
                        batch = bytearray(written)
        write_header(
            batch,
            base_offset=0,
            leader_epoch=-1,
            attributes=compression | (TRANSACTIONAL_BIT if transactional else 0),
            last_offset_delta=self.count - 1,
            base_timestamp=self.base_timestamp,
            max_timestamp=self.max_timestamp,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            record_count=self.count,
        )
        if last:
            self.clear()
        return batch

    def __repr__(self) -> str:
        return f"BatchBuilder({self.count} records, {self.size_bytes} bytes)"


@cython.cfunc
@cython.inline
def _put_cell(
    out: cython.p_uchar, position: cython.Py_ssize_t, cell: bytes | None
) -> cython.Py_ssize_t:
    size: cython.Py_ssize_t = _cell_size(cell)
    position = put_number(out, position, size)
    if size > 0:
        if cython.compiled:
            memcpy(out + position, PyBytes_AS_STRING(cell), size)
        else:
            out[position : position + size] = cell
        position += size
    return position
