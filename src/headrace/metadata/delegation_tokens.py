"""Delegation tokens (KIP-48): their secrets, their records in the metadata log, and the commands.

A token is an id and the HMAC of the id under a secret that all nodes share. Whoever has both logs
in by SCRAM: the id is the user name, and the HMAC, in base64, is the password.
"""

import hmac
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, TypeAlias

from headrace.errors import ErrorCode, KafkaError
from headrace.metadata.records import CommandResult, MetadataError
from headrace.protocol.messages.create_delegation_token import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
)
from headrace.protocol.messages.describe_delegation_token import (
    DescribedDelegationToken,
    DescribedDelegationTokenRenewer,
)
from headrace.protocol.messages.expire_delegation_token import (
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
)
from headrace.protocol.messages.metadata_records import (
    DelegationTokenRecord,
    RemoveDelegationTokenRecord,
)
from headrace.protocol.messages.renew_delegation_token import (
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
)
from headrace.security.authorization import Principal
from headrace.security.scram import (
    ITERATIONS_MIN,
    ScramCredential,
    ScramMechanism,
    credential_of,
    salted_password,
)
from headrace.types import uuid_text

_SALT_BYTES = 24


def token_hmac(secret_key: str, token_id: str) -> bytes:
    """The secret of a token."""
    return hmac.digest(secret_key.encode(), token_id.encode(), "sha512")


def token_password(token_secret: bytes) -> str:
    """The password that a client logs in with."""
    return b64encode(token_secret).decode()


def token_credential(mechanism: ScramMechanism, token_secret: bytes) -> ScramCredential:
    """The SCRAM credential of a token, the same on every node; milliseconds of work."""
    salt = hmac.digest(token_secret, mechanism.sasl.value.encode(), "sha512")[:_SALT_BYTES]
    salted = salted_password(mechanism, token_password(token_secret), salt, ITERATIONS_MIN)
    return credential_of(mechanism, salted, salt, ITERATIONS_MIN)


# Delegation tokens (KIP-48) in the metadata log, and the commands on them.
#
# A record has no secret: the HMAC of a token follows from its id and `delegation.token.secret.key`.


_RENEWERS_MAX = 100
_USER = "User"


class DelegationTokenImage(NamedTuple):
    """A token. It logs in until `expires_ms`, and can be renewed until `max_ms`."""

    token_id: str
    owner: Principal
    requester: Principal
    renewers: tuple[Principal, ...]
    issued_ms: int
    max_ms: int
    expires_ms: int

    def is_of(self, principal: Principal) -> bool:
        """Whether a principal is its owner or its requester, or may renew it."""
        return principal in (self.owner, self.requester) or principal in self.renewers

    def has_ended(self, now_ms: int) -> bool:
        return now_ms >= min(self.expires_ms, self.max_ms)


class TokenSettings(NamedTuple):
    """The secret of a cluster's tokens, and how long they last."""

    secret_key: str
    max_lifetime_ms: int
    renewal_ms: int

    def __repr__(self) -> str:
        return "<TokenSettings>"


DelegationTokens: TypeAlias = Mapping[str, DelegationTokenImage]


def parse_principal(text: str) -> Principal:
    """A principal as records have it: `User:alice`."""
    kind, separator, name = text.partition(":")
    if not separator or not kind:
        raise MetadataError(f"{text!r} is no principal")
    return Principal(kind, name)


def replay_token(tokens: dict[str, DelegationTokenImage], record: DelegationTokenRecord) -> None:
    """Take a record into the tokens of an image; a renewal is a record with another expiry."""
    tokens[record.token_id] = DelegationTokenImage(
        record.token_id,
        parse_principal(record.owner),
        parse_principal(record.requester),
        tuple(map(parse_principal, record.renewers)),
        record.issue_timestamp,
        record.max_timestamp,
        record.expiration_timestamp,
    )


def replay_token_removal(
    tokens: dict[str, DelegationTokenImage], record: RemoveDelegationTokenRecord
) -> None:
    """Take a removal into the tokens of an image."""
    tokens.pop(record.token_id, None)


def token_records(tokens: DelegationTokens) -> Iterator[DelegationTokenRecord]:
    """The records of the tokens in a snapshot."""
    return map(_token_record, tokens.values())


def _token_record(token: DelegationTokenImage) -> DelegationTokenRecord:
    return DelegationTokenRecord(
        owner=str(token.owner),
        requester=str(token.requester),
        renewers=list(map(str, token.renewers)),
        issue_timestamp=token.issued_ms,
        max_timestamp=token.max_ms,
        expiration_timestamp=token.expires_ms,
        token_id=token.token_id,
    )


def create_token(
    request: CreateDelegationTokenRequest,
    requester: Principal,
    settings: TokenSettings,
    *,
    now_ms: int,
    new_id: bytes,
) -> CommandResult[CreateDelegationTokenResponse]:
    """Create a token for the requester, or for the owner that the request names."""
    owner = requester
    if request.owner_principal_name:
        owner = Principal(request.owner_principal_type or _USER, request.owner_principal_name)
    renewers = tuple(
        Principal(renewer.principal_type, renewer.principal_name) for renewer in request.renewers
    )
    for principal in (owner, *renewers):
        if principal.kind != _USER:
            raise KafkaError(ErrorCode.INVALID_PRINCIPAL_TYPE, f"{principal} is no {_USER}")
    if len(renewers) > _RENEWERS_MAX:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"a token has at most {_RENEWERS_MAX} renewers")
    lifetime_ms = settings.max_lifetime_ms
    if request.max_lifetime_ms > 0:
        lifetime_ms = min(lifetime_ms, request.max_lifetime_ms)
    max_ms = now_ms + lifetime_ms
    token = DelegationTokenImage(
        uuid_text(new_id),
        owner,
        requester,
        renewers,
        now_ms,
        max_ms,
        min(max_ms, now_ms + settings.renewal_ms),
    )
    response = CreateDelegationTokenResponse(
        principal_type=owner.kind,
        principal_name=owner.name,
        token_requester_principal_type=requester.kind,
        token_requester_principal_name=requester.name,
        issue_timestamp_ms=token.issued_ms,
        expiry_timestamp_ms=token.expires_ms,
        max_timestamp_ms=token.max_ms,
        token_id=token.token_id,
        hmac=token_hmac(settings.secret_key, token.token_id),
    )
    return CommandResult((_token_record(token),), response)


def renew_token(
    tokens: DelegationTokens,
    request: RenewDelegationTokenRequest,
    requester: Principal,
    settings: TokenSettings,
    *,
    now_ms: int,
) -> CommandResult[RenewDelegationTokenResponse]:
    """Move the expiry of a token further away, for its owner or a renewer."""
    token = _token_to_change(tokens, request.hmac, requester, settings, now_ms)
    period_ms = settings.renewal_ms
    if request.renew_period_ms > 0:
        period_ms = min(period_ms, request.renew_period_ms)
    renewed = token._replace(expires_ms=min(token.max_ms, now_ms + period_ms))
    return CommandResult(
        (_token_record(renewed),),
        RenewDelegationTokenResponse(expiry_timestamp_ms=renewed.expires_ms),
    )


def expire_token(
    tokens: DelegationTokens,
    request: ExpireDelegationTokenRequest,
    requester: Principal,
    settings: TokenSettings,
    *,
    now_ms: int,
) -> CommandResult[ExpireDelegationTokenResponse]:
    """Set the expiry of a token, or remove the token at once for a negative period."""
    token = _token_to_change(tokens, request.hmac, requester, settings, now_ms)
    if request.expiry_time_period_ms < 0:
        return CommandResult(
            (RemoveDelegationTokenRecord(token_id=token.token_id),),
            ExpireDelegationTokenResponse(expiry_timestamp_ms=now_ms),
        )
    ended = token._replace(expires_ms=min(token.max_ms, now_ms + request.expiry_time_period_ms))
    return CommandResult(
        (_token_record(ended),),
        ExpireDelegationTokenResponse(expiry_timestamp_ms=ended.expires_ms),
    )


def _token_to_change(
    tokens: DelegationTokens,
    secret: bytes,
    requester: Principal,
    settings: TokenSettings,
    now_ms: int,
) -> DelegationTokenImage:
    found = None
    for token in tokens.values():
        if hmac.compare_digest(token_hmac(settings.secret_key, token.token_id), bytes(secret)):
            found = token
    if found is None:
        raise KafkaError(ErrorCode.DELEGATION_TOKEN_NOT_FOUND, "no token has this HMAC")
    if not found.is_of(requester):
        raise KafkaError(
            ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH,
            f"{requester} is neither owner, requester nor renewer of token {found.token_id}",
        )
    if found.has_ended(now_ms):
        raise KafkaError(ErrorCode.DELEGATION_TOKEN_EXPIRED, f"token {found.token_id} has expired")
    return found


def remove_expired(tokens: DelegationTokens, now_ms: int) -> CommandResult[int]:
    """Remove the tokens that have expired; their number."""
    ended = [token.token_id for token in tokens.values() if token.has_ended(now_ms)]
    return CommandResult(
        tuple(RemoveDelegationTokenRecord(token_id=token_id) for token_id in ended), len(ended)
    )


def token_details(
    tokens: Iterable[DelegationTokenImage], settings: TokenSettings
) -> list[DescribedDelegationToken]:
    """Tokens as DescribeDelegationToken has them, with their secrets."""
    return [
        DescribedDelegationToken(
            principal_type=token.owner.kind,
            principal_name=token.owner.name,
            token_requester_principal_type=token.requester.kind,
            token_requester_principal_name=token.requester.name,
            issue_timestamp=token.issued_ms,
            expiry_timestamp=token.expires_ms,
            max_timestamp=token.max_ms,
            token_id=token.token_id,
            hmac=token_hmac(settings.secret_key, token.token_id),
            renewers=[
                DescribedDelegationTokenRenewer(
                    principal_type=renewer.kind, principal_name=renewer.name
                )
                for renewer in token.renewers
            ],
        )
        for token in tokens
    ]
