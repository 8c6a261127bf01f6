"""What follows a batch's header: its records, compressed or not, and the batch made of both."""

from struct import Struct

from headrace.errors import CorruptBatch
from headrace.protocol.batch import (
    CODEC_BITS,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    BatchHeader,
    byte_view,
    renew_checksum,
)
from headrace.protocol.compression import compress, decompress
from headrace.types import Buffer

# What a batch may expand to where the caller sets no bound of its own.
EXPANDED_BYTES_MAX = 128 * 1024 * 1024

_HEADER = Struct(">qiibIhiqqqhii")


def record_bytes(
    buffer: Buffer,
    header: BatchHeader,
    max_bytes: int = EXPANDED_BYTES_MAX,
    scratch: memoryview | None = None,
) -> Buffer:
    """A batch's records as one uncompressed buffer, of at most `max_bytes`.

    It may lie in the `scratch` of a caller that has many to read: see `decompress`.
    """
    view = byte_view(buffer)
    end = header.position + header.size
    if end > len(view):
        raise CorruptBatch(f"batch of {header.size} bytes is cut off")
    compressed = view[header.position + HEADER_SIZE : end]
    # An empty batch, which compaction leaves behind, holds no compressed nothing either.
    if not compressed:
        return compressed
    return decompress(header.compression, compressed, max_bytes, scratch)


def seal(
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
    """Write the header, with length and CRC, into the 61 bytes left for it before the records."""
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
    """The same batch under another codec, with length and CRC renewed."""
    batch = bytearray(HEADER_SIZE)
    batch += compress(compression, record_bytes(buffer, header, max_bytes), level)
    seal(
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
