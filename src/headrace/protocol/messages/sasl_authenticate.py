"""Tables of the SaslAuthenticate API."""

from headrace.protocol.schema import (
    Message,
    int16,
    int64,
    raw,
    string,
)


class SaslAuthenticateRequest(Message, api_key=36, versions=(0, 2), flexible_from=2):
    auth_bytes: bytes = raw(default=b"")


class SaslAuthenticateResponse(Message, api_key=36, versions=(0, 2), flexible_from=2):
    error_code: int = int16(default=0)
    error_message: str | None = string(nullable="0+", default="")
    auth_bytes: bytes = raw(default=b"")
    session_lifetime_ms: int = int64("1+", default=0)
