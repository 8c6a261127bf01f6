"""Tables of the IncrementalAlterConfigs API."""

from headrace.protocol.schema import (
    Message,
    Struct,
    array,
    boolean,
    int8,
    int16,
    int32,
    string,
)


class AlterableConfig(Struct):
    name: str = string(default="")
    config_operation: int = int8(default=0)
    value: str | None = string(nullable="0+", default="")


class AlterConfigsResource(Struct):
    resource_type: int = int8(default=0)
    resource_name: str = string(default="")
    configs: list[AlterableConfig] = array(AlterableConfig, default=...)


class IncrementalAlterConfigsRequest(Message, api_key=44, versions=(0, 1), flexible_from=1):
    resources: list[AlterConfigsResource] = array(AlterConfigsResource, default=...)
    validate_only: bool = boolean(default=False)


class AlterConfigsResourceResponse(Struct):
    error_code: int = int16(default=0)
    error_message: str | None = string(nullable="0+", default="")
    resource_type: int = int8(default=0)
    resource_name: str = string(default="")


class IncrementalAlterConfigsResponse(Message, api_key=44, versions=(0, 1), flexible_from=1):
    throttle_time_ms: int = int32(default=0)
    responses: list[AlterConfigsResourceResponse] = array(AlterConfigsResourceResponse, default=...)
