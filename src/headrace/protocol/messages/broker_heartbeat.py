"""Tables of the BrokerHeartbeat API."""

from headrace.protocol.schema import (
    Message,
    array,
    boolean,
    int16,
    int32,
    int64,
    uuid,
)


class BrokerHeartbeatRequest(Message, api_key=63, versions=(0, 2), flexible_from=0):
    broker_id: int = int32(default=0)
    broker_epoch: int = int64(default=-1)
    current_metadata_offset: int = int64(default=0)
    want_fence: bool = boolean(default=False)
    want_shut_down: bool = boolean(default=False)
    offline_log_dirs: list[bytes] = array(uuid, "1+", tag=0, default=...)
    cordoned_log_dirs: list[bytes] | None = array(uuid, "2+", nullable="2+", tag=1, default=None)


class BrokerHeartbeatResponse(Message, api_key=63, versions=(0, 2), flexible_from=0):
    throttle_time_ms: int = int32(default=0)
    error_code: int = int16(default=0)
    is_caught_up: bool = boolean(default=False)
    is_fenced: bool = boolean(default=True)
    should_shut_down: bool = boolean(default=False)
