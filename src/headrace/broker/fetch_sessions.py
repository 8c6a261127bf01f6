"""Incremental fetch sessions (KIP-227): a consumer names its partitions once, then only changes.

Pure bookkeeping: requests and the time go in, partitions to read and answers to send come out.
"""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from random import Random

from headrace.errors import ErrorCode, KafkaError
from headrace.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)

_INITIAL_EPOCH = 0
_FINAL_EPOCH = -1
# A session this young is not taken from its consumer to make room for another's.
_EVICTION_AGE_MS = 120_000
_EPOCH_MAX = 2**31 - 1
# What all sessions together may remember: some 60 MB.
_PARTITIONS_MAX = 200_000


@dataclass(slots=True)
class WantedPartition:
    """One partition of a fetch: what is asked, and for a session what was last told."""

    topic: str
    topic_id: bytes
    partition: int
    fetch_offset: int
    bytes_max: int
    leader_epoch: int
    last_fetched_epoch: int
    told_high_watermark: int = -1
    told_log_start_offset: int = -1

    @property
    def key(self) -> tuple[str, bytes, int]:
        return self.topic, self.topic_id, self.partition


class FetchSession:
    """The partitions one consumer reads, in the order they are to be tried."""

    def __init__(self, session_id: int, wanted: Iterable[WantedPartition], now_ms: int) -> None:
        self.id = session_id
        self.next_epoch = 1
        self.last_used_ms = now_ms
        self.partitions = OrderedDict((one.key, one) for one in wanted)

    def update(self, request: FetchRequest) -> None:
        for forgotten in request.forgotten_topics_data:
            for partition in forgotten.partitions:
                self.partitions.pop((forgotten.topic, forgotten.topic_id, partition), None)
        for one in _wanted_of(request):
            known = self.partitions.get(one.key)
            if known is not None:
                one.told_high_watermark = known.told_high_watermark
                one.told_log_start_offset = known.told_log_start_offset
            self.partitions[one.key] = one


@dataclass(slots=True)
class FetchPlan:
    """What one fetch request reads, and the session its answer belongs to."""

    wanted: list[WantedPartition]
    session: FetchSession | None
    incremental: bool

    def respond(self, results: list[PartitionData]) -> FetchResponse:
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
        return FetchResponse(session_id=session_id, responses=list(topics.values()))

    def _must_tell(self, one: WantedPartition, result: PartitionData) -> bool:
        changed = (
            not self.incremental
            or bool(result.records)
            or result.error_code != 0
            or result.high_watermark != one.told_high_watermark
            or result.log_start_offset != one.told_log_start_offset
        )
        assert self.session is not None
        if result.records and one.key in self.session.partitions:
            # Who got data goes to the back, so that a byte limit starves nobody.
            self.session.partitions.move_to_end(one.key)
        # An error is told again next time: the consumer may act on it only then.
        one.told_high_watermark = -1 if result.error_code else result.high_watermark
        one.told_log_start_offset = result.log_start_offset
        return changed


class FetchSessions:
    """The sessions of a broker, at most `slots` of them and `partitions_max` partitions in them.

    A consumer for whom there is no room names its partitions in every fetch, as it would without
    sessions.
    """

    def __init__(self, slots: int, rng: Random, partitions_max: int = _PARTITIONS_MAX) -> None:
        self._slots = slots
        self._rng = rng
        self._partitions_max = partitions_max
        self._partition_count = 0
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def plan(self, request: FetchRequest, now_ms: int) -> FetchPlan:
        """What to read for a request; raises when it names a session wrongly."""
        if request.session_epoch in (_INITIAL_EPOCH, _FINAL_EPOCH):
            self._close(request.session_id)
            wanted = list(_wanted_of(request))
            if request.session_epoch == _FINAL_EPOCH:
                return FetchPlan(wanted, None, incremental=False)
            return FetchPlan(wanted, self._open(wanted, now_ms), incremental=False)
        session = self._sessions.get(request.session_id)
        if session is None:
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if request.session_epoch != session.next_epoch:
            raise KafkaError(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        session.next_epoch = 1 if session.next_epoch == _EPOCH_MAX else session.next_epoch + 1
        session.last_used_ms = now_ms
        self._sessions.move_to_end(session.id)
        self._partition_count -= len(session.partitions)
        session.update(request)
        self._partition_count += len(session.partitions)
        if self._partition_count > self._partitions_max:
            self._close(session.id)
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        return FetchPlan(list(session.partitions.values()), session, incremental=True)

    def _open(self, wanted: list[WantedPartition], now_ms: int) -> FetchSession | None:
        if not wanted or not self._make_room(len(wanted), now_ms):
            return None
        session_id = self._rng.randrange(1, 2**31)
        while session_id in self._sessions:
            session_id = self._rng.randrange(1, 2**31)
        session = self._sessions[session_id] = FetchSession(session_id, wanted, now_ms)
        self._partition_count += len(session.partitions)
        return session

    def _close(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._partition_count -= len(session.partitions)

    def _make_room(self, partitions: int, now_ms: int) -> bool:
        """Whether one more session fits, if need be in the place of the one that is least used."""
        if self._fits(partitions):
            return True
        if not self._sessions:
            return False
        oldest = next(iter(self._sessions.values()))
        if now_ms - oldest.last_used_ms < _EVICTION_AGE_MS:
            return False
        self._close(oldest.id)
        return self._fits(partitions)

    def _fits(self, partitions: int) -> bool:
        return (
            len(self._sessions) < self._slots
            and self._partition_count + partitions <= self._partitions_max
        )


def _wanted_of(request: FetchRequest) -> Iterable[WantedPartition]:
    for topic in request.topics:
        for one in topic.partitions:
            yield WantedPartition(
                topic.topic,
                topic.topic_id,
                one.partition,
                one.fetch_offset,
                one.partition_max_bytes,
                one.current_leader_epoch,
                one.last_fetched_epoch,
            )
