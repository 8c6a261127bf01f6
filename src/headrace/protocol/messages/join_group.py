"""Tables of the JoinGroup API."""

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


class JoinGroupRequestProtocol(Struct):
    name: str = string(default="")
    metadata: bytes = raw(default=b"")


class JoinGroupRequest(Message, api_key=11, versions=(0, 9), flexible_from=6):
    group_id: str = string(default="")
    session_timeout_ms: int = int32(default=0)
    rebalance_timeout_ms: int = int32("1+", default=-1)
    member_id: str = string(default="")
    group_instance_id: str | None = string("5+", nullable="5+", default=None)
    protocol_type: str = string(default="")
    protocols: list[JoinGroupRequestProtocol] = array(JoinGroupRequestProtocol, default=...)
    reason: str | None = string("8+", nullable="8+", default=None)


class JoinGroupResponseMember(Struct):
    member_id: str = string(default="")
    group_instance_id: str | None = string("5+", nullable="5+", default=None)
    metadata: bytes = raw(default=b"")


class JoinGroupResponse(Message, api_key=11, versions=(0, 9), flexible_from=6):
    throttle_time_ms: int = int32("2+", default=0)
    error_code: int = int16(default=0)
    generation_id: int = int32(default=-1)
    protocol_type: str | None = string("7+", nullable="7+", default=None)
    protocol_name: str | None = string(nullable="7+", default="")
    leader: str = string(default="")
    skip_assignment: bool = boolean("9+", default=False)
    member_id: str = string(default="")
    members: list[JoinGroupResponseMember] = array(JoinGroupResponseMember, default=...)
