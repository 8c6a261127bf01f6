"""Fetch requests of partitions that want more, and which answer belongs to which of them."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from headrace.client.consumer.subscription import PartitionState
from headrace.client.metadata import Partition, Topic
from headrace.client.options import ConsumerOptions
from headrace.client.transport.cluster import Cluster
from headrace.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from headrace.types import ZERO_UUID, TopicPartition

_SESSIONLESS = -1


class Wanted(NamedTuple):
    """A partition that is fetched, as it and its leader were when the request was made."""

    state: PartitionState
    generation: int
    offset: int
    leader_epoch: int


def wanted_of(state: PartitionState, leader: Partition | None) -> Wanted:
    """What is to be fetched of a partition now."""
    epoch = leader.leader_epoch if leader else -1
    return Wanted(state, state.generation, state.fetch_offset, epoch)


class Fetched(NamedTuple):
    """What a broker answered about one partition."""

    wanted: Wanted
    answer: PartitionData


def fetch_request(
    cluster: Cluster,
    options: ConsumerOptions,
    wanted: Sequence[Wanted],
    max_bytes: int,
    max_wait_ms: int,
) -> FetchRequest:
    """A request outside of a fetch session; the partitions are served in this order."""
    topics: dict[str, FetchTopic] = {}
    for state, _, offset, leader_epoch in wanted:
        name = state.tp.topic
        if name not in topics:
            topics[name] = FetchTopic(topic=name, topic_id=_topic_id(cluster.known_topic(name)))
        topics[name].partitions.append(
            FetchPartition(
                partition=state.tp.partition,
                current_leader_epoch=leader_epoch,
                fetch_offset=offset,
                partition_max_bytes=state.max_bytes or options.max_partition_fetch_bytes,
            )
        )
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=options.fetch_min_bytes,
        max_bytes=max(max_bytes, *(one.state.max_bytes for one in wanted)),
        isolation_level=options.isolation_level,
        session_epoch=_SESSIONLESS,
        topics=list(topics.values()),
        rack_id=options.client_rack,
    )


def fetched_partitions(
    request: FetchRequest, response: FetchResponse, wanted: Sequence[Wanted]
) -> list[Fetched]:
    """The answers about partitions that were asked about; later versions name topics by id."""
    names: Mapping[bytes, str] = {topic.topic_id: topic.topic for topic in request.topics}
    asked = {one.state.tp: one for one in wanted}
    found = []
    for topic in response.responses:
        name = topic.topic or names.get(topic.topic_id, "")
        for answer in topic.partitions:
            one = asked.get(TopicPartition(name, answer.partition_index))
            if one is not None:
                found.append(Fetched(one, answer))
    return found


def _topic_id(topic: Topic | None) -> bytes:
    return topic.topic_id if topic else ZERO_UUID
