"""Principals, rights, and the authorizer that decides whether a principal has a right."""

from typing import NamedTuple, Protocol

from headrace.security.acls import AclOperation, AclResourceType


class Principal(NamedTuple):
    """The sender of a request: `User:alice`, and the groups that its token claims.

    `str(principal)` is what ACLs name. Two connections of one user may differ in their groups.
    """

    kind: str
    name: str
    groups: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


# The principal of connections at plain-text listeners, which have no authentication.
ANONYMOUS = Principal("User", "ANONYMOUS")


class Right(NamedTuple):
    """An operation on one resource."""

    operation: AclOperation
    resource_type: AclResourceType
    name: str

    def __str__(self) -> str:
        return f"{self.operation.name} on {self.resource_type.name} {self.name!r}"


class Decision(NamedTuple):
    """Whether a right is given, and the rule that decided it, for the audit log."""

    allowed: bool
    rule: str


class Authorizer(Protocol):
    """The decision whether a principal that connects from a host has a right."""

    def decide(self, principal: Principal, host: str, right: Right) -> Decision: ...

    def decide_any(
        self,
        principal: Principal,
        host: str,
        operation: AclOperation,
        resource_type: AclResourceType,
    ) -> Decision:
        """Whether the principal may do an operation on at least one resource of a type."""
        ...


_ALLOWED = Decision(True, "there is no authorizer")


class AllowAll:
    """The authorizer of a cluster without access control lists."""

    def decide(self, principal: Principal, host: str, right: Right) -> Decision:
        return _ALLOWED

    def decide_any(
        self,
        principal: Principal,
        host: str,
        operation: AclOperation,
        resource_type: AclResourceType,
    ) -> Decision:
        return _ALLOWED


# The hot path compares the authorizer with this object, and skips the checks if it is the same.
ALLOW_ALL = AllowAll()
