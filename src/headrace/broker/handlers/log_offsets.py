"""ListOffsets, OffsetForLeaderEpoch, DeleteRecords: the offsets of logs."""

import asyncio
from typing import NamedTuple

from headrace.broker.replication.partition import Partition
from headrace.broker.request import RequestContext
from headrace.errors import ErrorCode, KafkaError
from headrace.metadata.topic_names import is_internal
from headrace.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from headrace.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from headrace.protocol.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)
from headrace.storage.segment import TimestampOffset
from headrace.types import TopicPartition

# ListOffsets: the offset of a time, or of the beginning or the end.
#
# The end is the high watermark for consumers, the last stable offset for those of isolation level
# READ_COMMITTED, and the log end offset for replicas. A new leader may know a lower high watermark
# than its predecessor has sent to clients; it refuses to answer until the records that it began
# with are committed.
#
# Requests of the replica -2, which Kafka has for debugging, are answered by any replica: with the
# end of its own log and the epoch of the last record there. The controller compares replicas so.


LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6

_OFFSET_NOT_AVAILABLE_SINCE = 5
_CONSUMER = -1
_ANY_REPLICA = -2
_READ_COMMITTED = 1
_NOTHING = TimestampOffset(-1, -1, -1)


async def list_offsets(context: RequestContext, request: ListOffsetsRequest) -> ListOffsetsResponse:
    return ListOffsetsResponse(
        topics=[
            ListOffsetsTopicResponse(
                name=topic.name,
                partitions=[
                    await _list_partition(context, request, topic.name, partition)
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


async def _list_partition(
    context: RequestContext,
    request: ListOffsetsRequest,
    topic: str,
    requested: ListOffsetsPartition,
) -> ListOffsetsPartitionResponse:
    # Errors are per partition: an unknown partition must not fail its neighbours.
    try:
        found = await _find(context, request, topic, requested)
    except KafkaError as error:
        return ListOffsetsPartitionResponse(
            partition_index=requested.partition_index, error_code=error.code
        )
    return ListOffsetsPartitionResponse(
        partition_index=requested.partition_index,
        timestamp=found.timestamp,
        offset=found.offset,
        leader_epoch=found.leader_epoch,
    )


async def _find(
    context: RequestContext,
    request: ListOffsetsRequest,
    topic: str,
    requested: ListOffsetsPartition,
) -> TimestampOffset:
    replicas, index = context.node.replicas, requested.partition_index
    from_any = request.replica_id == _ANY_REPLICA
    if from_any and requested.timestamp == LATEST and replicas.is_lost(topic, index):
        return await _end_of_lost(context, TopicPartition(topic, index))
    partition = replicas.replica_of(topic, index) if from_any else replicas.leader_of(topic, index)
    partition.check_epoch(requested.current_leader_epoch)
    log = partition.log
    timestamp = requested.timestamp
    if from_any and timestamp == LATEST:
        return _log_end(partition)
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        epoch = log.epochs.epoch_of(log.log_start_offset)
        return TimestampOffset(-1, log.log_start_offset, epoch)
    if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return _NOTHING  # There is no tiered storage here.
    if timestamp < MAX_TIMESTAMP:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"no offset is called {timestamp}")
    if timestamp == LATEST:
        end_offset = _end_of(context, request, partition)
        return TimestampOffset(-1, end_offset, partition.leader_epoch)
    if timestamp == MAX_TIMESTAMP:
        found = await context.node.workers.read(log.max_timestamp_offset)
    else:
        found = await context.node.workers.read(log.offset_for_timestamp, timestamp)
    if found is None or found.offset >= _committed_end(request, partition):
        _end_of(context, request, partition)
        return _NOTHING
    return found


async def _end_of_lost(context: RequestContext, name: TopicPartition) -> TimestampOffset:
    """The end of the sound part of a damaged log, if there is one.

    The active controller requests it, and may elect this replica for it.
    """
    node = context.node
    prefix = await node.workers.read(node.logs.intact_prefix, name)
    if prefix is None:
        return _NOTHING
    node.replicas.offer_prefix(name, prefix)
    return TimestampOffset(-1, prefix.end_offset, prefix.epoch)


def _log_end(partition: Partition) -> TimestampOffset:
    """The end offset of a replica's log, and the epoch of its last record, -1 if it has none."""
    log = partition.log
    if log.offline is not None:
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"the log of {partition.name} is offline")
    end_offset = log.log_end_offset
    # Not the latest epoch, which may have begun without a record yet.
    is_empty = end_offset == log.log_start_offset
    return TimestampOffset(-1, end_offset, -1 if is_empty else log.epochs.epoch_of(end_offset - 1))


def _committed_end(request: ListOffsetsRequest, partition: Partition) -> int:
    if request.isolation_level == _READ_COMMITTED:
        return partition.last_stable_offset
    return partition.high_watermark


def _end_of(context: RequestContext, request: ListOffsetsRequest, partition: Partition) -> int:
    """The end offset for the sender of a request; KafkaError if it is not known yet."""
    if request.replica_id != _CONSUMER:
        return partition.log.log_end_offset
    leadership = partition.leadership
    if leadership is not None and partition.high_watermark < leadership.start_offset:
        if context.version >= _OFFSET_NOT_AVAILABLE_SINCE:
            raise KafkaError(ErrorCode.OFFSET_NOT_AVAILABLE)
        raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE)
    return _committed_end(request, partition)


def offset_for_leader_epoch(
    context: RequestContext, request: OffsetForLeaderEpochRequest
) -> OffsetForLeaderEpochResponse:
    return OffsetForLeaderEpochResponse(
        topics=[
            OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=[
                    _end_of_epoch(context, topic.topic, partition) for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _end_of_epoch(
    context: RequestContext, topic: str, requested: OffsetForLeaderPartition
) -> EpochEndOffset:
    try:
        partition = context.node.replicas.leader_of(topic, requested.partition)
        partition.check_epoch(requested.current_leader_epoch)
    except KafkaError as error:
        return EpochEndOffset(partition=requested.partition, error_code=error.code)
    epoch, end_offset = partition.log.end_offset_for_epoch(requested.leader_epoch)
    return EpochEndOffset(partition=requested.partition, leader_epoch=epoch, end_offset=end_offset)


_HIGH_WATERMARK = -1


class _PendingDeletion(NamedTuple):
    """A deletion that followers have not carried out yet."""

    deleted: asyncio.Future[None]
    result: DeleteRecordsPartitionResult


async def delete_records(
    context: RequestContext, request: DeleteRecordsRequest
) -> DeleteRecordsResponse:
    pending: list[_PendingDeletion] = []
    response = DeleteRecordsResponse(
        topics=[
            DeleteRecordsTopicResult(
                name=topic.name,
                partitions=[
                    _delete_before(context, topic.name, partition, pending)
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )
    # A deletion that is acknowledged survives a crash: start offsets must be on disk first.
    await context.node.workers.flush(context.node.logs.checkpoint)
    if pending:
        # And a failover: every replica that may lead next must have deleted the records.
        await _wait_for_followers(pending, request.timeout_ms)
    return response


def _delete_before(
    context: RequestContext,
    topic: str,
    requested: DeleteRecordsPartition,
    pending: list[_PendingDeletion],
) -> DeleteRecordsPartitionResult:
    try:
        partition = _deletable(context, topic, requested.partition_index)
        offset = requested.offset
        if offset == _HIGH_WATERMARK:
            offset = partition.high_watermark
        if not 0 <= offset <= partition.high_watermark:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
        partition.advance_log_start(offset)
    except KafkaError as error:
        return _failed(requested.partition_index, error.code)
    result = DeleteRecordsPartitionResult(
        partition_index=requested.partition_index, low_watermark=partition.log.log_start_offset
    )
    deleted = partition.when_deleted(offset)
    if deleted is not None:
        pending.append(_PendingDeletion(deleted, result))
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


async def _wait_for_followers(pending: list[_PendingDeletion], timeout_ms: int) -> None:
    await asyncio.wait(
        [deletion.deleted for deletion in pending], timeout=max(timeout_ms, 0) / 1000
    )
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
