"""Positions in topics, the ranges between them, and the division of ranges among tasks."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, TypeAlias

from pyspark.sql.datasource import InputPartition

from headrace.pipelines.datasource.errors import SourceError
from headrace.pipelines.datasource.read_options import TOPIC_IDS, ReadOptions
from headrace.pipelines.session import PARALLELISM_VARIABLE
from headrace.types import TopicPartition

Offsets: TypeAlias = dict[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """A position of a streaming query: the next offset of each partition, and the topic ids.

    An offset is invalid for another topic of the same name, so it is stored with the id of its
    topic. A topic without an id here has an unknown one: its broker has no ids, or the checkpoint
    is older than ids in checkpoints.
    """

    offsets: Offsets
    topic_ids: Mapping[str, str] = field(default_factory=dict)

    def recreated(self, topic_ids: Mapping[str, str]) -> list[str]:
        """Topics of this position with another id now: deleted, and created again."""
        return sorted(
            topic
            for topic, topic_id in self.topic_ids.items()
            if topic_ids.get(topic, topic_id) != topic_id
        )

    def without(self, topics: "list[str]") -> Offsets:
        """The offsets of all other topics."""
        return {tp: offset for tp, offset in self.offsets.items() if tp.topic not in topics}


def to_json(position: StreamOffset) -> dict[str, dict[str, Any]]:
    """A position in the JSON form of Spark's Kafka source, for equal progress reports, and its ids.

    >>> to_json(StreamOffset({TopicPartition("a", 1): 5, TopicPartition("a", 0): 3}, {"a": "Xw"}))
    {'a': {'0': 3, '1': 5}, '#topicIds': {'a': 'Xw'}}
    """
    found: dict[str, dict[str, Any]] = {}
    for tp in sorted(position.offsets):
        found.setdefault(tp.topic, {})[str(tp.partition)] = position.offsets[tp]
    ids = {topic: position.topic_ids[topic] for topic in found if topic in position.topic_ids}
    return {**found, TOPIC_IDS: ids} if ids else found


def from_json(stored: Any) -> StreamOffset:
    """The inverse of `to_json`; SourceError for the position of another kind of source."""
    try:
        offsets = {
            TopicPartition(topic, int(partition)): int(offset)
            for topic, numbers in stored.items()
            if topic != TOPIC_IDS
            for partition, offset in numbers.items()
        }
        ids = {topic: str(topic_id) for topic, topic_id in stored.get(TOPIC_IDS, {}).items()}
    except (AttributeError, TypeError, ValueError):
        raise SourceError(
            f"the checkpoint has {stored!r} where offsets of topics should be, so it is of another"
            " query",
            advice="give this query a checkpoint of its own",
        ) from None
    return StreamOffset(offsets, ids)


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """The offsets from `start` up to but not including `end` of a partition.

    `topic_id` is the id of the topic in Kafka's text form, if known.
    """

    topic: str
    partition: int
    start: int
    end: int
    topic_id: str | None = None


@dataclass(frozen=True)
class RangePartition(InputPartition):
    """The offset range of one task."""

    range: OffsetRange


# The least offsets of an automatic split: starting a task costs as much as reading these.
SPLIT_OFFSETS_MIN = 50_000


def split(
    ranges: Sequence[OffsetRange], options: ReadOptions, parallelism: int
) -> list[OffsetRange]:
    """The ranges in pieces, in their order, without empty ones.

    Every core gets a piece as long as pieces stay large. `minPartitions` and
    `maxRecordsPerPartition` demand smaller ones, `splitPartitions` turns splitting off.
    """
    total = sum(max(0, range_.end - range_.start) for range_ in ranges)
    return [
        piece
        for range_ in ranges
        if range_.end > range_.start
        for piece in _pieces(range_, _count(range_.end - range_.start, total, options, parallelism))
    ]


def _count(size: int, total: int, options: ReadOptions, parallelism: int) -> int:
    if not options.split_partitions:
        return 1
    count = min(_rounded_up(size * parallelism, total), size // SPLIT_OFFSETS_MIN)
    if options.min_partitions is not None:
        count = max(count, _rounded_up(size * options.min_partitions, total))
    if options.max_records_per_partition is not None:
        count = max(count, _rounded_up(size, options.max_records_per_partition))
    return min(max(count, 1), size)


def _rounded_up(dividend: int, divisor: int) -> int:
    return -(-dividend // divisor)


def _pieces(whole: OffsetRange, count: int) -> list[OffsetRange]:
    size = whole.end - whole.start
    edges = [whole.start + size * number // count for number in range(count + 1)]
    return [replace(whole, start=start, end=end) for start, end in pairwise(edges)]


def parallelism() -> int:
    """The number of tasks Spark runs at once: from the session, else the cores of this machine."""
    configured = os.environ.get(PARALLELISM_VARIABLE, "")
    return (
        int(configured)
        if configured.isdecimal() and int(configured)
        else len(os.sched_getaffinity(0))
    )
