"""The classic group protocol from a member's side: what to send next, and what an answer means.

    OUTSIDE -- may join --> JOINING -- is let in --> SYNCING -- has its assignment --> STABLE
    STABLE -- the group rebalances, or topics change --> JOINING
    JOINING, SYNCING, STABLE -- the coordinator does not know it any more --> OUTSIDE

Rule: no sockets, no clock. The driver sends the requests made here, and tells the answers; what
has to be revoked, is assigned, or was lost is said in values.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from headrace.client.consumer.assignors import Assignor
from headrace.client.consumer.consumer_protocol import (
    NO_GENERATION,
    MemberSubscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from headrace.client.errors import failure
from headrace.errors import ErrorCode, KafkaError, Subject, error_code
from headrace.protocol.messages.heartbeat import HeartbeatRequest
from headrace.protocol.messages.join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
)
from headrace.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from headrace.protocol.messages.sync_group import (
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from headrace.types import TopicPartition

PROTOCOL_TYPE = "consumer"
NO_MEMBER = ""

_ELSEWHERE = frozenset((ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE))
# The coordinator goes on without this member, or a newer group has taken this one's name.
_UNKNOWN = frozenset(
    (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION, ErrorCode.GROUP_ID_NOT_FOUND)
)
# A longer reason is refused by some brokers.
_REASON_CHARS = 255


class JoinPhase(Enum):
    """The phase of a member in the group protocol."""

    OUTSIDE = "outside"
    JOINING = "joining"
    SYNCING = "syncing"
    STABLE = "stable"


class JoinOutcome(Enum):
    """The next step of the driver after an answer. Fatal errors are raised instead."""

    # Go on with what comes next.
    DONE = "done"
    # Ask for the same once more, now.
    AGAIN = "again"
    # Ask for the same after a pause.
    LATER = "later"
    # Look for the coordinator, then as LATER.
    ELSEWHERE = "elsewhere"
    # The membership is over, and whatever is owned is lost. Join as a new member.
    LOST = "lost"


class MembershipIdentity(NamedTuple):
    """The identity of a member at its coordinator."""

    member_id: str = NO_MEMBER
    generation: int = NO_GENERATION


@dataclass(frozen=True, slots=True)
class MembershipSettings:
    """The fields of a join by a member. The strategies are in order of preference."""

    group_id: str
    strategies: tuple[Assignor, ...]
    session_timeout_ms: int
    rebalance_timeout_ms: int
    instance_id: str | None = None
    rack: str | None = None

    @property
    def is_cooperative(self) -> bool:
        """Whether partitions are kept while the group rebalances.

        As in Java only if every strategy can: which one the group takes is not known before.
        """
        return all(strategie.is_cooperative for strategie in self.strategies)


class AssignmentChanges(NamedTuple):
    """The changes of a new assignment: give up `revoked` first, then take over `added`."""

    revoked: list[TopicPartition]
    added: list[TopicPartition]


class GroupMembership:
    """One member of one group.

    Invariant: `identity.generation` is that of the last answer that let us in, and `assignment` is
    the part of it we were given, while the phase is STABLE.
    """

    def __init__(self, settings: MembershipSettings) -> None:
        self._settings = settings
        self._strategies = {strategie.name: strategie for strategie in settings.strategies}
        self.phase = JoinPhase.OUTSIDE
        self.identity = MembershipIdentity()
        self.assignment: list[TopicPartition] = []
        # Why to join again, once that may be; None if all is well.
        self.rejoin_reason: str | None = "the consumer starts"
        self.protocol: str | None = None
        self.is_leader = False
        # Topics any member subscribes to, for the leader, which has to watch them.
        self.group_topics: frozenset[str] = frozenset()
        # Whether an assignment is to be left as it is, though this member leads (KIP-814).
        self._skips_assignment = False
        self._members: dict[str, MemberSubscription] = {}
        # What was assigned last and when, which outlives the membership: sticky members tell it.
        self._previous: list[TopicPartition] = []
        self._previous_generation = NO_GENERATION

    @property
    def is_stable(self) -> bool:
        """Whether it has the assignment of its generation, and no reason to join again."""
        return self.phase is JoinPhase.STABLE and self.rejoin_reason is None

    def must_join_again(self, reason: str) -> None:
        """Join again as soon as that may be: topics have changed, say."""
        self.rejoin_reason = reason

    def to_revoke(
        self, owned: Iterable[TopicPartition], topics: Collection[str]
    ) -> list[TopicPartition]:
        """The partitions to give up before joining: all, or if cooperative, unwanted ones."""
        if not self._settings.is_cooperative:
            return sorted(owned)
        return sorted(tp for tp in owned if tp.topic not in topics)

    # -- joining

    def join(self, topics: Collection[str], owned: Sequence[TopicPartition]) -> JoinGroupRequest:
        """The request to send; `owned` is what is left after `to_revoke`."""
        reason, self.rejoin_reason = self.rejoin_reason, None
        self.phase = JoinPhase.JOINING
        settings = self._settings
        return JoinGroupRequest(
            group_id=settings.group_id,
            session_timeout_ms=settings.session_timeout_ms,
            rebalance_timeout_ms=settings.rebalance_timeout_ms,
            member_id=self.identity.member_id,
            group_instance_id=settings.instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocols=[
                JoinGroupRequestProtocol(
                    name=strategy.name,
                    metadata=encode_subscription(
                        MemberSubscription(
                            topics,
                            owned,
                            self._previous_generation,
                            strategy.user_data(self._previous, self._previous_generation),
                            settings.rack,
                        )
                    ),
                )
                for strategy in settings.strategies
            ],
            reason=(reason or "the last attempt failed")[:_REASON_CHARS],
        )

    def joined(self, response: JoinGroupResponse) -> JoinOutcome:
        """Take the answer to `join`."""
        assert self.phase is JoinPhase.JOINING
        code = error_code(response.error_code)
        if code is ErrorCode.MEMBER_ID_REQUIRED:
            # The id is known before the group waits for it: no answer can be lost (KIP-394).
            self.identity = self.identity._replace(member_id=response.member_id)
            return JoinOutcome.AGAIN
        if code is ErrorCode.REBALANCE_IN_PROGRESS:
            return JoinOutcome.LATER
        if code is not ErrorCode.NONE:
            return self._refused(code)
        if response.protocol_name not in self._strategies:
            raise self._error(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        self.phase = JoinPhase.SYNCING
        self.identity = MembershipIdentity(response.member_id, response.generation_id)
        self.protocol = response.protocol_name
        self.is_leader = response.leader == response.member_id
        self._skips_assignment = response.skip_assignment
        self._members = {
            member.member_id: decode_subscription(member.metadata, member.group_instance_id)
            for member in response.members
        }
        self.group_topics = frozenset(
            topic for member in self._members.values() for topic in member.topics
        )
        return JoinOutcome.DONE

    def sync(self, partition_counts: Mapping[str, int]) -> SyncGroupRequest:
        """The request to send; a leader decides with it who has what.

        Topics without a count do not exist, or not yet.
        """
        assert self.phase is JoinPhase.SYNCING
        assert self.protocol is not None
        shares: Mapping[str, Collection[TopicPartition]] = {}
        if self.is_leader and not self._skips_assignment:
            shares = self._strategies[self.protocol].assign(partition_counts, self._members)
        self._members = {}
        return SyncGroupRequest(
            group_id=self._settings.group_id,
            generation_id=self.identity.generation,
            member_id=self.identity.member_id,
            group_instance_id=self._settings.instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocol_name=self.protocol,
            assignments=[
                SyncGroupRequestAssignment(
                    member_id=member_id, assignment=encode_assignment(partitions)
                )
                for member_id, partitions in shares.items()
            ],
        )

    def synced(self, response: SyncGroupResponse) -> JoinOutcome:
        """Take the answer to `sync`. Unless it is DONE, the way back in is `join`."""
        assert self.phase is JoinPhase.SYNCING
        code = error_code(response.error_code)
        if code is ErrorCode.REBALANCE_IN_PROGRESS:
            self.must_join_again("another rebalance began")
            return JoinOutcome.AGAIN
        if code is not ErrorCode.NONE:
            return self._refused(code)
        self.assignment = decode_assignment(response.assignment)
        self.phase = JoinPhase.STABLE
        self._previous = self.assignment
        self._previous_generation = self.identity.generation
        return JoinOutcome.DONE

    def changes(self, owned: Collection[TopicPartition]) -> AssignmentChanges:
        """The changes of the assignment for a member that owns these partitions."""
        assigned = set(self.assignment)
        return AssignmentChanges(
            sorted(set(owned) - assigned), [tp for tp in self.assignment if tp not in set(owned)]
        )

    # -- staying

    @property
    def beats(self) -> bool:
        """Whether to send heartbeats: not while an answer is waited for that does for one."""
        return self.phase is JoinPhase.STABLE

    def heartbeat(self) -> HeartbeatRequest:
        """The request to send while `beats`."""
        return HeartbeatRequest(
            group_id=self._settings.group_id,
            generation_id=self.identity.generation,
            member_id=self.identity.member_id,
            group_instance_id=self._settings.instance_id,
        )

    def heard(self, sent_by: MembershipIdentity, code_heard: int) -> JoinOutcome:
        """Take the answer to a heartbeat or commit of an identity, which may be of the past."""
        code = error_code(code_heard)
        if code is ErrorCode.NONE:
            return JoinOutcome.DONE
        if sent_by != self.identity or self.phase is not JoinPhase.STABLE:
            # It was on its way when we joined again, and tells nothing of where we are now.
            return JoinOutcome.ELSEWHERE if code in _ELSEWHERE else JoinOutcome.DONE
        if code is ErrorCode.REBALANCE_IN_PROGRESS:
            if self.rejoin_reason is None:
                self.must_join_again("the group rebalances")
            return JoinOutcome.DONE
        return self._refused(code)

    def lose(self, reason: str) -> None:
        """End the membership without a word from the coordinator: this member gave it up."""
        self.phase = JoinPhase.OUTSIDE
        self.identity = MembershipIdentity()
        self._forget_generation(reason)

    def leave(self, reason: str) -> LeaveGroupRequest | None:
        """The request by which to leave; None for those who need not, or have nothing to leave.

        A static member is expected back and leaves by not coming back in time (KIP-345).
        """
        member_id = self.identity.member_id
        if not member_id or self._settings.instance_id is not None:
            return None
        return LeaveGroupRequest(
            group_id=self._settings.group_id,
            member_id=member_id,
            members=[MemberIdentity(member_id=member_id, reason=reason[:_REASON_CHARS])],
        )

    def _refused(self, code: ErrorCode) -> JoinOutcome:
        """Handle the errors that every request of a member can be refused with."""
        if code in _UNKNOWN:
            # A member whose generation is wrong is still known by its id.
            kept = self.identity.member_id if code is ErrorCode.ILLEGAL_GENERATION else NO_MEMBER
            self.phase = JoinPhase.OUTSIDE
            self.identity = MembershipIdentity(kept)
            self._forget_generation(f"the coordinator said {code.name}")
            return JoinOutcome.LOST
        if code in _ELSEWHERE:
            return JoinOutcome.ELSEWHERE
        if code.retriable:
            return JoinOutcome.LATER
        raise self._error(code)

    def _forget_generation(self, reason: str) -> None:
        self.assignment = []
        self.is_leader = False
        self.group_topics = frozenset()
        self.must_join_again(reason)

    def _error(self, code: ErrorCode) -> KafkaError:
        settings = self._settings
        names = ", ".join(strategie.name for strategie in settings.strategies)
        advice = {
            ErrorCode.FENCED_INSTANCE_ID: (
                f"another consumer joined with group_instance_id={settings.instance_id!r};"
                " give every consumer its own"
            ),
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL: (
                f"no partition_assignment_strategy of this consumer ({names}) is one that all"
                " members have, or the group is not one of consumers"
            ),
            ErrorCode.INVALID_SESSION_TIMEOUT: (
                f"session_timeout_ms={settings.session_timeout_ms} is outside of what the broker"
                " allows with group.min.session.timeout.ms and group.max.session.timeout.ms"
            ),
            ErrorCode.GROUP_MAX_SIZE_REACHED: "it has as many members as group.max.size allows",
        }.get(code)
        error = failure(code, advice, Subject("group", settings.group_id))
        assert error is not None
        return error
