"""Produce: appends batches to partitions and answers when they are as safe as `acks` demands.

With acks=all a batch must be committed, with acks=1 the leader's own copy counts. The first batch
of a transaction in a partition is verified with its coordinator before.
"""

import asyncio
from collections.abc import Awaitable, Iterator
from typing import TYPE_CHECKING, NamedTuple, Self, TypeAlias

from headrace.broker.cluster.endpoints import HINTED, leader_hint
from headrace.broker.coordination.transaction_verifier import ErrorsByPartition
from headrace.broker.replication.partition import Partition, RecordsRefused
from headrace.broker.request import RequestContext
from headrace.errors import CorruptBatch, ErrorCode, KafkaError, ProtocolError, error_code
from headrace.metadata.topic_names import is_internal
from headrace.protocol.batch import (
    RefusedBatch,
    claimed_compression,
    claimed_producer,
    claims_transaction,
    validate,
)
from headrace.protocol.compression import Compression
from headrace.protocol.messages.produce import (
    BatchIndexAndErrorMessage,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from headrace.types import Buffer, TopicPartition

if TYPE_CHECKING:
    from headrace.broker.node import Node

# Clients of transactions version 2 leave adding partitions to the leader.
_ADDING_SINCE = 12
_ABORTABLE_SINCE = 11
_TOPIC_IDS_SINCE = 13
# Older clients may not handle these; they retry after NOT_ENOUGH_REPLICAS, without a metadata
# request. A partition that is led here exists, whatever the coordinator knows.
_PASSING = frozenset(
    (
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.OPERATION_NOT_ATTEMPTED,
        ErrorCode.UNSUPPORTED_VERSION,  # A coordinator that is still to be upgraded.
    )
)


class BatchProducer(NamedTuple):
    """The producer of the batches in a request."""

    producer_id: int
    producer_epoch: int


class _VerifiedState(NamedTuple):
    """A producer's state at verification; if it changed, the transaction may have ended."""

    leader_epoch: int
    marker_count: int


def is_transactional(records: Buffer | None) -> bool:
    """Whether the header of produced records marks them as part of a transaction."""
    return records is not None and claims_transaction(records)


class VerifiedAppends:
    """The transactional batches of a Produce request, and the check whether they may be appended.

    Rule: a batch is appended to a log in which its transaction is open already, or if the
    coordinator has confirmed it and no marker was written since.
    """

    def __init__(
        self,
        node: "Node",
        transactional_id: str,
        version: int,
        producer: BatchProducer,
        names: list[TopicPartition],
    ) -> None:
        self.producer = producer
        self._node = node
        self._transactional_id = transactional_id
        self._version = version
        self._names = names
        self._verdicts: ErrorsByPartition = {}
        self._requested_in: dict[TopicPartition, _VerifiedState] = {}

    @classmethod
    def from_request(cls, node: "Node", request: ProduceRequest, version: int) -> Self | None:
        """The transactional batches of a request; None if it has none."""
        if request.transactional_id is None:
            return None
        producers: dict[BatchProducer, None] = {}
        names = []
        for name, records in _batches(node, request, version):
            producer = claimed_producer(records) if is_transactional(records) else None
            if producer is not None:
                producers[BatchProducer(*producer[:2])] = None
                names.append(name)
        if not producers:
            return None
        if len(producers) > 1:
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_ID_MAPPING, "one transaction has one producer id"
            )
        return cls(node, request.transactional_id, version, next(iter(producers)), names)

    @property
    def unverified(self) -> list[TopicPartition]:
        """The partitions led here whose logs do not have the transaction as open yet."""
        if not self._adds and not self._node.config.transaction_partition_verification_enable:
            return []
        found = []
        for name in self._names:
            try:
                partition = self._node.replicas.leader_of(name.topic, name.partition)
            except KafkaError:
                continue  # The append will be refused with this error.
            if not partition.log.producers.has_open_transaction(*self.producer):
                found.append(name)
        return found

    async def verify(self) -> None:
        """Verify the unverified partitions with the coordinator."""
        names = self.unverified
        if not names:
            return
        for name in names:
            partition = self._node.replicas.leader_of(name.topic, name.partition)
            self._requested_in[name] = self._state_of(partition)
        self._verdicts = await self._node.verifier.verify(
            self._transactional_id, *self.producer, names, add=self._adds
        )

    def check(self, partition: Partition, records: Buffer) -> None:
        """KafkaError if a batch of the request must not be appended to a partition."""
        producers = partition.log.producers
        if producers.has_open_transaction(*self.producer):
            return
        if not self._adds and not self._node.config.transaction_partition_verification_enable:
            return
        name = partition.name
        code = self._verdicts.get(name, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if code is not ErrorCode.NONE:
            raise self._refusal(code)
        before, now = self._requested_in[name], self._state_of(partition)
        if before.leader_epoch != now.leader_epoch:
            # A leader in between may have ended the transaction. The client will retry.
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        # Under version 2 the epoch tells: the marker that ends this transaction raises it, and a
        # repeated marker of the previous transaction does not.
        if not self._adds and before.marker_count != now.marker_count:
            raise KafkaError(
                ErrorCode.INVALID_TXN_STATE, "the transaction ended while it was looked up"
            )
        if self._adds and producers.get(self.producer.producer_id) is None:
            # Every transaction of version 2 has an epoch of its own, and an epoch begins at zero.
            claimed = claimed_producer(records)
            sequence = 0 if claimed is None else claimed[2]
            if sequence:
                raise KafkaError(
                    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                    f"{name} has no record of producer {self.producer.producer_id}, whose"
                    f" transaction has to begin with sequence 0 and not {sequence}",
                )

    def _state_of(self, partition: Partition) -> _VerifiedState:
        producer_id = self.producer.producer_id
        return _VerifiedState(
            partition.leader_epoch, partition.log.producers.marker_count(producer_id)
        )

    @property
    def _adds(self) -> bool:
        return self._version >= _ADDING_SINCE

    def _refusal(self, code: ErrorCode) -> KafkaError:
        detail = f"the coordinator of {self._transactional_id!r} said {code.name}"
        if code in _PASSING or (code is ErrorCode.CONCURRENT_TRANSACTIONS and not self._adds):
            return KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, detail)
        if code is ErrorCode.TRANSACTION_ABORTABLE and self._version < _ABORTABLE_SINCE:
            code = ErrorCode.INVALID_TXN_STATE
        return KafkaError(code, detail)


def _batches(
    node: "Node", request: ProduceRequest, version: int
) -> Iterator[tuple[TopicPartition, Buffer]]:
    for topic in request.topic_data:
        name: str | None = topic.name
        if version >= _TOPIC_IDS_SINCE:
            name = node.replicas.name_of(topic.topic_id)
        if name is not None:
            for data in topic.partition_data:
                yield TopicPartition(name, data.index), data.records or b""


_ACKS = (-1, 0, 1)
_ACKS_ALL = -1
_ZSTD_SINCE = 7
_LEADER_HINTS_SINCE = 10


class _PendingAck(NamedTuple):
    """An append whose response waits until it is as safe as `acks` demands."""

    safe: asyncio.Future[None]
    result: PartitionProduceResponse


class _DelayedProduce(NamedTuple):
    """Appends whose response waits. Not a coroutine, because it may never be awaited."""

    response: ProduceResponse
    pending: list[_PendingAck]


_Produced: TypeAlias = ProduceResponse | _DelayedProduce | None


def produce(
    context: RequestContext, request: ProduceRequest
) -> ProduceResponse | Awaitable[ProduceResponse | None] | None:
    if request.transactional_id is None:
        return _answer(context, request, _produce(context, request, None))
    try:
        appends = VerifiedAppends.from_request(context.node, request, context.version)
        if appends is None:
            return _answer(context, request, _produce(context, request, None))
        queue = context.node.producer_queue
        producer_id = appends.producer.producer_id
        if not queue.is_busy(producer_id) and not appends.unverified:
            return _answer(context, request, _produce(context, request, appends))
        size = _copy_records(request)
        # Queued here, and not when the response is awaited: a batch must not overtake an earlier
        # batch of the same producer.
        appended = queue.submit(
            producer_id, size, lambda: _verify_then_produce(context, request, appends)
        )
    except KafkaError as error:
        return _refuse(context, request, error)
    return _answer_in_turn(context, request, appended)


def _copy_records(request: ProduceRequest) -> int:
    """Copy the records of a request out of its frame, and return their size."""
    size = 0
    for topic in request.topic_data:
        for data in topic.partition_data:
            if data.records is not None:
                size += len(data.records)
                data.records = memoryview(bytearray(data.records))
    return size


async def _verify_then_produce(
    context: RequestContext, request: ProduceRequest, appends: VerifiedAppends
) -> _Produced:
    await appends.verify()
    return _produce(context, request, appends)


async def _answer_in_turn(
    context: RequestContext, request: ProduceRequest, appended: "asyncio.Task[_Produced]"
) -> ProduceResponse | None:
    # Only the append is in order: later requests do not wait until it is committed.
    answer = _answer(context, request, await appended)
    return answer if answer is None or isinstance(answer, ProduceResponse) else await answer


def _answer(
    context: RequestContext, request: ProduceRequest, produced: _Produced
) -> ProduceResponse | Awaitable[ProduceResponse] | None:
    if isinstance(produced, _DelayedProduce):
        return _answer_when_committed(context, *produced, request.timeout_ms)
    return produced


def _refuse(
    context: RequestContext, request: ProduceRequest, error: KafkaError
) -> ProduceResponse | None:
    if error.code.retriable:
        for topic in request.topic_data:
            name = _topic_name(context, topic)
            for data in topic.partition_data:
                _note_refused(context, name, data)
    response = ProduceResponse(
        responses=[
            TopicProduceResponse(
                name=topic.name,
                topic_id=topic.topic_id,
                partition_responses=[
                    _failed(data.index, error.code, error.detail) for data in topic.partition_data
                ],
            )
            for topic in request.topic_data
        ]
    )
    if request.acks == 0:
        _raise_first_error(response)
        return None
    return response


def _produce(
    context: RequestContext, request: ProduceRequest, appends: VerifiedAppends | None
) -> _Produced:
    now_ms = context.node.clock.now_ms()
    pending: list[_PendingAck] = []
    response = ProduceResponse(
        responses=[
            _append_topic(context, request, topic, now_ms, appends, pending)
            for topic in request.topic_data
        ]
    )
    if request.acks == 0:
        _raise_first_error(response)
        return None
    if not pending:
        _add_leader_hints(context, response)
        return response
    return _DelayedProduce(response, pending)


def _append_topic(
    context: RequestContext,
    request: ProduceRequest,
    topic: TopicProduceData,
    now_ms: int,
    appends: VerifiedAppends | None,
    pending: list[_PendingAck],
) -> TopicProduceResponse:
    name = _topic_name(context, topic)
    results = []
    for data in topic.partition_data:
        # Errors are per partition: one bad batch must not fail its neighbours.
        try:
            if request.acks not in _ACKS:
                raise KafkaError(ErrorCode.INVALID_REQUIRED_ACKS, f"acks is {request.acks}")
            if name is None:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
            result = _append(context, name, data, now_ms, request.acks, appends, pending)
        except KafkaError as error:
            result = _failed(data.index, error.code, error.detail)
            if error.code.retriable:
                _note_refused(context, name, data)
        except RefusedBatch as error:
            result = _failed(data.index, error.code, str(error))
        except CorruptBatch as error:
            result = _failed(data.index, ErrorCode.CORRUPT_MESSAGE, str(error))
        if result.error_code:
            context.node.traffic.of(name or "").produce_errors += 1
        results.append(result)
    return TopicProduceResponse(
        name=topic.name, topic_id=topic.topic_id, partition_responses=results
    )


def _topic_name(context: RequestContext, topic: TopicProduceData) -> str | None:
    if context.version >= _TOPIC_IDS_SINCE:
        return context.node.replicas.name_of(topic.topic_id)
    return topic.name


def _note_refused(context: RequestContext, topic: str | None, data: PartitionProduceData) -> None:
    """Make the log hold back later batches of the producer until this batch is sent again."""
    if topic is None or not isinstance(data.records, memoryview):
        return
    try:
        partition = context.node.replicas.leader_of(topic, data.index)
        header = validate(data.records, partition.config.max_message_bytes)[0]
    except (KafkaError, CorruptBatch):
        return  # Led elsewhere, or bytes whose sequence means nothing.
    if header.has_producer:
        partition.log.producers.note_refused(header, context.node.clock.now_ms())


def _append(
    context: RequestContext,
    topic: str,
    data: PartitionProduceData,
    now_ms: int,
    acks: int,
    appends: VerifiedAppends | None,
    pending: list[_PendingAck],
) -> PartitionProduceResponse:
    if is_internal(topic):
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{topic} is written by brokers alone")
    node = context.node
    partition: Partition = node.replicas.leader_of(topic, data.index)
    if not node.membership.may_write:
        # The lease from the controller is over: another broker may lead by now.
        raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the controller cannot be reached")
    if acks == _ACKS_ALL:
        partition.check_in_sync()
    records = data.records
    if not records:
        raise KafkaError(ErrorCode.INVALID_RECORD, "the request has no records")
    assert isinstance(records, memoryview)
    if context.version < _ZSTD_SINCE and claimed_compression(records) == Compression.ZSTD:
        raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "zstd needs Produce version 7")
    if is_transactional(records):
        if appends is None:
            raise KafkaError(
                ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "it names no transactional id"
            )
        appends.check(partition, records)
    try:
        appended = partition.append(records, now_ms)
    except RecordsRefused as error:
        return _refused_records(partition, error)
    traffic = node.traffic.of(topic)
    traffic.messages_in += appended.last_offset - appended.base_offset + 1
    traffic.bytes_in += len(records)
    result = PartitionProduceResponse(
        index=data.index,
        base_offset=appended.base_offset,
        log_append_time_ms=appended.log_append_time,
        log_start_offset=appended.log_start_offset,
    )
    if acks:
        wait = partition.when_committed if acks == _ACKS_ALL else partition.when_persisted
        safe = wait(appended.last_offset)
        if safe is not None:
            pending.append(_PendingAck(safe, result))
    return result


def _refused_records(partition: Partition, error: RecordsRefused) -> PartitionProduceResponse:
    result = _failed(partition.name.partition, error.code, error.detail)
    result.log_start_offset = partition.log.log_start_offset
    result.record_errors = [
        BatchIndexAndErrorMessage(batch_index=index, batch_index_error_message=reason)
        for index, reason in error.records.items()
    ]
    return result


def _failed(index: int, code: ErrorCode, detail: str) -> PartitionProduceResponse:
    return PartitionProduceResponse(
        index=index, error_code=code, base_offset=-1, error_message=detail or None
    )


def _raise_first_error(response: ProduceResponse) -> None:
    """Raise an error in place of a response that is not sent: it closes the connection."""
    for topic in response.responses:
        for result in topic.partition_responses:
            if result.error_code:
                code = error_code(result.error_code)
                raise ProtocolError(f"Produce with acks=0 to {topic.name} failed: {code.name}")


async def _answer_when_committed(
    context: RequestContext, response: ProduceResponse, pending: list[_PendingAck], timeout_ms: int
) -> ProduceResponse:
    traffic = context.node.traffic
    traffic.produces_waiting += 1
    try:
        await asyncio.wait([append.safe for append in pending], timeout=max(timeout_ms, 0) / 1000)
    finally:
        traffic.produces_waiting -= 1
    for safe, result in pending:
        if not safe.done():
            safe.cancel()
            result.error_code = ErrorCode.REQUEST_TIMED_OUT
            result.base_offset = -1
        elif (error := safe.exception()) is not None:
            assert isinstance(error, KafkaError)
            result.error_code = error.code
            result.error_message = error.detail or None
            result.base_offset = -1
    _add_leader_hints(context, response)
    return response


def _add_leader_hints(context: RequestContext, response: ProduceResponse) -> None:
    """Add the leaders of partitions that were refused because other brokers lead them (KIP-951)."""
    if context.version < _LEADER_HINTS_SINCE:
        return
    endpoints: dict[int, NodeEndpoint] = {}
    for topic in response.responses:
        for result in topic.partition_responses:
            if not result.error_code or result.error_code not in HINTED:
                continue
            name = topic.name
            if context.version >= _TOPIC_IDS_SINCE:
                name = context.node.replicas.name_of(topic.topic_id) or ""
            hint = leader_hint(context, name, result.index)
            if hint is None:
                continue
            result.current_leader = LeaderIdAndEpoch(
                leader_id=hint.leader_id, leader_epoch=hint.leader_epoch
            )
            endpoints[hint.leader_id] = NodeEndpoint(
                node_id=hint.leader_id, host=hint.host, port=hint.port, rack=hint.rack
            )
    response.node_endpoints = list(endpoints.values())
