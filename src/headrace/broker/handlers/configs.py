"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs: settings of topics and brokers."""

from collections.abc import Mapping

from headrace.broker.dispatch import handles
from headrace.broker.node import RequestContext
from headrace.config import Described, describe_broker, describe_topic
from headrace.errors import ErrorCode, KafkaError
from headrace.metadata.controller import alter_configs, incremental_alter_configs
from headrace.metadata.image import ResourceType
from headrace.protocol.api import ApiKey
from headrace.protocol.messages import alter_configs as legacy
from headrace.protocol.messages import incremental_alter_configs as incremental
from headrace.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)


@handles(ApiKey.DESCRIBE_CONFIGS, any_listener=True)
def describe(context: RequestContext, request: DescribeConfigsRequest) -> DescribeConfigsResponse:
    return DescribeConfigsResponse(
        results=[_describe_one(context, resource, request) for resource in request.resources]
    )


def _describe_one(
    context: RequestContext, resource: DescribeConfigsResource, request: DescribeConfigsRequest
) -> DescribeConfigsResult:
    result = DescribeConfigsResult(
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        error_message=None,
    )
    try:
        described = _settings_of(context, resource)
    except KafkaError as error:
        result.error_code, result.error_message = error.code, error.detail
        return result
    wanted = resource.configuration_keys
    result.configs = [
        _describe_setting(name, one, resource.resource_type, request)
        for name, one in described.items()
        if not wanted or name in wanted
    ]
    return result


def _settings_of(
    context: RequestContext, resource: DescribeConfigsResource
) -> Mapping[str, Described]:
    node, name = context.node, resource.resource_name
    image = node.store.image
    if resource.resource_type == ResourceType.TOPIC:
        if name not in image.topics:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}")
        return describe_topic(node.config, image.config_of(ResourceType.TOPIC, name))
    if resource.resource_type == ResourceType.BROKER:
        described = describe_broker(node.config)
        if name == "":
            defaults = image.config_of(ResourceType.BROKER, "")
            return {key: one for key, one in described.items() if key in defaults}
        if name == str(node.node_id):
            return described
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"this is broker {node.node_id}; ask broker {name!r} itself"
        )
    raise KafkaError(
        ErrorCode.INVALID_REQUEST, f"resource type {resource.resource_type} has no settings here"
    )


def _describe_setting(
    name: str, one: Described, resource_type: int, request: DescribeConfigsRequest
) -> DescribeConfigsResourceResult:
    read_only = resource_type == ResourceType.BROKER and not one.setting.dynamic
    return DescribeConfigsResourceResult(
        name=name,
        value=None if one.setting.sensitive else one.value,
        read_only=read_only,
        config_source=one.source,
        is_sensitive=one.setting.sensitive,
        synonyms=[
            DescribeConfigsSynonym(name=each.name, value=each.value, source=each.source)
            for each in one.synonyms
        ]
        if request.include_synonyms
        else [],
        config_type=one.setting.kind,
        documentation=one.setting.doc if request.include_documentation else None,
    )


@handles(ApiKey.ALTER_CONFIGS, forwarded=True)
async def alter(
    context: RequestContext, request: legacy.AlterConfigsRequest
) -> legacy.AlterConfigsResponse:
    try:
        return await context.node.store.submit(lambda image, _: alter_configs(image, request))
    except KafkaError as error:
        return legacy.AlterConfigsResponse(
            responses=[
                legacy.AlterConfigsResourceResponse(
                    error_code=error.code,
                    error_message=error.detail,
                    resource_type=resource.resource_type,
                    resource_name=resource.resource_name,
                )
                for resource in request.resources
            ]
        )


@handles(ApiKey.INCREMENTAL_ALTER_CONFIGS, forwarded=True)
async def alter_incrementally(
    context: RequestContext, request: incremental.IncrementalAlterConfigsRequest
) -> incremental.IncrementalAlterConfigsResponse:
    try:
        return await context.node.store.submit(
            lambda image, _: incremental_alter_configs(image, request)
        )
    except KafkaError as error:
        return incremental.IncrementalAlterConfigsResponse(
            responses=[
                incremental.AlterConfigsResourceResponse(
                    error_code=error.code,
                    error_message=error.detail,
                    resource_type=resource.resource_type,
                    resource_name=resource.resource_name,
                )
                for resource in request.resources
            ]
        )
