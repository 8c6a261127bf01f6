"""Principals, and the authorizer that says what they may do."""

from typing import NamedTuple, Protocol

from headrace.security.acls import AclOperation, AclResourceType


class Principal(NamedTuple):
    """Who sends a request."""

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
    """Answers whether a principal that connects from a host has a right."""

    def allows(self, principal: Principal, host: str, right: Right) -> bool: ...


class AllowAll:
    """The authorizer of a cluster without access control lists."""

    def allows(self, principal: Principal, host: str, right: Right) -> bool:
        return True


# Compared by identity where requests are many: what it would answer need not be asked.
ALLOW_ALL = AllowAll()
