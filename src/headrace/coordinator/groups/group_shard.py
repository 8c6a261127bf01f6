"""All groups of one partition of `__consumer_offsets`: requests, time and records to the right one.

A request goes to the groups by their type, of which there is one, the classic; the offsets are
common to all types.
"""

from collections.abc import Callable, Collection, Iterable
from functools import partial
from random import Random
from typing import Any, TypeAlias

from headrace.coordinator.deadlines import Deadlines
from headrace.coordinator.groups.classic_group import ClassicGroup, Member, State
from headrace.coordinator.groups.classic_protocol import Membership, Rebalance
from headrace.coordinator.groups.group_offsets import (
    Offsets,
    check_commit,
    check_txn_commit,
    refused_commit,
    refused_txn_commit,
)
from headrace.coordinator.records import (
    RecordError,
    decode_group,
    decode_key,
    decode_offset,
    group_record,
)
from headrace.coordinator.shard import (
    NO_PRODUCER,
    Client,
    Effects,
    GroupSettings,
    Outbox,
    Record,
    Reply,
    Times,
    Token,
    TransactionalProducer,
    fits_string,
)
from headrace.errors import ErrorCode
from headrace.protocol.messages.describe_groups import DescribedGroup
from headrace.protocol.messages.heartbeat import HeartbeatRequest
from headrace.protocol.messages.join_group import JoinGroupRequest
from headrace.protocol.messages.leave_group import LeaveGroupRequest
from headrace.protocol.messages.list_groups import ListedGroup
from headrace.protocol.messages.offset_commit import OffsetCommitRequest
from headrace.protocol.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from headrace.protocol.messages.offset_fetch import (
    OffsetFetchRequestGroup,
    OffsetFetchResponseGroup,
)
from headrace.protocol.messages.offsets_records import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
)
from headrace.protocol.messages.sync_group import SyncGroupRequest
from headrace.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest
from headrace.protocol.schema import Message
from headrace.types import ZERO_UUID

_Handler: TypeAlias = Callable[[Outbox, Any, int, Token, Client, int], None]

# Bounds on one tick: heap entries looked at, and offsets of a group that expire together.
TIMERS_PER_TICK = 1_000
EXPIRED_PER_CHECK = 1_000
# How soon a check goes on that has met its bound.
_CHECK_PAUSE_MS = 1_000

_UNKNOWN_GROUP_ERROR = 9
_DESCRIBE_NOT_FOUND = 6


class GroupShard:
    """All groups of one partition of `__consumer_offsets`. Not thread-safe; the shell owns it.

    To load: `replay` every record of the partition in order, and `end_transaction` for every
    marker, then `loaded`. From then on `handle` and `tick` return effects, and `commit` says what
    to send once their records are committed.

    Invariant: offsets, and the last recorded generation of every group, change only in `replay`
    and `end_transaction`.
    Who waits, who has joined and when it times out is soft state, and ahead of the log while
    effects are on their way; so a shard whose append fails has to be dropped and loaded again.
    """

    def __init__(
        self,
        settings: GroupSettings,
        random: Random,
        topic_id_of: Callable[[str], bytes | None] = lambda _: ZERO_UUID,
    ) -> None:
        """`topic_id_of` has the id of a topic, ZERO_UUID if it is not known, None if it is not."""
        self._settings = settings
        self._random = random
        self._groups: dict[str, ClassicGroup] = {}
        self._deadlines = Deadlines()
        self.times = Times()
        self._offsets = Offsets(settings, self.times, topic_id_of)
        self._rebalance = Rebalance(settings, self.times, self._deadlines)
        self._membership = Membership(
            settings, random, self._groups, self._rebalance, self._register
        )
        self._is_loaded = False
        self.has_to_remove_stale_offsets = False
        """Whether offsets were loaded: topics may have been deleted while nobody led."""
        # Records of types that only newer versions know, met while loading.
        self.ignored_records = 0
        self._handlers: dict[type[Message], _Handler] = {
            HeartbeatRequest: self._membership.heartbeat,
            JoinGroupRequest: self._membership.join,
            LeaveGroupRequest: self._membership.leave,
            OffsetCommitRequest: self._commit_offsets,
            OffsetDeleteRequest: self._delete_offsets,
            SyncGroupRequest: self._membership.sync,
            TxnOffsetCommitRequest: self._commit_in_transaction,
        }

    @property
    def next_deadline_ms(self) -> int | None:
        """When `tick` has to be called next; None if nothing will ever be due."""
        return self._deadlines.next_ms

    def handle(
        self, request: Message, version: int, token: Token, client: Client, now_ms: int
    ) -> Effects:
        """Decide a request that names one group. Its reply may come with a later call's effects."""
        assert self._is_loaded
        self.times.now_ms = now_ms
        out = Outbox()
        self._handlers[type(request)](out, request, version, token, client, now_ms)
        return out.effects()

    def tick(self, now_ms: int) -> Effects:
        """Do what is due: end sessions, waits and rebalances, expire offsets.

        The work of one call is bounded; if more is due, `next_deadline_ms` stays in the past.
        """
        assert self._is_loaded
        self.times.now_ms = now_ms
        out = Outbox()
        self._deadlines.fire_due(now_ms, TIMERS_PER_TICK, out)
        return out.effects()

    def commit(self, effects: Effects, now_ms: int) -> tuple[Reply, ...]:
        """Replay what is committed; return the replies that waited for it."""
        self.times.now_ms = now_ms
        out = Outbox()
        for record in effects.records:
            self._replay(out, record, effects.producer.producer_id)
        if effects.marker is not None:
            self.end_transaction(effects.marker.producer_id, effects.marker.committed)
        assert not out.records
        return (*effects.replies, *out.replies)

    def cancel(self, token: Token) -> None:
        """Forget a waiting request whose connection is gone; its session decides on the member."""
        self._rebalance.forget(token)

    def close(self, code: ErrorCode) -> tuple[Reply, ...]:
        """The last replies of a shard that is given up: an error for everybody who waits."""
        out = Outbox()
        self._rebalance.answer_all(out, code)
        return tuple(out.replies)

    def replay(self, record: Record, producer_id: int = NO_PRODUCER) -> None:
        """Take over one record while loading; RecordError if it cannot be read."""
        assert not self._is_loaded
        self._replay(Outbox(), record, producer_id)

    def _replay(self, out: Outbox, record: Record, producer_id: int) -> None:
        key = decode_key(record.key)
        if key is None:
            self.ignored_records += 1
        elif isinstance(key, OffsetCommitKey):
            offset = None if record.value is None else decode_offset(record.value)
            self._offsets.replay(key, offset, producer_id)
        else:
            value = None if record.value is None else decode_group(record.value)
            self._replay_group(out, key, value)

    def end_transaction(self, producer_id: int, committed: bool) -> None:
        """Take over, or drop, the offsets of a producer's transaction."""
        self._offsets.end_transaction(producer_id, committed)

    def loaded(self, now_ms: int) -> None:
        """End loading: members restored from the log have one session timeout to show up."""
        assert not self._is_loaded
        self._is_loaded = True
        self.times.now_ms = now_ms
        self._offsets.loaded()
        for group_id in self._offsets.group_ids():
            self.has_to_remove_stale_offsets = True
            if group_id not in self._groups:
                self._groups[group_id] = self._rebalance.new_group(group_id, None)
        for group in self._groups.values():
            if group.state_timestamp_ms is not None:
                group.state_timestamp_ms = self.times.steady_ms(group.state_timestamp_ms)
            for member in group.members.values():
                self._rebalance.renew_session(member, now_ms)
            self._watch_expiry(group, now_ms, self._random.random())

    def remove_stale_offsets(self, deleted: Collection[str] | None = None) -> Effects:
        """Remove the offsets of topics that are `deleted` now, or of all that have been."""
        if deleted is None:
            self.has_to_remove_stale_offsets = False
        return Effects(tuple(self._offsets.stale_tombstones(deleted)))

    def fetch_offsets(
        self, request: OffsetFetchRequestGroup, require_stable: bool = False
    ) -> OffsetFetchResponseGroup:
        """The committed offsets of one group. Topics are looked up by name.

        A member id and epoch are for groups of other types. Offsets on their way to the log, and
        those of open transactions, are not shown; with `require_stable` they are an error.
        """
        return self._offsets.fetch(request, require_stable)

    def describe(self, group_id: str, version: int) -> DescribedGroup:
        """One group for DescribeGroups, without the authorized operations."""
        group = self._groups.get(group_id)
        if group is not None and group.state is not State.DEAD:
            return group.describe()
        answer = DescribedGroup(group_id=group_id, group_state=State.DEAD.value)
        if version >= _DESCRIBE_NOT_FOUND:
            answer.error_code = ErrorCode.GROUP_ID_NOT_FOUND
            answer.error_message = f"Group {group_id} not found."
        return answer

    def list(self, states: Iterable[str] = (), types: Iterable[str] = ()) -> list[ListedGroup]:
        """The groups in one of the states and of one of the types; no names means any."""
        wanted_states = {state.casefold() for state in states}
        wanted_types = {kind.casefold() for kind in types}
        found = []
        for group in self._groups.values():
            listed = group.listed()
            if (
                group.state is not State.DEAD
                and (not wanted_states or listed.group_state.casefold() in wanted_states)
                and (not wanted_types or listed.group_type.casefold() in wanted_types)
            ):
                found.append(listed)
        return found

    def delete(self, group_id: str) -> tuple[tuple[Record, ...], ErrorCode]:
        """Remove an Empty group and its offsets: records to append, and what to answer then."""
        group = self._groups.get(group_id)
        if group is None or group.state is State.DEAD:
            return (), ErrorCode.GROUP_ID_NOT_FOUND
        if group.state is not State.EMPTY:
            return (), ErrorCode.NON_EMPTY_GROUP
        offsets = self._offsets.tombstones(group_id)
        return (*offsets, self._bury(group, self.times.now_ms)), ErrorCode.NONE

    def _commit_offsets(
        self,
        out: Outbox,
        request: OffsetCommitRequest,
        version: int,
        token: Token,
        client: Client,
        now_ms: int,
    ) -> None:
        group = self._groups.get(request.group_id)
        if not fits_string(request.group_id):
            code = ErrorCode.INVALID_GROUP_ID
        elif group is not None:
            code = check_commit(group, request)
        elif request.generation_id_or_member_epoch < 0:
            group = self._rebalance.new_group(request.group_id, None)
            self._register(group, now_ms)
            code = ErrorCode.NONE
        elif version >= _UNKNOWN_GROUP_ERROR:
            code = ErrorCode.GROUP_ID_NOT_FOUND
        else:
            code = ErrorCode.ILLEGAL_GENERATION
        if code is not ErrorCode.NONE:
            out.reply(token, refused_commit(request, code))
            return
        assert group is not None
        member = group.members.get(request.member_id)
        if member is not None:
            self._rebalance.renew_session(member, now_ms)
        records, response = self._offsets.commit(request)
        out.records += records
        out.reply(token, response)

    def _commit_in_transaction(
        self,
        out: Outbox,
        request: TxnOffsetCommitRequest,
        version: int,
        token: Token,
        client: Client,
        now_ms: int,
    ) -> None:
        """Write offsets that hold once their transaction is committed.

        That the transaction is open, and that it has this partition, is for the shell to know.
        """
        group = self._groups.get(request.group_id)
        if not request.group_id or not fits_string(request.group_id):
            code = ErrorCode.INVALID_GROUP_ID
        elif request.producer_id < 0:
            # Its records would be taken for those of nobody's transaction, which hold at once.
            code = ErrorCode.INVALID_PRODUCER_ID_MAPPING
        elif group is not None:
            code = check_txn_commit(group, request)
        elif request.generation_id < 0:
            self._register(self._rebalance.new_group(request.group_id, None), now_ms)
            code = ErrorCode.NONE
        else:
            code = ErrorCode.ILLEGAL_GENERATION
        if code is not ErrorCode.NONE:
            out.reply(token, refused_txn_commit(request, code))
            return
        records, response = self._offsets.commit_in_transaction(request)
        out.records += records
        out.producer = TransactionalProducer(request.producer_id, request.producer_epoch)
        out.reply(token, response)

    def _delete_offsets(
        self,
        out: Outbox,
        request: OffsetDeleteRequest,
        version: int,
        token: Token,
        client: Client,
        now_ms: int,
    ) -> None:
        group = self._groups.get(request.group_id)
        code = ErrorCode.NONE
        if not request.group_id:
            code = ErrorCode.INVALID_GROUP_ID
        elif group is None or group.state is State.DEAD:
            code = ErrorCode.GROUP_ID_NOT_FOUND
        elif group.state is not State.EMPTY and not group.is_consumer:
            # What the members of other protocols read cannot be known.
            code = ErrorCode.NON_EMPTY_GROUP
        if code is not ErrorCode.NONE:
            out.reply(token, OffsetDeleteResponse(error_code=code))
            return
        assert group is not None
        records, response = self._offsets.delete(group, request)
        out.records += records
        out.reply(token, response)

    def _register(self, group: ClassicGroup, now_ms: int) -> None:
        if group.group_id not in self._groups:
            self._groups[group.group_id] = group
            self._watch_expiry(group, now_ms, 1.0)

    def _watch_expiry(self, group: ClassicGroup, now_ms: int, fraction: float) -> None:
        group.expiry_timer.fire = partial(self._on_expiry_check, group)
        interval_ms = self._settings.offsets_retention_check_interval_ms
        # Groups loaded together are not looked at together.
        self._deadlines.start(group.expiry_timer, now_ms + 1 + int(fraction * interval_ms))

    def _on_expiry_check(self, group: ClassicGroup, out: Outbox, now_ms: int) -> None:
        """Remove what has been kept long enough: offsets, and a group that has none left."""
        expired, is_any_left = self._offsets.expire(group, now_ms, EXPIRED_PER_CHECK)
        out.records += expired
        if not is_any_left and group.state is State.EMPTY and not group.pending:
            if expired or group.is_recorded:
                out.records.append(self._bury(group, now_ms))
            else:
                self._rebalance.kill(group, now_ms)
                del self._groups[group.group_id]
            return
        pause_ms = self._settings.offsets_retention_check_interval_ms
        if len(expired) == EXPIRED_PER_CHECK:
            pause_ms = min(pause_ms, _CHECK_PAUSE_MS)
        self._deadlines.start(group.expiry_timer, now_ms + pause_ms)

    def _bury(self, group: ClassicGroup, now_ms: int) -> Record:
        """End a group; it is forgotten when the tombstone returned here is replayed."""
        self._rebalance.kill(group, now_ms)
        self._deadlines.stop(group.expiry_timer)
        return group_record(group.group_id, None)

    def _replay_group(
        self, out: Outbox, key: GroupMetadataKey, value: GroupMetadataValue | None
    ) -> None:
        if value is None:
            buried = self._groups.pop(key.group, None)
            assert buried is None or not self._is_loaded or buried.state is State.DEAD
        elif self._is_loaded:
            group = self._groups.get(key.group)
            if group is not None:
                self._rebalance.committed(out, group, value, self.times.now_ms)
        else:
            self._groups[key.group] = self._restore(key.group, value)

    def _restore(self, group_id: str, value: GroupMetadataValue) -> ClassicGroup:
        ids = [member.member_id for member in value.members]
        instances = [one.group_instance_id for one in value.members if one.group_instance_id]
        if len(set(ids)) < len(ids) or len(set(instances)) < len(instances):
            raise RecordError(f"group {group_id!r} has a member twice")
        group = self._rebalance.new_group(group_id, None)
        members = []
        for stored in value.members:
            rebalance_ms = stored.rebalance_timeout
            member = Member(
                stored.member_id,
                stored.group_instance_id,
                Client(stored.client_id, stored.client_host),
                stored.session_timeout,
                rebalance_ms if rebalance_ms >= 0 else stored.session_timeout,
                {value.protocol or "": stored.subscription},
            )
            member.assignment = stored.assignment
            member.is_new = False
            self._rebalance.bind_session(group, member)
            members.append(member)
        group.restore(value, members)
        return group
