"""Tables of the ExpireDelegationToken API."""

from headrace.protocol.schema import (
    Message,
    int16,
    int32,
    int64,
    raw,
)


class ExpireDelegationTokenRequest(Message, api_key=40, versions=(1, 2), flexible_from=2):
    hmac: bytes = raw(default=b"")
    expiry_time_period_ms: int = int64(default=0)


class ExpireDelegationTokenResponse(Message, api_key=40, versions=(1, 2), flexible_from=2):
    error_code: int = int16(default=0)
    expiry_timestamp_ms: int = int64(default=0)
    throttle_time_ms: int = int32(default=0)
