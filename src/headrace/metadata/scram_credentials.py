"""SCRAM credentials of users in the metadata log, and the commands on them.

One record is no user's: its name is empty, which no user's may be. It is written with the first
credential, and its random keys are the secret that made-up credentials come from, so that all
brokers make up the same ones.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, TypeAlias

from headrace.errors import ErrorCode
from headrace.metadata.records import CommandResult, repeated_names
from headrace.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from headrace.protocol.messages.describe_user_scram_credentials import (
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)
from headrace.protocol.messages.metadata_records import (
    RemoveUserScramCredentialRecord,
    UserScramCredentialRecord,
)
from headrace.security.scram import (
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    ScramCredential,
    ScramMechanism,
    credential_of,
)

SECRET_BYTES = 32
_NOBODY = ""
_FIELD_BYTES_MAX = 1024


class ScramKey(NamedTuple):
    """A user and one of Kafka's numbers of SCRAM mechanisms."""

    name: str
    mechanism: int


ScramCredentials: TypeAlias = Mapping[ScramKey, ScramCredential]
_Change: TypeAlias = ScramCredentialDeletion | ScramCredentialUpsertion

_SECRET_KEY = ScramKey(_NOBODY, ScramMechanism.SCRAM_SHA_256)


def replay_credential(
    credentials: dict[ScramKey, ScramCredential], record: UserScramCredentialRecord
) -> None:
    """Take a record into the credentials of an image."""
    credentials[ScramKey(record.name, record.mechanism)] = ScramCredential(
        bytes(record.salt), bytes(record.stored_key), bytes(record.server_key), record.iterations
    )


def replay_removal(
    credentials: dict[ScramKey, ScramCredential], record: RemoveUserScramCredentialRecord
) -> None:
    """Take a removal into the credentials of an image."""
    credentials.pop(ScramKey(record.name, record.mechanism), None)


def credential_records(credentials: ScramCredentials) -> Iterator[UserScramCredentialRecord]:
    """The records of the credentials in a snapshot."""
    for key, credential in credentials.items():
        yield credential_record(key.name, key.mechanism, credential)


def credential_record(
    name: str, mechanism: int, credential: ScramCredential
) -> UserScramCredentialRecord:
    """The record of one credential."""
    return UserScramCredentialRecord(
        name=name,
        mechanism=mechanism,
        salt=credential.salt,
        stored_key=credential.stored_key,
        server_key=credential.server_key,
        iterations=credential.iterations,
    )


def secret_of(credentials: ScramCredentials) -> bytes | None:
    """The secret of made-up credentials; None while no user has credentials."""
    found = credentials.get(_SECRET_KEY)
    return None if found is None else found.stored_key


def secret_records(
    credentials: ScramCredentials, secret: bytes
) -> tuple[UserScramCredentialRecord, ...]:
    """The record of a new secret, unless there is one."""
    if _SECRET_KEY in credentials:
        return ()
    return (credential_record(*_SECRET_KEY, ScramCredential(b"", secret, b"", ITERATIONS_MIN)),)


def usual_iterations(credentials: ScramCredentials, mechanism: ScramMechanism) -> int:
    """The iterations most users have: those of a user who does not exist must not stand out."""
    counted = Counter(
        credential.iterations
        for key, credential in credentials.items()
        if key.mechanism == mechanism and key.name != _NOBODY
    )
    return counted.most_common(1)[0][0] if counted else ITERATIONS_MIN


def users_with_credentials(credentials: ScramCredentials) -> dict[str, list[CredentialInfo]]:
    """The mechanisms and iterations of every user."""
    users: dict[str, list[CredentialInfo]] = {}
    for key, credential in sorted(credentials.items(), key=lambda item: item[0]):
        if key.name != _NOBODY:
            info = CredentialInfo(mechanism=key.mechanism, iterations=credential.iterations)
            users.setdefault(key.name, []).append(info)
    return users


def describe_credentials(
    credentials: ScramCredentials, request: DescribeUserScramCredentialsRequest
) -> DescribeUserScramCredentialsResponse:
    """Answer which users have which mechanisms: those named, or all if none is named."""
    known = users_with_credentials(credentials)
    mentions = Counter([user.name for user in request.users or ()] or list(known))
    return DescribeUserScramCredentialsResponse(
        error_message=None,
        results=[_described(name, count, known.get(name)) for name, count in mentions.items()],
    )


def _described(
    name: str, mentions: int, infos: list[CredentialInfo] | None
) -> DescribeUserScramCredentialsResult:
    if mentions > 1:
        code, text = ErrorCode.DUPLICATE_RESOURCE, f"the request names {name!r} {mentions} times"
    elif infos is None:
        code, text = ErrorCode.RESOURCE_NOT_FOUND, f"{name!r} has no SCRAM credentials"
    else:
        return DescribeUserScramCredentialsResult(
            user=name, error_message=None, credential_infos=infos
        )
    return DescribeUserScramCredentialsResult(user=name, error_code=code, error_message=text)


def alter_credentials(
    credentials: ScramCredentials, request: AlterUserScramCredentialsRequest, new_secret: bytes
) -> CommandResult[AlterUserScramCredentialsResponse]:
    """Change credentials, at most one of each user."""
    changes: list[_Change] = [*request.deletions, *request.upsertions]
    repeated = repeated_names(change.name for change in changes)
    faults: dict[str, tuple[ErrorCode, str]] = {}
    for change in changes:
        fault = _fault(change, credentials)
        if fault is None and change.name in repeated:
            fault = (
                ErrorCode.DUPLICATE_RESOURCE,
                "the request changes this user more than once",
            )
        if fault is not None:
            faults.setdefault(change.name, fault)
    sound = [change for change in changes if change.name not in faults]
    records = [_record_of(change) for change in sound]
    if request.upsertions and records:
        records[:0] = secret_records(credentials, new_secret)
    names = dict.fromkeys(change.name for change in changes)
    return CommandResult(
        tuple(records),
        AlterUserScramCredentialsResponse(results=list(_results(names, faults))),
    )


def _results(
    names: Iterable[str], faults: Mapping[str, tuple[ErrorCode, str]]
) -> Iterator[AlterUserScramCredentialsResult]:
    for name in names:
        code, text = faults.get(name, (ErrorCode.NONE, None))
        yield AlterUserScramCredentialsResult(user=name, error_code=code, error_message=text)


def _key_of(change: _Change) -> ScramKey:
    return ScramKey(change.name, change.mechanism)


def _fault(change: _Change, credentials: ScramCredentials) -> tuple[ErrorCode, str] | None:
    if change.name == _NOBODY:
        return ErrorCode.UNACCEPTABLE_CREDENTIAL, "the user name is empty"
    if change.mechanism not in ScramMechanism.__members__.values():
        return (
            ErrorCode.UNSUPPORTED_SASL_MECHANISM,
            f"{change.mechanism} is no SCRAM mechanism; use 1 (SHA-256) or 2 (SHA-512)",
        )
    if isinstance(change, ScramCredentialDeletion):
        if _key_of(change) not in credentials:
            return ErrorCode.RESOURCE_NOT_FOUND, f"{change.name!r} has no such credential"
        return None
    if not ITERATIONS_MIN <= change.iterations <= ITERATIONS_MAX:
        return (
            ErrorCode.UNACCEPTABLE_CREDENTIAL,
            f"{change.iterations} iterations; use {ITERATIONS_MIN} to {ITERATIONS_MAX}",
        )
    for value in (change.salt, change.salted_password):
        if not 0 < len(value) <= _FIELD_BYTES_MAX:
            return (
                ErrorCode.UNACCEPTABLE_CREDENTIAL,
                f"salt and salted password must have 1 to {_FIELD_BYTES_MAX} bytes",
            )
    return None


def _record_of(change: _Change) -> UserScramCredentialRecord | RemoveUserScramCredentialRecord:
    if isinstance(change, ScramCredentialDeletion):
        return RemoveUserScramCredentialRecord(name=change.name, mechanism=change.mechanism)
    credential = credential_of(
        ScramMechanism(change.mechanism),
        bytes(change.salted_password),
        bytes(change.salt),
        change.iterations,
    )
    return credential_record(change.name, change.mechanism, credential)
