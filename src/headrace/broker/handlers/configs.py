"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs, ListConfigResources: all settings."""

from collections.abc import Mapping

from headrace.broker.forwarding import ask_controller
from headrace.broker.log_levels import check_changes, log_levels, make_changes
from headrace.broker.node import Node
from headrace.broker.request import RequestContext
from headrace.config import (
    ConfigSource,
    Described,
    describe_broker,
    describe_broker_defaults,
    describe_client_metrics,
    describe_group,
    describe_topic,
)
from headrace.errors import ErrorCode, KafkaError
from headrace.metadata.configs import alter_configs, incremental_alter_configs
from headrace.metadata.image import ResourceType
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
from headrace.protocol.messages.list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)


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
        if resource.resource_type == ResourceType.BROKER_LOGGER:
            entries = _describe_loggers(context.node, resource.resource_name)
        else:
            described = _settings_of(context.node, resource)
            entries = [
                _describe_setting(name, one, resource.resource_type, request)
                for name, one in described.items()
            ]
    except KafkaError as error:
        result.error_code, result.error_message = error.code, error.detail
        return result
    wanted = resource.configuration_keys
    result.configs = [entry for entry in entries if not wanted or entry.name in wanted]
    return result


def _settings_of(node: Node, resource: DescribeConfigsResource) -> Mapping[str, Described]:
    image, name = node.store.image, resource.resource_name
    match resource.resource_type:
        case ResourceType.TOPIC:
            if name not in image.topics:
                raise KafkaError(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}"
                )
            return describe_topic(node.config, image.config_of(ResourceType.TOPIC, name))
        case ResourceType.BROKER:
            if name == "":
                return describe_broker_defaults(image.config_of(ResourceType.BROKER, ""))
            _check_own_id(node, name)
            return describe_broker(node.config)
        case ResourceType.GROUP:
            _check_given(name, "a group")
            return describe_group(node.config, image.config_of(ResourceType.GROUP, name))
        case ResourceType.CLIENT_METRICS:
            _check_given(name, "a subscription to metrics")
            return describe_client_metrics(image.config_of(ResourceType.CLIENT_METRICS, name))
    raise KafkaError(
        ErrorCode.INVALID_REQUEST, f"resource type {resource.resource_type} has no settings here"
    )


def _check_own_id(node: Node, name: str) -> None:
    if name != str(node.node_id):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"this is broker {node.node_id}; ask broker {name!r} itself"
        )


def _check_given(name: str, kind: str) -> None:
    if not name:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"the name of {kind} must not be empty")


def _describe_loggers(node: Node, name: str) -> list[DescribeConfigsResourceResult]:
    _check_own_id(node, name)
    return [
        DescribeConfigsResourceResult(
            name=logger,
            value=level,
            read_only=False,
            config_source=ConfigSource.DYNAMIC_BROKER_LOGGER_CONFIG,
            documentation=None,
        )
        for logger, level in log_levels().items()
    ]


def _describe_setting(
    name: str, one: Described, resource_type: int, request: DescribeConfigsRequest
) -> DescribeConfigsResourceResult:
    read_only = resource_type == ResourceType.BROKER and not one.setting.dynamic
    sensitive = one.setting.sensitive
    return DescribeConfigsResourceResult(
        name=name,
        value=None if sensitive else one.value,
        read_only=read_only,
        config_source=one.source,
        is_sensitive=sensitive,
        synonyms=[
            DescribeConfigsSynonym(
                name=each.name, value=None if sensitive else each.value, source=each.source
            )
            for each in one.synonyms
        ]
        if request.include_synonyms
        else [],
        config_type=one.setting.kind,
        documentation=one.setting.doc if request.include_documentation else None,
    )


async def alter(
    context: RequestContext, request: legacy.AlterConfigsRequest
) -> legacy.AlterConfigsResponse:
    node = context.node
    try:
        return await node.store.submit(lambda image, _: alter_configs(image, request, node.config))
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


def names_loggers(request: incremental.IncrementalAlterConfigsRequest) -> bool:
    """Whether a request changes log levels, which each process has for itself."""
    return any(one.resource_type == ResourceType.BROKER_LOGGER for one in request.resources)


async def alter_incrementally(
    context: RequestContext, request: incremental.IncrementalAlterConfigsRequest
) -> incremental.IncrementalAlterConfigsResponse:
    node = context.node
    if not names_loggers(request):
        return await _alter_stored(node, request)
    # Levels are this process's own affair; the rest is the controller's, which may be another.
    stored = incremental.IncrementalAlterConfigsRequest(
        resources=[
            one for one in request.resources if one.resource_type != ResourceType.BROKER_LOGGER
        ],
        validate_only=request.validate_only,
    )
    answers = await _answers_of_controller(node, stored) if stored.resources else {}
    for one in request.resources:
        if one.resource_type == ResourceType.BROKER_LOGGER:
            error = _alter_loggers(node, one, validate_only=request.validate_only)
            answers[one.resource_type, one.resource_name] = _answer(one, error)
    named = dict.fromkeys((one.resource_type, one.resource_name) for one in request.resources)
    return incremental.IncrementalAlterConfigsResponse(responses=[answers[name] for name in named])


async def _answers_of_controller(
    node: Node, request: incremental.IncrementalAlterConfigsRequest
) -> dict[tuple[int, str], incremental.AlterConfigsResourceResponse]:
    try:
        response = await ask_controller(node, request)
    except KafkaError as error:
        response = _failed(request, error)
    return {(one.resource_type, one.resource_name): one for one in response.responses}


def _alter_loggers(
    node: Node, resource: incremental.AlterConfigsResource, *, validate_only: bool
) -> KafkaError | None:
    try:
        _check_own_id(node, resource.resource_name)
        check_changes(resource.configs)
    except KafkaError as error:
        return error
    if not validate_only:
        make_changes(resource.configs)
    return None


async def _alter_stored(
    node: Node, request: incremental.IncrementalAlterConfigsRequest
) -> incremental.IncrementalAlterConfigsResponse:
    try:
        return await node.store.submit(
            lambda image, _: incremental_alter_configs(image, request, node.config)
        )
    except KafkaError as error:
        return _failed(request, error)


def _failed(
    request: incremental.IncrementalAlterConfigsRequest, error: KafkaError
) -> incremental.IncrementalAlterConfigsResponse:
    answers = [_answer(resource, error) for resource in request.resources]
    return incremental.IncrementalAlterConfigsResponse(responses=answers)


def _answer(
    resource: incremental.AlterConfigsResource, error: KafkaError | None
) -> incremental.AlterConfigsResourceResponse:
    return incremental.AlterConfigsResourceResponse(
        error_code=0 if error is None else error.code,
        error_message=None if error is None else error.detail,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )


def list_resources(
    context: RequestContext, request: ListConfigResourcesRequest
) -> ListConfigResourcesResponse:
    """Version 0 knows client metrics only, and was called ListClientMetricsResources."""
    image = context.node.store.image
    supported = set(ResourceType) if context.version > 0 else {ResourceType.CLIENT_METRICS}
    wanted = set(request.resource_types) or supported
    if not wanted <= supported:
        return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    stored = [
        (resource_type, name)
        for resource_type, name in image.configs
        if resource_type in (ResourceType.GROUP, ResourceType.CLIENT_METRICS)
    ]
    brokers = [str(one.broker_id) for one in image.brokers.values() if not one.fenced]
    found = [
        *sorted(stored),
        *((ResourceType.BROKER_LOGGER, name) for name in brokers),
        *((ResourceType.BROKER, name) for name in brokers),
        *((ResourceType.TOPIC, name) for name in image.topics),
    ]
    return ListConfigResourcesResponse(
        config_resources=[
            ConfigResource(resource_name=name, resource_type=resource_type)
            for resource_type, name in found
            if resource_type in wanted
        ]
    )
