# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False
"""Parsing of batches and records in place, without the GIL.

Rule: every length is checked against the bytes that are there, and nothing is copied.
"""

from __future__ import annotations

try:
    import cython
except ImportError:
    from headrace.protocol import _cython_shim as cython

from headrace.protocol.batch import (
    ATTRIBUTES_AT,
    COUNT_AT,
    CRC_AT,
    HEADER_SIZE,
    LAST_OFFSET_DELTA_AT,
    LENGTH_AT,
    LOG_OVERHEAD,
    MAGIC,
    MAGIC_AT,
)

if cython.compiled:
    from cython.cimports.headrace.storage.compaction.checksums import checksum_of
else:
    from headrace.storage.compaction.checksums import checksum_of

COMPILED = cython.compiled

_HEADER_SIZE = cython.declare(cython.Py_ssize_t, HEADER_SIZE)
_LOG_OVERHEAD = cython.declare(cython.longlong, LOG_OVERHEAD)
_LENGTH_AT = cython.declare(cython.Py_ssize_t, LENGTH_AT)
_MAGIC_AT = cython.declare(cython.Py_ssize_t, MAGIC_AT)
_CRC_AT = cython.declare(cython.Py_ssize_t, CRC_AT)
_ATTRIBUTES_AT = cython.declare(cython.Py_ssize_t, ATTRIBUTES_AT)
_LAST_OFFSET_DELTA_AT = cython.declare(cython.Py_ssize_t, LAST_OFFSET_DELTA_AT)
_COUNT_AT = cython.declare(cython.Py_ssize_t, COUNT_AT)

_MAGIC = cython.declare(cython.int, MAGIC)
_UINT32_MAX = cython.declare(cython.longlong, 0xFFFFFFFF)
_NOT_PLAIN = cython.declare(cython.longlong, 0x4037)  # compressed, sealed, transactional or control

# A record is at least its length, attributes, two deltas, two lengths and a header count.
_RECORD_SIZE_MIN = cython.declare(cython.Py_ssize_t, 7)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def load_number(
    data: cython.p_const_uchar, position: cython.Py_ssize_t, size: cython.int
) -> cython.longlong:
    """A signed big-endian number of `size` bytes."""
    value: cython.longlong = data[position]
    index: cython.int
    if value > 127:
        value -= 256
    for index in range(1, size):
        value = value * 256 + data[position + index]
    return value


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _number(
    data: cython.p_const_uchar, position: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> tuple[cython.longlong, cython.Py_ssize_t]:
    """The zig-zag varint at a position, and the position after it, -1 if it is malformed."""
    number: cython.ulonglong = 0
    byte: cython.ulonglong
    shift: cython.int = 0
    while position < end and shift < 64:
        byte = data[position]
        position += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return (
                cython.cast(cython.longlong, number >> 1)
                ^ -cython.cast(cython.longlong, number & 1),
                position,
            )
        shift += 7
    return 0, -1


@cython.final
@cython.cclass
class RecordLayout:
    """The positions and sizes of the parts of the record that was read last."""

    def __init__(self) -> None:
        self.body = self.after_time = self.key_at = 0
        self.time_delta = self.offset_delta = self.key_size = self.value_size = 0


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def read_record(
    record: RecordLayout,
    data: cython.p_const_uchar,
    position: cython.Py_ssize_t,
    limit: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Parse the record at `position`; return its end, or -1 if it is malformed."""
    size: cython.longlong
    end: cython.Py_ssize_t
    size, position = _number(data, position, limit)
    if position < 0 or size < _RECORD_SIZE_MIN - 1 or size > limit - position:
        return -1
    end = position + size
    record.body = position
    record.time_delta, position = _number(data, position + 1, end)
    if position < 0:
        return -1
    record.after_time = position
    record.offset_delta, position = _number(data, position, end)
    if position < 0:
        return -1
    record.key_size, position = _number(data, position, end)
    if position < 0 or record.key_size < -1 or record.key_size > end - position:
        return -1
    record.key_at = position
    position += max(record.key_size, 0)
    record.value_size, position = _number(data, position, end)
    if position < 0 or record.value_size < -1 or record.value_size > end - position:
        return -1
    return end


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def plain_size(
    data: cython.p_const_uchar, position: cython.Py_ssize_t, limit: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """The size of the batch at `position`; 0 if it is incomplete, not plain or corrupt."""
    size: cython.longlong
    crc: cython.longlong
    if limit - position < _HEADER_SIZE:
        return 0
    size = load_number(data, position + _LENGTH_AT, 4) + _LOG_OVERHEAD
    if size < _HEADER_SIZE or size > limit - position or data[position + _MAGIC_AT] != _MAGIC:
        return 0
    if load_number(data, position + _ATTRIBUTES_AT, 2) & _NOT_PLAIN:
        return 0
    if (
        load_number(data, position, 8) < 0
        or load_number(data, position + _LAST_OFFSET_DELTA_AT, 4) < 0
        or load_number(data, position + _COUNT_AT, 4) < 0
    ):
        return 0
    crc = load_number(data, position + _CRC_AT, 4) & _UINT32_MAX
    return size if checksum_of(data, position + _ATTRIBUTES_AT, position + size) == crc else 0
