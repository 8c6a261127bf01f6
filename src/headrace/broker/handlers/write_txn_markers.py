"""WriteTxnMarkers: ends transactions in partitions led here. Answered when that is committed.

It is sent by transaction coordinators, and by administrators who abort a hanging transaction.
"""

import asyncio
from collections.abc import Awaitable
from typing import Any, NamedTuple

from headrace.broker.coordination.runtime import OFFSETS_TOPIC
from headrace.broker.node import Node, UncommittedMarker
from headrace.broker.replication.partition import Partition
from headrace.broker.request import RequestContext
from headrace.coordinator.shard import ShardEffects
from headrace.errors import ErrorCode, HeadraceError, KafkaError
from headrace.protocol.markers import Marker
from headrace.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from headrace.types import TopicPartition

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
