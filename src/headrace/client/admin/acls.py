"""Access control lists and roles of a cluster: looked at and changed."""

from collections.abc import Iterable
from dataclasses import astuple, dataclass
from enum import IntEnum
from typing import Any, TypedDict, TypeVar, Unpack

from headrace.client.admin.admin_requests import (
    ControllerRequests,
    passes,
    results,
    retry_until_answered,
)
from headrace.client.admin.arguments import name_of, names_of
from headrace.client.admin.configs import ConfigAdmin
from headrace.client.cluster import ClusterClient
from headrace.client.errors import check, failure
from headrace.errors import ErrorCode, KafkaError, Subject
from headrace.protocol.messages.create_acls import AclCreation, CreateAclsRequest
from headrace.protocol.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from headrace.protocol.messages.describe_acls import DescribeAclsRequest
from headrace.security.acls import (
    ANY_HOST,
    DESCRIPTION,
    MEMBER_PREFIX,
    ROLE_KIND,
    AclOperation,
    AclPatternType,
    AclPermission,
    AclResourceType,
)

Code = TypeVar("Code", bound=IntEnum)


@dataclass(frozen=True, slots=True, order=True)
class Acl:
    """A permission: a principal may, or may not, do an operation on a resource.

    `resource_type` is "topic", "group", "cluster", "transactional_id", "delegation_token" or
    "user"; `pattern` is "literal" or "prefixed"; `host` an address, a network as "10.0.0.0/8", or
    "*"; `permission` is "allow" or "deny".
    """

    principal: str
    operation: str
    resource_type: str
    resource_name: str
    pattern: str = "literal"
    host: str = ANY_HOST
    permission: str = "allow"

    def __str__(self) -> str:
        prefix = "prefix " if self.pattern == "prefixed" else ""
        return (
            f"{self.permission} {self.principal} {self.operation} on {self.resource_type}"
            f" {prefix}{self.resource_name!r} from {self.host}"
        )


class AclSelection(TypedDict, total=False):
    """The conditions of a selection of ACLs; each that is left out selects all.

    The pattern "match" selects every ACL that counts for a resource of that name.
    """

    principal: str | None
    operation: str | None
    resource_type: str | None
    resource_name: str | None
    pattern: str | None
    host: str | None
    permission: str | None


@dataclass(frozen=True, slots=True)
class Role:
    """A named set of rights, and the principals and groups that have them."""

    name: str
    description: str
    members: tuple[str, ...]
    rights: tuple[Acl, ...]


def _code_of(codes: type[Code], name: str | None, noun: str) -> Code:
    if name is None:
        return codes["ANY"]
    code = codes.__members__.get(name.upper().replace("-", "_"))
    if code is None:
        known = ", ".join(member.name.lower() for member in codes if member.name != "ANY")
        raise ValueError(f"{name!r} is no {noun}; give one of {known}")
    return code


def _selection_codes(**selection: Unpack[AclSelection]) -> dict[str, Any]:
    unknown = selection.keys() - AclSelection.__annotations__.keys()
    if unknown:
        raise TypeError(f"ACLs cannot be selected by {min(unknown)}")
    return {
        "resource_type_filter": _code_of(
            AclResourceType, selection.get("resource_type"), "resource type"
        ),
        "resource_name_filter": selection.get("resource_name"),
        "pattern_type_filter": _code_of(AclPatternType, selection.get("pattern"), "pattern"),
        "principal_filter": selection.get("principal"),
        "host_filter": selection.get("host"),
        "operation": _code_of(AclOperation, selection.get("operation"), "operation"),
        "permission_type": _code_of(AclPermission, selection.get("permission"), "permission"),
    }


def _acl(
    principal: str,
    operation: int,
    resource_type: int,
    resource_name: str,
    pattern_type: int,
    host: str,
    permission: int,
) -> Acl:
    return Acl(
        principal,
        _name_of(AclOperation, operation),
        _name_of(AclResourceType, resource_type),
        resource_name,
        _name_of(AclPatternType, pattern_type),
        host,
        _name_of(AclPermission, permission),
    )


def _name_of(codes: type[Code], code: int) -> str:
    """The name of a code; of one that a later Kafka may have, the number."""
    known = {int(member): member.name.lower() for member in codes}
    return known.get(code, str(code))


class AclAdmin:
    """Commands about ACLs."""

    def __init__(self, cluster: ClusterClient) -> None:
        self._cluster = cluster

    async def create(self, acls: Iterable[Acl]) -> None:
        """Create ACLs; one that is there already is no error."""
        if isinstance(acls, Acl):
            raise TypeError(f"{acls!r} is one ACL, not a list of them; write [{acls!r}]")
        wanted = list(dict.fromkeys(acls))
        creations = {acl: _creation(acl) for acl in wanted}
        target = ControllerRequests(self._cluster)

        async def attempt(missing: list[Acl], deadline: float) -> dict[Acl, KafkaError | None]:
            request = CreateAclsRequest(creations=[creations[acl] for acl in missing])
            answers = (await target.send(request, deadline)).results
            return {
                acl: failure(answer.error_code, answer.error_message, Subject("ACL", str(acl)))
                for acl, answer in zip(missing, answers, strict=True)
            }

        results(await retry_until_answered(self._cluster, wanted, attempt, passes))

    async def describe(self, **selection: Unpack[AclSelection]) -> list[Acl]:
        """The ACLs that a selection has, in order."""
        request = DescribeAclsRequest(**_selection_codes(**selection))
        deadline = self._cluster.deadline()

        async def attempt() -> list[Acl]:
            response = await self._cluster.call(request, deadline, None)
            check(response.error_code, response.error_message, Subject("list of ACLs"))
            return sorted(
                _acl(
                    acl.principal,
                    acl.operation,
                    resource.resource_type,
                    resource.resource_name,
                    resource.pattern_type,
                    acl.host,
                    acl.permission_type,
                )
                for resource in response.resources
                for acl in resource.acls
            )

        return await self._cluster.retrying(attempt, deadline)

    async def delete(self, **selection: Unpack[AclSelection]) -> list[Acl]:
        """Delete the ACLs that a selection has, and return them."""
        if all(value is None for value in selection.values()):
            raise TypeError("this would delete every ACL; give at least one condition")
        request = DeleteAclsRequest(filters=[DeleteAclsFilter(**_selection_codes(**selection))])
        target = ControllerRequests(self._cluster)
        deadline = self._cluster.deadline()

        async def attempt() -> list[Acl]:
            [answer] = (await target.send(request, deadline)).filter_results
            check(answer.error_code, answer.error_message, Subject("deletion of ACLs"))
            return sorted(
                _acl(
                    acl.principal,
                    acl.operation,
                    acl.resource_type,
                    acl.resource_name,
                    acl.pattern_type,
                    acl.host,
                    acl.permission_type,
                )
                for acl in answer.matching_acls
            )

        return await self._cluster.retrying(attempt, deadline)


def _creation(acl: Acl) -> AclCreation:
    if not isinstance(acl, Acl):
        raise TypeError(f"{acl!r} is no ACL; write headrace.Acl('User:alice', 'read', ...)")
    for text in astuple(acl):
        name_of(text, "part of an ACL")
    return AclCreation(
        resource_type=_code_of(AclResourceType, acl.resource_type, "resource type"),
        resource_name=acl.resource_name,
        resource_pattern_type=_code_of(AclPatternType, acl.pattern, "pattern"),
        principal=acl.principal,
        host=acl.host,
        operation=_code_of(AclOperation, acl.operation, "operation"),
        permission_type=_code_of(AclPermission, acl.permission, "permission"),
    )


class RoleAdmin:
    """Commands about roles: their rights are ACLs, their members settings of their own."""

    def __init__(self, configs: ConfigAdmin, acls: AclAdmin) -> None:
        self._configs = configs
        self._acls = acls

    async def create(self, name: str, description: str) -> None:
        """Create a role without rights and members."""
        if await self._settings_of(name) is not None:
            raise KafkaError(ErrorCode.DUPLICATE_RESOURCE, f"there is a role {name!r} already")
        await self._configs.alter({DESCRIPTION: description}, role=name)

    async def describe(self, names: Iterable[str]) -> dict[str, Role]:
        """Roles by name, with their members and rights; all of them if none is named."""
        wanted = names_of(names, "role") or (await self._configs.owners(["role"]))["role"]
        roles = {}
        for name in wanted:
            settings = await self._settings_of(name)
            if settings is None:
                raise KafkaError(ErrorCode.RESOURCE_NOT_FOUND, f"there is no role {name!r}")
            rights = await self._acls.describe(principal=role_principal(name))
            roles[name] = Role(
                name, settings.get(DESCRIPTION, ""), _members_of(settings), tuple(rights)
            )
        return roles

    async def delete(self, name: str) -> None:
        """Delete a role: its members and rights first, so that nothing of it counts half."""
        [role] = (await self.describe([name])).values()
        if role.members:
            await self.unbind(name, role.members)
        if role.rights:
            await self._acls.delete(principal=role_principal(name))
        await self._configs.alter({DESCRIPTION: None}, role=name)

    async def bind(self, name: str, members: Iterable[str]) -> None:
        """Give principals (`User:alice`) or groups of tokens (`Group:analysts`) a role."""
        wanted = names_of(members, "member")
        await self._configs.alter({MEMBER_PREFIX + member: "bound" for member in wanted}, role=name)

    async def unbind(self, name: str, members: Iterable[str]) -> None:
        """Take a role from members."""
        wanted = names_of(members, "member")
        await self._configs.alter({MEMBER_PREFIX + member: None for member in wanted}, role=name)

    async def _settings_of(self, name: str) -> dict[str, str] | None:
        try:
            entries = await self._configs.describe(role=name)
        except KafkaError as error:
            if error.code is ErrorCode.RESOURCE_NOT_FOUND:
                return None
            raise
        return {setting: entry.value or "" for setting, entry in entries.items()}


def role_principal(name: str) -> str:
    """The principal of ACLs that are the rights of a role."""
    return f"{ROLE_KIND}:{name}"


def _members_of(settings: Iterable[str]) -> tuple[str, ...]:
    return tuple(
        sorted(
            name.removeprefix(MEMBER_PREFIX) for name in settings if name.startswith(MEMBER_PREFIX)
        )
    )
