"""Where the replicas of new partitions go."""

from collections import deque
from collections.abc import Mapping

from headrace.errors import ErrorCode, KafkaError


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
    first: int,
    start_partition: int = 0,
) -> list[tuple[int, ...]]:
    """Replicas of partitions from `start_partition` on, the preferred leader first.

    `brokers` are the live ones with their racks. Leaders go round the ring from position `first`;
    followers come after their leader, one further with every round, so that the load of a broker
    that fails is shared by all others. No rack gets a second replica before every rack has one.
    """
    if replication_factor > len(brokers):
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"{replication_factor} replicas need as many live brokers, and there are"
            f" {len(brokers)}; lower the replication factor or start more brokers",
        )
    order = ring(brokers)
    return [
        _replicas(order, brokers, replication_factor, first, partition)
        for partition in range(start_partition, start_partition + partition_count)
    ]


def _replicas(
    order: list[int], racks: Mapping[int, str | None], count: int, first: int, partition: int
) -> tuple[int, ...]:
    size = len(order)
    leader = (first + partition) % size
    chosen = [order[leader]]
    if count == 1:
        return tuple(chosen)
    shift = partition // size
    followers = [
        order[(leader + 1 + (shift + step) % (size - 1)) % size] for step in range(size - 1)
    ]
    used = {racks[chosen[0]]}
    same_rack = []
    for broker_id in followers:
        if racks[broker_id] in used:
            same_rack.append(broker_id)
        else:
            used.add(racks[broker_id])
            chosen.append(broker_id)
    return tuple((chosen + same_rack)[:count])
