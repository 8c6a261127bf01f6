"""Tables of the AlterConfigs API."""

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
    value: str | None = string(nullable="0+", default="")


class AlterConfigsResource(Struct):
    resource_type: int = int8(default=0)
    resource_name: str = string(default="")
    configs: list[AlterableConfig] = array(AlterableConfig, default=...)


class AlterConfigsRequest(Message, api_key=33, versions=(0, 2), flexible_from=2):
    resources: list[AlterConfigsResource] = array(AlterConfigsResource, default=...)
    validate_only: bool = boolean(default=False)


class AlterConfigsResourceResponse(Struct):
    error_code: int = int16(default=0)
    error_message: str | None = string(nullable="0+", default="")
    resource_type: int = int8(default=0)
    resource_name: str = string(default="")


class AlterConfigsResponse(Message, api_key=33, versions=(0, 2), flexible_from=2):
    throttle_time_ms: int = int32(default=0)
    responses: list[AlterConfigsResourceResponse] = array(AlterConfigsResourceResponse, default=...)
