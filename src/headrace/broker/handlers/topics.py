"""CreateTopics, DeleteTopics, CreatePartitions: commands for the metadata log."""

from headrace.broker.request import RequestContext
from headrace.errors import ErrorCode, KafkaError
from headrace.metadata.controller import create_partitions, create_topics, delete_topics
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
