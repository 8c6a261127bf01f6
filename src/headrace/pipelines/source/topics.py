"""What the planner asks of brokers: which partitions there are, where they begin and end.

Rule: one question is one request to each broker it concerns, for all partitions at once.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from headrace.client.consumer.resets import NOTHING, list_offsets
from headrace.client.options_table import hint
from headrace.pipelines.source.failures import SourceError
from headrace.pipelines.source.links import Link
from headrace.pipelines.source.offsets import Offsets, listed
from headrace.pipelines.source.options import EARLIEST, LATEST, Place, ReadOptions
from headrace.types import TopicPartition


@dataclass(frozen=True, slots=True)
class Found:
    """The partitions that are there to read, and what was asked for but is not there."""

    partitions: tuple[TopicPartition, ...]
    missing: tuple[str, ...] = ()
    others: tuple[str, ...] = ()


class Topics:
    """The topics of a read, asked about over a link."""

    def __init__(self, options: ReadOptions, link: Link) -> None:
        self._options = options
        self._link = link
        self._cluster = link.cluster
        self._level = link.options.isolation_level

    def find(self) -> Found:
        """The partitions the options select, as they are now."""
        options = self._options
        if options.pattern is not None:
            return self._matching(re.compile(options.pattern))
        names = options.topics or tuple(dict.fromkeys(tp.topic for tp in options.assigned))
        deadline = self._cluster.deadline()
        view = self._link.run(
            self._cluster.retrying(lambda: self._cluster.refresh(names, deadline), deadline)
        )
        there = {
            TopicPartition(name, one.index)
            for name, topic in view.topics.items()
            for one in topic.partitions
        }
        if options.assigned:
            missing = tuple(str(tp) for tp in options.assigned if tp not in there)
            return Found(tuple(tp for tp in options.assigned if tp in there), missing)
        return Found(tuple(sorted(there)), tuple(name for name in names if name not in view.topics))

    def _matching(self, pattern: re.Pattern[str]) -> Found:
        topics = self._link.run(self._cluster.all_topics())
        return Found(
            tuple(
                TopicPartition(name, one.index)
                for name, topic in sorted(topics.items())
                if not topic.is_internal and pattern.fullmatch(name)
                for one in topic.partitions
            )
        )

    def require(self) -> tuple[TopicPartition, ...]:
        """The same, where nothing may be missing."""
        found = self.find()
        if found.missing:
            raise self._missing(found.missing)
        if not found.partitions:
            raise SourceError(
                f"no topic at {self._options.servers} matches {self._options.pattern!r}; check"
                " subscribePattern, which must match whole names, and the broker"
            )
        return found.partitions

    def _missing(self, names: tuple[str, ...]) -> SourceError:
        near = ""
        if self._options.topics:
            known = self._link.run(self._cluster.all_topics())
            near = hint(names[0], known)
        what = "topic" if self._options.topics else "partition"
        remedy = f"create it (headrace topics create {names[0]}), or check the option"
        if not self._options.topics:
            remedy = "check the option"
        return SourceError(
            f"{what} {listed(names)} does not exist at {self._options.servers}{near}"
            f"{'' if near else '; ' + remedy}"
        )

    def beginnings(self, partitions: Iterable[TopicPartition]) -> Offsets:
        """The first offset of each partition."""
        return self._offsets(dict.fromkeys(partitions, EARLIEST))

    def ends(self, partitions: Iterable[TopicPartition]) -> Offsets:
        """The offset behind the last record that may be read of each partition."""
        return self._offsets(dict.fromkeys(partitions, LATEST))

    def at_times(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """The first offset whose record is not older than a time; None if there is none."""
        return {
            tp: None if offset == NOTHING else offset for tp, offset in self._offsets(times).items()
        }

    def resolve(
        self, places: Mapping[TopicPartition, Place], *, option: str, latest_if_no_record: bool
    ) -> Offsets:
        """The offsets of places; SourceError where no record is as young as a time says."""
        asked = {
            tp: place.offset if place.time_ms is None else place.time_ms
            for tp, place in places.items()
        }
        fixed = {
            tp: value
            for tp, value in asked.items()
            if value is not None and value >= 0 and places[tp].time_ms is None
        }
        found = self._offsets(
            {tp: value for tp, value in asked.items() if value is not None and tp not in fixed}
        )
        late = [tp for tp, offset in found.items() if offset == NOTHING]
        if late and not latest_if_no_record:
            raise SourceError(
                f"{listed(late)} has no record as young as option {option} says; give an earlier"
                " time, or set startingOffsetsByTimestampStrategy to latest"
            )
        return found | self.ends(late) | fixed

    def _offsets(self, wanted: Mapping[TopicPartition, int]) -> Offsets:
        if not wanted:
            return {}
        found = self._link.run(
            list_offsets(self._cluster, wanted, self._cluster.deadline(), self._level)
        )
        return {tp: found[tp].offset for tp in wanted}
