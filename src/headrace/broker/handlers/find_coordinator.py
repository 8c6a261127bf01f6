"""FindCoordinator: which broker keeps a group."""

from collections.abc import Awaitable

from headrace.broker.cluster.endpoints import endpoint_of
from headrace.broker.coordination.coordinators import OFFSETS_TOPIC
from headrace.broker.dispatch import ask_controller, handles
from headrace.broker.node import Node, RequestContext
from headrace.errors import ErrorCode, KafkaError
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from headrace.protocol.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)

_GROUP = 0
_KINDS = (_GROUP, 1, 2)  # Transactions and share groups have coordinators too, if not here yet.
_BATCHED_SINCE = 4


@handles(ApiKey.FIND_COORDINATOR)
def find_coordinator(
    context: RequestContext, request: FindCoordinatorRequest
) -> FindCoordinatorResponse | Awaitable[FindCoordinatorResponse]:
    if request.key_type == _GROUP and not context.node.groups.partition_count:
        # Also while somebody else's request creates the topic: its partitions are not there yet.
        return _create_then_find(context, request)
    return _find_all(context, request)


async def _create_then_find(
    context: RequestContext, request: FindCoordinatorRequest
) -> FindCoordinatorResponse:
    try:
        await _create_offsets_topic(context.node)
    except KafkaError as error:
        return _respond(context, [_failed(key, error) for key in _keys(context, request)])
    return _find_all(context, request)


async def _create_offsets_topic(node: Node) -> None:
    config = node.config
    settings = {
        # Nothing may expire by age or size: a group's last commit counts however old it is.
        "retention.ms": "-1",
        "retention.bytes": "-1",
        "segment.bytes": str(config.offsets_topic_segment_bytes),
        "compression.type": "producer",
    }
    topic = CreatableTopic(
        name=OFFSETS_TOPIC,
        num_partitions=config.offsets_topic_num_partitions,
        replication_factor=config.offsets_topic_replication_factor,
        configs=[CreatableTopicConfig(name=name, value=text) for name, text in settings.items()],
    )
    created = await ask_controller(node, CreateTopicsRequest(topics=[topic]))
    code = created.topics[0].error_code
    if code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
        raise KafkaError(
            ErrorCode.COORDINATOR_NOT_AVAILABLE,
            f"{OFFSETS_TOPIC} cannot be created: {created.topics[0].error_message}",
        )


def _find_all(context: RequestContext, request: FindCoordinatorRequest) -> FindCoordinatorResponse:
    found = []
    for key in _keys(context, request):
        try:
            found.append(_find(context, key, request.key_type))
        except KafkaError as error:
            found.append(_failed(key, error))
    return _respond(context, found)


def _keys(context: RequestContext, request: FindCoordinatorRequest) -> list[str]:
    return request.coordinator_keys if context.version >= _BATCHED_SINCE else [request.key]


def _find(context: RequestContext, key: str, key_type: int) -> Coordinator:
    node = context.node
    if key_type not in _KINDS:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"there is no coordinator of kind {key_type}")
    if key_type != _GROUP:
        raise KafkaError(
            ErrorCode.COORDINATOR_NOT_AVAILABLE, "only groups have a coordinator for now"
        )
    image = node.store.image
    topic = image.topics.get(OFFSETS_TOPIC)
    if topic is None or not node.groups.partition_count:
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    leader = topic.partitions[node.groups.partition_of(key)].leader
    broker = image.brokers.get(leader)
    if broker is None or broker.fenced:
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    endpoint = endpoint_of(broker, context.listener)
    if endpoint is None:
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    return Coordinator(
        key=key, node_id=leader, host=endpoint.host, port=endpoint.port, error_message=None
    )


def _failed(key: str, error: KafkaError) -> Coordinator:
    return Coordinator(
        key=key,
        node_id=-1,
        host="",
        port=-1,
        error_code=error.code,
        error_message=error.detail or None,
    )


def _respond(context: RequestContext, found: list[Coordinator]) -> FindCoordinatorResponse:
    if context.version >= _BATCHED_SINCE:
        return FindCoordinatorResponse(coordinators=found)
    one = found[0]
    return FindCoordinatorResponse(
        error_code=one.error_code,
        error_message=one.error_message,
        node_id=one.node_id,
        host=one.host,
        port=one.port,
    )
