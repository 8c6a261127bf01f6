"""ListOffsets requests: offsets by timestamp, and the beginnings and ends of logs.

Rule: successful responses are kept; only partitions without a result are requested again.
"""

import asyncio
from collections.abc import Mapping, Sequence

from headrace.client.cluster import ClusterClient
from headrace.client.consumer_options import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from headrace.client.errors import failure
from headrace.client.types import OffsetAndTimestamp
from headrace.errors import KafkaError, Subject
from headrace.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from headrace.types import TopicPartition

# A broker's answer for a time after the last record.
NOTHING = -1

_CONSUMER = -1


async def list_offsets(
    cluster: ClusterClient,
    wanted: Mapping[TopicPartition, int],
    deadline: float,
    isolation_level: int = 0,
) -> dict[TopicPartition, OffsetAndTimestamp]:
    """The offset of each partition at a timestamp or an end of the log; -1 if there is none."""
    found: dict[TopicPartition, OffsetAndTimestamp] = {}

    async def attempt_leader(
        leader: int, partitions: Sequence[TopicPartition]
    ) -> KafkaError | None:
        request = _request(cluster, {tp: wanted[tp] for tp in partitions}, isolation_level)
        request.timeout_ms = int(cluster.request_timeout_s * 1000)
        answered, error = outcomes(await cluster.call(request, deadline, leader))
        found.update(answered)
        return error

    async def attempt() -> dict[TopicPartition, OffsetAndTimestamp]:
        leaders = await cluster.by_leader([tp for tp in wanted if tp not in found], deadline)
        asked = [attempt_leader(leader, partitions) for leader, partitions in leaders.items()]
        for outcome in await asyncio.gather(*asked, return_exceptions=True):
            if outcome is not None:
                raise outcome
        return found

    return await cluster.retrying(attempt, deadline)


def outcomes(
    response: ListOffsetsResponse,
) -> tuple[dict[TopicPartition, OffsetAndTimestamp], KafkaError | None]:
    """The offsets in a response, and its first error."""
    found: dict[TopicPartition, OffsetAndTimestamp] = {}
    first: KafkaError | None = None
    for topic in response.topics:
        for partition in topic.partitions:
            tp = TopicPartition(topic.name, partition.partition_index)
            error = failure(partition.error_code, subject=Subject("partition", str(tp)))
            if error is None:
                found[tp] = OffsetAndTimestamp(
                    partition.offset, partition.timestamp, partition.leader_epoch
                )
            else:
                first = first or error
    return found, first


def _request(
    cluster: ClusterClient, wanted: Mapping[TopicPartition, int], isolation_level: int
) -> ListOffsetsRequest:
    topics: dict[str, list[ListOffsetsPartition]] = {}
    for tp, timestamp in wanted.items():
        known = cluster.leader_of(tp)
        topics.setdefault(tp.topic, []).append(
            ListOffsetsPartition(
                partition_index=tp.partition,
                current_leader_epoch=known.leader_epoch if known else -1,
                timestamp=timestamp,
            )
        )
    return ListOffsetsRequest(
        replica_id=_CONSUMER,
        isolation_level=isolation_level,
        topics=[ListOffsetsTopic(name=name, partitions=asked) for name, asked in topics.items()],
    )


async def reset_offsets(
    cluster: ClusterClient,
    wanted: Mapping[TopicPartition, int],
    deadline: float,
    isolation_level: int = 0,
) -> dict[TopicPartition, int]:
    """The first offset at or after each timestamp; the end if all records are older."""
    found = await list_offsets(cluster, wanted, deadline, isolation_level)
    missing = [tp for tp, result in found.items() if result.offset == NOTHING]
    if missing:
        ends = dict.fromkeys(missing, LATEST_TIMESTAMP)
        found |= await list_offsets(cluster, ends, deadline, isolation_level)
    return {tp: result.offset for tp, result in found.items()}


async def beginning_offsets(
    cluster: ClusterClient, partitions: Sequence[TopicPartition], deadline: float
) -> dict[TopicPartition, int]:
    """The first offset of each partition's log."""
    found = await list_offsets(cluster, dict.fromkeys(partitions, EARLIEST_TIMESTAMP), deadline)
    return {tp: found[tp].offset for tp in partitions}


async def end_offsets(
    cluster: ClusterClient,
    partitions: Sequence[TopicPartition],
    deadline: float,
    isolation_level: int,
) -> dict[TopicPartition, int]:
    """The end offset of each partition, as far as the isolation level allows to read."""
    wanted = dict.fromkeys(partitions, LATEST_TIMESTAMP)
    found = await list_offsets(cluster, wanted, deadline, isolation_level)
    return {tp: found[tp].offset for tp in partitions}


async def offsets_for_times(
    cluster: ClusterClient,
    times: Mapping[TopicPartition, int],
    deadline: float,
    isolation_level: int,
) -> dict[TopicPartition, OffsetAndTimestamp | None]:
    """The first record at or after each time, in milliseconds; None if all records are older."""
    found = await list_offsets(cluster, times, deadline, isolation_level)
    return {tp: found[tp] if found[tp].offset != NOTHING else None for tp in times}
