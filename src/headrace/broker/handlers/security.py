"""APIs of SASL, SCRAM credentials, delegation tokens and ACLs on a broker that has no security.

The codes are those of a Kafka broker with plain-text listeners and no authorizer, so that a client
or tool says what is missing instead of losing its connection.
"""

from collections import Counter
from collections.abc import Callable
from typing import TypeAlias, TypeVar

from headrace.broker.request import RequestContext
from headrace.errors import ErrorCode
from headrace.protocol.messages import (
    alter_user_scram_credentials as alter_scram,
)
from headrace.protocol.messages import (
    create_acls,
    create_delegation_token,
    delete_acls,
    describe_acls,
    describe_delegation_token,
    expire_delegation_token,
    renew_delegation_token,
    sasl_authenticate,
    sasl_handshake,
)
from headrace.protocol.messages import (
    describe_user_scram_credentials as describe_scram,
)

_Change: TypeAlias = alter_scram.ScramCredentialDeletion | alter_scram.ScramCredentialUpsertion

_Refusal = TypeVar("_Refusal")

_NO_AUTHORIZER = "this cluster has no authorizer, so it keeps no ACLs"
_NO_CREDENTIALS = "this cluster has no SASL, so it keeps no SCRAM credentials"
_NO_TIMESTAMP = -1
# SCRAM-SHA-256 and SCRAM-SHA-512, each with the fewest iterations that Kafka takes.
_SCRAM_MECHANISMS = (1, 2)
_ITERATIONS_MIN, _ITERATIONS_MAX = 4096, 16384


def handshake(
    context: RequestContext, request: sasl_handshake.SaslHandshakeRequest
) -> sasl_handshake.SaslHandshakeResponse:
    """Refuse: the listener speaks plain text, and no mechanism is enabled."""
    return sasl_handshake.SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)


def authenticate(
    context: RequestContext, request: sasl_authenticate.SaslAuthenticateRequest
) -> sasl_authenticate.SaslAuthenticateResponse:
    return sasl_authenticate.SaslAuthenticateResponse(
        error_code=ErrorCode.ILLEGAL_SASL_STATE,
        error_message="this listener has no SASL; use security.protocol=PLAINTEXT",
    )


def list_acls(
    context: RequestContext, request: describe_acls.DescribeAclsRequest
) -> describe_acls.DescribeAclsResponse:
    return _security_disabled(describe_acls.DescribeAclsResponse)


def add_acls(
    context: RequestContext, request: create_acls.CreateAclsRequest
) -> create_acls.CreateAclsResponse:
    results = [_security_disabled(create_acls.AclCreationResult) for _ in request.creations]
    return create_acls.CreateAclsResponse(results=results)


def remove_acls(
    context: RequestContext, request: delete_acls.DeleteAclsRequest
) -> delete_acls.DeleteAclsResponse:
    results = [_security_disabled(delete_acls.DeleteAclsFilterResult) for _ in request.filters]
    return delete_acls.DeleteAclsResponse(filter_results=results)


def _security_disabled(message_class: Callable[..., _Refusal]) -> _Refusal:
    return message_class(error_code=ErrorCode.SECURITY_DISABLED, error_message=_NO_AUTHORIZER)


def create_token(
    context: RequestContext, request: create_delegation_token.CreateDelegationTokenRequest
) -> create_delegation_token.CreateDelegationTokenResponse:
    """Refuse: a token stands for an authenticated user, and plain text has none."""
    requester = context.principal
    return create_delegation_token.CreateDelegationTokenResponse(
        error_code=ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED,
        principal_type=(request.owner_principal_name and request.owner_principal_type)
        or requester.kind,
        principal_name=request.owner_principal_name or requester.name,
        token_requester_principal_type=requester.kind,
        token_requester_principal_name=requester.name,
        issue_timestamp_ms=_NO_TIMESTAMP,
        expiry_timestamp_ms=_NO_TIMESTAMP,
        max_timestamp_ms=_NO_TIMESTAMP,
    )


def renew_token(
    context: RequestContext, request: renew_delegation_token.RenewDelegationTokenRequest
) -> renew_delegation_token.RenewDelegationTokenResponse:
    return renew_delegation_token.RenewDelegationTokenResponse(
        error_code=ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED,
        expiry_timestamp_ms=_NO_TIMESTAMP,
    )


def expire_token(
    context: RequestContext, request: expire_delegation_token.ExpireDelegationTokenRequest
) -> expire_delegation_token.ExpireDelegationTokenResponse:
    return expire_delegation_token.ExpireDelegationTokenResponse(
        error_code=ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED,
        expiry_timestamp_ms=_NO_TIMESTAMP,
    )


def describe_tokens(
    context: RequestContext, request: describe_delegation_token.DescribeDelegationTokenRequest
) -> describe_delegation_token.DescribeDelegationTokenResponse:
    return describe_delegation_token.DescribeDelegationTokenResponse(
        error_code=ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    )


def describe_credentials(
    context: RequestContext, request: describe_scram.DescribeUserScramCredentialsRequest
) -> describe_scram.DescribeUserScramCredentialsResponse:
    """Describe an empty store: no user has credentials, and a named user is not found."""
    mentions = Counter(user.name for user in request.users or ())
    return describe_scram.DescribeUserScramCredentialsResponse(
        error_message=None,
        results=[
            describe_scram.DescribeUserScramCredentialsResult(
                user=name,
                error_code=ErrorCode.DUPLICATE_RESOURCE
                if count > 1
                else ErrorCode.RESOURCE_NOT_FOUND,
                error_message=f"the request names {name!r} {count} times"
                if count > 1
                else f"{name!r} has no SCRAM credentials",
            )
            for name, count in mentions.items()
        ],
    )


def alter_credentials(
    context: RequestContext, request: alter_scram.AlterUserScramCredentialsRequest
) -> alter_scram.AlterUserScramCredentialsResponse:
    """Refuse each change with the code that Kafka has for its fault, else SECURITY_DISABLED."""
    results: dict[str, alter_scram.AlterUserScramCredentialsResult] = {}
    changes: list[_Change] = [*request.deletions, *request.upsertions]
    for change in changes:
        code, text = _refusal(change)
        earlier = results.get(change.name)
        if earlier is None:
            results[change.name] = alter_scram.AlterUserScramCredentialsResult(
                user=change.name, error_code=code, error_message=text
            )
        elif earlier.error_code == ErrorCode.SECURITY_DISABLED:
            earlier.error_code = ErrorCode.DUPLICATE_RESOURCE
            earlier.error_message = "the request changes this user more than once"
    return alter_scram.AlterUserScramCredentialsResponse(results=list(results.values()))


def _refusal(change: _Change) -> tuple[ErrorCode, str]:
    if not change.name:
        return ErrorCode.UNACCEPTABLE_CREDENTIAL, "the user name is empty"
    if change.mechanism not in _SCRAM_MECHANISMS:
        return (
            ErrorCode.UNSUPPORTED_SASL_MECHANISM,
            f"{change.mechanism} is no SCRAM mechanism; use 1 (SHA-256) or 2 (SHA-512)",
        )
    if isinstance(change, alter_scram.ScramCredentialDeletion):
        return ErrorCode.RESOURCE_NOT_FOUND, f"{change.name!r} has no such credential"
    if not _ITERATIONS_MIN <= change.iterations <= _ITERATIONS_MAX:
        return (
            ErrorCode.UNACCEPTABLE_CREDENTIAL,
            f"{change.iterations} iterations; use {_ITERATIONS_MIN} to {_ITERATIONS_MAX}",
        )
    return ErrorCode.SECURITY_DISABLED, _NO_CREDENTIALS
