"""A group of the classic protocol: its members, its generation and its state.

This module keeps one group consistent. When a generation ends and the next one begins, and what
a request may ask for, is decided in `classic_protocol`.
"""

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import NamedTuple

from headrace.coordinator.deadlines import Timer
from headrace.coordinator.shard import Client, Token
from headrace.errors import ErrorCode, ProtocolError
from headrace.protocol.message_codec import decode
from headrace.protocol.messages.consumer_protocol import ConsumerProtocolSubscription
from headrace.protocol.messages.describe_groups import DescribedGroup, DescribedGroupMember
from headrace.protocol.messages.join_group import JoinGroupResponseMember
from headrace.protocol.messages.list_groups import ListedGroup
from headrace.protocol.messages.offsets_records import GroupMetadataValue, MemberMetadata
from headrace.protocol.schema import REQUEST_ELEMENTS_MAX, schema_of

GROUP_TYPE = "classic"
CONSUMER_PROTOCOL = "consumer"


class State(Enum):
    """Where a group is between two generations; the values are Kafka's names on the wire."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


TRANSITIONS: Mapping[State, frozenset[State]] = {
    State.EMPTY: frozenset({State.PREPARING_REBALANCE, State.DEAD}),
    State.PREPARING_REBALANCE: frozenset({State.COMPLETING_REBALANCE, State.EMPTY, State.DEAD}),
    State.COMPLETING_REBALANCE: frozenset({State.STABLE, State.PREPARING_REBALANCE, State.DEAD}),
    State.STABLE: frozenset({State.PREPARING_REBALANCE, State.DEAD}),
    State.DEAD: frozenset(),
}


class Waiting(NamedTuple):
    """A request that is answered later, and the version its answer has to have."""

    token: Token
    version: int


class Member:
    """One member of a group, known by an id that the coordinator gave it."""

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
        client: Client,
        session_timeout_ms: int,
        rebalance_timeout_ms: int,
        protocols: dict[str, bytes],
    ) -> None:
        self.member_id = member_id
        self.instance_id = instance_id
        self.client = client
        self.session_timeout_ms = session_timeout_ms
        self.rebalance_timeout_ms = rebalance_timeout_ms
        # Names in the order the member prefers them, each with what it tells the leader.
        self.protocols = protocols
        self.assignment = b""
        # In no generation yet, so it has never been told its id in an answer to its join.
        self.is_new = True
        # Has joined the generation that is being prepared. It stays so if its connection goes.
        self.is_joined = False
        self.waiting_join: Waiting | None = None
        self.waiting_sync: Waiting | None = None
        self.session = Timer()

    def prefers(self, protocols: Mapping[str, bytes]) -> bool:
        """Whether these are the member's protocols, in the same order."""
        return list(self.protocols.items()) == list(protocols.items())


class ClassicGroup:
    """The members and the generation of one group.

    Invariants: `generation` never decreases. The leader is a member, and there is one if there are
    members. `static` maps an instance id to the one member that holds it. In CompletingRebalance
    and Stable every member supports `protocol_name`. A group in Empty or Dead has no members.
    """

    def __init__(self, group_id: str, now_ms: int | None) -> None:
        self.group_id = group_id
        self.state = State.EMPTY
        # When the state was entered, on the steady clock; None if an old record did not say. While
        # a shard is loading it is the time of day of the record.
        self.state_timestamp_ms = now_ms
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.leader: str | None = None
        self.members: dict[str, Member] = {}
        self.static: dict[str, str] = {}
        # Ids given out with MEMBER_ID_REQUIRED that have not joined, until their timer fires.
        self.pending: dict[str, Timer] = {}
        self.pending_sync: set[str] = set()
        self.joined_count = 0
        # The first rebalance after Empty waits for a while, so that members start together.
        self.is_initial = False
        self.has_new_member = False
        self.initial_deadline_ms = 0
        # A generation whose assignment has been sent to the log and is not committed yet.
        self.storing_generation: int | None = None
        self.is_recorded = False
        self.join_timer = Timer()
        self.sync_timer = Timer()
        self.expiry_timer = Timer()
        self.subscribed_topics: frozenset[str] | None = None
        self._supported: dict[str, int] = {}

    def transition(self, state: State, now_ms: int) -> None:
        assert state in TRANSITIONS[self.state], (self.group_id, self.state, state)
        self.state = state
        self.state_timestamp_ms = now_ms

    def add(self, member: Member, protocol_type: str) -> None:
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

    def remove(self, member: Member) -> None:
        assert member.waiting_join is None and member.waiting_sync is None
        del self.members[member.member_id]
        if member.instance_id is not None:
            del self.static[member.instance_id]
        if self.leader == member.member_id:
            self.leader = next(iter(self.members), None)
        self.joined_count -= member.is_joined
        self.pending_sync.discard(member.member_id)
        self._count(member.protocols, -1)

    def rename(self, member: Member, member_id: str) -> None:
        """Give a static member a new id; requests with the old one are fenced from now on."""
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

    def set_protocols(self, member: Member, protocols: dict[str, bytes]) -> None:
        self._count(member.protocols, -1)
        member.protocols = protocols
        self._count(protocols, 1)

    def set_joined(self, member: Member, joined: bool) -> None:
        self.joined_count += joined - member.is_joined
        member.is_joined = joined

    @property
    def has_all_joined(self) -> bool:
        return self.joined_count == len(self.members) and not self.pending

    @property
    def staying_count(self) -> int:
        """How many members would be in a generation that began now."""
        return sum(one.is_joined or one.instance_id is not None for one in self.members.values())

    @property
    def is_consumer(self) -> bool:
        return self.protocol_type == CONSUMER_PROTOCOL

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest that any member asked for."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def check_member(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """Whether a request comes from a member, and from the one that holds its instance id."""
        if instance_id is not None:
            holder = self.static.get(instance_id)
            if holder is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if holder != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID

    def supports(self, protocol_type: str, names: Iterable[str]) -> bool:
        """Whether a member that knows these protocols could be in the group."""
        if self.state is State.EMPTY:
            return bool(protocol_type) and any(True for _ in names)
        size = len(self.members)
        return self.protocol_type == protocol_type and any(
            self._supported.get(name, 0) == size for name in names
        )

    def select_protocol(self) -> str:
        """The protocol most members prefer, of those that all of them support."""
        size = len(self.members)
        votes: dict[str, int] = {}
        for member in self.members.values():
            choice = next(name for name in member.protocols if self._supported[name] == size)
            votes[choice] = votes.get(choice, 0) + 1
        return max(votes, key=votes.__getitem__)

    def elect_joined_leader(self) -> bool:
        """Keep the leader if it has joined, or take the first member that has; False if none."""
        if self.leader is None:
            return False
        if not self.members[self.leader].is_joined:
            joined = (one.member_id for one in self.members.values() if one.is_joined)
            self.leader = next(joined, self.leader)
        return self.members[self.leader].is_joined

    def start_generation(self, now_ms: int) -> None:
        """Begin the next generation with the members there are: CompletingRebalance, or Empty."""
        self.generation += 1
        self.is_initial = False
        self.pending_sync.clear()
        if self.members:
            self.protocol_name = self.select_protocol()
            self.transition(State.COMPLETING_REBALANCE, now_ms)
        else:
            self.protocol_name = None
            self.transition(State.EMPTY, now_ms)
        self.subscribed_topics = self._find_subscribed_topics()

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether the members read a topic; if that cannot be known, a consumer group may."""
        if self.subscribed_topics is None:
            return self.is_consumer
        return topic in self.subscribed_topics

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
        """The group as it is written to the log, with the assignments its members will have."""
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

    def restore(self, value: GroupMetadataValue, members: Iterable[Member]) -> None:
        """Become the group that a record describes."""
        self.state = State.STABLE if value.members else State.EMPTY
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
        """The group for DescribeGroups. What members subscribed to is settled only in Stable."""
        name = self.protocol_name if self.state is State.STABLE else None
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

    def listed(self) -> ListedGroup:
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
