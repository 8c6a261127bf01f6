"""The fetcher's side of an incremental fetch session (KIP-227).

Pure bookkeeping: a partition is named once and then only when something about it changes, so a
round over a thousand idle partitions costs next to nothing.
"""

from collections.abc import Iterable
from typing import NamedTuple

from headrace.errors import ErrorCode
from headrace.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
)

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
