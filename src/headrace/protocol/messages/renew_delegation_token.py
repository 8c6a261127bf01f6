"""Tables of the RenewDelegationToken API."""

from headrace.protocol.schema import (
    Message,
    int16,
    int32,
    int64,
    raw,
)


class RenewDelegationTokenRequest(Message, api_key=39, versions=(1, 2), flexible_from=2):
    hmac: bytes = raw(default=b"")
    renew_period_ms: int = int64(default=0)


class RenewDelegationTokenResponse(Message, api_key=39, versions=(1, 2), flexible_from=2):
    error_code: int = int16(default=0)
    expiry_timestamp_ms: int = int64(default=0)
    throttle_time_ms: int = int32(default=0)
