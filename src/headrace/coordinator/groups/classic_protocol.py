"""The classic group protocol: requests of members, generations, rebalances and their timeouts."""

from collections.abc import Callable
from functools import partial
from random import Random

from headrace.coordinator.deadlines import Deadlines, Timer
from headrace.coordinator.groups.classic_group import (
    ClassicGroup,
    Member,
    State,
    Waiting,
    subscription_topics,
)
from headrace.coordinator.records import group_record
from headrace.coordinator.shard import Client, GroupSettings, Outbox, Times, Token, fits_string
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

_NULL_PROTOCOL_NAME = 7
_MANY_MEMBERS = 3


def join_error(code: ErrorCode, member_id: str, version: int) -> JoinGroupResponse:
    """A join that is refused. Versions before 7 cannot say that there is no protocol."""
    name = None if version >= _NULL_PROTOCOL_NAME else ""
    return JoinGroupResponse(error_code=code, member_id=member_id, protocol_name=name)


def join_response(group: ClassicGroup, member: Member, version: int) -> JoinGroupResponse:
    """The current generation; only its leader learns of the other members."""
    is_leader = group.leader == member.member_id
    assert group.leader is not None
    return JoinGroupResponse(
        generation_id=group.generation,
        protocol_type=group.protocol_type,
        protocol_name=protocol_name(group, version),
        leader=group.leader,
        member_id=member.member_id,
        members=group.members_for_leader() if is_leader else [],
    )


def protocol_name(group: ClassicGroup, version: int) -> str | None:
    """The group's protocol as a version of JoinGroup writes it: none is null since version 7."""
    return group.protocol_name or (None if version >= _NULL_PROTOCOL_NAME else "")


def assignment_response(group: ClassicGroup, member: Member) -> SyncGroupResponse:
    """What a member of the current generation works on."""
    return SyncGroupResponse(
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        assignment=member.assignment,
    )


def leave_response(
    request: LeaveGroupRequest, codes: list[ErrorCode], version: int
) -> LeaveGroupResponse:
    """How each member of a request has left; before version 3 there was one, without its id."""
    if version < _MANY_MEMBERS:
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


# How a classic group gets from one generation to the next, and the timeouts on the way.
#
#     Empty               -- first member -->                             PreparingRebalance
#     PreparingRebalance  -- all have joined, or time is up -->           CompletingRebalance
#     CompletingRebalance -- the leader's assignment is committed -->     Stable
#     Stable, CompletingRebalance -- a member comes, goes or changes -->  PreparingRebalance
#     PreparingRebalance  -- nobody is left -->                           Empty
#
# Rule: a request that waits is held by exactly one member, and leaves it with exactly one answer.
# What a call writes and answers goes to the outbox of that call, `out`.


# A new member does not know its id and cannot heartbeat, so its wait is bounded by this instead.
NEW_MEMBER_TIMEOUT_MS = 300_000


class Rebalance:
    """The rebalances of all classic groups of a shard."""

    def __init__(self, settings: GroupSettings, times: Times, deadlines: Deadlines) -> None:
        self._settings = settings
        self._times = times
        self._deadlines = deadlines
        # Every request that waits and whose connection is still there, by its token.
        self._parked: dict[Token, Member] = {}

    def new_group(self, group_id: str, now_ms: int | None) -> ClassicGroup:
        """A group without members, not known to anybody yet."""
        group = ClassicGroup(group_id, now_ms)
        group.join_timer.fire = partial(self._on_join_timeout, group)
        group.sync_timer.fire = partial(self._on_sync_timeout, group)
        return group

    def bind_session(self, group: ClassicGroup, member: Member) -> None:
        """Have a member removed when its session ends."""
        member.session.fire = partial(self._on_session_timeout, group, member)

    def add_pending(self, group: ClassicGroup, member_id: str, deadline_ms: int) -> None:
        """Expect an id that was just given out to join before the deadline."""
        timer = Timer(partial(self._on_pending_timeout, group, member_id))
        group.pending[member_id] = timer
        self._deadlines.start(timer, deadline_ms)

    def drop_pending(self, group: ClassicGroup, member_id: str) -> None:
        self._deadlines.stop(group.pending.pop(member_id))

    def renew_session(self, member: Member, now_ms: int) -> None:
        """A sign of life. A member that is new is bounded by how long its join may wait instead."""
        if not member.is_new:
            self._deadlines.start(member.session, now_ms + member.session_timeout_ms)

    def expect_new_member(self, member: Member, now_ms: int) -> None:
        self._deadlines.start(member.session, now_ms + NEW_MEMBER_TIMEOUT_MS)

    def park_join(self, out: Outbox, group: ClassicGroup, member: Member, waiting: Waiting) -> None:
        """Let a member wait for the next generation, which it has now joined."""
        # Unlike Kafka: a member that asks twice gets two answers; there the first is forgotten.
        self.answer_join(out, member, ErrorCode.REBALANCE_IN_PROGRESS)
        group.set_joined(member, True)
        member.waiting_join = waiting
        self._parked[waiting.token] = member

    def park_sync(self, out: Outbox, member: Member, waiting: Waiting) -> None:
        """Let a member wait for its assignment."""
        self._answer_sync(
            out, member, SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS)
        )
        member.waiting_sync = waiting
        self._parked[waiting.token] = member

    def forget(self, token: Token) -> None:
        """Drop a request nobody can be answered for. Its member has still joined, or synced."""
        member = self._parked.pop(token, None)
        if member is None:
            return
        if member.waiting_join is not None and member.waiting_join.token == token:
            member.waiting_join = None
        else:
            member.waiting_sync = None

    def answer_all(self, out: Outbox, code: ErrorCode) -> None:
        """Tell everybody who waits that this coordinator is going away."""
        for member in list(self._parked.values()):
            self.answer_join(out, member, code)
            self._answer_sync(out, member, SyncGroupResponse(error_code=code))

    def answer_join(
        self, out: Outbox, member: Member, code: ErrorCode, member_id: str | None = None
    ) -> None:
        """Refuse a waiting join, if there is one."""
        if member.waiting_join is not None:
            said = member.member_id if member_id is None else member_id
            version = member.waiting_join.version
            self._answer_join(out, member, join_error(code, said, version))

    def fence(self, out: Outbox, member: Member) -> None:
        """Tell the old holder of an instance id that another has taken its place."""
        self.answer_join(out, member, ErrorCode.FENCED_INSTANCE_ID)
        self._answer_sync(out, member, SyncGroupResponse(error_code=ErrorCode.FENCED_INSTANCE_ID))

    def remove_member(self, out: Outbox, group: ClassicGroup, member: Member) -> None:
        """Take a member out, telling it that it is unknown now if it waits for something."""
        self.answer_join(out, member, ErrorCode.UNKNOWN_MEMBER_ID, member_id="")
        self._answer_sync(out, member, SyncGroupResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID))
        self._deadlines.stop(member.session)
        group.remove(member)

    def kill(self, group: ClassicGroup, now_ms: int) -> None:
        """End a group without members: it answers nobody until its tombstone is replayed."""
        assert not group.members
        for member_id in list(group.pending):
            self.drop_pending(group, member_id)
        self._deadlines.stop(group.join_timer)
        group.transition(State.DEAD, now_ms)

    def prepare_or_complete(self, out: Outbox, group: ClassicGroup, now_ms: int) -> None:
        """Begin a rebalance, or see whether the one under way has everybody it waits for."""
        if group.state is State.PREPARING_REBALANCE:
            self.maybe_complete_join(out, group, now_ms)
        else:
            self.prepare(out, group, now_ms)

    def prepare(self, out: Outbox, group: ClassicGroup, now_ms: int) -> None:
        """Begin a rebalance: all members have to join again."""
        if group.state is State.COMPLETING_REBALANCE:
            for member in group.members.values():
                member.assignment = b""
                self._settle_sync(
                    out,
                    group,
                    member,
                    SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS),
                    now_ms,
                )
        group.storing_generation = None
        group.pending_sync.clear()
        self._deadlines.stop(group.sync_timer)
        group.is_initial = group.state is State.EMPTY
        group.transition(State.PREPARING_REBALANCE, now_ms)
        if group.is_initial:
            group.has_new_member = False
            delay_ms = self._settings.initial_rebalance_delay_ms
            group.initial_deadline_ms = now_ms + max(group.rebalance_timeout_ms, delay_ms)
            self._deadlines.start(group.join_timer, now_ms + delay_ms)
        elif group.has_all_joined:
            self._complete_join(out, group, now_ms)
        else:
            self._deadlines.start(group.join_timer, now_ms + group.rebalance_timeout_ms)

    def maybe_complete_join(self, out: Outbox, group: ClassicGroup, now_ms: int) -> None:
        """End the join phase if everybody is there. The initial one always lasts its time."""
        if (
            group.state is State.PREPARING_REBALANCE
            and not group.is_initial
            and group.has_all_joined
        ):
            self._complete_join(out, group, now_ms)

    def store_assignment(
        self, out: Outbox, group: ClassicGroup, assignments: dict[str, bytes], now_ms: int
    ) -> None:
        """Write the leader's assignment. The members learn it once it is committed."""
        if self._write(out, group, assignments, now_ms):
            group.storing_generation = group.generation
            return
        # As Kafka has it: the members may come again with less.
        for member in group.members.values():
            response = SyncGroupResponse(error_code=ErrorCode.UNKNOWN_SERVER_ERROR)
            self._settle_sync(out, group, member, response, now_ms)
        self.prepare(out, group, now_ms)

    def store_members(self, out: Outbox, group: ClassicGroup, now_ms: int) -> bool:
        """Write a Stable group again, after a static member got a new id; False if too large."""
        kept = {member.member_id: member.assignment for member in group.members.values()}
        return self._write(out, group, kept, now_ms)

    def committed(
        self, out: Outbox, group: ClassicGroup, value: GroupMetadataValue, now_ms: int
    ) -> None:
        """Hand out the assignment that members wait for, if this record holds it."""
        if group.storing_generation != value.generation:
            return  # The group has moved on, or the record told of something already done.
        assert group.state is State.COMPLETING_REBALANCE
        assert group.generation == value.generation
        group.storing_generation = None
        assigned = {member.member_id: member.assignment for member in value.members}
        for member in group.members.values():
            member.assignment = assigned.get(member.member_id, b"")
            self._settle_sync(out, group, member, assignment_response(group, member), now_ms)
        group.transition(State.STABLE, now_ms)

    def synced(self, group: ClassicGroup, member: Member) -> None:
        """A member has asked for its assignment; once all have, there is nothing to wait for."""
        group.pending_sync.discard(member.member_id)
        if not group.pending_sync:
            self._deadlines.stop(group.sync_timer)

    def _settle_sync(
        self,
        out: Outbox,
        group: ClassicGroup,
        member: Member,
        response: SyncGroupResponse,
        now_ms: int,
    ) -> None:
        if member.member_id not in group.pending_sync:
            # While it waited its session could not end, even if its connection did.
            self.renew_session(member, now_ms)
        self._answer_sync(out, member, response)

    def _complete_join(self, out: Outbox, group: ClassicGroup, now_ms: int) -> None:
        self._deadlines.stop(group.join_timer)
        for member in list(group.members.values()):
            # A static member keeps its place until its session ends (KIP-345).
            if not member.is_joined and member.instance_id is None:
                self.remove_member(out, group, member)
        if group.members and not group.elect_joined_leader():
            # Only static members are left and none came back: their sessions decide.
            self._deadlines.start(group.join_timer, now_ms + max(group.rebalance_timeout_ms, 1))
            return
        group.start_generation(now_ms)
        if group.state is State.EMPTY:
            self._write(out, group, {}, now_ms)
            return
        for member in group.members.values():
            group.set_joined(member, False)
            member.is_new = False
            self.renew_session(member, now_ms)
            if member.waiting_join is not None:
                version = member.waiting_join.version
                self._answer_join(out, member, join_response(group, member, version))
        group.pending_sync = set(group.members)
        self._deadlines.start(group.sync_timer, now_ms + group.rebalance_timeout_ms)

    def _on_join_timeout(self, group: ClassicGroup, out: Outbox, now_ms: int) -> None:
        if group.is_initial and group.has_new_member and now_ms < group.initial_deadline_ms:
            group.has_new_member = False
            later_ms = now_ms + self._settings.initial_rebalance_delay_ms
            self._deadlines.start(group.join_timer, min(later_ms, group.initial_deadline_ms))
        else:
            self._complete_join(out, group, now_ms)

    def _on_sync_timeout(self, group: ClassicGroup, out: Outbox, now_ms: int) -> None:
        assert group.state in {State.COMPLETING_REBALANCE, State.STABLE}
        for member_id in sorted(group.pending_sync):
            self.remove_member(out, group, group.members[member_id])
        self.prepare(out, group, now_ms)

    def _on_session_timeout(
        self, group: ClassicGroup, member: Member, out: Outbox, now_ms: int
    ) -> None:
        has_synced = (
            group.state is State.COMPLETING_REBALANCE and member.member_id not in group.pending_sync
        )
        if not member.is_new and (member.is_joined or has_synced):
            return  # It waits for us, not we for it. The session starts again with the answer.
        self.remove_member(out, group, member)
        if group.state is State.PREPARING_REBALANCE:
            if group.has_all_joined:
                self._complete_join(out, group, now_ms)
        else:
            self.prepare(out, group, now_ms)

    def _on_pending_timeout(
        self, group: ClassicGroup, member_id: str, out: Outbox, now_ms: int
    ) -> None:
        del group.pending[member_id]
        self.maybe_complete_join(out, group, now_ms)

    def _answer_join(self, out: Outbox, member: Member, response: JoinGroupResponse) -> None:
        if member.waiting_join is not None:
            token = member.waiting_join.token
            member.waiting_join = None
            del self._parked[token]
            out.reply(token, response)

    def _answer_sync(self, out: Outbox, member: Member, response: SyncGroupResponse) -> None:
        if member.waiting_sync is not None:
            token = member.waiting_sync.token
            member.waiting_sync = None
            del self._parked[token]
            out.reply(token, response)

    def _write(
        self, out: Outbox, group: ClassicGroup, assignments: dict[str, bytes], now_ms: int
    ) -> bool:
        """Write the group, unless it is too large to be written."""
        record = group_record(group.group_id, group.to_value(assignments, self._times.wall_ms))
        assert record.value is not None
        if len(record.value) > self._settings.record_bytes_max:
            return False
        group.is_recorded = True
        out.records.append(record)
        return True


# Versions of JoinGroup: who joins for the first time is given an id and has to come again
# (KIP-394), and a leader can be told to leave the assignment as it is (KIP-814).
_MEMBER_ID_REQUIRED = 4
_SKIP_ASSIGNMENT = 9
# Version 0 of JoinGroup has no rebalance timeout.
_REBALANCE_TIMEOUT = 1

# Ids that were given out cost nothing to ask for, so they are bounded whatever the group size is.
PENDING_MEMBERS_MAX = 10_000
# Generated ids start with a name of the client's choice, and have to fit in a string of 32 kB.
_ID_PREFIX_CHARS = 1_000


class Membership:
    """Requests of members, against the classic groups of a shard."""

    def __init__(
        self,
        settings: GroupSettings,
        random: Random,
        groups: dict[str, ClassicGroup],
        rebalance: Rebalance,
        register: Callable[[ClassicGroup, int], None],
    ) -> None:
        self._settings = settings
        self._random = random
        self._groups = groups
        self._rebalance = rebalance
        # Makes a group known that was created for its first member.
        self._register = register

    def join(
        self,
        out: Outbox,
        request: JoinGroupRequest,
        version: int,
        token: Token,
        client: Client,
        now_ms: int,
    ) -> None:
        """Handle JoinGroup: the answer may wait for the other members."""
        waiting = Waiting(token, version)
        code = self._check_join(request)
        if code is not ErrorCode.NONE:
            self._refuse_join(out, waiting, code, request.member_id)
            return
        group = self._groups.get(request.group_id)
        if group is None:
            if request.member_id:
                self._refuse_join(out, waiting, ErrorCode.UNKNOWN_MEMBER_ID, request.member_id)
                return
            group = self._rebalance.new_group(request.group_id, now_ms)
        protocols: dict[str, bytes] = {}
        for protocol in request.protocols:
            protocols.setdefault(protocol.name, protocol.metadata)
        if group.state is State.DEAD:
            # Its tombstone is on its way; the next attempt finds a group without a past.
            self._refuse_join(out, waiting, ErrorCode.COORDINATOR_NOT_AVAILABLE, request.member_id)
        elif not self._has_room(group, self._known(group, request)):
            self._turn_away(out, group, request.member_id, now_ms)
            self._refuse_join(out, waiting, ErrorCode.GROUP_MAX_SIZE_REACHED, "")
        elif not group.supports(request.protocol_type, protocols):
            self._refuse_join(
                out, waiting, ErrorCode.INCONSISTENT_GROUP_PROTOCOL, request.member_id
            )
        elif request.member_id:
            self._join_known(out, group, request, protocols, waiting, client, now_ms)
        elif request.group_instance_id is not None:
            self._join_static(out, group, request, protocols, waiting, client, now_ms)
        elif version >= _MEMBER_ID_REQUIRED:
            self._require_member_id(out, group, request, waiting, client, now_ms)
        else:
            member_id = self._new_member_id(client.client_id)
            self._add(out, group, request, member_id, protocols, waiting, client, now_ms)

    def sync(
        self,
        out: Outbox,
        request: SyncGroupRequest,
        version: int,
        token: Token,
        client: Client,
        now_ms: int,
    ) -> None:
        """Handle SyncGroup: followers wait for the leader, and all for its assignment's commit."""
        group = self._groups.get(request.group_id)
        code = self._check_sync(group, request)
        if code is not ErrorCode.NONE:
            out.reply(token, SyncGroupResponse(error_code=code))
            return
        assert group is not None
        member = group.members[request.member_id]
        self._rebalance.synced(group, member)
        if group.state is State.STABLE:
            self._rebalance.renew_session(member, now_ms)
            out.reply(token, assignment_response(group, member))
            return
        self._rebalance.park_sync(out, member, Waiting(token, version))
        if group.leader == member.member_id and group.storing_generation is None:
            assignments = {one.member_id: one.assignment for one in request.assignments}
            self._rebalance.store_assignment(out, group, assignments, now_ms)

    def heartbeat(
        self,
        out: Outbox,
        request: HeartbeatRequest,
        version: int,
        token: Token,
        client: Client,
        now_ms: int,
    ) -> None:
        """Handle Heartbeat: renew the session, and say whether to join again."""
        group = self._groups.get(request.group_id)
        if group is None:
            code = ErrorCode.UNKNOWN_MEMBER_ID if request.group_id else ErrorCode.INVALID_GROUP_ID
        elif group.state is State.DEAD:
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE
        else:
            code = group.check_member(request.member_id, request.group_instance_id)
            if code is ErrorCode.NONE:
                if request.generation_id != group.generation:
                    code = ErrorCode.ILLEGAL_GENERATION
                else:
                    self._rebalance.renew_session(group.members[request.member_id], now_ms)
                    if group.state is State.PREPARING_REBALANCE:
                        code = ErrorCode.REBALANCE_IN_PROGRESS
        out.reply(token, HeartbeatResponse(error_code=code))

    def leave(
        self,
        out: Outbox,
        request: LeaveGroupRequest,
        version: int,
        token: Token,
        client: Client,
        now_ms: int,
    ) -> None:
        """Handle LeaveGroup: the others are told to join again."""
        group = self._groups.get(request.group_id)
        if not request.group_id:
            out.reply(token, LeaveGroupResponse(error_code=ErrorCode.INVALID_GROUP_ID))
            return
        if group is not None and group.state is State.DEAD:
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE
            out.reply(token, LeaveGroupResponse(error_code=code))
            return
        leaving = request.members
        if version < _MANY_MEMBERS:
            leaving = [MemberIdentity(member_id=request.member_id)]
        if group is None:
            codes = [ErrorCode.UNKNOWN_MEMBER_ID] * len(leaving)
        else:
            size = len(group.members)
            codes = [self._leave_one(out, group, member) for member in leaving]
            if len(group.members) < size:
                self._rebalance.prepare_or_complete(out, group, now_ms)
            else:
                self._rebalance.maybe_complete_join(out, group, now_ms)
        out.reply(token, leave_response(request, codes, version))

    def _check_join(self, request: JoinGroupRequest) -> ErrorCode:
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
            # Unlike Kafka: there it is let in, though its generation could never be written.
            return ErrorCode.INVALID_REQUEST
        return ErrorCode.NONE

    def _known(self, group: ClassicGroup, request: JoinGroupRequest) -> Member | None:
        """Who joins, if it is a member. A static one that starts again has no id to say so."""
        member_id = request.member_id
        if not member_id and request.group_instance_id is not None:
            member_id = group.static.get(request.group_instance_id, "")
        return group.members.get(member_id)

    def _has_room(self, group: ClassicGroup, member: Member | None) -> bool:
        bound = self._settings.max_size
        if group.state is not State.PREPARING_REBALANCE:
            return member is not None or len(group.members) < bound
        # Counting who has joined, not who is known, gives places away that are not taken up
        # again, and lets the last ones to come back go when the bound was lowered.
        if member is not None and member.instance_id is not None:
            return member.is_joined or group.joined_count < bound
        if member is not None and member.is_joined:
            return True
        return len(group.members) < bound or group.staying_count < bound

    def _turn_away(self, out: Outbox, group: ClassicGroup, member_id: str, now_ms: int) -> None:
        if member_id in group.members:
            self._rebalance.remove_member(out, group, group.members[member_id])
        elif member_id in group.pending:
            self._rebalance.drop_pending(group, member_id)
        self._rebalance.maybe_complete_join(out, group, now_ms)

    def _require_member_id(
        self,
        out: Outbox,
        group: ClassicGroup,
        request: JoinGroupRequest,
        waiting: Waiting,
        client: Client,
        now_ms: int,
    ) -> None:
        """Give out an id and have the client come again with it: a lost answer costs nothing."""
        if len(group.pending) >= min(self._settings.max_size, PENDING_MEMBERS_MAX):
            self._refuse_join(out, waiting, ErrorCode.GROUP_MAX_SIZE_REACHED, "")
            return
        member_id = self._new_member_id(client.client_id)
        self._register(group, now_ms)
        self._rebalance.add_pending(group, member_id, now_ms + request.session_timeout_ms)
        self._refuse_join(out, waiting, ErrorCode.MEMBER_ID_REQUIRED, member_id)

    def _add(
        self,
        out: Outbox,
        group: ClassicGroup,
        request: JoinGroupRequest,
        member_id: str,
        protocols: dict[str, bytes],
        waiting: Waiting,
        client: Client,
        now_ms: int,
    ) -> None:
        member = Member(
            member_id,
            request.group_instance_id,
            client,
            request.session_timeout_ms,
            _rebalance_timeout_ms(request, waiting.version),
            protocols,
        )
        self._rebalance.bind_session(group, member)
        self._register(group, now_ms)
        group.add(member, request.protocol_type)
        group.has_new_member = True
        self._rebalance.expect_new_member(member, now_ms)
        self._rebalance.park_join(out, group, member, waiting)
        self._rebalance.prepare_or_complete(out, group, now_ms)

    def _join_known(
        self,
        out: Outbox,
        group: ClassicGroup,
        request: JoinGroupRequest,
        protocols: dict[str, bytes],
        waiting: Waiting,
        client: Client,
        now_ms: int,
    ) -> None:
        """A join with an id that was given out before, to a member or to one that will be."""
        member_id = request.member_id
        if member_id in group.pending and request.group_instance_id is None:
            self._rebalance.drop_pending(group, member_id)
            self._add(out, group, request, member_id, protocols, waiting, client, now_ms)
            return
        code = group.check_member(member_id, request.group_instance_id)
        if code is not ErrorCode.NONE:
            self._refuse_join(out, waiting, code, member_id)
            return
        member = group.members[member_id]
        is_settled = group.state is State.COMPLETING_REBALANCE or (
            # A leader that joins again asks for a new assignment, e.g. because a topic has grown.
            group.state is State.STABLE and group.leader != member_id
        )
        if is_settled and member.prefers(protocols):
            # It may have missed the answer; the generation it is in is still the current one.
            # Unlike Kafka: asking again is a sign of life, or who misses answers is expelled.
            self._rebalance.renew_session(member, now_ms)
            response = join_response(group, member, waiting.version)
            out.reply(waiting.token, response)
            return
        self._update(group, member, request, protocols, waiting.version)
        self._rebalance.park_join(out, group, member, waiting)
        self._rebalance.prepare_or_complete(out, group, now_ms)

    def _join_static(
        self,
        out: Outbox,
        group: ClassicGroup,
        request: JoinGroupRequest,
        protocols: dict[str, bytes],
        waiting: Waiting,
        client: Client,
        now_ms: int,
    ) -> None:
        """A static member without an id: one that starts, or has started again (KIP-345)."""
        instance_id = request.group_instance_id
        assert instance_id is not None
        member_id = self._new_member_id(instance_id)
        old_id = group.static.get(instance_id)
        if old_id is None:
            self._add(out, group, request, member_id, protocols, waiting, client, now_ms)
            return
        member = group.members[old_id]
        old_leader = group.leader
        old_topics = self._topics(group, member)
        self._rebalance.fence(out, member)
        group.rename(member, member_id)
        member.client = client
        self._update(group, member, request, protocols, waiting.version)
        self._rebalance.renew_session(member, now_ms)
        if (
            group.state is State.STABLE
            and group.select_protocol() == group.protocol_name
            # Unlike Kafka: a change of topics starts a rebalance. There the assignment stays as
            # it was until something else starts one.
            and old_topics == self._topics(group, member)
            and self._rebalance.store_members(out, group, now_ms)
        ):
            response = self._unchanged(group, member, old_leader, waiting.version)
            out.reply(waiting.token, response)
            return
        self._rebalance.park_join(out, group, member, waiting)
        self._rebalance.prepare_or_complete(out, group, now_ms)

    def _unchanged(
        self, group: ClassicGroup, member: Member, old_leader: str | None, version: int
    ) -> JoinGroupResponse:
        """The answer to a static member that takes up its old place and its old assignment."""
        if version >= _SKIP_ASSIGNMENT:
            response = join_response(group, member, version)
            response.skip_assignment = group.leader == member.member_id
            return response
        # Naming the id the leader had before keeps it from assigning anew.
        return JoinGroupResponse(
            generation_id=group.generation,
            protocol_type=group.protocol_type,
            protocol_name=protocol_name(group, version),
            leader=old_leader or "",
            member_id=member.member_id,
        )

    def _update(
        self,
        group: ClassicGroup,
        member: Member,
        request: JoinGroupRequest,
        protocols: dict[str, bytes],
        version: int,
    ) -> None:
        group.set_protocols(member, protocols)
        member.session_timeout_ms = request.session_timeout_ms
        member.rebalance_timeout_ms = _rebalance_timeout_ms(request, version)

    def _topics(self, group: ClassicGroup, member: Member) -> frozenset[str] | None:
        name = group.protocol_name
        if not group.is_consumer or name is None or name not in member.protocols:
            return None
        return subscription_topics(member.protocols[name])

    def _check_sync(self, group: ClassicGroup | None, request: SyncGroupRequest) -> ErrorCode:
        if not request.group_id:
            return ErrorCode.INVALID_GROUP_ID
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if group.state is State.DEAD:
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
        if group.state is State.PREPARING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def _leave_one(self, out: Outbox, group: ClassicGroup, leaving: MemberIdentity) -> ErrorCode:
        member_id = leaving.member_id
        if not member_id and leaving.group_instance_id is not None:
            # An administrator removes a static member by its instance id alone.
            member_id = group.static.get(leaving.group_instance_id, "")
        elif member_id in group.pending:
            self._rebalance.drop_pending(group, member_id)
            return ErrorCode.NONE
        code = group.check_member(member_id, leaving.group_instance_id)
        if code is ErrorCode.NONE:
            self._rebalance.remove_member(out, group, group.members[member_id])
        return code

    def _refuse_join(self, out: Outbox, waiting: Waiting, code: ErrorCode, member_id: str) -> None:
        out.reply(waiting.token, join_error(code, member_id, waiting.version))

    def _new_member_id(self, name: str) -> str:
        # It brings `platform` and more along, for which no start need wait.
        from uuid import UUID  # noqa: PLC0415

        number = UUID(int=self._random.getrandbits(128), version=4)
        return f"{name[:_ID_PREFIX_CHARS]}-{number}"


def _rebalance_timeout_ms(request: JoinGroupRequest, version: int) -> int:
    if version < _REBALANCE_TIMEOUT:
        return request.session_timeout_ms
    return max(request.rebalance_timeout_ms, 0)
