"""The topics a leader has shared out, watched for partitions that come and go."""

from collections.abc import Collection

from headrace.client.failures import TimedOut, Unreachable
from headrace.client.transport.cluster import Cluster
from headrace.errors import ErrorCode, KafkaError


class SharedTopics:
    """How many partitions the topics of a group had when its leader last counted them."""

    def __init__(self, cluster: Cluster, max_age_s: float, *, create: bool) -> None:
        self._cluster = cluster
        self._max_age_s = max_age_s
        self._create = create
        self._asked_at = cluster.clock.monotonic()
        self.counts: dict[str, int] = {}

    async def count(self, topics: Collection[str]) -> None:
        """Count anew, for a new assignment."""
        counted = await self._ask(topics)
        self.counts = {name: count for name, count in counted.items() if count}

    async def changed(self, topics: Collection[str]) -> str | None:
        """A topic whose count is not what it was, looked up if what is known is too old."""
        age_s = self._cluster.clock.monotonic() - self._asked_at
        # A topic that does not exist is looked for at every turn.
        if age_s < self._max_age_s and all(name in self.counts for name in topics):
            counts = self._known(topics)
        else:
            try:
                counts = await self._ask(topics)
            except (KafkaError, TimedOut, Unreachable):
                return None
        return next(
            (name for name in sorted(counts) if counts[name] != self.counts.get(name, 0)), None
        )

    def _known(self, topics: Collection[str]) -> dict[str, int]:
        """What somebody else may have heard of the topics meanwhile."""
        found = {name: self._cluster.known_topic(name) for name in topics}
        return {name: len(topic.partitions) for name, topic in found.items() if topic is not None}

    async def _ask(self, topics: Collection[str]) -> dict[str, int]:
        deadline = self._cluster.deadline()
        view = await self._cluster.retrying(
            lambda: self._cluster.refresh(topics, deadline, create=self._create), deadline
        )
        self._asked_at = self._cluster.clock.monotonic()
        counts = {name: len(topic.partitions) for name, topic in view.topics.items()}
        for name in self.counts.keys() & set(topics) - counts.keys():
            # Only a topic that does not exist has none: others cannot be described at the moment.
            gone = view.errors.get(name) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            counts[name] = 0 if gone else self.counts[name]
        return counts
