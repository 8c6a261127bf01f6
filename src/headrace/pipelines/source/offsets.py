"""Positions in topics, as Spark keeps them in checkpoints and shows them in progress."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from headrace.pipelines.source.failures import SourceError
from headrace.types import TopicPartition

Offsets: TypeAlias = dict[TopicPartition, int]

# The key of the topics' ids beside the topics themselves. No topic can have this name.
TOPIC_IDS = "#topicIds"


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """A position of a streaming query: the next offset of each partition, and the topics' ids.

    An offset means nothing in another topic of the same name, so it goes with the id of the topic
    it was read from. A topic without an id is one whose id is not known: its broker gives none, or
    the checkpoint is older than ids in checkpoints.
    """

    offsets: Offsets
    topic_ids: Mapping[str, str] = field(default_factory=dict)

    def recreated(self, topic_ids: Mapping[str, str]) -> list[str]:
        """Topics of this position that have another id now: deleted, and created again."""
        return sorted(
            topic
            for topic, topic_id in self.topic_ids.items()
            if topic_ids.get(topic, topic_id) != topic_id
        )

    def without(self, topics: "list[str]") -> Offsets:
        """The offsets of all other topics."""
        return {tp: offset for tp, offset in self.offsets.items() if tp.topic not in topics}


def to_json(position: StreamOffset) -> dict[str, dict[str, Any]]:
    """A position in the form of Spark's Kafka source, so that progress reads alike, and its ids.

    >>> to_json(StreamOffset({TopicPartition("a", 1): 5, TopicPartition("a", 0): 3}, {"a": "Xw"}))
    {'a': {'0': 3, '1': 5}, '#topicIds': {'a': 'Xw'}}
    """
    found: dict[str, dict[str, Any]] = {}
    for tp in sorted(position.offsets):
        found.setdefault(tp.topic, {})[str(tp.partition)] = position.offsets[tp]
    ids = {topic: position.topic_ids[topic] for topic in found if topic in position.topic_ids}
    return {**found, TOPIC_IDS: ids} if ids else found


def from_json(stored: Any) -> StreamOffset:
    """The inverse of `to_json`; SourceError for what another source has stored."""
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
            " query; give this query a checkpoint of its own"
        ) from None
    return StreamOffset(offsets, ids)
