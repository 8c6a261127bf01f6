"""The recovery elections of the active controller: requests log ends from brokers, elects leaders.

The brokers to ask, and the replica to elect by their responses, are decided in
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
from headrace.metadata.records import CommandResult
from headrace.metadata.recovery_elections import (
    LogEnd,
    LogEndQuestion,
    PendingElections,
    RecoveredPartition,
)
from headrace.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from headrace.protocol.schema import Message
from headrace.types import TopicPartition

logger = logging.getLogger(__name__)

# With this replica id any replica answers, not only the leader.
_ANY_REPLICA = -2
_LATEST = -1
_ASK_SECONDS = 2.0
_QUESTIONS_MAX = 1000
_PATIENCE_MS = 5000
_NAMED_PER_LINE = 20


class BrokerRequester(Protocol):
    """Requests to brokers: `broker.cluster.channels.BrokerChannels`."""

    async def ask(self, broker_id: int, request: Message, timeout_s: float) -> Any:
        """A broker's answer to a request; every failure is a HeadraceError."""

    def close(self) -> None:
        """Close the connections; the next request opens them again."""


class RecoveryElections:
    """The elections, round by round. Used on the event loop's thread only."""

    def __init__(
        self, store: MetadataStore, brokers: BrokerRequester, clock: Clock, timeout_ms: int
    ) -> None:
        self._store = store
        self._brokers = brokers
        self._clock = clock
        self._timeout_ms = timeout_ms
        self.reset()

    def reset(self) -> None:
        """Drop all elections: the controller was activated or deactivated."""
        self._brokers.close()
        self._recoveries = PendingElections(self._timeout_ms)
        self._is_search_due = True
        self._waiting_since_ms: int | None = None
        self._warned_of = frozenset[int]()

    def search(self) -> None:
        """Look for partitions without an eligible replica in the next round."""
        self._is_search_due = True

    async def run_round(self) -> None:
        """Ask replicas that have not answered yet, and elect leaders where enough have."""
        if self._is_search_due:
            self._is_search_due = False
            self._recoveries.find_partitions(self._store.image)
        if not self._recoveries:
            self._waiting_since_ms = None
            self._warned_of = frozenset()
            return
        image = self._store.image
        questions = self._recoveries.questions(image)
        await asyncio.gather(
            *(self._ask_broker(image, broker_id, asked) for broker_id, asked in questions.items())
        )
        if self._decide(self._store.image, 0).records:
            outcomes = await self._store.submit(self._decide)
            self._is_search_due = True
            _log_outcomes(outcomes)
        self._warn_of_missing()

    def _decide(self, image: Image, _: int) -> CommandResult[list[RecoveredPartition]]:
        return self._recoveries.decide(image, self._clock.now_ms())

    async def _ask_broker(
        self, image: Image, broker_id: int, questions: Sequence[LogEndQuestion]
    ) -> None:
        broker_epoch = image.brokers[broker_id].epoch
        for first in range(0, len(questions), _QUESTIONS_MAX):
            asked = {
                question.partition: question
                for question in questions[first : first + _QUESTIONS_MAX]
            }
            try:
                response = await self._brokers.ask(broker_id, _request(asked), _ASK_SECONDS)
            except HeadraceError as error:
                logger.info("broker %d did not tell where its logs end: %s", broker_id, error)
                return
            for partition, log_end in _log_ends(response):
                question = asked.get(partition)
                if question is not None:
                    self._recoveries.answer(question, broker_id, broker_epoch, log_end)

    def _warn_of_missing(self) -> None:
        """Log once the brokers that partitions wait for, if it takes longer than a start."""
        now_ms = self._clock.now_ms()
        if self._waiting_since_ms is None:
            self._waiting_since_ms = now_ms
        if now_ms - self._waiting_since_ms < _PATIENCE_MS:
            return
        waiting = self._recoveries.waiting(self._store.image)
        missing = frozenset[int]().union(*(recovery.missing for recovery in waiting))
        if missing - self._warned_of:
            logger.warning(
                "%d partitions, %s among them, have no leader: all replicas that had every"
                " acknowledged record restarted uncleanly or lost their logs. Start %s %s, or"
                " restart if a disk failed there: without them the longest log leads %d s after the"
                " first replica was back",
                len(waiting),
                waiting[0].partition,
                "brokers" if len(missing) > 1 else "broker",
                ", ".join(map(str, sorted(missing))),
                self._timeout_ms // 1000,
            )
        self._warned_of = missing


def _log_outcomes(outcomes: Sequence[RecoveredPartition]) -> None:
    """Log the outcome of each election, and the records that may be lost by it."""
    unanimous = [outcome for outcome in outcomes if outcome.is_unanimous]
    for outcome in outcomes:
        if not outcome.is_unanimous:
            logger.log(logging.WARNING if outcome.is_complete else logging.ERROR, "%s", outcome)
    for first in range(0, len(unanimous), _NAMED_PER_LINE):
        logger.warning(
            "every replica of these partitions restarted uncleanly, and all logs end at the same"
            " offset: %s. If machines lost power, acknowledged records after it that no replica"
            " had flushed are lost",
            ", ".join(
                f"{outcome.partition} at {outcome.log_ends[outcome.leader].offset}"
                for outcome in unanimous[first : first + _NAMED_PER_LINE]
            ),
        )


def _request(questions: dict[TopicPartition, LogEndQuestion]) -> ListOffsetsRequest:
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
    """The log ends in a response; a replica that answered with an error is asked again.

    A replica that has no log, and does not wait for its disk, answers with the offset -1.
    """
    return [
        (
            TopicPartition(topic.name, partition.partition_index),
            LogEnd(partition.leader_epoch, partition.offset),
        )
        for topic in response.topics
        for partition in topic.partitions
        if not partition.error_code
    ]
