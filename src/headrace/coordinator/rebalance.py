"""How a classic group gets from one generation to the next, and the timeouts on the way.

    Empty -- first member --> PreparingRebalance
    PreparingRebalance -- all have joined, or time is up --> CompletingRebalance
    CompletingRebalance -- the leader's assignment is committed --> Stable
    Stable, CompletingRebalance -- a member comes, goes or changes --> PreparingRebalance
    PreparingRebalance -- nobody is left --> Empty

Rule: a request that waits is held by exactly one member, and leaves it with exactly one answer.
What a call writes and answers goes to the outbox of that call, `out`.
"""

from functools import partial

from headrace.coordinator.answers import assignment_response, join_error, join_response
from headrace.coordinator.classic import ClassicGroup, Member, State, Waiting
from headrace.coordinator.deadlines import Deadlines, Timer
from headrace.coordinator.records import group_record
from headrace.coordinator.shard import GroupSettings, Outbox, Times, Token
from headrace.errors import ErrorCode
from headrace.protocol.messages.join_group import JoinGroupResponse
from headrace.protocol.messages.offsets_records import GroupMetadataValue
from headrace.protocol.messages.sync_group import SyncGroupResponse

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
