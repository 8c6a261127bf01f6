"""Tables of the UnregisterBroker API."""

from headrace.protocol.schema import (
    Message,
    int16,
    int32,
    string,
)


class UnregisterBrokerRequest(Message, api_key=64, versions=(0, 0), flexible_from=0):
    broker_id: int = int32(default=0)


class UnregisterBrokerResponse(Message, api_key=64, versions=(0, 0), flexible_from=0):
    throttle_time_ms: int = int32(default=0)
    error_code: int = int16(default=0)
    error_message: str | None = string(nullable="0+", default="")
