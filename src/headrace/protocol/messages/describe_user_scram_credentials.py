"""Tables of the DescribeUserScramCredentials API."""

from headrace.protocol.schema import (
    Message,
    Struct,
    array,
    int8,
    int16,
    int32,
    string,
)


class UserName(Struct):
    name: str = string(default="")


class DescribeUserScramCredentialsRequest(Message, api_key=50, versions=(0, 0), flexible_from=0):
    users: list[UserName] | None = array(UserName, nullable="0+", default=...)


class CredentialInfo(Struct):
    mechanism: int = int8(default=0)
    iterations: int = int32(default=0)


class DescribeUserScramCredentialsResult(Struct):
    user: str = string(default="")
    error_code: int = int16(default=0)
    error_message: str | None = string(nullable="0+", default="")
    credential_infos: list[CredentialInfo] = array(CredentialInfo, default=...)


class DescribeUserScramCredentialsResponse(Message, api_key=50, versions=(0, 0), flexible_from=0):
    throttle_time_ms: int = int32(default=0)
    error_code: int = int16(default=0)
    error_message: str | None = string(nullable="0+", default="")
    results: list[DescribeUserScramCredentialsResult] = array(
        DescribeUserScramCredentialsResult, default=...
    )
