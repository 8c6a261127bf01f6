"""AlterPartitionReassignments, ListPartitionReassignments: moving replicas between brokers."""

from headrace.broker.request import RequestContext
from headrace.errors import KafkaError
from headrace.metadata.reassignments import (
    alter_partition_reassignments,
    list_partition_reassignments,
)
from headrace.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
)
from headrace.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)


async def alter(
    context: RequestContext, request: AlterPartitionReassignmentsRequest
) -> AlterPartitionReassignmentsResponse:
    node = context.node
    unclean = node.config.unclean_leader_election_enable
    try:
        return await node.store.submit(
            lambda image, _: alter_partition_reassignments(
                image, request, unclean_by_default=unclean
            )
        )
    except KafkaError as error:
        return AlterPartitionReassignmentsResponse(
            error_code=error.code, error_message=error.detail
        )


def listed(
    context: RequestContext, request: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    return list_partition_reassignments(context.node.store.image, request)
