"""Asks the coordinator of a transaction whether a partition is part of it (KIP-890)."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import NamedTuple, TypeAlias, TypeVar

from headrace.broker.cluster.channels import Outboxes, Peers
from headrace.broker.coordination.runtime import Coordinators, ShardT
from headrace.broker.metadata_store import MetadataStore
from headrace.errors import ErrorCode, HeadraceError, KafkaError, error_code
from headrace.metadata.image import NO_LEADER
from headrace.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from headrace.types import TopicPartition

# A round of markers takes about as long. Waiting for it here is quicker than having clients ask
# again, who wait for 20 to 100 ms in between.
_BACKOFF_SECONDS = (0.002, 0.004, 0.008, 0.016, 0.032, 0.064)

Response = TypeVar("Response")


async def unless_busy(
    ask: Callable[[], Awaitable[Response]], is_busy: Callable[[Response], bool]
) -> Response:
    """What is answered when the transaction before has all its markers, if that is soon."""
    response = await ask()
    for seconds in _BACKOFF_SECONDS:
        if not is_busy(response):
            break
        await asyncio.sleep(seconds)
        response = await ask()
    return response


# Asks the coordinator of a transaction whether a partition is part of it (KIP-890).
#
# A leader appends to a transaction only what its coordinator knows of. Otherwise a batch that was
# delayed until after the end of its transaction would begin one that nobody ever ends.


Verdicts: TypeAlias = dict[TopicPartition, ErrorCode]

_ASK_SECONDS = 5.0
_QUESTIONS_MAX = 10_000
_BATCH_MAX = 500


class _Question(NamedTuple):
    transactional_id: str
    producer_id: int
    producer_epoch: int
    add: bool


class _Asked(NamedTuple):
    question: _Question
    partitions: tuple[TopicPartition, ...]
    verdicts: asyncio.Future[Verdicts]


class Verifier:
    """Used on the event loop's thread only."""

    def __init__(
        self, coordinators: Coordinators[ShardT], store: MetadataStore, peers: Peers
    ) -> None:
        self._partition_of = coordinators.partition_of
        self._topic = coordinators.topic
        self._store = store
        self._peers = peers
        self._outboxes: Outboxes[_Asked] = Outboxes(self._send, batch_max=_BATCH_MAX)
        self._stopped = False

    async def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[TopicPartition],
        *,
        add: bool,
    ) -> Verdicts:
        """For each partition, NONE if it is part of the producer's transaction that is open.

        With `add` partitions become part of it, and the first one begins it: what clients of
        transactions version 2 leave to the broker. Whatever fails is a verdict, too: a coordinator
        that cannot be asked is NETWORK_EXCEPTION, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR or
        COORDINATOR_LOAD_IN_PROGRESS. PRODUCER_FENCED comes as INVALID_PRODUCER_EPOCH.
        """
        question = _Question(transactional_id, producer_id, producer_epoch, add)
        if not add:
            return await self._ask(question, tuple(partitions))
        return await unless_busy(
            lambda: self._ask(question, tuple(partitions)),
            lambda verdicts: ErrorCode.CONCURRENT_TRANSACTIONS in verdicts.values(),
        )

    def brokers_changed(self) -> None:
        """Wait no more for brokers that are gone."""
        self._peers.brokers_changed()

    async def stop(self) -> None:
        """Answer everybody who waits; nothing is asked after that."""
        self._stopped = True
        _answer(await self._outboxes.stop(), {}, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        self._peers.close()

    async def _ask(self, question: _Question, partitions: tuple[TopicPartition, ...]) -> Verdicts:
        coordinator_id = self._coordinator_of(question.transactional_id)
        if coordinator_id == NO_LEADER or self._stopped or len(self._outboxes) >= _QUESTIONS_MAX:
            return dict.fromkeys(partitions, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        verdicts: asyncio.Future[Verdicts] = asyncio.get_running_loop().create_future()
        self._outboxes.add(coordinator_id, _Asked(question, partitions, verdicts))
        try:
            async with asyncio.timeout(_ASK_SECONDS * 2):
                return await verdicts
        except TimeoutError:
            return dict.fromkeys(partitions, ErrorCode.NETWORK_EXCEPTION)

    def _coordinator_of(self, transactional_id: str) -> int:
        topic = self._store.image.topics.get(self._topic)
        if topic is None:
            return NO_LEADER
        index = self._partition_of(transactional_id)
        return topic.partitions[index].leader if index < len(topic.partitions) else NO_LEADER

    async def _send(self, coordinator_id: int, batch: list[_Asked]) -> None:
        """Ask for a batch: each transactional id once, as the answer tells them apart by it."""
        questions: dict[str, _Question] = {}
        wanted: dict[_Question, dict[TopicPartition, None]] = {}
        sent = []
        for asked in batch:
            if asked.verdicts.done():
                continue  # Nobody waits for it any more.
            question = asked.question
            if questions.setdefault(question.transactional_id, question) != question:
                self._outboxes.add(coordinator_id, asked)
                continue
            wanted.setdefault(question, {}).update(dict.fromkeys(asked.partitions))
            sent.append(asked)
        if not sent:
            return
        try:
            response: AddPartitionsToTxnResponse = await self._peers.ask(
                coordinator_id, _request(wanted), _ASK_SECONDS
            )
        except asyncio.CancelledError:
            _answer(sent, {}, ErrorCode.COORDINATOR_NOT_AVAILABLE)
            raise
        except KafkaError as error:
            _answer(sent, {}, error.code)
        except HeadraceError:
            _answer(sent, {}, ErrorCode.NETWORK_EXCEPTION)
        else:
            found = {
                one.transactional_id: _verdicts(one) for one in response.results_by_transaction
            }
            _answer(sent, found, error_code(response.error_code) or ErrorCode.NETWORK_EXCEPTION)


def _request(wanted: dict[_Question, dict[TopicPartition, None]]) -> AddPartitionsToTxnRequest:
    return AddPartitionsToTxnRequest(
        transactions=[
            AddPartitionsToTxnTransaction(
                transactional_id=question.transactional_id,
                producer_id=question.producer_id,
                producer_epoch=question.producer_epoch,
                verify_only=not question.add,
                topics=_by_topic(partitions),
            )
            for question, partitions in wanted.items()
        ]
    )


def _by_topic(partitions: Iterable[TopicPartition]) -> list[AddPartitionsToTxnTopic]:
    topics: dict[str, list[int]] = {}
    for name in partitions:
        topics.setdefault(name.topic, []).append(name.partition)
    return [
        AddPartitionsToTxnTopic(name=topic, partitions=indexes) for topic, indexes in topics.items()
    ]


def _verdicts(result: AddPartitionsToTxnResult) -> Verdicts:
    verdicts = {}
    for topic in result.topic_results:
        for one in topic.results_by_partition:
            code = error_code(one.partition_error_code)
            if code is ErrorCode.PRODUCER_FENCED:
                # What producers expect to hear from the leader of a partition.
                code = ErrorCode.INVALID_PRODUCER_EPOCH
            verdicts[TopicPartition(topic.name, one.partition_index)] = code
    return verdicts


def _answer(sent: list[_Asked], found: dict[str, Verdicts], otherwise: ErrorCode) -> None:
    for asked in sent:
        if asked.verdicts.done():
            continue
        verdicts = found.get(asked.question.transactional_id, {})
        asked.verdicts.set_result(
            {name: verdicts.get(name, otherwise) for name in asked.partitions}
        )
