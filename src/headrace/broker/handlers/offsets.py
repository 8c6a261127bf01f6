"""OffsetCommit, OffsetFetch, OffsetDelete: where groups are in their partitions."""

from collections.abc import Awaitable

from headrace.broker.handlers.groups import ask_shard
from headrace.broker.request import RequestContext
from headrace.coordinator.offsets import refused_commit
from headrace.errors import ErrorCode, KafkaError
from headrace.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from headrace.protocol.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from headrace.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)

_COMMIT_TOPIC_IDS_SINCE = 10
_FETCH_GROUPS_SINCE = 8
_FETCH_TOPIC_IDS_SINCE = 10


def offset_commit(
    context: RequestContext, request: OffsetCommitRequest
) -> OffsetCommitResponse | Awaitable[OffsetCommitResponse]:
    unknown: list[OffsetCommitResponseTopic] = []
    known: list[OffsetCommitRequestTopic] = []
    for topic in request.topics:
        _sort_out(context, topic, known, unknown)
    request.topics = known
    if not known and unknown:
        return OffsetCommitResponse(topics=unknown)
    answer = ask_shard(
        context, request.group_id, request, lambda code: refused_commit(request, code)
    )
    if isinstance(answer, OffsetCommitResponse):
        return _with_unknown(answer, unknown)
    return _with_unknown_later(answer, unknown)


def _sort_out(
    context: RequestContext,
    topic: OffsetCommitRequestTopic,
    known: list[OffsetCommitRequestTopic],
    unknown: list[OffsetCommitResponseTopic],
) -> None:
    """Split a topic's partitions into those that exist, by name, and errors for the others."""
    image = context.node.store.image
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    found = image.topics.get(topic.name)
    if context.version >= _COMMIT_TOPIC_IDS_SINCE:
        code = ErrorCode.UNKNOWN_TOPIC_ID
        found = image.topics_by_id.get(topic.topic_id)
    count = 0 if found is None else len(found.partitions)
    there = [one for one in topic.partitions if 0 <= one.partition_index < count]
    if found is not None and there:
        known.append(
            OffsetCommitRequestTopic(name=found.name, topic_id=found.topic_id, partitions=there)
        )
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if len(there) < len(topic.partitions):
        unknown.append(
            OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    OffsetCommitResponsePartition(
                        partition_index=one.partition_index, error_code=code
                    )
                    for one in topic.partitions
                    if not 0 <= one.partition_index < count
                ],
            )
        )


def _with_unknown(
    response: OffsetCommitResponse, unknown: list[OffsetCommitResponseTopic]
) -> OffsetCommitResponse:
    known = {topic.name: topic for topic in response.topics}
    for topic in unknown:
        if topic.name in known and topic.name:
            known[topic.name].partitions += topic.partitions
        else:
            response.topics.append(topic)
    return response


async def _with_unknown_later(
    answer: Awaitable[OffsetCommitResponse], unknown: list[OffsetCommitResponseTopic]
) -> OffsetCommitResponse:
    return _with_unknown(await answer, unknown)


def offset_fetch(context: RequestContext, request: OffsetFetchRequest) -> OffsetFetchResponse:
    if context.version >= _FETCH_GROUPS_SINCE:
        stable = request.require_stable
        return OffsetFetchResponse(
            groups=[_fetch(context, group, stable) for group in request.groups]
        )
    topics = None
    if request.topics is not None:
        topics = [
            OffsetFetchRequestTopics(name=topic.name, partition_indexes=topic.partition_indexes)
            for topic in request.topics
        ]
    group = OffsetFetchRequestGroup(group_id=request.group_id, topics=topics)
    fetched = _fetch(context, group, request.require_stable)
    return OffsetFetchResponse(
        error_code=fetched.error_code,
        topics=[
            OffsetFetchResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetFetchResponsePartition(
                        partition_index=one.partition_index,
                        committed_offset=one.committed_offset,
                        committed_leader_epoch=one.committed_leader_epoch,
                        metadata=one.metadata,
                        error_code=one.error_code,
                    )
                    for one in topic.partitions
                ],
            )
            for topic in fetched.topics
        ],
    )


def _fetch(
    context: RequestContext, group: OffsetFetchRequestGroup, require_stable: bool
) -> OffsetFetchResponseGroup:
    image = context.node.store.image
    unknown: list[OffsetFetchResponseTopics] = []
    if context.version >= _FETCH_TOPIC_IDS_SINCE and group.topics is not None:
        named = []
        for topic in group.topics:
            found = image.topics_by_id.get(topic.topic_id)
            if found is None:
                unknown.append(_unknown_topic(topic))
            else:
                topic.name = found.name
                named.append(topic)
        group.topics = named
    try:
        shard = context.node.groups.driver_of(group.group_id).shard
        fetched = shard.fetch_offsets(group, require_stable)
    except KafkaError as error:
        return OffsetFetchResponseGroup(group_id=group.group_id, error_code=error.code)
    if context.version >= _FETCH_TOPIC_IDS_SINCE:
        there = [one for one in fetched.topics if one.name in image.topics]
        for one in there:
            one.topic_id = image.topics[one.name].topic_id
        fetched.topics = there + unknown
    return fetched


def _unknown_topic(topic: OffsetFetchRequestTopics) -> OffsetFetchResponseTopics:
    return OffsetFetchResponseTopics(
        topic_id=topic.topic_id,
        partitions=[
            OffsetFetchResponsePartitions(
                partition_index=index,
                committed_offset=-1,
                error_code=ErrorCode.UNKNOWN_TOPIC_ID,
            )
            for index in topic.partition_indexes
        ],
    )


def offset_delete(
    context: RequestContext, request: OffsetDeleteRequest
) -> OffsetDeleteResponse | Awaitable[OffsetDeleteResponse]:
    return ask_shard(
        context, request.group_id, request, lambda code: OffsetDeleteResponse(error_code=code)
    )
