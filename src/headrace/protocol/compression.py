"""The compression codecs of record batches, and access to the compressed records of a batch.

Rule: on bad input `decompress` raises `CorruptBatch` and nothing else, and it uses no memory beyond
`max_bytes`.
"""

import zlib
from enum import IntEnum
from mmap import mmap
from struct import Struct
from types import ModuleType

import cramjam

from headrace.errors import CorruptBatch, EncryptedRecords
from headrace.protocol.batch import (
    CODEC_BITS,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    BatchHeader,
    byte_view,
    renew_checksum,
)
from headrace.types import Buffer

_GZIP_WINDOW = 31  # 15 bits of window, +16 for a gzip header and trailer
_GZIP_LEVEL = 6
_LZ4_LEVEL = 1
_ZSTD_LEVEL = 3

# snappy-java's stream: this magic, a version and the oldest version able to read it, then
# [int32 size][raw snappy] blocks.
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + b"\x00\x00\x00\x01\x00\x00\x00\x01"
_XERIAL_BLOCK_BYTES = 32 * 1024

# An LZ4 frame: the magic, version 1 with independent blocks of at most 64 KB and without checksums
# (the batch has a CRC), and a byte of the header's hash; then [uint32 size][block] and a 0.
_LZ4_HEADER = b"\x04\x22\x4d\x18\x60\x40\x82"
_LZ4_BLOCK_BYTES = 64 * 1024
_LZ4_STORED = 1 << 31  # in a block's size: it is not compressed
_LZ4_END = bytes(4)

# Three bytes of raw snappy expand to at most 64. A larger size is refused before memory is
# allocated.
_SNAPPY_RATIO_MAX = 22

# Most batches expand less than this; others are decompressed a second time, into `max_bytes`.
_USUAL_RATIO_MAX = 8


class Compression(IntEnum):
    """A compression codec, by its number in the attributes of a batch."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


def compress(codec: int, data: Buffer, level: int | None = None) -> Buffer:
    """Compress `data`; `level` None is the codec's default, and snappy has no levels."""
    match codec:
        case Compression.NONE:
            return data
        case Compression.GZIP:
            return zlib.compress(data, _GZIP_LEVEL if level is None else level, _GZIP_WINDOW)
        case Compression.SNAPPY:
            return _compress_xerial(memoryview(data))
        case Compression.LZ4:
            if level is None or level == _LZ4_LEVEL:
                return _compress_lz4(memoryview(data))
            # This holds the GIL, unlike `_compress_lz4`, which has no levels. Linked blocks, the
            # default, are refused by the Java client.
            compressor = cramjam.lz4.Compressor(
                level=level, content_checksum=False, block_linked=False
            )
            compressor.compress(bytes(data))  # it takes no other buffer
            return memoryview(compressor.finish())
        case Compression.ZSTD:
            return memoryview(
                cramjam.zstd.compress(data, level=_ZSTD_LEVEL if level is None else level)
            )
    raise ValueError(f"no compression codec has the number {codec}")


def decompress(
    codec: int, data: Buffer, max_bytes: int, scratch: memoryview | None = None
) -> Buffer:
    """The inverse of `compress`; the result has at most `max_bytes`.

    A caller with many batches gives the same `scratch` every time: a result that fits may be put
    there, and is valid until the next call. That saves allocating and clearing memory.
    """
    try:
        match codec:
            case Compression.NONE:
                if len(data) > max_bytes:
                    raise _too_large(max_bytes)
                return data
            case Compression.GZIP:
                return _decompress_gzip(data, max_bytes)
            case Compression.SNAPPY:
                return _decompress_snappy(memoryview(data), max_bytes)
            case Compression.LZ4:
                return _decompress_frame(cramjam.lz4, data, max_bytes, scratch)
            case Compression.ZSTD:
                return _decompress_frame(cramjam.zstd, data, max_bytes, scratch)
    except (zlib.error, cramjam.DecompressionError) as error:
        name = Compression(codec).name.lower()
        # cramjam distinguishes damage from a full output only by its text, so both are named.
        raise CorruptBatch(
            f"{name} data is damaged, or expands to more than {max_bytes} bytes: {error}"
        ) from None
    raise CorruptBatch(f"no compression codec has the number {codec}")


def _too_large(max_bytes: int) -> CorruptBatch:
    return CorruptBatch(f"records expand to more than {max_bytes} bytes")


def _decompress_gzip(data: Buffer, max_bytes: int) -> bytes:
    inflater = zlib.decompressobj(_GZIP_WINDOW)
    result = inflater.decompress(data, max_bytes + 1)
    if len(result) > max_bytes:
        raise _too_large(max_bytes)
    if not inflater.eof:
        raise CorruptBatch("gzip data ends early")
    # Unlike Kafka: a single gzip member only. No client writes more, and each of thousands of tiny
    # members would cost a copy of the rest.
    if inflater.unused_data:
        raise CorruptBatch("gzip data is followed by something else")
    return result


def _compress_lz4(data: memoryview) -> bytes:
    parts: list[Buffer] = [_LZ4_HEADER]
    for start in range(0, len(data), _LZ4_BLOCK_BYTES):
        block = data[start : start + _LZ4_BLOCK_BYTES]
        smaller = memoryview(cramjam.lz4.compress_block(block, store_size=False))
        if len(smaller) < len(block):
            parts += (len(smaller).to_bytes(4, "little"), smaller)
        else:
            parts += ((len(block) | _LZ4_STORED).to_bytes(4, "little"), block)
    parts.append(_LZ4_END)
    return b"".join(parts)


def _compress_xerial(data: memoryview) -> bytes:
    parts: list[Buffer] = [_XERIAL_HEADER]
    for start in range(0, len(data), _XERIAL_BLOCK_BYTES):
        block = memoryview(cramjam.snappy.compress_raw(data[start : start + _XERIAL_BLOCK_BYTES]))
        parts.append(len(block).to_bytes(4, "big"))
        parts.append(block)
    return b"".join(parts)


def _decompress_snappy(data: memoryview, max_bytes: int) -> Buffer:
    if data[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:
        return _decompress_snappy_block(data, max_bytes)
    parts: list[Buffer] = []
    room = max_bytes
    position = len(_XERIAL_HEADER)
    while position < len(data):
        start = position + 4
        size = int.from_bytes(data[position:start], "big")
        position = start + size
        if start > len(data) or position > len(data):
            raise CorruptBatch("snappy data ends early")
        part = _decompress_snappy_block(data[start:position], room)
        room -= len(part)
        parts.append(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _decompress_snappy_block(block: memoryview, max_bytes: int) -> memoryview:
    if not block:
        raise CorruptBatch("snappy block is empty")
    size = cramjam.snappy.decompress_raw_len(block)
    if size > max_bytes:
        raise _too_large(max_bytes)
    if size > len(block) * _SNAPPY_RATIO_MAX:
        raise CorruptBatch(f"snappy block of {len(block)} bytes claims to hold {size}")
    return memoryview(cramjam.snappy.decompress_raw(block))


def _decompress_frame(
    codec: ModuleType, data: Buffer, max_bytes: int, scratch: memoryview | None
) -> memoryview:
    if scratch is None:
        output = memoryview(bytearray(min(max_bytes, len(data) * _USUAL_RATIO_MAX)))
    else:
        output = scratch[:max_bytes]
    try:
        return output[: codec.decompress_into(data, output)]
    except cramjam.DecompressionError:
        if len(output) == max_bytes:
            raise
    # Either damaged or very compressible. Pages of an anonymous map take memory only once written
    # to, so it costs nothing to reserve `max_bytes`.
    bounded = mmap(-1, max_bytes)
    return memoryview(bounded)[: codec.decompress_into(data, bounded)]


# The default limit on the size of a batch's decompressed records.
EXPANDED_BYTES_MAX = 128 * 1024 * 1024

_HEADER = Struct(">qiibIhiqqqhii")


def record_bytes(
    buffer: Buffer,
    header: BatchHeader,
    max_bytes: int = EXPANDED_BYTES_MAX,
    scratch: memoryview | None = None,
) -> Buffer:
    """The decompressed records of a batch, of at most `max_bytes`.

    They may be in the caller's `scratch`: see `decompress`.
    """
    view = byte_view(buffer)
    end = header.position + header.size
    if end > len(view):
        raise CorruptBatch(f"batch of {header.size} bytes is cut off")
    if header.is_encrypted:
        raise EncryptedRecords(
            f"the records of offsets {header.base_offset} to {header.last_offset} are encrypted"
        )
    compressed = view[header.position + HEADER_SIZE : end]
    # A batch that compaction has emptied has no compressed data at all.
    if not compressed:
        return compressed
    return decompress(header.compression, compressed, max_bytes, scratch)


def write_header(
    batch: bytearray,
    *,
    base_offset: int,
    leader_epoch: int,
    attributes: int,
    last_offset_delta: int,
    base_timestamp: int,
    max_timestamp: int,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    record_count: int,
) -> None:
    """Write the header of a batch, with length and CRC, into the 61 bytes before its records."""
    _HEADER.pack_into(
        batch,
        0,
        base_offset,
        len(batch) - LOG_OVERHEAD,
        leader_epoch,
        MAGIC,
        0,
        attributes,
        last_offset_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        record_count,
    )
    renew_checksum(batch)


def recompress(
    buffer: Buffer,
    header: BatchHeader,
    compression: int,
    max_bytes: int = EXPANDED_BYTES_MAX,
    level: int | None = None,
) -> bytearray:
    """A copy of a batch under another codec, with new length and CRC."""
    batch = bytearray(HEADER_SIZE)
    batch += compress(compression, record_bytes(buffer, header, max_bytes), level)
    write_header(
        batch,
        base_offset=header.base_offset,
        leader_epoch=header.leader_epoch,
        attributes=header.attributes & ~CODEC_BITS | compression,
        last_offset_delta=header.last_offset_delta,
        base_timestamp=header.base_timestamp,
        max_timestamp=header.max_timestamp,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        record_count=header.record_count,
    )
    return batch
