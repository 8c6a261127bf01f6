"""The recovery elections of the active controller: it asks brokers where their logs end.

Who is to be asked, and who leads by the answers, is decided in
`headrace.metadata.recovery_elections`.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, Protocol

from headrace.broker.metadata_store import MetadataStore
from headrace.clock import Clock
from headrace.errors import HeadraceError
from headrace.metadata.image import Image
from headrace.metadata.records import Result
from headrace.metadata.recovery_elections import LogEnd, Question, Recovered, Recoveries
from headrace.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from headrace.protocol.schema import Message
from headrace.types import TopicPartition

logger = logging.getLogger(__name__)

# Any replica answers to this one, not only the leader.
_ANY_REPLICA = -2
_LATEST = -1
_ASK_SECONDS = 2.0
_QUESTIONS_MAX = 1000
_PATIENCE_MS = 5000


class Brokers(Protocol):
    """The ways to the brokers: `broker.coordination.peers.Peers`."""

    async def ask(self, broker_id: int, request: Message, timeout_s: float) -> Any:
        """A broker's answer to a request; every failure is a HeadraceError."""

    def close(self) -> None:
        """Break the connections; the next request opens them again."""


class RecoveryElections:
    """The elections, round by round. Used on the event loop's thread only."""

    def __init__(
        self, store: MetadataStore, brokers: Brokers, clock: Clock, timeout_ms: int
    ) -> None:
        self._store = store
        self._brokers = brokers
        self._clock = clock
        self._timeout_ms = timeout_ms
        self.reset()

    def reset(self) -> None:
        """Forget everything, as a controller does that becomes active or ceases to be it."""
        self._brokers.close()
        self._recoveries = Recoveries(self._timeout_ms)
        self._is_search_due = True
        self._waiting_since_ms: int | None = None
        self._told = frozenset[int]()

    def search(self) -> None:
        """Look for partitions without an eligible replica in the next round."""
        self._is_search_due = True

    async def round(self) -> None:
        """Ask those who have not answered yet, and elect where enough have."""
        if self._is_search_due:
            self._is_search_due = False
            self._recoveries.look(self._store.image, self._clock.now_ms())
        if not self._recoveries:
            self._waiting_since_ms = None
            self._told = frozenset()
            return
        image = self._store.image
        questions = self._recoveries.questions(image)
        await asyncio.gather(
            *(self._ask_broker(image, broker_id, asked) for broker_id, asked in questions.items())
        )
        if self._decide(self._store.image, 0).records:
            outcomes = await self._store.submit(self._decide)
            self._is_search_due = True
            _tell(outcomes)
        self._tell_waiting()

    def _decide(self, image: Image, _: int) -> Result[list[Recovered]]:
        return self._recoveries.decide(image, self._clock.now_ms())

    async def _ask_broker(
        self, image: Image, broker_id: int, questions: Sequence[Question]
    ) -> None:
        broker_epoch = image.brokers[broker_id].epoch
        for first in range(0, len(questions), _QUESTIONS_MAX):
            asked = {one.partition: one for one in questions[first : first + _QUESTIONS_MAX]}
            try:
                response = await self._brokers.ask(broker_id, _request(asked), _ASK_SECONDS)
            except HeadraceError as error:
                logger.info("broker %d did not tell where its logs end: %s", broker_id, error)
                return
            for partition, log_end in _log_ends(response):
                question = asked.get(partition)
                if question is not None:
                    self._recoveries.answer(question, broker_id, broker_epoch, log_end)

    def _tell_waiting(self) -> None:
        """Say once for which brokers partitions wait, if it takes longer than a start."""
        now_ms = self._clock.now_ms()
        if self._waiting_since_ms is None:
            self._waiting_since_ms = now_ms
        if now_ms - self._waiting_since_ms < _PATIENCE_MS:
            return
        waiting = self._recoveries.waiting(self._store.image)
        missing = frozenset[int]().union(*(one.missing for one in waiting))
        if missing - self._told:
            logger.warning(
                "%d partitions, %s among them, have no leader: all replicas that had every"
                " acknowledged record restarted uncleanly or lost their logs. Start %s %s: without"
                " them the longest log leads %d s after the first replica was back",
                len(waiting),
                waiting[0].partition,
                "brokers" if len(missing) > 1 else "broker",
                ", ".join(map(str, sorted(missing))),
                self._timeout_ms // 1000,
            )
        self._told = missing


def _tell(outcomes: Sequence[Recovered]) -> None:
    """Say what was decided by what: for each partition that somebody may have lost records of."""
    same = 0
    for outcome in outcomes:
        if outcome.is_unanimous:
            same += 1
        else:
            logger.log(logging.WARNING if outcome.is_complete else logging.ERROR, "%s", outcome)
    if same:
        logger.info(
            "%d partitions have a leader again: every replica restarted uncleanly, and all have the"
            " same records",
            same,
        )


def _request(questions: dict[TopicPartition, Question]) -> ListOffsetsRequest:
    topics: dict[str, ListOffsetsTopic] = {}
    for (name, index), question in questions.items():
        topic = topics.setdefault(name, ListOffsetsTopic(name=name))
        topic.partitions.append(
            ListOffsetsPartition(
                partition_index=index,
                current_leader_epoch=question.leader_epoch,
                timestamp=_LATEST,
            )
        )
    return ListOffsetsRequest(replica_id=_ANY_REPLICA, topics=list(topics.values()))


def _log_ends(response: ListOffsetsResponse) -> list[tuple[TopicPartition, LogEnd]]:
    """The answers; a replica that cannot tell, or not yet, is asked again."""
    return [
        (TopicPartition(topic.name, one.partition_index), LogEnd(one.leader_epoch, one.offset))
        for topic in response.topics
        for one in topic.partitions
        if not one.error_code
    ]
