"""Delegation tokens in the metadata: created, renewed, expired, and removed."""

import pytest

from headrace.errors import ErrorCode, KafkaError
from headrace.metadata.delegation_tokens import (
    TokenSettings,
    create_token,
    expire_token,
    remove_expired,
    renew_token,
    token_details,
)
from headrace.metadata.image import Image
from headrace.metadata.snapshot import image_records
from headrace.protocol.messages.create_delegation_token import (
    CreatableRenewers,
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
)
from headrace.protocol.messages.expire_delegation_token import ExpireDelegationTokenRequest
from headrace.protocol.messages.renew_delegation_token import RenewDelegationTokenRequest
from headrace.security.authorization import Principal

SETTINGS = TokenSettings("secret", max_lifetime_ms=1000, renewal_ms=100)
ALICE, BOB, EVE = (Principal("User", name) for name in ("alice", "bob", "eve"))


def created(
    image: Image, now_ms: int = 0, **fields: object
) -> tuple[Image, CreateDelegationTokenResponse]:
    renewers = [CreatableRenewers(principal_type="User", principal_name="bob")]
    request = CreateDelegationTokenRequest(renewers=renewers, max_lifetime_ms=-1)
    for name, value in fields.items():
        setattr(request, name, value)
    new_id = len(image.delegation_tokens).to_bytes(16, "big")
    result = create_token(request, ALICE, SETTINGS, now_ms=now_ms, new_id=new_id)
    return image.apply(result.records), result.response


def renewed(image: Image, secret: bytes, by: Principal, now_ms: int, period_ms: int = -1) -> int:
    request = RenewDelegationTokenRequest(hmac=secret, renew_period_ms=period_ms)
    result = renew_token(image.delegation_tokens, request, by, SETTINGS, now_ms=now_ms)
    return result.response.expiry_timestamp_ms


def test_a_token_is_created_and_survives_a_snapshot() -> None:
    image, token = created(Image())
    assert (token.expiry_timestamp_ms, token.max_timestamp_ms) == (100, 1000)
    assert Image().apply(image_records(image)) == image
    [shown] = token_details(image.delegation_tokens.values(), SETTINGS)
    assert shown.hmac == token.hmac
    assert [renewer.principal_name for renewer in shown.renewers] == ["bob"]
    assert "secret" not in repr(SETTINGS)


def test_a_lifetime_is_never_longer_than_that_of_the_settings() -> None:
    assert created(Image(), max_lifetime_ms=50)[1].max_timestamp_ms == 50
    assert created(Image(), max_lifetime_ms=50)[1].expiry_timestamp_ms == 50
    assert created(Image(), max_lifetime_ms=5000)[1].max_timestamp_ms == 1000


def test_owners_and_renewers_are_users() -> None:
    group = [CreatableRenewers(principal_type="Group", principal_name="ops")]
    with pytest.raises(KafkaError) as refused:
        created(Image(), renewers=group)
    assert refused.value.code is ErrorCode.INVALID_PRINCIPAL_TYPE
    with pytest.raises(KafkaError):
        created(Image(), owner_principal_type="Group", owner_principal_name="ops")


def test_owner_and_renewers_renew_a_token_up_to_its_end() -> None:
    image, token = created(Image())
    assert renewed(image, token.hmac, ALICE, 50) == 150
    assert renewed(image, token.hmac, BOB, 50, period_ms=20) == 70
    later = image.apply(
        renew_token(
            image.delegation_tokens,
            RenewDelegationTokenRequest(hmac=token.hmac, renew_period_ms=-1),
            ALICE,
            TokenSettings("secret", 1000, 950),
            now_ms=99,
        ).records
    )
    assert renewed(later, token.hmac, ALICE, 990) == 1000


@pytest.mark.parametrize(
    ("by", "now_ms", "code"),
    [
        (EVE, 0, ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH),
        (ALICE, 100, ErrorCode.DELEGATION_TOKEN_EXPIRED),
    ],
)
def test_others_and_latecomers_renew_nothing(by: Principal, now_ms: int, code: ErrorCode) -> None:
    image, token = created(Image())
    with pytest.raises(KafkaError) as refused:
        renewed(image, token.hmac, by, now_ms)
    assert refused.value.code is code
    with pytest.raises(KafkaError) as refused:
        renewed(image, b"another", ALICE, 0)
    assert refused.value.code is ErrorCode.DELEGATION_TOKEN_NOT_FOUND


def test_a_token_is_expired_at_once_or_later() -> None:
    image, token = created(Image())
    for period_ms, expiry_ms, left in ((-1, 10, 0), (40, 50, 1), (99_999, 1000, 1)):
        request = ExpireDelegationTokenRequest(hmac=token.hmac, expiry_time_period_ms=period_ms)
        result = expire_token(image.delegation_tokens, request, ALICE, SETTINGS, now_ms=10)
        assert result.response.expiry_timestamp_ms == expiry_ms
        assert len(image.apply(result.records).delegation_tokens) == left


def test_expired_tokens_are_removed() -> None:
    image, _ = created(Image())
    image, _ = created(image, now_ms=50)
    result = remove_expired(image.delegation_tokens, 120)
    assert result.response == 1
    assert len(image.apply(result.records).delegation_tokens) == 1
    assert remove_expired(image.delegation_tokens, 10).records == ()
