"""DescribeCluster: the brokers of the cluster."""

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

_BROKERS = 1


@handles(ApiKey.DESCRIBE_CLUSTER, any_listener=True)
def describe_cluster(
    context: RequestContext, request: DescribeClusterRequest
) -> DescribeClusterResponse:
    node = context.node
    if request.endpoint_type != _BROKERS:
        return DescribeClusterResponse(
            error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE,
            error_message="this listener is a broker's; ask for endpoint type 1",
        )
    response = DescribeClusterResponse(
        cluster_id=node.cluster_id,
        controller_id=controller_for_clients(node),
        brokers=[
            DescribeClusterBroker(
                broker_id=broker.broker_id,
                host=endpoint.host,
                port=endpoint.port,
                rack=broker.rack,
                is_fenced=broker.fenced,
            )
            for broker in node.store.image.brokers.values()
            if (request.include_fenced_brokers or not broker.fenced)
            and (endpoint := endpoint_of(broker, context.listener)) is not None
        ],
    )
    if request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = CLUSTER_OPERATIONS
    return response
