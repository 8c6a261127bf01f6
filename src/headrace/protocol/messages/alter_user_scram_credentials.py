"""Tables of the AlterUserScramCredentials API."""

from headrace.protocol.schema import (
    Message,
    Struct,
    array,
    int8,
    int16,
    int32,
    raw,
    string,
)


class ScramCredentialDeletion(Struct):
    name: str = string(default="")
    mechanism: int = int8(default=0)


class ScramCredentialUpsertion(Struct):
    name: str = string(default="")
    mechanism: int = int8(default=0)
    iterations: int = int32(default=0)
    salt: bytes = raw(default=b"")
    salted_password: bytes = raw(default=b"")


class AlterUserScramCredentialsRequest(Message, api_key=51, versions=(0, 0), flexible_from=0):
    deletions: list[ScramCredentialDeletion] = array(ScramCredentialDeletion, default=...)
    upsertions: list[ScramCredentialUpsertion] = array(ScramCredentialUpsertion, default=...)


class AlterUserScramCredentialsResult(Struct):
    user: str = string(default="")
    error_code: int = int16(default=0)
    error_message: str | None = string(nullable="0+", default="")


class AlterUserScramCredentialsResponse(Message, api_key=51, versions=(0, 0), flexible_from=0):
    throttle_time_ms: int = int32(default=0)
    results: list[AlterUserScramCredentialsResult] = array(
        AlterUserScramCredentialsResult, default=...
    )
