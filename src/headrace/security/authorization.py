"""Principals, rights, and the authorizer that decides whether a principal has a right."""

from typing import NamedTuple, Protocol

from headrace.security.acls import AclOperation, AclResourceType


class Principal(NamedTuple):
    """The sender of a request: `User:alice`."""

    kind: str
    name: str

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


class Authorizer(Protocol):
    """The decision whether a principal that connects from a host has a right."""

    def allows(self, principal: Principal, host: str, right: Right) -> bool: ...


class AllowAll:
    """The authorizer of a cluster without access control lists."""

    def allows(self, principal: Principal, host: str, right: Right) -> bool:
        return True


# The hot path compares the authorizer with this object, and skips the checks if it is the same.
ALLOW_ALL = AllowAll()
