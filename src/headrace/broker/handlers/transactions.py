"""InitProducerId, AddPartitionsToTxn, EndTxn, WriteTxnMarkers, and descriptions of producers."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, NamedTuple

from headrace.broker.coordination.internal_topics import create_offsets_topic
from headrace.broker.coordination.runtime import OFFSETS_TOPIC
from headrace.broker.node import Node, UncommittedMarker
from headrace.broker.replication.partition import Partition
from headrace.broker.request import RequestContext
from headrace.coordinator.patterns import full_matcher
from headrace.coordinator.shard import RequestClient, ShardEffects
from headrace.coordinator.transactions.transaction_metadata import AddOffsets, AddPartitions
from headrace.errors import ErrorCode, HeadraceError, KafkaError
from headrace.protocol.markers import Marker
from headrace.protocol.messages.add_offsets_to_txn import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
)
from headrace.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)
from headrace.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)
from headrace.protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TransactionState,
)
from headrace.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from headrace.protocol.messages.init_producer_id import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from headrace.protocol.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from headrace.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from headrace.protocol.schema import Message
from headrace.types import TopicPartition

_BATCHED_SINCE = 4


def ask_coordinator(
    context: RequestContext, transactional_id: str, request: Message
) -> Message | asyncio.Future[Message]:
    """The response of the shard of a transactional id; KafkaError without an available shard."""
    if not context.node.membership.may_write:
        # Another broker may lead its partition by now, and its decisions are not known here.
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    driver = context.node.transactions.shards.driver_of(transactional_id)
    client = RequestClient(context.client_id or "", context.host)
    return driver.handle(request, context.version, client)


def ask_in_order(
    context: RequestContext, transactional_id: str, request: Message
) -> Message | Awaitable[Any]:
    """As `ask_coordinator`, after earlier requests of the id and its prepared transaction."""
    return context.node.transactions.completions.ask(
        transactional_id,
        lambda: ask_coordinator(context, transactional_id, request),
        lambda response: response.error_code == ErrorCode.CONCURRENT_TRANSACTIONS,
    )


# AddPartitionsToTxn: of one transaction, or of many from a broker that verifies for its producers.


def add_partitions_to_txn(
    context: RequestContext, request: AddPartitionsToTxnRequest
) -> Awaitable[AddPartitionsToTxnResponse]:
    if context.version < _BATCHED_SINCE:
        return _add_for_client(context, request)
    # Each transaction is decided now, in order; only the commits are awaited.
    return _join(
        [
            _add_partitions(context, transaction, ask_coordinator)
            for transaction in request.transactions
        ]
    )


def _add_for_client(
    context: RequestContext, request: AddPartitionsToTxnRequest
) -> Awaitable[AddPartitionsToTxnResponse]:
    requested = AddPartitionsToTxnTransaction(
        transactional_id=request.v3_and_below_transactional_id,
        producer_id=request.v3_and_below_producer_id,
        producer_epoch=request.v3_and_below_producer_epoch,
        topics=request.v3_and_below_topics,
    )
    return _topic_results(_add_partitions(context, requested, _add_in_order))


async def _topic_results(adding: "_PartitionAddition") -> AddPartitionsToTxnResponse:
    result = await _partitions_result(adding)
    return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=result.topic_results)


def _add_in_order(
    context: RequestContext, transactional_id: str, request: Message
) -> Message | Awaitable[Any]:
    return context.node.transactions.completions.ask(
        transactional_id,
        lambda: ask_coordinator(context, transactional_id, request),
        lambda response: any(
            partition.partition_error_code == ErrorCode.CONCURRENT_TRANSACTIONS
            for result in response.results_by_transaction
            for topic in result.topic_results
            for partition in topic.results_by_partition
        ),
    )


async def _join(pending: list["_PartitionAddition"]) -> AddPartitionsToTxnResponse:
    return AddPartitionsToTxnResponse(
        results_by_transaction=[await _partitions_result(adding) for adding in pending]
    )


class _PartitionAddition(NamedTuple):
    """A request for one transaction, and the response of its shard, or error codes instead."""

    requested: AddPartitionsToTxnTransaction
    answer: Message | Awaitable[Any] | dict[TopicPartition, ErrorCode]


def _add_partitions(
    context: RequestContext,
    requested: AddPartitionsToTxnTransaction,
    ask: Callable[[RequestContext, str, Message], Message | Awaitable[Any]],
) -> _PartitionAddition:
    names = _names(requested)
    image = context.node.store.image
    unknown = {
        name
        for name in names
        if (topic := image.topics.get(name.topic)) is None
        or not 0 <= name.partition < len(topic.partitions)
    }
    if unknown:
        # All or nothing.
        codes = dict.fromkeys(names, ErrorCode.OPERATION_NOT_ATTEMPTED)
        codes.update(dict.fromkeys(unknown, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
        return _PartitionAddition(requested, codes)
    request = AddPartitions(
        transactional_id=requested.transactional_id,
        producer_id=requested.producer_id,
        producer_epoch=requested.producer_epoch,
        verify_only=requested.verify_only,
        partitions=names,
    )
    try:
        return _PartitionAddition(requested, ask(context, requested.transactional_id, request))
    except KafkaError as error:
        return _PartitionAddition(requested, dict.fromkeys(names, error.code))


async def _partitions_result(adding: _PartitionAddition) -> AddPartitionsToTxnResult:
    answer = adding.answer
    if isinstance(answer, dict):
        return _result(adding.requested, answer)
    try:
        response = answer if isinstance(answer, Message) else await answer
    except KafkaError as error:
        return _result(adding.requested, dict.fromkeys(_names(adding.requested), error.code))
    assert isinstance(response, AddPartitionsToTxnResponse)
    return response.results_by_transaction[0]


def _names(requested: AddPartitionsToTxnTransaction) -> tuple[TopicPartition, ...]:
    return tuple(
        TopicPartition(topic.name, index)
        for topic in requested.topics
        for index in topic.partitions
    )


def _result(
    requested: AddPartitionsToTxnTransaction, codes: dict[TopicPartition, ErrorCode]
) -> AddPartitionsToTxnResult:
    return AddPartitionsToTxnResult(
        transactional_id=requested.transactional_id,
        topic_results=[
            AddPartitionsToTxnTopicResult(
                name=topic.name,
                results_by_partition=[
                    AddPartitionsToTxnPartitionResult(
                        partition_index=index,
                        partition_error_code=codes[TopicPartition(topic.name, index)],
                    )
                    for index in topic.partitions
                ],
            )
            for topic in requested.topics
        ],
    )


async def add_offsets_to_txn(
    context: RequestContext, request: AddOffsetsToTxnRequest
) -> AddOffsetsToTxnResponse:
    groups = context.node.groups
    try:
        if not groups.partition_count:
            await create_offsets_topic(context.node)
            if not groups.partition_count:
                raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        add_offsets = AddOffsets(
            transactional_id=request.transactional_id,
            producer_id=request.producer_id,
            producer_epoch=request.producer_epoch,
            topic=OFFSETS_TOPIC,
            partition=groups.partition_of(request.group_id),
        )
        answer = ask_in_order(context, request.transactional_id, add_offsets)
        response = answer if isinstance(answer, Message) else await answer
    except KafkaError as error:
        return AddOffsetsToTxnResponse(error_code=error.code)
    assert isinstance(response, AddOffsetsToTxnResponse)
    return response


def end_txn(
    context: RequestContext, request: EndTxnRequest
) -> EndTxnResponse | Awaitable[EndTxnResponse]:
    # Decided now: the next request of the connection must not overtake it.
    try:
        answer = ask_in_order(context, request.transactional_id, request)
    except KafkaError as error:
        return EndTxnResponse(error_code=error.code)
    if isinstance(answer, Message):
        assert isinstance(answer, EndTxnResponse)
        return answer
    return _end_txn_response(answer)


async def _end_txn_response(answer: Awaitable[Any]) -> EndTxnResponse:
    try:
        response = await answer
    except KafkaError as error:
        return EndTxnResponse(error_code=error.code)
    assert isinstance(response, EndTxnResponse)
    return response


def describe_transactions(
    context: RequestContext, request: DescribeTransactionsRequest
) -> DescribeTransactionsResponse:
    states = []
    for transactional_id in request.transactional_ids:
        try:
            driver = context.node.transactions.shards.driver_of(transactional_id)
            states.append(driver.shard.describe(transactional_id))
        except KafkaError as error:
            states.append(
                TransactionState(transactional_id=transactional_id, error_code=error.code)
            )
    return DescribeTransactionsResponse(transaction_states=states)


def list_transactions(
    context: RequestContext, request: ListTransactionsRequest
) -> ListTransactionsResponse:
    node = context.node
    drivers = list(node.transactions.shards)
    if any(driver.loading for driver in drivers):
        return ListTransactionsResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    matches = None
    if request.transactional_id_pattern:
        try:
            matches = full_matcher(request.transactional_id_pattern)
        except KafkaError as error:
            return ListTransactionsResponse(error_code=error.code)
    listed = ListTransactionsResponse()
    for driver in drivers:
        part = driver.shard.list(request, node.clock.now_ms(), matches)
        if part.error_code:
            return part
        listed.unknown_state_filters = part.unknown_state_filters
        listed.transaction_states += part.transaction_states
    return listed


# DescribeProducers: the recent producers of a partition, and their open transactions.
#
# Any replica answers, so that the state of followers can be compared with that of their leader.


def describe_producers(
    context: RequestContext, request: DescribeProducersRequest
) -> DescribeProducersResponse:
    return DescribeProducersResponse(
        topics=[
            TopicResponse(
                name=topic.name,
                partitions=[
                    _describe(context, topic.name, index) for index in topic.partition_indexes
                ],
            )
            for topic in request.topics
        ]
    )


def _describe(context: RequestContext, topic: str, index: int) -> PartitionResponse:
    try:
        partition = context.node.replicas.replica_of(topic, index)
    except KafkaError as error:
        return PartitionResponse(
            partition_index=index, error_code=error.code, error_message=error.detail or None
        )
    return PartitionResponse(
        partition_index=index,
        active_producers=[
            ProducerState(
                producer_id=producer_id,
                producer_epoch=producer.epoch,
                last_sequence=producer.last_sequence,
                last_timestamp=producer.timestamp,
                coordinator_epoch=producer.coordinator_epoch,
                current_txn_start_offset=producer.transaction_first_offset,
            )
            for producer_id, producer in partition.log.producers
        ],
    )


async def init_producer_id(
    context: RequestContext, request: InitProducerIdRequest
) -> InitProducerIdResponse:
    try:
        if request.transactional_id is not None:
            return await _init_transactional(context, request, request.transactional_id)
        producer_id = await context.node.producer_ids.next_id()
    except KafkaError as error:
        return _refused(error.code)
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)


async def _init_transactional(
    context: RequestContext, request: InitProducerIdRequest, transactional_id: str
) -> InitProducerIdResponse:
    if not transactional_id:
        return _refused(ErrorCode.INVALID_REQUEST)
    with suppress(KafkaError):
        # Without a controller there are no new producer ids, but most requests need none.
        await context.node.transactions.ensure_producer_ids(transactional_id)
    answer = ask_in_order(context, transactional_id, request)
    response = answer if isinstance(answer, Message) else await answer
    assert isinstance(response, InitProducerIdResponse)
    return response


def _refused(code: ErrorCode) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1)


# WriteTxnMarkers: ends transactions in partitions led here.
#
# Answered when that is committed.
#
# It is sent by transaction coordinators, and by administrators who abort a hanging transaction.


# Markers of other partitions wait behind these, so a marker whose follower hangs must time out
# soon. A coordinator that sends it again waits for the marker that is written already. If this is
# shorter, slow links have more requests to carry, and transactions take longer.
_COMMIT_SECONDS = 1.0
# Errors of group coordinators, which a transaction coordinator does not expect for a marker.
_NOT_HERE = frozenset(
    (
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    )
)


class _PendingMarker(NamedTuple):
    """A marker that is written but not committed."""

    committed: asyncio.Future[Any]
    result: WritableTxnMarkerPartitionResult


def write_txn_markers(
    context: RequestContext, request: WriteTxnMarkersRequest
) -> WriteTxnMarkersResponse | Awaitable[WriteTxnMarkersResponse]:
    pending: list[_PendingMarker] = []
    response = WriteTxnMarkersResponse(
        markers=[_write_all(context.node, marker, pending) for marker in request.markers]
    )
    return _answer_when_committed(response, pending) if pending else response


def _write_all(
    node: Node, requested: WritableTxnMarker, pending: list[_PendingMarker]
) -> WritableTxnMarkerResult:
    return WritableTxnMarkerResult(
        producer_id=requested.producer_id,
        topics=[
            WritableTxnMarkerTopicResult(
                name=topic.name,
                partitions=[
                    _write(node, requested, topic.name, index, pending)
                    for index in topic.partition_indexes
                ],
            )
            for topic in requested.topics
        ],
    )


def _write(
    node: Node, requested: WritableTxnMarker, topic: str, index: int, pending: list[_PendingMarker]
) -> WritableTxnMarkerPartitionResult:
    result = WritableTxnMarkerPartitionResult(partition_index=index)
    try:
        committed = _append(node, requested, topic, index)
    except KafkaError as error:
        result.error_code = _marker_error(error.code)
    except HeadraceError:
        result.error_code = ErrorCode.KAFKA_STORAGE_ERROR
    else:
        if committed is not None:
            pending.append(_PendingMarker(committed, result))
    return result


def _append(
    node: Node, requested: WritableTxnMarker, topic: str, index: int
) -> asyncio.Future[Any] | None:
    """Write a marker; returns the future of its commit, or None if it is committed."""
    partition = node.replicas.leader_of(topic, index)
    if not node.membership.may_write:
        raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the controller cannot be reached")
    marker = Marker(
        requested.producer_id,
        requested.producer_epoch,
        requested.coordinator_epoch,
        requested.transaction_result,
    )
    if partition.log.producers.is_duplicate_marker(marker, requested.transaction_version):
        # A delayed old request, even if the marker it wrote is not committed yet.
        raise KafkaError(ErrorCode.INVALID_PRODUCER_EPOCH, "the next transaction has begun")
    name = TopicPartition(topic, index)
    key = (name, partition.leader_epoch, marker)
    committed = node.uncommitted_markers.get(key)
    if committed is not None and not committed.done():
        return committed
    committed = _append_new(node, partition, name, marker)
    if committed is not None and not committed.done():
        node.uncommitted_markers[key] = committed
        committed.add_done_callback(lambda ended: _forget(node, key, ended))
    return committed


def _append_new(
    node: Node, partition: Partition, name: TopicPartition, marker: Marker
) -> asyncio.Future[Any] | None:
    if name.topic == OFFSETS_TOPIC:
        # Through the shard, which commits or drops the offsets in the transaction.
        return node.groups.driver_at(name.partition).perform_with_future(
            ShardEffects(marker=marker)
        )
    appended = partition.append_marker(marker, node.clock.now_ms())
    return partition.when_committed(appended.last_offset)


def _forget(node: Node, key: UncommittedMarker, ended: asyncio.Future[Any]) -> None:
    if not ended.cancelled():
        ended.exception()  # Retrieved, because the waiting caller may be gone.
    if node.uncommitted_markers.get(key) is ended:
        del node.uncommitted_markers[key]


async def _answer_when_committed(
    response: WriteTxnMarkersResponse, pending: list[_PendingMarker]
) -> WriteTxnMarkersResponse:
    await asyncio.wait([marker.committed for marker in pending], timeout=_COMMIT_SECONDS)
    for committed, result in pending:
        if not committed.done():
            result.error_code = ErrorCode.REQUEST_TIMED_OUT
        elif committed.cancelled():
            result.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        elif (error := committed.exception()) is not None:
            assert isinstance(error, HeadraceError), error
            code = error.code if isinstance(error, KafkaError) else ErrorCode.KAFKA_STORAGE_ERROR
            result.error_code = _marker_error(code)
    return response


def _marker_error(code: ErrorCode) -> ErrorCode:
    return ErrorCode.NOT_LEADER_OR_FOLLOWER if code in _NOT_HERE else code
