"""Committed offsets of groups: commit, fetch, delete, expire, and those still in transactions."""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple, TypeVar

from headrace.coordinator.groups.classic_group import ClassicGroup, State
from headrace.coordinator.records import offset_record
from headrace.coordinator.shard import NO_PRODUCER, GroupSettings, Record, Times, fits_string
from headrace.errors import ErrorCode
from headrace.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from headrace.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from headrace.protocol.messages.offset_fetch import (
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from headrace.protocol.messages.offsets_records import OffsetCommitKey, OffsetCommitValue
from headrace.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from headrace.types import ZERO_UUID

_Key = TypeVar("_Key", int, str)


class Place(NamedTuple):
    """What an offset is committed for."""

    group: str
    topic: str
    partition: int


class PendingOffsets:
    """Offsets in the log whose transactions are open: each takes hold if its transaction commits.

    Invariant: the offsets of a place are in the order of the log, and all of them are later than
    the one that holds there. So an offset that takes hold drops those before it: whichever
    transaction ends last, the offset that was written last wins. Unlike Kafka: a place whose
    pending offsets are all overtaken counts as stable again, since they cannot change it.
    """

    def __init__(self) -> None:
        self._places: dict[Place, dict[int, OffsetCommitValue]] = {}
        # In the order of the log, so that a run of the simulator repeats itself.
        self._by_producer: dict[int, dict[Place, None]] = {}
        self._by_group: dict[str, dict[Place, None]] = {}

    def __contains__(self, place: Place) -> bool:
        return place in self._places

    def of_group(self, group_id: str) -> Iterator[Place]:
        """The places of a group where an offset waits."""
        return iter(self._by_group.get(group_id, ()))

    def has_group(self, group_id: str) -> bool:
        return group_id in self._by_group

    def newest(self, place: Place) -> OffsetCommitValue | None:
        """The offset that was written last of those that wait at a place."""
        values = self._places.get(place)
        return None if values is None else next(reversed(values.values()))

    def add(self, place: Place, producer_id: int, value: OffsetCommitValue) -> None:
        """Take over an offset from the log, in place of an earlier one of its transaction."""
        values = self._places.setdefault(place, {})
        values.pop(producer_id, None)
        values[producer_id] = value
        self._by_producer.setdefault(producer_id, {})[place] = None
        self._by_group.setdefault(place.group, {})[place] = None

    def drop(self, place: Place) -> None:
        """Something else is written there: nothing from before it takes hold any more."""
        for producer_id in tuple(self._places.get(place, ())):
            self._remove(place, producer_id)

    def end(self, producer_id: int, committed: bool) -> list[tuple[Place, OffsetCommitValue]]:
        """End a transaction: its offsets, which wait no longer, whether they take hold or not."""
        ended = []
        for place in tuple(self._by_producer.get(producer_id, ())):
            values = self._places[place]
            ended.append((place, values[producer_id]))
            while committed and (earlier := next(iter(values))) != producer_id:
                self._remove(place, earlier)
            self._remove(place, producer_id)
        return ended

    def _remove(self, place: Place, producer_id: int) -> None:
        values = self._places[place]
        del values[producer_id]
        _discard(self._by_producer, producer_id, place)
        if not values:
            del self._places[place]
            _discard(self._by_group, place.group, place)


def _discard(index: dict[_Key, dict[Place, None]], key: _Key, place: Place) -> None:
    places = index[key]
    del places[place]
    if not places:
        del index[key]


def check_txn_commit(group: ClassicGroup, request: TxnOffsetCommitRequest) -> ErrorCode:
    """Whether a transaction may commit offsets of a group.

    A producer that says nothing of a membership may always: versions before 3 cannot, and there the
    transaction alone has to keep zombies out. A rebalance does not matter, since what a member of
    this generation has read is its own until the next one begins.
    """
    generation, member_id = request.generation_id, request.member_id
    if group.state is State.DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if generation < 0 and group.state is State.EMPTY:
        return ErrorCode.NONE
    if generation < 0 and not member_id and request.group_instance_id is None:
        return ErrorCode.NONE
    code = group.check_member(member_id, request.group_instance_id)
    if code is not ErrorCode.NONE:
        return code
    return ErrorCode.NONE if generation == group.generation else ErrorCode.ILLEGAL_GENERATION


def refused_txn_commit(request: TxnOffsetCommitRequest, code: ErrorCode) -> TxnOffsetCommitResponse:
    """The same error for every partition."""
    return TxnOffsetCommitResponse(
        topics=[
            TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    TxnOffsetCommitResponsePartition(
                        partition_index=one.partition_index, error_code=code
                    )
                    for one in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


# Committed offsets of all groups of a shard: commit, fetch, delete, expire.
#
# An offset that is part of a transaction waits in `PendingOffsets` until a marker ends it.
#
# Each offset carries the id of its topic. One is *stale* if its topic has been deleted: no topic
# has its name now, or one with another id. A stale offset is never shown, and is removed by a
# tombstone when the deletion is seen, or by the next coordinator that loads it.


NO_OFFSET = -1
_TIMESTAMP_MAX = 2**63 - 1
_NEVER_MS = 1 << 63


@dataclass(slots=True)
class GroupOffsets:
    """The offsets of one group.

    Invariant: `topics` is what the log says. `in_flight` counts, for each partition, the commits
    that are in the log or on their way to it and have not been replayed, those of transactions
    included; a decision to remove an offset has to look at both, and at what is pending, or it
    would lose or resurrect one. `in_flight_ids` has the topic id of the last of these commits.
    """

    topics: dict[str, dict[int, OffsetCommitValue]] = field(default_factory=dict)
    in_flight: dict[tuple[str, int], int] = field(default_factory=dict)
    in_flight_ids: dict[tuple[str, int], bytes] = field(default_factory=dict)
    # No offset was committed before this, so there is none to look for that is older.
    earliest_ms: int = _NEVER_MS

    def __len__(self) -> int:
        return sum(map(len, self.topics.values()))


@dataclass(slots=True)
class _Commit:
    """What the offsets of one commit have in common, and their records."""

    group_id: str
    wall_ms: int
    expire_ms: int = -1
    records: list[Record] = field(default_factory=list)


class Offsets:
    """Committed offsets by group, whatever type the group has.

    `topic_id_of` has the id of the topic with a name, or None if there is none. Invariant: it tells
    of an image of the metadata in which this coordinator leads its partition. So the ids at a place
    are in the order of the log from old to new, and an id that `topic_id_of` does not know belongs
    to a topic that is deleted, not to one that is still to be heard of.
    """

    def __init__(
        self,
        settings: GroupSettings,
        times: Times,
        topic_id_of: Callable[[str], bytes | None],
    ) -> None:
        self._settings = settings
        self._times = times
        self._is_loaded = False
        self._topic_id_of = topic_id_of
        self._groups: dict[str, GroupOffsets] = {}
        self._pending = PendingOffsets()

    def loaded(self) -> None:
        """End loading: from now on the age of every offset is measured on the steady clock."""
        self._is_loaded = True
        for offsets in self._groups.values():
            offsets.earliest_ms = _NEVER_MS
            for partitions in offsets.topics.values():
                for value in partitions.values():
                    self._rebase(offsets, value, self._times.steady_ms(value.commit_timestamp))

    def group_ids(self) -> list[str]:
        return list(self._groups)

    def replay(
        self, key: OffsetCommitKey, value: OffsetCommitValue | None, producer_id: int
    ) -> None:
        """Take over what the log says of one offset, or of one that is part of a transaction."""
        place = Place(key.group, key.topic, key.partition)
        offsets = self._groups.get(key.group)
        if value is None:
            self._pending.drop(place)
            if offsets is not None:
                self._remove(key, offsets)
            return
        if offsets is None:
            offsets = self._groups[key.group] = GroupOffsets()
        if producer_id == NO_PRODUCER:
            self._pending.drop(place)
            self._hold(offsets, place, value)
        else:
            self._pending.add(place, producer_id, value)
        where = key.topic, key.partition
        waiting = offsets.in_flight.get(where, 0)
        if waiting > 1:
            offsets.in_flight[where] = waiting - 1
        elif waiting:
            del offsets.in_flight[where]
            del offsets.in_flight_ids[where]

    def end_transaction(self, producer_id: int, committed: bool) -> None:
        """Take over, or drop, the offsets of a producer's transaction."""
        ended = self._pending.end(producer_id, committed)
        if committed:
            for place, value in ended:
                self._hold(self._groups[place.group], place, value)
        else:
            for group_id in {place.group: None for place, _ in ended}:
                self._forget_if_empty(group_id, self._groups[group_id])

    def _hold(self, offsets: GroupOffsets, place: Place, value: OffsetCommitValue) -> None:
        offsets.topics.setdefault(place.topic, {})[place.partition] = value
        if self._is_loaded:
            self._rebase(offsets, value, self._times.now_ms)

    def _rebase(self, offsets: GroupOffsets, value: OffsetCommitValue, since_ms: int) -> None:
        """Have an offset that is held tell its times on the steady clock: it is from `since_ms`."""
        if value.expire_timestamp >= 0:
            # The client asked for a duration.
            kept_ms = value.expire_timestamp - value.commit_timestamp
            value.expire_timestamp = max(since_ms + kept_ms, 0)
        value.commit_timestamp = since_ms
        offsets.earliest_ms = min(offsets.earliest_ms, self._since_ms(value))

    def commit(self, request: OffsetCommitRequest) -> tuple[list[Record], OffsetCommitResponse]:
        """Records for the offsets of a commit that is allowed, and its answer."""
        retention_ms = request.retention_time_ms
        now_ms = self._times.wall_ms
        # A client may ask for longer than a timestamp can tell, which is for ever.
        expire_ms = min(now_ms + retention_ms, _TIMESTAMP_MAX) if retention_ms >= 0 else -1
        commit = _Commit(request.group_id, now_ms, expire_ms)
        response = OffsetCommitResponse()
        for topic in request.topics:
            done = [
                OffsetCommitResponsePartition(
                    partition_index=one.partition_index,
                    error_code=self._write(commit, topic.name, topic.topic_id, one),
                )
                for one in topic.partitions
            ]
            response.topics.append(
                OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id, partitions=done)
            )
        return commit.records, response

    def commit_in_transaction(
        self, request: TxnOffsetCommitRequest
    ) -> tuple[list[Record], TxnOffsetCommitResponse]:
        """Records of a transaction for the offsets of a commit that is allowed, and its answer."""
        commit = _Commit(request.group_id, self._times.wall_ms)
        response = TxnOffsetCommitResponse()
        for topic in request.topics:
            done = [
                TxnOffsetCommitResponsePartition(
                    partition_index=one.partition_index,
                    error_code=self._write(commit, topic.name, ZERO_UUID, one),
                )
                for one in topic.partitions
            ]
            response.topics.append(TxnOffsetCommitResponseTopic(name=topic.name, partitions=done))
        return commit.records, response

    def _write(
        self,
        commit: _Commit,
        topic: str,
        named_id: bytes,
        partition: OffsetCommitRequestPartition | TxnOffsetCommitRequestPartition,
    ) -> ErrorCode:
        if self._is_too_large(partition.committed_metadata):
            return ErrorCode.OFFSET_METADATA_TOO_LARGE
        topic_id = self._topic_id_of(topic)
        if topic_id == ZERO_UUID:
            topic_id = named_id
        if topic_id is None or named_id not in (topic_id, ZERO_UUID):
            # Deleted since the request came, or so new that it is to be heard of here: try again.
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        where = topic, partition.partition_index
        value = OffsetCommitValue(
            offset=partition.committed_offset,
            leader_epoch=partition.committed_leader_epoch,
            metadata=partition.committed_metadata or "",
            commit_timestamp=commit.wall_ms,
            expire_timestamp=commit.expire_ms,
            topic_id=topic_id,
        )
        commit.records.append(offset_record(commit.group_id, *where, value))
        offsets = self._groups.get(commit.group_id)
        if offsets is None:
            offsets = self._groups[commit.group_id] = GroupOffsets()
        offsets.in_flight[where] = offsets.in_flight.get(where, 0) + 1
        offsets.in_flight_ids[where] = topic_id
        return ErrorCode.NONE

    def fetch(
        self, request: OffsetFetchRequestGroup, require_stable: bool
    ) -> OffsetFetchResponseGroup:
        """The committed offsets of the topics asked for by name, or of all.

        With `require_stable`, a partition whose offset is about to change has an error instead.
        """
        offsets = self._groups.get(request.group_id, GroupOffsets())
        topics = offsets.topics
        response = OffsetFetchResponseGroup(group_id=request.group_id)
        if request.topics is None:
            for name, partitions in topics.items():
                topic_id = self._topic_id_of(name)
                found = [
                    _fetched(index, value)
                    for index, value in partitions.items()
                    if not _is_stale(value.topic_id, topic_id)
                ]
                if found:
                    response.topics.append(OffsetFetchResponseTopics(name=name, partitions=found))
        else:
            for topic in request.topics:
                known = self._shown(topics.get(topic.name, {}), topic)
                found = [_fetched(one, known.get(one)) for one in topic.partition_indexes]
                response.topics.append(
                    OffsetFetchResponseTopics(
                        name=topic.name, topic_id=topic.topic_id, partitions=found
                    )
                )
        if require_stable and (offsets.in_flight or self._pending.has_group(request.group_id)):
            self._hide_unstable(offsets, response)
        return response

    def _shown(
        self, partitions: dict[int, OffsetCommitValue], topic: OffsetFetchRequestTopics
    ) -> dict[int, OffsetCommitValue]:
        """The offsets of a topic that are those of the topic that is asked for."""
        current = self._topic_id_of(topic.name)
        wanted = topic.topic_id
        return {
            index: value
            for index, value in partitions.items()
            if not _is_stale(value.topic_id, current)
            and (wanted == ZERO_UUID or not _is_stale(value.topic_id, wanted))
        }

    def _hide_unstable(self, offsets: GroupOffsets, response: OffsetFetchResponseGroup) -> None:
        for topic in response.topics:
            for index, one in enumerate(topic.partitions):
                place = Place(response.group_id, topic.name, one.partition_index)
                if (place.topic, place.partition) in offsets.in_flight or place in self._pending:
                    topic.partitions[index] = OffsetFetchResponsePartitions(
                        partition_index=one.partition_index,
                        committed_offset=NO_OFFSET,
                        error_code=ErrorCode.UNSTABLE_OFFSET_COMMIT,
                    )

    def delete(
        self, group: ClassicGroup, request: OffsetDeleteRequest
    ) -> tuple[list[Record], OffsetDeleteResponse]:
        """Tombstones for the offsets of topics that no member reads, and the answer."""
        known = self._partitions(request.group_id)
        records: list[Record] = []
        response = OffsetDeleteResponse()
        for topic in request.topics:
            code = ErrorCode.NONE
            if group.is_subscribed_to(topic.name):
                code = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
            done = []
            for partition in topic.partitions:
                index = partition.partition_index
                done.append(OffsetDeleteResponsePartition(partition_index=index, error_code=code))
                if code is ErrorCode.NONE and (topic.name, index) in known:
                    records.append(offset_record(group.group_id, topic.name, index, None))
            response.topics.append(OffsetDeleteResponseTopic(name=topic.name, partitions=done))
        return records, response

    def tombstones(self, group_id: str) -> list[Record]:
        """What removes every offset of a group, and those that would come to hold later."""
        return [
            offset_record(group_id, topic, index, None)
            for topic, index in self._partitions(group_id)
        ]

    def stale_tombstones(self, deleted: Collection[str] | None = None) -> list[Record]:
        """What removes stale offsets of the topics just `deleted`, or of all topics.

        Where the newest offset is not stale everything stays: a tombstone would take that too.
        """
        records = []
        for group_id, offsets in self._groups.items():
            for topic, index in self._partitions(group_id, deleted):
                newest = self._newest_id(offsets, Place(group_id, topic, index))
                # Before Kafka 4 ids were not kept; such an offset is that of the deleted topic.
                is_deleted = deleted is not None and newest == ZERO_UUID
                if is_deleted or _is_stale(newest, self._topic_id_of(topic)):
                    records.append(offset_record(group_id, topic, index, None))
        return records

    def _newest_id(self, offsets: GroupOffsets, place: Place) -> bytes:
        """The topic id of the last offset that was written at a place."""
        written = offsets.in_flight_ids.get((place.topic, place.partition))
        if written is not None:
            return written
        value = self._pending.newest(place)
        if value is None:
            value = offsets.topics[place.topic][place.partition]
        return value.topic_id

    def _partitions(
        self, group_id: str, topics: Collection[str] | None = None
    ) -> dict[tuple[str, int], None]:
        """Every partition with an offset, or with one on its way, or in an open transaction."""
        offsets = self._groups.get(group_id, GroupOffsets())
        names: Iterable[str] = offsets.topics if topics is None else topics
        held = ((topic, one) for topic in names for one in offsets.topics.get(topic, ()))
        others = chain(
            offsets.in_flight,
            ((one.topic, one.partition) for one in self._pending.of_group(group_id)),
        )
        wanted = (one for one in others if topics is None or one[0] in topics)
        return dict.fromkeys(chain(held, wanted))

    def expire(self, group: ClassicGroup, now_ms: int, limit: int) -> tuple[list[Record], bool]:
        """Tombstones for up to `limit` offsets kept long enough, and whether any offset is left."""
        offsets = self._groups.get(group.group_id)
        if offsets is None:
            return [], False
        retention_ms = self._settings.offsets_retention_ms
        if now_ms - offsets.earliest_ms < retention_ms or not _may_expire(group):
            return [], True
        became_empty_ms = group.state_timestamp_ms if group.protocol_type is not None else None
        if group.state is not State.EMPTY or became_empty_ms is None:
            became_empty_ms = -_NEVER_MS
        records: list[Record] = []
        earliest_ms = now_ms
        is_any_left = bool(offsets.in_flight) or self._pending.has_group(group.group_id)
        for topic, partitions in offsets.topics.items():
            is_read = group.is_subscribed_to(topic)
            for index, value in partitions.items():
                # Unlike Kafka: a commit into a group that is Empty keeps its offset for the whole
                # retention, not only for what is left of the group's.
                since_ms = self._since_ms(value)
                if value.expire_timestamp < 0:
                    since_ms = max(since_ms, became_empty_ms)
                place = Place(group.group_id, topic, index)
                is_kept = is_read or (topic, index) in offsets.in_flight or place in self._pending
                if is_kept or now_ms - since_ms < retention_ms or len(records) == limit:
                    is_any_left = True
                    earliest_ms = min(earliest_ms, self._since_ms(value))
                else:
                    records.append(offset_record(group.group_id, topic, index, None))
        offsets.earliest_ms = earliest_ms
        return records, is_any_left

    def _remove(self, key: OffsetCommitKey, offsets: GroupOffsets) -> None:
        partitions = offsets.topics.get(key.topic)
        if partitions is not None:
            partitions.pop(key.partition, None)
            if not partitions:
                del offsets.topics[key.topic]
        self._forget_if_empty(key.group, offsets)

    def _forget_if_empty(self, group_id: str, offsets: GroupOffsets) -> None:
        if not offsets.topics and not offsets.in_flight and not self._pending.has_group(group_id):
            del self._groups[group_id]

    def _since_ms(self, value: OffsetCommitValue) -> int:
        """When the retention of an offset began, in terms of the retention that is set here."""
        if value.expire_timestamp >= 0:
            return value.expire_timestamp - self._settings.offsets_retention_ms
        return value.commit_timestamp

    def _is_too_large(self, metadata: str | None) -> bool:
        return metadata is not None and (
            len(metadata) > self._settings.offset_metadata_bytes_max or not fits_string(metadata)
        )


def check_commit(group: ClassicGroup, request: OffsetCommitRequest) -> ErrorCode:
    """Whether a commit is allowed: to members of this generation, and to anybody while Empty."""
    generation = request.generation_id_or_member_epoch
    if group.state is State.DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if generation < 0 and group.state is State.EMPTY:
        # A consumer that assigns itself its partitions, or an administrator's tool.
        return ErrorCode.NONE
    code = group.check_member(request.member_id, request.group_instance_id)
    if code is not ErrorCode.NONE:
        return code
    if generation != group.generation:
        return ErrorCode.ILLEGAL_GENERATION
    if group.state is State.COMPLETING_REBALANCE:
        # The member knows the new generation but not yet its part of it.
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE


def refused_commit(request: OffsetCommitRequest, code: ErrorCode) -> OffsetCommitResponse:
    """The same error for every partition."""
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    OffsetCommitResponsePartition(
                        partition_index=one.partition_index, error_code=code
                    )
                    for one in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _may_expire(group: ClassicGroup) -> bool:
    """Whether offsets may go: not during a rebalance, nor if it is unknown what members read."""
    if group.protocol_type is None or group.state is State.EMPTY:
        return True
    return group.is_consumer and group.state is State.STABLE and group.subscribed_topics is not None


def _is_stale(topic_id: bytes, current: bytes | None) -> bool:
    """Whether an offset with a topic id is of another topic than the one with `current` as its id.

    An offset or a topic whose id is not known (ZERO_UUID) matches every other.
    """
    if current is None:
        return True
    return topic_id not in (current, ZERO_UUID) and current != ZERO_UUID


def _fetched(index: int, value: OffsetCommitValue | None) -> OffsetFetchResponsePartitions:
    if value is None:
        return OffsetFetchResponsePartitions(partition_index=index, committed_offset=NO_OFFSET)
    return OffsetFetchResponsePartitions(
        partition_index=index,
        committed_offset=value.offset,
        committed_leader_epoch=value.leader_epoch,
        metadata=value.metadata,
    )
