"""SCRAM credentials in the metadata: records, and the rules and codes of their changes."""

import pytest

from headrace.errors import ErrorCode
from headrace.metadata.image import Image
from headrace.metadata.scram_credentials import (
    ScramKey,
    alter_credentials,
    describe_credentials,
    secret_of,
    usual_iterations,
)
from headrace.metadata.snapshot import image_records
from headrace.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from headrace.protocol.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    UserName,
)
from headrace.security.scram import ScramMechanism

SECRET = b"s" * 32


def upsertion(name: str = "alice", mechanism: int = 1, iterations: int = 4096, salt: bytes = b"x"):
    return ScramCredentialUpsertion(
        name=name,
        mechanism=mechanism,
        iterations=iterations,
        salt=salt,
        salted_password=b"y" * 32,
    )


def alter(image: Image, *upsertions, deletions=()) -> tuple[Image, dict[str, int]]:
    request = AlterUserScramCredentialsRequest(
        deletions=[ScramCredentialDeletion(name=name, mechanism=code) for name, code in deletions],
        upsertions=list(upsertions),
    )
    result = alter_credentials(image.scram_credentials, request, SECRET)
    codes = {answer.user: answer.error_code for answer in result.response.results}
    return image.apply(result.records), codes


def describe(image: Image, *names: str) -> dict[str, object]:
    request = DescribeUserScramCredentialsRequest(
        users=[UserName(name=name) for name in names] or None
    )
    response = describe_credentials(image.scram_credentials, request)
    return {
        answer.user: answer.error_code
        or [(info.mechanism, info.iterations) for info in answer.credential_infos]
        for answer in response.results
    }


def test_credentials_are_kept_described_and_deleted() -> None:
    image, codes = alter(Image(), upsertion())
    assert codes == {"alice": 0}
    image, _ = alter(image, upsertion(mechanism=2, iterations=8192))
    assert describe(image) == {"alice": [(1, 4096), (2, 8192)]}
    assert Image().apply(image_records(image)) == image
    image, codes = alter(image, deletions=[("alice", 1)])
    assert codes == {"alice": 0}
    assert describe(image) == {"alice": [(2, 8192)]}


def test_a_record_has_no_salted_password() -> None:
    image, _ = alter(Image(), upsertion())
    assert b"y" * 32 not in image.scram_credentials[ScramKey("alice", 1)]


def test_the_first_credential_brings_the_secret_of_made_up_ones() -> None:
    assert secret_of(Image().scram_credentials) is None
    image, _ = alter(Image(), upsertion())
    assert secret_of(image.scram_credentials) == SECRET
    again, _ = alter(image, upsertion("bob"))
    assert secret_of(again.scram_credentials) == SECRET
    assert set(describe(again)) == {"alice", "bob"}
    assert describe(again, "") == {"": ErrorCode.RESOURCE_NOT_FOUND}


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (upsertion(""), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsertion(mechanism=0), ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        (upsertion(mechanism=3), ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        (upsertion(iterations=4095), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsertion(iterations=16_385), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsertion(salt=b""), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsertion(salt=b"x" * 2000), ErrorCode.UNACCEPTABLE_CREDENTIAL),
    ],
)
def test_bad_changes_are_refused(change: ScramCredentialUpsertion, code: ErrorCode) -> None:
    image, codes = alter(Image(), change, upsertion("bob"))
    assert codes == {change.name: code, "bob": 0}
    assert set(describe(image)) == {"bob"}


def test_a_user_is_changed_once_in_a_request() -> None:
    image, codes = alter(Image(), upsertion(), upsertion(mechanism=2))
    assert codes == {"alice": ErrorCode.DUPLICATE_RESOURCE}
    assert image == Image()
    image, _ = alter(Image(), upsertion())
    _, codes = alter(image, upsertion(), deletions=[("alice", 1)])
    assert codes == {"alice": ErrorCode.DUPLICATE_RESOURCE}
    assert alter(Image(), deletions=[("nobody", 1)])[1] == {"nobody": ErrorCode.RESOURCE_NOT_FOUND}


def test_named_users_are_described_or_not_found() -> None:
    image, _ = alter(Image(), upsertion())
    assert describe(image, "alice", "bob", "twice", "twice") == {
        "alice": [(1, 4096)],
        "bob": ErrorCode.RESOURCE_NOT_FOUND,
        "twice": ErrorCode.DUPLICATE_RESOURCE,
    }


def test_users_that_do_not_exist_have_the_usual_iterations() -> None:
    image, _ = alter(Image(), *(upsertion(name, iterations=8192) for name in "abc"), upsertion("d"))
    assert usual_iterations(image.scram_credentials, ScramMechanism.SCRAM_SHA_256) == 8192
    assert usual_iterations(image.scram_credentials, ScramMechanism.SCRAM_SHA_512) == 4096
