"""Tables of the CreateAcls API."""

from headrace.protocol.schema import (
    Message,
    Struct,
    array,
    int8,
    int16,
    int32,
    string,
)


class AclCreation(Struct):
    resource_type: int = int8(default=0)
    resource_name: str = string(default="")
    resource_pattern_type: int = int8(default=3)
    principal: str = string(default="")
    host: str = string(default="")
    operation: int = int8(default=0)
    permission_type: int = int8(default=0)


class CreateAclsRequest(Message, api_key=30, versions=(1, 3), flexible_from=2):
    creations: list[AclCreation] = array(AclCreation, default=...)


class AclCreationResult(Struct):
    error_code: int = int16(default=0)
    error_message: str | None = string(nullable="1+", default="")


class CreateAclsResponse(Message, api_key=30, versions=(1, 3), flexible_from=2):
    throttle_time_ms: int = int32(default=0)
    results: list[AclCreationResult] = array(AclCreationResult, default=...)
