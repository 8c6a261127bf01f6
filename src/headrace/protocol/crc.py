"""CRC32C (Castagnoli), the checksum of record batches."""

from fastcrc import crc32

from headrace.types import Buffer


def crc32c(buffer: Buffer, value: int = 0) -> int:
    """The CRC32C of `buffer`, continuing from the checksum `value` of what came before it."""
    return crc32.iscsi(buffer, value)
