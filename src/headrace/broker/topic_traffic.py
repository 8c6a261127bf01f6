"""Traffic of topics: records and bytes in and out, and refusals, with a bound on their number.

Rule: the topics up to `metrics.topics.max` are counted by name, in the order in which their traffic
began; all others, and those that no topic has the name of, are counted as `(other)`. What was
counted for a topic that is deleted moves there, so that sums never fall.
"""

from collections.abc import Callable, Container

from headrace.metrics import catalog
from headrace.metrics.registry import Family, Registry, Samples

# What a topic beyond `metrics.topics.max` is called; no topic can have that name.
OTHER_TOPICS = "(other)"


class TopicTraffic:
    """The traffic of one topic since the start of this broker, in records and bytes."""

    __slots__ = (
        "bytes_in",
        "bytes_out",
        "fetch_errors",
        "messages_in",
        "messages_out",
        "produce_errors",
        "replication_bytes_in",
        "replication_bytes_out",
    )

    def __init__(self) -> None:
        for name in self.__slots__:
            setattr(self, name, 0)

    messages_in: int
    bytes_in: int
    messages_out: int
    bytes_out: int
    replication_bytes_in: int
    replication_bytes_out: int
    produce_errors: int
    fetch_errors: int

    def add(self, other: "TopicTraffic") -> None:
        """Count the traffic of another topic here, too."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


_FIELDS: dict[str, Family] = {
    "messages_in": catalog.TOPIC_MESSAGES_IN,
    "bytes_in": catalog.TOPIC_BYTES_IN,
    "messages_out": catalog.TOPIC_MESSAGES_OUT,
    "bytes_out": catalog.TOPIC_BYTES_OUT,
    "replication_bytes_in": catalog.TOPIC_REPLICATION_BYTES_IN,
    "replication_bytes_out": catalog.TOPIC_REPLICATION_BYTES_OUT,
    "produce_errors": catalog.TOPIC_PRODUCE_ERRORS,
    "fetch_errors": catalog.TOPIC_FETCH_ERRORS,
}


class BrokerTraffic:
    """The traffic of a broker by topic. Used on the event loop's thread only.

    `topics_max` is the present limit, and `exists` says whether a topic has a name.
    """

    def __init__(
        self, registry: Registry, topics_max: Callable[[], int], exists: Callable[[str], bool]
    ) -> None:
        self._topics_max = topics_max
        self._exists = exists
        self._topics: dict[str, TopicTraffic] = {}
        self._other = TopicTraffic()
        # Produce requests whose appends are not yet as safe as their `acks` demands.
        self.produces_waiting = 0
        for name, family in _FIELDS.items():
            registry.samples(family, self._sampler(name))

    def of(self, topic: str) -> TopicTraffic:
        """The traffic of a topic, or that of all others: for adding to it at once."""
        found = self._topics.get(topic)
        if found is not None:
            return found
        if len(self._topics) >= self._topics_max() or not self._exists(topic):
            return self._other
        found = self._topics[topic] = TopicTraffic()
        return found

    def replicated(self, topic: str, size: int) -> None:
        """Count bytes that were fetched from the leader of a partition."""
        self.of(topic).replication_bytes_in += size

    def forget_deleted(self, topics: Container[str]) -> None:
        """Count the topics that are not among `topics` any more as others."""
        for name in tuple(self._topics):
            if name not in topics:
                self._other.add(self._topics.pop(name))

    def _sampler(self, field: str) -> Callable[[], Samples]:
        def samples() -> Samples:
            # Copied: a scrape is read in parts.
            for name, traffic in tuple(self._topics.items()):
                yield (name,), getattr(traffic, field)
            yield (OTHER_TOPICS,), getattr(self._other, field)

        return samples
