"""Placement of the replicas of new partitions on brokers.

Rule: no rack gets a second replica of a partition before every rack has a replica. Within that,
leaders and replicas are spread evenly over the brokers: first those of each topic, then those of
all topics, so that many topics of one partition are spread evenly too.
"""

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence

from headrace.errors import ErrorCode, KafkaError
from headrace.metadata.image import Image


class ReplicaLoad:
    """Counts of replicas, and of preferred leaderships, by broker."""

    def __init__(self, assignments: Iterable[Sequence[int]] = ()) -> None:
        self.replicas = Counter[int]()
        self.leaders = Counter[int]()
        for replicas in assignments:
            self.add(replicas)

    @classmethod
    def of(cls, image: Image) -> "ReplicaLoad":
        """The load of the brokers of a cluster."""
        return cls(
            partition.replicas for topic in image.topics.values() for partition in topic.partitions
        )

    def add(self, replicas: Sequence[int]) -> None:
        """Count one more partition."""
        self.leaders[replicas[0]] += 1
        self.replicas.update(replicas)


def ring(brokers: Mapping[int, str | None]) -> list[int]:
    """The brokers in an order that alternates between racks for as long as possible."""
    racks: dict[str | None, deque[int]] = {}
    for broker_id in sorted(brokers):
        racks.setdefault(brokers[broker_id], deque()).append(broker_id)
    waiting = [racks[rack] for rack in sorted(racks, key=lambda rack: (rack is None, rack or ""))]
    order = []
    while waiting:
        order += [members.popleft() for members in waiting]
        waiting = [members for members in waiting if members]
    return order


def place(
    partition_count: int,
    replication_factor: int,
    brokers: Mapping[int, str | None],
    load: ReplicaLoad,
    *,
    down: Iterable[int] = (),
    first: int = 0,
    present: Sequence[Sequence[int]] = (),
) -> list[tuple[int, ...]]:
    """The replicas of new partitions of a topic, the preferred leader first; `load` counts them.

    `brokers` are the active brokers with their racks, `present` the partitions that the topic has.
    Among brokers with equal load the ring decides, from position `first` on. If `brokers` are too
    few, brokers that are `down` become followers: a topic can be created while a broker restarts.
    """
    waiting = sorted(down)
    missing = max(replication_factor - len(brokers), 0)
    if missing > len(waiting) or not brokers:
        away = f" and {len(waiting)} that are down" if waiting else ""
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"{replication_factor} replicas need as many brokers, and there are"
            f" {len(brokers)}{away}",
            advice="lower the replication factor or start more brokers",
        )
    placed = _TopicPlacement(brokers, load, ReplicaLoad(present)).place(
        partition_count, replication_factor - missing, first + len(present)
    )
    return [replicas + _followers_that_are_down(missing, waiting, load) for replicas in placed]


def _followers_that_are_down(
    count: int, brokers: Sequence[int], load: ReplicaLoad
) -> tuple[int, ...]:
    """The `count` brokers with the fewest replicas; `load` counts them."""
    chosen = sorted(brokers, key=lambda broker_id: load.replicas[broker_id])[:count]
    load.replicas.update(chosen)
    return tuple(chosen)


class _TopicPlacement:
    """The placement of the new partitions of one topic.

    All leaders are chosen before any follower, so that followers can even out the replica counts
    that an even spread of leaders leaves uneven.
    """

    def __init__(
        self, brokers: Mapping[int, str | None], cluster: ReplicaLoad, topic: ReplicaLoad
    ) -> None:
        self._racks = brokers
        self._ring = ring(brokers)
        self._cluster = cluster
        self._topic = topic
        # By leader and follower, the number of partitions, and of those in which the follower is
        # first in line: when a leader fails, all others should share its load.
        self._followers = Counter[tuple[int, int]]()
        self._first_followers = Counter[tuple[int, int]]()

    def place(
        self, partition_count: int, replication_factor: int, first: int
    ) -> list[tuple[int, ...]]:
        orders = [self._ring_from(first + number) for number in range(partition_count)]
        leaders = [self._leader(order) for order in orders]
        placed = [
            [leader, *self._followers_of(leader, order, replication_factor - 1)]
            for leader, order in zip(leaders, orders, strict=True)
        ]
        while self._move_follower(placed):
            pass
        return [tuple(replicas) for replicas in placed]

    def _ring_from(self, position: int) -> list[int]:
        """The ring from a position on, for a choice among equals."""
        position %= len(self._ring)
        return self._ring[position:] + self._ring[:position]

    def _leader(self, order: Sequence[int]) -> int:
        topic, cluster = self._topic, self._cluster
        leader = min(
            order,
            key=lambda broker_id: (
                topic.leaders[broker_id],
                cluster.leaders[broker_id],
                topic.replicas[broker_id],
                cluster.replicas[broker_id],
            ),
        )
        for load in (topic, cluster):
            load.add([leader])
        return leader

    def _followers_of(self, leader: int, order: list[int], count: int) -> list[int]:
        topic, cluster, racks = self._topic, self._cluster, self._racks
        used = Counter([racks[leader]])
        chosen = [leader]
        for _ in range(count):
            order.remove(chosen[-1])
            follower = min(
                order,
                key=lambda broker_id: (
                    used[racks[broker_id]],
                    topic.replicas[broker_id],
                    cluster.replicas[broker_id],
                    self._followers[leader, broker_id],
                ),
            )
            used[racks[follower]] += 1
            topic.replicas[follower] += 1
            cluster.replicas[follower] += 1
            self._followers[leader, follower] += 1
            chosen.append(follower)
        followers = sorted(
            chosen[1:], key=lambda broker_id: self._first_followers[leader, broker_id]
        )
        self._first_followers.update((leader, broker_id) for broker_id in followers[:1])
        return followers

    def _move_follower(self, placed: Sequence[list[int]]) -> bool:
        """Move a follower from the broker with the most replicas to the broker with the fewest.

        False if the counts are even, or racks do not allow it: the last partitions may have had no
        other broker to choose.
        """
        replicas, racks = self._topic.replicas, self._racks
        most = max(self._ring, key=lambda broker_id: replicas[broker_id])
        fewest = min(self._ring, key=lambda broker_id: replicas[broker_id])
        if replicas[most] - replicas[fewest] <= 1:
            return False
        for chosen in placed:
            if most not in chosen[1:] or fewest in chosen:
                continue
            used = Counter(racks[broker_id] for broker_id in chosen)
            if racks[most] == racks[fewest] or used[racks[fewest]] < used[racks[most]]:
                chosen[chosen.index(most)] = fewest
                for load in (self._topic, self._cluster):
                    load.replicas[most] -= 1
                    load.replicas[fewest] += 1
                return True
        return False
