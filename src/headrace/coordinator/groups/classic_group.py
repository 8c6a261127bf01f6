"""A group of the classic protocol: its members, its generation and its state.

A group keeps itself consistent. Requests, rebalances and timeouts are decided in
`classic_protocol`.
"""

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import NamedTuple

from headrace.coordinator.deadlines import Timer
from headrace.coordinator.shard import RequestClient, Token
from headrace.errors import ErrorCode, ProtocolError
from headrace.protocol.message_codec import decode
from headrace.protocol.messages.consumer_protocol import ConsumerProtocolSubscription
from headrace.protocol.messages.describe_groups import DescribedGroup, DescribedGroupMember
from headrace.protocol.messages.join_group import JoinGroupResponseMember
from headrace.protocol.messages.list_groups import ListedGroup
from headrace.protocol.messages.offset_commit import OffsetCommitRequest
from headrace.protocol.messages.offsets_records import GroupMetadataValue, MemberMetadata
from headrace.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest
from headrace.protocol.schema import REQUEST_ELEMENTS_MAX, schema_of

GROUP_TYPE = "classic"
CONSUMER_PROTOCOL = "consumer"


class GroupState(Enum):
    """The state of a group; the values are Kafka's names on the wire."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


TRANSITIONS: Mapping[GroupState, frozenset[GroupState]] = {
    GroupState.EMPTY: frozenset({GroupState.PREPARING_REBALANCE, GroupState.DEAD}),
    GroupState.PREPARING_REBALANCE: frozenset(
        {GroupState.COMPLETING_REBALANCE, GroupState.EMPTY, GroupState.DEAD}
    ),
    GroupState.COMPLETING_REBALANCE: frozenset(
        {GroupState.STABLE, GroupState.PREPARING_REBALANCE, GroupState.DEAD}
    ),
    GroupState.STABLE: frozenset({GroupState.PREPARING_REBALANCE, GroupState.DEAD}),
    GroupState.DEAD: frozenset(),
}


class DelayedReply(NamedTuple):
    """A request that is answered later, and the version of its response."""

    token: Token
    version: int


class ClassicMember:
    """A member of a group, identified by an id that the coordinator generated."""

    __slots__ = (
        "assignment",
        "client",
        "instance_id",
        "is_joined",
        "is_new",
        "member_id",
        "protocols",
        "rebalance_timeout_ms",
        "session",
        "session_timeout_ms",
        "waiting_join",
        "waiting_sync",
    )

    def __init__(
        self,
        member_id: str,
        instance_id: str | None,
        client: RequestClient,
        session_timeout_ms: int,
        rebalance_timeout_ms: int,
        protocols: dict[str, bytes],
    ) -> None:
        self.member_id = member_id
        self.instance_id = instance_id
        self.client = client
        self.session_timeout_ms = session_timeout_ms
        self.rebalance_timeout_ms = rebalance_timeout_ms
        # Protocol names in the order of preference, each with the member's metadata for the leader.
        self.protocols = protocols
        self.assignment = b""
        # In no generation yet, so it has not received its id in a response to its join.
        self.is_new = True
        # Has joined the generation that is being prepared, even if its connection is closed since.
        self.is_joined = False
        self.waiting_join: DelayedReply | None = None
        self.waiting_sync: DelayedReply | None = None
        self.session = Timer()

    def has_protocols(self, protocols: Mapping[str, bytes]) -> bool:
        """Whether these are the member's protocols, in the same order."""
        return list(self.protocols.items()) == list(protocols.items())


class ClassicGroup:
    """The members and the generation of a group.

    Invariants: `generation` never decreases. The leader is a member, and a group with members has a
    leader. `static` maps an instance id to the id of the static member that holds it. In
    CompletingRebalance and Stable every member supports `protocol_name`. A group in Empty or Dead
    has no members.
    """

    def __init__(self, group_id: str, now_ms: int | None) -> None:
        self.group_id = group_id
        self.state = GroupState.EMPTY
        # The time of the last transition, on the monotonic clock; None if an old record has none.
        # While a shard is loading it is the time of day of the record.
        self.state_timestamp_ms = now_ms
        self.generation = 0
        # Since this coordinator loaded the group, for metrics.
        self.rebalance_count = 0
        self.commit_count = 0
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.leader: str | None = None
        self.members: dict[str, ClassicMember] = {}
        self.static: dict[str, str] = {}
        # Ids sent with MEMBER_ID_REQUIRED that have not joined, until their timer fires.
        self.pending: dict[str, Timer] = {}
        self.pending_sync: set[str] = set()
        self.joined_count = 0
        # The first rebalance after Empty is delayed, so that members that start together join it.
        self.is_initial = False
        self.has_new_member = False
        self.initial_deadline_ms = 0
        # The generation whose assignment is being appended and is not committed yet.
        self.storing_generation: int | None = None
        self.is_recorded = False
        self.join_timer = Timer()
        self.sync_timer = Timer()
        self.expiry_timer = Timer()
        self.subscribed_topics: frozenset[str] | None = None
        self._supported: dict[str, int] = {}

    def transition(self, state: GroupState, now_ms: int) -> None:
        assert state in TRANSITIONS[self.state], (self.group_id, self.state, state)
        self.state = state
        self.state_timestamp_ms = now_ms

    def add(self, member: ClassicMember, protocol_type: str) -> None:
        assert member.member_id not in self.members
        if not self.members:
            self.protocol_type = protocol_type
        assert self.protocol_type == protocol_type
        self.members[member.member_id] = member
        if member.instance_id is not None:
            assert member.instance_id not in self.static
            self.static[member.instance_id] = member.member_id
        if self.leader is None:
            self.leader = member.member_id
        self.joined_count += member.is_joined
        self._count(member.protocols, 1)

    def remove(self, member: ClassicMember) -> None:
        assert member.waiting_join is None and member.waiting_sync is None
        del self.members[member.member_id]
        if member.instance_id is not None:
            del self.static[member.instance_id]
        if self.leader == member.member_id:
            self.leader = next(iter(self.members), None)
        self.joined_count -= member.is_joined
        self.pending_sync.discard(member.member_id)
        self._count(member.protocols, -1)

    def rename(self, member: ClassicMember, member_id: str) -> None:
        """Give a static member a new id; requests with its old id are fenced from now on."""
        assert member.instance_id is not None
        old_id = member.member_id
        del self.members[old_id]
        self.members[member_id] = member
        member.member_id = member_id
        self.static[member.instance_id] = member_id
        if self.leader == old_id:
            self.leader = member_id
        if old_id in self.pending_sync:
            self.pending_sync.remove(old_id)
            self.pending_sync.add(member_id)

    def set_protocols(self, member: ClassicMember, protocols: dict[str, bytes]) -> None:
        self._count(member.protocols, -1)
        member.protocols = protocols
        self._count(protocols, 1)

    def set_joined(self, member: ClassicMember, joined: bool) -> None:
        self.joined_count += joined - member.is_joined
        member.is_joined = joined

    @property
    def is_empty(self) -> bool:
        return self.state is GroupState.EMPTY

    @property
    def has_all_joined(self) -> bool:
        return self.joined_count == len(self.members) and not self.pending

    @property
    def staying_count(self) -> int:
        """The number of members that would be in a generation that began now."""
        return sum(
            member.is_joined or member.instance_id is not None for member in self.members.values()
        )

    @property
    def is_consumer(self) -> bool:
        return self.protocol_type == CONSUMER_PROTOCOL

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest rebalance timeout of the members."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def check_member(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """NONE if the sender is a member and, with an instance id, the holder of that id."""
        if instance_id is not None:
            holder = self.static.get(instance_id)
            if holder is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if holder != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID

    def check_commit(self, request: OffsetCommitRequest) -> ErrorCode:
        """NONE if a commit is permitted: to members of this generation, or to an Empty group."""
        generation = request.generation_id_or_member_epoch
        if self.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if generation < 0 and self.state is GroupState.EMPTY:
            # The sender is a consumer without group membership, or an administrator's tool.
            return ErrorCode.NONE
        code = self.check_member(request.member_id, request.group_instance_id)
        if code is not ErrorCode.NONE:
            return code
        if generation != self.generation:
            return ErrorCode.ILLEGAL_GENERATION
        if self.state is GroupState.COMPLETING_REBALANCE:
            # The member knows the new generation but not yet its assignment.
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def check_txn_commit(self, request: TxnOffsetCommitRequest) -> ErrorCode:
        """NONE if a transaction may commit offsets of the group.

        A producer that names no member always may: versions before 3 cannot name a member, and
        there the transaction alone fences zombies. A rebalance does not matter, since the
        partitions of a member are its own until the next generation begins.
        """
        generation, member_id = request.generation_id, request.member_id
        if self.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if generation < 0 and self.state is GroupState.EMPTY:
            return ErrorCode.NONE
        if generation < 0 and not member_id and request.group_instance_id is None:
            return ErrorCode.NONE
        code = self.check_member(member_id, request.group_instance_id)
        if code is not ErrorCode.NONE:
            return code
        return ErrorCode.NONE if generation == self.generation else ErrorCode.ILLEGAL_GENERATION

    def check_offset_delete(self) -> ErrorCode:
        """NONE if offsets may be deleted; `Offsets.delete` refuses those of subscribed topics."""
        if self.state is GroupState.DEAD:
            return ErrorCode.GROUP_ID_NOT_FOUND
        if self.state is not GroupState.EMPTY and not self.is_consumer:
            # The metadata of other protocols does not show which topics the members read.
            return ErrorCode.NON_EMPTY_GROUP
        return ErrorCode.NONE

    def supports(self, protocol_type: str, names: Iterable[str]) -> bool:
        """Whether all members share a protocol with a member that supports these."""
        if self.state is GroupState.EMPTY:
            return bool(protocol_type) and any(True for _ in names)
        size = len(self.members)
        return self.protocol_type == protocol_type and any(
            self._supported.get(name, 0) == size for name in names
        )

    def select_protocol(self) -> str:
        """The protocol that most members prefer, among those that all members support."""
        size = len(self.members)
        votes: dict[str, int] = {}
        for member in self.members.values():
            choice = next(name for name in member.protocols if self._supported[name] == size)
            votes[choice] = votes.get(choice, 0) + 1
        return max(votes, key=votes.__getitem__)

    def elect_joined_leader(self) -> bool:
        """Keep the leader if it has joined, else choose the first joined member; False if none."""
        if self.leader is None:
            return False
        if not self.members[self.leader].is_joined:
            joined = (member.member_id for member in self.members.values() if member.is_joined)
            self.leader = next(joined, self.leader)
        return self.members[self.leader].is_joined

    def start_generation(self, now_ms: int) -> None:
        """Begin the next generation with the present members: CompletingRebalance, or Empty."""
        self.generation += 1
        self.rebalance_count += 1
        self.is_initial = False
        self.pending_sync.clear()
        if self.members:
            self.protocol_name = self.select_protocol()
            self.transition(GroupState.COMPLETING_REBALANCE, now_ms)
        else:
            self.protocol_name = None
            self.transition(GroupState.EMPTY, now_ms)
        self.subscribed_topics = self._find_subscribed_topics()

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether members subscribe to a topic; assumed of consumers with unreadable metadata."""
        if self.subscribed_topics is None:
            return self.is_consumer
        return topic in self.subscribed_topics

    @property
    def may_expire_offsets(self) -> bool:
        """Whether offsets may expire: not in a rebalance, nor if subscriptions are unknown."""
        if self.protocol_type is None or self.state is GroupState.EMPTY:
            return True
        is_known = self.is_consumer and self.subscribed_topics is not None
        return is_known and self.state is GroupState.STABLE

    @property
    def empty_since_ms(self) -> int | None:
        """The time at which the last member left; None if the group has members or never had."""
        if self.protocol_type is None or self.state is not GroupState.EMPTY:
            return None
        return self.state_timestamp_ms

    def members_for_leader(self) -> list[JoinGroupResponseMember]:
        assert self.protocol_name is not None
        return [
            JoinGroupResponseMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                metadata=member.protocols[self.protocol_name],
            )
            for member in self.members.values()
        ]

    def to_value(self, assignments: Mapping[str, bytes], wall_ms: int) -> GroupMetadataValue:
        """The record value of the group, with the assignments of its members."""
        name = self.protocol_name
        return GroupMetadataValue(
            protocol_type=self.protocol_type or "",
            generation=self.generation,
            protocol=name,
            leader=self.leader,
            current_state_timestamp=wall_ms,
            members=[
                MemberMetadata(
                    member_id=member.member_id,
                    group_instance_id=member.instance_id,
                    client_id=member.client.client_id,
                    client_host=member.client.host,
                    rebalance_timeout=member.rebalance_timeout_ms,
                    session_timeout=member.session_timeout_ms,
                    subscription=member.protocols[name] if name is not None else b"",
                    assignment=assignments.get(member.member_id, b""),
                )
                for member in self.members.values()
            ],
        )

    def restore(self, value: GroupMetadataValue, members: Iterable[ClassicMember]) -> None:
        """Restore the group from the value of its record."""
        self.state = GroupState.STABLE if value.members else GroupState.EMPTY
        timestamp = value.current_state_timestamp
        self.state_timestamp_ms = timestamp if timestamp >= 0 else None
        self.generation = value.generation
        self.protocol_type = value.protocol_type or None
        self.protocol_name = (value.protocol or "") if value.members else None
        self.is_recorded = True
        for member in members:
            self.add(member, value.protocol_type)
        if value.leader in self.members:
            self.leader = value.leader
        self.subscribed_topics = self._find_subscribed_topics()

    def describe(self) -> DescribedGroup:
        """The group as DescribeGroups shows it. Subscriptions are shown only in Stable."""
        name = self.protocol_name if self.state is GroupState.STABLE else None
        return DescribedGroup(
            group_id=self.group_id,
            group_state=self.state.value,
            protocol_type=self.protocol_type or "",
            protocol_data=name or "",
            members=[
                DescribedGroupMember(
                    member_id=member.member_id,
                    group_instance_id=member.instance_id,
                    client_id=member.client.client_id,
                    client_host=member.client.host,
                    member_metadata=member.protocols[name] if name is not None else b"",
                    member_assignment=member.assignment,
                )
                for member in self.members.values()
            ],
        )

    def list_entry(self) -> ListedGroup:
        return ListedGroup(
            group_id=self.group_id,
            protocol_type=self.protocol_type or "",
            group_state=self.state.value,
            group_type=GROUP_TYPE,
        )

    def _count(self, protocols: Iterable[str], step: int) -> None:
        for name in protocols:
            count = self._supported.get(name, 0) + step
            if count:
                self._supported[name] = count
            else:
                del self._supported[name]

    def _find_subscribed_topics(self) -> frozenset[str] | None:
        if not self.is_consumer:
            return None
        topics: set[str] = set()
        for member in self.members.values():
            assert self.protocol_name is not None
            subscribed = subscription_topics(member.protocols[self.protocol_name])
            if subscribed is None:
                return None
            topics |= subscribed
        return frozenset(topics)


def subscription_topics(metadata: bytes) -> frozenset[str] | None:
    """The topics a consumer subscribes to; None if its metadata cannot be read.

    Version 0 is a prefix of every later version, so topics can be read from those too.
    """
    if len(metadata) < 2:
        return None
    schema = schema_of(ConsumerProtocolSubscription, 0)
    try:
        subscription, _ = decode(schema, metadata, 2, REQUEST_ELEMENTS_MAX)
    except ProtocolError:
        return None
    assert isinstance(subscription, ConsumerProtocolSubscription)
    return frozenset(subscription.topics)
