"""DeleteRecords: move a log's start offset forward, on all replicas that are in sync."""

import asyncio
from typing import NamedTuple

from headrace.broker.replication.partition import Partition
from headrace.broker.request import RequestContext
from headrace.errors import ErrorCode, KafkaError
from headrace.metadata.names import is_internal
from headrace.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)

_HIGH_WATERMARK = -1


class _Pending(NamedTuple):
    """A deletion that followers have not done yet."""

    deleted: asyncio.Future[None]
    result: DeleteRecordsPartitionResult


async def delete_records(
    context: RequestContext, request: DeleteRecordsRequest
) -> DeleteRecordsResponse:
    pending: list[_Pending] = []
    response = DeleteRecordsResponse(
        topics=[
            DeleteRecordsTopicResult(
                name=topic.name,
                partitions=[
                    _delete_before(context, topic.name, one, pending) for one in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )
    # Told as deleted means deleted after a crash too: the start offsets must be on disk first.
    await context.node.workers.flush(context.node.logs.checkpoint)
    if pending:
        # And after a failover: whoever may lead next must have deleted them.
        await _wait_for_followers(pending, request.timeout_ms)
    return response


def _delete_before(
    context: RequestContext, topic: str, wanted: DeleteRecordsPartition, pending: list[_Pending]
) -> DeleteRecordsPartitionResult:
    try:
        partition = _deletable(context, topic, wanted.partition_index)
        offset = wanted.offset
        if offset == _HIGH_WATERMARK:
            offset = partition.high_watermark
        if not 0 <= offset <= partition.high_watermark:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
        partition.advance_log_start(offset)
    except KafkaError as error:
        return _failed(wanted.partition_index, error.code)
    result = DeleteRecordsPartitionResult(
        partition_index=wanted.partition_index, low_watermark=partition.log.log_start_offset
    )
    deleted = partition.deleted(offset)
    if deleted is not None:
        pending.append(_Pending(deleted, result))
    return result


def _deletable(context: RequestContext, topic: str, index: int) -> Partition:
    """The partition, led here, if clients may delete records of its topic."""
    if is_internal(topic):
        image = context.node.store.image.topics.get(topic)
        if image is not None and 0 <= index < len(image.partitions):
            # They are the state of groups and transactions; a deletion would undo commits.
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION)
    partition = context.node.replicas.leader_of(topic, index)
    policies = partition.config.cleanup_policy
    if "compact" in policies and "delete" not in policies:
        raise KafkaError(ErrorCode.POLICY_VIOLATION)
    return partition


async def _wait_for_followers(pending: list[_Pending], timeout_ms: int) -> None:
    await asyncio.wait([one.deleted for one in pending], timeout=max(timeout_ms, 0) / 1000)
    for deleted, result in pending:
        if not deleted.done():
            deleted.cancel()
            result.error_code = ErrorCode.REQUEST_TIMED_OUT
        elif (error := deleted.exception()) is not None:
            assert isinstance(error, KafkaError)
            result.error_code = error.code
        if result.error_code:
            result.low_watermark = -1


def _failed(index: int, code: ErrorCode) -> DeleteRecordsPartitionResult:
    return DeleteRecordsPartitionResult(partition_index=index, low_watermark=-1, error_code=code)
