"""What the replicas of brokers take of their disks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace.client.administration.commands import passes, settle
from headrace.client.outcomes import failure
from headrace.client.transport.cluster import Cluster
from headrace.errors import KafkaError
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
    """The data directories of brokers; each broker has its own outcome."""

    async def ask(
        missing: list[int], deadline: float
    ) -> dict[int, tuple[LogDirectory, ...] | KafkaError]:
        outcomes: dict[int, tuple[LogDirectory, ...] | KafkaError] = {}
        for broker_id in missing:
            request = DescribeLogDirsRequest(topics=None)
            response = await cluster.call(request, deadline, broker_id)
            outcomes[broker_id] = failure(
                response.error_code, subject=f"broker {broker_id}"
            ) or tuple(_directory(broker_id, one) for one in response.results)
        return outcomes

    return await settle(cluster, broker_ids, ask, passes)


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
