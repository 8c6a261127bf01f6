"""Rights to delegation tokens: whom they are created for, and who sees them."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headrace.broker.handlers.delegation_tokens import (
    create_delegation_token,
    describe_delegation_token,
)
from headrace.broker.request import RequestContext
from headrace.errors import ErrorCode
from headrace.metadata.delegation_tokens import DelegationTokenImage
from headrace.metadata.image import Image
from headrace.protocol.apis import Api, RequestHeader
from headrace.protocol.messages.create_delegation_token import CreateDelegationTokenRequest
from headrace.protocol.messages.describe_delegation_token import (
    DescribeDelegationTokenOwner,
    DescribeDelegationTokenRequest,
)
from headrace.security.acls import AclOperation, AclResourceType
from headrace.security.authorization import ANONYMOUS, Decision, Principal, Right

ALICE, BOB, CAROL, DAVE = (Principal("User", name) for name in ("alice", "bob", "carol", "dave"))
# Of alice, asked for by bob, renewed by carol.
TOKEN = DelegationTokenImage("token-id", ALICE, BOB, (CAROL,), 0, 1000, 1000)
CREATE_FOR_ALICE = Right(AclOperation.CREATE_TOKENS, AclResourceType.USER, "User:alice")
DESCRIBE_TOKEN = Right(AclOperation.DESCRIBE, AclResourceType.DELEGATION_TOKEN, "token-id")
DESCRIBE_OF_ALICE = Right(AclOperation.DESCRIBE_TOKENS, AclResourceType.USER, "User:alice")


class Granting:
    """An authorizer that gives the rights it has."""

    def __init__(self, *rights: Right) -> None:
        self._rights = rights

    def decide(self, principal: Principal, host: str, right: Right) -> Decision:
        return Decision(right in self._rights, "test")

    def decide_any(self, *_: Any) -> Decision:
        return Decision(False, "test")


def context(principal: Principal, *rights: Right) -> RequestContext:
    config = SimpleNamespace(
        delegation_token_secret_key="secret",
        delegation_token_max_lifetime_ms=1000,
        delegation_token_expiry_time_ms=1000,
    )

    async def submit(command: Any) -> Any:
        return command(Image(), 0).response

    node = SimpleNamespace(
        config=config,
        audit=None,
        clock=SimpleNamespace(now_ms=lambda: 0),
        rng=SimpleNamespace(randbytes=bytes),
        store=SimpleNamespace(
            is_active=True,
            submit=submit,
            image=Image(delegation_tokens={TOKEN.token_id: TOKEN}),
        ),
    )
    header = RequestHeader(Api.CREATE_DELEGATION_TOKEN, 3, 0, "client", 0)
    return RequestContext(
        cast("Any", node), header, "host", principal=principal, authorizer=Granting(*rights)
    )


@pytest.mark.parametrize(
    ("sender", "rights", "code"),
    [
        (ALICE, (), ErrorCode.NONE),
        (DAVE, (), ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED),
        (DAVE, (CREATE_FOR_ALICE,), ErrorCode.NONE),
        (DAVE, (DESCRIBE_OF_ALICE,), ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED),
        (ANONYMOUS, (CREATE_FOR_ALICE,), ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED),
        (ANONYMOUS, (), ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED),
    ],
)
def test_a_token_of_somebody_else_needs_the_right_to_create_it(
    sender: Principal, rights: tuple[Right, ...], code: ErrorCode
) -> None:
    request = CreateDelegationTokenRequest(
        owner_principal_type="User", owner_principal_name="alice"
    )
    response = asyncio.run(create_delegation_token(context(sender, *rights), request))
    assert response.error_code == code
    assert bool(response.hmac) is (code is ErrorCode.NONE)
    assert (response.principal_name, response.token_requester_principal_name) == (
        "alice",
        sender.name,
    )


@pytest.mark.parametrize(
    ("sender", "rights", "is_seen"),
    [
        (ALICE, (), True),
        (BOB, (), True),
        (CAROL, (), True),
        (DAVE, (), False),
        (DAVE, (DESCRIBE_TOKEN,), True),
        (DAVE, (DESCRIBE_OF_ALICE,), True),
        (DAVE, (CREATE_FOR_ALICE,), False),
    ],
)
def test_a_token_is_seen_by_those_it_concerns_and_by_who_has_the_right(
    sender: Principal, rights: tuple[Right, ...], is_seen: bool
) -> None:
    response = describe_delegation_token(
        context(sender, *rights), DescribeDelegationTokenRequest(owners=None)
    )
    assert [token.token_id for token in response.tokens] == ["token-id"] * is_seen


@pytest.mark.parametrize(
    ("owner", "is_found"), [(ALICE, True), (BOB, True), (CAROL, True), (DAVE, False)]
)
def test_tokens_are_asked_for_by_anybody_they_are_of(owner: Principal, is_found: bool) -> None:
    owners = [DescribeDelegationTokenOwner(principal_type=owner.kind, principal_name=owner.name)]
    response = describe_delegation_token(
        context(ALICE), DescribeDelegationTokenRequest(owners=owners)
    )
    assert len(response.tokens) == is_found
