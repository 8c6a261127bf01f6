"""What the brokers of a cluster say of it, and which of them knows best.

Rule: a broker that is cut off does not know it, so of several views the one with the highest epoch
holds.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from headrace.errors import ErrorCode

NOBODY = -1


@dataclass(frozen=True, slots=True)
class PartitionView:
    """A partition as brokers see it; `leader` is NOBODY while there is none."""

    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]

    @property
    def is_whole(self) -> bool:
        """Whether it is led, and every replica is in sync."""
        return self.leader != NOBODY and set(self.isr) == set(self.replicas)


def topic_view(answers: Iterable[Any], topic: str) -> dict[int, PartitionView]:
    """The partitions of a topic by index, from Metadata answers of any brokers."""
    found: dict[int, PartitionView] = {}
    for answer in answers:
        for one in answer.topics:
            if one.name != topic or one.error_code:
                continue
            for partition in one.partitions:
                view = PartitionView(
                    partition.leader_id,
                    partition.leader_epoch,
                    tuple(partition.replica_nodes),
                    tuple(partition.isr_nodes),
                )
                known = found.get(partition.partition_index)
                if known is None or known.leader_epoch < view.leader_epoch:
                    found[partition.partition_index] = view
    return dict(sorted(found.items()))


def quorum_leader(answers: Iterable[Any]) -> tuple[int, int]:
    """The leader of the controllers and its epoch, from DescribeQuorum answers; NOBODY if none."""
    found = (NOBODY, NOBODY)
    for answer in answers:
        if answer.error_code:
            continue
        for topic in answer.topics:
            for one in topic.partitions:
                if one.error_code in (0, ErrorCode.NOT_LEADER_OR_FOLLOWER) and (
                    one.leader_epoch > found[1] or (one.leader_epoch == found[1] and found[0] < 0)
                ):
                    found = (one.leader_id, one.leader_epoch)
    return found
