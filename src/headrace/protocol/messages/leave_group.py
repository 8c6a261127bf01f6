"""Tables of the LeaveGroup API."""

from headrace.protocol.schema import (
    Message,
    Struct,
    array,
    int16,
    int32,
    string,
)


class MemberIdentity(Struct):
    member_id: str = string("3+", default="")
    group_instance_id: str | None = string("3+", nullable="3+", default=None)
    reason: str | None = string("5+", nullable="5+", default=None)


class LeaveGroupRequest(Message, api_key=13, versions=(0, 5), flexible_from=4):
    group_id: str = string(default="")
    member_id: str = string("0-2", default="")
    members: list[MemberIdentity] = array(MemberIdentity, "3+", default=...)


class MemberResponse(Struct):
    member_id: str = string("3+", default="")
    group_instance_id: str | None = string("3+", nullable="3+", default="")
    error_code: int = int16("3+", default=0)


class LeaveGroupResponse(Message, api_key=13, versions=(0, 5), flexible_from=4):
    throttle_time_ms: int = int32("1+", default=0)
    error_code: int = int16(default=0)
    members: list[MemberResponse] = array(MemberResponse, "3+", default=...)
