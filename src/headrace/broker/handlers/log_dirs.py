"""DescribeLogDirs and AlterReplicaLogDirs: data directories, and moves of replicas between them."""

from collections import defaultdict

from headrace.broker.node import Node
from headrace.broker.request import RequestContext
from headrace.errors import ErrorCode, KafkaError
from headrace.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)
from headrace.protocol.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from headrace.storage.log import Log
from headrace.storage.manager import DirectoryState
from headrace.types import TopicPartition

# What is told of a future log whose current log cannot be asked.
_NO_LAG = -1


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
    node = context.node
    states = node.logs.describe()
    return DescribeLogDirsResponse(results=[_describe(node, state, wanted) for state in states])


def _describe(
    node: Node, state: DirectoryState, wanted: set[TopicPartition] | None
) -> DescribeLogDirsResult:
    if state.error is not None:
        return DescribeLogDirsResult(error_code=ErrorCode.KAFKA_STORAGE_ERROR, log_dir=state.path)
    topics: defaultdict[str, list[DescribeLogDirsPartition]] = defaultdict(list)
    for log in (*state.logs, *state.future_logs):
        name = log.topic_partition
        if wanted is None or name in wanted:
            is_future = log in state.future_logs
            topics[name.topic].append(
                DescribeLogDirsPartition(
                    partition_index=name.partition,
                    partition_size=log.size_bytes,
                    # A current log lags if its high watermark is ahead of it, which it never is.
                    offset_lag=_future_lag(node, log) if is_future else 0,
                    is_future_key=is_future,
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
        is_cordoned=state.is_full,
    )


def _future_lag(node: Node, future: Log) -> int:
    current = node.logs.logs.get(future.topic_partition)
    return _NO_LAG if current is None else current.log_end_offset - future.log_end_offset


def alter_replica_log_dirs(
    context: RequestContext, request: AlterReplicaLogDirsRequest
) -> AlterReplicaLogDirsResponse:
    topics: defaultdict[str, list[AlterReplicaLogDirPartitionResult]] = defaultdict(list)
    for wanted in request.dirs:
        for topic in wanted.topics:
            for index in topic.partitions:
                result = AlterReplicaLogDirPartitionResult(partition_index=index)
                try:
                    _move(context.node, TopicPartition(topic.name, index), wanted.path)
                except KafkaError as error:
                    result.error_code = error.code
                topics[topic.name].append(result)
    return AlterReplicaLogDirsResponse(
        results=[
            AlterReplicaLogDirTopicResult(topic_name=name, partitions=partitions)
            for name, partitions in topics.items()
        ]
    )


def _move(node: Node, name: TopicPartition, path: str) -> None:
    """Begin to move a replica; one that is not here yet is to be made there (KIP-113)."""
    moves = node.logs.moves
    directory = moves.directory_at(path)
    try:
        partition = node.replicas.replica_of(*name)
    except KafkaError as error:
        if error.code is ErrorCode.KAFKA_STORAGE_ERROR:
            raise
        moves.prefer(name, directory)
        if error.code is ErrorCode.NOT_LEADER_OR_FOLLOWER:
            # Kafka's code for it, by which its tool knows that it has to ask again.
            raise KafkaError(ErrorCode.REPLICA_NOT_AVAILABLE, str(error)) from error
        raise
    if partition.log.offline is not None:
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{name} is offline")
    moves.begin(name, directory, node.clock.now_ms())
    node.move_wanted.set()
