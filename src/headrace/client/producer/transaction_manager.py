"""The transactions of a producer: requests to its coordinator and to group coordinators."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from typing import Any, Protocol

from headrace.client.backoff import Backoff
from headrace.client.cluster import ClusterClient
from headrace.client.consumer.consumer_protocol import numbers_by_topic
from headrace.client.coordinator_lookup import CoordinatorLookup, CoordinatorType
from headrace.client.errors import TimedOut, TransactionAborted, failure
from headrace.client.metrics import ProducerMetrics
from headrace.client.producer.accumulator import Accumulator
from headrace.client.producer.batches import NOBODY, ProducerBatch, ProducerIdentity
from headrace.client.producer.transaction_state import (
    FENCED,
    NOT_COMMITTED,
    NOTHING_TO_ABORT,
    TransactionPhase,
    TransactionState,
    is_fatal,
)
from headrace.client.producer_options import ProducerOptions
from headrace.client.types import ConsumerGroupMetadata, OffsetAndMetadata
from headrace.errors import ErrorCode, HeadraceError, KafkaError, Subject
from headrace.protocol.apis import Api
from headrace.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from headrace.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
)
from headrace.protocol.messages.end_txn import EndTxnRequest
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest
from headrace.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from headrace.protocol.schema import Message
from headrace.types import TopicPartition


def add_partitions_request(
    transactional_id: str, identity: ProducerIdentity, partitions: Iterable[TopicPartition]
) -> AddPartitionsToTxnRequest:
    """Add partitions to a transaction, in the version for clients; newer ones are for brokers."""
    return AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=transactional_id,
        v3_and_below_producer_id=identity.producer_id,
        v3_and_below_producer_epoch=identity.epoch,
        v3_and_below_topics=[
            AddPartitionsToTxnTopic(name=name, partitions=numbers)
            for name, numbers in numbers_by_topic(partitions).items()
        ],
    )


def added_error(response: Any) -> KafkaError | None:
    """The most severe error of an AddPartitionsToTxn response, or None."""
    return _worst(
        (topic.name, partition.partition_index, partition.partition_error_code)
        for topic in response.results_by_topic_v3_and_below
        for partition in topic.results_by_partition
    )


def add_offsets_request(
    transactional_id: str, identity: ProducerIdentity, group_id: str
) -> AddOffsetsToTxnRequest:
    """Announce offsets of a group in a transaction."""
    return AddOffsetsToTxnRequest(
        transactional_id=transactional_id,
        producer_id=identity.producer_id,
        producer_epoch=identity.epoch,
        group_id=group_id,
    )


def offsets_request(
    transactional_id: str,
    identity: ProducerIdentity,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
    group: ConsumerGroupMetadata,
) -> TxnOffsetCommitRequest:
    """Commit offsets of a group in a transaction."""
    return TxnOffsetCommitRequest(
        transactional_id=transactional_id,
        group_id=group.group_id,
        producer_id=identity.producer_id,
        producer_epoch=identity.epoch,
        generation_id=group.generation_id,
        member_id=group.member_id,
        group_instance_id=group.group_instance_id,
        topics=[
            TxnOffsetCommitRequestTopic(
                name=name,
                partitions=[
                    _offset(number, offsets[TopicPartition(name, number)]) for number in numbers
                ],
            )
            for name, numbers in numbers_by_topic(offsets).items()
        ],
    )


def offsets_error(response: Any) -> KafkaError | None:
    """The most severe error of a TxnOffsetCommit response, or None."""
    return _worst(
        (topic.name, partition.partition_index, partition.error_code)
        for topic in response.topics
        for partition in topic.partitions
    )


def _offset(number: int, committed: OffsetAndMetadata) -> TxnOffsetCommitRequestPartition:
    return TxnOffsetCommitRequestPartition(
        partition_index=number,
        committed_offset=committed.offset,
        committed_leader_epoch=committed.leader_epoch,
        committed_metadata=committed.metadata,
    )


def _worst(codes: Iterable[tuple[str, int, int]]) -> KafkaError | None:
    """The first fatal error, which makes retrying the others useless; else a retriable one."""
    passing: KafkaError | None = None
    for topic, number, code in codes:
        error = failure(code, subject=Subject("partition", str(TopicPartition(topic, number))))
        if error is None:
            continue
        if not error.code.retriable and error.code is not ErrorCode.OPERATION_NOT_ATTEMPTED:
            return error
        if passing is None or passing.code is ErrorCode.OPERATION_NOT_ATTEMPTED:
            passing = error
    return passing


# The transactions of a producer, with its coordinator and with the coordinators of groups.
#
# Rule: a transaction ends only when no batch of it is in flight any more, so that nothing of it can
# come late and into the next one. Any unknown outcome dooms the transaction.


# Requests that wait for replicas must not delay metadata requests.
LANE = "transactions"
FEATURE = "transaction.version"
VERSION_MAX = 2

# The newest request versions for transactions of version 1.
PRODUCE_V1_MAX = 11
_ADD_PARTITIONS_MAX = 3
_END_V1_MAX = 4
_OFFSETS_V1_MAX = 4
# The first version whose response has the producer's next epoch.
_END_V2_MIN = 5

# The pause while the last transaction's markers are being written, which is short.
MARKERS_BACKOFF = Backoff(0.01, 0.2)

_log = logging.getLogger("headrace.producer")


class TransactionSender(Protocol):
    """The part of the sender that transactions use."""

    def start(self, coroutine: Coroutine[Any, Any, None]) -> "asyncio.Task[None]": ...

    def use_identity(self, identity: ProducerIdentity) -> None: ...

    def drop_unsent(self, error: Exception) -> None: ...

    def partitions_added(self) -> None: ...

    async def settled(self) -> None: ...


class TransactionManager:
    """The transactions of one producer. For the loop of its sender; one call at a time.

    `version_max` limits the version of transactions, for brokers that support several.
    """

    def __init__(
        self,
        cluster: ClusterClient,
        accumulator: Accumulator,
        options: ProducerOptions,
        metrics: ProducerMetrics,
        sending: TransactionSender,
    ) -> None:
        assert options.transactional_id is not None
        self.version_max = VERSION_MAX
        self.state = TransactionState(options.transactional_id)
        self._cluster = cluster
        self._accumulator = accumulator
        self._options = options
        self._metrics = metrics
        self._sending = sending
        self._identity: ProducerIdentity = NOBODY
        self._coordinators = CoordinatorLookup(cluster, CoordinatorType.TRANSACTION)
        self._groups = CoordinatorLookup(cluster)
        self._calls = asyncio.Lock()
        self._wanted: dict[TopicPartition, None] = {}
        self._adding: asyncio.Task[None] | None = None
        self._refusal: Callable[[], Exception] | None = None
        self._refuse()

    # -- for the application

    async def init(self) -> None:
        """Acquire the transactional id, unless that is done."""
        async with self._calls:
            self.state.check_usable()
            if self.state.phase is TransactionPhase.UNINITIALIZED:
                await self._init(NOBODY, self._deadline())

    async def begin(self) -> None:
        """Begin a transaction, after aborting a failed one."""
        async with self._calls:
            self.state.check_begin()
            if self.state.phase in (TransactionPhase.ABORTABLE_ERROR, TransactionPhase.ABORTING):
                await self._abort(self._deadline())
            elif self.state.phase is TransactionPhase.UNINITIALIZED:
                await self._init(NOBODY, self._deadline())
            self.state.begin()
            self._accept()

    async def send_offsets(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], group: ConsumerGroupMetadata
    ) -> None:
        """Add the offsets of a group to the transaction."""
        async with self._calls:
            self.state.check_in_transaction("send_offsets_to_transaction()")
            if not offsets:
                return
            deadline = self._deadline()
            self.state.is_started = True
            is_done = False
            try:
                if self.state.version == 1:
                    await self._add_group(group.group_id, deadline)
                await self._commit_offsets(offsets, group, deadline)
                is_done = True
            except HeadraceError as error:
                raise self._failed(error) from None
            finally:
                if not is_done:
                    # Interrupted: the offsets may or may not be part of the transaction.
                    self._doom(TimedOut("sending offsets to the transaction was interrupted"))

    async def commit(self) -> None:
        """Commit the transaction, once every record in it is written."""
        async with self._calls:
            self.state.begin_commit()
            begun = self._cluster.clock.monotonic()
            self._refuse()
            for delivery in self._accumulator.close_open_batches():
                await delivery.waiter()
            if self.state.phase is not TransactionPhase.COMMITTING:
                raise self.state.failure()
            await self._end(True, self._deadline())
            self._metrics.transaction_done(True, self._cluster.clock.monotonic() - begun)

    async def abort(self, timeout_s: float | None = None) -> None:
        """Abort the transaction; unsent records are dropped."""
        async with self._calls:
            await self._abort(self._deadline(timeout_s))

    async def close(self, timeout_s: float) -> None:
        """Abort an open transaction, if possible, when the application closes the producer."""
        if not self.state.is_open:
            return
        try:
            async with asyncio.timeout(timeout_s):
                await self.abort(timeout_s)
            _log.warning("%s: closed in a transaction, which is aborted", self._options.client_id)
        except (HeadraceError, TimeoutError) as error:
            _log.warning("%s: a transaction is left open: %s", self._options.client_id, error)

    # -- for the sender

    def may_send(self, tp: TopicPartition) -> bool:
        """Whether a partition is in the transaction; if not, it is added, unless the transaction
        failed.
        """
        if tp in self.state.partitions:
            return True
        self.state.is_started = True
        if self.state.version > 1:
            self.state.add([tp])
            return True
        self._wanted[tp] = None
        if self._adding is None:
            self._adding = self._sending.start(self._add_partitions())
        return False

    def batch_failed(self, batch: ProducerBatch, error: Exception) -> None:
        """Note that a batch failed, or that its outcome is unknown."""
        if batch.encoded is not None:
            self.state.needs_epoch = True
        assert isinstance(error, HeadraceError), error
        # A leader with a newer epoch may have a marker of the coordinator's own: aborting will
        # tell.
        if is_fatal(error, fenced=frozenset((ErrorCode.PRODUCER_FENCED,))):
            self._break_off(error)
        else:
            self._doom(error)

    # -- the transactional id

    async def _init(self, known_as: ProducerIdentity, deadline: float) -> None:
        """Acquire a producer id and an epoch; `known_as` is the present identity, if any."""
        request = InitProducerIdRequest(
            transactional_id=self.state.transactional_id,
            transaction_timeout_ms=self._options.transaction_timeout_ms,
            producer_id=known_as.producer_id,
            producer_epoch=known_as.epoch,
        )

        async def attempt(node: int, until: float) -> Any:
            response = await self._call(node, request, until)
            connection = await self._cluster.connection(node, until, lane=LANE)
            has_v2 = (
                connection.features.get(FEATURE, 0) >= VERSION_MAX
                and connection.version_of(Api.END_TXN) >= _END_V2_MIN
            )
            self.state.version = min(VERSION_MAX if has_v2 else 1, self.version_max)
            return response

        try:
            response = await self._call_coordinator(attempt, deadline)
        except KafkaError as error:
            if known_as != NOBODY or is_fatal(error):
                raise self._break_off(error) from None
            if error.code is ErrorCode.INVALID_TRANSACTION_TIMEOUT:
                raise KafkaError(
                    error.code,
                    f"transaction_timeout_ms ({self._options.transaction_timeout_ms}) is more than"
                    " the broker's transaction.max.timeout.ms",
                    advice="lower it, or raise that",
                ) from None
            raise
        self._take_identity(response.producer_id, response.producer_epoch)
        self.state.end()

    def _take_identity(self, producer_id: int, epoch: int) -> None:
        self._identity = ProducerIdentity(producer_id, epoch)
        self._sending.use_identity(self._identity)

    # -- the content of a transaction

    async def _add_partitions(self) -> None:
        """Add new partitions to the transaction at the coordinator, until there are none left."""
        try:
            while self._wanted and not self.state.is_doomed:
                partitions, self._wanted = list(self._wanted), {}
                request = add_partitions_request(
                    self.state.transactional_id, self._identity, partitions
                )
                await self._ask_for(request, added_error, _ADD_PARTITIONS_MAX)
                self.state.add(partitions)
                self._sending.partitions_added()
        except HeadraceError as error:
            self._failed(error)
        finally:
            self._adding = None
            self._wanted.clear()

    async def _add_group(self, group_id: str, deadline: float) -> None:
        if group_id not in self.state.groups:
            request = add_offsets_request(self.state.transactional_id, self._identity, group_id)
            await self._ask_for(request, _error_of, deadline=deadline)
            self.state.groups.add(group_id)

    async def _commit_offsets(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        group: ConsumerGroupMetadata,
        deadline: float,
    ) -> None:
        request = offsets_request(self.state.transactional_id, self._identity, offsets, group)
        most = _OFFSETS_V1_MAX if self.state.version == 1 else None

        async def attempt(node: int, until: float) -> Any:
            return await self._call(node, request, until, offsets_error, most)

        await self._groups.ask_one(group.group_id, attempt, deadline)

    # -- the end of a transaction

    async def _abort(self, deadline: float) -> None:
        self.state.begin_abort()
        begun = self._cluster.clock.monotonic()
        self._refuse()
        self._sending.drop_unsent(TransactionAborted("the transaction was aborted"))
        if self._adding is not None:
            # Whether these partitions were added is unknown.
            self.state.needs_epoch = True
            self._adding.cancel()
            await asyncio.gather(self._adding, return_exceptions=True)
            # A task that is cancelled before it started does not run its own cleanup.
            self._adding = None
            self._wanted.clear()
        try:
            async with asyncio.timeout(max(deadline - self._cluster.clock.monotonic(), 0)):
                await self._sending.settled()
        except TimeoutError:
            raise TimedOut(
                "not aborted within max_block_ms: records are in flight to brokers that do not"
                " answer; call abort_transaction() again"
            ) from None
        await self._end(False, deadline)
        self._metrics.transaction_done(False, self._cluster.clock.monotonic() - begun)

    async def _end(self, committed: bool, deadline: float) -> None:
        if self.state.is_started:
            self.state.is_commit_asked = committed
            try:
                await self._request_end(committed, deadline)
            except KafkaError as error:
                self._end_refused(error, committed)
            self.state.is_started = False
        if self.state.needs_epoch:
            await self._init(self._identity, deadline)
        self.state.end()
        self._refuse()

    async def _request_end(self, committed: bool, deadline: float) -> None:
        is_v1 = self.state.version == 1
        request = EndTxnRequest(
            transactional_id=self.state.transactional_id,
            producer_id=self._identity.producer_id,
            producer_epoch=self._identity.epoch,
            committed=committed,
        )
        response = await self._ask_for(
            request, _error_of, _END_V1_MAX if is_v1 else None, deadline=deadline
        )
        if response.producer_id >= 0 and not is_v1:
            self._take_identity(response.producer_id, response.producer_epoch)
            self.state.needs_epoch = False

    def _end_refused(self, error: KafkaError, committed: bool) -> None:
        if committed and error.code in NOT_COMMITTED:
            self.state.is_commit_asked = False
            self._doom(_explained(error))
            raise self.state.failure() from None
        if not committed and error.code in NOTHING_TO_ABORT:
            self.state.needs_epoch = True
            return
        raise self._break_off(error) from None

    # -- failing

    def _failed(self, error: HeadraceError) -> HeadraceError:
        """Note a coordinator's refusal; returns the error for the application."""
        if is_fatal(error, fenced=FENCED):
            return self._break_off(error)
        self._doom(error)
        return (
            self.state.failure() if self.state.phase is TransactionPhase.ABORTABLE_ERROR else error
        )

    def _doom(self, error: HeadraceError) -> None:
        if self.state.fail(error):
            self._refuse()
            self._sending.drop_unsent(self.state.failure())

    def _break_off(self, error: HeadraceError) -> HeadraceError:
        if self.state.phase is not TransactionPhase.FATAL_ERROR:
            _log.warning("%s: %s", self._options.client_id, self.state.break_off(error))
            self._refuse()
            self._sending.drop_unsent(self.state.failure())
        return self.state.failure()

    def _refuse(self) -> None:
        """Refuse records, for the reason in the state; a closed producer keeps its own reason."""
        refusal = self.state.failure
        if self._accumulator.refuse(refusal, self._refusal):
            self._refusal = refusal

    def _accept(self) -> None:
        if not self._accumulator.refuse(None, self._refusal):
            assert self._accumulator.refusal is not None
            raise self._accumulator.refusal()
        self._refusal = None

    # -- asking

    def _deadline(self, timeout_s: float | None = None) -> float:
        most_s = self._options.max_block_ms / 1000
        return self._cluster.deadline(most_s if timeout_s is None else min(timeout_s, most_s))

    async def _ask_for(
        self,
        request: Message,
        error_of: Callable[[Any], KafkaError | None],
        version_max: int | None = None,
        *,
        deadline: float | None = None,
    ) -> Any:
        """The final response of the transaction's coordinator."""

        async def attempt(node: int, until: float) -> Any:
            return await self._call(node, request, until, error_of, version_max)

        return await self._call_coordinator(
            attempt, self._deadline() if deadline is None else deadline
        )

    async def _call_coordinator(
        self, ask: Callable[[int, float], Awaitable[Any]], deadline: float
    ) -> Any:
        return await self._coordinators.ask_one(self.state.transactional_id, ask, deadline)

    async def _call(
        self,
        node: int,
        request: Message,
        deadline: float,
        error_of: Callable[[Any], KafkaError | None] | None = None,
        version_max: int | None = None,
    ) -> Any:
        """Send a request to a broker, retrying while it completes the last transaction."""
        attempts = 0
        while True:
            until = min(deadline, self._cluster.deadline())
            response = await self._cluster.call(
                request, until, node, lane=LANE, version_max=version_max
            )
            error = (error_of or _error_of)(response)
            if error is None:
                return response
            pause_s = MARKERS_BACKOFF.delay_s(attempts, self._cluster.rng)
            late = self._cluster.clock.monotonic() + pause_s >= deadline
            if error.code is not ErrorCode.CONCURRENT_TRANSACTIONS or late:
                raise error
            attempts += 1
            await asyncio.sleep(pause_s)


def _explained(error: KafkaError) -> KafkaError:
    if error.code is not ErrorCode.INVALID_TXN_STATE:
        return error
    return KafkaError(
        error.code,
        "the coordinator has aborted it; most likely it was open for longer than"
        " transaction_timeout_ms",
    )


def _error_of(response: Any) -> KafkaError | None:
    return failure(response.error_code, subject=Subject("transaction"))
