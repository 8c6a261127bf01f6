"""The planner of a streaming query: the offset ranges of micro-batches.

Rule: Spark's checkpoint is authoritative. Offsets of a query never go back, and a micro-batch that
is planned again after a failure reads the same offsets as the first time.
"""

import logging
import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Protocol

from headrace.clock import Clock
from headrace.errors import HeadraceError, UnknownTopic
from headrace.pipelines.datasource.brokers import FoundPartitions
from headrace.pipelines.datasource.errors import LossHandling, SourceError
from headrace.pipelines.datasource.offset_ranges import OffsetRange, Offsets, StreamOffset, split
from headrace.pipelines.datasource.read_options import (
    FROM_LATEST,
    LATEST,
    Bound,
    MicroBatchLimits,
    ReadOptions,
    listed,
)
from headrace.types import TopicPartition


def admitted(
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    limits: MicroBatchLimits,
    bytes_per_offset: Mapping[TopicPartition, Fraction],
) -> Offsets:
    """The ends of a micro-batch within the limits.

    Every partition advances by the same share of its remaining offsets, and by one at least, so
    that none starves.
    """
    sizes = {tp: max(0, end - starts[tp]) for tp, end in ends.items()}
    share = _share(sizes, limits, bytes_per_offset)
    if share >= 1:
        return dict(ends)
    return {
        tp: starts[tp] + max(1, int(size * share)) if size else ends[tp]
        for tp, size in sizes.items()
    }


def _share(
    sizes: Mapping[TopicPartition, int],
    limits: MicroBatchLimits,
    bytes_per_offset: Mapping[TopicPartition, Fraction],
) -> Fraction:
    share = Fraction(1)
    offsets = sum(sizes.values())
    if limits.max_offsets is not None and offsets:
        share = min(share, Fraction(limits.max_offsets, offsets))
    if limits.max_bytes is not None:
        size_bytes = sum(size * bytes_per_offset.get(tp, 0) for tp, size in sizes.items())
        if size_bytes:
            share = min(share, limits.max_bytes / Fraction(size_bytes))
    return share


class MicroBatchDelay:
    """The delay of a micro-batch that has too few records."""

    def __init__(self) -> None:
        self._last_ms: int | None = None

    def goes_on(self, offsets: int, limits: MicroBatchLimits, now_ms: int) -> bool:
        """Whether to wait: too few records, and the last micro-batch was recent.

        The first micro-batch does not wait: the time of the last is unknown.
        """
        too_few = limits.min_offsets is not None and offsets < limits.min_offsets
        if too_few and self._last_ms is not None and now_ms - self._last_ms < limits.max_delay_ms:
            return True
        if offsets:
            self._last_ms = now_ms
        return False


# The interval for finding new partitions and topics. Spark asks up to a hundred times a second.
DISCOVERY_S = 1.0

_log = logging.getLogger("headrace.source")


class PlannerQueries(Protocol):
    """The planner's requests to the brokers."""

    def find(self) -> FoundPartitions: ...
    def require(self) -> FoundPartitions: ...
    def missing(self, names: tuple[str, ...]) -> SourceError: ...
    def beginnings(self, partitions: "list[TopicPartition]") -> Offsets: ...
    def ends(self, partitions: "list[TopicPartition]") -> Offsets: ...
    def resolve(self, bound: Bound, partitions: "tuple[TopicPartition, ...]") -> Offsets: ...
    def sizes_bytes(self, partitions: "list[TopicPartition]") -> dict[TopicPartition, int]: ...
    def committed(self, group: str) -> Offsets: ...
    def commit(self, group: str, offsets: Mapping[TopicPartition, int]) -> None: ...


class Planner:
    """The state of one streaming query, for as long as its process lives."""

    def __init__(
        self, options: ReadOptions, brokers: PlannerQueries, clock: Clock, parallelism: int
    ) -> None:
        self._options = options
        self._brokers = brokers
        self._clock = clock
        self._parallelism = parallelism
        self._losses = LossHandling(fail=options.fail_on_data_loss)
        self._recreations = LossHandling(fail=options.fail_on_recreated_topics)
        self._waiting = MicroBatchDelay()
        self._initial: StreamOffset | None = None
        # Whether the first micro-batch should be empty, which puts `_initial` into the checkpoint.
        self._settles_first = False
        self._target: Offsets | None = None
        self._ends: Offsets | None = None
        self._found = FoundPartitions(())
        self._found_at_s: float | None = None
        self._committed: Offsets | None = None

    @property
    def ends(self) -> StreamOffset | None:
        """The end offsets of the topics when last looked up."""
        return None if self._ends is None else self._position(self._ends)

    def initial(self) -> StreamOffset:
        """The first offsets of a query without a checkpoint; the same at every call."""
        if self._initial is None:
            self._found = self._brokers.require()
            partitions = self._found.partitions
            bound = self._options.starting or FROM_LATEST
            found: Offsets = {}
            if self._options.group is not None and self._options.group_offsets == "start":
                committed = self._brokers.committed(self._options.group)
                found = {tp: committed[tp] for tp in partitions if tp in committed}
            if len(found) < len(partitions):
                resolved = self._brokers.resolve(bound, partitions)
                found = {tp: found.get(tp, resolved[tp]) for tp in partitions}
                self._settles_first = bound.has(LATEST) or bound.latest_if_no_record
            self._initial = self._position(found)
        return self._initial

    def aim_at_now(self) -> None:
        """Set the present end offsets as the end of the query."""
        self._found_at_s = None
        self._target = self._request_ends()

    def latest(self, start: StreamOffset, limits: MicroBatchLimits) -> StreamOffset:
        """The end offsets of the micro-batch that begins at `start`."""
        self._check_checkpoint(start.offsets)
        self.commit(start)
        if self._settles_first:
            self._settles_first = False
            if start == self._initial:
                # The offset that "latest" stands for must be in the checkpoint even if the first
                # records fail.
                return start
        self._ends = self._request_ends()
        starts = self._still_valid(start)
        self._check_found(start.offsets)
        ends = self._reachable(starts, self._ends)
        begins = self._begins(starts, ends)
        ends = {tp: max(end, begins[tp]) for tp, end in ends.items()}
        offsets = sum(ends[tp] - begins[tp] for tp in ends)
        if self._target is None and self._waiting.goes_on(offsets, limits, self._clock.now_ms()):
            return start
        return self._position(admitted(begins, ends, limits, self._bytes_per_offset(ends, limits)))

    def ranges(self, start: StreamOffset, end: StreamOffset) -> list[OffsetRange]:
        """The offset ranges of a micro-batch's tasks."""
        starts = start.without(start.recreated(end.topic_ids))
        wanted = {tp: offset for tp, offset in end.offsets.items() if offset > starts.get(tp, 0)}
        if not wanted:
            return []
        try:
            beginnings = self._brokers.beginnings(list(wanted))
        except UnknownTopic as error:
            # The tasks find out which topic it is, and raise or report it.
            _log.warning("%s", error.detail)
            beginnings = {}
        ranges = []
        for tp, until in wanted.items():
            first = beginnings.get(tp, 0)
            since = starts[tp] if tp in starts else _beginning(tp, starts, first)
            if since < first:
                self._losses.report(f"{tp} begins at offset {first}, and {since} was to be read")
            topic_id = end.topic_ids.get(tp.topic)
            ranges.append(OffsetRange(tp.topic, tp.partition, max(since, first), until, topic_id))
        return split(ranges, self._options, self._parallelism)

    def commit(self, position: StreamOffset) -> None:
        """Commit the progress of completed micro-batches to the group: for monitoring, so never
        fatal.
        """
        group, offsets = self._options.group, position.offsets
        if group is None or not offsets or offsets == self._committed:
            return
        self._committed = offsets
        try:
            self._brokers.commit(group, offsets)
        except HeadraceError as error:
            _log.warning("group %s does not show the progress of the query: %s", group, error)

    # -- partitions that come and go

    def _position(self, offsets: Offsets) -> StreamOffset:
        """A position of these offsets, in the topics that were found last."""
        known, topics = self._found.topic_ids, {tp.topic for tp in offsets}
        return StreamOffset(offsets, {name: known[name] for name in topics if name in known})

    def _still_valid(self, start: StreamOffset) -> Offsets:
        """The offsets of a position without those of topics that were created again since.

        Offsets of the deleted topic are invalid in the new one, which is read from its beginning if
        the options allow it.
        """
        recreated = start.recreated(self._found.topic_ids)
        for topic in recreated:
            read = [
                f"{tp} {start.offsets[tp]}" for tp in sorted(start.offsets) if tp.topic == topic
            ]
            self._recreations.report(
                f"topic {topic} was deleted and created again, so the offsets up to which the query"
                f" has read it ({listed(read)}) mean nothing any more, and records of the deleted"
                " topic may be lost;"
                " set recreatedTopics to earliest to read the new topic from its beginning"
            )
        return start.without(recreated)

    def _request_ends(self) -> Offsets:
        """The end offsets of the partitions that exist now."""
        now_s = self._clock.monotonic()
        if self._found_at_s is None or now_s - self._found_at_s >= DISCOVERY_S:
            self._discover()
        try:
            return self._brokers.ends(list(self._found.partitions))
        except UnknownTopic:
            self._discover()
            return self._brokers.ends(list(self._found.partitions))

    def _discover(self) -> None:
        self._found = self._brokers.find()
        self._found_at_s = self._clock.monotonic()

    def _check_found(self, starts: Offsets) -> None:
        """Refuse a topic that never existed, as a mistake; a topic that did exist is a loss."""
        known = {tp.topic for tp in starts} | {str(tp) for tp in starts}
        never_there = tuple(name for name in self._found.missing if name not in known)
        if never_there and self._options.fail_on_data_loss:
            raise self._brokers.missing(never_there)

    def _reachable(self, starts: Offsets, ends: Offsets) -> Offsets:
        """The readable end of every partition, limited by the target if there is one."""
        for tp, start in starts.items():
            if tp not in ends:
                self._losses.report(f"{tp} is gone, and the query has read it up to offset {start}")
            elif ends[tp] < start:
                self._losses.report(
                    f"{tp} ends at offset {ends[tp]}, and the query has read it up to {start}: the"
                    " topic was deleted and created again, or lost its end"
                )
        target = self._target
        if target is None:
            return ends
        return {
            tp: min(end, target.get(tp, starts.get(tp, 0)))
            for tp, end in ends.items()
            if tp in target or tp in starts
        }

    def _begins(self, starts: Offsets, ends: Offsets) -> Offsets:
        """The first offset of every partition; a new one is read from its beginning."""
        new = [tp for tp in ends if tp not in starts]
        beginnings = self._brokers.beginnings(new) if new else {}
        return {
            tp: starts[tp] if tp in starts else _beginning(tp, starts, beginnings[tp])
            for tp in ends
        }

    def _check_checkpoint(self, starts: Offsets) -> None:
        other = sorted({tp.topic for tp in starts if not _selects(self._options, tp)})
        if other:
            self._losses.report(
                f"the checkpoint is of a query that reads {listed(other)}, which this one does not"
            )

    def _bytes_per_offset(
        self, ends: Offsets, limits: MicroBatchLimits
    ) -> dict[TopicPartition, Fraction]:
        """The average size on disk of an offset, by partition."""
        if limits.max_bytes is None or not ends:
            return {}
        beginnings = self._brokers.beginnings(list(ends))
        sizes = self._brokers.sizes_bytes(list(ends))
        return {
            tp: Fraction(sizes.get(tp, 0), max(1, end - beginnings[tp]))
            for tp, end in (self._ends or ends).items()
            if tp in ends
        }


def _beginning(tp: TopicPartition, starts: Offsets, first: int) -> int:
    """The first offset of a partition that is new to the query.

    A partition added to a topic begins at 0, and records deleted since are a loss. A topic that is
    new to the query begins at its first record.
    """
    return 0 if any(known.topic == tp.topic for known in starts) else first


def _selects(options: ReadOptions, tp: TopicPartition) -> bool:
    if options.pattern is not None:
        return re.fullmatch(options.pattern, tp.topic) is not None
    return tp in options.assigned if options.assigned else tp.topic in options.topics
