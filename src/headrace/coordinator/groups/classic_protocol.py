"""The classic group protocol: JoinGroup, SyncGroup, Heartbeat, LeaveGroup, rebalances, timeouts.

    Empty               -- first member -->                             PreparingRebalance
    PreparingRebalance  -- all have joined, or time is up -->           CompletingRebalance
    CompletingRebalance -- the leader's assignment is committed -->     Stable
    Stable, CompletingRebalance -- a member comes, goes or changes -->  PreparingRebalance
    PreparingRebalance  -- no member is left -->                        Empty

Rule: a waiting request is held by exactly one member, and leaves it with exactly one response. The
groups belong to the shard: each call names its group, and gets its time, its timers and the place
for its effects in a `GroupCall`.
"""

from functools import partial
from typing import NamedTuple, TypeAlias

from headrace.coordinator.deadlines import Timer
from headrace.coordinator.groups.classic_group import (
    ClassicGroup,
    ClassicMember,
    DelayedReply,
    GroupState,
    subscription_topics,
)
from headrace.coordinator.records import RecordError, group_record
from headrace.coordinator.shard import (
    GroupCall,
    GroupSettings,
    RequestClient,
    ShardEffects,
    Token,
    fits_string,
)
from headrace.errors import ErrorCode
from headrace.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from headrace.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from headrace.protocol.messages.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
)
from headrace.protocol.messages.offsets_records import GroupMetadataValue
from headrace.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse

MemberRequest: TypeAlias = (
    JoinGroupRequest | SyncGroupRequest | HeartbeatRequest | LeaveGroupRequest
)

# A new member does not know its id and cannot heartbeat, so its wait is bounded by this instead.
NEW_MEMBER_TIMEOUT_MS = 300_000
# Ids sent with MEMBER_ID_REQUIRED cost a client nothing, so they are bounded in groups of any size.
PENDING_MEMBERS_MAX = 10_000
# Generated ids start with a name of the client's choice, and must fit in a string of 32 kB.
_ID_PREFIX_CHARS = 1_000

# The first versions of JoinGroup with a rebalance timeout, with MEMBER_ID_REQUIRED (KIP-394), with
# a null protocol name, and with a field that tells the leader to keep the assignment (KIP-814).
_REBALANCE_TIMEOUT = 1
MEMBER_ID_REQUIRED_SINCE = 4
_NULL_PROTOCOL_NAME = 7
_SKIP_ASSIGNMENT = 9
# The first version of LeaveGroup with several members.
MANY_MEMBERS = 3


class _Join(NamedTuple):
    """A JoinGroup request that has passed the checks, with its sender."""

    request: JoinGroupRequest
    protocols: dict[str, bytes]
    waiting: DelayedReply
    client: RequestClient

    @property
    def rebalance_timeout_ms(self) -> int:
        if self.waiting.version < _REBALANCE_TIMEOUT:
            return self.request.session_timeout_ms
        return max(self.request.rebalance_timeout_ms, 0)


class ClassicProtocol:
    """The classic protocol for the groups of a shard. Not thread-safe.

    `handle` and the timers of groups and members decide; `replay` tells the protocol that the
    record of a group is committed. The protocol of the other type (KIP-848) stands beside it;
    offsets are not its concern.

    Invariant: its only state is the index of waiting requests, all of whose members belong to
    groups of the shard.
    """

    def __init__(self, settings: GroupSettings) -> None:
        self._settings = settings
        # The members with a waiting request whose connection is open, by the request's token.
        self._waiting: dict[Token, ClassicMember] = {}

    def new_group(self, group_id: str, now_ms: int | None) -> ClassicGroup:
        """Make a group without members; its timers call this protocol."""
        group = ClassicGroup(group_id, now_ms)
        group.join_timer.fire = partial(self._on_join_timeout, group)
        group.sync_timer.fire = partial(self._on_sync_timeout, group)
        return group

    def restore_group(self, group_id: str, value: GroupMetadataValue) -> ClassicGroup:
        """Make the group of a record while loading; RecordError if the record is inconsistent."""
        ids = [member.member_id for member in value.members]
        instances = [
            member.group_instance_id for member in value.members if member.group_instance_id
        ]
        if len(set(ids)) < len(ids) or len(set(instances)) < len(instances):
            raise RecordError(f"group {group_id!r} has a member twice")
        group = self.new_group(group_id, None)
        members = []
        for stored in value.members:
            rebalance_ms = stored.rebalance_timeout
            member = ClassicMember(
                stored.member_id,
                stored.group_instance_id,
                RequestClient(stored.client_id, stored.client_host),
                stored.session_timeout,
                rebalance_ms if rebalance_ms >= 0 else stored.session_timeout,
                {value.protocol or "": stored.subscription},
            )
            member.assignment = stored.assignment
            member.is_new = False
            self._bind_session(group, member)
            members.append(member)
        group.restore(value, members)
        return group

    def start_sessions(self, call: GroupCall, group: ClassicGroup) -> None:
        """Give the members of a restored group one session timeout to send a request."""
        for member in group.members.values():
            self._renew_session(call, member)

    def end_group(self, call: GroupCall, group: ClassicGroup) -> None:
        """Make a group without members Dead: requests fail until its tombstone is replayed."""
        assert not group.members
        for member_id in list(group.pending):
            self._drop_pending(call, group, member_id)
        call.deadlines.stop(group.join_timer)
        group.transition(GroupState.DEAD, call.now_ms)

    def hand_over(self, call: GroupCall, group: ClassicGroup) -> None:
        """Let go of a group that goes on in the other protocol: whoever waits has to join again."""
        for member in group.members.values():
            self._refuse_waiting_join(call, member, ErrorCode.REBALANCE_IN_PROGRESS)
            response = SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS)
            self._reply_sync(call, member, response)
            call.deadlines.stop(member.session)
        for member_id in list(group.pending):
            self._drop_pending(call, group, member_id)
        for timer in (group.join_timer, group.sync_timer, group.expiry_timer):
            call.deadlines.stop(timer)

    def rebalance(self, call: GroupCall, group: ClassicGroup) -> None:
        """Have all members of a group that came from the other protocol join again."""
        self._prepare(call, group)

    def handle(
        self,
        call: GroupCall,
        group: ClassicGroup | None,
        request: MemberRequest,
        version: int,
        token: Token,
        client: RequestClient,
    ) -> ShardEffects:
        """Handle a request of a member; its reply may come with the effects of a later call.

        `group` is the request's, None if it does not exist. For a JoinGroup without a member id it
        may be a new group, which the shard keeps if it has a member or a pending member then.
        """
        match request:
            case JoinGroupRequest():
                self._join(call, group, request, DelayedReply(token, version), client)
            case SyncGroupRequest():
                self._sync(call, group, request, DelayedReply(token, version))
            case HeartbeatRequest():
                self._heartbeat(call, group, request, token)
            case LeaveGroupRequest():
                self._leave(call, group, request, DelayedReply(token, version))
        return call.effects()

    def replay(self, call: GroupCall, group: ClassicGroup, value: GroupMetadataValue) -> None:
        """Send members the assignment they wait for, if this committed record has it."""
        if group.storing_generation != value.generation:
            return  # A rebalance has begun since, or the record has no new assignment.
        assert group.state is GroupState.COMPLETING_REBALANCE
        assert group.generation == value.generation
        group.storing_generation = None
        assigned = {member.member_id: member.assignment for member in value.members}
        for member in group.members.values():
            member.assignment = assigned.get(member.member_id, b"")
            self._end_sync_wait(call, group, member, _assignment_response(group, member))
        group.transition(GroupState.STABLE, call.now_ms)

    def renew_session_of(self, call: GroupCall, group: ClassicGroup, member_id: str) -> None:
        """Renew the session of the sender of an offset commit, if it is a member."""
        member = group.members.get(member_id)
        if member is not None:
            self._renew_session(call, member)

    def cancel(self, token: Token) -> None:
        """Drop a waiting request whose connection is closed. Its member has joined nevertheless."""
        member = self._waiting.pop(token, None)
        if member is None:
            return
        if member.waiting_join is not None and member.waiting_join.token == token:
            member.waiting_join = None
        else:
            member.waiting_sync = None

    def close(self, call: GroupCall, code: ErrorCode) -> ShardEffects:
        """Answer every waiting request with an error: this coordinator resigns."""
        for member in list(self._waiting.values()):
            self._refuse_waiting_join(call, member, code)
            self._reply_sync(call, member, SyncGroupResponse(error_code=code))
        return call.effects()

    def _join(
        self,
        call: GroupCall,
        group: ClassicGroup | None,
        request: JoinGroupRequest,
        waiting: DelayedReply,
        client: RequestClient,
    ) -> None:
        member_id = request.member_id
        code = self.check_join(request)
        if code is not ErrorCode.NONE:
            _refuse_join(call, waiting, code, member_id)
            return
        if group is None:
            _refuse_join(call, waiting, ErrorCode.UNKNOWN_MEMBER_ID, member_id)
            return
        protocols: dict[str, bytes] = {}
        for protocol in request.protocols:
            protocols.setdefault(protocol.name, protocol.metadata)
        join = _Join(request, protocols, waiting, client)
        if group.state is GroupState.DEAD:
            # Its tombstone is not committed yet; a retry finds no group, and makes a new group.
            _refuse_join(call, waiting, ErrorCode.COORDINATOR_NOT_AVAILABLE, member_id)
        elif not self._has_room(group, _joining_member(group, request)):
            self._remove_refused(call, group, member_id)
            _refuse_join(call, waiting, ErrorCode.GROUP_MAX_SIZE_REACHED, "")
        elif not group.supports(request.protocol_type, protocols):
            _refuse_join(call, waiting, ErrorCode.INCONSISTENT_GROUP_PROTOCOL, member_id)
        elif member_id:
            self._join_with_id(call, group, join)
        elif request.group_instance_id is not None:
            self._join_static(call, group, join)
        elif waiting.version >= MEMBER_ID_REQUIRED_SINCE:
            self._require_member_id(call, group, join)
        else:
            self._add_member(call, group, join, new_member_id(call, client.client_id))

    def _sync(
        self,
        call: GroupCall,
        group: ClassicGroup | None,
        request: SyncGroupRequest,
        waiting: DelayedReply,
    ) -> None:
        """Followers wait for the leader, and all members for the commit of its assignment."""
        code = _check_sync(group, request)
        if code is not ErrorCode.NONE:
            call.reply(waiting.token, SyncGroupResponse(error_code=code))
            return
        assert group is not None
        member = group.members[request.member_id]
        group.pending_sync.discard(member.member_id)
        if not group.pending_sync:
            call.deadlines.stop(group.sync_timer)
        if group.state is GroupState.STABLE:
            self._renew_session(call, member)
            call.reply(waiting.token, _assignment_response(group, member))
            return
        self._wait_for_assignment(call, member, waiting)
        if group.leader == member.member_id and group.storing_generation is None:
            assignments = {given.member_id: given.assignment for given in request.assignments}
            self._store_assignment(call, group, assignments)

    def _heartbeat(
        self,
        call: GroupCall,
        group: ClassicGroup | None,
        request: HeartbeatRequest,
        token: Token,
    ) -> None:
        """Renew the session of a member; the response may demand a rejoin."""
        if group is None:
            code = ErrorCode.UNKNOWN_MEMBER_ID if request.group_id else ErrorCode.INVALID_GROUP_ID
        elif group.state is GroupState.DEAD:
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE
        else:
            code = group.check_member(request.member_id, request.group_instance_id)
            if code is ErrorCode.NONE:
                if request.generation_id != group.generation:
                    code = ErrorCode.ILLEGAL_GENERATION
                else:
                    self._renew_session(call, group.members[request.member_id])
                    if group.state is GroupState.PREPARING_REBALANCE:
                        code = ErrorCode.REBALANCE_IN_PROGRESS
        call.reply(token, HeartbeatResponse(error_code=code))

    def _leave(
        self,
        call: GroupCall,
        group: ClassicGroup | None,
        request: LeaveGroupRequest,
        waiting: DelayedReply,
    ) -> None:
        """Remove members; the remaining members have to rejoin."""
        token, version = waiting
        if not request.group_id:
            call.reply(token, LeaveGroupResponse(error_code=ErrorCode.INVALID_GROUP_ID))
            return
        if group is not None and group.state is GroupState.DEAD:
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE
            call.reply(token, LeaveGroupResponse(error_code=code))
            return
        leaving = request.members
        if version < MANY_MEMBERS:
            leaving = [MemberIdentity(member_id=request.member_id)]
        if group is None:
            codes = [ErrorCode.UNKNOWN_MEMBER_ID] * len(leaving)
        else:
            size = len(group.members)
            codes = [self._leave_member(call, group, member) for member in leaving]
            if len(group.members) < size:
                self._prepare_or_complete(call, group)
            else:
                self._maybe_complete_join(call, group)
        call.reply(token, leave_response(request, codes, version))

    def _leave_member(
        self, call: GroupCall, group: ClassicGroup, leaving: MemberIdentity
    ) -> ErrorCode:
        member_id = leaving.member_id
        if not member_id and leaving.group_instance_id is not None:
            # An administrator removes a static member by its instance id alone.
            member_id = group.static.get(leaving.group_instance_id, "")
        elif member_id in group.pending:
            self._drop_pending(call, group, member_id)
            return ErrorCode.NONE
        code = group.check_member(member_id, leaving.group_instance_id)
        if code is ErrorCode.NONE:
            self._remove_member(call, group, group.members[member_id])
        return code

    def check_join(self, request: JoinGroupRequest) -> ErrorCode:
        """NONE if a join does not contradict itself, or the settings, whatever its group is."""
        if not request.group_id or not fits_string(request.group_id):
            return ErrorCode.INVALID_GROUP_ID
        settings = self._settings
        timeout_ms = request.session_timeout_ms
        if not settings.min_session_timeout_ms <= timeout_ms <= settings.max_session_timeout_ms:
            return ErrorCode.INVALID_SESSION_TIMEOUT
        texts = [request.group_instance_id, request.protocol_type]
        texts += [protocol.name for protocol in request.protocols]
        if not all(fits_string(text) for text in texts):
            return ErrorCode.INVALID_REQUEST
        size = sum(len(protocol.name) + len(protocol.metadata) for protocol in request.protocols)
        if size > settings.record_bytes_max:
            # Unlike Kafka: there the member is added, though its generation can never be written.
            return ErrorCode.INVALID_REQUEST
        return ErrorCode.NONE

    def _has_room(self, group: ClassicGroup, member: ClassicMember | None) -> bool:
        bound = self._settings.max_size
        if group.state is not GroupState.PREPARING_REBALANCE:
            return member is not None or len(group.members) < bound
        # Members that have joined are counted, not all members: a place that its member does not
        # take again is given away, and after the bound was lowered the last to rejoin are refused.
        if member is not None and member.instance_id is not None:
            return member.is_joined or group.joined_count < bound
        if member is not None and member.is_joined:
            return True
        return len(group.members) < bound or group.staying_count < bound

    def _remove_refused(self, call: GroupCall, group: ClassicGroup, member_id: str) -> None:
        """Remove a member, or a pending member, for which the group has no room."""
        if member_id in group.members:
            self._remove_member(call, group, group.members[member_id])
        elif member_id in group.pending:
            self._drop_pending(call, group, member_id)
        self._maybe_complete_join(call, group)

    def _require_member_id(self, call: GroupCall, group: ClassicGroup, join: _Join) -> None:
        """Send the client an id to rejoin with; if this response is lost, no member is left."""
        if len(group.pending) >= min(self._settings.max_size, PENDING_MEMBERS_MAX):
            _refuse_join(call, join.waiting, ErrorCode.GROUP_MAX_SIZE_REACHED, "")
            return
        member_id = new_member_id(call, join.client.client_id)
        timer = Timer(partial(self._on_pending_timeout, group, member_id))
        group.pending[member_id] = timer
        call.deadlines.start(timer, call.now_ms + join.request.session_timeout_ms)
        _refuse_join(call, join.waiting, ErrorCode.MEMBER_ID_REQUIRED, member_id)

    def _add_member(
        self, call: GroupCall, group: ClassicGroup, join: _Join, member_id: str
    ) -> None:
        member = ClassicMember(
            member_id,
            join.request.group_instance_id,
            join.client,
            join.request.session_timeout_ms,
            join.rebalance_timeout_ms,
            join.protocols,
        )
        self._bind_session(group, member)
        group.add(member, join.request.protocol_type)
        group.has_new_member = True
        call.deadlines.start(member.session, call.now_ms + NEW_MEMBER_TIMEOUT_MS)
        self._wait_for_generation(call, group, member, join.waiting)
        self._prepare_or_complete(call, group)

    def _join_with_id(self, call: GroupCall, group: ClassicGroup, join: _Join) -> None:
        """Join a client that has a member id: of a member, or of a pending member."""
        request, waiting = join.request, join.waiting
        member_id = request.member_id
        if member_id in group.pending and request.group_instance_id is None:
            self._drop_pending(call, group, member_id)
            self._add_member(call, group, join, member_id)
            return
        code = group.check_member(member_id, request.group_instance_id)
        if code is not ErrorCode.NONE:
            _refuse_join(call, waiting, code, member_id)
            return
        member = group.members[member_id]
        is_settled = group.state is GroupState.COMPLETING_REBALANCE or (
            # A leader that joins again asks for a new assignment, e.g. because a topic has grown.
            group.state is GroupState.STABLE and group.leader != member_id
        )
        if is_settled and member.has_protocols(join.protocols):
            # The last response may have been lost; the member's generation is still the current.
            # Unlike Kafka: the retry renews the session, or lost responses would expel a member.
            self._renew_session(call, member)
            call.reply(waiting.token, _join_response(group, member, waiting.version))
            return
        _update_member(group, member, join)
        self._wait_for_generation(call, group, member, waiting)
        self._prepare_or_complete(call, group)

    def _join_static(self, call: GroupCall, group: ClassicGroup, join: _Join) -> None:
        """Join a static member without an id: it starts for the first time, or again (KIP-345)."""
        instance_id, waiting = join.request.group_instance_id, join.waiting
        assert instance_id is not None
        member_id = new_member_id(call, instance_id)
        old_id = group.static.get(instance_id)
        if old_id is None:
            self._add_member(call, group, join, member_id)
            return
        member = group.members[old_id]
        old_leader = group.leader
        old_topics = _subscribed_topics(group, member)
        self._fence_waiting(call, member)
        group.rename(member, member_id)
        member.client = join.client
        _update_member(group, member, join)
        self._renew_session(call, member)
        if (
            group.state is GroupState.STABLE
            and group.select_protocol() == group.protocol_name
            # Unlike Kafka: a change of topics starts a rebalance. There the assignment stays until
            # the next rebalance.
            and old_topics == _subscribed_topics(group, member)
            and self._store_members(call, group)
        ):
            response = _unchanged_join_response(group, member, old_leader, waiting.version)
            call.reply(waiting.token, response)
            return
        self._wait_for_generation(call, group, member, waiting)
        self._prepare_or_complete(call, group)

    def _prepare_or_complete(self, call: GroupCall, group: ClassicGroup) -> None:
        """Begin a rebalance, or complete the join phase if the last awaited member has joined."""
        if group.state is GroupState.PREPARING_REBALANCE:
            self._maybe_complete_join(call, group)
        else:
            self._prepare(call, group)

    def _prepare(self, call: GroupCall, group: ClassicGroup) -> None:
        """Begin a rebalance: all members have to rejoin."""
        now_ms = call.now_ms
        if group.state is GroupState.COMPLETING_REBALANCE:
            for member in group.members.values():
                member.assignment = b""
                response = SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS)
                self._end_sync_wait(call, group, member, response)
        group.storing_generation = None
        group.pending_sync.clear()
        call.deadlines.stop(group.sync_timer)
        group.is_initial = group.state is GroupState.EMPTY
        group.transition(GroupState.PREPARING_REBALANCE, now_ms)
        if group.is_initial:
            group.has_new_member = False
            delay_ms = self._settings.initial_rebalance_delay_ms
            group.initial_deadline_ms = now_ms + max(group.rebalance_timeout_ms, delay_ms)
            call.deadlines.start(group.join_timer, now_ms + delay_ms)
        elif group.has_all_joined:
            self._complete_join(call, group)
        else:
            call.deadlines.start(group.join_timer, now_ms + group.rebalance_timeout_ms)

    def _maybe_complete_join(self, call: GroupCall, group: ClassicGroup) -> None:
        """End the join phase if all members have joined. An initial phase ends by its timer."""
        if (
            group.state is GroupState.PREPARING_REBALANCE
            and not group.is_initial
            and group.has_all_joined
        ):
            self._complete_join(call, group)

    def _complete_join(self, call: GroupCall, group: ClassicGroup) -> None:
        """End the join phase: begin the next generation with the members that have joined."""
        now_ms = call.now_ms
        call.deadlines.stop(group.join_timer)
        for member in list(group.members.values()):
            # A static member keeps its place until its session expires (KIP-345).
            if not member.is_joined and member.instance_id is None:
                self._remove_member(call, group, member)
        if group.members and not group.elect_joined_leader():
            # Only static members are left, and none has joined: wait for them or their sessions.
            call.deadlines.start(group.join_timer, now_ms + max(group.rebalance_timeout_ms, 1))
            return
        group.start_generation(now_ms)
        if group.state is GroupState.EMPTY:
            self._write(call, group, {})
            return
        for member in group.members.values():
            group.set_joined(member, False)
            member.is_new = False
            self._renew_session(call, member)
            if member.waiting_join is not None:
                version = member.waiting_join.version
                self._reply_join(call, member, _join_response(group, member, version))
        group.pending_sync = set(group.members)
        call.deadlines.start(group.sync_timer, now_ms + group.rebalance_timeout_ms)

    def _store_assignment(
        self, call: GroupCall, group: ClassicGroup, assignments: dict[str, bytes]
    ) -> None:
        """Write the leader's assignment. `replay` sends it to the members once it is committed."""
        if self._write(call, group, assignments):
            group.storing_generation = group.generation
            return
        # As in Kafka: the members may join again with less metadata.
        for member in group.members.values():
            response = SyncGroupResponse(error_code=ErrorCode.UNKNOWN_SERVER_ERROR)
            self._end_sync_wait(call, group, member, response)
        self._prepare(call, group)

    def _store_members(self, call: GroupCall, group: ClassicGroup) -> bool:
        """Write a Stable group again, after a static member got a new id; False if too large."""
        kept = {member.member_id: member.assignment for member in group.members.values()}
        return self._write(call, group, kept)

    def _write(self, call: GroupCall, group: ClassicGroup, assignments: dict[str, bytes]) -> bool:
        """Write the record of the group; False if it would be too large."""
        record = group_record(group.group_id, group.to_value(assignments, call.wall_ms))
        assert record.value is not None
        if len(record.value) > self._settings.record_bytes_max:
            return False
        group.is_recorded = True
        call.out.records.append(record)
        return True

    def _on_join_timeout(self, group: ClassicGroup, call: GroupCall, now_ms: int) -> None:
        if group.is_initial and group.has_new_member and now_ms < group.initial_deadline_ms:
            group.has_new_member = False
            later_ms = now_ms + self._settings.initial_rebalance_delay_ms
            call.deadlines.start(group.join_timer, min(later_ms, group.initial_deadline_ms))
        else:
            self._complete_join(call, group)

    def _on_sync_timeout(self, group: ClassicGroup, call: GroupCall, now_ms: int) -> None:
        assert group.state in {GroupState.COMPLETING_REBALANCE, GroupState.STABLE}
        for member_id in sorted(group.pending_sync):
            self._remove_member(call, group, group.members[member_id])
        self._prepare(call, group)

    def _on_session_timeout(
        self, group: ClassicGroup, member: ClassicMember, call: GroupCall, now_ms: int
    ) -> None:
        has_synced = (
            group.state is GroupState.COMPLETING_REBALANCE
            and member.member_id not in group.pending_sync
        )
        if not member.is_new and (member.is_joined or has_synced):
            return  # The member waits for the coordinator. Its session starts with the response.
        self._remove_member(call, group, member)
        if group.state is GroupState.PREPARING_REBALANCE:
            if group.has_all_joined:
                self._complete_join(call, group)
        else:
            self._prepare(call, group)

    def _on_pending_timeout(
        self, group: ClassicGroup, member_id: str, call: GroupCall, now_ms: int
    ) -> None:
        del group.pending[member_id]
        self._maybe_complete_join(call, group)

    def _bind_session(self, group: ClassicGroup, member: ClassicMember) -> None:
        """Set up the removal of a member when its session expires."""
        member.session.fire = partial(self._on_session_timeout, group, member)

    def _renew_session(self, call: GroupCall, member: ClassicMember) -> None:
        """Renew a session. That of a new member is bounded by NEW_MEMBER_TIMEOUT_MS instead."""
        if not member.is_new:
            call.deadlines.start(member.session, call.now_ms + member.session_timeout_ms)

    def _remove_member(self, call: GroupCall, group: ClassicGroup, member: ClassicMember) -> None:
        """Remove a member; its waiting request is answered UNKNOWN_MEMBER_ID."""
        self._refuse_waiting_join(call, member, ErrorCode.UNKNOWN_MEMBER_ID, member_id="")
        response = SyncGroupResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID)
        self._reply_sync(call, member, response)
        call.deadlines.stop(member.session)
        group.remove(member)

    def _drop_pending(self, call: GroupCall, group: ClassicGroup, member_id: str) -> None:
        call.deadlines.stop(group.pending.pop(member_id))

    def _wait_for_generation(
        self, call: GroupCall, group: ClassicGroup, member: ClassicMember, waiting: DelayedReply
    ) -> None:
        """Let a member's join wait for the next generation, which it has now joined."""
        # Unlike Kafka: a member that joins twice gets two responses; there the first is forgotten.
        self._refuse_waiting_join(call, member, ErrorCode.REBALANCE_IN_PROGRESS)
        group.set_joined(member, True)
        member.waiting_join = waiting
        self._waiting[waiting.token] = member

    def _wait_for_assignment(
        self, call: GroupCall, member: ClassicMember, waiting: DelayedReply
    ) -> None:
        """Let a member's sync wait for its assignment."""
        response = SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS)
        self._reply_sync(call, member, response)
        member.waiting_sync = waiting
        self._waiting[waiting.token] = member

    def _end_sync_wait(
        self,
        call: GroupCall,
        group: ClassicGroup,
        member: ClassicMember,
        response: SyncGroupResponse,
    ) -> None:
        if member.member_id not in group.pending_sync:
            # While its sync waited its session could not expire, even without its connection.
            self._renew_session(call, member)
        self._reply_sync(call, member, response)

    def _fence_waiting(self, call: GroupCall, member: ClassicMember) -> None:
        """Answer the old holder of an instance id that another client has replaced it."""
        self._refuse_waiting_join(call, member, ErrorCode.FENCED_INSTANCE_ID)
        response = SyncGroupResponse(error_code=ErrorCode.FENCED_INSTANCE_ID)
        self._reply_sync(call, member, response)

    def _refuse_waiting_join(
        self, call: GroupCall, member: ClassicMember, code: ErrorCode, member_id: str | None = None
    ) -> None:
        """Answer the waiting join of a member, if any, with an error."""
        if member.waiting_join is not None:
            version = member.waiting_join.version
            named_id = member.member_id if member_id is None else member_id
            self._reply_join(call, member, join_error(code, named_id, version))

    def _reply_join(
        self, call: GroupCall, member: ClassicMember, response: JoinGroupResponse
    ) -> None:
        if member.waiting_join is not None:
            token = member.waiting_join.token
            member.waiting_join = None
            del self._waiting[token]
            call.reply(token, response)

    def _reply_sync(
        self, call: GroupCall, member: ClassicMember, response: SyncGroupResponse
    ) -> None:
        if member.waiting_sync is not None:
            token = member.waiting_sync.token
            member.waiting_sync = None
            del self._waiting[token]
            call.reply(token, response)


def _check_sync(group: ClassicGroup | None, request: SyncGroupRequest) -> ErrorCode:
    if not request.group_id:
        return ErrorCode.INVALID_GROUP_ID
    if group is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if group.state is GroupState.DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    code = group.check_member(request.member_id, request.group_instance_id)
    if code is not ErrorCode.NONE:
        return code
    if request.generation_id != group.generation:
        return ErrorCode.ILLEGAL_GENERATION
    if request.protocol_type not in {None, group.protocol_type} or (
        request.protocol_name not in {None, group.protocol_name}
    ):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if group.state is GroupState.PREPARING_REBALANCE:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE


def _joining_member(group: ClassicGroup, request: JoinGroupRequest) -> ClassicMember | None:
    """The member that joins, if it is a member. A restarted static member has no id yet."""
    member_id = request.member_id
    if not member_id and request.group_instance_id is not None:
        member_id = group.static.get(request.group_instance_id, "")
    return group.members.get(member_id)


def _update_member(group: ClassicGroup, member: ClassicMember, join: _Join) -> None:
    group.set_protocols(member, join.protocols)
    member.session_timeout_ms = join.request.session_timeout_ms
    member.rebalance_timeout_ms = join.rebalance_timeout_ms


def _subscribed_topics(group: ClassicGroup, member: ClassicMember) -> frozenset[str] | None:
    name = group.protocol_name
    if not group.is_consumer or name is None or name not in member.protocols:
        return None
    return subscription_topics(member.protocols[name])


def new_member_id(call: GroupCall, name: str) -> str:
    # Imported late: it imports `platform` and more, which would delay the start.
    from uuid import UUID  # noqa: PLC0415

    number = UUID(int=call.random.getrandbits(128), version=4)
    return f"{name[:_ID_PREFIX_CHARS]}-{number}"


def _refuse_join(call: GroupCall, waiting: DelayedReply, code: ErrorCode, member_id: str) -> None:
    call.reply(waiting.token, join_error(code, member_id, waiting.version))


def join_error(code: ErrorCode, member_id: str, version: int) -> JoinGroupResponse:
    """A refusal of JoinGroup. Before version 7 the protocol name cannot be null."""
    name = None if version >= _NULL_PROTOCOL_NAME else ""
    return JoinGroupResponse(error_code=code, member_id=member_id, protocol_name=name)


def _join_response(group: ClassicGroup, member: ClassicMember, version: int) -> JoinGroupResponse:
    """The response with the current generation; only its leader gets the list of members."""
    is_leader = group.leader == member.member_id
    assert group.leader is not None
    return JoinGroupResponse(
        generation_id=group.generation,
        protocol_type=group.protocol_type,
        protocol_name=_protocol_name(group, version),
        leader=group.leader,
        member_id=member.member_id,
        members=group.members_for_leader() if is_leader else [],
    )


def _unchanged_join_response(
    group: ClassicGroup, member: ClassicMember, old_leader: str | None, version: int
) -> JoinGroupResponse:
    """The response to a restarted static member that keeps its assignment."""
    if version >= _SKIP_ASSIGNMENT:
        response = _join_response(group, member, version)
        response.skip_assignment = group.leader == member.member_id
        return response
    # A leader that finds its old id as the leader's does not assign again.
    return JoinGroupResponse(
        generation_id=group.generation,
        protocol_type=group.protocol_type,
        protocol_name=_protocol_name(group, version),
        leader=old_leader or "",
        member_id=member.member_id,
    )


def _protocol_name(group: ClassicGroup, version: int) -> str | None:
    """The group's protocol in a version of JoinGroup: no protocol is null since version 7."""
    return group.protocol_name or (None if version >= _NULL_PROTOCOL_NAME else "")


def _assignment_response(group: ClassicGroup, member: ClassicMember) -> SyncGroupResponse:
    """The response with a member's assignment in the current generation."""
    return SyncGroupResponse(
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        assignment=member.assignment,
    )


def leave_response(
    request: LeaveGroupRequest, codes: list[ErrorCode], version: int
) -> LeaveGroupResponse:
    """The response with a code for each member; before version 3 a request has one member."""
    if version < MANY_MEMBERS:
        return LeaveGroupResponse(error_code=codes[0])
    return LeaveGroupResponse(
        members=[
            MemberResponse(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                error_code=code,
            )
            for member, code in zip(request.members, codes, strict=True)
        ]
    )
