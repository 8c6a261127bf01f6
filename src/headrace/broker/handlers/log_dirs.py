"""DescribeLogDirs and AlterReplicaLogDirs: data directories, and moves of replicas between them."""

import os
from collections import defaultdict
from collections.abc import Awaitable
from contextlib import suppress

from headrace.broker.node import Node
from headrace.broker.replication.replica_manager import OfflineReplica, ReplicaState
from headrace.broker.request import RequestContext
from headrace.errors import ErrorCode, KafkaError, StorageError
from headrace.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)
from headrace.protocol.messages.describe_log_dirs import (
    DescribeLogDirsHealth,
    DescribeLogDirsPartition,
    DescribeLogDirsReplicaProblem,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsSetAside,
    DescribeLogDirsTopic,
)
from headrace.storage.data_directory import DataDirectory
from headrace.storage.files import Files
from headrace.storage.log import Log
from headrace.storage.log_manager import DirectoryState
from headrace.storage.metadata_recovery import set_aside_names
from headrace.storage.scrubbing import ScrubProgress, SegmentDamage
from headrace.storage.strays import list_strays
from headrace.types import TopicPartition

# The lag of a future log without a current log.
_NO_LAG = -1


def describe_log_dirs(
    context: RequestContext, request: DescribeLogDirsRequest
) -> DescribeLogDirsResponse | Awaitable[DescribeLogDirsResponse]:
    requested = None
    if request.topics is not None:
        requested = {
            TopicPartition(topic.topic, partition)
            for topic in request.topics
            for partition in topic.partitions
        }
    node = context.node
    states = node.logs.describe()
    response = DescribeLogDirsResponse(
        results=[_describe(node, state, requested) for state in states]
    )
    return _add_health(node, response) if request.include_health else response


async def _add_health(node: Node, response: DescribeLogDirsResponse) -> DescribeLogDirsResponse:
    """Add the replicas that serve no requests, and the scrubbing and damage of each directory."""
    problems = node.replicas.problems()
    known = {problem.partition for problem in problems}
    for directory, result in zip(node.logs.directories, response.results, strict=True):
        if directory.error is not None:
            continue
        progress = node.scrub_progress.get(directory, ScrubProgress())
        for damage in progress.damage:
            if damage.key.partition not in known:
                reason = _damage_text(directory, damage)
                problem = OfflineReplica(damage.key.partition, ReplicaState.DAMAGED, reason)
                problems.append(problem)
        result.health = DescribeLogDirsHealth(
            scrub_started_ms=progress.started_ms,
            scrub_finished_ms=progress.finished_ms,
            scrubbed_segments=progress.segment_count,
            scrubbed_bytes=progress.byte_count,
            closed_bytes=sum(
                segment.size
                for name, log in node.logs.logs.items()
                if node.logs.directory_of(name) is directory
                for segment in log.segments
            ),
            damaged_segments=len(progress.damage),
        )
        with suppress(StorageError):  # The next response reports a directory that fails now.
            result.health.set_aside = await node.workers.read(
                _list_set_aside, node.logs.files, directory.path
            )
    response.replica_problems = [
        DescribeLogDirsReplicaProblem(
            topic=problem.partition.topic,
            partition_index=problem.partition.partition,
            state=problem.state,
            reason=problem.reason,
        )
        for problem in problems
    ]
    return response


def _damage_text(directory: DataDirectory, damage: SegmentDamage) -> str:
    path = f"{directory.path}/{damage.key.partition}"
    return (
        f"offsets {damage.first_offset} to {damage.end_offset - 1} cannot be read, and no other"
        f" replica was in sync when that was found. The rest is served: restore the segment"
        f" {damage.key.base_offset}, or stop the broker and see what `headrace log repair {path}`"
        " can save"
    )


def _list_set_aside(files: Files, path: str) -> list[DescribeLogDirsSetAside]:
    """The logs that were set aside in a data directory for an operator."""
    strays = [
        DescribeLogDirsSetAside(
            name=os.path.basename(stray.path),
            reason="" if stray.note is None else stray.note.reason,
        )
        for stray in list_strays(files, path)
    ]
    damaged = "the metadata log was damaged"
    names = set_aside_names(files, path)
    return strays + [DescribeLogDirsSetAside(name=name, reason=damaged) for name in names]


def _describe(
    node: Node, state: DirectoryState, requested: set[TopicPartition] | None
) -> DescribeLogDirsResult:
    if state.error is not None:
        return DescribeLogDirsResult(error_code=ErrorCode.KAFKA_STORAGE_ERROR, log_dir=state.path)
    topics: defaultdict[str, list[DescribeLogDirsPartition]] = defaultdict(list)
    for log in (*state.logs, *state.future_logs):
        name = log.topic_partition
        if requested is None or name in requested:
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
    for directory in request.dirs:
        for topic in directory.topics:
            for index in topic.partitions:
                result = AlterReplicaLogDirPartitionResult(partition_index=index)
                try:
                    _move(context.node, TopicPartition(topic.name, index), directory.path)
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
    """Begin to move a replica; if it is not here yet it will be created there (KIP-113)."""
    moves = node.logs.moves
    directory = moves.directory_at(path)
    try:
        partition = node.replicas.replica_of(*name)
    except KafkaError as error:
        if error.code is ErrorCode.KAFKA_STORAGE_ERROR:
            raise
        moves.prefer(name, directory)
        if error.code is ErrorCode.NOT_LEADER_OR_FOLLOWER:
            # Kafka's code for it, after which its tool retries.
            raise KafkaError(ErrorCode.REPLICA_NOT_AVAILABLE, str(error)) from error
        raise
    if partition.log.offline is not None:
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{name} is offline")
    moves.begin(name, directory, node.clock.now_ms())
    node.move_requested.set()
