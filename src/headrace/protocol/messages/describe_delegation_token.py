"""Tables of the DescribeDelegationToken API."""

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


class DescribeDelegationTokenOwner(Struct):
    principal_type: str = string(default="")
    principal_name: str = string(default="")


class DescribeDelegationTokenRequest(Message, api_key=41, versions=(1, 3), flexible_from=2):
    owners: list[DescribeDelegationTokenOwner] | None = array(
        DescribeDelegationTokenOwner, nullable="1+", default=...
    )


class DescribedDelegationTokenRenewer(Struct):
    principal_type: str = string(default="")
    principal_name: str = string(default="")


class DescribedDelegationToken(Struct):
    principal_type: str = string(default="")
    principal_name: str = string(default="")
    token_requester_principal_type: str = string("3+", default="")
    token_requester_principal_name: str = string("3+", default="")
    issue_timestamp: int = int64(default=0)
    expiry_timestamp: int = int64(default=0)
    max_timestamp: int = int64(default=0)
    token_id: str = string(default="")
    hmac: bytes = raw(default=b"")
    renewers: list[DescribedDelegationTokenRenewer] = array(
        DescribedDelegationTokenRenewer, default=...
    )


class DescribeDelegationTokenResponse(Message, api_key=41, versions=(1, 3), flexible_from=2):
    error_code: int = int16(default=0)
    tokens: list[DescribedDelegationToken] = array(DescribedDelegationToken, default=...)
    throttle_time_ms: int = int32(default=0)
