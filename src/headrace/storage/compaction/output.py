# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False
"""The batches that compaction keeps, as the bytes of a new segment with entries for its indexes.

Rule: a batch keeps its header except for the fields that depend on its remaining records: length,
count, CRC, the largest timestamp, and the delete horizon.
"""

from __future__ import annotations

try:
    import cython
except ImportError:
    from headrace.protocol import _cython_shim as cython

from headrace.protocol.batch import (
    ATTRIBUTES_AT,
    BASE_TIMESTAMP_AT,
    CODEC_BITS,
    COUNT_AT,
    CRC_AT,
    DELETE_HORIZON_BIT,
    ENCRYPTED_BIT,
    HEADER_SIZE,
    LAST_OFFSET_DELTA_AT,
    LENGTH_AT,
    LOG_APPEND_TIME_BIT,
    LOG_OVERHEAD,
    MAX_TIMESTAMP_AT,
)

if cython.compiled:
    from cython.cimports.headrace.protocol.arrays import int64s, uint8s
    from cython.cimports.headrace.storage.compaction.batch_walk import load_number
    from cython.cimports.headrace.storage.compaction.checksums import checksum_of
    from cython.cimports.libc.string import memcpy
else:
    from headrace.protocol.arrays import int64s, uint8s
    from headrace.storage.compaction.batch_walk import load_number
    from headrace.storage.compaction.checksums import checksum_of

COMPILED = cython.compiled

_HEADER_SIZE = cython.declare(cython.Py_ssize_t, HEADER_SIZE)
_LOG_OVERHEAD = cython.declare(cython.longlong, LOG_OVERHEAD)
_LENGTH_AT = cython.declare(cython.Py_ssize_t, LENGTH_AT)
_CRC_AT = cython.declare(cython.Py_ssize_t, CRC_AT)
_ATTRIBUTES_AT = cython.declare(cython.Py_ssize_t, ATTRIBUTES_AT)
_LAST_OFFSET_DELTA_AT = cython.declare(cython.Py_ssize_t, LAST_OFFSET_DELTA_AT)
_BASE_TIMESTAMP_AT = cython.declare(cython.Py_ssize_t, BASE_TIMESTAMP_AT)
_MAX_TIMESTAMP_AT = cython.declare(cython.Py_ssize_t, MAX_TIMESTAMP_AT)
_COUNT_AT = cython.declare(cython.Py_ssize_t, COUNT_AT)

_CODEC_BITS = cython.declare(cython.longlong, CODEC_BITS)
_LOG_APPEND_TIME = cython.declare(cython.longlong, LOG_APPEND_TIME_BIT)
_DELETE_HORIZON = cython.declare(cython.longlong, DELETE_HORIZON_BIT)
_ENCRYPTED = cython.declare(cython.longlong, ENCRYPTED_BIT)

_BYTE = cython.declare(cython.ulonglong, 0xFF)
_ENTRY_NUMBERS = cython.declare(cython.Py_ssize_t, 4)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _store(
    data: cython.p_uchar, position: cython.Py_ssize_t, number: cython.longlong, size: cython.int
) -> cython.void:
    index: cython.int
    value: cython.ulonglong = cython.cast(cython.ulonglong, number)
    for index in range(size):
        data[position + size - 1 - index] = cython.cast(
            cython.uchar, (value >> (8 * index)) & _BYTE
        )


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def copy_bytes(
    to: cython.p_uchar,
    at: cython.Py_ssize_t,
    data: cython.p_const_uchar,
    start: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
) -> cython.void:
    if cython.compiled:
        memcpy(to + at, data + start, size)
    else:
        to[at : at + size] = data[start : start + size]


@cython.final
@cython.cclass
class CompactionOutput:
    """The buffer of kept batches for the new segment's file: the first `used` bytes of `data`.

    `position` is their position in the file.
    """

    def __init__(self, capacity: cython.Py_ssize_t, index_interval: cython.longlong) -> None:
        self._interval = index_interval
        self.begin_file()
        self.grow(capacity)

    def begin_file(self) -> None:
        """Begin a new file."""
        self.position = 0
        self.used = 0
        self.max_timestamp = -1
        self.max_timestamp_offset = -1
        self._since_entry = 0
        self._entry_count = 0

    def grow(self, capacity: cython.Py_ssize_t) -> None:
        """Replace the buffer, which must be empty, by a buffer of `capacity` bytes."""
        assert not self.used, self.used
        self.data = bytearray(capacity)
        self.bytes = uint8s(self.data)
        self.capacity = capacity
        # An entry for every batch, which is never smaller than its header.
        self._entry_array = bytearray((capacity // _HEADER_SIZE + 1) * 8 * _ENTRY_NUMBERS)
        self._entries = int64s(self._entry_array)

    def drain(self) -> list:
        """Empty the buffer, after it was written; return the index entries of its batches.

        An entry is the last offset and the position of a batch, and the largest timestamp up to
        there with the last offset of its batch.
        """
        numbers = memoryview(self._entry_array).cast("q")
        entries = [
            tuple(numbers[first : first + 4])
            for first in range(0, self._entry_count * _ENTRY_NUMBERS, _ENTRY_NUMBERS)
        ]
        self.position += self.used
        self.used = 0
        self._entry_count = 0
        return entries


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def put_batch(
    output: CompactionOutput,
    data: cython.p_const_uchar,
    position: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
) -> cython.void:
    """Add an unchanged batch; `output.pxd` exports it for calls without the GIL."""
    copy_bytes(output.bytes, output.used, data, position, size)
    _note_batch(output, size)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def put_empty(
    output: CompactionOutput, data: cython.p_const_uchar, position: cython.Py_ssize_t
) -> cython.void:
    """Add a batch without its records, which keeps its offsets, producer and sequence."""
    out: cython.p_uchar = output.bytes
    at: cython.Py_ssize_t = output.used
    attributes: cython.longlong = load_number(data, position + _ATTRIBUTES_AT, 2)
    copy_bytes(out, at, data, position, _HEADER_SIZE)
    attributes &= ~(_CODEC_BITS | _DELETE_HORIZON | _ENCRYPTED)
    _store(out, at + _ATTRIBUTES_AT, attributes, 2)
    _store(out, at + _BASE_TIMESTAMP_AT, -1, 8)
    _store(out, at + _COUNT_AT, 0, 4)
    _seal(output, 0)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def put_changed(
    output: CompactionOutput,
    data: cython.p_const_uchar,
    position: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
    count: cython.longlong,
    max_timestamp: cython.longlong,
    sets_horizon: cython.bint,
    horizon_ms: cython.longlong,
) -> cython.void:
    """Add a batch whose `count` remaining records, of `size` bytes, are in the buffer already."""
    out: cython.p_uchar = output.bytes
    at: cython.Py_ssize_t = output.used
    attributes: cython.longlong = load_number(data, position + _ATTRIBUTES_AT, 2)
    copy_bytes(out, at, data, position, _HEADER_SIZE)
    _store(out, at + _COUNT_AT, count, 4)
    if sets_horizon:
        attributes |= _DELETE_HORIZON
        _store(out, at + _ATTRIBUTES_AT, attributes, 2)
        _store(out, at + _BASE_TIMESTAMP_AT, horizon_ms, 8)
    # LogAppendTime is that of the whole batch, whichever records remain.
    if not attributes & _LOG_APPEND_TIME:
        _store(out, at + _MAX_TIMESTAMP_AT, max_timestamp, 8)
    _seal(output, size)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _seal(output: CompactionOutput, size: cython.Py_ssize_t) -> cython.void:
    out: cython.p_uchar = output.bytes
    at: cython.Py_ssize_t = output.used
    end: cython.Py_ssize_t = at + _HEADER_SIZE + size
    _store(out, at + _LENGTH_AT, _HEADER_SIZE + size - _LOG_OVERHEAD, 4)
    _store(out, at + _CRC_AT, checksum_of(out, at + _ATTRIBUTES_AT, end), 4)
    _note_batch(output, _HEADER_SIZE + size)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _note_batch(output: CompactionOutput, size: cython.Py_ssize_t) -> cython.void:
    """Count a batch written at the end of the buffer, and add an index entry if it is due."""
    at: cython.Py_ssize_t = output.used
    last_offset: cython.longlong = load_number(output.bytes, at, 8) + load_number(
        output.bytes, at + _LAST_OFFSET_DELTA_AT, 4
    )
    timestamp: cython.longlong = load_number(output.bytes, at + _MAX_TIMESTAMP_AT, 8)
    entry: cython.Py_ssize_t
    if timestamp > output.max_timestamp:
        output.max_timestamp = timestamp
        output.max_timestamp_offset = last_offset
    if output._since_entry > output._interval:
        entry = output._entry_count * _ENTRY_NUMBERS
        output._entries[entry] = last_offset
        output._entries[entry + 1] = output.position + at
        output._entries[entry + 2] = output.max_timestamp
        output._entries[entry + 3] = output.max_timestamp_offset
        output._entry_count += 1
        output._since_entry = 0
    output._since_entry += size
    output.used = at + size
