"""Ranges of offsets that a search has to read, by its request and by the expression itself.

Rule: a range may be too large, and is never too small: every record that the expression selects
lies in it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from headrace.client.consumer.arguments import Partitions
from headrace.client.types import OffsetAndTimestamp
from headrace.errors import unknown_partition, unknown_topic
from headrace.search.expressions import (
    Conjunction,
    Disjunction,
    Expression,
    FieldComparison,
    RecordPart,
    Relation,
)
from headrace.types import TopicPartition

_OFFSET_MAX = 2**63 - 1
# The first window of a search for the newest records, per partition; each is twice as large as the
# one before it.
_NEWEST_WINDOW = 5_000


class ScanRange(NamedTuple):
    """The offsets [start, end)."""

    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchRequest:
    """A search through a topic: the expression, where to read, and how much to return.

    `partitions` are all if it is empty. Times are those of records, in milliseconds: a search
    begins at the first record at or after `from_ms`, and ends before the first at or after `to_ms`.
    Offsets by partition count where they are given. `newest_first` reads windows of offsets from
    the end of the log backwards, each of them forwards.
    """

    topic: str
    expression: str = ""
    ignore_case: bool = False
    partitions: tuple[int, ...] = ()
    from_ms: int | None = None
    to_ms: int | None = None
    start_offsets: Mapping[int, int] = field(default_factory=dict)
    end_offsets: Mapping[int, int] = field(default_factory=dict)
    hits_max: int = 100
    newest_first: bool = False


@dataclass(frozen=True, slots=True)
class ScanBounds:
    """What an expression says about where its records are; None: in any partition."""

    partitions: frozenset[int] | None = None
    start_offset: int = 0
    end_offset: int = _OFFSET_MAX
    start_ms: int | None = None

    def within(self, other: "ScanBounds") -> "ScanBounds":
        """The records within both bounds."""
        partitions = self.partitions
        if partitions is None or other.partitions is None:
            partitions = other.partitions if partitions is None else partitions
        else:
            partitions &= other.partitions
        times = [bound for bound in (self.start_ms, other.start_ms) if bound is not None]
        return ScanBounds(
            partitions,
            max(self.start_offset, other.start_offset),
            min(self.end_offset, other.end_offset),
            max(times, default=None),
        )


_UNBOUNDED = ScanBounds()


def scan_bounds(expression: Expression) -> ScanBounds:
    """The bounds that every record selected by an expression lies within.

    Of timestamps only lower bounds count: producers choose timestamps, and so a log may have early
    ones after late ones, but a search by time begins before the first of them.
    """
    match expression:
        case Conjunction(operands):
            bounds = _UNBOUNDED
            for operand in operands:
                bounds = bounds.within(scan_bounds(operand))
            return bounds
        case Disjunction(operands):
            found = [scan_bounds(operand).partitions for operand in operands]
            known = [partitions for partitions in found if partitions is not None]
            is_bounded = bool(operands) and len(known) == len(found)
            return ScanBounds(frozenset().union(*known)) if is_bounded else _UNBOUNDED
        case FieldComparison(reference, relation, int(literal)):
            return _comparison_bounds(reference.part, relation, literal)
    return _UNBOUNDED


def _comparison_bounds(part: RecordPart, relation: Relation, literal: int) -> ScanBounds:
    match part, relation:
        case RecordPart.PARTITION, Relation.EQUAL:
            return ScanBounds(frozenset((literal,)))
        case RecordPart.OFFSET, Relation.EQUAL:
            return ScanBounds(start_offset=literal, end_offset=literal + 1)
        case RecordPart.OFFSET, Relation.GREATER:
            return ScanBounds(start_offset=literal + 1)
        case RecordPart.OFFSET, Relation.GREATER_OR_EQUAL:
            return ScanBounds(start_offset=literal)
        case RecordPart.OFFSET, Relation.LESS:
            return ScanBounds(end_offset=literal)
        case RecordPart.OFFSET, Relation.LESS_OR_EQUAL:
            return ScanBounds(end_offset=literal + 1)
        case RecordPart.TIMESTAMP, Relation.GREATER | Relation.GREATER_OR_EQUAL | Relation.EQUAL:
            return ScanBounds(start_ms=literal)
    return _UNBOUNDED


class OffsetLookup(Protocol):
    """The questions about a topic that a consumer answers."""

    def partitions_for(self, topic: str) -> list[int] | None: ...
    def beginning_offsets(self, *partitions: Partitions) -> dict[TopicPartition, int]: ...
    def end_offsets(self, *partitions: Partitions) -> dict[TopicPartition, int]: ...
    def offsets_for_times(
        self, times: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]: ...


def scan_ranges(
    lookup: OffsetLookup, request: SearchRequest, bounds: ScanBounds
) -> dict[TopicPartition, ScanRange]:
    """The offsets to read in each partition, as the log is now; partitions with none are left out.

    UnknownTopic for a topic, or a partition of the request, that does not exist.
    """
    existing = lookup.partitions_for(request.topic)
    if existing is None:
        raise unknown_topic(request.topic)
    for number in request.partitions:
        if number not in existing:
            raise unknown_partition(request.topic, number, len(existing))
    partitions = [
        TopicPartition(request.topic, number)
        for number in request.partitions or existing
        if bounds.partitions is None or number in bounds.partitions
    ]
    if not partitions:
        return {}
    starts = lookup.beginning_offsets(partitions)
    ends = lookup.end_offsets(partitions)
    begin_ms = [moment for moment in (request.from_ms, bounds.start_ms) if moment is not None]
    first = _offsets_at(lookup, partitions, max(begin_ms, default=None))
    last = _offsets_at(lookup, partitions, request.to_ms)
    ranges = {}
    for tp in partitions:
        number = tp.partition
        start = max(
            starts[tp],
            first.get(tp, 0),
            request.start_offsets.get(number, 0),
            bounds.start_offset,
        )
        end = min(
            ends[tp],
            last.get(tp, _OFFSET_MAX),
            request.end_offsets.get(number, _OFFSET_MAX),
            bounds.end_offset,
        )
        if start < end:
            ranges[tp] = ScanRange(start, end)
    return ranges


def _offsets_at(
    lookup: OffsetLookup, partitions: list[TopicPartition], moment_ms: int | None
) -> dict[TopicPartition, int]:
    """The first offset at or after a time in each partition, or one beyond all offsets."""
    if moment_ms is None:
        return {}
    found = lookup.offsets_for_times(dict.fromkeys(partitions, max(moment_ms, 0)))
    return {
        tp: _OFFSET_MAX if position is None else position.offset for tp, position in found.items()
    }


def scan_windows(
    ranges: Mapping[TopicPartition, ScanRange], *, newest_first: bool
) -> Iterator[dict[TopicPartition, ScanRange]]:
    """The ranges in the order of reading: at once, or in windows that grow from the end on."""
    if not newest_first:
        if ranges:
            yield dict(ranges)
        return
    left = dict(ranges)
    size = _NEWEST_WINDOW
    while left:
        window = {tp: ScanRange(max(start, end - size), end) for tp, (start, end) in left.items()}
        left = {
            tp: ScanRange(start, window[tp].start)
            for tp, (start, _) in left.items()
            if start < window[tp].start
        }
        size *= 2
        yield window
