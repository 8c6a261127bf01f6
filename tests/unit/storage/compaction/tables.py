"""What tests of compaction share: keyed batches, compacting a log, its records as a table."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from headrace.protocol.batch import read_header
from headrace.protocol.compression import Compression
from headrace.protocol.markers import Marker, encode_marker
from headrace.protocol.records import decode_rows, encode_batch
from headrace.storage.compaction.compaction import (
    CompactionLimits,
    LogCompaction,
    SegmentReplacement,
    plan_for,
)
from headrace.storage.log import Log
from tests.unit.storage.logs import NOW_MS

SECRET = bytes(range(16))
LIMITS = CompactionLimits(table_bytes=1 << 16, load_factor=0.75, buffer_bytes=1 << 12)

# A record to write: its key, and its value or None for a tombstone.
Pair = tuple[bytes | None, bytes | None]


class Found(NamedTuple):
    """A record that was read from a log."""

    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int


def keyed_batch(
    pairs: Sequence[Pair],
    *,
    producer: tuple[int, int, int] = (-1, -1, -1),
    transactional: bool = False,
    compression: int = Compression.NONE,
    timestamp: int = NOW_MS,
) -> bytearray:
    """A batch of keyed records; `producer` is id, epoch and first sequence."""
    producer_id, producer_epoch, base_sequence = producer
    records = [(timestamp + index, key, value, ()) for index, (key, value) in enumerate(pairs)]
    return bytearray(
        encode_batch(
            records,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            transactional=transactional,
            compression=compression,
        )
    )


def put(log: Log, *pairs: Pair, now_ms: int = NOW_MS, **options: object) -> int:
    """Append a batch of keyed records; its base offset."""
    data = keyed_batch(pairs, **options)  # type: ignore[arg-type]
    return log.append(data, [read_header(data)], 0, now_ms).base_offset


def end_transaction(log: Log, producer_id: int, epoch: int, *, committed: bool) -> int:
    """Append a marker; its offset."""
    data = encode_marker(Marker(producer_id, epoch, 0, committed), NOW_MS)
    return log.append(data, [read_header(data)], 0, NOW_MS).base_offset


def begin_compaction(
    log: Log, now_ms: int = NOW_MS, limits: CompactionLimits = LIMITS
) -> LogCompaction:
    """A compaction of everything that may be compacted."""
    log.flush()
    return LogCompaction(log, plan_for(log, log.log_end_offset, now_ms), limits, SECRET, now_ms)


def compact(log: Log, now_ms: int = NOW_MS, limits: CompactionLimits = LIMITS) -> LogCompaction:
    """Compact a log whose records are all committed, as a broker does."""
    compaction = begin_compaction(log, now_ms, limits)
    for step in compaction.steps():
        if isinstance(step, SegmentReplacement):
            assert compaction.replace(step, now_ms)
            compaction.sync_names()
    compaction.finish()
    return compaction


def compact_all(log: Log, now_ms: int = NOW_MS, limits: CompactionLimits = LIMITS) -> None:
    """Close the active segment and compact what there is."""
    log.roll(now_ms)
    compact(log, now_ms, limits)


def records(log: Log) -> list[Found]:
    """Every record in the files of a log that is not a marker, aborted ones among them."""
    found = []
    for segment in log.segments:
        for header, buffer, _ in segment.batches(0, segment.size):
            if not header.is_control:
                for row in decode_rows(buffer, header):
                    found.append(Found(row.offset, row.key, row.value, row.timestamp))
    return found


def table_of(found: Iterable[Found]) -> dict[bytes, bytes]:
    """What a reader of the whole log makes of it."""
    table: dict[bytes, bytes] = {}
    for record in found:
        assert record.key is not None
        if record.value is None:
            table.pop(record.key, None)
        else:
            table[record.key] = record.value
    return table
