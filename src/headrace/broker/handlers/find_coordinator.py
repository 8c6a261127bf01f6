"""FindCoordinator: the broker that coordinates a group, or a transactional id."""

from collections.abc import Awaitable
from typing import Any

from headrace.broker.cluster.endpoints import endpoint_of
from headrace.broker.coordination.internal_topics import (
    create_offsets_topic,
    create_transactions_topic,
)
from headrace.broker.coordination.runtime import CoordinatorRuntime
from headrace.broker.node import Node
from headrace.broker.request import RequestContext
from headrace.errors import ErrorCode, KafkaError
from headrace.protocol.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)

_GROUP = 0
_TRANSACTION = 1
_SHARE = 2  # Share groups have coordinators in Kafka, but not here yet.
_BATCHED_SINCE = 4


def find_coordinator(
    context: RequestContext, request: FindCoordinatorRequest
) -> FindCoordinatorResponse | Awaitable[FindCoordinatorResponse]:
    coordinators = _coordinators(context.node, request.key_type)
    if coordinators is not None and not coordinators.partition_count:
        # Also while another request creates the topic: its partitions do not exist yet.
        return _create_then_find(context, request)
    return _find_all(context, request)


async def _create_then_find(
    context: RequestContext, request: FindCoordinatorRequest
) -> FindCoordinatorResponse:
    create = create_offsets_topic if request.key_type == _GROUP else create_transactions_topic
    try:
        await create(context.node)
    except KafkaError as error:
        return _respond(context, [_failed(key, error) for key in _keys(context, request)])
    return _find_all(context, request)


def _coordinators(node: Node, key_type: int) -> CoordinatorRuntime[Any] | None:
    if key_type == _GROUP:
        return node.groups
    return node.transactions.shards if key_type == _TRANSACTION else None


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
    coordinators = _coordinators(node, key_type)
    if coordinators is None:
        if key_type == _SHARE:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "there are no share groups yet")
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"there is no coordinator of kind {key_type}")
    image = node.store.image
    topic = image.topics.get(coordinators.topic)
    if topic is None or not coordinators.partition_count:
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    leader = topic.partitions[coordinators.partition_of(key)].leader
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
    coordinator = found[0]
    return FindCoordinatorResponse(
        error_code=coordinator.error_code,
        error_message=coordinator.error_message,
        node_id=coordinator.node_id,
        host=coordinator.host,
        port=coordinator.port,
    )
