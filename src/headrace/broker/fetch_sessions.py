"""Incremental fetch sessions (KIP-227): a reader names its partitions once, then only changes.

A session also tracks which of its partitions have changed, so that a follower of a thousand
partitions costs only as much as the few that are written to. The others are watched in the
purgatory: an append or a commit marks them as changed. Requests and the time go in, partitions to
read and responses come out.
"""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from random import Random
from typing import Protocol

from headrace.errors import ErrorCode, KafkaError
from headrace.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    NodeEndpoint,
    PartitionData,
)

_INITIAL_EPOCH = 0
_FINAL_EPOCH = -1
# A session younger than this is not evicted to make room for another.
_EVICTION_AGE_MS = 120_000
_EPOCH_MAX = 2**31 - 1
# Of all sessions together: some 80 MB.
_PARTITIONS_MAX = 200_000


class FetchIsolation(Enum):
    """The offset up to which a reader may read a log."""

    LOG_END = "log end"  # A follower.
    HIGH_WATERMARK = "high watermark"  # A consumer.
    LAST_STABLE = "last stable offset"  # A consumer of committed transactions.


class PartitionWatcher(Protocol):
    """The watcher of the partitions of sessions: `broker.fetch_purgatory.FetchPurgatory`."""

    def unwatch(self, read: "SessionPartition") -> None:
        """Stop watching a partition that was removed from its session."""

    def forget(self, session: "FetchSession") -> None:
        """Stop watching the partitions of a session that is closed."""


def replica_of(request: FetchRequest) -> tuple[int, int]:
    """The id and epoch of the broker that fetches as a follower; below zero for a consumer."""
    state = request.replica_state
    return max(state.replica_id, request.replica_id), state.replica_epoch


@dataclass(slots=True, eq=False)
class SessionPartition:
    """A partition of a fetch: the requested position, and in a session the offsets last sent."""

    topic: str
    topic_id: bytes
    partition: int
    fetch_offset: int
    bytes_max: int
    leader_epoch: int
    last_fetched_epoch: int
    log_start_offset: int = -1
    limit: FetchIsolation = FetchIsolation.HIGH_WATERMARK
    sent_high_watermark: int = -1
    sent_log_start_offset: int = -1
    # For a READ_COMMITTED reader: the last stable offset when the partition was last read, and
    # whether the high watermark was beyond it.
    stable_offset: int | None = None
    has_unstable: bool = False
    session: "FetchSession | None" = None
    key: tuple[str, bytes, int] = field(init=False)

    def __post_init__(self) -> None:
        self.key = self.topic, self.topic_id, self.partition

    def update(self, requested: FetchPartition) -> None:
        """Take over the position in a later request of the session."""
        self.fetch_offset = requested.fetch_offset
        self.bytes_max = requested.partition_max_bytes
        self.leader_epoch = requested.current_leader_epoch
        self.last_fetched_epoch = requested.last_fetched_epoch
        self.log_start_offset = requested.log_start_offset

    def note_stable_offset(self, stable_offset: int, high_watermark: int) -> None:
        """Record the end offset for a READ_COMMITTED reader."""
        self.stable_offset = stable_offset
        self.has_unstable = stable_offset < high_watermark


class FetchSession:
    """The partitions of one reader.

    Invariant: a partition is in `changed`, in the order in which they are to be read, or it is
    watched and its reader has all records and offsets of it.
    """

    def __init__(
        self, session_id: int, partitions: Iterable[SessionPartition], replica_id: int, now_ms: int
    ) -> None:
        self.id = session_id
        self.is_follower = replica_id >= 0
        self.next_epoch = 1
        self.last_used_ms = now_ms
        self.partitions = {partition.key: partition for partition in partitions}
        self.changed = dict(self.partitions)
        for partition in self.partitions.values():
            partition.session = self

    def update(self, request: FetchRequest, watching: PartitionWatcher) -> None:
        for forgotten in request.forgotten_topics_data:
            for partition in forgotten.partitions:
                key = (forgotten.topic, forgotten.topic_id, partition)
                self.changed.pop(key, None)
                known = self.partitions.pop(key, None)
                if known is not None:
                    watching.unwatch(known)
        for topic in request.topics:
            for requested in topic.partitions:
                key = (topic.topic, topic.topic_id, requested.partition)
                known = self.partitions.get(key)
                if known is None:
                    known = self.partitions[key] = _new_partition(topic, requested)
                    known.session = self
                else:
                    known.update(requested)
                self.changed[key] = known

    def mark_up_to_date(self, partition: SessionPartition) -> bool:
        """Take a partition out of `changed`; returns whether the session has the partition.

        Its reader has all records and offsets of it, so it should be watched until it changes.
        """
        if partition.key not in self.partitions:
            return False
        self.changed.pop(partition.key, None)
        return True

    def move_to_end(self, partition: SessionPartition) -> None:
        """Read a partition that had records last next time, so that a byte limit starves none."""
        if self.changed.pop(partition.key, None) is not None:
            self.changed[partition.key] = partition


@dataclass(slots=True)
class FetchPlan:
    """The partitions that a fetch request reads, and the session of its response."""

    partitions: list[SessionPartition]
    session: FetchSession | None
    incremental: bool

    def refresh(self) -> None:
        """After a wait, read only the partitions of the session that have changed."""
        if self.session is not None and self.incremental:
            self.partitions = list(self.session.changed.values())

    def respond(
        self, results: list[PartitionData], endpoints: Iterable[NodeEndpoint] = ()
    ) -> FetchResponse:
        """The response with `results`, one for each of `partitions`."""
        topics: dict[tuple[str, bytes], FetchableTopicResponse] = {}
        for partition, result in zip(self.partitions, results, strict=True):
            if self.session is not None and not self._must_send(partition, result):
                continue
            topic = topics.get((partition.topic, partition.topic_id))
            if topic is None:
                topic = FetchableTopicResponse(topic=partition.topic, topic_id=partition.topic_id)
                topics[partition.topic, partition.topic_id] = topic
            topic.partitions.append(result)
        session_id = 0 if self.session is None else self.session.id
        return FetchResponse(
            session_id=session_id,
            responses=list(topics.values()),
            node_endpoints=list(endpoints),
        )

    def _must_send(self, partition: SessionPartition, result: PartitionData) -> bool:
        changed = (
            not self.incremental
            or bool(result.records)
            or result.error_code != 0
            or result.high_watermark != partition.sent_high_watermark
            or result.log_start_offset != partition.sent_log_start_offset
            or result.diverging_epoch.end_offset >= 0
            or result.preferred_read_replica >= 0
        )
        assert self.session is not None
        if result.records:
            self.session.move_to_end(partition)
        # An error is sent again next time: the reader may act on it only then.
        partition.sent_high_watermark = -1 if result.error_code else result.high_watermark
        partition.sent_log_start_offset = result.log_start_offset
        return changed


class FetchSessions:
    """The sessions of a broker, at most `slots` of them and `partitions_max` partitions in them.

    A reader without a session names its partitions in every fetch. Followers come first: they may
    evict any consumer's session.
    """

    def __init__(
        self,
        slots: int,
        rng: Random,
        watching: PartitionWatcher,
        partitions_max: int = _PARTITIONS_MAX,
    ) -> None:
        self._slots = slots
        self._rng = rng
        self._watching = watching
        self._partitions_max = partitions_max
        self._partition_count = 0
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def plan(self, request: FetchRequest, now_ms: int, *, opens: bool = True) -> FetchPlan:
        """The partitions to read for a request; KafkaError if its session or epoch is wrong.

        Only if `opens` may the request begin a session.
        """
        if request.session_epoch in (_INITIAL_EPOCH, _FINAL_EPOCH):
            self._close(request.session_id)
            partitions = [
                _new_partition(topic, requested)
                for topic in request.topics
                for requested in topic.partitions
            ]
            if request.session_epoch == _FINAL_EPOCH or not opens:
                return FetchPlan(partitions, None, incremental=False)
            session = self._open(partitions, replica_of(request)[0], now_ms)
            return FetchPlan(partitions, session, incremental=False)
        session = self._sessions.get(request.session_id)
        if session is None:
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if request.session_epoch != session.next_epoch:
            raise KafkaError(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        session.next_epoch = 1 if session.next_epoch == _EPOCH_MAX else session.next_epoch + 1
        session.last_used_ms = now_ms
        self._sessions.move_to_end(session.id)
        self._partition_count -= len(session.partitions)
        session.update(request, self._watching)
        self._partition_count += len(session.partitions)
        if self._partition_count > self._partitions_max:
            self._close(session.id)
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        return FetchPlan(list(session.changed.values()), session, incremental=True)

    def _open(
        self, partitions: list[SessionPartition], replica_id: int, now_ms: int
    ) -> FetchSession | None:
        if not partitions or not self._make_room(len(partitions), replica_id >= 0, now_ms):
            return None
        session_id = self._rng.randrange(1, 2**31)
        while session_id in self._sessions:
            session_id = self._rng.randrange(1, 2**31)
        session = FetchSession(session_id, partitions, replica_id, now_ms)
        self._sessions[session_id] = session
        self._partition_count += len(session.partitions)
        return session

    def _close(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._partition_count -= len(session.partitions)
            self._watching.forget(session)

    def _make_room(self, partitions: int, is_follower: bool, now_ms: int) -> bool:
        """Whether another session fits, if need be by evicting the least recently used."""
        if self._fits(partitions):
            return True
        for oldest in self._sessions.values():
            is_old = now_ms - oldest.last_used_ms >= _EVICTION_AGE_MS
            if is_old or (is_follower and not oldest.is_follower):
                self._close(oldest.id)
                return self._fits(partitions)
            if not is_follower:
                break
        return False

    def _fits(self, partitions: int) -> bool:
        return (
            len(self._sessions) < self._slots
            and self._partition_count + partitions <= self._partitions_max
        )


def _new_partition(topic: FetchTopic, requested: FetchPartition) -> SessionPartition:
    return SessionPartition(
        topic.topic,
        topic.topic_id,
        requested.partition,
        requested.fetch_offset,
        requested.partition_max_bytes,
        requested.current_leader_epoch,
        requested.last_fetched_epoch,
        requested.log_start_offset,
    )
