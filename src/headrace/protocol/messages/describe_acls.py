"""Tables of the DescribeAcls API."""

from headrace.protocol.schema import (
    Message,
    Struct,
    array,
    int8,
    int16,
    int32,
    string,
)


class DescribeAclsRequest(Message, api_key=29, versions=(1, 3), flexible_from=2):
    resource_type_filter: int = int8(default=0)
    resource_name_filter: str | None = string(nullable="1+", default="")
    pattern_type_filter: int = int8(default=3)
    principal_filter: str | None = string(nullable="1+", default="")
    host_filter: str | None = string(nullable="1+", default="")
    operation: int = int8(default=0)
    permission_type: int = int8(default=0)


class AclDescription(Struct):
    principal: str = string(default="")
    host: str = string(default="")
    operation: int = int8(default=0)
    permission_type: int = int8(default=0)


class DescribeAclsResource(Struct):
    resource_type: int = int8(default=0)
    resource_name: str = string(default="")
    pattern_type: int = int8(default=3)
    acls: list[AclDescription] = array(AclDescription, default=...)


class DescribeAclsResponse(Message, api_key=29, versions=(1, 3), flexible_from=2):
    throttle_time_ms: int = int32(default=0)
    error_code: int = int16(default=0)
    error_message: str | None = string(nullable="1+", default="")
    resources: list[DescribeAclsResource] = array(DescribeAclsResource, default=...)
