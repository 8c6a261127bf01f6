"""CreateTopics, DeleteTopics, CreatePartitions, and the reassignment of their replicas."""

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


async def create(context: RequestContext, request: CreateTopicsRequest) -> CreateTopicsResponse:
    node = context.node
    try:
        return await node.store.submit(
            lambda image, _: create_topics(image, request, config=node.config, random=node.rng)
        )
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
    try:
        return await node.store.submit(
            lambda image, _: delete_topics(image, request, config=node.config)
        )
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
    try:
        return await context.node.store.submit(lambda image, _: create_partitions(image, request))
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
