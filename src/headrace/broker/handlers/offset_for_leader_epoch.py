"""OffsetForLeaderEpoch: where an epoch ended, so that a reader can find where its log diverged."""

from headrace.broker.request import RequestContext
from headrace.errors import KafkaError
from headrace.protocol.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)


def offset_for_leader_epoch(
    context: RequestContext, request: OffsetForLeaderEpochRequest
) -> OffsetForLeaderEpochResponse:
    return OffsetForLeaderEpochResponse(
        topics=[
            OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=[_end_of_epoch(context, topic.topic, one) for one in topic.partitions],
            )
            for topic in request.topics
        ]
    )


def _end_of_epoch(
    context: RequestContext, topic: str, wanted: OffsetForLeaderPartition
) -> EpochEndOffset:
    try:
        partition = context.node.replicas.leader_of(topic, wanted.partition)
        partition.check_epoch(wanted.current_leader_epoch)
    except KafkaError as error:
        return EpochEndOffset(partition=wanted.partition, error_code=error.code)
    epoch, end_offset = partition.log.end_offset_for_epoch(wanted.leader_epoch)
    return EpochEndOffset(partition=wanted.partition, leader_epoch=epoch, end_offset=end_offset)
