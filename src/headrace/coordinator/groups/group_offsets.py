"""Offsets of groups: commit, fetch, delete, expire, and offsets of open transactions."""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple, Protocol, TypeVar

from headrace.coordinator.records import offset_record
from headrace.coordinator.shard import (
    NO_PRODUCER,
    CallTimes,
    CoordinatorRecord,
    GroupSettings,
    fits_string,
)
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
from headrace.types import ZERO_UUID, TopicPartition

_Key = TypeVar("_Key", int, str)


class OffsetsOwner(Protocol):
    """A group of any type, with the properties that its offsets depend on."""

    group_id: str

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether members read a topic, so that its offsets must stay."""
        ...

    @property
    def may_expire_offsets(self) -> bool:
        """Whether offsets may expire now."""

    @property
    def empty_since_ms(self) -> int | None:
        """The time at which the last member left; None if the group has members or never had."""


class OffsetKey(NamedTuple):
    """The key of a committed offset."""

    group: str
    topic: str
    partition: int


class PendingOffsets:
    """Offsets of open transactions, which become committed offsets if their transactions commit.

    Invariant: the pending offsets of a key (group, topic, partition) are in the order of the log,
    and all are later in the log than its committed offset. So an offset that becomes committed
    drops the pending offsets before it: whichever transaction ends last, the offset that was
    written last wins. Unlike Kafka: a key whose pending offsets are all dropped counts as stable
    again, since they cannot change it.
    """

    def __init__(self) -> None:
        self._places: dict[OffsetKey, dict[int, OffsetCommitValue]] = {}
        # In the order of the log, so that runs of the simulator are reproducible.
        self._by_producer: dict[int, dict[OffsetKey, None]] = {}
        self._by_group: dict[str, dict[OffsetKey, None]] = {}

    def __contains__(self, place: OffsetKey) -> bool:
        return place in self._places

    def of_group(self, group_id: str) -> Iterator[OffsetKey]:
        """The keys of a group that have a pending offset."""
        return iter(self._by_group.get(group_id, ()))

    def has_group(self, group_id: str) -> bool:
        return group_id in self._by_group

    def newest(self, place: OffsetKey) -> OffsetCommitValue | None:
        """The last pending offset of a key, in the order of the log."""
        values = self._places.get(place)
        return None if values is None else next(reversed(values.values()))

    def add(self, place: OffsetKey, producer_id: int, value: OffsetCommitValue) -> None:
        """Add a replayed offset; it replaces an earlier offset of its transaction."""
        values = self._places.setdefault(place, {})
        values.pop(producer_id, None)
        values[producer_id] = value
        self._by_producer.setdefault(producer_id, {})[place] = None
        self._by_group.setdefault(place.group, {})[place] = None

    def drop(self, place: OffsetKey) -> None:
        """Drop all pending offsets of a key, since a later offset or tombstone is committed."""
        for producer_id in tuple(self._places.get(place, ())):
            self._remove(place, producer_id)

    def end(self, producer_id: int, committed: bool) -> list[tuple[OffsetKey, OffsetCommitValue]]:
        """End a transaction, committed or aborted; return its offsets, no longer pending."""
        ended = []
        for place in tuple(self._by_producer.get(producer_id, ())):
            values = self._places[place]
            ended.append((place, values[producer_id]))
            while committed and (earlier := next(iter(values))) != producer_id:
                self._remove(place, earlier)
            self._remove(place, producer_id)
        return ended

    def _remove(self, place: OffsetKey, producer_id: int) -> None:
        values = self._places[place]
        del values[producer_id]
        _discard(self._by_producer, producer_id, place)
        if not values:
            del self._places[place]
            _discard(self._by_group, place.group, place)


def _discard(index: dict[_Key, dict[OffsetKey, None]], key: _Key, place: OffsetKey) -> None:
    places = index[key]
    del places[place]
    if not places:
        del index[key]


def txn_offset_commit_error(
    request: TxnOffsetCommitRequest, code: ErrorCode
) -> TxnOffsetCommitResponse:
    """A response with the same error for every partition."""
    return TxnOffsetCommitResponse(
        topics=[
            TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    TxnOffsetCommitResponsePartition(
                        partition_index=partition.partition_index, error_code=code
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


# Committed offsets of all groups of a shard: commit, fetch, delete, expire.
#
# Each offset has the id of its topic. An offset is *stale* if its topic has been deleted: its name
# now belongs to no topic, or to a topic with another id. A stale offset is never shown, and is
# removed by a tombstone when the coordinator learns of the deletion, or when it loads the offset.


NO_OFFSET = -1
_TIMESTAMP_MAX = 2**63 - 1
_NEVER_MS = 1 << 63


@dataclass(slots=True)
class GroupOffsets:
    """The offsets of one group.

    Invariant: `topics` has the replayed offsets. `in_flight` counts, for each partition, the
    commits that are appended or being appended and not yet replayed, commits of transactions
    included. A decision to remove an offset must consider both, and pending offsets, or it would
    lose or resurrect an offset. `in_flight_ids` has the topic id of the last commit in flight.
    """

    topics: dict[str, dict[int, OffsetCommitValue]] = field(default_factory=dict)
    in_flight: dict[tuple[str, int], int] = field(default_factory=dict)
    in_flight_ids: dict[tuple[str, int], bytes] = field(default_factory=dict)
    # No offset is older than this, so an expiry check before its retention ends is skipped.
    earliest_ms: int = _NEVER_MS

    def __len__(self) -> int:
        return sum(map(len, self.topics.values()))


@dataclass(slots=True)
class _OffsetCommit:
    """The group and times that the offsets of one commit share, and their records."""

    group_id: str
    wall_ms: int
    expire_ms: int = -1
    records: list[CoordinatorRecord] = field(default_factory=list)


class OffsetStore:
    """Committed offsets by group, for groups of every type.

    `topic_id_of` returns the id of the topic with a name, or None if there is none. Invariant: it
    reads a metadata image in which this coordinator leads its partition. So the topic ids of a key
    (group, topic, partition) are in the order of the log from old to new, and an id that is not in
    the image belongs to a deleted topic, not to a topic that is newer than the image.
    """

    def __init__(
        self,
        settings: GroupSettings,
        times: CallTimes,
        topic_id_of: Callable[[str], bytes | None],
    ) -> None:
        self._settings = settings
        self._times = times
        self._is_loaded = False
        self._topic_id_of = topic_id_of
        self._groups: dict[str, GroupOffsets] = {}
        self._pending = PendingOffsets()

    def loaded(self) -> None:
        """End loading: from now on the age of offsets is measured on the monotonic clock."""
        self._is_loaded = True
        for offsets in self._groups.values():
            offsets.earliest_ms = _NEVER_MS
            for partitions in offsets.topics.values():
                for value in partitions.values():
                    self._rebase(offsets, value, self._times.steady_ms(value.commit_timestamp))

    def group_ids(self) -> list[str]:
        return list(self._groups)

    def committed(self, group_id: str) -> Iterator[tuple[TopicPartition, int]]:
        """The committed offsets of a group, without stale ones."""
        offsets = self._groups.get(group_id)
        for topic, partitions in () if offsets is None else tuple(offsets.topics.items()):
            topic_id = self._topic_id_of(topic)
            for index, value in tuple(partitions.items()):
                if not _is_stale(value.topic_id, topic_id):
                    yield TopicPartition(topic, index), value.offset

    def replay(
        self, key: OffsetCommitKey, value: OffsetCommitValue | None, producer_id: int
    ) -> None:
        """Apply the record of an offset, or of a pending offset of a transaction."""
        place = OffsetKey(key.group, key.topic, key.partition)
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
            self._set_committed(offsets, place, value)
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
        """Commit, or drop, the pending offsets of a producer's transaction."""
        ended = self._pending.end(producer_id, committed)
        if committed:
            for place, value in ended:
                self._set_committed(self._groups[place.group], place, value)
        else:
            for group_id in {place.group: None for place, _ in ended}:
                self._drop_if_empty(group_id, self._groups[group_id])

    def _set_committed(
        self, offsets: GroupOffsets, place: OffsetKey, value: OffsetCommitValue
    ) -> None:
        offsets.topics.setdefault(place.topic, {})[place.partition] = value
        if self._is_loaded:
            self._rebase(offsets, value, self._times.now_ms)

    def _rebase(self, offsets: GroupOffsets, value: OffsetCommitValue, since_ms: int) -> None:
        """Convert the times of an offset to the monotonic clock: it was committed at `since_ms`."""
        if value.expire_timestamp >= 0:
            # The client asked for a duration.
            kept_ms = value.expire_timestamp - value.commit_timestamp
            value.expire_timestamp = max(since_ms + kept_ms, 0)
        value.commit_timestamp = since_ms
        offsets.earliest_ms = min(offsets.earliest_ms, self._retention_start_ms(value))

    def commit(
        self, request: OffsetCommitRequest
    ) -> tuple[list[CoordinatorRecord], OffsetCommitResponse]:
        """The records of a permitted OffsetCommit, and its response."""
        retention_ms = request.retention_time_ms
        now_ms = self._times.wall_ms
        # An expiry beyond the largest timestamp means that the offset never expires.
        expire_ms = min(now_ms + retention_ms, _TIMESTAMP_MAX) if retention_ms >= 0 else -1
        commit = _OffsetCommit(request.group_id, now_ms, expire_ms)
        response = OffsetCommitResponse()
        for topic in request.topics:
            done = [
                OffsetCommitResponsePartition(
                    partition_index=partition.partition_index,
                    error_code=self._write(commit, topic.name, topic.topic_id, partition),
                )
                for partition in topic.partitions
            ]
            response.topics.append(
                OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id, partitions=done)
            )
        return commit.records, response

    def commit_in_transaction(
        self, request: TxnOffsetCommitRequest
    ) -> tuple[list[CoordinatorRecord], TxnOffsetCommitResponse]:
        """The records of a permitted TxnOffsetCommit, and its response."""
        commit = _OffsetCommit(request.group_id, self._times.wall_ms)
        response = TxnOffsetCommitResponse()
        for topic in request.topics:
            done = [
                TxnOffsetCommitResponsePartition(
                    partition_index=partition.partition_index,
                    error_code=self._write(commit, topic.name, ZERO_UUID, partition),
                )
                for partition in topic.partitions
            ]
            response.topics.append(TxnOffsetCommitResponseTopic(name=topic.name, partitions=done))
        return commit.records, response

    def _write(
        self,
        commit: _OffsetCommit,
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
            # The topic was deleted meanwhile, or is too new for this broker's image: retriable.
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
        """The committed offsets of the requested topics, or of all topics.

        With `require_stable`, a partition with an uncommitted offset has an error instead.
        """
        offsets = self._groups.get(request.group_id, GroupOffsets())
        topics = offsets.topics
        response = OffsetFetchResponseGroup(group_id=request.group_id)
        if request.topics is None:
            for name, partitions in topics.items():
                topic_id = self._topic_id_of(name)
                found = [
                    _partition_response(index, value)
                    for index, value in partitions.items()
                    if not _is_stale(value.topic_id, topic_id)
                ]
                if found:
                    response.topics.append(OffsetFetchResponseTopics(name=name, partitions=found))
        else:
            for topic in request.topics:
                known = self._visible_offsets(topics.get(topic.name, {}), topic)
                found = [
                    _partition_response(index, known.get(index))
                    for index in topic.partition_indexes
                ]
                response.topics.append(
                    OffsetFetchResponseTopics(
                        name=topic.name, topic_id=topic.topic_id, partitions=found
                    )
                )
        if require_stable and (offsets.in_flight or self._pending.has_group(request.group_id)):
            self._hide_unstable(offsets, response)
        return response

    def _visible_offsets(
        self, partitions: dict[int, OffsetCommitValue], topic: OffsetFetchRequestTopics
    ) -> dict[int, OffsetCommitValue]:
        """The offsets of a requested topic, without stale offsets."""
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
            for position, partition in enumerate(topic.partitions):
                place = OffsetKey(response.group_id, topic.name, partition.partition_index)
                if (place.topic, place.partition) in offsets.in_flight or place in self._pending:
                    topic.partitions[position] = OffsetFetchResponsePartitions(
                        partition_index=partition.partition_index,
                        committed_offset=NO_OFFSET,
                        error_code=ErrorCode.UNSTABLE_OFFSET_COMMIT,
                    )

    def delete(
        self, group: OffsetsOwner, request: OffsetDeleteRequest
    ) -> tuple[list[CoordinatorRecord], OffsetDeleteResponse]:
        """Tombstones for the offsets of topics without subscribed members, and the response."""
        known = self._partitions(request.group_id)
        records: list[CoordinatorRecord] = []
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

    def tombstones(self, group_id: str) -> list[CoordinatorRecord]:
        """Tombstones for every offset of a group, pending offsets included."""
        return [
            offset_record(group_id, topic, index, None)
            for topic, index in self._partitions(group_id)
        ]

    def stale_tombstones(self, deleted: Collection[str] | None = None) -> list[CoordinatorRecord]:
        """Tombstones for stale offsets of the topics just `deleted`, or of all topics.

        If the newest offset of a key is not stale, older offsets stay: a tombstone would remove
        the newest too.
        """
        records = []
        for group_id, offsets in self._groups.items():
            for topic, index in self._partitions(group_id, deleted):
                newest = self._newest_id(offsets, OffsetKey(group_id, topic, index))
                # Offsets from before Kafka 4 have no topic id, so they are of the deleted topic.
                is_deleted = deleted is not None and newest == ZERO_UUID
                if is_deleted or _is_stale(newest, self._topic_id_of(topic)):
                    records.append(offset_record(group_id, topic, index, None))
        return records

    def _newest_id(self, offsets: GroupOffsets, place: OffsetKey) -> bytes:
        """The topic id of the offset of a key that was written last."""
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
        """The partitions with a committed offset, a commit in flight, or a pending offset."""
        offsets = self._groups.get(group_id, GroupOffsets())
        names: Iterable[str] = offsets.topics if topics is None else topics
        held = ((topic, index) for topic in names for index in offsets.topics.get(topic, ()))
        uncommitted = chain(
            offsets.in_flight,
            ((place.topic, place.partition) for place in self._pending.of_group(group_id)),
        )
        wanted = (
            (topic, index) for topic, index in uncommitted if topics is None or topic in topics
        )
        return dict.fromkeys(chain(held, wanted))

    def expire(
        self, group: OffsetsOwner, now_ms: int, limit: int
    ) -> tuple[list[CoordinatorRecord], bool]:
        """Tombstones for up to `limit` expired offsets, and whether any offset is left."""
        offsets = self._groups.get(group.group_id)
        if offsets is None:
            return [], False
        retention_ms = self._settings.offsets_retention_ms
        if now_ms - offsets.earliest_ms < retention_ms or not group.may_expire_offsets:
            return [], True
        empty_since_ms = group.empty_since_ms
        if empty_since_ms is None:
            empty_since_ms = -_NEVER_MS
        records: list[CoordinatorRecord] = []
        earliest_ms = now_ms
        is_any_left = bool(offsets.in_flight) or self._pending.has_group(group.group_id)
        for topic, partitions in offsets.topics.items():
            is_read = group.is_subscribed_to(topic)
            for index, value in partitions.items():
                # Unlike Kafka: an offset committed to an Empty group is kept for the whole
                # retention, not only for the rest of the group's retention.
                since_ms = self._retention_start_ms(value)
                if value.expire_timestamp < 0:
                    since_ms = max(since_ms, empty_since_ms)
                place = OffsetKey(group.group_id, topic, index)
                is_kept = is_read or (topic, index) in offsets.in_flight or place in self._pending
                if is_kept or now_ms - since_ms < retention_ms or len(records) == limit:
                    is_any_left = True
                    earliest_ms = min(earliest_ms, self._retention_start_ms(value))
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
        self._drop_if_empty(key.group, offsets)

    def _drop_if_empty(self, group_id: str, offsets: GroupOffsets) -> None:
        if not offsets.topics and not offsets.in_flight and not self._pending.has_group(group_id):
            del self._groups[group_id]

    def _retention_start_ms(self, value: OffsetCommitValue) -> int:
        """The start of an offset's retention, shifted if the client chose the expiry."""
        if value.expire_timestamp >= 0:
            return value.expire_timestamp - self._settings.offsets_retention_ms
        return value.commit_timestamp

    def _is_too_large(self, metadata: str | None) -> bool:
        return metadata is not None and (
            len(metadata) > self._settings.offset_metadata_bytes_max or not fits_string(metadata)
        )


def offset_commit_error(request: OffsetCommitRequest, code: ErrorCode) -> OffsetCommitResponse:
    """A response with the same error for every partition."""
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    OffsetCommitResponsePartition(
                        partition_index=partition.partition_index, error_code=code
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _is_stale(topic_id: bytes, current: bytes | None) -> bool:
    """Whether an offset has another topic id than `current`, the id of the topic of its name.

    An offset or a topic without a known id (ZERO_UUID) matches every other.
    """
    if current is None:
        return True
    return topic_id not in (current, ZERO_UUID) and current != ZERO_UUID


def _partition_response(
    index: int, value: OffsetCommitValue | None
) -> OffsetFetchResponsePartitions:
    if value is None:
        return OffsetFetchResponsePartitions(partition_index=index, committed_offset=NO_OFFSET)
    return OffsetFetchResponsePartitions(
        partition_index=index,
        committed_offset=value.offset,
        committed_leader_epoch=value.leader_epoch,
        metadata=value.metadata,
    )
