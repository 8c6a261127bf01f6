"""Tables of the ListConfigResources API."""

from headrace.protocol.schema import (
    Message,
    Struct,
    array,
    int8,
    int16,
    int32,
    string,
)


class ListConfigResourcesRequest(Message, api_key=74, versions=(0, 1), flexible_from=0):
    resource_types: list[int] = array(int8, "1+", default=...)


class ConfigResource(Struct):
    resource_name: str = string(default="")
    resource_type: int = int8("1+", default=16)


class ListConfigResourcesResponse(Message, api_key=74, versions=(0, 1), flexible_from=0):
    throttle_time_ms: int = int32(default=0)
    error_code: int = int16(default=0)
    config_resources: list[ConfigResource] = array(ConfigResource, default=...)
