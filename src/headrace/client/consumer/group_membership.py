"""The classic group protocol of a member: the requests to send, and the effect of responses.

    OUTSIDE -- may join --> JOINING -- joined --> SYNCING -- has its assignment --> STABLE
    STABLE -- the group rebalances, or topics change --> JOINING
    JOINING, SYNCING, STABLE -- the coordinator does not know the member any more --> OUTSIDE

Rule: no sockets, no clock. The driver sends the requests made here, and passes in the responses;
partitions to revoke, assigned or lost are returned as values.
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
# The coordinator has removed this member, or a new group has the same name.
_UNKNOWN = frozenset(
    (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION, ErrorCode.GROUP_ID_NOT_FOUND)
)
# Some brokers refuse a longer reason.
_REASON_CHARS = 255


class JoinPhase(Enum):
    """The phase of a member in the group protocol."""

    OUTSIDE = "outside"
    JOINING = "joining"
    SYNCING = "syncing"
    STABLE = "stable"


class JoinOutcome(Enum):
    """The next step of the driver after a response. Fatal errors are raised instead."""

    # Continue with the next request.
    DONE = "done"
    # Repeat the request at once.
    AGAIN = "again"
    # Repeat the request after a pause.
    LATER = "later"
    # Look up the coordinator, then as LATER.
    ELSEWHERE = "elsewhere"
    # The membership is over, and all owned partitions are lost. Join as a new member.
    LOST = "lost"


class MembershipIdentity(NamedTuple):
    """The member id and generation of a member at its coordinator."""

    member_id: str = NO_MEMBER
    generation: int = NO_GENERATION


@dataclass(frozen=True, slots=True)
class MembershipSettings:
    """The JoinGroup fields of a member. The strategies are in order of preference."""

    group_id: str
    strategies: tuple[Assignor, ...]
    session_timeout_ms: int
    rebalance_timeout_ms: int
    instance_id: str | None = None
    rack: str | None = None

    @property
    def is_cooperative(self) -> bool:
        """Whether partitions are kept during a rebalance.

        As in Java only if every strategy is cooperative: the group's choice is not known before.
        """
        return all(strategie.is_cooperative for strategie in self.strategies)


class AssignmentChanges(NamedTuple):
    """The changes by a new assignment: first give up `revoked`, then take over `added`."""

    revoked: list[TopicPartition]
    added: list[TopicPartition]


class GroupMembership:
    """The state of one member of one group.

    Invariant: `identity.generation` is that of the last response that admitted this member, and
    `assignment` is its assignment in that generation, while the phase is STABLE.
    """

    def __init__(self, settings: MembershipSettings) -> None:
        self._settings = settings
        self._strategies = {strategie.name: strategie for strategie in settings.strategies}
        self.phase = JoinPhase.OUTSIDE
        self.identity = MembershipIdentity()
        self.assignment: list[TopicPartition] = []
        # The reason to rejoin, as soon as that is possible; None if there is none.
        self.rejoin_reason: str | None = "the consumer starts"
        self.protocol: str | None = None
        self.is_leader = False
        # For the leader, which has to watch them: the topics that any member subscribes to.
        self.group_topics: frozenset[str] = frozenset()
        # Whether the leader has to keep the existing assignment (KIP-814).
        self._skips_assignment = False
        self._members: dict[str, MemberSubscription] = {}
        # The last assignment and its generation, kept beyond the membership: sticky members send
        # it.
        self._previous: list[TopicPartition] = []
        self._previous_generation = NO_GENERATION

    @property
    def is_stable(self) -> bool:
        """Whether it has the assignment of its generation, and no reason to rejoin."""
        return self.phase is JoinPhase.STABLE and self.rejoin_reason is None

    def must_join_again(self, reason: str) -> None:
        """Rejoin as soon as possible, for example because topics have changed."""
        self.rejoin_reason = reason

    def to_revoke(
        self, owned: Iterable[TopicPartition], topics: Collection[str]
    ) -> list[TopicPartition]:
        """The partitions to revoke before joining: all, or if cooperative, unsubscribed ones."""
        if not self._settings.is_cooperative:
            return sorted(owned)
        return sorted(tp for tp in owned if tp.topic not in topics)

    # -- joining

    def join(self, topics: Collection[str], owned: Sequence[TopicPartition]) -> JoinGroupRequest:
        """The JoinGroup request to send; `owned` are the partitions left after `to_revoke`."""
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
        """Process the response to `join`."""
        assert self.phase is JoinPhase.JOINING
        code = error_code(response.error_code)
        if code is ErrorCode.MEMBER_ID_REQUIRED:
            # The member id is known before the group waits for the member, so a lost response
            # leaves no unknown member behind (KIP-394).
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
        """The SyncGroup request to send; the leader's has the assignment.

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
        """Process the response to `sync`. Unless the outcome is DONE, call `join` next."""
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
        """The changes by the assignment for a member that owns these partitions."""
        assigned = set(self.assignment)
        return AssignmentChanges(
            sorted(set(owned) - assigned), [tp for tp in self.assignment if tp not in set(owned)]
        )

    # -- staying

    @property
    def beats(self) -> bool:
        """Whether to send heartbeats: not while a join or sync is in flight, which counts."""
        return self.phase is JoinPhase.STABLE

    def heartbeat(self) -> HeartbeatRequest:
        """The heartbeat to send while `beats`."""
        return HeartbeatRequest(
            group_id=self._settings.group_id,
            generation_id=self.identity.generation,
            member_id=self.identity.member_id,
            group_instance_id=self._settings.instance_id,
        )

    def heard(self, sent_by: MembershipIdentity, code_heard: int) -> JoinOutcome:
        """Process the response to a heartbeat or commit, which a past identity may have sent."""
        code = error_code(code_heard)
        if code is ErrorCode.NONE:
            return JoinOutcome.DONE
        if sent_by != self.identity or self.phase is not JoinPhase.STABLE:
            # It was sent before the last join, and says nothing about the current state.
            return JoinOutcome.ELSEWHERE if code in _ELSEWHERE else JoinOutcome.DONE
        if code is ErrorCode.REBALANCE_IN_PROGRESS:
            if self.rejoin_reason is None:
                self.must_join_again("the group rebalances")
            return JoinOutcome.DONE
        return self._refused(code)

    def lose(self, reason: str) -> None:
        """End the membership without a response from the coordinator: this member gave it up."""
        self.phase = JoinPhase.OUTSIDE
        self.identity = MembershipIdentity()
        self._forget_generation(reason)

    def leave(self, reason: str) -> LeaveGroupRequest | None:
        """The LeaveGroup request; None for a static member, or without a member id.

        A static member is expected to return, and leaves by its session timeout (KIP-345).
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
        """Handle the errors that every request of a member can be answered with."""
        if code in _UNKNOWN:
            # After ILLEGAL_GENERATION the coordinator still knows the member id.
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
