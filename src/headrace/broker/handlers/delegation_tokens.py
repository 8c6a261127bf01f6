"""APIs of delegation tokens (KIP-48): create, renew, expire and describe.

Whoever logged in with a token, or did not log in at all, may not ask for one. The broker that is
asked sees to that, for only it knows the connection; the active controller does the rest.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from headrace.broker.authentication import SaslSession
from headrace.broker.forwarding import pass_to_controller
from headrace.broker.request import RequestContext
from headrace.broker.security_records import submit_security_change
from headrace.config import BrokerConfig
from headrace.errors import ErrorCode, KafkaError
from headrace.metadata.delegation_tokens import (
    DelegationTokenImage,
    DelegationTokens,
    TokenSettings,
    create_token,
    expire_token,
    renew_token,
    token_details,
)
from headrace.metadata.image import Image
from headrace.metadata.records import CommandResult
from headrace.protocol.messages.create_delegation_token import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
)
from headrace.protocol.messages.describe_delegation_token import (
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
)
from headrace.protocol.messages.expire_delegation_token import (
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
)
from headrace.protocol.messages.renew_delegation_token import (
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
)
from headrace.protocol.schema import Message
from headrace.security.acls import AclOperation, AclResourceType
from headrace.security.authorization import ANONYMOUS, Principal

_NO_TIMESTAMP = -1
_TOKEN_ID_BYTES = 16

Response = TypeVar("Response", bound=Message)


def is_answered_here(request: Any) -> bool:
    """Whether the node that is asked begins the answer: always, see the module."""
    return True


async def create_delegation_token(
    context: RequestContext, request: CreateDelegationTokenRequest
) -> CreateDelegationTokenResponse:
    requester = _bare(context.principal)
    owner = requester
    if request.owner_principal_name:
        owner = Principal(request.owner_principal_type or "User", request.owner_principal_name)

    def refuse(code: ErrorCode) -> CreateDelegationTokenResponse:
        return CreateDelegationTokenResponse(
            error_code=code,
            principal_type=owner.kind,
            principal_name=owner.name,
            token_requester_principal_type=requester.kind,
            token_requester_principal_name=requester.name,
            issue_timestamp_ms=_NO_TIMESTAMP,
            expiry_timestamp_ms=_NO_TIMESTAMP,
            max_timestamp_ms=_NO_TIMESTAMP,
        )

    code = _refusal(context)
    if code is not None:
        return refuse(code)
    may_create = owner == requester or context.may(
        AclOperation.CREATE_TOKENS, AclResourceType.USER, str(owner)
    )
    if not may_create:
        return refuse(ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED)
    node = context.node
    return await _answer(
        context,
        request,
        refuse,
        lambda _, settings: create_token(
            request,
            requester,
            settings,
            now_ms=node.clock.now_ms(),
            new_id=node.rng.randbytes(_TOKEN_ID_BYTES),
        ),
    )


async def renew_delegation_token(
    context: RequestContext, request: RenewDelegationTokenRequest
) -> RenewDelegationTokenResponse:
    return await _change_expiry(context, request, RenewDelegationTokenResponse, renew_token)


async def expire_delegation_token(
    context: RequestContext, request: ExpireDelegationTokenRequest
) -> ExpireDelegationTokenResponse:
    return await _change_expiry(context, request, ExpireDelegationTokenResponse, expire_token)


async def _change_expiry(
    context: RequestContext,
    request: Message,
    response: Callable[..., Response],
    command: Callable[..., CommandResult[Response]],
) -> Response:
    """The outcome of a command that moves the expiry of a token, of the sender's own authority."""
    return await _answer(
        context,
        request,
        lambda code: response(error_code=code, expiry_timestamp_ms=_NO_TIMESTAMP),
        lambda tokens, settings: command(
            tokens,
            request,
            _bare(context.principal),
            settings,
            now_ms=context.node.clock.now_ms(),
        ),
    )


def describe_delegation_token(
    context: RequestContext, request: DescribeDelegationTokenRequest
) -> DescribeDelegationTokenResponse:
    """The tokens of some owners, or of all, as far as the sender may know of them."""
    code = _refusal(context)
    settings = token_settings(context.node.config)
    if code is not None:
        return DescribeDelegationTokenResponse(error_code=code)
    if settings is None:
        return DescribeDelegationTokenResponse(error_code=ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED)
    owners = None
    if request.owners is not None:
        owners = {Principal(owner.principal_type, owner.principal_name) for owner in request.owners}
    found = [
        token
        for token in context.node.store.image.delegation_tokens.values()
        if (owners is None or any(map(token.is_of, owners))) and _may_describe(context, token)
    ]
    return DescribeDelegationTokenResponse(tokens=token_details(found, settings))


def token_settings(config: BrokerConfig) -> TokenSettings | None:
    """The settings of tokens; None where there are none."""
    if not config.delegation_token_secret_key:
        return None
    return TokenSettings(
        config.delegation_token_secret_key,
        config.delegation_token_max_lifetime_ms,
        config.delegation_token_expiry_time_ms,
    )


async def _answer(
    context: RequestContext,
    request: Message,
    refuse: Callable[[ErrorCode], Response],
    command: Callable[[DelegationTokens, TokenSettings], CommandResult[Response]],
) -> Response:
    """The answer to a change of tokens, by the active controller."""
    code = _refusal(context)
    node = context.node
    settings = token_settings(node.config)
    if code is None and settings is None:
        code = ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
    if code is not None or settings is None:
        return refuse(code or ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED)
    try:
        if not node.store.is_active:
            response: Response = await pass_to_controller(context, request)
            return response

        def on_image(image: Image) -> CommandResult[Response]:
            return command(image.delegation_tokens, settings)

        return await submit_security_change(node, on_image)
    except KafkaError as error:
        return refuse(error.code)


def _refusal(context: RequestContext) -> ErrorCode | None:
    """The code for a sender that may not ask for tokens."""
    session = None if context.connection is None else context.connection.login
    identity = session.identity if isinstance(session, SaslSession) else None
    if context.principal == ANONYMOUS or (identity is not None and identity.by_token):
        return ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    return None


def _may_describe(context: RequestContext, token: DelegationTokenImage) -> bool:
    principal = _bare(context.principal)
    return (
        token.is_of(principal)
        or context.sees(AclOperation.DESCRIBE, AclResourceType.DELEGATION_TOKEN, token.token_id)
        or context.sees(AclOperation.DESCRIBE_TOKENS, AclResourceType.USER, str(token.owner))
    )


def _bare(principal: Principal) -> Principal:
    """A principal without the groups of its login: tokens have names alone."""
    return Principal(principal.kind, principal.name)
