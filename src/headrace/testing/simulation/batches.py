"""Batches of a log, and their fields that are compared between replicas."""

import zlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from headrace.errors import CorruptBatch, KafkaError
from headrace.protocol.batch import LOG_OVERHEAD, scan_headers
from headrace.protocol.records import decode_rows
from headrace.storage.log import Log

_READ_BYTES = 1 << 24
_TRANSACTIONAL, _CONTROL = 0x10, 0x20
_COMPACTED = ("__consumer_offsets", "__transaction_state")
_HEADER_BYTES = 61


class ComparedBatch(NamedTuple):
    """The fields of a batch that are compared."""

    base_offset: int
    last_offset: int
    leader_epoch: int
    producer_id: int
    is_transactional: bool
    is_control: bool
    record_count: int
    data: bytes


def batches(log: Log, start: int, end: int) -> Iterator[ComparedBatch]:
    """The batches between two offsets, as far as the log can be read."""
    offset = start
    while offset < end:
        try:
            data = bytes(log.read(offset, _READ_BYTES, end, at_least_one=True).records)
        except KafkaError:
            return
        before = offset
        for batch in batches_in(data):
            offset = batch.last_offset + 1
            yield batch
        if offset == before:
            return


def batches_in(data: bytes) -> Iterator[ComparedBatch]:
    """The whole batches in some bytes."""
    position = 0
    while position + _HEADER_BYTES <= len(data):
        base = int.from_bytes(data[position : position + 8], "big")
        size = LOG_OVERHEAD + int.from_bytes(data[position + 8 : position + 12], "big")
        batch = data[position : position + size]
        if len(batch) < size or size < _HEADER_BYTES:
            return
        # The fields of a batch's header are at fixed positions.
        attributes = int.from_bytes(batch[21:23], "big")
        yield ComparedBatch(
            base,
            base + int.from_bytes(batch[23:27], "big"),
            int.from_bytes(batch[12:16], "big", signed=True),
            int.from_bytes(batch[43:51], "big", signed=True),
            bool(attributes & _TRANSACTIONAL),
            bool(attributes & _CONTROL),
            int.from_bytes(batch[57:61], "big"),
            batch,
        )
        position += size


def units(topic: str, found: Iterable[ComparedBatch]) -> Iterator[tuple[int, int]]:
    """The offset and checksum of every batch, or for compacted topics of every record."""
    for batch in found:
        if not is_compacted(topic):
            yield batch.base_offset, zlib.crc32(batch.data)
            continue
        try:
            rows = [
                row
                for header in scan_headers(batch.data)
                for row in decode_rows(batch.data, header)
            ]
        except CorruptBatch:
            yield batch.base_offset, zlib.crc32(batch.data)
            continue
        for row in rows:
            yield row.offset, zlib.crc32(b"%r %r" % (row.key, row.value))


def is_compacted(topic: str) -> bool:
    """Whether a topic is compacted."""
    return topic in _COMPACTED
