"""Committed offsets of a group, written to and read from its coordinator.

Rule: an attempt that fails because the coordinator has moved, or is not ready yet, is repeated
before the deadline; committing the same offsets twice does no harm.
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from headrace.client.cluster import ClusterClient
from headrace.client.cluster_metadata import TopicInfo
from headrace.client.consumer.consumer_protocol import numbers_by_topic
from headrace.client.consumer.group_membership import MembershipIdentity
from headrace.client.coordinator_lookup import CoordinatorLookup
from headrace.client.errors import failure
from headrace.client.types import OffsetAndMetadata
from headrace.errors import ErrorCode, KafkaError, Subject, error_code, unknown_partition
from headrace.net.client_connection import ClientConnection
from headrace.protocol.apis import Api
from headrace.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from headrace.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from headrace.types import ZERO_UUID, TopicPartition

# The version from which OffsetCommit and OffsetFetch name topics by id (KIP-848).
_TOPIC_IDS = 10
_UNKNOWN_TOPIC = frozenset(
    (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
    )
)


class CommittedOffsets:
    """The offsets of one group, at its current coordinator. Loop-bound."""

    def __init__(
        self,
        cluster: ClusterClient,
        coordinators: CoordinatorLookup,
        group_id: str,
        instance_id: str | None,
    ) -> None:
        self._cluster = cluster
        self._coordinators = coordinators
        self._group_id = group_id
        self._instance_id = instance_id

    async def commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        deadline: float,
        committer: Callable[[], Awaitable[MembershipIdentity]],
        refused: Callable[[MembershipIdentity, ErrorCode], None],
    ) -> None:
        """Commit offsets with the identity that `committer` returns before each attempt.

        `refused` is called with the error code of each failed partition, and may raise. Offsets in
        a topic whose name another topic has by now are left out: they mean nothing there.
        """

        async def attempt(node: int, deadline: float) -> None:
            identity = await committer()
            connection = await self._cluster.connection(node, deadline)
            topics = await self._topics(connection, Api.OFFSET_COMMIT, offsets, deadline)
            valid = [
                tp for tp, offset in offsets.items() if _is_of_topic(offset, topics.get(tp.topic))
            ]
            if not valid:
                return
            request = OffsetCommitRequest(
                group_id=self._group_id,
                generation_id_or_member_epoch=identity.generation,
                member_id=identity.member_id,
                group_instance_id=self._instance_id if identity.member_id else None,
                topics=[
                    OffsetCommitRequestTopic(
                        name=name,
                        topic_id=_id_of(topics, name),
                        partitions=[
                            _partition(number, offsets[TopicPartition(name, number)])
                            for number in numbers
                        ],
                    )
                    for name, numbers in numbers_by_topic(valid).items()
                ],
            )
            response = await connection.ask(request, self._left_s(deadline))
            for tp, partition in _partitions(response.topics, topics):
                code = error_code(partition.error_code)
                if code is not ErrorCode.NONE:
                    refused(identity, code)
                    await self._check(tp, code, deadline)

        await self._coordinators.ask_one(self._group_id, attempt, deadline)

    async def fetch(
        self, partitions: Iterable[TopicPartition], deadline: float
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """The last committed offset of each partition, or None.

        Waits for pending transactions that have offsets of the group.
        """
        wanted = list(dict.fromkeys(partitions))
        if not wanted:
            return {}

        async def attempt(
            node: int, deadline: float
        ) -> dict[TopicPartition, OffsetAndMetadata | None]:
            connection = await self._cluster.connection(node, deadline)
            topics = await self._topics(connection, Api.OFFSET_FETCH, wanted, deadline)
            request = self._fetch_request(wanted, topics)
            response = await connection.ask(request, self._left_s(deadline))
            answer = response.groups[0] if response.groups else response
            error = failure(answer.error_code, subject=Subject("group", self._group_id))
            if error is not None:
                raise error
            found: dict[TopicPartition, OffsetAndMetadata | None] = dict.fromkeys(wanted)
            for tp, partition in _partitions(answer.topics, topics):
                code = error_code(partition.error_code)
                if code is not ErrorCode.NONE:
                    await self._check(tp, code, deadline)
                elif partition.committed_offset >= 0:
                    found[tp] = OffsetAndMetadata(
                        partition.committed_offset,
                        partition.metadata or "",
                        partition.committed_leader_epoch,
                    )
            return found

        return await self._coordinators.ask_one(self._group_id, attempt, deadline)

    def _fetch_request(
        self, wanted: Iterable[TopicPartition], topics: Mapping[str, TopicInfo]
    ) -> OffsetFetchRequest:
        """The OffsetFetch request. Before version 8 it has one group, named outside the list."""
        numbers_of = numbers_by_topic(wanted)
        return OffsetFetchRequest(
            group_id=self._group_id,
            topics=[
                OffsetFetchRequestTopic(name=name, partition_indexes=numbers)
                for name, numbers in numbers_of.items()
            ],
            groups=[
                OffsetFetchRequestGroup(
                    group_id=self._group_id,
                    topics=[
                        OffsetFetchRequestTopics(
                            name=name, topic_id=_id_of(topics, name), partition_indexes=numbers
                        )
                        for name, numbers in numbers_of.items()
                    ],
                )
            ],
            require_stable=True,
        )

    async def _topics(
        self,
        connection: ClientConnection,
        api_key: Api,
        partitions: Iterable[TopicPartition],
        deadline: float,
    ) -> dict[str, TopicInfo]:
        """The topics of partitions, if the request's version has topic ids; else none."""
        if connection.version_of(api_key) < _TOPIC_IDS:
            return {}
        return await self._cluster.topics(sorted({tp.topic for tp in partitions}), deadline)

    async def _check(self, tp: TopicPartition, code: ErrorCode, deadline: float) -> None:
        """Raise the error of a refused partition; a deleted topic is reported as unknown."""
        if code in _UNKNOWN_TOPIC:
            self._cluster.forget([tp.topic])
            topic = (await self._cluster.topics([tp.topic], deadline))[tp.topic]
            if topic.partition(tp.partition) is None:
                raise unknown_partition(tp.topic, tp.partition, len(topic.partitions))
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"the coordinator misses {tp}")
        error = failure(code, subject=Subject("partition", str(tp)))
        if error is not None:
            raise error

    def _left_s(self, deadline: float) -> float:
        """The time limit of one request, short enough to ask another broker before the deadline."""
        left_s = deadline - self._cluster.clock.monotonic()
        return max(min(left_s, self._cluster.request_timeout_s), 0.001)


def _partition(number: int, committed: OffsetAndMetadata) -> OffsetCommitRequestPartition:
    return OffsetCommitRequestPartition(
        partition_index=number,
        committed_offset=committed.offset,
        committed_leader_epoch=committed.leader_epoch,
        committed_metadata=committed.metadata,
    )


def _is_of_topic(committed: OffsetAndMetadata, topic: TopicInfo | None) -> bool:
    """Whether an offset is of the topic that has its name now, as far as ids are known."""
    return (
        topic is None
        or committed.topic_id == ZERO_UUID
        or topic.topic_id in (committed.topic_id, ZERO_UUID)
    )


def _id_of(topics: Mapping[str, TopicInfo], name: str) -> bytes:
    return topics[name].topic_id if name in topics else ZERO_UUID


def _partitions(
    answered: Sequence[Any], topics: Mapping[str, TopicInfo]
) -> Iterator[tuple[TopicPartition, Any]]:
    """The partitions of a response, which names topics by name or by id."""
    names = {topic.topic_id: topic.name for topic in topics.values()}
    for topic in answered:
        name = topic.name or names.get(topic.topic_id, "")
        for partition in topic.partitions:
            yield TopicPartition(name, partition.partition_index), partition
