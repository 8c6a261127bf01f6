"""Positions in topics as Spark keeps them in checkpoints, and as options write them.

Rule: no I/O. What has to be asked of a broker is in `topics`.
"""

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from headrace.pipelines.source.failures import OptionError
from headrace.pipelines.source.options import Bound, Place
from headrace.types import TopicPartition

Offsets: TypeAlias = dict[TopicPartition, int]

# {topic: {partition: offset}}: what Spark's Kafka source writes, so progress reads alike.
OffsetsJson: TypeAlias = dict[str, dict[str, int]]

_NAMED_MAX = 5


def to_json(offsets: Mapping[TopicPartition, int]) -> OffsetsJson:
    """Offsets as Spark stores them.

    >>> to_json({TopicPartition("a", 1): 5, TopicPartition("a", 0): 3})
    {'a': {'0': 3, '1': 5}}
    """
    found: OffsetsJson = {}
    for tp in sorted(offsets):
        found.setdefault(tp.topic, {})[str(tp.partition)] = offsets[tp]
    return found


def from_json(stored: Mapping[str, Mapping[str, int]]) -> Offsets:
    """The inverse of `to_json`."""
    return {
        TopicPartition(topic, int(partition)): offset
        for topic, numbers in stored.items()
        for partition, offset in numbers.items()
    }


def places_of(bound: Bound, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Place]:
    """Where a bound lies in each partition; OptionError if it leaves one out or names another."""
    wanted = list(partitions)
    if bound.everywhere is not None:
        return dict.fromkeys(wanted, bound.everywhere)
    assert bound.each is not None
    named = bound.each
    missing = [tp for tp in wanted if tp not in named]
    if missing:
        raise OptionError(
            f"option {bound.option} says nothing of {listed(missing)}; give an offset for every"
            " partition that is read, -2 for the earliest, -1 for the latest"
            if bound.option.endswith("Offsets")
            else f"option {bound.option} says nothing of {listed(missing)}; give a time for every"
            " partition that is read"
        )
    unknown = [tp for tp in named if tp not in set(wanted)]
    if unknown:
        raise OptionError(
            f"option {bound.option} names {listed(unknown)}, which is not read or does not exist;"
            " leave it out, or subscribe to it"
        )
    return {tp: named[tp] for tp in wanted}


def listed(items: Iterable[object]) -> str:
    """The items in words, a few of them if they are many."""
    texts = [str(item) for item in items]
    more = len(texts) - _NAMED_MAX
    return ", ".join(texts[:_NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
