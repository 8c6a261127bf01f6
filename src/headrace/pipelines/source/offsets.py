"""Positions in topics, as Spark keeps them in checkpoints and shows them in progress."""

from collections.abc import Mapping
from typing import Any, TypeAlias

from headrace.pipelines.source.failures import SourceError
from headrace.types import TopicPartition

Offsets: TypeAlias = dict[TopicPartition, int]


def to_json(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    """Offsets in the form of Spark's Kafka source, so that progress reads alike.

    >>> to_json({TopicPartition("a", 1): 5, TopicPartition("a", 0): 3})
    {'a': {'0': 3, '1': 5}}
    """
    found: dict[str, dict[str, int]] = {}
    for tp in sorted(offsets):
        found.setdefault(tp.topic, {})[str(tp.partition)] = offsets[tp]
    return found


def from_json(stored: Any) -> Offsets:
    """The inverse of `to_json`; SourceError for what another source has stored."""
    try:
        return {
            TopicPartition(topic, int(partition)): int(offset)
            for topic, numbers in stored.items()
            for partition, offset in numbers.items()
        }
    except (AttributeError, TypeError, ValueError):
        raise SourceError(
            f"the checkpoint has {stored!r} where offsets of topics should be, so it is of another"
            " query; give this query a checkpoint of its own"
        ) from None
