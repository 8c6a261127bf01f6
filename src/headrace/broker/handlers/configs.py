"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs, ListConfigResources: all settings."""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from headrace.broker.forwarding import request_of_controller
from headrace.broker.log_levels import check_changes, log_levels, make_changes
from headrace.broker.node import Node
from headrace.broker.request import RequestContext
from headrace.broker.security_records import submit_security_change
from headrace.config import (
    ConfigSource,
    DescribedSetting,
    describe_broker,
    describe_broker_defaults,
    describe_client_metrics,
    describe_group,
    describe_topic,
)
from headrace.errors import ErrorCode, KafkaError, unknown_topic
from headrace.metadata.configs import alter_configs, incremental_alter_configs
from headrace.metadata.image import ConfigResourceType, Image
from headrace.metadata.records import CommandResult
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

Response = TypeVar("Response")


def describe(context: RequestContext, request: DescribeConfigsRequest) -> DescribeConfigsResponse:
    return DescribeConfigsResponse(
        results=[_describe_resource(context, resource, request) for resource in request.resources]
    )


def _describe_resource(
    context: RequestContext, resource: DescribeConfigsResource, request: DescribeConfigsRequest
) -> DescribeConfigsResult:
    result = DescribeConfigsResult(
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        error_message=None,
    )
    try:
        if resource.resource_type == ConfigResourceType.ROLE:
            entries = _describe_role(context.node, resource.resource_name)
        elif resource.resource_type == ConfigResourceType.BROKER_LOGGER:
            entries = _describe_loggers(context.node, resource.resource_name)
        else:
            described = _settings_of(context.node, resource)
            entries = [
                _describe_setting(name, setting, resource.resource_type, request)
                for name, setting in described.items()
            ]
    except KafkaError as error:
        result.error_code, result.error_message = error.code, error.detail
        return result
    names = resource.configuration_keys
    result.configs = [entry for entry in entries if not names or entry.name in names]
    return result


def _settings_of(node: Node, resource: DescribeConfigsResource) -> Mapping[str, DescribedSetting]:
    image, name = node.store.image, resource.resource_name
    match resource.resource_type:
        case ConfigResourceType.TOPIC:
            if name not in image.topics:
                raise unknown_topic(name)
            return describe_topic(node.config, image.config_of(ConfigResourceType.TOPIC, name))
        case ConfigResourceType.BROKER:
            if name == "":
                return describe_broker_defaults(image.config_of(ConfigResourceType.BROKER, ""))
            _check_own_id(node, name)
            return describe_broker(node.config)
        case ConfigResourceType.GROUP:
            _check_given(name, "a group")
            return describe_group(node.config, image.config_of(ConfigResourceType.GROUP, name))
        case ConfigResourceType.CLIENT_METRICS:
            _check_given(name, "a subscription to metrics")
            return describe_client_metrics(image.config_of(ConfigResourceType.CLIENT_METRICS, name))
    raise KafkaError(
        ErrorCode.INVALID_REQUEST, f"resource type {resource.resource_type} has no settings here"
    )


def _check_own_id(node: Node, name: str) -> None:
    if name != str(node.node_id):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"this is broker {node.node_id}",
            advice=f"ask broker {name!r} itself",
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


def _describe_role(node: Node, name: str) -> list[DescribeConfigsResourceResult]:
    """The description and the members of a role."""
    settings = node.store.image.config_of(ConfigResourceType.ROLE, name)
    if not settings:
        raise KafkaError(ErrorCode.RESOURCE_NOT_FOUND, f"there is no role {name!r}")
    return [
        DescribeConfigsResourceResult(
            name=setting,
            value=value,
            config_source=ConfigSource.GROUP_CONFIG,
            documentation=None,
        )
        for setting, value in sorted(settings.items())
    ]


def _describe_setting(
    name: str, described: DescribedSetting, resource_type: int, request: DescribeConfigsRequest
) -> DescribeConfigsResourceResult:
    read_only = resource_type == ConfigResourceType.BROKER and not described.setting.dynamic
    sensitive = described.setting.sensitive
    return DescribeConfigsResourceResult(
        name=name,
        value=None if sensitive else described.value,
        read_only=read_only,
        config_source=described.source,
        is_sensitive=sensitive,
        synonyms=[
            DescribeConfigsSynonym(
                name=synonym.name, value=None if sensitive else synonym.value, source=synonym.source
            )
            for synonym in described.synonyms
        ]
        if request.include_synonyms
        else [],
        config_type=described.setting.type.config_type,
        documentation=described.setting.doc if request.include_documentation else None,
    )


async def alter(
    context: RequestContext, request: legacy.AlterConfigsRequest
) -> legacy.AlterConfigsResponse:
    node = context.node
    try:
        return await _submit(
            node, request.resources, lambda image: alter_configs(image, request, node.config)
        )
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


def changes_log_levels(request: incremental.IncrementalAlterConfigsRequest) -> bool:
    """Whether a request changes log levels, which each process has for itself."""
    return any(
        resource.resource_type == ConfigResourceType.BROKER_LOGGER for resource in request.resources
    )


async def alter_incrementally(
    context: RequestContext, request: incremental.IncrementalAlterConfigsRequest
) -> incremental.IncrementalAlterConfigsResponse:
    node = context.node
    if not changes_log_levels(request):
        return await _alter_stored(node, request)
    # Log levels are changed in this process, the rest at the controller, maybe another node.
    stored = incremental.IncrementalAlterConfigsRequest(
        resources=[
            resource
            for resource in request.resources
            if resource.resource_type != ConfigResourceType.BROKER_LOGGER
        ],
        validate_only=request.validate_only,
    )
    answers = await _answers_of_controller(node, stored) if stored.resources else {}
    for resource in request.resources:
        if resource.resource_type == ConfigResourceType.BROKER_LOGGER:
            error = _alter_loggers(node, resource, validate_only=request.validate_only)
            answers[resource.resource_type, resource.resource_name] = _answer(resource, error)
    named = dict.fromkeys(
        (resource.resource_type, resource.resource_name) for resource in request.resources
    )
    return incremental.IncrementalAlterConfigsResponse(responses=[answers[name] for name in named])


async def _answers_of_controller(
    node: Node, request: incremental.IncrementalAlterConfigsRequest
) -> dict[tuple[int, str], incremental.AlterConfigsResourceResponse]:
    try:
        response = await request_of_controller(node, request)
    except KafkaError as error:
        response = _failed(request, error)
    return {(answer.resource_type, answer.resource_name): answer for answer in response.responses}


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
        return await _submit(
            node,
            request.resources,
            lambda image: incremental_alter_configs(image, request, node.config),
        )
    except KafkaError as error:
        return _failed(request, error)


async def _submit(
    node: Node,
    resources: Sequence[legacy.AlterConfigsResource | incremental.AlterConfigsResource],
    command: Callable[[Image], CommandResult[Response]],
) -> Response:
    """Submit a change of settings; those of roles are records that an older node does not know."""
    if any(resource.resource_type == ConfigResourceType.ROLE for resource in resources):
        return await submit_security_change(node, command)
    return await node.store.submit(lambda image, _: command(image))


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
    """List config resources; version 0, ListClientMetricsResources, has client metrics only."""
    image = context.node.store.image
    supported = (
        set(ConfigResourceType) if context.version > 0 else {ConfigResourceType.CLIENT_METRICS}
    )
    # Tools of Kafka, which ask for no type, do not know the type of roles.
    requested = set(request.resource_types) or supported - {ConfigResourceType.ROLE}
    if not requested <= supported:
        return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    stored = [
        (resource_type, name)
        for resource_type, name in image.configs
        if resource_type
        in (
            ConfigResourceType.GROUP,
            ConfigResourceType.CLIENT_METRICS,
            ConfigResourceType.ROLE,
        )
    ]
    brokers = [str(broker.broker_id) for broker in image.brokers.values() if not broker.fenced]
    found = [
        *sorted(stored),
        *((ConfigResourceType.BROKER_LOGGER, name) for name in brokers),
        *((ConfigResourceType.BROKER, name) for name in brokers),
        *((ConfigResourceType.TOPIC, name) for name in image.topics),
    ]
    return ListConfigResourcesResponse(
        config_resources=[
            ConfigResource(resource_name=name, resource_type=resource_type)
            for resource_type, name in found
            if resource_type in requested
        ]
    )
