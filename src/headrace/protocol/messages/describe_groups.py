"""Tables of the DescribeGroups API."""

from headrace.protocol.schema import (
    Message,
    Struct,
    array,
    boolean,
    int16,
    int32,
    raw,
    string,
)


class DescribeGroupsRequest(Message, api_key=15, versions=(0, 6), flexible_from=5):
    groups: list[str] = array(string, default=...)
    include_authorized_operations: bool = boolean("3+", default=False)


class DescribedGroupMember(Struct):
    member_id: str = string(default="")
    group_instance_id: str | None = string("4+", nullable="4+", default=None)
    client_id: str = string(default="")
    client_host: str = string(default="")
    member_metadata: bytes = raw(default=b"")
    member_assignment: bytes = raw(default=b"")


class DescribedGroup(Struct):
    error_code: int = int16(default=0)
    error_message: str | None = string("6+", nullable="6+", default=None)
    group_id: str = string(default="")
    group_state: str = string(default="")
    protocol_type: str = string(default="")
    protocol_data: str = string(default="")
    members: list[DescribedGroupMember] = array(DescribedGroupMember, default=...)
    authorized_operations: int = int32("3+", default=-2147483648)


class DescribeGroupsResponse(Message, api_key=15, versions=(0, 6), flexible_from=5):
    throttle_time_ms: int = int32("1+", default=0)
    groups: list[DescribedGroup] = array(DescribedGroup, default=...)
