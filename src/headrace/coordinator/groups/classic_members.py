"""Members of a consumer group that use the classic protocol, while a group moves between the two.

Rule: such a member is a member like any other, whose steps are told by other words: it joins again
for each of them. A heartbeat asks it to, its join says what it still owns, and its sync takes what
it has then. Its generation is its epoch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from struct import Struct
from typing import NamedTuple

from headrace.coordinator.groups.classic_protocol import (
    MANY_MEMBERS,
    MEMBER_ID_REQUIRED_SINCE,
    MemberRequest,
    join_error,
    leave_response,
    new_member_id,
)
from headrace.coordinator.groups.consumer_group import ConsumerGroup
from headrace.coordinator.groups.consumer_group_protocol import ConsumerGroupProtocol
from headrace.coordinator.groups.reconciliation import (
    JOINING,
    ClassicSession,
    ConsumerMember,
    MemberState,
    Partitions,
)
from headrace.coordinator.groups.topic_catalog import TopicCatalog
from headrace.coordinator.shard import GroupCall, RequestClient
from headrace.errors import ErrorCode, KafkaError, ProtocolError
from headrace.protocol.message_codec import decode
from headrace.protocol.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartition,
)
from headrace.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from headrace.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from headrace.protocol.messages.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
)
from headrace.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from headrace.protocol.schema import REQUEST_ELEMENTS_MAX, encode_message, schema_of

CONSUMER = "consumer"
_VERSION = Struct(">h")
# The newest version of what consumers exchange; later ones only add fields.
_NEWEST = 3


class Subscription(NamedTuple):
    """What a classic member says of itself: topics, the partitions it still owns, its rack."""

    topics: frozenset[str]
    owned: Partitions
    rack_id: str | None


def read_subscription(metadata: bytes, topics: TopicCatalog) -> Subscription:
    """The subscription in the metadata of a classic member; KafkaError if it cannot be read."""
    try:
        version = _VERSION.unpack_from(metadata)[0] if len(metadata) >= 2 else -1
        if version < 0:
            raise ProtocolError("it has no version")
        schema = schema_of(ConsumerProtocolSubscription, min(version, _NEWEST))
        found, _ = decode(schema, metadata, 2, REQUEST_ELEMENTS_MAX)
    except ProtocolError as error:
        detail = f"the subscription of a member cannot be read: {error}"
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, detail) from error
    assert isinstance(found, ConsumerProtocolSubscription)
    owned = {topic.topic: topic.partitions for topic in found.owned_partitions}
    return Subscription(frozenset(found.topics), by_id(owned, topics), found.rack_id or None)


def read_assignment(data: bytes, topics: TopicCatalog) -> Partitions:
    """The partitions that a leader assigned; KafkaError if they cannot be read.

    Data of an assignor of the application's own would be lost, so it is refused.
    """
    if not data:
        return {}
    try:
        found, _ = decode(schema_of(ConsumerProtocolAssignment, 0), data, 2, REQUEST_ELEMENTS_MAX)
    except ProtocolError as error:
        detail = f"the assignment of a member cannot be read: {error}"
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, detail) from error
    assert isinstance(found, ConsumerProtocolAssignment)
    if found.user_data:
        detail = "its assignor keeps data with assignments, which would be lost"
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, detail)
    return by_id({each.topic: each.partitions for each in found.assigned_partitions}, topics)


def write_assignment(partitions: Partitions, metadata: bytes, topics: TopicCatalog) -> bytes:
    """An assignment as a classic member reads it, in the version of its own metadata."""
    version = min(max(_VERSION.unpack_from(metadata)[0], 0), _NEWEST)
    named = []
    for topic_id, found in partitions.items():
        topic = topics.by_id(topic_id)
        if topic is not None and found:
            named.append(TopicPartition(topic=topic.name, partitions=sorted(found)))
    message = ConsumerProtocolAssignment(assigned_partitions=named)
    return _VERSION.pack(version) + encode_message(message, version)


def by_id(named: Mapping[str, Sequence[int]], topics: TopicCatalog) -> Partitions:
    """Partitions by the ids of their topics, without topics that do not exist."""
    found = {}
    for name, partitions in named.items():
        topic = topics.by_name(name)
        if topic is not None:
            found[topic.topic_id] = frozenset(partitions)
    return found


class ClassicMembers:
    """The classic protocol for members of consumer groups. It has no state of its own."""

    def __init__(self, consumer: ConsumerGroupProtocol, topics: TopicCatalog) -> None:
        self._consumer = consumer
        self._topics = topics

    def handle(
        self,
        call: GroupCall,
        group: ConsumerGroup,
        request: MemberRequest,
        version: int,
        client: RequestClient,
    ) -> JoinGroupResponse | SyncGroupResponse | HeartbeatResponse | LeaveGroupResponse:
        """The response to a member's request, which waits only for its records."""
        try:
            match request:
                case JoinGroupRequest():
                    return self._join(call, group, request, version, client)
                case SyncGroupRequest():
                    return self._sync(call, group, request)
                case HeartbeatRequest():
                    return self._heartbeat(call, group, request)
                case LeaveGroupRequest():
                    return self._leave(call, group, request, version)
        except KafkaError as error:
            return _refusal(request, error.code, version)

    def _join(
        self,
        call: GroupCall,
        group: ConsumerGroup,
        request: JoinGroupRequest,
        version: int,
        client: RequestClient,
    ) -> JoinGroupResponse:
        """Take a member's step; KafkaError if it is refused. Nothing has changed then."""
        self._consumer.check_room(group, request.member_id)
        protocols = {each.name: each.metadata for each in reversed(request.protocols)}
        others = [
            {name for name, _ in member.classic.protocols}
            for member in group.members.values()
            if member.classic is not None and member.member_id != request.member_id
        ]
        common = set(protocols).intersection(*others)
        if request.protocol_type != CONSUMER or not common:
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        member_id = request.member_id
        if not member_id:
            member_id = new_member_id(call, request.group_instance_id or client.client_id)
            if request.group_instance_id is None and version >= MEMBER_ID_REQUIRED_SINCE:
                return join_error(ErrorCode.MEMBER_ID_REQUIRED, member_id, version)
        first = request.protocols[0]
        subscription = read_subscription(first.metadata, self._topics)
        member, replaced = self._member_of(group, request, member_id)
        timeout_ms = request.rebalance_timeout_ms
        updated = replace(
            member,
            instance_id=request.group_instance_id,
            rack_id=subscription.rack_id or member.rack_id,
            rebalance_timeout_ms=timeout_ms if timeout_ms > 0 else request.session_timeout_ms,
            topics=subscription.topics,
            pattern="",
            client_id=client.client_id,
            client_host=client.host,
            classic=ClassicSession(
                request.session_timeout_ms,
                tuple((each.name, each.metadata) for each in request.protocols),
            ),
        )
        self._consumer.check_record(group, updated)
        if replaced is not None:
            self._consumer.replace_member(call, group, replaced, member)
        now = self._consumer.update(
            call, group, member, updated, subscription.owned, client, at_once=True
        )
        self._consumer.renew_session(call, group, now.member_id)
        self._await_request(call, group, now, anew=True)
        return JoinGroupResponse(
            generation_id=now.epoch,
            protocol_type=CONSUMER,
            protocol_name=first.name,
            member_id=now.member_id,
        )

    def _member_of(
        self, group: ConsumerGroup, request: JoinGroupRequest, member_id: str
    ) -> tuple[ConsumerMember, ConsumerMember | None]:
        """The member that joins, and the static member that it takes the place of."""
        if request.group_instance_id is None:
            return group.members.get(member_id) or ConsumerMember(member_id), None
        holder = group.static_member(request.group_instance_id)
        if request.member_id:
            return _check_holder(holder, request.member_id), None
        if holder is None:
            return ConsumerMember(member_id), None
        returned = replace(holder, member_id=member_id, epoch=JOINING, previous_epoch=JOINING)
        return returned, holder

    def _sync(
        self, call: GroupCall, group: ConsumerGroup, request: SyncGroupRequest
    ) -> SyncGroupResponse:
        member = self._known(
            group, request.member_id, request.group_instance_id, request.generation_id
        )
        assert member.classic is not None
        name, metadata = member.classic.protocols[0]
        if request.protocol_type not in (None, CONSUMER) or (
            request.protocol_name not in (None, name)
        ):
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        # While it gives partitions up it is to finish that first, and to join again then.
        if group.epoch > member.epoch and member.state is not MemberState.UNREVOKED:
            self._await_request(call, group, member)
            raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)
        call.deadlines.stop(self._consumer.timers_of(group, member.member_id).rebalance)
        self._consumer.renew_session(call, group, member.member_id)
        return SyncGroupResponse(
            protocol_type=request.protocol_type,
            protocol_name=request.protocol_name,
            assignment=write_assignment(member.assigned, metadata, self._topics),
        )

    def _heartbeat(
        self, call: GroupCall, group: ConsumerGroup, request: HeartbeatRequest
    ) -> HeartbeatResponse:
        member = self._known(
            group, request.member_id, request.group_instance_id, request.generation_id
        )
        self._consumer.renew_session(call, group, member.member_id)
        has_to_join = (
            member.epoch < group.epoch
            or member.state is MemberState.UNREVOKED
            or (member.state is MemberState.UNRELEASED and not _waits(group, member))
        )
        if not has_to_join:
            return HeartbeatResponse()
        self._await_request(call, group, member)
        return HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS)

    def _leave(
        self, call: GroupCall, group: ConsumerGroup, request: LeaveGroupRequest, version: int
    ) -> LeaveGroupResponse:
        leaving = request.members
        if version < MANY_MEMBERS:
            leaving = [MemberIdentity(member_id=request.member_id)]
        codes: list[ErrorCode] = []
        found: dict[str, None] = {}
        for identity in leaving:
            code = ErrorCode.NONE
            member_id = identity.member_id
            try:
                if identity.group_instance_id is not None:
                    holder = group.static_member(identity.group_instance_id)
                    # An administrator removes a static member by its instance id alone.
                    known = holder.member_id if holder is not None and not member_id else member_id
                    member_id = _check_holder(holder, known).member_id
                elif member_id not in group.members:
                    code = ErrorCode.UNKNOWN_MEMBER_ID
            except KafkaError as error:
                code = error.code
            codes.append(code)
            if code is ErrorCode.NONE:
                found[member_id] = None
        if found:
            self._consumer.remove_members(call, group, list(found))
        return leave_response(request, codes, version)

    def _known(
        self, group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int
    ) -> ConsumerMember:
        """The classic member that sends a request; KafkaError if there is none of its epoch."""
        if instance_id is None:
            member = group.members.get(member_id)
        else:
            member = _check_holder(group.static_member(instance_id), member_id)
        if member is None or member.classic is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        if generation != member.epoch:
            raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
        return member

    def _await_request(
        self, call: GroupCall, group: ConsumerGroup, member: ConsumerMember, *, anew: bool = False
    ) -> None:
        """Give a member its rebalance timeout for its next join or, after a join, its sync."""
        timer = self._consumer.timers_of(group, member.member_id).rebalance
        if timer.deadline_ms is None or anew:
            timer.fire = partial(self._on_timeout, group, member.member_id)
            call.deadlines.start(timer, call.now_ms + max(member.rebalance_timeout_ms, 0))

    def _on_timeout(
        self, group: ConsumerGroup, member_id: str, call: GroupCall, now_ms: int
    ) -> None:
        if member_id in group.members:
            self._consumer.remove_members(call, group, [member_id])


def _waits(group: ConsumerGroup, member: ConsumerMember) -> bool:
    """Whether a member waits for a partition that another has."""
    return any(
        group.owner_of(topic_id, partition) not in (None, member.member_id)
        for topic_id, partitions in group.target.get(member.member_id, {}).items()
        for partition in partitions
    )


def _check_holder(holder: ConsumerMember | None, member_id: str) -> ConsumerMember:
    if holder is None:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
    if holder.member_id != member_id:
        raise KafkaError(ErrorCode.FENCED_INSTANCE_ID)
    return holder


def _refusal(
    request: MemberRequest, code: ErrorCode, version: int
) -> JoinGroupResponse | SyncGroupResponse | HeartbeatResponse | LeaveGroupResponse:
    match request:
        case JoinGroupRequest():
            return join_error(code, request.member_id, version)
        case SyncGroupRequest():
            return SyncGroupResponse(error_code=code)
        case HeartbeatRequest():
            return HeartbeatResponse(error_code=code)
        case LeaveGroupRequest():
            return LeaveGroupResponse(error_code=code)
