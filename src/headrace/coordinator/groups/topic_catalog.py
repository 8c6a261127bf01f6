"""The topics that a group coordinator knows: their ids, names and sizes, and a hash of some.

A core sees the cluster's metadata only through a `TopicCatalog`, whose shell half is the image.
"""

from collections.abc import Collection, Iterable
from typing import NamedTuple, Protocol


class CatalogTopic(NamedTuple):
    """A topic that exists."""

    topic_id: bytes
    name: str
    size: int
    """The number of its partitions."""


class TopicCatalog(Protocol):
    """The topics of a cluster, as of the image by which this broker leads its coordinators."""

    @property
    def version(self) -> int:
        """Grows whenever a topic came, went or got more partitions."""

    @property
    def names_version(self) -> int:
        """Grows whenever a topic came."""

    def by_name(self, name: str) -> CatalogTopic | None: ...

    def by_id(self, topic_id: bytes) -> CatalogTopic | None: ...

    def names(self) -> Collection[str]: ...


class NoTopics:
    """A catalog without topics."""

    version = 0
    names_version = 0

    def by_name(self, name: str) -> CatalogTopic | None:
        return None

    def by_id(self, topic_id: bytes) -> CatalogTopic | None:
        return None

    def names(self) -> Collection[str]:
        return ()


def hash_of_topics(topics: Iterable[str], catalog: TopicCatalog) -> int:
    """A hash of the ids, names and sizes of those of the topics that exist; 0 if none does.

    Unlike Kafka: racks are not part of it, since no assignor looks at them, and it is another
    function. A group that moves here, or back, gets one more epoch by that.
    """
    # Imported late, since many brokers have no group of this type.
    from hashlib import blake2b  # noqa: PLC0415

    digest = blake2b(digest_size=8)
    found = False
    for name in sorted(topics):
        topic = catalog.by_name(name)
        if topic is not None:
            found = True
            encoded = name.encode()
            digest.update(topic.topic_id)
            digest.update(b"%d %d " % (topic.size, len(encoded)) + encoded)
    return int.from_bytes(digest.digest(), "big", signed=True) if found else 0
