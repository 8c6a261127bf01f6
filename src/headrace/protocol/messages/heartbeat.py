"""Tables of the Heartbeat API."""

from headrace.protocol.schema import (
    Message,
    int16,
    int32,
    string,
)


class HeartbeatRequest(Message, api_key=12, versions=(0, 4), flexible_from=4):
    group_id: str = string(default="")
    generation_id: int = int32(default=0)
    member_id: str = string(default="")
    group_instance_id: str | None = string("3+", nullable="3+", default=None)


class HeartbeatResponse(Message, api_key=12, versions=(0, 4), flexible_from=4):
    throttle_time_ms: int = int32("1+", default=0)
    error_code: int = int16(default=0)
