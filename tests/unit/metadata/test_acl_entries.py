"""ACLs in the metadata: commands, records, snapshots."""

from itertools import count

import pytest

from headrace.errors import ErrorCode
from headrace.metadata.acl_entries import create_acls, delete_acls, describe_acls
from headrace.metadata.image import Image
from headrace.metadata.records import MetadataError, decode_record, encode_record
from headrace.metadata.snapshot import image_records
from headrace.protocol.messages.create_acls import AclCreation, CreateAclsRequest
from headrace.protocol.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from headrace.protocol.messages.describe_acls import DescribeAclsRequest
from headrace.protocol.messages.metadata_records import (
    AccessControlEntryRecord,
    RemoveAccessControlEntryRecord,
)

ANY = 1
READ, WRITE, ALLOW, DENY, LITERAL, PREFIXED, MATCH = 3, 4, 3, 2, 3, 4, 2


def creation(name: str = "orders", operation: int = READ, pattern: int = LITERAL) -> AclCreation:
    return AclCreation(
        resource_type=2,
        resource_name=name,
        resource_pattern_type=pattern,
        principal="User:alice",
        host="*",
        operation=operation,
        permission_type=ALLOW,
    )


def created(image: Image, *creations: AclCreation) -> tuple[Image, list[int]]:
    numbers = count(len(image.acls) + 1)
    result = create_acls(
        image.acls,
        CreateAclsRequest(creations=list(creations)),
        lambda: next(numbers).to_bytes(16, "big"),
    )
    codes = [answer.error_code for answer in result.response.results]
    return image.apply(result.records), codes


def deleted(image: Image, *filters: DeleteAclsFilter) -> tuple[Image, list[list[str]], list[int]]:
    result = delete_acls(image.acls, DeleteAclsRequest(filters=list(filters)))
    answers = result.response.filter_results
    names = [[acl.resource_name for acl in answer.matching_acls] for answer in answers]
    return image.apply(result.records), names, [answer.error_code for answer in answers]


def any_acl(name: str | None = None, pattern: int = ANY) -> DeleteAclsFilter:
    return DeleteAclsFilter(
        resource_type_filter=ANY,
        resource_name_filter=name,
        pattern_type_filter=pattern,
        principal_filter=None,
        host_filter=None,
        operation=ANY,
        permission_type=ANY,
    )


def test_bindings_are_created_once_and_each_has_its_answer() -> None:
    image, codes = created(Image(), creation(), creation(), creation("", WRITE), creation("b"))
    assert codes == [0, 0, ErrorCode.INVALID_REQUEST, 0]
    assert sorted(acl.resource_name for acl in image.acls.values()) == ["b", "orders"]
    again, codes = created(image, creation())
    assert codes == [0] and again.acls == image.acls


def test_filters_delete_each_binding_once() -> None:
    image, _ = created(
        Image(), creation(), creation("ord", pattern=PREFIXED), creation("*"), creation("other")
    )
    after, names, codes = deleted(image, any_acl("orders", MATCH), any_acl("orders", LITERAL))
    assert [sorted(found) for found in names] == [["*", "ord", "orders"], ["orders"]]
    assert codes == [0, 0]
    assert [acl.resource_name for acl in after.acls.values()] == ["other"]
    wrong = any_acl()
    wrong.operation = 77
    assert deleted(after, wrong, any_acl())[2] == [ErrorCode.INVALID_REQUEST, 0]
    assert deleted(after, any_acl())[0].acls == {}


def test_a_command_changes_a_bounded_number_of_bindings() -> None:
    many = [creation(f"t{number}") for number in range(10_001)]
    image, codes = created(Image(), *many)
    assert (len(image.acls), codes[-1]) == (10_000, ErrorCode.POLICY_VIOLATION)
    image, _ = created(image, many[-1])
    assert deleted(image, any_acl())[2] == [ErrorCode.POLICY_VIOLATION]


def test_descriptions_are_grouped_by_resource() -> None:
    image, _ = created(Image(), creation(operation=WRITE), creation(), creation("b"))
    request = DescribeAclsRequest(
        resource_type_filter=ANY,
        resource_name_filter=None,
        pattern_type_filter=ANY,
        principal_filter=None,
        host_filter=None,
        operation=ANY,
        permission_type=ANY,
    )
    response = describe_acls(image.acls, request)
    assert [(found.resource_name, len(found.acls)) for found in response.resources] == [
        ("b", 1),
        ("orders", 2),
    ]
    request.permission_type = 9
    assert describe_acls(image.acls, request).error_code == ErrorCode.INVALID_REQUEST


def test_a_snapshot_has_every_binding_in_the_records_of_kafka() -> None:
    image, _ = created(Image(), creation(), creation("ord", pattern=PREFIXED))
    records = [decode_record(encode_record(record)) for record in image_records(image)]
    assert {type(record) for record in records} == {AccessControlEntryRecord}
    assert Image().apply(records).acls == image.acls


def test_a_log_that_contradicts_itself_is_not_replayed() -> None:
    entry = AccessControlEntryRecord(
        id=b"1" * 16,
        resource_type=2,
        resource_name="t",
        pattern_type=LITERAL,
        principal="User:a",
        host="*",
        operation=READ,
        permission_type=DENY,
    )
    with pytest.raises(MetadataError, match="created twice"):
        Image().apply([entry, entry])
    with pytest.raises(MetadataError, match="no ACL"):
        Image().apply([RemoveAccessControlEntryRecord(id=b"2" * 16)])
    entry.operation = 99
    with pytest.raises(MetadataError, match="does not know"):
        Image().apply([entry])
