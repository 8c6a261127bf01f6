"""Metadata, DescribeTopicPartitions and DescribeCluster: topics, leaders and brokers."""

from collections.abc import Awaitable, Iterable, Iterator

from headrace.broker.cluster.endpoints import controller_for_clients, endpoint_of
from headrace.broker.coordination.internal_topics import creatable_topic
from headrace.broker.forwarding import request_of_controller
from headrace.broker.request import RequestContext
from headrace.errors import ErrorCode, KafkaError
from headrace.metadata.image import PartitionImage, TopicImage
from headrace.metadata.topic_names import check_topic_name, is_internal
from headrace.protocol.messages.create_topics import CreateTopicsRequest
from headrace.protocol.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from headrace.protocol.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponseCursor,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)
from headrace.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from headrace.security.acls import CLUSTER_NAME, AclOperation, AclResourceType
from headrace.types import ZERO_UUID

_PARTITIONS_PER_DESCRIPTION_MAX = 2000
_DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED


def metadata(
    context: RequestContext, request: MetadataRequest
) -> MetadataResponse | Awaitable[MetadataResponse]:
    node = context.node
    if request.allow_auto_topic_creation and node.config.auto_create_topics_enable:
        missing = list(_missing_names(context, request.topics or ()))
        creatable = _creatable_names(context, missing)
        if missing:
            refused = dict.fromkeys(set(missing).difference(creatable), int(_DENIED))
            return _create_then_describe(context, request, creatable, refused)
    return _describe(context, request)


def _missing_names(
    context: RequestContext, requested: Iterable[MetadataRequestTopic]
) -> Iterator[str]:
    """The topics that do not exist, of those whose absence the sender may know of."""
    image = context.node.store.image
    for topic in requested:
        if topic.name is not None and topic.topic_id == ZERO_UUID:
            if topic.name in image.topics or not _may_describe(context, topic.name):
                continue
            if _unknown_topic_error(topic.name) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                yield topic.name


def _may_describe(context: RequestContext, topic: str) -> bool:
    return context.may(AclOperation.DESCRIBE, AclResourceType.TOPIC, topic)


def _creatable_names(context: RequestContext, names: list[str]) -> list[str]:
    """The topics that the sender may create."""
    create = AclOperation.CREATE
    if not names or context.sees(create, AclResourceType.CLUSTER, CLUSTER_NAME):
        return names
    return [name for name in names if context.may(create, AclResourceType.TOPIC, name)]


async def _create_then_describe(
    context: RequestContext, request: MetadataRequest, missing: list[str], refused: dict[str, int]
) -> MetadataResponse:
    """Create the missing topics that are not `refused`, and describe the requested topics."""
    node = context.node
    topics = [creatable_topic(node.config, name) for name in dict.fromkeys(missing)]
    try:
        if not topics:
            return _with_codes(_describe(context, request), refused)
        created = await request_of_controller(node, CreateTopicsRequest(topics=topics))
        # Another request may have created it at the same moment.
        done = (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS)
        refused |= {
            topic.name or "": topic.error_code
            for topic in created.topics
            if topic.error_code not in done
        }
    except KafkaError:
        # No controller was reached: clients ask again after this code, and only then.
        refused |= dict.fromkeys(missing, int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
    return _with_codes(_describe(context, request), refused)


def _with_codes(response: MetadataResponse, refused: dict[str, int]) -> MetadataResponse:
    for topic in response.topics:
        if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            # A topic created by a controller elsewhere is not known here yet.
            topic.error_code = refused.get(topic.name or "", ErrorCode.LEADER_NOT_AVAILABLE)
    return response


def _describe(context: RequestContext, request: MetadataRequest) -> MetadataResponse:
    node, image = context.node, context.node.store.image
    # In version 0 there was no null, and an empty list meant every topic.
    if request.topics is None or (context.version == 0 and not request.topics):
        topics = [
            _describe_topic(context, topic, request)
            for topic in image.topics.values()
            if context.sees(AclOperation.DESCRIBE, AclResourceType.TOPIC, topic.name)
        ]
    else:
        topics = [_describe_requested(context, requested, request) for requested in request.topics]
    response = MetadataResponse(
        brokers=[
            MetadataResponseBroker(
                node_id=broker.broker_id,
                host=endpoint.host,
                port=endpoint.port,
                rack=broker.rack,
            )
            for broker in image.brokers.values()
            if not broker.fenced and (endpoint := endpoint_of(broker, context.listener)) is not None
        ],
        cluster_id=node.cluster_id,
        controller_id=controller_for_clients(node),
        topics=topics,
    )
    if request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = context.operations_on_cluster()
    return response


def _describe_requested(
    context: RequestContext, requested: MetadataRequestTopic, request: MetadataRequest
) -> MetadataResponseTopic:
    image = context.node.store.image
    if requested.topic_id != ZERO_UUID:
        topic = image.topics_by_id.get(requested.topic_id)
        if topic is None:
            return MetadataResponseTopic(
                error_code=ErrorCode.UNKNOWN_TOPIC_ID,
                name=None if context.version >= 12 else "",
                topic_id=requested.topic_id,
            )
        if not _may_describe(context, topic.name):
            # An id is no secret, the name that belongs to it is.
            return MetadataResponseTopic(
                error_code=_DENIED,
                name=None if context.version >= 12 else "",
                topic_id=requested.topic_id,
            )
        return _describe_topic(context, topic, request)
    name = requested.name or ""
    if not _may_describe(context, name):
        return MetadataResponseTopic(error_code=_DENIED, name=name, is_internal=is_internal(name))
    topic = image.topics.get(name)
    if topic is None:
        return MetadataResponseTopic(
            error_code=_unknown_topic_error(name), name=name, is_internal=is_internal(name)
        )
    return _describe_topic(context, topic, request)


def _unknown_topic_error(name: str) -> ErrorCode:
    try:
        check_topic_name(name)
    except KafkaError as error:
        return error.code
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _describe_topic(
    context: RequestContext, topic: TopicImage, request: MetadataRequest
) -> MetadataResponseTopic:
    described = MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=is_internal(topic.name),
        partitions=[
            MetadataResponsePartition(
                error_code=0 if partition.leader >= 0 else ErrorCode.LEADER_NOT_AVAILABLE,
                partition_index=index,
                leader_id=partition.leader,
                leader_epoch=partition.leader_epoch,
                replica_nodes=list(partition.replicas),
                isr_nodes=list(partition.isr),
                offline_replicas=_offline(context, topic.name, index, partition),
            )
            for index, partition in enumerate(topic.partitions)
        ],
    )
    if request.include_topic_authorized_operations:
        described.topic_authorized_operations = context.operations_on(
            AclResourceType.TOPIC, topic.name
        )
    return described


def _offline(
    context: RequestContext, topic: str, index: int, partition: PartitionImage
) -> list[int]:
    """Replicas whose broker is fenced, or whose log is lost, even if only this node knows yet."""
    brokers = context.node.store.image.brokers
    lost = {*partition.lost_replicas, *context.node.replicas.offline_replicas(topic, index)}
    return [
        replica
        for replica in partition.replicas
        if replica in lost or (broker := brokers.get(replica)) is None or broker.fenced
    ]


def describe_topic_partitions(
    context: RequestContext, request: DescribeTopicPartitionsRequest
) -> DescribeTopicPartitionsResponse:
    image = context.node.store.image
    names, denied = _names_to_describe(context, request)
    first_partition = 0
    if request.cursor is not None:
        cursor = request.cursor
        names = [name for name in names if name >= cursor.topic_name]
        if names and names[0] == cursor.topic_name:
            first_partition = max(cursor.partition_index, 0)
    left = min(max(request.response_partition_limit, 1), _PARTITIONS_PER_DESCRIPTION_MAX)
    response = DescribeTopicPartitionsResponse(
        topics=[
            DescribeTopicPartitionsResponseTopic(
                error_code=_DENIED, name=name, is_internal=is_internal(name)
            )
            for name in denied
        ]
    )
    for name in names:
        topic = image.topics.get(name)
        if topic is None:
            response.topics.append(
                DescribeTopicPartitionsResponseTopic(
                    error_code=_unknown_topic_error(name), name=name
                )
            )
            continue
        if left == 0:
            response.next_cursor = DescribeTopicPartitionsResponseCursor(topic_name=name)
            break
        last = min(len(topic.partitions), first_partition + left)
        response.topics.append(_describe_partitions(context, topic, first_partition, last))
        left -= max(last - first_partition, 0)
        if last < len(topic.partitions):
            response.next_cursor = DescribeTopicPartitionsResponseCursor(
                topic_name=name, partition_index=last
            )
            break
        first_partition = 0
    return response


def _names_to_describe(
    context: RequestContext, request: DescribeTopicPartitionsRequest
) -> tuple[list[str], list[str]]:
    """The topics that are described, and those among the requested that must not be."""
    requested = sorted({topic.name for topic in request.topics})
    if requested:
        allowed = {name: _may_describe(context, name) for name in requested}
        return [name for name in requested if allowed[name]], [
            name for name in requested if not allowed[name]
        ]
    topics = sorted(context.node.store.image.topics)
    describe, topic_type = AclOperation.DESCRIBE, AclResourceType.TOPIC
    return [name for name in topics if context.sees(describe, topic_type, name)], []


def _describe_partitions(
    context: RequestContext, topic: TopicImage, first: int, last: int
) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=is_internal(topic.name),
        topic_authorized_operations=context.operations_on(AclResourceType.TOPIC, topic.name),
        partitions=[
            DescribeTopicPartitionsResponsePartition(
                error_code=0 if partition.leader >= 0 else ErrorCode.LEADER_NOT_AVAILABLE,
                partition_index=first + index,
                leader_id=partition.leader,
                leader_epoch=partition.leader_epoch,
                replica_nodes=list(partition.replicas),
                isr_nodes=list(partition.isr),
                # The format allows null; Kafka's Java client fails on it.
                eligible_leader_replicas=list(partition.elr),
                last_known_elr=list(partition.last_known_elr),
                offline_replicas=_offline(context, topic.name, first + index, partition),
            )
            for index, partition in enumerate(topic.partitions[first:last])
        ],
    )


_BROKERS, _CONTROLLERS = 1, 2
_NAMES = {_BROKERS: "brokers", _CONTROLLERS: "controllers"}
_NOBODY = -1


def describe_cluster(
    context: RequestContext, request: DescribeClusterRequest
) -> DescribeClusterResponse:
    endpoint_type = request.endpoint_type
    if endpoint_type not in _NAMES:
        return _refused(
            context,
            ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
            f"there is no endpoint type {endpoint_type}; use 1 for brokers or 2 for controllers",
        )
    if endpoint_type not in _endpoint_types(context):
        return _refused(
            context,
            ErrorCode.MISMATCHED_ENDPOINT_TYPE,
            f"this listener is not for {_NAMES[endpoint_type]}; use the address of one that is",
        )
    response = DescribeClusterResponse(
        endpoint_type=endpoint_type, cluster_id=context.node.cluster_id, error_message=None
    )
    if endpoint_type == _BROKERS:
        response.brokers = _brokers(context, request)
        response.controller_id = controller_for_clients(context.node)
    else:
        response.brokers = _controllers(context)
        leader_id = context.node.quorum.leader.leader_id
        listed = any(broker.broker_id == leader_id for broker in response.brokers)
        response.controller_id = leader_id if listed else _NOBODY
    if request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = context.operations_on_cluster()
    return response


def _endpoint_types(context: RequestContext) -> set[int]:
    """The kinds of nodes that the listener of a request is for: brokers, controllers or both."""
    config = context.node.config
    if context.listener in config.controller_listener_names:
        return {_CONTROLLERS}
    types = {_BROKERS} if config.is_broker else set()
    if config.is_controller and not config.controller_listener_names:
        types.add(_CONTROLLERS)
    return types


def _brokers(
    context: RequestContext, request: DescribeClusterRequest
) -> list[DescribeClusterBroker]:
    return [
        DescribeClusterBroker(
            broker_id=broker.broker_id,
            host=endpoint.host,
            port=endpoint.port,
            rack=broker.rack,
            is_fenced=broker.fenced,
        )
        for broker in context.node.store.image.brokers.values()
        if (request.include_fenced_brokers or not broker.fenced)
        and (endpoint := endpoint_of(broker, context.listener)) is not None
    ]


def _controllers(context: RequestContext) -> list[DescribeClusterBroker]:
    """The voters with a known address, and this controller if it is not a voter."""
    quorum = context.node.quorum
    ids = sorted({context.node.node_id, *(voter.node_id for voter in quorum.voters)})
    return [
        DescribeClusterBroker(broker_id=node_id, host=address.host, port=address.port, rack=None)
        for node_id in ids
        if (address := quorum.address_of(node_id)) is not None
    ]


def _refused(context: RequestContext, code: ErrorCode, text: str) -> DescribeClusterResponse:
    # Clients of version 0 do not know these codes.
    return DescribeClusterResponse(
        error_code=code if context.version > 0 else ErrorCode.INVALID_REQUEST, error_message=text
    )
