"""DescribeCluster: the brokers of the cluster, or its controllers (KIP-919)."""

from headrace.broker.cluster.endpoints import controller_for_clients, endpoint_of
from headrace.broker.dispatch import handles
from headrace.broker.node import RequestContext
from headrace.broker.operations import CLUSTER_OPERATIONS
from headrace.errors import ErrorCode
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)

_BROKERS, _CONTROLLERS = 1, 2
_NAMES = {_BROKERS: "brokers", _CONTROLLERS: "controllers"}
_NOBODY = -1


@handles(ApiKey.DESCRIBE_CLUSTER, any_listener=True)
def describe_cluster(
    context: RequestContext, request: DescribeClusterRequest
) -> DescribeClusterResponse:
    wanted = request.endpoint_type
    if wanted not in _NAMES:
        return _refused(
            context,
            ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
            f"there is no endpoint type {wanted}; use 1 for brokers or 2 for controllers",
        )
    if wanted not in _endpoint_types(context):
        return _refused(
            context,
            ErrorCode.MISMATCHED_ENDPOINT_TYPE,
            f"this listener is not for {_NAMES[wanted]}; use the address of one that is",
        )
    response = DescribeClusterResponse(
        endpoint_type=wanted, cluster_id=context.node.cluster_id, error_message=None
    )
    if wanted == _BROKERS:
        response.brokers = _brokers(context, request)
        response.controller_id = controller_for_clients(context.node)
    else:
        response.brokers = _controllers(context)
        leader_id = context.node.quorum.leader.leader_id
        listed = any(one.broker_id == leader_id for one in response.brokers)
        response.controller_id = leader_id if listed else _NOBODY
    if request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = CLUSTER_OPERATIONS
    return response


def _endpoint_types(context: RequestContext) -> set[int]:
    """Which nodes are reached at the listener of a request; at one for both, both."""
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
    """The voters whose addresses are known, and this controller if it is none of them."""
    quorum = context.node.quorum
    ids = sorted({context.node.node_id, *(voter.node_id for voter in quorum.voters)})
    return [
        DescribeClusterBroker(broker_id=node_id, host=address.host, port=address.port, rack=None)
        for node_id in ids
        if (address := quorum.address_of(node_id)) is not None
    ]


def _refused(context: RequestContext, code: ErrorCode, text: str) -> DescribeClusterResponse:
    # The codes are younger than version 0.
    return DescribeClusterResponse(
        error_code=code if context.version > 0 else ErrorCode.INVALID_REQUEST, error_message=text
    )
