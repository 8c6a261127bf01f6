"""Tables of the FindCoordinator API."""

from headrace.protocol.schema import (
    Message,
    Struct,
    array,
    int8,
    int16,
    int32,
    string,
)


class FindCoordinatorRequest(Message, api_key=10, versions=(0, 6), flexible_from=3):
    key: str = string("0-3", default="")
    key_type: int = int8("1+", default=0)
    coordinator_keys: list[str] = array(string, "4+", default=...)


class Coordinator(Struct):
    key: str = string("4+", default="")
    node_id: int = int32("4+", default=0)
    host: str = string("4+", default="")
    port: int = int32("4+", default=0)
    error_code: int = int16("4+", default=0)
    error_message: str | None = string("4+", nullable="4+", default="")


class FindCoordinatorResponse(Message, api_key=10, versions=(0, 6), flexible_from=3):
    throttle_time_ms: int = int32("1+", default=0)
    error_code: int = int16("0-3", default=0)
    error_message: str | None = string("1-3", nullable="1-3", default="")
    node_id: int = int32("0-3", default=0)
    host: str = string("0-3", default="")
    port: int = int32("0-3", default=0)
    coordinators: list[Coordinator] = array(Coordinator, "4+", default=...)
