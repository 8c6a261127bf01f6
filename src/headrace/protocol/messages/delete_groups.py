"""Tables of the DeleteGroups API."""

from headrace.protocol.schema import (
    Message,
    Struct,
    array,
    int16,
    int32,
    string,
)


class DeleteGroupsRequest(Message, api_key=42, versions=(0, 2), flexible_from=2):
    groups_names: list[str] = array(string, default=...)


class DeletableGroupResult(Struct):
    group_id: str = string(default="")
    error_code: int = int16(default=0)


class DeleteGroupsResponse(Message, api_key=42, versions=(0, 2), flexible_from=2):
    throttle_time_ms: int = int32(default=0)
    results: list[DeletableGroupResult] = array(DeletableGroupResult, default=...)
