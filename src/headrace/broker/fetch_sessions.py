"""Incremental fetch sessions (KIP-227): a reader names its partitions once, then only changes.

A session also keeps which of its partitions have news, so that a follower of a thousand partitions
costs what the few do that are written to. The others are watched in the purgatory: an append or a
commit gives them news. Requests and the time go in, partitions to read and answers to send come
out.
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
# A session this young is not taken from its reader to make room for another's.
_EVICTION_AGE_MS = 120_000
_EPOCH_MAX = 2**31 - 1
# What all sessions together may remember: some 80 MB.
_PARTITIONS_MAX = 200_000


class ReadLimit(Enum):
    """How far a reader gets to see a log."""

    LOG_END = "log end"  # A follower.
    HIGH_WATERMARK = "high watermark"  # A consumer.
    LAST_STABLE = "last stable offset"  # A consumer of committed transactions.


class Watching(Protocol):
    """What watches the partitions of sessions: `broker.fetch_purgatory.FetchPurgatory`."""

    def unwatch(self, read: "WantedPartition") -> None:
        """Watch a partition no more that its session has forgotten."""

    def forget(self, session: "FetchSession") -> None:
        """Watch nothing more for a session that is closed."""


def replica_of(request: FetchRequest) -> tuple[int, int]:
    """The id and epoch of the broker that fetches as a follower; below zero for a consumer."""
    state = request.replica_state
    return max(state.replica_id, request.replica_id), state.replica_epoch


@dataclass(slots=True, eq=False)
class WantedPartition:
    """One partition of a fetch: what is asked, and for a session what was last told."""

    topic: str
    topic_id: bytes
    partition: int
    fetch_offset: int
    bytes_max: int
    leader_epoch: int
    last_fetched_epoch: int
    log_start_offset: int = -1
    limit: ReadLimit = ReadLimit.HIGH_WATERMARK
    told_high_watermark: int = -1
    told_log_start_offset: int = -1
    # For a reader of committed transactions: the last stable offset when this was looked at last,
    # and whether anything was committed behind it.
    stable_offset: int | None = None
    has_unstable: bool = False
    session: "FetchSession | None" = None
    key: tuple[str, bytes, int] = field(init=False)

    def __post_init__(self) -> None:
        self.key = self.topic, self.topic_id, self.partition

    def ask(self, asked: FetchPartition) -> None:
        """Take over what a later request of the session asks."""
        self.fetch_offset = asked.fetch_offset
        self.bytes_max = asked.partition_max_bytes
        self.leader_epoch = asked.current_leader_epoch
        self.last_fetched_epoch = asked.last_fetched_epoch
        self.log_start_offset = asked.log_start_offset

    def saw_stable(self, stable_offset: int, high_watermark: int) -> None:
        """Note how far a reader of committed transactions can read."""
        self.stable_offset = stable_offset
        self.has_unstable = stable_offset < high_watermark


class FetchSession:
    """The partitions one reader reads.

    Invariant: a partition is in `changed`, in the order in which they are to be tried, or it is
    watched and its reader was told all there is.
    """

    def __init__(
        self, session_id: int, wanted: Iterable[WantedPartition], replica_id: int, now_ms: int
    ) -> None:
        self.id = session_id
        self.is_follower = replica_id >= 0
        self.next_epoch = 1
        self.last_used_ms = now_ms
        self.partitions = {one.key: one for one in wanted}
        self.changed = dict(self.partitions)
        for one in self.partitions.values():
            one.session = self

    def update(self, request: FetchRequest, watching: Watching) -> None:
        for forgotten in request.forgotten_topics_data:
            for partition in forgotten.partitions:
                key = (forgotten.topic, forgotten.topic_id, partition)
                self.changed.pop(key, None)
                known = self.partitions.pop(key, None)
                if known is not None:
                    watching.unwatch(known)
        for topic in request.topics:
            for asked in topic.partitions:
                key = (topic.topic, topic.topic_id, asked.partition)
                known = self.partitions.get(key)
                if known is None:
                    known = self.partitions[key] = _wanted(topic, asked)
                    known.session = self
                else:
                    known.ask(asked)
                self.changed[key] = known

    def settle(self, one: WantedPartition) -> bool:
        """Leave a partition alone whose reader knows all there is; whether it is of the session.

        Then it is to be watched, until there is more.
        """
        if one.key not in self.partitions:
            return False
        self.changed.pop(one.key, None)
        return True

    def move_to_end(self, one: WantedPartition) -> None:
        """Who got data goes to the back, so that a byte limit starves nobody."""
        if self.changed.pop(one.key, None) is not None:
            self.changed[one.key] = one


@dataclass(slots=True)
class FetchPlan:
    """What one fetch request reads, and the session its answer belongs to."""

    wanted: list[WantedPartition]
    session: FetchSession | None
    incremental: bool

    def look_again(self) -> None:
        """After a wait: only what has news now is to be read."""
        if self.session is not None and self.incremental:
            self.wanted = list(self.session.changed.values())

    def respond(
        self, results: list[PartitionData], endpoints: Iterable[NodeEndpoint] = ()
    ) -> FetchResponse:
        """Put the results, one for each of `wanted`, into the answer that is owed."""
        topics: dict[tuple[str, bytes], FetchableTopicResponse] = {}
        for one, result in zip(self.wanted, results, strict=True):
            if self.session is not None and not self._must_tell(one, result):
                continue
            topic = topics.get((one.topic, one.topic_id))
            if topic is None:
                topic = FetchableTopicResponse(topic=one.topic, topic_id=one.topic_id)
                topics[one.topic, one.topic_id] = topic
            topic.partitions.append(result)
        session_id = 0 if self.session is None else self.session.id
        return FetchResponse(
            session_id=session_id,
            responses=list(topics.values()),
            node_endpoints=list(endpoints),
        )

    def _must_tell(self, one: WantedPartition, result: PartitionData) -> bool:
        changed = (
            not self.incremental
            or bool(result.records)
            or result.error_code != 0
            or result.high_watermark != one.told_high_watermark
            or result.log_start_offset != one.told_log_start_offset
            or result.diverging_epoch.end_offset >= 0
            or result.preferred_read_replica >= 0
        )
        assert self.session is not None
        if result.records:
            self.session.move_to_end(one)
        # An error is told again next time: the reader may act on it only then.
        one.told_high_watermark = -1 if result.error_code else result.high_watermark
        one.told_log_start_offset = result.log_start_offset
        return changed


class FetchSessions:
    """The sessions of a broker, at most `slots` of them and `partitions_max` partitions in them.

    A reader for whom there is no room names its partitions in every fetch, as it would without
    sessions. Followers come first: they take the place of any consumer.
    """

    def __init__(
        self,
        slots: int,
        rng: Random,
        watching: Watching,
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

    def plan(self, request: FetchRequest, now_ms: int) -> FetchPlan:
        """What to read for a request; raises when it names a session wrongly."""
        if request.session_epoch in (_INITIAL_EPOCH, _FINAL_EPOCH):
            self._close(request.session_id)
            wanted = [
                _wanted(topic, asked) for topic in request.topics for asked in topic.partitions
            ]
            if request.session_epoch == _FINAL_EPOCH:
                return FetchPlan(wanted, None, incremental=False)
            session = self._open(wanted, replica_of(request)[0], now_ms)
            return FetchPlan(wanted, session, incremental=False)
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
        self, wanted: list[WantedPartition], replica_id: int, now_ms: int
    ) -> FetchSession | None:
        if not wanted or not self._make_room(len(wanted), replica_id >= 0, now_ms):
            return None
        session_id = self._rng.randrange(1, 2**31)
        while session_id in self._sessions:
            session_id = self._rng.randrange(1, 2**31)
        session = FetchSession(session_id, wanted, replica_id, now_ms)
        self._sessions[session_id] = session
        self._partition_count += len(session.partitions)
        return session

    def _close(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._partition_count -= len(session.partitions)
            self._watching.forget(session)

    def _make_room(self, partitions: int, is_follower: bool, now_ms: int) -> bool:
        """Whether one more session fits, if need be in the place of the one that is least used."""
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


def _wanted(topic: FetchTopic, asked: FetchPartition) -> WantedPartition:
    return WantedPartition(
        topic.topic,
        topic.topic_id,
        asked.partition,
        asked.fetch_offset,
        asked.partition_max_bytes,
        asked.current_leader_epoch,
        asked.last_fetched_epoch,
        asked.log_start_offset,
    )
