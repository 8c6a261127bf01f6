"""Partition reassignments and leader elections."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace.client.admin.admin_requests import (
    ControllerRequests,
    by_topic,
    is_refused_for_now,
    retry_until_answered,
    timeout_ms,
)
from headrace.client.cluster import ClusterClient
from headrace.client.errors import check, failure
from headrace.errors import ErrorCode, KafkaError, Subject
from headrace.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from headrace.protocol.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from headrace.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)
from headrace.types import TopicPartition

_PREFERRED, _UNCLEAN = 0, 1


@dataclass(frozen=True, slots=True)
class Reassignment:
    """A partition whose replicas are being moved.

    `replicas` are all present ones: the target replicas, in their order, and those to be removed.
    """

    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]

    @property
    def target(self) -> tuple[int, ...]:
        """The replicas after the move, the preferred leader first."""
        return tuple(replica for replica in self.replicas if replica not in self.removing)


class ReassignmentAdmin:
    """Commands about reassignments and leader elections."""

    def __init__(self, cluster: ClusterClient) -> None:
        self._cluster = cluster

    async def alter(
        self,
        targets: Mapping[TopicPartition, Sequence[int] | None],
        *,
        allow_replication_factor_change: bool,
    ) -> dict[TopicPartition, KafkaError | None]:
        """Start reassignments, or cancel those whose target is None; each has its own outcome."""
        target = ControllerRequests(self._cluster)

        async def attempt(
            missing: list[TopicPartition], deadline: float
        ) -> dict[TopicPartition, KafkaError | None]:
            request = AlterPartitionReassignmentsRequest(
                timeout_ms=timeout_ms(self._cluster),
                allow_replication_factor_change=allow_replication_factor_change,
                topics=[
                    ReassignableTopic(
                        name=name,
                        partitions=[
                            _reassignable(number, targets[TopicPartition(name, number)])
                            for number in numbers
                        ],
                    )
                    for name, numbers in by_topic(missing).items()
                ],
            )
            # Repeating does no harm: setting the same target again changes nothing.
            response = await target.send(request, deadline)
            check(response.error_code, response.error_message)
            return {
                tp: failure(
                    partition.error_code, partition.error_message, Subject("partition", str(tp))
                )
                for topic in response.responses
                for partition in topic.partitions
                for tp in [TopicPartition(topic.name, partition.partition_index)]
            }

        return await retry_until_answered(self._cluster, list(targets), attempt, is_refused_for_now)

    async def listed(
        self, partitions: Sequence[TopicPartition] | None
    ) -> dict[TopicPartition, Reassignment]:
        """The reassignments under way: all, or those of some partitions."""
        target = ControllerRequests(self._cluster)
        deadline = self._cluster.deadline()
        topics = None
        if partitions is not None:
            topics = [
                ListPartitionReassignmentsTopics(name=name, partition_indexes=numbers)
                for name, numbers in by_topic(partitions).items()
            ]
        request = ListPartitionReassignmentsRequest(
            timeout_ms=timeout_ms(self._cluster), topics=topics
        )

        async def attempt() -> dict[TopicPartition, Reassignment]:
            response = await target.send(request, deadline)
            check(response.error_code, response.error_message)
            return {
                TopicPartition(topic.name, partition.partition_index): Reassignment(
                    tuple(partition.replicas),
                    tuple(partition.adding_replicas),
                    tuple(partition.removing_replicas),
                )
                for topic in response.topics
                for partition in topic.partitions
            }

        found = await self._cluster.retrying(attempt, deadline)
        return {tp: found[tp] for tp in sorted(found)}

    async def elect(
        self, partitions: Sequence[TopicPartition] | None, *, unclean: bool
    ) -> dict[TopicPartition, bool | KafkaError]:
        """Whether each partition's leader changed; for None only changed or failed partitions."""
        target = ControllerRequests(self._cluster)
        if partitions is None:
            deadline = self._cluster.deadline()
            return await self._cluster.retrying(
                lambda: self._elect(target, None, unclean, deadline), deadline
            )

        async def attempt(
            missing: list[TopicPartition], deadline: float
        ) -> dict[TopicPartition, bool | KafkaError]:
            return await self._elect(target, missing, unclean, deadline)

        return await retry_until_answered(self._cluster, partitions, attempt, is_refused_for_now)

    async def _elect(
        self,
        target: ControllerRequests,
        partitions: list[TopicPartition] | None,
        unclean: bool,
        deadline: float,
    ) -> dict[TopicPartition, bool | KafkaError]:
        topics = None
        if partitions is not None:
            topics = [
                TopicPartitions(topic=name, partitions=numbers)
                for name, numbers in by_topic(partitions).items()
            ]
        request = ElectLeadersRequest(
            election_type=_UNCLEAN if unclean else _PREFERRED,
            topic_partitions=topics,
            timeout_ms=timeout_ms(self._cluster),
        )
        # Repeating does no harm: a leader that is already elected stays.
        response = await target.send(request, deadline)
        check(response.error_code)
        outcomes: dict[TopicPartition, bool | KafkaError] = {}
        for topic in response.replica_election_results:
            for partition in topic.partition_result:
                tp = TopicPartition(topic.topic, partition.partition_id)
                if partition.error_code == ErrorCode.ELECTION_NOT_NEEDED:
                    outcomes[tp] = False
                else:
                    error = failure(
                        partition.error_code, partition.error_message, Subject("partition", str(tp))
                    )
                    outcomes[tp] = error or True
        self._cluster.forget(sorted({tp.topic for tp in outcomes}))
        return outcomes


def _reassignable(number: int, replicas: Sequence[int] | None) -> ReassignablePartition:
    return ReassignablePartition(
        partition_index=number, replicas=None if replicas is None else list(replicas)
    )
