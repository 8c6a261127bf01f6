"""Tables of the DeleteAcls API."""

from headrace.protocol.schema import (
    Message,
    Struct,
    array,
    int8,
    int16,
    int32,
    string,
)


class DeleteAclsFilter(Struct):
    resource_type_filter: int = int8(default=0)
    resource_name_filter: str | None = string(nullable="1+", default="")
    pattern_type_filter: int = int8(default=3)
    principal_filter: str | None = string(nullable="1+", default="")
    host_filter: str | None = string(nullable="1+", default="")
    operation: int = int8(default=0)
    permission_type: int = int8(default=0)


class DeleteAclsRequest(Message, api_key=31, versions=(1, 3), flexible_from=2):
    filters: list[DeleteAclsFilter] = array(DeleteAclsFilter, default=...)


class DeleteAclsMatchingAcl(Struct):
    error_code: int = int16(default=0)
    error_message: str | None = string(nullable="1+", default="")
    resource_type: int = int8(default=0)
    resource_name: str = string(default="")
    pattern_type: int = int8(default=3)
    principal: str = string(default="")
    host: str = string(default="")
    operation: int = int8(default=0)
    permission_type: int = int8(default=0)


class DeleteAclsFilterResult(Struct):
    error_code: int = int16(default=0)
    error_message: str | None = string(nullable="1+", default="")
    matching_acls: list[DeleteAclsMatchingAcl] = array(DeleteAclsMatchingAcl, default=...)


class DeleteAclsResponse(Message, api_key=31, versions=(1, 3), flexible_from=2):
    throttle_time_ms: int = int32(default=0)
    filter_results: list[DeleteAclsFilterResult] = array(DeleteAclsFilterResult, default=...)
