"""Verification of transactions with their coordinators before an append (KIP-890).

A leader appends to a transaction only if its coordinator has the partition in it. Otherwise a batch
that was delayed until after the end of its transaction would begin a transaction that is never
ended.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import NamedTuple, TypeAlias, TypeVar

from headrace.broker.cluster.channels import BrokerBatches, BrokerChannels
from headrace.broker.coordination.runtime import CoordinatorRuntime, ShardT
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

# A round of markers takes about as long. Waiting for it here is faster than a retry by the client,
# which waits for 20 to 100 ms.
_BACKOFF_SECONDS = (0.002, 0.004, 0.008, 0.016, 0.032, 0.064)

Response = TypeVar("Response")


async def retry_while_concurrent_transaction(
    ask: Callable[[], Awaitable[Response]], is_concurrent: Callable[[Response], bool]
) -> Response:
    """The response to a request, repeated for a while until the previous transaction has ended."""
    response = await ask()
    for seconds in _BACKOFF_SECONDS:
        if not is_concurrent(response):
            break
        await asyncio.sleep(seconds)
        response = await ask()
    return response


ErrorsByPartition: TypeAlias = dict[TopicPartition, ErrorCode]

_REQUEST_S_MAX = 5.0
_QUESTIONS_MAX = 10_000
_BATCH_MAX = 500


class _VerificationRequest(NamedTuple):
    transactional_id: str
    producer_id: int
    producer_epoch: int
    add: bool


class _PendingVerification(NamedTuple):
    question: _VerificationRequest
    partitions: tuple[TopicPartition, ...]
    verdicts: asyncio.Future[ErrorsByPartition]


class TransactionVerifier:
    """Sends verifications to coordinators in batches. Used on the event loop's thread only."""

    def __init__(
        self, coordinators: CoordinatorRuntime[ShardT], store: MetadataStore, peers: BrokerChannels
    ) -> None:
        self._partition_of = coordinators.partition_of
        self._topic = coordinators.topic
        self._store = store
        self._peers = peers
        self._outboxes: BrokerBatches[_PendingVerification] = BrokerBatches(
            self._send, batch_max=_BATCH_MAX
        )
        self._stopped = False

    async def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[TopicPartition],
        *,
        add: bool,
    ) -> ErrorsByPartition:
        """For each partition, NONE if it is part of the producer's open transaction.

        With `add` the partitions are added to it, and the first begins it, which clients of
        transactions version 2 leave to the broker. Every failure is a verdict, too: a coordinator
        that cannot be reached is NETWORK_EXCEPTION, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR or
        COORDINATOR_LOAD_IN_PROGRESS. PRODUCER_FENCED is reported as INVALID_PRODUCER_EPOCH.
        """
        question = _VerificationRequest(transactional_id, producer_id, producer_epoch, add)
        if not add:
            return await self._request_verification(question, tuple(partitions))
        return await retry_while_concurrent_transaction(
            lambda: self._request_verification(question, tuple(partitions)),
            lambda verdicts: ErrorCode.CONCURRENT_TRANSACTIONS in verdicts.values(),
        )

    def brokers_changed(self) -> None:
        """Close channels to brokers that are gone or were restarted."""
        self._peers.brokers_changed()

    async def stop(self) -> None:
        """Answer all waiting calls; no further request is sent."""
        self._stopped = True
        _answer(await self._outboxes.stop(), {}, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        self._peers.close()

    async def _request_verification(
        self, question: _VerificationRequest, partitions: tuple[TopicPartition, ...]
    ) -> ErrorsByPartition:
        coordinator_id = self._coordinator_of(question.transactional_id)
        if coordinator_id == NO_LEADER or self._stopped or len(self._outboxes) >= _QUESTIONS_MAX:
            return dict.fromkeys(partitions, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        verdicts: asyncio.Future[ErrorsByPartition] = asyncio.get_running_loop().create_future()
        self._outboxes.add(coordinator_id, _PendingVerification(question, partitions, verdicts))
        try:
            async with asyncio.timeout(_REQUEST_S_MAX * 2):
                return await verdicts
        except TimeoutError:
            return dict.fromkeys(partitions, ErrorCode.NETWORK_EXCEPTION)

    def _coordinator_of(self, transactional_id: str) -> int:
        topic = self._store.image.topics.get(self._topic)
        if topic is None:
            return NO_LEADER
        index = self._partition_of(transactional_id)
        return topic.partitions[index].leader if index < len(topic.partitions) else NO_LEADER

    async def _send(self, coordinator_id: int, batch: list[_PendingVerification]) -> None:
        """Send a batch: each transactional id once, as results are matched by it."""
        questions: dict[str, _VerificationRequest] = {}
        requested: dict[_VerificationRequest, dict[TopicPartition, None]] = {}
        sent = []
        for asked in batch:
            if asked.verdicts.done():
                continue  # The caller does not wait any more.
            question = asked.question
            if questions.setdefault(question.transactional_id, question) != question:
                self._outboxes.add(coordinator_id, asked)
                continue
            requested.setdefault(question, {}).update(dict.fromkeys(asked.partitions))
            sent.append(asked)
        if not sent:
            return
        try:
            response: AddPartitionsToTxnResponse = await self._peers.ask(
                coordinator_id, _request(requested), _REQUEST_S_MAX
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
                result.transactional_id: _verdicts(result)
                for result in response.results_by_transaction
            }
            _answer(sent, found, error_code(response.error_code) or ErrorCode.NETWORK_EXCEPTION)


def _request(
    requested: dict[_VerificationRequest, dict[TopicPartition, None]],
) -> AddPartitionsToTxnRequest:
    return AddPartitionsToTxnRequest(
        transactions=[
            AddPartitionsToTxnTransaction(
                transactional_id=question.transactional_id,
                producer_id=question.producer_id,
                producer_epoch=question.producer_epoch,
                verify_only=not question.add,
                topics=_by_topic(partitions),
            )
            for question, partitions in requested.items()
        ]
    )


def _by_topic(partitions: Iterable[TopicPartition]) -> list[AddPartitionsToTxnTopic]:
    topics: dict[str, list[int]] = {}
    for name in partitions:
        topics.setdefault(name.topic, []).append(name.partition)
    return [
        AddPartitionsToTxnTopic(name=topic, partitions=indexes) for topic, indexes in topics.items()
    ]


def _verdicts(result: AddPartitionsToTxnResult) -> ErrorsByPartition:
    verdicts = {}
    for topic in result.topic_results:
        for partition in topic.results_by_partition:
            code = error_code(partition.partition_error_code)
            if code is ErrorCode.PRODUCER_FENCED:
                # The code that producers expect from the leader of a partition.
                code = ErrorCode.INVALID_PRODUCER_EPOCH
            verdicts[TopicPartition(topic.name, partition.partition_index)] = code
    return verdicts


def _answer(
    sent: list[_PendingVerification], found: dict[str, ErrorsByPartition], otherwise: ErrorCode
) -> None:
    for asked in sent:
        if asked.verdicts.done():
            continue
        verdicts = found.get(asked.question.transactional_id, {})
        asked.verdicts.set_result(
            {name: verdicts.get(name, otherwise) for name in asked.partitions}
        )
