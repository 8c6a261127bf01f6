"""The data directories of brokers: the replicas in them, and moves between them."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from headrace.client.outcomes import failure
from headrace.client.transport.cluster import Cluster
from headrace.errors import ErrorCode, KafkaError
from headrace.net.outgoing import ConnectionFailed
from headrace.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from headrace.protocol.messages.describe_log_dirs import (
    DescribeLogDirsRequest,
    DescribeLogDirsResult,
)
from headrace.types import TopicPartition


@dataclass(frozen=True, slots=True)
class FutureReplica:
    """The copy of a replica that moves to another directory of its broker.

    `offset_lag` is the number of offsets that are still to be copied, or -1 if it is not known.
    """

    size: int
    offset_lag: int


@dataclass(frozen=True, slots=True)
class LogDirectory:
    """A data directory of a broker, with the bytes of each replica in it.

    `future_replicas` are those that are being moved into it from another one.

    One that does not work has an error and no replicas. Sizes of the disk are None where the broker
    does not tell them.
    """

    path: str
    error: KafkaError | None
    replicas: Mapping[TopicPartition, int]
    total_bytes: int | None
    usable_bytes: int | None
    future_replicas: Mapping[TopicPartition, FutureReplica] = field(default_factory=dict)


async def describe_log_dirs(
    cluster: Cluster, broker_ids: Sequence[int]
) -> dict[int, tuple[LogDirectory, ...] | KafkaError]:
    """The data directories of brokers, asked once; each broker has its own outcome."""
    deadline = cluster.deadline()
    await cluster.heard_view(deadline)
    asked = [_ask(cluster, broker_id, deadline) for broker_id in broker_ids]
    return dict(zip(broker_ids, await asyncio.gather(*asked), strict=True))


async def _ask(
    cluster: Cluster, broker_id: int, deadline: float
) -> tuple[LogDirectory, ...] | KafkaError:
    try:
        response = await cluster.call(DescribeLogDirsRequest(topics=None), deadline, broker_id)
    except KafkaError as error:
        return error
    except ConnectionFailed as error:
        return KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, f"broker {broker_id}: {error}")
    return failure(response.error_code, subject=f"broker {broker_id}") or tuple(
        _directory(broker_id, one) for one in response.results
    )


def _directory(broker_id: int, told: DescribeLogDirsResult) -> LogDirectory:
    return LogDirectory(
        told.log_dir,
        failure(told.error_code, subject=f"directory {told.log_dir} of broker {broker_id}"),
        {
            TopicPartition(topic.name, one.partition_index): one.partition_size
            for topic in told.topics
            for one in topic.partitions
            if not one.is_future_key
        },
        told.total_bytes if told.total_bytes >= 0 else None,
        told.usable_bytes if told.usable_bytes >= 0 else None,
        {
            TopicPartition(topic.name, one.partition_index): FutureReplica(
                one.partition_size, one.offset_lag
            )
            for topic in told.topics
            for one in topic.partitions
            if one.is_future_key
        },
    )


async def alter_replica_log_dirs(
    cluster: Cluster, broker_id: int, targets: Mapping[TopicPartition, str]
) -> dict[TopicPartition, KafkaError | None]:
    """Ask a broker to move replicas; each has its own outcome."""
    deadline = cluster.deadline()
    await cluster.heard_view(deadline)
    request = AlterReplicaLogDirsRequest(dirs=[])
    for path in dict.fromkeys(targets.values()):
        topics: dict[str, AlterReplicaLogDirTopic] = {}
        for tp in (tp for tp, wanted in targets.items() if wanted == path):
            topic = topics.setdefault(tp.topic, AlterReplicaLogDirTopic(name=tp.topic))
            topic.partitions.append(tp.partition)
        request.dirs.append(AlterReplicaLogDir(path=path, topics=list(topics.values())))
    try:
        response = await cluster.call(request, deadline, broker_id)
    except ConnectionFailed as error:
        gone = KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, f"broker {broker_id}: {error}")
        return dict.fromkeys(targets, gone)
    codes = {
        TopicPartition(topic.topic_name, one.partition_index): one.error_code
        for topic in response.results
        for one in topic.partitions
    }
    missing = ErrorCode.UNKNOWN_SERVER_ERROR
    return {
        tp: failure(codes.get(tp, missing), subject=f"replica {tp} of broker {broker_id}")
        for tp in targets
    }
