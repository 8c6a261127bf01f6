"""CreateTopics, DeleteTopics, CreatePartitions, and the reassignment of their replicas."""

from headrace.broker.forwarding import OWN_HOSTS
from headrace.broker.quotas import MutationCharge
from headrace.broker.request import RequestContext
from headrace.errors import ErrorCode, KafkaError
from headrace.metadata.reassignments import (
    alter_partition_reassignments,
    list_partition_reassignments,
)
from headrace.metadata.topics import create_partitions, create_topics, delete_topics
from headrace.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
)
from headrace.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopicResult,
)
from headrace.protocol.messages.create_topics import (
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from headrace.protocol.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from headrace.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)

# From these versions on clients know THROTTLING_QUOTA_EXCEEDED (KIP-599).
_STRICT_CREATE_TOPICS_SINCE = 6
_STRICT_DELETE_TOPICS_SINCE = 5
_STRICT_CREATE_PARTITIONS_SINCE = 3


def _mutation_charge(context: RequestContext, strict_since: int) -> MutationCharge:
    """The charge of a request to the quota of its client on changes of topics."""
    quotas = context.node.quotas
    limits = None
    # Topics that brokers create for themselves, the internal ones, are charged to nobody.
    if quotas.active and context.host not in OWN_HOSTS:
        limits = quotas.limits_of(context.principal.name, context.client_id)
    return MutationCharge(
        None if limits is None else limits.mutation,
        context.node.clock.monotonic,
        strict=context.version >= strict_since,
    )


async def create(context: RequestContext, request: CreateTopicsRequest) -> CreateTopicsResponse:
    node = context.node
    charge = _mutation_charge(context, _STRICT_CREATE_TOPICS_SINCE)
    try:
        response = await node.store.submit(
            lambda image, _: create_topics(
                image, request, config=node.config, random=node.rng, charge=charge.charge
            )
        )
        response.throttle_time_ms = charge.throttle_time_ms
        return response
    except KafkaError as error:
        code, text = error.code, error.detail
    return CreateTopicsResponse(
        topics=[
            CreatableTopicResult(name=topic.name, error_code=code, error_message=text)
            for topic in request.topics
        ]
    )


async def delete(context: RequestContext, request: DeleteTopicsRequest) -> DeleteTopicsResponse:
    node = context.node
    charge = _mutation_charge(context, _STRICT_DELETE_TOPICS_SINCE)
    try:
        response = await node.store.submit(
            lambda image, _: delete_topics(image, request, config=node.config, charge=charge.charge)
        )
        response.throttle_time_ms = charge.throttle_time_ms
        return response
    except KafkaError as error:
        code: ErrorCode = error.code
    results = [
        DeletableTopicResult(name=topic.name, topic_id=topic.topic_id, error_code=code)
        for topic in request.topics
    ]
    results += [DeletableTopicResult(name=name, error_code=code) for name in request.topic_names]
    return DeleteTopicsResponse(responses=results)


async def add_partitions(
    context: RequestContext, request: CreatePartitionsRequest
) -> CreatePartitionsResponse:
    charge = _mutation_charge(context, _STRICT_CREATE_PARTITIONS_SINCE)
    try:
        response = await context.node.store.submit(
            lambda image, _: create_partitions(image, request, charge=charge.charge)
        )
        response.throttle_time_ms = charge.throttle_time_ms
        return response
    except KafkaError as error:
        code, text = error.code, error.detail
    return CreatePartitionsResponse(
        results=[
            CreatePartitionsTopicResult(name=topic.name, error_code=code, error_message=text)
            for topic in request.topics
        ]
    )


async def alter_reassignments(
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


def list_reassignments(
    context: RequestContext, request: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    return list_partition_reassignments(context.node.store.image, request)
