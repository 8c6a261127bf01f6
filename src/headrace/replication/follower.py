"""A follower: what it asks its leader next, in an incremental session, and what answers mean.

Rule: a follower's log is cut where its leader epochs part from the leader's (KIP-101, KIP-595) and
never at the high watermark: what lies above that may be committed without the follower having heard
of it. Nor is it cut below the high watermark, unless an unclean election gave up committed records:
else it is the leader that has lost some.
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
# Pure bookkeeping: a partition is named once and then only when something about it changes, so a
# round over a thousand idle partitions costs next to nothing.


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
    """A partition of one topic, which another topic of the same name does not have."""

    topic_id: bytes
    partition: int


class Wanted(NamedTuple):
    """One partition of a fetch: its topic's name, and what is asked of it."""

    topic: str
    partition: FetchPartition


class FetchSession:
    """What one leader is asked for again and again, one request at a time.

    Invariant: while a session is open the leader knows the partitions of `_told`, and `_changed`
    and `_forgotten` are how they differ from `_wanted`. A session that is not `kept` names every
    partition in every request and leaves nothing behind at the leader.
    """

    def __init__(self, *, kept: bool = True) -> None:
        self._kept = kept
        self._session_id = _NO_SESSION
        self._epoch = _FULL_EPOCH
        self._wanted: dict[PartitionKey, Wanted] = {}
        self._told: set[PartitionKey] = set()
        # Dictionaries for their order: a simulated run has to be the same every time.
        self._changed: dict[PartitionKey, None] = {}
        self._forgotten: dict[PartitionKey, str] = {}

    def __len__(self) -> int:
        return len(self._wanted)

    def want(self, key: PartitionKey, topic: str, partition: FetchPartition) -> None:
        """Ask for a partition, or ask for something else of it, from the next request on."""
        self._wanted[key] = Wanted(topic, partition)
        self._changed[key] = None
        self._forgotten.pop(key, None)

    def drop(self, key: PartitionKey) -> None:
        """Ask for a partition no more."""
        wanted = self._wanted.pop(key, None)
        if wanted is None:
            return
        self._changed.pop(key, None)
        if key in self._told:
            self._forgotten[key] = wanted.topic

    def is_current(self, key: PartitionKey) -> bool:
        """Whether the last request asked of a partition what is wanted of it now."""
        return key in self._wanted and key not in self._changed

    def fill(self, request: FetchRequest) -> None:
        """Put into a request what the leader must be told; `accept` or `restart` follows."""
        request.session_id = self._session_id
        request.session_epoch = self._epoch if self._kept else _SESSIONLESS_EPOCH
        if self._epoch == _FULL_EPOCH:
            request.topics = self._topics(self._wanted)
            self._told = set(self._wanted)
        else:
            request.topics = self._topics(self._changed)
            request.forgotten_topics_data = _forgotten_topics(self._forgotten)
            self._told.update(self._changed)
            self._told.difference_update(self._forgotten)
        self._changed.clear()
        self._forgotten.clear()

    def accept(self, response: FetchResponse) -> bool:
        """Whether the partitions of an answer can be used; if not, the next request names all."""
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
        """Name every partition in the next request, which also ends the session there was."""
        self._epoch = _FULL_EPOCH
        self._told.clear()
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
    """What there is to know of a follower's log."""

    @property
    def log_start_offset(self) -> int: ...
    @property
    def log_end_offset(self) -> int: ...
    @property
    def latest_epoch(self) -> int: ...
    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]: ...


class Position(NamedTuple):
    """Where a follower's log ends, and so where its next fetch begins."""

    fetch_offset: int
    last_fetched_epoch: int
    log_start_offset: int


def position_of(log: FollowedLog) -> Position:
    """The position after all that a log has."""
    return Position(log.log_end_offset, log.latest_epoch, log.log_start_offset)


class Act(Enum):
    """What is to be done after an answer."""

    APPEND = "append the records, and take over the leader's high watermark and log start"
    TRUNCATE = "remove what lies at or after an offset, then fetch again"
    RESTART = "remove everything and begin again at an offset"
    LOCATE = "ask where the leader's log begins and ends"
    RETRY = "fetch again after a while"
    GIVE_UP = "fetch nothing until the metadata has a newer leader epoch"
    KEEP = "remove nothing and give up: the leader lacks records that are committed"


class Verdict(NamedTuple):
    """An act, and the offset for those that need one.

    `leader_end_offset` is up to where the leader has records of the epochs that both may share.
    """

    act: Act
    offset: int = -1
    leader_end_offset: int = -1


def judge(answer: PartitionData, log: FollowedLog) -> Verdict:
    """What one partition of an answer means for the log that was fetched for."""
    if answer.error_code == ErrorCode.NONE:
        diverging = answer.diverging_epoch
        if diverging.end_offset < 0:
            return Verdict(Act.APPEND)
        end_offset = diverging.end_offset
        cut = truncation_offset(log, diverging.epoch, end_offset)
        return Verdict(Act.TRUNCATE, cut, end_offset)
    if answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
        return Verdict(Act.LOCATE)
    if answer.error_code == ErrorCode.FENCED_LEADER_EPOCH:
        return Verdict(Act.GIVE_UP)
    # The leader does not know yet that it leads or has the topic, no longer does, or has trouble
    # with its disk: all of that passes, or new metadata names another leader.
    return Verdict(Act.RETRY)


def truncation_offset(log: FollowedLog, epoch: int, end_offset: int) -> int:
    """Where to cut a log whose leader says that `epoch` ended at `end_offset`.

    If the log does not have that epoch, what it has of the next older one may still be too much;
    the fetch that follows finds out.
    """
    cut = min(end_offset, log.log_end_offset)
    if epoch < 0:
        return cut
    _, own_end_offset = log.end_offset_for_epoch(epoch)
    return cut if own_end_offset < 0 else min(cut, own_end_offset)


def relocate(log: FollowedLog, leader_start_offset: int, leader_end_offset: int) -> Verdict:
    """What to do with a log that ends where the leader's has nothing, before or after it."""
    if leader_start_offset > log.log_end_offset:
        return Verdict(Act.RESTART, leader_start_offset)
    if leader_end_offset < log.log_end_offset:
        return Verdict(Act.TRUNCATE, leader_end_offset, leader_end_offset)
    return Verdict(Act.RETRY)


def protect(
    verdict: Verdict, high_watermark: int, *, is_compacted: bool, may_lose_committed: bool
) -> Verdict:
    """The verdict, or to keep everything if it would remove records that are committed.

    Compaction may have left the leader without a record, and so without any trace, of an epoch that
    the follower has; then what the follower has of it is fetched again, compacted, if the leader's
    log reaches that far at all.
    """
    if verdict.act is not Act.TRUNCATE or may_lose_committed:
        return verdict
    kept_offset = verdict.leader_end_offset if is_compacted else verdict.offset
    return verdict if kept_offset >= high_watermark else verdict._replace(act=Act.KEEP)


@dataclass(slots=True)
class Followed:
    """One partition that is fetched. `delayed_until` is when it is asked for again."""

    key: PartitionKey
    topic: str
    leader_epoch: int
    position: Position
    bytes_max: int
    delayed_until: float | None = None
    given_up: bool = False


class Answered(NamedTuple):
    """One partition of an answer that can be used."""

    followed: Followed
    data: PartitionData


class Follower:
    """The partitions that are fetched from one leader, one request at a time.

    Invariant: the session wants exactly the partitions that are neither delayed nor given up.
    """

    def __init__(self, session: FetchSession | None = None) -> None:
        self._session = FetchSession() if session is None else session
        self._partitions: dict[PartitionKey, Followed] = {}
        self._delayed: list[tuple[float, int, PartitionKey]] = []
        self._delay_count = 0

    def __len__(self) -> int:
        return len(self._partitions)

    def __iter__(self) -> Iterator[Followed]:
        return iter(tuple(self._partitions.values()))

    def get(self, key: PartitionKey) -> Followed | None:
        return self._partitions.get(key)

    def add(self, followed: Followed) -> None:
        """Fetch a partition, or fetch it in a newer leader epoch."""
        self._partitions[followed.key] = followed
        if followed.given_up:
            self._session.drop(followed.key)
        elif followed.delayed_until is not None:
            self.delay(followed.key, followed.delayed_until)
        else:
            self._want(followed)

    def remove(self, key: PartitionKey) -> Followed | None:
        """Fetch a partition no more; an answer that is on its way is not used."""
        self._session.drop(key)
        return self._partitions.pop(key, None)

    def moved(self, key: PartitionKey, position: Position) -> None:
        """The log has grown or was cut: fetch from its new end."""
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
        """The partitions that are left out for a while."""
        return [key for until, _, key in self._delayed if self._is_delayed(key, until)]

    def _is_delayed(self, key: PartitionKey, until: float) -> bool:
        followed = self._partitions.get(key)
        return followed is not None and followed.delayed_until == until

    @property
    def due(self) -> float | None:
        """When a delayed partition may be asked for again."""
        while self._delayed:
            until, _, key = self._delayed[0]
            if self._is_delayed(key, until):
                return until
            heappop(self._delayed)
        return None

    def fill(self, request: FetchRequest, now: float) -> bool:
        """Put what is wanted into a request; False if that is nothing at all."""
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

    def answered(self, response: FetchResponse) -> Iterator[Answered] | None:
        """The partitions of an answer that still want it; None if all must be asked for again.

        Whether one does is found out when its turn comes.
        """
        return self._current(response) if self._session.accept(response) else None

    def _current(self, response: FetchResponse) -> Iterator[Answered]:
        for topic in response.responses:
            for data in topic.partitions:
                key = PartitionKey(topic.topic_id, data.partition_index)
                # What was removed, added again or cut since then must not get what it asked before.
                if self._session.is_current(key):
                    yield Answered(self._partitions[key], data)

    def failed(self) -> None:
        """The request had no answer: nothing is known of the session."""
        self._session.restart()

    def _want(self, followed: Followed) -> None:
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
