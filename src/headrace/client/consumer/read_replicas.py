"""Which broker to read a partition from: its leader, or a replica nearer to the consumer (KIP-392).

A leader that knows the consumer's rack may name a replica there. Rule: its word holds for a while
only, and not after an error: then the leader is asked again.
"""

from headrace.types import TopicPartition


class ReadReplicas:
    """The replicas that leaders have named. Pure; `now` is an instant of a monotonic clock."""

    def __init__(self, max_age_s: float) -> None:
        self._max_age_s = max_age_s
        self._preferred: dict[TopicPartition, tuple[int, float]] = {}

    def prefer(self, tp: TopicPartition, node: int, now: float) -> None:
        """The leader wants a partition to be read from another broker."""
        self._preferred[tp] = (node, now + self._max_age_s)

    def preferred(self, tp: TopicPartition, now: float) -> int | None:
        """The broker to read from instead of the leader, if there is one."""
        known = self._preferred.get(tp)
        if known is None:
            return None
        node, until = known
        if now >= until:
            del self._preferred[tp]
            return None
        return node

    def drop(self, tp: TopicPartition) -> bool:
        """Ask the leader again; whether another broker was read from."""
        return self._preferred.pop(tp, None) is not None
