"""Tables of the CreateDelegationToken API."""

from headrace.protocol.schema import (
    Message,
    Struct,
    array,
    int16,
    int32,
    int64,
    raw,
    string,
)


class CreatableRenewers(Struct):
    principal_type: str = string(default="")
    principal_name: str = string(default="")


class CreateDelegationTokenRequest(Message, api_key=38, versions=(1, 3), flexible_from=2):
    owner_principal_type: str | None = string("3+", nullable="3+", default="")
    owner_principal_name: str | None = string("3+", nullable="3+", default="")
    renewers: list[CreatableRenewers] = array(CreatableRenewers, default=...)
    max_lifetime_ms: int = int64(default=0)


class CreateDelegationTokenResponse(Message, api_key=38, versions=(1, 3), flexible_from=2):
    error_code: int = int16(default=0)
    principal_type: str = string(default="")
    principal_name: str = string(default="")
    token_requester_principal_type: str = string("3+", default="")
    token_requester_principal_name: str = string("3+", default="")
    issue_timestamp_ms: int = int64(default=0)
    expiry_timestamp_ms: int = int64(default=0)
    max_timestamp_ms: int = int64(default=0)
    token_id: str = string(default="")
    hmac: bytes = raw(default=b"")
    throttle_time_ms: int = int32(default=0)
