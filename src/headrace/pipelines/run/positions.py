"""Where a query is in its topics, from what Spark says of its sources. Pure.

A source of topics gives its position as `{"orders": {"0": 42}}`; what other sources give is none of
our business and counts as no position at all.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from headrace.types import TopicPartition

Positions = Mapping[TopicPartition, int]


def positions_of(offset: Any) -> dict[TopicPartition, int]:
    """The offset of each partition in what Spark gives as the position of a source."""
    if not isinstance(offset, Mapping):
        return {}
    return {
        TopicPartition(topic, int(partition)): position
        for topic, partitions in offset.items()
        if isinstance(partitions, Mapping)
        for partition, position in partitions.items()
        if isinstance(position, int) and str(partition).isdecimal()
    }


def merged(offsets: Iterable[Any]) -> dict[TopicPartition, int]:
    """The positions of several sources; the least where two of them read the same partition.

    Who goes on from there reads everything that one of them has not read yet.
    """
    found: dict[TopicPartition, int] = {}
    for offset in offsets:
        for tp, position in positions_of(offset).items():
            found[tp] = min(position, found.get(tp, position))
    return found


def lag(ends: Iterable[Any], latest: Iterable[Any]) -> int | None:
    """How many offsets lie between where the sources are and where their topics end.

    None if none of the sources says it.
    """
    total: int | None = None
    for at, end in zip(ends, latest, strict=True):
        known = positions_of(end)
        if known:
            total = (total or 0) + distance(positions_of(at), known)
    return total


def distance(start: Positions, end: Positions) -> int:
    """How many offsets there are from one to the other; a partition that is new counts from 0."""
    return sum(max(position - start.get(tp, 0), 0) for tp, position in end.items())
