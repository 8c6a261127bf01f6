"""The next assignment of a member on its way from the partitions it owns to its target.

    STABLE      -- partitions are to be given up -->    UNREVOKED
    UNREVOKED   -- the member owns them no more -->     UNRELEASED or STABLE
    UNRELEASED  -- other members have released theirs --> STABLE

Rule: a partition is assigned to a member only when no member has it: neither assigned nor as one
that it is still to revoke. So a partition never has two owners, and one that stays with its member
is never taken from it.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import NamedTuple, TypeAlias

# Partitions by the id of their topic.
Partitions: TypeAlias = Mapping[bytes, Collection[int]]
# The same, each partition with the member epoch at which it was assigned.
AssignedPartitions: TypeAlias = Mapping[bytes, Mapping[int, int]]

NOTHING: AssignedPartitions = {}

JOINING = 0
LEAVING = -1
# The epoch of a static member that will come back (KIP-848).
LEAVING_STATIC = -2


class MemberState(IntEnum):
    """The state of a member's reconciliation; the values are those of its record."""

    STABLE = 0
    UNREVOKED = 1
    UNRELEASED = 2


class ClassicSession(NamedTuple):
    """What is known only of a member that uses the classic protocol in a consumer group."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class ConsumerMember:
    """A member of a consumer group: its subscription, its epoch, the partitions it has.

    Members are values. A member *has* the partitions in `assigned`, and those in `revoking` until
    it reports that it owns them no more. `previous_epoch` is accepted too, since the response with
    `epoch` may have been lost.
    """

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = -1
    topics: frozenset[str] = frozenset()
    pattern: str = ""
    assignor: str | None = None
    epoch: int = JOINING
    previous_epoch: int = -1
    state: MemberState = MemberState.STABLE
    assigned: AssignedPartitions = field(default_factory=dict)
    revoking: AssignedPartitions = field(default_factory=dict)
    classic: ClassicSession | None = None

    def is_reconciled(self, target_epoch: int) -> bool:
        return self.state is MemberState.STABLE and self.epoch == target_epoch

    def has(self, topic_id: bytes, partition: int) -> bool:
        """Whether the partition is assigned to this member, or still to be revoked by it."""
        return partition in self.assigned.get(topic_id, ()) or (
            partition in self.revoking.get(topic_id, ())
        )


class TargetAssignment(NamedTuple):
    """The target of a member: its partitions, and the epoch of the group they were computed for."""

    epoch: int
    partitions: Partitions


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """What decides about the next assignment of a member.

    `owned` are the partitions that the member reports, None if it did not report any this time.
    `subscribed` are the ids of the topics it is subscribed to. `owner_of` returns the member that
    has a partition.
    """

    target: TargetAssignment
    subscribed: Collection[bytes]
    owned: Partitions | None
    owner_of: Callable[[bytes, int], str | None]

    def next(self, member: ConsumerMember, *, subscription_changed: bool) -> ConsumerMember:
        """The member one step nearer to its target, or as it is if it has to wait."""
        match member.state:
            case MemberState.STABLE:
                if member.epoch != self.target.epoch:
                    return self._advance(member, member.epoch)
                return self._leave_unsubscribed(member) if subscription_changed else member
            case MemberState.UNREVOKED:
                if self._owns_any(member.revoking):
                    return self._leave_unsubscribed(member) if subscription_changed else member
                # After a change of the subscription alone there may be no newer target yet.
                return self._advance(member, min(member.epoch + 1, self.target.epoch))
            case MemberState.UNRELEASED:
                return self._advance(member, member.epoch)

    def _owns_any(self, revoking: AssignedPartitions) -> bool:
        """Whether the member may still own any of these partitions."""
        if self.owned is None:
            return True
        return any(
            partition in revoking.get(topic_id, ())
            for topic_id, partitions in self.owned.items()
            for partition in partitions
        )

    def _advance(self, member: ConsumerMember, epoch: int) -> ConsumerMember:
        """Begin to revoke what is not in the target; else assign what is free of it."""
        kept: dict[bytes, dict[int, int]] = {}
        revoking: dict[bytes, dict[int, int]] = {}
        for topic_id, partitions in member.assigned.items():
            wanted = self._target_of(topic_id)
            for partition, since in partitions.items():
                place = kept if partition in wanted else revoking
                place.setdefault(topic_id, {})[partition] = since
        if revoking and self._owns_any(revoking):
            return replace(
                member,
                state=MemberState.UNREVOKED,
                epoch=epoch,
                previous_epoch=member.epoch,
                assigned=kept,
                revoking=revoking,
            )
        waits = False
        for topic_id in self.target.partitions:
            for partition in self._target_of(topic_id):
                if partition in kept.get(topic_id, ()):
                    continue
                if self.owner_of(topic_id, partition) in (None, member.member_id):
                    kept.setdefault(topic_id, {})[partition] = self.target.epoch
                else:
                    waits = True
        return replace(
            member,
            state=MemberState.UNRELEASED if waits else MemberState.STABLE,
            epoch=self.target.epoch,
            previous_epoch=member.epoch,
            assigned=kept,
            revoking=NOTHING,
        )

    def _target_of(self, topic_id: bytes) -> Collection[int]:
        """The target in a topic: nothing if the member is no longer subscribed to it."""
        if topic_id not in self.subscribed:
            return ()
        return self.target.partitions.get(topic_id, ())

    def _leave_unsubscribed(self, member: ConsumerMember) -> ConsumerMember:
        """Begin to revoke the topics that are no longer subscribed to, without a newer target."""
        left = [topic_id for topic_id in member.assigned if topic_id not in self.subscribed]
        if not left:
            return member
        kept = {
            topic_id: partitions
            for topic_id, partitions in member.assigned.items()
            if topic_id in self.subscribed
        }
        revoking = {topic_id: dict(found) for topic_id, found in member.revoking.items()}
        for topic_id in left:
            revoking.setdefault(topic_id, {}).update(member.assigned[topic_id])
        if self._owns_any(revoking):
            return replace(member, state=MemberState.UNREVOKED, assigned=kept, revoking=revoking)
        return replace(member, assigned=kept)
