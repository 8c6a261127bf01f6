"""DescribeLogDirs: the data directories, and the room that partitions take in them."""

from collections import defaultdict

from headrace.broker.dispatch import handles
from headrace.broker.node import RequestContext
from headrace.errors import ErrorCode
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from headrace.storage.manager import DirectoryState
from headrace.types import TopicPartition


@handles(ApiKey.DESCRIBE_LOG_DIRS)
def describe_log_dirs(
    context: RequestContext, request: DescribeLogDirsRequest
) -> DescribeLogDirsResponse:
    wanted = None
    if request.topics is not None:
        wanted = {
            TopicPartition(topic.topic, partition)
            for topic in request.topics
            for partition in topic.partitions
        }
    states = context.node.logs.describe()
    return DescribeLogDirsResponse(results=[_describe(state, wanted) for state in states])


def _describe(state: DirectoryState, wanted: set[TopicPartition] | None) -> DescribeLogDirsResult:
    if state.error is not None:
        return DescribeLogDirsResult(error_code=ErrorCode.KAFKA_STORAGE_ERROR, log_dir=state.path)
    topics: defaultdict[str, list[DescribeLogDirsPartition]] = defaultdict(list)
    for log in state.logs:
        name = log.topic_partition
        if wanted is None or name in wanted:
            # With one replica the log end is the high watermark, and nothing lags.
            topics[name.topic].append(
                DescribeLogDirsPartition(
                    partition_index=name.partition, partition_size=log.size_bytes
                )
            )
    return DescribeLogDirsResult(
        log_dir=state.path,
        topics=[
            DescribeLogDirsTopic(name=name, partitions=partitions)
            for name, partitions in topics.items()
        ],
        total_bytes=state.total_bytes,
        usable_bytes=state.usable_bytes,
    )
