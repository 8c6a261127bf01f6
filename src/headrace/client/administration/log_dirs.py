"""What the replicas of brokers take of their disks."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace.client.outcomes import failure
from headrace.client.transport.cluster import Cluster
from headrace.errors import ErrorCode, KafkaError
from headrace.net.outgoing import ConnectionFailed
from headrace.protocol.messages.describe_log_dirs import (
    DescribeLogDirsRequest,
    DescribeLogDirsResult,
)
from headrace.types import TopicPartition


@dataclass(frozen=True, slots=True)
class LogDirectory:
    """A data directory of a broker, with the bytes of each replica in it.

    One that does not work has an error and no replicas. Sizes of the disk are None where the broker
    does not tell them.
    """

    path: str
    error: KafkaError | None
    replicas: Mapping[TopicPartition, int]
    total_bytes: int | None
    usable_bytes: int | None


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
        },
        told.total_bytes if told.total_bytes >= 0 else None,
        told.usable_bytes if told.usable_bytes >= 0 else None,
    )
