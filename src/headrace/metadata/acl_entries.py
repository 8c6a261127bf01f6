"""ACLs of the metadata log: their records, and the commands that create and delete them.

Kafka's records are kept as they are, so that its own tools read the log. The rules about creation
and deletion are Kafka's too: a binding that is there already is created with success.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping

from headrace.errors import ErrorCode, KafkaError
from headrace.metadata.records import CommandResult, MetadataError
from headrace.protocol.messages.create_acls import (
    AclCreationResult,
    CreateAclsRequest,
    CreateAclsResponse,
)
from headrace.protocol.messages.delete_acls import (
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from headrace.protocol.messages.describe_acls import (
    AclDescription,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)
from headrace.protocol.messages.metadata_records import (
    AccessControlEntryRecord,
    RemoveAccessControlEntryRecord,
)
from headrace.protocol.schema import Message
from headrace.security.acls import (
    AclBinding,
    AclFilter,
    AclOperation,
    AclPatternType,
    AclPermission,
    AclResourceType,
    acl_binding,
    acl_filter,
)
from headrace.types import uuid_text

Acls = Mapping[bytes, AclBinding]

# What one command may write, as in Kafka: more would hold up the controller.
_RECORDS_MAX = 10_000
_TEXT_CHARACTERS_MAX = 2**15 - 1


def add_entry(acls: dict[bytes, AclBinding], record: AccessControlEntryRecord) -> None:
    """Replay the record of a new binding."""
    if record.id in acls:
        raise MetadataError(f"the ACL {uuid_text(record.id)} is created twice")
    try:
        acls[record.id] = AclBinding(
            AclResourceType(record.resource_type),
            record.resource_name,
            AclPatternType(record.pattern_type),
            record.principal,
            record.host,
            AclOperation(record.operation),
            AclPermission(record.permission_type),
        )
    except ValueError as error:
        # To leave it out could allow what it denies.
        raise MetadataError(
            f"the ACL {uuid_text(record.id)} has a code that this version does not know: {error}"
        ) from error


def remove_entry(acls: dict[bytes, AclBinding], record: RemoveAccessControlEntryRecord) -> None:
    """Replay the record of a deleted binding."""
    if acls.pop(record.id, None) is None:
        raise MetadataError(f"there is no ACL {uuid_text(record.id)} to remove")


def acl_records(acls: Acls) -> Iterator[Message]:
    """The records of all bindings, for a snapshot."""
    for acl_id, binding in acls.items():
        yield _entry(acl_id, binding)


def _entry(acl_id: bytes, binding: AclBinding) -> AccessControlEntryRecord:
    return AccessControlEntryRecord(
        id=acl_id,
        resource_type=binding.resource_type,
        resource_name=binding.resource_name,
        pattern_type=binding.pattern_type,
        principal=binding.principal,
        host=binding.host,
        operation=binding.operation,
        permission_type=binding.permission,
    )


def describe_acls(acls: Acls, request: DescribeAclsRequest) -> DescribeAclsResponse:
    """The bindings that a filter selects, by resource pattern."""
    try:
        selected = acl_filter(
            request.resource_type_filter,
            request.resource_name_filter,
            request.pattern_type_filter,
            request.principal_filter,
            request.host_filter,
            request.operation,
            request.permission_type,
        )
    except KafkaError as error:
        return DescribeAclsResponse(error_code=error.code, error_message=error.detail)
    resources: dict[tuple[int, str, int], DescribeAclsResource] = {}
    for binding in sorted(filter(selected.matches, acls.values())):
        key = (binding.resource_type, binding.resource_name, binding.pattern_type)
        if key not in resources:
            resources[key] = DescribeAclsResource(
                resource_type=key[0], resource_name=key[1], pattern_type=key[2]
            )
        resources[key].acls.append(
            AclDescription(
                principal=binding.principal,
                host=binding.host,
                operation=binding.operation,
                permission_type=binding.permission,
            )
        )
    return DescribeAclsResponse(error_message=None, resources=list(resources.values()))


def create_acls(
    acls: Acls, request: CreateAclsRequest, new_id: Callable[[], bytes]
) -> CommandResult[CreateAclsResponse]:
    """Create the bindings that are valid and not there yet; each gets an answer of its own."""
    present = set(acls.values())
    records: list[Message] = []
    results = []
    for creation in request.creations:
        try:
            binding = acl_binding(
                creation.resource_type,
                creation.resource_name,
                creation.resource_pattern_type,
                creation.principal,
                creation.host,
                creation.operation,
                creation.permission_type,
            )
            _check_lengths(binding)
            if binding not in present:
                _check_count(len(records))
                present.add(binding)
                records.append(_entry(new_id(), binding))
        except KafkaError as error:
            result = AclCreationResult(error_code=error.code, error_message=error.detail)
        else:
            result = AclCreationResult(error_message=None)
        results.append(result)
    return CommandResult(tuple(records), CreateAclsResponse(results=results))


def delete_acls(acls: Acls, request: DeleteAclsRequest) -> CommandResult[DeleteAclsResponse]:
    """Delete the bindings that any of the filters selects."""
    removed: dict[bytes, None] = {}
    results = []
    for given in request.filters:
        try:
            selected = acl_filter(
                given.resource_type_filter,
                given.resource_name_filter,
                given.pattern_type_filter,
                given.principal_filter,
                given.host_filter,
                given.operation,
                given.permission_type,
            )
            found = _select(acls, selected)
            _check_count(len(removed.keys() | found.keys()) - 1)
        except KafkaError as error:
            results.append(
                DeleteAclsFilterResult(error_code=error.code, error_message=error.detail)
            )
            continue
        removed.update(dict.fromkeys(found))
        results.append(_deleted(found.values()))
    records = tuple(RemoveAccessControlEntryRecord(id=acl_id) for acl_id in removed)
    return CommandResult(records, DeleteAclsResponse(filter_results=results))


def _select(acls: Acls, selected: AclFilter) -> dict[bytes, AclBinding]:
    return {acl_id: binding for acl_id, binding in acls.items() if selected.matches(binding)}


def _deleted(bindings: Iterable[AclBinding]) -> DeleteAclsFilterResult:
    return DeleteAclsFilterResult(
        error_message=None,
        matching_acls=[
            DeleteAclsMatchingAcl(
                error_message=None,
                resource_type=binding.resource_type,
                resource_name=binding.resource_name,
                pattern_type=binding.pattern_type,
                principal=binding.principal,
                host=binding.host,
                operation=binding.operation,
                permission_type=binding.permission,
            )
            for binding in bindings
        ],
    )


def _check_lengths(binding: AclBinding) -> None:
    for text in (binding.resource_name, binding.principal, binding.host):
        if len(text) > _TEXT_CHARACTERS_MAX:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"a name in the ACL is longer than {_TEXT_CHARACTERS_MAX} characters",
            )


def _check_count(count: int) -> None:
    if count >= _RECORDS_MAX:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION,
            f"one request changes at most {_RECORDS_MAX} ACLs",
            advice="send several",
        )
