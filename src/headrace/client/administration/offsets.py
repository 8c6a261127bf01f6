"""Offsets of partitions: asked for by time, and records deleted before them."""

from collections.abc import Iterable, Mapping, Sequence

from headrace.client.administration.commands import by_topic, passes, settle, timeout_ms
from headrace.client.consumer.offsets import OffsetAndTimestamp
from headrace.client.outcomes import check, failure
from headrace.client.transport.cluster import Cluster
from headrace.errors import KafkaError
from headrace.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from headrace.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from headrace.types import TopicPartition

LATEST = -1
EARLIEST = -2


class Offsets:
    """Commands about offsets, asked of the leaders of partitions."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def find(
        self, wanted: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        """For each partition the offset at a timestamp, or at EARLIEST or LATEST.

        Raises the first error: half an answer is none.
        """
        deadline = self._cluster.deadline()
        found: dict[TopicPartition, OffsetAndTimestamp] = {}

        async def ask() -> None:
            missing = [tp for tp in wanted if tp not in found]
            for leader, partitions in (await self._leaders(missing, deadline)).items():
                found.update(await self._ask_offsets(leader, partitions, wanted, deadline))

        if wanted:
            await self._cluster.retrying(ask, deadline)
        return {tp: found[tp] for tp in wanted}

    async def _ask_offsets(
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
            for one in topic.partitions:
                tp = TopicPartition(topic.name, one.partition_index)
                check(one.error_code, subject=str(tp))
                found[tp] = OffsetAndTimestamp(one.offset, one.timestamp, one.leader_epoch)
        return found

    async def delete_records(
        self, before: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int | KafkaError]:
        """Delete the records before offsets; the first offset of each partition after that."""

        async def ask(
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
                # Once more does no harm: what is gone is gone.
                response = await self._cluster.call(request, deadline, leader)
                for topic in response.topics:
                    for one in topic.partitions:
                        tp = TopicPartition(topic.name, one.partition_index)
                        error = failure(one.error_code, subject=f"partition {tp}")
                        outcomes[tp] = error or one.low_watermark
            return outcomes

        return await settle(self._cluster, list(before), ask, passes)

    async def _leaders(
        self, partitions: Iterable[TopicPartition], deadline: float
    ) -> dict[int, list[TopicPartition]]:
        wanted = list(partitions)
        # All topics in one question, instead of one for each.
        await self._cluster.topics(sorted({tp.topic for tp in wanted}), deadline)
        return await self._cluster.by_leader(wanted, deadline)
