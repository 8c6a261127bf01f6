"""The follower's side of a partition: fetch sessions, and decisions about fetch responses.

Rule: a follower's log is truncated where its leader epochs diverge from the leader's (KIP-101,
KIP-595) and never at the high watermark: records above the follower's high watermark may be
committed. Nor is it truncated below the high watermark, unless an unclean election gave up
committed records: otherwise it is the leader that has lost some.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from heapq import heappop, heappush
from typing import NamedTuple, Protocol

from headrace.errors import ErrorCode
from headrace.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
)

# The fetcher's side of an incremental fetch session (KIP-227).
#
# A partition is in a request once, and then only when something about it changes, so a fetch of a
# thousand idle partitions costs next to nothing.


_NO_SESSION = 0
_FULL_EPOCH = 0
_SESSIONLESS_EPOCH = -1
_EPOCH_MAX = 2**31 - 1
_SESSION_ERRORS = frozenset(
    (
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    )
)


class PartitionKey(NamedTuple):
    """A partition by its topic's id, which a topic created later under that name does not have."""

    topic_id: bytes
    partition: int


class FollowerFetch(NamedTuple):
    """A partition to fetch: its topic's name, and its entry in the fetch request."""

    topic: str
    partition: FetchPartition


class FollowerFetchSession:
    """An incremental fetch session with one leader, which has one request at a time in flight.

    Invariant: while a session is open, the leader's copy of it has the partitions of `_sent`, and
    `_changed` and `_forgotten` are the differences from `_wanted`. A session that is not `kept`
    names every partition in every request, and the leader stores nothing of it.
    """

    def __init__(self, *, kept: bool = True) -> None:
        self._kept = kept
        self._session_id = _NO_SESSION
        self._epoch = _FULL_EPOCH
        self._wanted: dict[PartitionKey, FollowerFetch] = {}
        self._sent: set[PartitionKey] = set()
        # Dictionaries for their order: every replay of a simulation has to be the same.
        self._changed: dict[PartitionKey, None] = {}
        self._forgotten: dict[PartitionKey, str] = {}

    def __len__(self) -> int:
        return len(self._wanted)

    def want(self, key: PartitionKey, topic: str, partition: FetchPartition) -> None:
        """Fetch a partition, or fetch it from another offset, from the next request on."""
        self._wanted[key] = FollowerFetch(topic, partition)
        self._changed[key] = None
        self._forgotten.pop(key, None)

    def drop(self, key: PartitionKey) -> None:
        """Remove a partition from the session."""
        wanted = self._wanted.pop(key, None)
        if wanted is None:
            return
        self._changed.pop(key, None)
        if key in self._sent:
            self._forgotten[key] = wanted.topic

    def is_current(self, key: PartitionKey) -> bool:
        """Whether the last request fetched a partition from the presently wanted offset."""
        return key in self._wanted and key not in self._changed

    def fill(self, request: FetchRequest) -> None:
        """Set the session fields and partitions of a request; `accept` or `restart` follows."""
        request.session_id = self._session_id
        request.session_epoch = self._epoch if self._kept else _SESSIONLESS_EPOCH
        if self._epoch == _FULL_EPOCH:
            request.topics = self._topics(self._wanted)
            self._sent = set(self._wanted)
        else:
            request.topics = self._topics(self._changed)
            request.forgotten_topics_data = _forgotten_topics(self._forgotten)
            self._sent.update(self._changed)
            self._sent.difference_update(self._forgotten)
        self._changed.clear()
        self._forgotten.clear()

    def accept(self, response: FetchResponse) -> bool:
        """Whether the partitions of a response can be used; if not, the next request names all."""
        if response.error_code:
            if response.error_code in _SESSION_ERRORS:
                self._session_id = _NO_SESSION
            self.restart()
            return False
        if not self._kept or response.session_id == _NO_SESSION:
            self._session_id, self._epoch = _NO_SESSION, _FULL_EPOCH
        else:
            self._session_id = response.session_id
            self._epoch = 1 if self._epoch == _EPOCH_MAX else self._epoch + 1
        return True

    def restart(self) -> None:
        """Name every partition in the next request, which also ends the current session."""
        self._epoch = _FULL_EPOCH
        self._sent.clear()
        self._changed.clear()
        self._forgotten.clear()

    def _topics(self, keys: Iterable[PartitionKey]) -> list[FetchTopic]:
        topics: dict[bytes, FetchTopic] = {}
        for key in keys:
            wanted = self._wanted[key]
            topic = topics.get(key.topic_id)
            if topic is None:
                topic = topics[key.topic_id] = FetchTopic(topic=wanted.topic, topic_id=key.topic_id)
            topic.partitions.append(wanted.partition)
        return list(topics.values())


def _forgotten_topics(keys: dict[PartitionKey, str]) -> list[ForgottenTopic]:
    topics: dict[bytes, ForgottenTopic] = {}
    for key, name in keys.items():
        topic = topics.get(key.topic_id)
        if topic is None:
            topic = topics[key.topic_id] = ForgottenTopic(topic=name, topic_id=key.topic_id)
        topic.partitions.append(key.partition)
    return list(topics.values())


class FollowedLog(Protocol):
    """A follower's log, with the properties that decisions about fetch responses need."""

    @property
    def log_start_offset(self) -> int: ...
    @property
    def log_end_offset(self) -> int: ...
    @property
    def latest_epoch(self) -> int: ...
    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]: ...


class FetchPosition(NamedTuple):
    """The end of a follower's log, which is where its next fetch begins."""

    fetch_offset: int
    last_fetched_epoch: int
    log_start_offset: int


def position_of(log: FollowedLog) -> FetchPosition:
    """The position at the end of a log."""
    return FetchPosition(log.log_end_offset, log.latest_epoch, log.log_start_offset)


class FetchAction(Enum):
    """The action of a follower after a fetch response."""

    APPEND = "append the records, and take over the leader's high watermark and log start"
    TRUNCATE = "remove what lies at or after an offset, then fetch again"
    RESTART = "remove everything and begin again at an offset"
    LOCATE = "ask where the leader's log begins and ends"
    RETRY = "fetch again after a while"
    GIVE_UP = "fetch nothing until the metadata has a newer leader epoch"
    KEEP = "remove nothing and give up: the leader lacks records that are committed"


class FetchDecision(NamedTuple):
    """An action, with the offset to truncate to or to restart at.

    `leader_end_offset` is where the leader's records of the epochs that both logs may share end.
    """

    act: FetchAction
    offset: int = -1
    leader_end_offset: int = -1


def decide(answer: PartitionData, log: FollowedLog) -> FetchDecision:
    """The action for the follower's log after a partition's fetch response."""
    if answer.error_code == ErrorCode.NONE:
        diverging = answer.diverging_epoch
        if diverging.end_offset < 0:
            return FetchDecision(FetchAction.APPEND)
        end_offset = diverging.end_offset
        cut = truncation_offset(log, diverging.epoch, end_offset)
        return FetchDecision(FetchAction.TRUNCATE, cut, end_offset)
    if answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
        return FetchDecision(FetchAction.LOCATE)
    if answer.error_code == ErrorCode.FENCED_LEADER_EPOCH:
        return FetchDecision(FetchAction.GIVE_UP)
    # The broker does not know yet that it leads or has the topic, does not lead any more, or has
    # trouble with its disk: all of that passes, or new metadata names another leader.
    return FetchDecision(FetchAction.RETRY)


def truncation_offset(log: FollowedLog, epoch: int, end_offset: int) -> int:
    """The offset to truncate a log to, given the leader's end offset of `epoch`.

    If the log does not have that epoch, its records of the next older epoch may still diverge; the
    response to the next fetch says so.
    """
    cut = min(end_offset, log.log_end_offset)
    if epoch < 0:
        return cut
    _, own_end_offset = log.end_offset_for_epoch(epoch)
    return cut if own_end_offset < 0 else min(cut, own_end_offset)


def decide_out_of_range(
    log: FollowedLog, leader_start_offset: int, leader_end_offset: int
) -> FetchDecision:
    """The action for a log whose end offset is out of the range of the leader's log."""
    if leader_start_offset > log.log_end_offset:
        return FetchDecision(FetchAction.RESTART, leader_start_offset)
    if leader_end_offset < log.log_end_offset:
        return FetchDecision(FetchAction.TRUNCATE, leader_end_offset, leader_end_offset)
    return FetchDecision(FetchAction.RETRY)


def protect_committed(
    verdict: FetchDecision, high_watermark: int, *, is_compacted: bool, may_lose_committed: bool
) -> FetchDecision:
    """The given verdict, or `FetchAction.KEEP` if it would remove committed records.

    Compaction may have removed all records of an epoch from the leader's log, and with them its
    entry for the epoch. The follower then truncates its records of that epoch and fetches them
    again, compacted, provided that the leader's log reaches as far as the high watermark.
    """
    if verdict.act is not FetchAction.TRUNCATE or may_lose_committed:
        return verdict
    kept_offset = verdict.leader_end_offset if is_compacted else verdict.offset
    return verdict if kept_offset >= high_watermark else verdict._replace(act=FetchAction.KEEP)


@dataclass(slots=True)
class FollowedPartition:
    """The state of a fetched partition. Before `delayed_until` it is left out of requests."""

    key: PartitionKey
    topic: str
    leader_epoch: int
    position: FetchPosition
    bytes_max: int
    delayed_until: float | None = None
    given_up: bool = False


class AnsweredPartition(NamedTuple):
    """A partition of a fetch response, with the state of the fetched partition."""

    followed: FollowedPartition
    data: PartitionData


class FollowerState:
    """The partitions that are fetched from one leader, with one request at a time in flight.

    Invariant: the session wants exactly the partitions that are neither delayed nor given up.
    """

    def __init__(self, session: FollowerFetchSession | None = None) -> None:
        self._session = FollowerFetchSession() if session is None else session
        self._partitions: dict[PartitionKey, FollowedPartition] = {}
        self._delayed: list[tuple[float, int, PartitionKey]] = []
        self._delay_count = 0

    def __len__(self) -> int:
        return len(self._partitions)

    def __iter__(self) -> Iterator[FollowedPartition]:
        return iter(tuple(self._partitions.values()))

    def get(self, key: PartitionKey) -> FollowedPartition | None:
        return self._partitions.get(key)

    def add(self, followed: FollowedPartition) -> None:
        """Fetch a partition, or fetch it in a newer leader epoch."""
        self._partitions[followed.key] = followed
        if followed.given_up:
            self._session.drop(followed.key)
        elif followed.delayed_until is not None:
            self.delay(followed.key, followed.delayed_until)
        else:
            self._want(followed)

    def remove(self, key: PartitionKey) -> FollowedPartition | None:
        """Stop fetching a partition; the response to a request in flight is not used for it."""
        self._session.drop(key)
        return self._partitions.pop(key, None)

    def moved(self, key: PartitionKey, position: FetchPosition) -> None:
        """Fetch from the new end of a log that has grown or was truncated."""
        followed = self._partitions.get(key)
        if followed is not None and followed.position != position:
            followed.position = position
            if followed.delayed_until is None and not followed.given_up:
                self._want(followed)

    def delay(self, key: PartitionKey, until: float) -> None:
        """Leave a partition out of the requests before `until`."""
        followed = self._partitions.get(key)
        if followed is None or followed.given_up:
            return
        self._session.drop(key)
        followed.delayed_until = until
        self._delay_count += 1
        heappush(self._delayed, (until, self._delay_count, key))

    def give_up(self, key: PartitionKey) -> None:
        """Leave a partition out until it is added in another leader epoch."""
        followed = self._partitions.get(key)
        if followed is not None:
            self._session.drop(key)
            followed.delayed_until = None
            followed.given_up = True

    @property
    def delayed(self) -> list[PartitionKey]:
        """The partitions that are left out of requests until a time."""
        return [key for until, _, key in self._delayed if self._is_delayed(key, until)]

    def _is_delayed(self, key: PartitionKey, until: float) -> bool:
        followed = self._partitions.get(key)
        return followed is not None and followed.delayed_until == until

    @property
    def due(self) -> float | None:
        """The time at which the next delayed partition may be fetched; None if none is delayed."""
        while self._delayed:
            until, _, key = self._delayed[0]
            if self._is_delayed(key, until):
                return until
            heappop(self._delayed)
        return None

    def fill(self, request: FetchRequest, now: float) -> bool:
        """Put the partitions that are due into a request; False if there are none."""
        while self._delayed and self._delayed[0][0] <= now:
            until, _, key = heappop(self._delayed)
            if self._is_delayed(key, until):
                followed = self._partitions[key]
                followed.delayed_until = None
                self._want(followed)
        if not len(self._session):
            return False
        self._session.fill(request)
        return True

    def answered(self, response: FetchResponse) -> Iterator[AnsweredPartition] | None:
        """The partitions of a response that are still current; None if all must be fetched again.

        Each partition is checked only when the iterator reaches it.
        """
        return self._current(response) if self._session.accept(response) else None

    def _current(self, response: FetchResponse) -> Iterator[AnsweredPartition]:
        for topic in response.responses:
            for data in topic.partitions:
                key = PartitionKey(topic.topic_id, data.partition_index)
                # A partition that was removed, added again or truncated since the request must not
                # get the records of its earlier offset.
                if self._session.is_current(key):
                    yield AnsweredPartition(self._partitions[key], data)

    def failed(self) -> None:
        """Begin a new session, because a request had no response."""
        self._session.restart()

    def _want(self, followed: FollowedPartition) -> None:
        position = followed.position
        partition = FetchPartition(
            partition=followed.key.partition,
            current_leader_epoch=followed.leader_epoch,
            fetch_offset=position.fetch_offset,
            last_fetched_epoch=position.last_fetched_epoch,
            log_start_offset=position.log_start_offset,
            partition_max_bytes=followed.bytes_max,
        )
        self._session.want(followed.key, followed.topic, partition)
