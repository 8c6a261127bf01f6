"""The plan of a compaction: the segments to compact, whether it is due, and groups to merge.

Rule: only closed segments, wholly below the last stable offset and on stable storage, are ever
compacted; the active segment, open transactions, and records that a crash could remove are not.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Generic, Protocol, TypeVar

from headrace.config import TopicConfig

# A group of segments is replaced in one step on the owner's thread, which must stay short:
# renaming a file takes some microseconds.
GROUP_SEGMENTS_MAX = 16

_RELATIVE_OFFSET_MAX = 2**31 - 1


class ClosedSegment(Protocol):
    """A closed segment, with the properties that a plan needs."""

    @property
    def base_offset(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def index_bytes(self) -> int: ...
    def age_timestamp(self) -> int: ...
    def first_timestamp(self) -> int: ...


SegmentT = TypeVar("SegmentT", bound=ClosedSegment)


@dataclass(frozen=True, slots=True)
class CompactionPlan(Generic[SegmentT]):
    """The segments to compact, oldest first, of which [dirty_offset, end_offset) is dirty."""

    segments: tuple[SegmentT, ...]
    dirty_offset: int
    end_offset: int
    clean_bytes: int
    dirty_bytes: int
    # Whether a record has waited for compaction longer than max.compaction.lag.ms.
    is_overdue: bool

    @property
    def dirty_ratio(self) -> float:
        """The share of the bytes of the plan that was not compacted before."""
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0

    def is_due(self, config: TopicConfig) -> bool:
        """Whether the log should be compacted now."""
        if not self.dirty_bytes:
            return False
        return self.is_overdue or self.dirty_ratio > config.min_cleanable_dirty_ratio


def plan(
    segments: Sequence[SegmentT],
    config: TopicConfig,
    now_ms: int,
    *,
    clean_offset: int,
    log_start_offset: int,
    last_stable_offset: int,
    recovery_point: int,
) -> CompactionPlan[SegmentT]:
    """The plan for the segments of a log, the last of which is active.

    `clean_offset` is where the last compaction ended; an impossible offset is ignored.
    """
    active_offset = segments[-1].base_offset
    limit = min(active_offset, last_stable_offset, recovery_point)
    dirty_offset = clean_offset
    if not log_start_offset <= clean_offset <= active_offset:
        dirty_offset = log_start_offset
    found: list[SegmentT] = []
    clean_bytes = dirty_bytes = 0
    is_overdue = False
    end_offset = segments[0].base_offset
    for segment, after in pairwise(segments):
        if after.base_offset > limit:
            break
        if after.base_offset > dirty_offset:
            if config.min_compaction_lag_ms and (
                segment.age_timestamp() > now_ms - config.min_compaction_lag_ms
            ):
                break
            dirty_bytes += segment.size
            is_overdue = is_overdue or is_late(segment, config, now_ms)
        else:
            clean_bytes += segment.size
        found.append(segment)
        end_offset = after.base_offset
    return CompactionPlan(
        tuple(found),
        min(dirty_offset, end_offset),
        end_offset,
        clean_bytes,
        dirty_bytes,
        is_overdue,
    )


def is_late(segment: ClosedSegment, config: TopicConfig, now_ms: int) -> bool:
    """Whether the first records of a segment are older than max.compaction.lag.ms."""
    first = segment.first_timestamp()
    if first < 0:
        first = segment.age_timestamp()
    return bool(segment.size) and now_ms - first > config.max_compaction_lag_ms


def groups(
    segments: Sequence[SegmentT], config: TopicConfig, end_offset: int
) -> Iterator[tuple[SegmentT, ...]]:
    """Groups of successive segments that fit into one segment.

    `end_offset` is where the last segment ends. A merged segment is within the limits even if no
    record can be removed.
    """
    group: list[SegmentT] = []
    size = index_bytes = 0
    for number, segment in enumerate(segments, 1):
        end = end_offset if number == len(segments) else segments[number].base_offset
        fits = (
            group
            and len(group) < GROUP_SEGMENTS_MAX
            and size + segment.size <= config.segment_bytes
            and index_bytes + segment.index_bytes <= config.segment_index_bytes
            and end - group[0].base_offset <= _RELATIVE_OFFSET_MAX
        )
        if group and not fits:
            yield tuple(group)
            group = []
            size = index_bytes = 0
        group.append(segment)
        size += segment.size
        index_bytes += segment.index_bytes
    if group:
        yield tuple(group)
