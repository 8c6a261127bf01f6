"""Administration of topics, and of the offsets and eligible leader replicas of partitions."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from headrace.client.admin.admin_requests import (
    ControllerRequests,
    by_topic,
    is_refused_for_now,
    passes,
    retry_until_answered,
    timeout_ms,
)
from headrace.client.admin.arguments import (
    INT16_MAX,
    INT32_MAX,
    ConfigValue,
    config_texts,
    name_of,
    number_of,
)
from headrace.client.cluster import ClusterClient
from headrace.client.cluster_metadata import TopicInfo
from headrace.client.errors import check, failure
from headrace.client.types import OffsetAndTimestamp
from headrace.errors import ErrorCode, KafkaError, Subject, unknown_topic
from headrace.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from headrace.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from headrace.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from headrace.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from headrace.protocol.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    TopicRequest,
)
from headrace.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from headrace.types import TopicPartition

BROKER_DEFAULT = -1


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create; -1 takes the broker's default for a number."""

    name: str
    partitions: int = BROKER_DEFAULT
    replication_factor: int = BROKER_DEFAULT
    configs: Mapping[str, ConfigValue] = field(default_factory=dict)

    def __post_init__(self) -> None:
        name_of(self.name, "topic")
        number_of(self.partitions, f"partitions of {self.name}", -1, INT32_MAX)
        number_of(self.replication_factor, f"replication_factor of {self.name}", -1, INT16_MAX)
        config_texts(self.configs)


@dataclass(frozen=True, slots=True)
class CreatedTopic:
    """A topic as the broker created it from a `NewTopic`."""

    name: str
    topic_id: bytes
    partitions: int
    replication_factor: int


class TopicAdmin:
    """Commands about topics."""

    def __init__(self, cluster: ClusterClient) -> None:
        self._cluster = cluster

    async def listed(self, *, internal: bool) -> dict[str, TopicInfo]:
        """Every topic, by name."""
        found = await self._cluster.all_topics()
        return {
            name: found[name] for name in sorted(found) if internal or not found[name].is_internal
        }

    async def describe(self, names: Sequence[str]) -> dict[str, TopicInfo | KafkaError]:
        """The current description of the named topics."""

        async def attempt(missing: list[str], deadline: float) -> dict[str, TopicInfo | KafkaError]:
            view = await self._cluster.refresh(missing, deadline)
            return {
                name: view.topics.get(name)
                or _not_described(name, view.errors.get(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
                for name in missing
            }

        return await retry_until_answered(self._cluster, names, attempt, passes)

    async def create(self, topics: Sequence[NewTopic]) -> dict[str, CreatedTopic | KafkaError]:
        """Create topics; each has its own outcome."""
        wanted = {topic.name: topic for topic in topics}
        target = ControllerRequests(self._cluster)

        async def attempt(
            missing: list[str], deadline: float
        ) -> dict[str, CreatedTopic | KafkaError]:
            request = CreateTopicsRequest(
                topics=[_creatable(wanted[name]) for name in missing],
                timeout_ms=timeout_ms(self._cluster),
            )
            response = await target.send_once(request, deadline)
            return {
                topic.name: failure(
                    topic.error_code, topic.error_message, Subject("topic", topic.name)
                )
                or CreatedTopic(
                    topic.name, topic.topic_id, topic.num_partitions, topic.replication_factor
                )
                for topic in response.topics
            }

        return await retry_until_answered(self._cluster, list(wanted), attempt, is_refused_for_now)

    async def delete(self, names: Sequence[str]) -> dict[str, KafkaError | None]:
        """Delete topics; each has its own outcome."""
        target = ControllerRequests(self._cluster)

        async def attempt(missing: list[str], deadline: float) -> dict[str, KafkaError | None]:
            request = DeleteTopicsRequest(
                topics=[DeleteTopicState(name=name) for name in missing],
                topic_names=list(missing),
                timeout_ms=timeout_ms(self._cluster),
            )
            response = await target.send_once(request, deadline)
            self._cluster.forget(missing)
            return {
                topic.name: failure(
                    topic.error_code, topic.error_message, Subject("topic", topic.name)
                )
                for topic in response.responses
            }

        return await retry_until_answered(self._cluster, names, attempt, is_refused_for_now)

    async def create_partitions(self, counts: Mapping[str, int]) -> dict[str, KafkaError | None]:
        """Raise the partition counts of topics; each topic has its own outcome."""
        target = ControllerRequests(self._cluster)

        async def attempt(missing: list[str], deadline: float) -> dict[str, KafkaError | None]:
            request = CreatePartitionsRequest(
                topics=[
                    CreatePartitionsTopic(name=name, count=counts[name], assignments=None)
                    for name in missing
                ],
                timeout_ms=timeout_ms(self._cluster),
            )
            response = await target.send_once(request, deadline)
            self._cluster.forget(missing)
            return {
                result.name: failure(
                    result.error_code, result.error_message, Subject("topic", result.name)
                )
                for result in response.results
            }

        return await retry_until_answered(self._cluster, list(counts), attempt, is_refused_for_now)


def _creatable(topic: NewTopic) -> CreatableTopic:
    return CreatableTopic(
        name=topic.name,
        num_partitions=topic.partitions,
        replication_factor=topic.replication_factor,
        configs=[
            CreatableTopicConfig(name=name, value=value)
            for name, value in config_texts(topic.configs).items()
        ],
    )


def _not_described(name: str, code: ErrorCode) -> KafkaError:
    if code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return unknown_topic(name)
    error = failure(code, subject=Subject("topic", name))
    assert error is not None, "a topic without an error is described"
    return error


LATEST = -1
EARLIEST = -2


class OffsetAdmin:
    """Commands about offsets, asked of the leaders of partitions."""

    def __init__(self, cluster: ClusterClient) -> None:
        self._cluster = cluster

    async def find(
        self, wanted: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        """For each partition the offset at a timestamp, or at EARLIEST or LATEST.

        Raises the first error: half an answer is none.
        """
        deadline = self._cluster.deadline()
        found: dict[TopicPartition, OffsetAndTimestamp] = {}

        async def attempt() -> None:
            missing = [tp for tp in wanted if tp not in found]
            for leader, partitions in (await self._leaders(missing, deadline)).items():
                found.update(await self._request_offsets(leader, partitions, wanted, deadline))

        if wanted:
            await self._cluster.retrying(attempt, deadline)
        return {tp: found[tp] for tp in wanted}

    async def _request_offsets(
        self,
        leader: int,
        partitions: Sequence[TopicPartition],
        wanted: Mapping[TopicPartition, int],
        deadline: float,
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        request = ListOffsetsRequest(
            replica_id=-1,
            topics=[
                ListOffsetsTopic(
                    name=name,
                    partitions=[
                        ListOffsetsPartition(
                            partition_index=number, timestamp=wanted[TopicPartition(name, number)]
                        )
                        for number in numbers
                    ],
                )
                for name, numbers in by_topic(partitions).items()
            ],
            timeout_ms=timeout_ms(self._cluster),
        )
        found = {}
        for topic in (await self._cluster.call(request, deadline, leader)).topics:
            for partition in topic.partitions:
                tp = TopicPartition(topic.name, partition.partition_index)
                check(partition.error_code, subject=Subject("partition", str(tp)))
                found[tp] = OffsetAndTimestamp(
                    partition.offset, partition.timestamp, partition.leader_epoch
                )
        return found

    async def delete_records(
        self, before: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int | KafkaError]:
        """Delete the records before offsets; the first offset of each partition after that."""

        async def attempt(
            missing: list[TopicPartition], deadline: float
        ) -> dict[TopicPartition, int | KafkaError]:
            outcomes: dict[TopicPartition, int | KafkaError] = {}
            for leader, partitions in (await self._leaders(missing, deadline)).items():
                request = DeleteRecordsRequest(
                    topics=[
                        DeleteRecordsTopic(
                            name=name,
                            partitions=[
                                DeleteRecordsPartition(
                                    partition_index=number,
                                    offset=before[TopicPartition(name, number)],
                                )
                                for number in numbers
                            ],
                        )
                        for name, numbers in by_topic(partitions).items()
                    ],
                    timeout_ms=timeout_ms(self._cluster),
                )
                # Repeating does no harm: deleted records stay deleted.
                response = await self._cluster.call(request, deadline, leader)
                for topic in response.topics:
                    for partition in topic.partitions:
                        tp = TopicPartition(topic.name, partition.partition_index)
                        error = failure(partition.error_code, subject=Subject("partition", str(tp)))
                        outcomes[tp] = error or partition.low_watermark
            return outcomes

        return await retry_until_answered(self._cluster, list(before), attempt, passes)

    async def _leaders(
        self, partitions: Iterable[TopicPartition], deadline: float
    ) -> dict[int, list[TopicPartition]]:
        wanted = list(partitions)
        # All topics in one question, instead of one for each.
        await self._cluster.topics(sorted({tp.topic for tp in wanted}), deadline)
        return await self._cluster.by_leader(wanted, deadline)


@dataclass(frozen=True, slots=True)
class EligibleReplicas:
    """The replicas of a partition that are not in sync but have every committed record.

    `last_known` were eligible, or in sync, until their brokers restarted uncleanly.
    """

    eligible: tuple[int, ...] = ()
    last_known: tuple[int, ...] = ()


async def describe_eligible_replicas(
    cluster: ClusterClient, topics: Sequence[str]
) -> dict[TopicPartition, EligibleReplicas]:
    """The partitions of topics that have eligible replicas; none if the broker is too old."""
    target = ControllerRequests(cluster)
    deadline = cluster.deadline()
    found: dict[TopicPartition, EligibleReplicas] = {}
    cursor: Cursor | None = None
    while topics:
        request = DescribeTopicPartitionsRequest(
            topics=[TopicRequest(name=name) for name in topics], cursor=cursor
        )

        async def attempt(
            request: DescribeTopicPartitionsRequest = request,
        ) -> DescribeTopicPartitionsResponse:
            response: DescribeTopicPartitionsResponse = await target.send(request, deadline)
            return response

        try:
            response = await cluster.retrying(attempt, deadline)
        except KafkaError as error:
            if error.code is ErrorCode.UNSUPPORTED_VERSION:
                return {}
            raise
        for topic in response.topics:
            for partition in topic.partitions:
                eligible = tuple(partition.eligible_leader_replicas or ())
                last_known = tuple(partition.last_known_elr or ())
                if eligible or last_known:
                    tp = TopicPartition(topic.name or "", partition.partition_index)
                    found[tp] = EligibleReplicas(eligible, last_known)
        following = response.next_cursor
        if following is None:
            break
        cursor = Cursor(topic_name=following.topic_name, partition_index=following.partition_index)
    return found
