"""What groups have committed: asked for, changed, forgotten, and how far it is from the end."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.client.administration.commands import by_topic
from headrace.client.administration.groups import (
    GroupDescription,
    MemberDescription,
    group_failure,
)
from headrace.client.administration.offsets import LATEST, Offsets
from headrace.client.consumer.offsets import OffsetAndMetadata
from headrace.client.outcomes import check, failure
from headrace.client.transport.cluster import Cluster
from headrace.client.transport.coordinators import Coordinators, is_elsewhere_or_later
from headrace.errors import KafkaError
from headrace.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from headrace.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from headrace.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from headrace.types import TopicPartition

_NO_GENERATION = -1


@dataclass(frozen=True, slots=True)
class GroupProgress:
    """How far a group is in one partition. None is what nobody can say."""

    tp: TopicPartition
    committed_offset: int | None
    end_offset: int | None
    member: MemberDescription | None

    @property
    def lag(self) -> int | None:
        """Records left to read; 0 if the log now ends before the committed offset."""
        if self.committed_offset is None or self.end_offset is None:
            return None
        return max(self.end_offset - self.committed_offset, 0)


class GroupOffsets:
    """Commands about the offsets of groups.

    All of them may be sent again when an answer is lost: the second time finds what the first left.
    """

    def __init__(self, cluster: Cluster, coordinators: Coordinators) -> None:
        self._cluster = cluster
        self._coordinators = coordinators
        self._offsets = Offsets(cluster)

    async def committed(
        self, group: str, *, require_stable: bool = False
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Every offset the group has committed; none for a group that is not there.

        With `require_stable` it waits for transactions under way that have offsets of the group.
        """
        # Before version 8 a request is about one group, and names it outside the list.
        request = OffsetFetchRequest(
            group_id=group,
            topics=None,
            groups=[OffsetFetchRequestGroup(group_id=group, topics=None)],
            require_stable=require_stable,
        )

        async def ask(node: int, deadline: float) -> dict[TopicPartition, OffsetAndMetadata]:
            response = await self._cluster.call(request, deadline, node)
            answer = response.groups[0] if response.groups else response
            check(answer.error_code, subject=f"group {group}")
            names = await self._names(answer.topics, deadline)
            offsets = {}
            for tp, one in _partitions(answer.topics, names):
                check(one.error_code, subject=str(tp))
                if one.committed_offset >= 0:
                    offsets[tp] = OffsetAndMetadata(
                        one.committed_offset, one.metadata or "", one.committed_leader_epoch
                    )
            return {tp: offsets[tp] for tp in sorted(offsets)}

        return await self._coordinators.ask_one(group, ask)

    async def progress(
        self, groups: Sequence[GroupDescription]
    ) -> dict[str, tuple[GroupProgress, ...]]:
        """How far groups are in the partitions they have committed or own."""
        offsets = {group.name: await self.committed(group.name) for group in groups}
        owners = {
            group.name: {tp: one for one in group.members for tp in one.assignment or ()}
            for group in groups
        }
        partitions = {name: {*offsets[name], *owned} for name, owned in owners.items()}
        ends = await self._end_offsets({tp for some in partitions.values() for tp in some})

        def one(name: str, tp: TopicPartition) -> GroupProgress:
            committed = offsets[name].get(tp)
            return GroupProgress(
                tp,
                None if committed is None else committed.offset,
                ends.get(tp),
                owners[name].get(tp),
            )

        return {
            name: tuple(one(name, tp) for tp in sorted(some)) for name, some in partitions.items()
        }

    async def commit(
        self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> dict[TopicPartition, KafkaError | None]:
        """Commit offsets for a group without members, as a consumer that only assigns does.

        A group that is not there comes to be. One with members answers UNKNOWN_MEMBER_ID.
        """

        async def ask(node: int, deadline: float) -> dict[TopicPartition, KafkaError | None]:
            topics = await self._cluster.topics(sorted({tp.topic for tp in offsets}), deadline)
            request = OffsetCommitRequest(
                group_id=group,
                generation_id_or_member_epoch=_NO_GENERATION,
                topics=[
                    OffsetCommitRequestTopic(
                        name=name,
                        topic_id=topics[name].topic_id,
                        partitions=[
                            _committed(number, offsets[TopicPartition(name, number)])
                            for number in numbers
                        ],
                    )
                    for name, numbers in by_topic(offsets).items()
                ],
            )
            names = {topic.topic_id: topic.name for topic in topics.values()}
            return _outcomes((await self._cluster.call(request, deadline, node)).topics, names)

        return await self._coordinators.ask_one(group, ask)

    async def delete(
        self, group: str, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, KafkaError | None]:
        """Forget what a group has committed in partitions of topics no member subscribes to."""
        request = OffsetDeleteRequest(
            group_id=group,
            topics=[
                OffsetDeleteRequestTopic(
                    name=name,
                    partitions=[OffsetDeleteRequestPartition(partition_index=n) for n in numbers],
                )
                for name, numbers in by_topic(partitions).items()
            ],
        )

        async def ask(node: int, deadline: float) -> dict[TopicPartition, KafkaError | None]:
            response = await self._cluster.call(request, deadline, node)
            error = group_failure(response.error_code, None, group)
            if error is not None:
                raise error
            return _outcomes(response.topics, {})

        return await self._coordinators.ask_one(group, ask)

    async def _names(self, topics: Sequence[Any], deadline: float) -> dict[bytes, str]:
        """The names of topics by id, if an answer is of a version that has ids alone."""
        if all(topic.name for topic in topics):
            return {}
        view = await self._cluster.refresh(None, deadline)
        return {topic.topic_id: topic.name for topic in view.topics.values()}

    async def _end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Where the partitions end that still exist and have somebody to ask."""
        led = {
            TopicPartition(topic.name, partition.index)
            for topic in (await self._cluster.all_topics()).values()
            for partition in topic.partitions
            if partition.leader >= 0
        }
        wanted = dict.fromkeys(sorted(led.intersection(partitions)), LATEST)
        return {tp: one.offset for tp, one in (await self._offsets.find(wanted)).items()}


def _committed(number: int, committed: OffsetAndMetadata) -> OffsetCommitRequestPartition:
    return OffsetCommitRequestPartition(
        partition_index=number,
        committed_offset=committed.offset,
        committed_leader_epoch=committed.leader_epoch,
        committed_metadata=committed.metadata,
    )


def _partitions(
    topics: Sequence[Any], names: Mapping[bytes, str]
) -> Iterator[tuple[TopicPartition, Any]]:
    """The partitions of an answer. An id without a name is of a topic that was deleted."""
    for topic in topics:
        name = topic.name or names.get(topic.topic_id)
        if name:
            for partition in topic.partitions:
                yield TopicPartition(name, partition.partition_index), partition


def _outcomes(
    topics: Sequence[Any], names: Mapping[bytes, str]
) -> dict[TopicPartition, KafkaError | None]:
    """The outcome in each partition; raises what calls for sending the command again."""
    outcomes = {}
    for tp, partition in _partitions(topics, names):
        error = failure(partition.error_code, subject=f"partition {tp}")
        if error is not None and is_elsewhere_or_later(error):
            raise error
        outcomes[tp] = error
    return outcomes
