"""Tables of the SyncGroup API."""

from headrace.protocol.schema import (
    Message,
    Struct,
    array,
    int16,
    int32,
    raw,
    string,
)


class SyncGroupRequestAssignment(Struct):
    member_id: str = string(default="")
    assignment: bytes = raw(default=b"")


class SyncGroupRequest(Message, api_key=14, versions=(0, 5), flexible_from=4):
    group_id: str = string(default="")
    generation_id: int = int32(default=0)
    member_id: str = string(default="")
    group_instance_id: str | None = string("3+", nullable="3+", default=None)
    protocol_type: str | None = string("5+", nullable="5+", default=None)
    protocol_name: str | None = string("5+", nullable="5+", default=None)
    assignments: list[SyncGroupRequestAssignment] = array(SyncGroupRequestAssignment, default=...)


class SyncGroupResponse(Message, api_key=14, versions=(0, 5), flexible_from=4):
    throttle_time_ms: int = int32("1+", default=0)
    error_code: int = int16(default=0)
    protocol_type: str | None = string("5+", nullable="5+", default=None)
    protocol_name: str | None = string("5+", nullable="5+", default=None)
    assignment: bytes = raw(default=b"")
