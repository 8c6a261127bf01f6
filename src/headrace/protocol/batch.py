# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""Record batch v2 headers: decode them, validate batches, write header fields in place.

Rule: no record is decoded here, so that a broker's cost is per batch. Every byte is distrusted:
an impossible header is a `CorruptBatch`, a batch that Kafka would refuse a `RefusedBatch`.
"""

from __future__ import annotations

from struct import Struct

from fastcrc import crc32

try:
    import cython
except ImportError:
    from headrace.protocol import _cython_shim as cython

from headrace.errors import CorruptBatch, ErrorCode
from headrace.types import Buffer

if cython.compiled:
    from cython.cimports.cpython.buffer import (
        PyBUF_SIMPLE,
        PyBUF_WRITABLE,
        PyBuffer_Release,
        PyObject_GetBuffer,
    )


def crc32c(buffer: Buffer, value: int = 0) -> int:
    """The CRC32C of `buffer`, continued from the checksum `value` of the bytes before it."""
    return crc32.iscsi(buffer, value)


COMPILED = cython.compiled

# Typed variables are C numbers in compiled code, invisible to Python: public copies follow below.
_HEADER_SIZE = cython.declare(cython.longlong, 61)
_LOG_OVERHEAD = cython.declare(cython.longlong, 12)
_LENGTH_MIN = cython.declare(cython.longlong, 49)
_OFFSET_MAX = cython.declare(cython.longlong, 0x7FFFFFFFFFFFFFFF)
_SEQUENCE_MAX = cython.declare(cython.longlong, 0x7FFFFFFF)
_MAGIC = cython.declare(cython.longlong, 2)
_NONE = cython.declare(cython.longlong, -1)

_CODEC_BITS = cython.declare(cython.longlong, 0x07)
_CODEC_MAX = cython.declare(cython.longlong, 4)
_LOG_APPEND_TIME = cython.declare(cython.longlong, 0x08)
_TRANSACTIONAL = cython.declare(cython.longlong, 0x10)
_CONTROL = cython.declare(cython.longlong, 0x20)
_DELETE_HORIZON = cython.declare(cython.longlong, 0x40)
# Unlike Kafka: the records are encrypted, as they lie on the disks of brokers alone.
_ENCRYPTED = cython.declare(cython.longlong, 0x4000)
_KNOWN_BITS = cython.declare(cython.longlong, 0x7F)

_LENGTH_AT = cython.declare(cython.Py_ssize_t, 8)
_LEADER_EPOCH_AT = cython.declare(cython.Py_ssize_t, 12)
_MAGIC_AT = cython.declare(cython.Py_ssize_t, 16)
_CRC_AT = cython.declare(cython.Py_ssize_t, 17)
_ATTRIBUTES_AT = cython.declare(cython.Py_ssize_t, 21)  # the CRC covers everything from here on
_LAST_OFFSET_DELTA_AT = cython.declare(cython.Py_ssize_t, 23)
_BASE_TIMESTAMP_AT = cython.declare(cython.Py_ssize_t, 27)
_MAX_TIMESTAMP_AT = cython.declare(cython.Py_ssize_t, 35)
_PRODUCER_AT = cython.declare(cython.Py_ssize_t, 43)
_COUNT_AT = cython.declare(cython.Py_ssize_t, 57)

HEADER_SIZE = _HEADER_SIZE
LOG_OVERHEAD = _LOG_OVERHEAD  # the base offset and the length, which the length does not count
NO_PRODUCER_ID = _NONE
NO_TIMESTAMP = _NONE
MAGIC = _MAGIC
CODEC_BITS = _CODEC_BITS
LOG_APPEND_TIME_BIT = _LOG_APPEND_TIME
TRANSACTIONAL_BIT = _TRANSACTIONAL
CONTROL_BIT = _CONTROL
DELETE_HORIZON_BIT = _DELETE_HORIZON
ENCRYPTED_BIT = _ENCRYPTED
# Positions of the header's fields, for compiled code that rewrites batches.
LENGTH_AT = _LENGTH_AT
MAGIC_AT = _MAGIC_AT
CRC_AT = _CRC_AT
ATTRIBUTES_AT = _ATTRIBUTES_AT
LAST_OFFSET_DELTA_AT = _LAST_OFFSET_DELTA_AT
BASE_TIMESTAMP_AT = _BASE_TIMESTAMP_AT
MAX_TIMESTAMP_AT = _MAX_TIMESTAMP_AT
COUNT_AT = _COUNT_AT

_HEADER = Struct(">qiibIhiqqqhii")
_OFFSET = Struct(">q")
_EPOCH = Struct(">i")
_CRC = Struct(">I")
_ATTRIBUTES = Struct(">h")
_PRODUCER = Struct(">qhi")


class RefusedBatch(CorruptBatch):
    """A complete batch that Kafka refuses; `code` is the error code of its response."""

    def __init__(self, code: ErrorCode, detail: str) -> None:
        super().__init__(detail)
        self.code = code


@cython.final
@cython.cclass
class _Memory:
    """The bytes of a buffer, which cannot move or be resized during the life of this object."""

    data: cython.p_uchar
    size: cython.Py_ssize_t
    _export: Py_buffer  # noqa: F821 - a type Cython builds in
    _exported: cython.bint

    def __init__(self, buffer: object, writable: cython.bint = False) -> None:
        if cython.compiled:
            PyObject_GetBuffer(
                buffer, cython.address(self._export), PyBUF_WRITABLE if writable else PyBUF_SIMPLE
            )
            self._exported = True
            self.data = cython.cast(cython.p_uchar, self._export.buf)
            self.size = self._export.len
        else:
            self.data = byte_view(buffer)
            self.size = len(self.data)
            if writable and self.data.readonly:
                raise BufferError("a batch can only be stamped in a writable buffer")

    def __dealloc__(self):
        if self._exported:
            PyBuffer_Release(cython.address(self._export))


@cython.final
@cython.freelist(64)
@cython.cclass
class BatchHeader:
    """The header of a batch, the 61 bytes before its records, as numbers.

    Invariant: offsets and counts are not negative and `next_offset` fits in 63 bits. `assign` and
    `stamp_log_append_time` change the header together with the bytes it was read from.
    """

    position = cython.declare(cython.Py_ssize_t, visibility="readonly")
    base_offset = cython.declare(cython.longlong, visibility="readonly")
    batch_length = cython.declare(cython.longlong, visibility="readonly")
    leader_epoch = cython.declare(cython.longlong, visibility="readonly")
    magic = cython.declare(cython.longlong, visibility="readonly")
    crc = cython.declare(cython.longlong, visibility="readonly")
    attributes = cython.declare(cython.longlong, visibility="readonly")
    last_offset_delta = cython.declare(cython.longlong, visibility="readonly")
    base_timestamp = cython.declare(cython.longlong, visibility="readonly")
    max_timestamp = cython.declare(cython.longlong, visibility="readonly")
    producer_id = cython.declare(cython.longlong, visibility="readonly")
    producer_epoch = cython.declare(cython.longlong, visibility="readonly")
    base_sequence = cython.declare(cython.longlong, visibility="readonly")
    record_count = cython.declare(cython.longlong, visibility="readonly")

    @property
    def size(self) -> int:
        """The bytes of the whole batch."""
        return self.batch_length + _LOG_OVERHEAD

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        """The sequence number of the last record, wrapped to 0 after 2^31 - 1; -1 if none."""
        if self.base_sequence < 0:
            return -1
        return (self.base_sequence + self.last_offset_delta) & _SEQUENCE_MAX

    @property
    def compression(self) -> int:
        return self.attributes & _CODEC_BITS

    @property
    def is_log_append_time(self) -> bool:
        return self.attributes & _LOG_APPEND_TIME != 0

    @property
    def is_transactional(self) -> bool:
        return self.attributes & _TRANSACTIONAL != 0

    @property
    def is_control(self) -> bool:
        return self.attributes & _CONTROL != 0

    @property
    def has_delete_horizon(self) -> bool:
        """Whether `base_timestamp` is the delete horizon of tombstones, by compaction (KIP-534)."""
        return self.attributes & _DELETE_HORIZON != 0

    @property
    def is_encrypted(self) -> bool:
        """Whether the records are encrypted: see `security.batch_encryption`."""
        return self.attributes & _ENCRYPTED != 0

    @property
    def has_producer(self) -> bool:
        return self.producer_id != _NONE

    @property
    def lacks_max_timestamp(self) -> bool:
        """Whether the producer left out the greatest timestamp, as some clients do."""
        return (
            self.max_timestamp == _NONE
            and self.base_timestamp > _NONE
            and self.attributes & (_LOG_APPEND_TIME | _DELETE_HORIZON) == 0
        )

    def __repr__(self) -> str:
        return (
            f"BatchHeader(offsets=[{self.base_offset}, {self.next_offset}), size={self.size}, "
            f"records={self.record_count}, leader_epoch={self.leader_epoch}, "
            f"attributes={self.attributes:#x}, producer=({self.producer_id}, "
            f"{self.producer_epoch}, {self.base_sequence}), position={self.position})"
        )


def byte_view(buffer) -> memoryview:
    """A flat view of a buffer as unsigned bytes; pyarrow's buffers, for example, are signed."""
    view = memoryview(buffer)
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")


@cython.cfunc
@cython.inline
def _load(
    data: cython.p_const_uchar, position: cython.Py_ssize_t, size: cython.int
) -> cython.ulonglong:
    value: cython.ulonglong = 0
    index: cython.int
    for index in range(size):
        value = (value << 8) | data[position + index]
    return value


@cython.cfunc
@cython.inline
def _load_int(data: cython.p_const_uchar, position: cython.Py_ssize_t) -> cython.longlong:
    return cython.cast(cython.int, cython.cast(cython.uint, _load(data, position, 4)))


@cython.cfunc
@cython.inline
def _load_short(data: cython.p_const_uchar, position: cython.Py_ssize_t) -> cython.longlong:
    return cython.cast(cython.short, cython.cast(cython.ushort, _load(data, position, 2)))


@cython.cfunc
def _store(
    data: cython.p_uchar,
    position: cython.Py_ssize_t,
    value: cython.ulonglong,
    size: cython.int,
) -> cython.void:
    index: cython.int
    for index in range(size):
        data[position + index] = cython.cast(
            cython.uchar, (value >> (8 * (size - 1 - index))) & 255
        )


@cython.cfunc
def _read(memory: _Memory, position: cython.Py_ssize_t) -> BatchHeader:
    # The magic byte has the same position in every format, so an old message set is recognised.
    if 0 <= position < memory.size - _MAGIC_AT and memory.data[position + _MAGIC_AT] != _MAGIC:
        raise RefusedBatch(
            ErrorCode.INVALID_RECORD,
            f"message format {memory.data[position + _MAGIC_AT]} is not {_MAGIC}, as it must be",
        )
    if position < 0 or memory.size - position < _HEADER_SIZE:
        raise CorruptBatch(f"{memory.size - position} bytes are too few for a batch header")
    header: BatchHeader = BatchHeader.__new__(BatchHeader)
    header.position = position
    if cython.compiled:
        header.base_offset = cython.cast(cython.longlong, _load(memory.data, position, 8))
        header.batch_length = _load_int(memory.data, position + _LENGTH_AT)
        header.leader_epoch = _load_int(memory.data, position + _LEADER_EPOCH_AT)
        header.magic = memory.data[position + _MAGIC_AT]
        header.crc = cython.cast(cython.longlong, _load(memory.data, position + _CRC_AT, 4))
        header.attributes = _load_short(memory.data, position + _ATTRIBUTES_AT)
        header.last_offset_delta = _load_int(memory.data, position + _LAST_OFFSET_DELTA_AT)
        header.base_timestamp = cython.cast(
            cython.longlong, _load(memory.data, position + _BASE_TIMESTAMP_AT, 8)
        )
        header.max_timestamp = cython.cast(
            cython.longlong, _load(memory.data, position + _MAX_TIMESTAMP_AT, 8)
        )
        header.producer_id = cython.cast(
            cython.longlong, _load(memory.data, position + _PRODUCER_AT, 8)
        )
        header.producer_epoch = _load_short(memory.data, position + _PRODUCER_AT + 8)
        header.base_sequence = _load_int(memory.data, position + _PRODUCER_AT + 10)
        header.record_count = _load_int(memory.data, position + _COUNT_AT)
    else:
        (
            header.base_offset,
            header.batch_length,
            header.leader_epoch,
            header.magic,
            header.crc,
            header.attributes,
            header.last_offset_delta,
            header.base_timestamp,
            header.max_timestamp,
            header.producer_id,
            header.producer_epoch,
            header.base_sequence,
            header.record_count,
        ) = _HEADER.unpack_from(memory.data, position)
    if header.batch_length < _LENGTH_MIN:
        raise CorruptBatch(f"batch length {header.batch_length} is below {_LENGTH_MIN}")
    if header.record_count < 0 or header.last_offset_delta < 0:
        raise CorruptBatch(
            f"batch claims {header.record_count} records "
            f"and a last offset delta of {header.last_offset_delta}"
        )
    if header.base_offset < 0 or header.base_offset >= _OFFSET_MAX - header.last_offset_delta:
        raise CorruptBatch(f"base offset {header.base_offset} is out of range")
    return header


def read_header(buffer, position: cython.Py_ssize_t = 0) -> BatchHeader:
    """Decode the header of the batch at `position`, without checking its records and its CRC."""
    return _read(_Memory(buffer), position)


def scan_headers(buffer, start: cython.Py_ssize_t = 0, end=None) -> list:
    """The headers of the whole batches in [start, end); a partial batch ends the list."""
    memory: _Memory = _Memory(buffer)
    limit: cython.Py_ssize_t = memory.size if end is None else min(memory.size, end)
    position: cython.Py_ssize_t = start
    header: BatchHeader
    headers: list = []
    while limit - position >= _HEADER_SIZE:
        header = _read(memory, position)
        if header.batch_length + _LOG_OVERHEAD > limit - position:
            break
        headers.append(header)
        position += header.batch_length + _LOG_OVERHEAD
    return headers


def first_encrypted(buffer) -> int:
    """The position of the first whole batch whose records are encrypted, or -1."""
    memory: _Memory = _Memory(buffer)
    position: cython.Py_ssize_t = 0
    size: cython.longlong
    while memory.size - position >= _HEADER_SIZE:
        if cython.compiled:
            size = _load_int(memory.data, position + _LENGTH_AT) + _LOG_OVERHEAD
        else:
            size = _EPOCH.unpack_from(memory.data, position + _LENGTH_AT)[0] + _LOG_OVERHEAD
        if size < _HEADER_SIZE or size > memory.size - position:
            break
        if memory.data[position + _ATTRIBUTES_AT] & 0x40:  # The high byte of the attributes.
            return position
        position += size
    return -1


def end_offset(buffer) -> int:
    """The offset after the last whole batch, by the headers alone; -1 if there is none."""
    memory: _Memory = _Memory(buffer)
    position: cython.Py_ssize_t = 0
    last: cython.Py_ssize_t = -1
    size: cython.longlong
    while memory.size - position >= _HEADER_SIZE:
        if cython.compiled:
            size = _load_int(memory.data, position + _LENGTH_AT) + _LOG_OVERHEAD
        else:
            size = _EPOCH.unpack_from(memory.data, position + _LENGTH_AT)[0] + _LOG_OVERHEAD
        if size < _HEADER_SIZE or size > memory.size - position:
            break
        last = position
        position += size
    if last < 0:
        return -1
    base_offset: int = _OFFSET.unpack_from(buffer, last)[0]
    delta: int = _EPOCH.unpack_from(buffer, last + _LAST_OFFSET_DELTA_AT)[0]
    return base_offset + delta + 1


def batch_size(buffer) -> int:
    """The size of a batch by its length field, without any check."""
    size: int = _EPOCH.unpack_from(buffer, _LENGTH_AT)[0] + _LOG_OVERHEAD
    return size


def has_magic(buffer, position: cython.Py_ssize_t) -> bool:
    """Whether a batch of this format may begin at `position`, by its magic byte alone."""
    magic: int = buffer[position + _MAGIC_AT]
    return magic == _MAGIC


def has_sound_rest(buffer, position: cython.Py_ssize_t) -> bool:
    """Whether all bytes from `position` on are one batch by its CRC, whatever its length field."""
    view = byte_view(buffer)
    if len(view) - position < _HEADER_SIZE:
        return False
    crc: int = _CRC.unpack_from(view, position + _CRC_AT)[0]
    return crc32c(view[position + _ATTRIBUTES_AT :]) == crc


def claims_transaction(buffer) -> bool:
    """Whether the transactional bit of a batch that is not validated yet is set."""
    if len(buffer) <= _ATTRIBUTES_AT + 1:
        return False
    bits: int = buffer[_ATTRIBUTES_AT + 1]
    return bits & _TRANSACTIONAL != 0


def claimed_compression(buffer) -> int:
    """The compression codec of a batch that is not validated yet; 0 if it is cut off."""
    if len(buffer) <= _ATTRIBUTES_AT + 1:
        return 0
    bits: int = buffer[_ATTRIBUTES_AT + 1]
    return bits & _CODEC_BITS


def claimed_producer(buffer):
    """The producer id, producer epoch and base sequence of a batch that is not validated yet.

    None if it is cut off before them.
    """
    if len(buffer) < _PRODUCER_AT + 14:
        return None
    return _PRODUCER.unpack_from(buffer, _PRODUCER_AT)


def check_batch(buffer, header: BatchHeader, compacted: cython.bint = False) -> None:
    """Check a batch without decoding its records: the size, the CRC, the counts, the codec.

    Compaction removes records and keeps their batch's offsets, so a batch read back from a log may
    hold fewer records than offsets, even none: `compacted` allows that.
    """
    view = byte_view(buffer)
    if header.batch_length + _LOG_OVERHEAD > len(view) - header.position:
        raise CorruptBatch(
            f"batch of {header.size} bytes is cut off after {len(view) - header.position}"
        )
    _check_crc(view, header)
    _check_counts(header, compacted)


def validate(buffer, batch_bytes_max: cython.longlong = 0x7FFFFFFF) -> list:
    """Check a producer's batches as `check_batch` does and by Kafka's rules for producers.

    Returns their headers. Bytes that are no whole batch are an error here.
    """
    memory: _Memory = _Memory(buffer)
    view = byte_view(buffer)
    position: cython.Py_ssize_t = 0
    size: cython.longlong
    header: BatchHeader
    headers: list = []
    while position < memory.size:
        header = _read(memory, position)
        size = header.batch_length + _LOG_OVERHEAD
        if size > batch_bytes_max:
            raise RefusedBatch(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"batch of {size} bytes is larger than the limit of {batch_bytes_max}",
            )
        if size > memory.size - position:
            raise CorruptBatch(f"batch of {size} bytes is cut off after {memory.size - position}")
        _check_crc(view, header)
        _check_counts(header, False)
        _check_produced(header)
        headers.append(header)
        position += size
    if not headers:
        raise RefusedBatch(ErrorCode.INVALID_RECORD, "there is no record batch")
    return headers


@cython.cfunc
def _check_crc(view, header: BatchHeader):
    start: cython.Py_ssize_t = header.position
    end: cython.Py_ssize_t = start + header.batch_length + _LOG_OVERHEAD
    crc: cython.longlong = crc32c(view[start + _ATTRIBUTES_AT : end])
    if crc != header.crc:
        raise CorruptBatch(f"CRC is {crc:#010x}, the batch says {header.crc:#010x}")


@cython.cfunc
def _check_counts(header: BatchHeader, compacted: cython.bint):
    if header.attributes & _CODEC_BITS > _CODEC_MAX:
        raise RefusedBatch(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            f"no compression codec has the number {header.compression}",
        )
    offsets: cython.longlong = header.last_offset_delta + 1
    if header.record_count == offsets:
        return
    if not compacted or header.record_count > offsets:
        raise RefusedBatch(
            ErrorCode.INVALID_RECORD,
            f"batch has {header.record_count} records for {offsets} offsets",
        )


@cython.cfunc
def _check_produced(header: BatchHeader):
    if header.base_offset != 0:
        raise RefusedBatch(
            ErrorCode.INVALID_RECORD, f"a producer's base offset is 0, not {header.base_offset}"
        )
    if header.attributes & _CONTROL:
        raise RefusedBatch(ErrorCode.INVALID_RECORD, "producers may not write control records")
    if header.producer_id != _NONE and header.base_sequence < 0:
        raise RefusedBatch(
            ErrorCode.INVALID_RECORD,
            f"producer {header.producer_id} sent the sequence number {header.base_sequence}",
        )
    if header.attributes & _ENCRYPTED:
        raise RefusedBatch(
            ErrorCode.INVALID_RECORD,
            "producers may not set the bit of batches encrypted by brokers",
        )
    if header.attributes & _LOG_APPEND_TIME:
        raise RefusedBatch(
            ErrorCode.INVALID_TIMESTAMP, "producers may not set the timestamp type LogAppendTime"
        )
    # The base timestamp is the first record's, so the greatest cannot be before it. If it is left
    # out the broker fills it in, as in Kafka: see `lacks_max_timestamp`.
    if header.max_timestamp < header.base_timestamp and header.max_timestamp != _NONE:
        raise RefusedBatch(
            ErrorCode.INVALID_TIMESTAMP,
            f"max timestamp {header.max_timestamp} is before the base {header.base_timestamp}",
        )


@cython.cfunc
def _writable(buffer, header: BatchHeader) -> _Memory:
    memory: _Memory = _Memory(buffer, True)
    if header.batch_length + _LOG_OVERHEAD > memory.size - header.position:
        raise ValueError(f"{header} is not in a buffer of {memory.size} bytes")
    return memory


def assign(
    buffer, header: BatchHeader, base_offset: cython.longlong, leader_epoch: cython.int
) -> None:
    """Write the base offset and the leader epoch of a batch, which its CRC does not cover."""
    if base_offset < 0 or base_offset >= _OFFSET_MAX - header.last_offset_delta:
        raise ValueError(f"base offset {base_offset} is out of range")
    memory: _Memory = _writable(buffer, header)
    position: cython.Py_ssize_t = header.position
    if cython.compiled:
        _store(memory.data, position, cython.cast(cython.ulonglong, base_offset), 8)
        _store(
            memory.data,
            position + _LEADER_EPOCH_AT,
            cython.cast(cython.ulonglong, leader_epoch),
            4,
        )
    else:
        _OFFSET.pack_into(memory.data, position, base_offset)
        _EPOCH.pack_into(memory.data, position + _LEADER_EPOCH_AT, leader_epoch)
    header.base_offset = base_offset
    header.leader_epoch = leader_epoch


def stamp_log_append_time(buffer, header: BatchHeader, timestamp: cython.longlong) -> None:
    """Set LogAppendTime for all records of a batch, by the type bit and the max timestamp.

    As in Kafka, the base timestamp and the records keep the producer's timestamps.
    """
    _restamp(buffer, header, header.attributes & _KNOWN_BITS | _LOG_APPEND_TIME, timestamp)


def stamp_max_timestamp(buffer, header: BatchHeader, timestamp: cython.longlong) -> None:
    """Write the greatest timestamp of the records, which the producer left out."""
    _restamp(buffer, header, header.attributes, timestamp)


@cython.cfunc
def _restamp(
    buffer, header: BatchHeader, attributes: cython.longlong, max_timestamp: cython.longlong
):
    if header.attributes == attributes and header.max_timestamp == max_timestamp:
        return
    _writable(buffer, header)
    view = byte_view(buffer)
    position: cython.Py_ssize_t = header.position
    _ATTRIBUTES.pack_into(view, position + _ATTRIBUTES_AT, attributes)
    _OFFSET.pack_into(view, position + _MAX_TIMESTAMP_AT, max_timestamp)
    header.attributes = attributes
    header.max_timestamp = max_timestamp
    header.crc = crc32c(view[position + _ATTRIBUTES_AT : position + header.size])
    _CRC.pack_into(view, position + _CRC_AT, header.crc)


def renumber(batch: bytearray, producer_id, producer_epoch, base_sequence) -> None:
    """Write another producer id, producer epoch and base sequence into a batch."""
    _PRODUCER.pack_into(batch, _PRODUCER_AT, producer_id, producer_epoch, base_sequence)
    renew_checksum(batch)


def renew_checksum(batch: bytearray) -> None:
    """Write the CRC of a batch, which covers all bytes after it."""
    with memoryview(batch) as view, view[_ATTRIBUTES_AT:] as covered:
        _CRC.pack_into(batch, _CRC_AT, crc32c(covered))
