"""Access rules of the APIs about topics and their records.

Metadata, DescribeTopicPartitions and Fetch are not here: they ask in their handlers, since they may
be about topics that the request does not name.
"""

from collections.abc import Callable
from typing import Any

from headrace.broker.access.rules import (
    EACH_PARTITION,
    EACH_TOPIC,
    AccessRule,
    NeededRight,
    may_topic,
    remove_denied,
    right,
    with_refused,
)
from headrace.broker.request import Denial, RequestContext
from headrace.errors import ErrorCode, ProtocolError
from headrace.protocol.messages import (
    create_partitions,
    create_topics,
    delete_records,
    delete_topics,
    describe_producers,
    list_offsets,
    offset_for_leader_epoch,
    produce,
)
from headrace.security.acls import CLUSTER_NAME, AclOperation, AclResourceType
from headrace.types import ZERO_UUID

_TOPIC, _CLUSTER = AclResourceType.TOPIC, AclResourceType.CLUSTER
_DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED


# -- Produce


def _refused_batches(
    topic: produce.TopicProduceData, code: ErrorCode
) -> produce.TopicProduceResponse:
    return produce.TopicProduceResponse(
        name=topic.name,
        topic_id=topic.topic_id,
        partition_responses=[
            produce.PartitionProduceResponse(index=data.index, error_code=code, base_offset=-1)
            for data in topic.partition_data
        ],
    )


def _check_produce(context: RequestContext, request: produce.ProduceRequest) -> Denial:
    transactional_id = request.transactional_id
    code = _DENIED
    if transactional_id is not None and not context.may(
        AclOperation.WRITE, AclResourceType.TRANSACTIONAL_ID, transactional_id
    ):
        code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        denied, request.topic_data = request.topic_data, []
    else:
        denied = remove_denied(
            request, "topic_data", lambda topic: may_topic(context, AclOperation.WRITE, topic)
        )
    if denied and request.acks == 0:
        return _close_after(context, code, anything_left=bool(request.topic_data))
    return with_refused(
        context,
        "responses",
        [_refused_batches(topic, code) for topic in denied],
        anything_left=bool(request.topic_data),
    )


def _close_after(context: RequestContext, code: ErrorCode, *, anything_left: bool) -> Denial:
    """Close the connection after the append of allowed records: acks=0 has no response."""
    error = ProtocolError(f"Produce with acks=0 of {context.principal} failed: {code.name}")
    if not anything_left:
        raise error

    def close(response: Any) -> None:
        raise error

    return close


PRODUCE = AccessRule(
    (
        right(AclOperation.WRITE, _TOPIC, EACH_PARTITION),
        right(
            AclOperation.WRITE,
            AclResourceType.TRANSACTIONAL_ID,
            "each partition",
            "if the request names one",
        ),
    ),
    _check_produce,
)


# -- Requests about partitions by their topics' names


def _by_topic(
    operation: AclOperation,
    refused: Callable[[Any], Any],
    *,
    field: str = "topics",
    place: str = EACH_PARTITION,
    followers: bool = False,
) -> AccessRule:
    """A right to each topic of a request; with `followers`, that of the cluster does as well."""

    def check(context: RequestContext, request: Any) -> Denial:
        if followers and context.sees(AclOperation.CLUSTER_ACTION, _CLUSTER, CLUSTER_NAME):
            return None
        denied = remove_denied(
            request, "topics", lambda topic: may_topic(context, operation, topic)
        )
        return with_refused(
            context, field, map(refused, denied), anything_left=bool(request.topics)
        )

    instead = (AclOperation.CLUSTER_ACTION, _CLUSTER) if followers else None
    return AccessRule((right(operation, _TOPIC, place, instead=instead),), check)


LIST_OFFSETS = _by_topic(
    AclOperation.DESCRIBE,
    lambda topic: list_offsets.ListOffsetsTopicResponse(
        name=topic.name,
        partitions=[
            list_offsets.ListOffsetsPartitionResponse(
                partition_index=partition.partition_index, error_code=_DENIED
            )
            for partition in topic.partitions
        ],
    ),
)

OFFSET_FOR_LEADER_EPOCH = _by_topic(
    AclOperation.DESCRIBE,
    lambda topic: offset_for_leader_epoch.OffsetForLeaderTopicResult(
        topic=topic.topic,
        partitions=[
            offset_for_leader_epoch.EpochEndOffset(
                partition=partition.partition, error_code=_DENIED
            )
            for partition in topic.partitions
        ],
    ),
    followers=True,
)

DELETE_RECORDS = _by_topic(
    AclOperation.DELETE,
    lambda topic: delete_records.DeleteRecordsTopicResult(
        name=topic.name,
        partitions=[
            delete_records.DeleteRecordsPartitionResult(
                partition_index=partition.partition_index, low_watermark=-1, error_code=_DENIED
            )
            for partition in topic.partitions
        ],
    ),
)

DESCRIBE_PRODUCERS = _by_topic(
    AclOperation.READ,
    lambda topic: describe_producers.TopicResponse(
        name=topic.name,
        partitions=[
            describe_producers.PartitionResponse(partition_index=index, error_code=_DENIED)
            for index in topic.partition_indexes
        ],
    ),
)

CREATE_PARTITIONS = _by_topic(
    AclOperation.ALTER,
    lambda topic: create_partitions.CreatePartitionsTopicResult(
        name=topic.name, error_code=_DENIED
    ),
    field="results",
    place=EACH_TOPIC,
)


# -- CreateTopics and DeleteTopics


def _check_create(context: RequestContext, request: create_topics.CreateTopicsRequest) -> Denial:
    denied: list[create_topics.CreatableTopic] = []
    if not context.sees(AclOperation.CREATE, _CLUSTER, CLUSTER_NAME):
        denied = remove_denied(
            request, "topics", lambda topic: may_topic(context, AclOperation.CREATE, topic)
        )
    refused = [
        create_topics.CreatableTopicResult(
            name=topic.name, error_code=_DENIED, error_message=None, configs=None
        )
        for topic in denied
    ]
    hidden = {
        topic.name
        for topic in request.topics
        if not context.sees(AclOperation.DESCRIBE_CONFIGS, _TOPIC, topic.name)
    }
    if not hidden:
        return with_refused(context, "topics", refused, anything_left=bool(request.topics))

    def add(response: create_topics.CreateTopicsResponse) -> None:
        for created in response.topics:
            if created.name in hidden and not created.error_code:
                created.topic_config_error_code = _DENIED
                created.num_partitions = created.replication_factor = -1
                created.configs = None
        response.topics.extend(refused)

    return add


CREATE_TOPICS = AccessRule(
    (
        right(AclOperation.CREATE, _TOPIC, EACH_TOPIC, instead=(AclOperation.CREATE, _CLUSTER)),
        right(
            AclOperation.DESCRIBE_CONFIGS,
            _TOPIC,
            "the configs of each topic that is created",
            "the topic is created all the same",
        ),
    ),
    _check_create,
)


def _check_delete(context: RequestContext, request: delete_topics.DeleteTopicsRequest) -> Denial:
    results = []
    for topic in remove_denied(
        request, "topics", lambda topic: may_topic(context, AclOperation.DELETE, topic)
    ):
        result = delete_topics.DeletableTopicResult(
            name=topic.name, topic_id=topic.topic_id, error_code=_DENIED
        )
        if topic.topic_id != ZERO_UUID:
            # Whoever may not describe the topic is not told the name that belongs to the id.
            known = context.node.store.image.topics_by_id[topic.topic_id]
            seen = context.sees(AclOperation.DESCRIBE, _TOPIC, known.name)
            result.name = known.name if seen else None
        results.append(result)
    names = remove_denied(
        request, "topic_names", lambda name: context.may(AclOperation.DELETE, _TOPIC, name)
    )
    results += [delete_topics.DeletableTopicResult(name=name, error_code=_DENIED) for name in names]
    anything_left = bool(request.topics or request.topic_names)
    return with_refused(context, "responses", results, anything_left=anything_left)


DELETE_TOPICS = AccessRule(
    (
        right(AclOperation.DELETE, _TOPIC, EACH_TOPIC),
        NeededRight(
            AclOperation.DESCRIBE,
            _TOPIC,
            "each such topic, without the name that belongs to an id",
            _DENIED,
            "asked of a topic that may not be deleted",
        ),
    ),
    _check_delete,
)


# -- Rights that handlers ask for

METADATA = AccessRule(
    (
        right(
            AclOperation.DESCRIBE,
            _TOPIC,
            EACH_TOPIC,
            "a topic that was not asked for is left out; no id is told",
        ),
        right(
            AclOperation.CREATE,
            _TOPIC,
            EACH_TOPIC,
            "if the topic would be created",
            instead=(AclOperation.CREATE, _CLUSTER),
        ),
    )
)
DESCRIBE_TOPIC_PARTITIONS = AccessRule(
    (
        right(
            AclOperation.DESCRIBE,
            _TOPIC,
            EACH_TOPIC,
            "a topic that was not asked for is left out; no id is told",
        ),
    )
)
FETCH = AccessRule(
    (
        right(AclOperation.READ, _TOPIC, EACH_PARTITION, "of consumers"),
        NeededRight(
            AclOperation.CLUSTER_ACTION,
            _CLUSTER,
            "each partition",
            _DENIED,
            "of followers; that of the metadata log is refused as a whole",
        ),
    )
)
