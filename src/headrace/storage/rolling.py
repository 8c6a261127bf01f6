"""When a segment is full or old enough to be closed: `segment.bytes`, `segment.ms`, its index."""

from zlib import crc32

from headrace.config import TopicConfig
from headrace.protocol.records import BatchHeader
from headrace.storage.segment import RELATIVE_OFFSET_MAX, Segment
from headrace.types import TopicPartition


class RollPolicy:
    """The limits of one active segment, under one configuration."""

    __slots__ = ("_age_ms_max", "_bytes_max")

    def __init__(self, name: TopicPartition, base_offset: int, config: TopicConfig) -> None:
        self._bytes_max = config.segment_bytes
        # By name and not at random, so that a run can be replayed; the logs differ all the same.
        jitter_ms = crc32(f"{name}-{base_offset}".encode()) % (config.segment_jitter_ms + 1)
        segment_ms = config.segment_ms
        if "compact" in config.cleanup_policy:
            # Only closed segments are compacted.
            segment_ms = min(segment_ms, config.max_compaction_lag_ms)
        self._age_ms_max = segment_ms - min(jitter_ms, segment_ms)

    def must_roll(self, segment: Segment, size: int, last: BatchHeader, now_ms: int) -> bool:
        """Whether `segment` has to be closed before `size` bytes that end with `last` go in."""
        if not segment.size:
            return False
        if (
            segment.size + size > self._bytes_max
            or last.last_offset - segment.base_offset > RELATIVE_OFFSET_MAX
            or segment.is_index_full
        ):
            return True
        # By the records' own clock if they have one: replaying old data makes the same segments.
        first = segment.first_timestamp()
        age_ms = last.max_timestamp - first if first >= 0 else now_ms - segment.created_ms
        return age_ms > self._age_ms_max
