"""What a broker without security and quotas answers, as Apache Kafka 4.3.1 does without them."""

from typing import Any, cast

import pytest

from headrace.broker.handlers import quotas, security
from headrace.errors import ErrorCode
from headrace.protocol.messages import alter_client_quotas as alter
from headrace.protocol.messages import alter_user_scram_credentials as alter_scram
from headrace.protocol.messages import describe_client_quotas as describe
from headrace.protocol.messages import describe_user_scram_credentials as describe_scram

NOWHERE = cast("Any", None)


def deletion(name: str, mechanism: int = 1) -> alter_scram.ScramCredentialDeletion:
    return alter_scram.ScramCredentialDeletion(name=name, mechanism=mechanism)


def upsertion(
    name: str, mechanism: int = 1, iterations: int = 4096
) -> alter_scram.ScramCredentialUpsertion:
    return alter_scram.ScramCredentialUpsertion(
        name=name, mechanism=mechanism, iterations=iterations, salt=b"s", salted_password=b"p"
    )


def test_credentials_of_users_are_described_from_an_empty_store() -> None:
    def described(*names: str) -> dict[str, int]:
        users = [describe_scram.UserName(name=name) for name in names]
        request = describe_scram.DescribeUserScramCredentialsRequest(users=users)
        response = security.describe_credentials(NOWHERE, request)
        assert response.error_code == ErrorCode.NONE
        return {result.user: result.error_code for result in response.results}

    assert described() == {}
    assert described("a", "b", "a") == {
        "a": ErrorCode.DUPLICATE_RESOURCE,
        "b": ErrorCode.RESOURCE_NOT_FOUND,
    }


def test_credentials_cannot_be_set_and_each_fault_has_its_code() -> None:
    request = alter_scram.AlterUserScramCredentialsRequest(
        deletions=[deletion("gone"), deletion("odd", mechanism=9)],
        upsertions=[
            upsertion("good"),
            upsertion(""),
            upsertion("weak", iterations=1),
            upsertion("odd"),
            upsertion("twice", mechanism=1),
            upsertion("twice", mechanism=2),
        ],
    )
    response = security.alter_credentials(NOWHERE, request)
    assert {result.user: result.error_code for result in response.results} == {
        "gone": ErrorCode.RESOURCE_NOT_FOUND,
        "odd": ErrorCode.UNSUPPORTED_SASL_MECHANISM,
        "good": ErrorCode.SECURITY_DISABLED,
        "": ErrorCode.UNACCEPTABLE_CREDENTIAL,
        "weak": ErrorCode.UNACCEPTABLE_CREDENTIAL,
        "twice": ErrorCode.DUPLICATE_RESOURCE,
    }


ANY_USER = ("user", 2, None)


@pytest.mark.parametrize(
    ("components", "code"),
    [
        ([], ErrorCode.NONE),
        ([ANY_USER, ("client-id", 0, "a")], ErrorCode.NONE),
        ([("bogus", 2, None)], ErrorCode.UNSUPPORTED_VERSION),
        ([("", 2, None)], ErrorCode.INVALID_REQUEST),
        ([("user", 9, None)], ErrorCode.INVALID_REQUEST),
        ([("user", 2, "name")], ErrorCode.INVALID_REQUEST),
        ([("user", 0, None)], ErrorCode.INVALID_REQUEST),
        ([ANY_USER, ANY_USER], ErrorCode.INVALID_REQUEST),
        ([ANY_USER, ("ip", 2, None)], ErrorCode.INVALID_REQUEST),
    ],
)
def test_there_are_no_quotas_to_describe(
    components: list[tuple[str, int, str | None]], code: ErrorCode
) -> None:
    request = describe.DescribeClientQuotasRequest(
        components=[
            describe.ComponentData(entity_type=kind, match_type=how, match=name)
            for kind, how, name in components
        ]
    )
    response = quotas.describe_quotas(NOWHERE, request)
    assert response.error_code == code
    assert response.entries == ([] if code == ErrorCode.NONE else None)


@pytest.mark.parametrize(
    ("entity", "changes", "code"),
    [
        (["user"], [("producer_byte_rate", 1.0)], ErrorCode.UNSUPPORTED_VERSION),
        (["user", "client-id"], [("producer_byte_rate", None)], ErrorCode.NONE),
        (["ip"], [("connection_creation_rate", 1.0)], ErrorCode.UNSUPPORTED_VERSION),
        (["ip"], [("producer_byte_rate", 1.0)], ErrorCode.INVALID_REQUEST),
        (["user"], [("bogus", 1.0)], ErrorCode.INVALID_REQUEST),
        (["user"], [("producer_byte_rate", 0.0)], ErrorCode.INVALID_REQUEST),
        (["user"], [("request_percentage", 1.0)] * 2, ErrorCode.INVALID_REQUEST),
        (["user", "ip"], [], ErrorCode.INVALID_REQUEST),
        (["bogus"], [], ErrorCode.INVALID_REQUEST),
        ([], [], ErrorCode.INVALID_REQUEST),
    ],
)
def test_quotas_cannot_be_set_but_can_be_removed(
    entity: list[str], changes: list[tuple[str, float | None]], code: ErrorCode
) -> None:
    entry = alter.EntryData(
        entity=[alter.EntityData(entity_type=kind, entity_name="a") for kind in entity],
        ops=[
            alter.OpData(key=key, value=value or 0.0, remove=value is None)
            for key, value in changes
        ],
    )
    [answer] = quotas.alter_quotas(NOWHERE, alter.AlterClientQuotasRequest(entries=[entry])).entries
    assert answer.error_code == code
    assert (answer.error_message is None) == (code == ErrorCode.NONE)
    assert [part.entity_type for part in answer.entity] == entity
