"""Tables of the DescribeConfigs API."""

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


class DescribeConfigsResource(Struct):
    resource_type: int = int8(default=0)
    resource_name: str = string(default="")
    configuration_keys: list[str] | None = array(string, nullable="1+", default=...)


class DescribeConfigsRequest(Message, api_key=32, versions=(1, 4), flexible_from=4):
    resources: list[DescribeConfigsResource] = array(DescribeConfigsResource, default=...)
    include_synonyms: bool = boolean(default=False)
    include_documentation: bool = boolean("3+", default=False)


class DescribeConfigsSynonym(Struct):
    name: str = string(default="")
    value: str | None = string(nullable="1+", default="")
    source: int = int8(default=0)


class DescribeConfigsResourceResult(Struct):
    name: str = string(default="")
    value: str | None = string(nullable="1+", default="")
    read_only: bool = boolean(default=False)
    config_source: int = int8(default=-1)
    is_sensitive: bool = boolean(default=False)
    synonyms: list[DescribeConfigsSynonym] = array(DescribeConfigsSynonym, default=...)
    config_type: int = int8("3+", default=0)
    documentation: str | None = string("3+", nullable="3+", default="")


class DescribeConfigsResult(Struct):
    error_code: int = int16(default=0)
    error_message: str | None = string(nullable="1+", default="")
    resource_type: int = int8(default=0)
    resource_name: str = string(default="")
    configs: list[DescribeConfigsResourceResult] = array(DescribeConfigsResourceResult, default=...)


class DescribeConfigsResponse(Message, api_key=32, versions=(1, 4), flexible_from=4):
    throttle_time_ms: int = int32(default=0)
    results: list[DescribeConfigsResult] = array(DescribeConfigsResult, default=...)
