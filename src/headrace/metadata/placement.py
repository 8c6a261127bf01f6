"""Where the replicas of new partitions go.

Rule: no rack has a second replica of a partition before every rack has one. Within that, leaders
and replicas are spread evenly over the brokers: first those of each topic, then those of all, so
that many topics of one partition are even too.
"""

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence

from headrace.errors import ErrorCode, KafkaError
from headrace.metadata.image import Image


class Load:
    """How many replicas brokers hold, and of how many of these they are the preferred leader."""

    def __init__(self, assignments: Iterable[Sequence[int]] = ()) -> None:
        self.replicas = Counter[int]()
        self.leaders = Counter[int]()
        for replicas in assignments:
            self.add(replicas)

    @classmethod
    def of(cls, image: Image) -> "Load":
        """What the brokers of a cluster hold."""
        return cls(
            partition.replicas for topic in image.topics.values() for partition in topic.partitions
        )

    def add(self, replicas: Sequence[int]) -> None:
        """Count one more partition."""
        self.leaders[replicas[0]] += 1
        self.replicas.update(replicas)


def ring(brokers: Mapping[int, str | None]) -> list[int]:
    """The brokers in an order that changes rack at every step for as long as it can."""
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
    load: Load,
    *,
    down: Iterable[int] = (),
    first: int = 0,
    present: Sequence[Sequence[int]] = (),
) -> list[tuple[int, ...]]:
    """The replicas of new partitions of a topic, the preferred leader first; `load` counts them.

    `brokers` are the live ones with their racks, and `present` are the partitions the topic has.
    Among brokers that hold as much as each other the ring decides, from position `first` on. Where
    there are too few, those that are `down` follow: a topic can be made while a broker is away.
    """
    waiting = sorted(down)
    missing = max(replication_factor - len(brokers), 0)
    if missing > len(waiting) or not brokers:
        away = f" and {len(waiting)} that are down" if waiting else ""
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"{replication_factor} replicas need as many brokers, and there are"
            f" {len(brokers)}{away}; lower the replication factor or start more brokers",
        )
    placed = _Placement(brokers, load, Load(present)).place(
        partition_count, replication_factor - missing, first + len(present)
    )
    return [replicas + _followers_that_are_down(missing, waiting, load) for replicas in placed]


def _followers_that_are_down(count: int, brokers: Sequence[int], load: Load) -> tuple[int, ...]:
    """So many of these, those that hold the least; `load` counts them."""
    chosen = sorted(brokers, key=lambda one: load.replicas[one])[:count]
    load.replicas.update(chosen)
    return tuple(chosen)


class _Placement:
    """One topic while its partitions are placed.

    Leaders are chosen before any follower is, so that followers can make up for what leaders, who
    have to be even among themselves, leave uneven.
    """

    def __init__(self, brokers: Mapping[int, str | None], cluster: Load, topic: Load) -> None:
        self._racks = brokers
        self._ring = ring(brokers)
        self._cluster = cluster
        self._topic = topic
        # How often a broker follows a leader, and how often it is the first to take over: when one
        # fails, all others should share its load.
        self._followers = Counter[tuple[int, int]]()
        self._heirs = Counter[tuple[int, int]]()

    def place(
        self, partition_count: int, replication_factor: int, first: int
    ) -> list[tuple[int, ...]]:
        turns = [self._turn(first + number) for number in range(partition_count)]
        leaders = [self._leader(order) for order in turns]
        placed = [
            [leader, *self._followers_of(leader, order, replication_factor - 1)]
            for leader, order in zip(leaders, turns, strict=True)
        ]
        while self._evened(placed):
            pass
        return [tuple(replicas) for replicas in placed]

    def _turn(self, turn: int) -> list[int]:
        """The ring from another broker on, for a choice among equals."""
        turn %= len(self._ring)
        return self._ring[turn:] + self._ring[:turn]

    def _leader(self, order: Sequence[int]) -> int:
        topic, cluster = self._topic, self._cluster
        leader = min(
            order,
            key=lambda one: (
                topic.leaders[one],
                cluster.leaders[one],
                topic.replicas[one],
                cluster.replicas[one],
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
                key=lambda one: (
                    used[racks[one]],
                    topic.replicas[one],
                    cluster.replicas[one],
                    self._followers[leader, one],
                ),
            )
            used[racks[follower]] += 1
            topic.replicas[follower] += 1
            cluster.replicas[follower] += 1
            self._followers[leader, follower] += 1
            chosen.append(follower)
        followers = sorted(chosen[1:], key=lambda one: self._heirs[leader, one])
        self._heirs.update((leader, one) for one in followers[:1])
        return followers

    def _evened(self, placed: Sequence[list[int]]) -> bool:
        """Let the broker with the fewest replicas follow instead of the one with the most.

        False if they are even, or racks do not allow it: the last partitions may have had no choice
        but to follow a leader that is not the one with the most.
        """
        replicas, racks = self._topic.replicas, self._racks
        most = max(self._ring, key=lambda one: replicas[one])
        fewest = min(self._ring, key=lambda one: replicas[one])
        if replicas[most] - replicas[fewest] <= 1:
            return False
        for chosen in placed:
            if most not in chosen[1:] or fewest in chosen:
                continue
            used = Counter(racks[one] for one in chosen)
            if racks[most] == racks[fewest] or used[racks[fewest]] < used[racks[most]]:
                chosen[chosen.index(most)] = fewest
                for load in (self._topic, self._cluster):
                    load.replicas[most] -= 1
                    load.replicas[fewest] += 1
                return True
        return False
