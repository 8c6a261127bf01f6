"""Eligible leader replicas (KIP-966): who could lead a partition without being in sync."""

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.client.administration.commands import Controller
from headrace.client.transport.cluster import Cluster
from headrace.errors import ErrorCode, KafkaError
from headrace.protocol.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    TopicRequest,
)
from headrace.types import TopicPartition


@dataclass(frozen=True, slots=True)
class EligibleReplicas:
    """The replicas of a partition that are out of sync and yet sure to have every committed record.

    `last_known` were so, or in sync, until their brokers restarted uncleanly.
    """

    eligible: tuple[int, ...] = ()
    last_known: tuple[int, ...] = ()


async def describe_eligible_replicas(
    cluster: Cluster, topics: Sequence[str]
) -> dict[TopicPartition, EligibleReplicas]:
    """The partitions of topics that have any; none of a broker too old to tell."""
    target = Controller(cluster)
    deadline = cluster.deadline()
    found: dict[TopicPartition, EligibleReplicas] = {}
    cursor: Cursor | None = None
    while topics:
        request = DescribeTopicPartitionsRequest(
            topics=[TopicRequest(name=name) for name in topics], cursor=cursor
        )

        async def ask(
            request: DescribeTopicPartitionsRequest = request,
        ) -> DescribeTopicPartitionsResponse:
            response: DescribeTopicPartitionsResponse = await target.send(request, deadline)
            return response

        try:
            response = await cluster.retrying(ask, deadline)
        except KafkaError as error:
            if error.code is ErrorCode.UNSUPPORTED_VERSION:
                return {}
            raise
        for topic in response.topics:
            for one in topic.partitions:
                eligible = tuple(one.eligible_leader_replicas or ())
                last_known = tuple(one.last_known_elr or ())
                if eligible or last_known:
                    tp = TopicPartition(topic.name or "", one.partition_index)
                    found[tp] = EligibleReplicas(eligible, last_known)
        following = response.next_cursor
        if following is None:
            break
        cursor = Cursor(topic_name=following.topic_name, partition_index=following.partition_index)
    return found
