"""The shard of groups in one `__consumer_offsets` partition: its requests, timers and records.

A request of a member goes to the protocol of its group's type: `ClassicProtocol`, in which a member
computes the assignment, or `ConsumerGroupProtocol`, in which the coordinator does. A group without
members is taken over by the protocol of whoever joins it. Offsets, their expiry, and listing,
describing and deleting groups are common to all types.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from random import Random
from typing import Any, TypeAlias

from headrace.coordinator.deadlines import Deadlines
from headrace.coordinator.groups.classic_group import ClassicGroup, GroupState
from headrace.coordinator.groups.classic_members import ClassicMembers
from headrace.coordinator.groups.classic_protocol import (
    ClassicProtocol,
    MemberRequest,
    join_error,
)
from headrace.coordinator.groups.consumer_group import ConsumerGroup
from headrace.coordinator.groups.consumer_group_protocol import ConsumerGroupProtocol
from headrace.coordinator.groups.group_migration import GroupMigration
from headrace.coordinator.groups.group_offsets import (
    OffsetStore,
    offset_commit_error,
    txn_offset_commit_error,
)
from headrace.coordinator.groups.reconciliation import JOINING
from headrace.coordinator.groups.topic_catalog import NoTopics, TopicCatalog
from headrace.coordinator.records import (
    ConsumerGroupKey,
    decode_consumer_group,
    decode_group,
    decode_key,
    decode_offset,
    group_record,
)
from headrace.coordinator.shard import (
    NO_PRODUCER,
    CallTimes,
    ConsumerGroupOptions,
    CoordinatorRecord,
    GroupCall,
    GroupSettings,
    Reply,
    RequestClient,
    ShardEffects,
    Token,
    TransactionalProducer,
    fits_string,
)
from headrace.errors import ErrorCode, KafkaError
from headrace.protocol.messages import consumer_group_describe
from headrace.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
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
from headrace.types import ZERO_UUID, TopicPartition

Group: TypeAlias = ClassicGroup | ConsumerGroup
_Handler: TypeAlias = Callable[[GroupCall, Any, int, Token, RequestClient], ShardEffects]

# Bounds of one tick: heap entries inspected, and offsets of a group that expire together.
TIMERS_PER_TICK = 1_000
EXPIRED_PER_CHECK = 1_000
# The pause before an expiry check that met its bound continues.
_CHECK_PAUSE_MS = 1_000

_UNKNOWN_GROUP_ERROR = 9
_DESCRIBE_NOT_FOUND = 6


class GroupShard:
    """All groups of one partition of `__consumer_offsets`. Not thread-safe; the shell owns it.

    To load: `replay` every record of the partition in order, and `end_transaction` for every
    marker, then `loaded`. From then on `handle` and `tick` return effects, and `commit` returns the
    replies to send once their records are committed.

    Invariant: offsets, and the last recorded generation of every group, change only in `replay`
    and `end_transaction`.
    Waiting requests, joined members and timers are soft state, which is ahead of the log until the
    effects are committed; so are consumer groups, which change when their records are written. So a
    shard whose append fails has to be dropped and loaded again.
    """

    def __init__(
        self,
        settings: GroupSettings,
        random: Random,
        topic_id_of: Callable[[str], bytes | None] = lambda _: ZERO_UUID,
        *,
        topics: TopicCatalog | None = None,
        options_of: Callable[[str], ConsumerGroupOptions] = lambda _: ConsumerGroupOptions(),
    ) -> None:
        """`topic_id_of` returns a topic's id: ZERO_UUID if unknown, None if there is no topic.

        `topics` are those that consumer groups are assigned, and `options_of` their settings.
        """
        self._settings = settings
        self._random = random
        self._groups: dict[str, Group] = {}
        self._deadlines = Deadlines()
        self.times = CallTimes()
        self._offsets = OffsetStore(settings, self.times, topic_id_of)
        self._classic = ClassicProtocol(settings)
        self._topics = NoTopics() if topics is None else topics
        self._options_of = options_of
        self._consumer = ConsumerGroupProtocol(settings, options_of, self._topics)
        self._consumer.after_removal = self._downgrade_if_left
        self._members = ClassicMembers(self._consumer, self._topics)
        self._migration = GroupMigration(settings, self._classic, self._consumer, self._topics)
        self._is_loaded = False
        self.recording_requests: frozenset[type[Message]] = frozenset(
            (OffsetCommitRequest, OffsetDeleteRequest, TxnOffsetCommitRequest)
        )
        self.has_to_remove_stale_offsets = False
        """Whether offsets were loaded: topics may have been deleted while there was no leader."""
        # The number of records of unknown types that were loaded.
        self.ignored_records = 0
        self._handlers: dict[type[Message], _Handler] = {
            ConsumerGroupHeartbeatRequest: self._handle_heartbeat,
            HeartbeatRequest: self._handle_classic,
            JoinGroupRequest: self._handle_classic,
            LeaveGroupRequest: self._handle_classic,
            OffsetCommitRequest: self._commit_offsets,
            OffsetDeleteRequest: self._delete_offsets,
            SyncGroupRequest: self._handle_classic,
            TxnOffsetCommitRequest: self._commit_in_transaction,
        }

    @property
    def next_deadline_ms(self) -> int | None:
        """The time of the next call of `tick`; None if no timer runs."""
        return self._deadlines.next_ms

    def handle(
        self, request: Message, version: int, token: Token, client: RequestClient, now_ms: int
    ) -> ShardEffects:
        """Handle a request for one group. Its reply may come with the effects of a later call."""
        assert self._is_loaded
        call = self._new_call(now_ms)
        return self._handlers[type(request)](call, request, version, token, client)

    def tick(self, now_ms: int) -> ShardEffects:
        """Fire the timers that are due: of sessions, rebalances and the expiry of offsets.

        The work of one call is bounded; if more is due, `next_deadline_ms` stays in the past.
        """
        assert self._is_loaded
        call = self._new_call(now_ms)
        self._deadlines.fire_due(now_ms, TIMERS_PER_TICK, call)
        return call.effects()

    def commit(self, effects: ShardEffects, now_ms: int) -> tuple[Reply, ...]:
        """Replay committed effects; return the replies that waited for them."""
        call = self._new_call(now_ms)
        for record in effects.records:
            self._replay(call, record, effects.producer.producer_id)
        if effects.marker is not None:
            self.end_transaction(effects.marker.producer_id, effects.marker.committed)
        released = call.effects()
        assert not released.records
        return (*effects.replies, *released.replies)

    def cancel(self, token: Token) -> None:
        """Drop a waiting request whose connection is closed; its member stays for its session."""
        self._classic.cancel(token)

    def close(self, code: ErrorCode) -> tuple[Reply, ...]:
        """The last replies of a shard that is dropped: an error for every waiting request."""
        return self._classic.close(self._new_call(self.times.now_ms), code).replies

    def replay(self, record: CoordinatorRecord, producer_id: int = NO_PRODUCER) -> None:
        """Apply a record while loading; RecordError if it cannot be decoded."""
        assert not self._is_loaded
        self._replay(None, record, producer_id)

    def _replay(self, call: GroupCall | None, record: CoordinatorRecord, producer_id: int) -> None:
        key = decode_key(record.key)
        if key is None:
            self.ignored_records += 1
        elif isinstance(key, OffsetCommitKey):
            offset = None if record.value is None else decode_offset(record.value)
            self._offsets.replay(key, offset, producer_id)
        elif isinstance(key, GroupMetadataKey):
            value = None if record.value is None else decode_group(record.value)
            self._replay_group(call, key, value)
        elif call is None:
            self._load_consumer_group(key, record.value)

    def end_transaction(self, producer_id: int, committed: bool) -> None:
        """Commit, or drop, the pending offsets of a producer's transaction."""
        self._offsets.end_transaction(producer_id, committed)

    def loaded(self, now_ms: int) -> None:
        """End loading: start the sessions of restored members, and the expiry of offsets."""
        assert not self._is_loaded
        self._is_loaded = True
        call = self._new_call(now_ms)
        self._offsets.loaded()
        for group_id in self._offsets.group_ids():
            self.has_to_remove_stale_offsets = True
            if group_id not in self._groups:
                self._groups[group_id] = self._classic.new_group(group_id, None)
        for group in self._groups.values():
            if isinstance(group, ConsumerGroup):
                self._consumer.start_sessions(call, group)
            else:
                if group.state_timestamp_ms is not None:
                    group.state_timestamp_ms = self.times.steady_ms(group.state_timestamp_ms)
                self._classic.start_sessions(call, group)
            self._watch_expiry(group, now_ms, self._random.random())

    def remove_stale_offsets(self, deleted: Collection[str] | None = None) -> ShardEffects:
        """Remove the offsets of the topics just `deleted`, or of all deleted topics."""
        if deleted is None:
            self.has_to_remove_stale_offsets = False
        return ShardEffects(tuple(self._offsets.stale_tombstones(deleted)))

    def fetch_offsets(
        self, request: OffsetFetchRequestGroup, require_stable: bool = False
    ) -> OffsetFetchResponseGroup:
        """The committed offsets of one group. Topics are looked up by name.

        The request's member id and epoch are checked in consumer groups. Uncommitted offsets, and
        those of open transactions, are not shown; with `require_stable` they are an error.
        """
        group = self._groups.get(request.group_id)
        if isinstance(group, ConsumerGroup):
            code = group.check_fetch(request)
            if code is not ErrorCode.NONE:
                return OffsetFetchResponseGroup(group_id=request.group_id, error_code=code)
        return self._offsets.fetch(request, require_stable)

    def groups(self) -> list[Group]:
        """The groups that exist, for metrics."""
        # A consumer group that is Dead is gone, and its state would be a look at all its members.
        return [
            group
            for group in self._groups.values()
            if isinstance(group, ConsumerGroup) or group.state is not GroupState.DEAD
        ]

    def committed_offsets(self, group_id: str) -> Iterator[tuple[TopicPartition, int]]:
        """The committed offsets of a group, without those of deleted topics."""
        return self._offsets.committed(group_id)

    def describe(self, group_id: str, version: int) -> DescribedGroup:
        """A group as DescribeGroups shows it, without the authorized operations."""
        group = self._groups.get(group_id)
        if isinstance(group, ClassicGroup) and group.state is not GroupState.DEAD:
            return group.describe()
        answer = DescribedGroup(group_id=group_id, group_state=GroupState.DEAD.value)
        if version >= _DESCRIBE_NOT_FOUND:
            answer.error_code = ErrorCode.GROUP_ID_NOT_FOUND
            answer.error_message = f"Group {group_id} not found."
            if isinstance(group, ConsumerGroup):
                answer.error_message = f"Group {group_id} is not a classic group."
        return answer

    def describe_consumer_group(self, group_id: str) -> consumer_group_describe.DescribedGroup:
        """A group as ConsumerGroupDescribe shows it, without the authorized operations."""
        group = self._groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            return group.describe(self._topics, self._consumer.default_assignor(group_id))
        problem = "not found" if group is None else "is not a consumer group"
        return consumer_group_describe.DescribedGroup(
            group_id=group_id,
            error_code=ErrorCode.GROUP_ID_NOT_FOUND,
            error_message=f"Group {group_id} {problem}.",
        )

    def list(self, states: Iterable[str] = (), types: Iterable[str] = ()) -> list[ListedGroup]:
        """The groups in any of the states and of any of the types; an empty filter passes all."""
        wanted_states = {state.casefold() for state in states}
        wanted_types = {kind.casefold() for kind in types}
        found = []
        for group in self._groups.values():
            listed = group.list_entry()
            if (
                group.state is not GroupState.DEAD
                and (not wanted_states or listed.group_state.casefold() in wanted_states)
                and (not wanted_types or listed.group_type.casefold() in wanted_types)
            ):
                found.append(listed)
        return found

    def delete(self, group_id: str) -> tuple[tuple[CoordinatorRecord, ...], ErrorCode]:
        """Remove an Empty group and its offsets: the records to append, and the response's code."""
        group = self._groups.get(group_id)
        if group is None or group.state is GroupState.DEAD:
            return (), ErrorCode.GROUP_ID_NOT_FOUND
        if not group.is_empty:
            return (), ErrorCode.NON_EMPTY_GROUP
        offsets = self._offsets.tombstones(group_id)
        call = self._new_call(self.times.now_ms)
        self._end_group(call, group)
        return (*offsets, *call.out.records), ErrorCode.NONE

    def _new_call(self, now_ms: int) -> GroupCall:
        self.times.now_ms = now_ms
        return GroupCall(self.times, self._deadlines, self._random)

    def _handle_classic(
        self,
        call: GroupCall,
        request: MemberRequest,
        version: int,
        token: Token,
        client: RequestClient,
    ) -> ShardEffects:
        """Pass a request of a member to the classic protocol; keep a group that it creates."""
        found = self._groups.get(request.group_id)
        if isinstance(found, ConsumerGroup) and not found.is_empty:
            return self._handle_classic_member(call, found, request, version, token, client)
        joins = isinstance(request, JoinGroupRequest) and not request.member_id
        group = found if isinstance(found, ClassicGroup) else None
        is_new = group is None and joins and (found is None or found.is_empty)
        if is_new:
            group = self._classic.new_group(request.group_id, call.now_ms)
        effects = self._classic.handle(call, group, request, version, token, client)
        # A refused join leaves no trace.
        if is_new and group is not None and (group.members or group.pending):
            if isinstance(found, ConsumerGroup):
                self._end_group(call, found)
            self._register(group, call.now_ms)
            effects = call.effects()
        return effects

    def _handle_classic_member(
        self,
        call: GroupCall,
        group: ConsumerGroup,
        request: MemberRequest,
        version: int,
        token: Token,
        client: RequestClient,
    ) -> ShardEffects:
        """Handle a request by the classic protocol of a member of a consumer group."""
        if isinstance(request, JoinGroupRequest):
            code = self._classic.check_join(request)
            if code is not ErrorCode.NONE:
                call.reply(token, join_error(code, request.member_id, version))
                return call.effects()
        call.reply(token, self._members.handle(call, group, request, version, client))
        # A static member of the consumer protocol may have been the last one, and come back.
        self._downgrade_if_left(call, group)
        return call.effects()

    def _handle_heartbeat(
        self,
        call: GroupCall,
        request: ConsumerGroupHeartbeatRequest,
        version: int,
        token: Token,
        client: RequestClient,
    ) -> ShardEffects:
        """Pass a heartbeat to the protocol of consumer groups; keep a group that it creates."""
        found = self._groups.get(request.group_id)
        try:
            self._consumer.check_heartbeat(request, version)
            if isinstance(found, ConsumerGroup):
                response = self._consumer.heartbeat(call, found, request, client)
            else:
                response = self._join_new_group(call, found, request, client)
        except KafkaError as error:
            response = ConsumerGroupHeartbeatResponse(
                error_code=error.code, error_message=error.detail
            )
        call.reply(token, response)
        return call.effects()

    def _join_new_group(
        self,
        call: GroupCall,
        found: ClassicGroup | None,
        request: ConsumerGroupHeartbeatRequest,
        client: RequestClient,
    ) -> ConsumerGroupHeartbeatResponse:
        """Join the first member of a consumer group, which may have been of the other type."""
        if found is not None and found.state is GroupState.DEAD:
            # Its end is not committed yet.
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if request.member_epoch != JOINING:
            problem = "not found" if found is None else "is not a consumer group"
            detail = f"Group {request.group_id} {problem}."
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, detail)
        if found is not None and found.members:
            return self._upgrade(call, found, request, client)
        group = self._consumer.new_group(request.group_id)
        response = self._consumer.heartbeat(call, group, request, client)
        if found is not None:
            records, call.out.records = call.out.records, []
            self._end_group(call, found)
            # The end of the other group comes first.
            call.out.records += records
        self._groups.pop(request.group_id, None)
        self._register(group, call.now_ms)
        return response

    def _upgrade(
        self,
        call: GroupCall,
        found: ClassicGroup,
        request: ConsumerGroupHeartbeatRequest,
        client: RequestClient,
    ) -> ConsumerGroupHeartbeatResponse:
        """Join the first member of the consumer protocol to a group of classic members."""
        members = self._migration.upgraded_members(found, self._options_of(found.group_id))
        if request.member_id in found.members:
            detail = "the member id is that of a member of the classic protocol"
            raise KafkaError(ErrorCode.FENCED_MEMBER_EPOCH, detail)
        self._consumer.check_join(found.group_id, len(found.members), request, client)
        group = self._migration.upgrade(call, found, members)
        del self._groups[found.group_id]
        self._register(group, call.now_ms)
        return self._consumer.heartbeat(call, group, request, client)

    def _downgrade_if_left(self, call: GroupCall, group: ConsumerGroup) -> bool:
        """Have a group go on in the classic protocol if only members of that are left."""
        options = self._options_of(group.group_id)
        is_here = self._groups.get(group.group_id) is group
        if not is_here or not self._migration.may_downgrade(group, options):
            return False
        classic = self._migration.downgrade(call, group)
        del self._groups[group.group_id]
        self._register(classic, call.now_ms)
        return True

    def _commit_offsets(
        self,
        call: GroupCall,
        request: OffsetCommitRequest,
        version: int,
        token: Token,
        client: RequestClient,
    ) -> ShardEffects:
        group = self._groups.get(request.group_id)
        if not fits_string(request.group_id):
            code = ErrorCode.INVALID_GROUP_ID
        elif isinstance(group, ClassicGroup):
            code = group.check_commit(request)
        elif group is not None:
            code = self._check_commit_of_member(group, request, version)
        elif request.generation_id_or_member_epoch < 0:
            group = self._classic.new_group(request.group_id, None)
            self._register(group, call.now_ms)
            code = ErrorCode.NONE
        elif version >= _UNKNOWN_GROUP_ERROR:
            code = ErrorCode.GROUP_ID_NOT_FOUND
        else:
            code = ErrorCode.ILLEGAL_GENERATION
        if code is not ErrorCode.NONE:
            call.reply(token, offset_commit_error(request, code))
            return call.effects()
        assert group is not None
        if isinstance(group, ClassicGroup):
            self._classic.renew_session_of(call, group, request.member_id)
        records, response = self._offsets.commit(request)
        group.commit_count += len(records)
        return call.write_and_reply(token, records, response)

    def _check_commit_of_member(
        self, group: ConsumerGroup, request: OffsetCommitRequest, version: int
    ) -> ErrorCode:
        code = group.check_commit(request, version)
        if code is not ErrorCode.NONE:
            return code
        named = (
            (topic.topic_id, topic.name, partition.partition_index)
            for topic in request.topics
            for partition in topic.partitions
        )
        return self._check_partitions(
            group, request.member_id, request.generation_id_or_member_epoch, named
        )

    def _check_partitions(
        self,
        group: ConsumerGroup,
        member_id: str,
        epoch: int,
        named: Iterable[tuple[bytes, str, int]],
    ) -> ErrorCode:
        """STALE_MEMBER_EPOCH if a member commits a partition that it got after its epoch."""
        for named_id, name, partition in named:
            topic = self._topics.by_name(name) if named_id == ZERO_UUID else None
            topic_id = named_id if topic is None else topic.topic_id
            if not group.may_commit(member_id, epoch, topic_id, partition):
                return ErrorCode.STALE_MEMBER_EPOCH
        return ErrorCode.NONE

    def _commit_in_transaction(
        self,
        call: GroupCall,
        request: TxnOffsetCommitRequest,
        version: int,
        token: Token,
        client: RequestClient,
    ) -> ShardEffects:
        """Write pending offsets, which become committed with their transaction.

        The shell has verified that the transaction is open and has this partition.
        """
        group = self._groups.get(request.group_id)
        if not request.group_id or not fits_string(request.group_id):
            code = ErrorCode.INVALID_GROUP_ID
        elif request.producer_id < 0:
            # Its records would not be part of a transaction, and so be committed at once.
            code = ErrorCode.INVALID_PRODUCER_ID_MAPPING
        elif group is not None:
            code = group.check_txn_commit(request)
            if code is ErrorCode.NONE and isinstance(group, ConsumerGroup):
                named = (
                    (ZERO_UUID, topic.name, partition.partition_index)
                    for topic in request.topics
                    for partition in topic.partitions
                )
                code = self._check_partitions(
                    group, request.member_id, request.generation_id, named
                )
        elif request.generation_id < 0:
            group = self._classic.new_group(request.group_id, None)
            self._register(group, call.now_ms)
            code = ErrorCode.NONE
        else:
            code = ErrorCode.ILLEGAL_GENERATION
        if code is not ErrorCode.NONE:
            call.reply(token, txn_offset_commit_error(request, code))
            return call.effects()
        assert group is not None
        records, response = self._offsets.commit_in_transaction(request)
        group.commit_count += len(records)
        call.out.producer = TransactionalProducer(request.producer_id, request.producer_epoch)
        return call.write_and_reply(token, records, response)

    def _delete_offsets(
        self,
        call: GroupCall,
        request: OffsetDeleteRequest,
        version: int,
        token: Token,
        client: RequestClient,
    ) -> ShardEffects:
        group = self._groups.get(request.group_id)
        if not request.group_id:
            code = ErrorCode.INVALID_GROUP_ID
        elif group is None:
            code = ErrorCode.GROUP_ID_NOT_FOUND
        else:
            code = group.check_offset_delete()
        if code is not ErrorCode.NONE:
            call.reply(token, OffsetDeleteResponse(error_code=code))
            return call.effects()
        assert group is not None
        records, response = self._offsets.delete(group, request)
        return call.write_and_reply(token, records, response)

    def _register(self, group: Group, now_ms: int) -> None:
        if group.group_id not in self._groups:
            self._groups[group.group_id] = group
            self._watch_expiry(group, now_ms, 1.0)

    def _watch_expiry(self, group: Group, now_ms: int, fraction: float) -> None:
        group.expiry_timer.fire = partial(self._on_expiry_check, group)
        interval_ms = self._settings.offsets_retention_check_interval_ms
        # The fraction spreads the checks of groups that were loaded together.
        self._deadlines.start(group.expiry_timer, now_ms + 1 + int(fraction * interval_ms))

    def _on_expiry_check(self, group: Group, call: GroupCall, now_ms: int) -> None:
        """Remove expired offsets, and an Empty group without offsets."""
        expired, is_any_left = self._offsets.expire(group, now_ms, EXPIRED_PER_CHECK)
        call.out.records += expired
        if not is_any_left and group.is_empty and not _is_awaited(group):
            if expired or isinstance(group, ConsumerGroup) or group.is_recorded:
                self._end_group(call, group)
            else:
                self._classic.end_group(call, group)
                del self._groups[group.group_id]
            return
        pause_ms = self._settings.offsets_retention_check_interval_ms
        if len(expired) == EXPIRED_PER_CHECK:
            pause_ms = min(pause_ms, _CHECK_PAUSE_MS)
        self._deadlines.start(group.expiry_timer, now_ms + pause_ms)

    def _end_group(self, call: GroupCall, group: Group) -> None:
        """Make a group Dead, and write its end.

        A classic group is dropped when its tombstone is replayed, a consumer group at once.
        """
        call.deadlines.stop(group.expiry_timer)
        if isinstance(group, ConsumerGroup):
            self._consumer.end_group(call, group)
            del self._groups[group.group_id]
        else:
            self._classic.end_group(call, group)
            call.out.records.append(group_record(group.group_id, None))

    def _load_consumer_group(self, key: ConsumerGroupKey, value: bytes | None) -> None:
        """Apply a record of a consumer group while loading; a tombstone makes no group."""
        group = self._groups.get(key.group_id)
        if not isinstance(group, ConsumerGroup):
            if value is None:
                return
            group = self._groups[key.group_id] = self._consumer.new_group(key.group_id)
        group.apply(key, None if value is None else decode_consumer_group(key, value))
        if group.is_dead:
            del self._groups[key.group_id]

    def _replay_group(
        self, call: GroupCall | None, key: GroupMetadataKey, value: GroupMetadataValue | None
    ) -> None:
        """Apply the record of a group; without a call the shard is loading."""
        group = self._groups.get(key.group)
        if isinstance(group, ConsumerGroup):
            if call is None and value is not None:
                self._groups[key.group] = self._classic.restore_group(key.group, value)
        elif value is None:
            # Since the end was written another group may have taken its place.
            if group is not None and (call is None or group.state is GroupState.DEAD):
                del self._groups[key.group]
        elif call is None:
            self._groups[key.group] = self._classic.restore_group(key.group, value)
        elif group is not None:
            self._classic.replay(call, group, value)


def _is_awaited(group: Group) -> bool:
    """Whether clients have ids of a group that they have not joined with yet."""
    return isinstance(group, ClassicGroup) and bool(group.pending)
