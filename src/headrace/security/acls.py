"""Access control lists (ACLs): operations, resources, patterns, bindings, and filters of bindings.

The numbers of all enumerations are Kafka's. Code 0 of each is UNKNOWN there and is left out here:
a binding or filter with an unknown code cannot be made.
"""

import ipaddress
from enum import IntEnum
from functools import lru_cache
from typing import NamedTuple, TypeAlias, TypeVar

from headrace.errors import ErrorCode, KafkaError


class AclOperation(IntEnum):
    """An operation on a resource. ANY is for filters, ALL stands for every operation."""

    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class AclResourceType(IntEnum):
    """The type of a resource. The only CLUSTER resource is CLUSTER_NAME; ANY is for filters."""

    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class AclPatternType(IntEnum):
    """The kind of match of a pattern: a resource by its name, or all whose names have a prefix.

    ANY and MATCH are for filters: MATCH finds all patterns that a resource of that name matches.
    """

    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class AclPermission(IntEnum):
    """Whether a binding allows or denies; ANY is for filters."""

    ANY = 1
    DENY = 2
    ALLOW = 3


CLUSTER_NAME = "kafka-cluster"
# The name of a literal pattern for all resources of a type, and the host that stands for all.
ANY_NAME = "*"
ANY_HOST = "*"
ANY_USER = "User:*"

Code = TypeVar("Code", bound=IntEnum)

_O = AclOperation
OPERATIONS_OF: dict[AclResourceType, tuple[AclOperation, ...]] = {
    AclResourceType.TOPIC: (
        _O.READ,
        _O.WRITE,
        _O.CREATE,
        _O.DELETE,
        _O.ALTER,
        _O.DESCRIBE,
        _O.DESCRIBE_CONFIGS,
        _O.ALTER_CONFIGS,
    ),
    AclResourceType.GROUP: (
        _O.READ,
        _O.DELETE,
        _O.DESCRIBE,
        _O.DESCRIBE_CONFIGS,
        _O.ALTER_CONFIGS,
    ),
    AclResourceType.CLUSTER: (
        _O.CREATE,
        _O.ALTER,
        _O.DESCRIBE,
        _O.CLUSTER_ACTION,
        _O.DESCRIBE_CONFIGS,
        _O.ALTER_CONFIGS,
        _O.IDEMPOTENT_WRITE,
    ),
    AclResourceType.TRANSACTIONAL_ID: (_O.WRITE, _O.DESCRIBE, _O.TWO_PHASE_COMMIT),
    AclResourceType.DELEGATION_TOKEN: (_O.DESCRIBE,),
    AclResourceType.USER: (_O.CREATE_TOKENS, _O.DESCRIBE_TOKENS),
}

# The operations whose permission includes another one.
IMPLIED_BY: dict[AclOperation, tuple[AclOperation, ...]] = {
    _O.DESCRIBE: (_O.READ, _O.WRITE, _O.DELETE, _O.ALTER),
    _O.DESCRIBE_CONFIGS: (_O.ALTER_CONFIGS,),
}


def operation_bits(operations: tuple[AclOperation, ...]) -> int:
    """The authorized-operations field of a response."""
    return sum(1 << operation for operation in operations)


class AclBinding(NamedTuple):
    """A permission: a principal may, or may not, do an operation on resources, from hosts.

    `host` is an address, a network such as 10.0.0.0/8 (KIP-1276), or ANY_HOST.
    """

    resource_type: AclResourceType
    resource_name: str
    pattern_type: AclPatternType
    principal: str
    host: str
    operation: AclOperation
    permission: AclPermission

    def __str__(self) -> str:
        pattern = "prefix " if self.pattern_type is AclPatternType.PREFIXED else ""
        return (
            f"{self.permission.name} {self.principal} {self.operation.name} on"
            f" {self.resource_type.name} {pattern}{self.resource_name!r} from {self.host}"
        )


class AclFilter(NamedTuple):
    """A filter of bindings; None and ANY match everything."""

    resource_type: AclResourceType = AclResourceType.ANY
    resource_name: str | None = None
    pattern_type: AclPatternType = AclPatternType.ANY
    principal: str | None = None
    host: str | None = None
    operation: AclOperation = AclOperation.ANY
    permission: AclPermission = AclPermission.ANY

    def matches(self, binding: AclBinding) -> bool:
        """Whether a binding is among those that the filter selects."""
        return (
            self.resource_type in (AclResourceType.ANY, binding.resource_type)
            and self._matches_pattern(binding)
            and self.principal in (None, binding.principal)
            and self.host in (None, binding.host)
            and self.operation in (AclOperation.ANY, binding.operation)
            and self.permission in (AclPermission.ANY, binding.permission)
        )

    def _matches_pattern(self, binding: AclBinding) -> bool:
        is_match = self.pattern_type is AclPatternType.MATCH
        if not is_match and self.pattern_type not in (AclPatternType.ANY, binding.pattern_type):
            return False
        if self.resource_name is None or self.resource_name == binding.resource_name:
            return True
        if not is_match:
            return False
        if binding.pattern_type is AclPatternType.PREFIXED:
            return self.resource_name.startswith(binding.resource_name)
        return binding.resource_name == ANY_NAME


def _invalid(text: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, text)


def acl_binding(
    resource_type: int,
    resource_name: str,
    pattern_type: int,
    principal: str,
    host: str,
    operation: int,
    permission: int,
) -> AclBinding:
    """The binding of Kafka's codes and names; INVALID_REQUEST if it could never apply."""
    binding = AclBinding(
        _code(AclResourceType, resource_type, "resource type"),
        resource_name,
        _code(AclPatternType, pattern_type, "pattern type"),
        principal,
        host,
        _code(AclOperation, operation, "operation"),
        _code(AclPermission, permission, "permission"),
    )
    for value in (binding.resource_type, binding.operation, binding.permission):
        if value.name == "ANY":
            raise _invalid(f"an ACL names a {_NOUN[type(value)]}; ANY is for filters")
    if binding.pattern_type in (AclPatternType.ANY, AclPatternType.MATCH):
        raise _invalid(f"an ACL is LITERAL or PREFIXED; {binding.pattern_type.name} is for filters")
    if not resource_name:
        raise _invalid("the name of the resource is empty")
    if binding.resource_type is AclResourceType.CLUSTER and resource_name != CLUSTER_NAME:
        raise _invalid(f"the only resource of type CLUSTER is {CLUSTER_NAME!r}")
    check_principal(principal)
    if not host or ("/" in host and _network(host) is None):
        raise _invalid(f"{host!r} is no address, no network such as 10.0.0.0/8, and not '*'")
    return binding


def acl_filter(
    resource_type: int,
    resource_name: str | None,
    pattern_type: int,
    principal: str | None,
    host: str | None,
    operation: int,
    permission: int,
) -> AclFilter:
    """The filter of Kafka's codes and names; INVALID_REQUEST for an unknown code."""
    return AclFilter(
        _code(AclResourceType, resource_type, "resource type"),
        resource_name,
        _code(AclPatternType, pattern_type, "pattern type"),
        principal,
        host,
        _code(AclOperation, operation, "operation"),
        _code(AclPermission, permission, "permission"),
    )


_NOUN: dict[type[IntEnum], str] = {
    AclResourceType: "resource type",
    AclOperation: "operation",
    AclPermission: "permission",
}


def _code(codes: type[Code], value: int, noun: str) -> Code:
    try:
        return codes(value)
    except ValueError:
        raise _invalid(f"there is no {noun} {value}") from None


def check_principal(principal: str) -> None:
    """INVALID_REQUEST if a text is no principal such as `User:alice`."""
    kind, colon, name = principal.partition(":")
    if not (kind and colon and name):
        raise _invalid(f"{principal!r} is no principal; write one as User:alice")


Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network
_Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address


def _network(host: str) -> Network | None:
    """The network of a host in a binding, of a single address too; None if it is neither."""
    try:
        # Not strict: 10.1.2.3/8 means the network that it lies in.
        network = ipaddress.ip_network(host, strict=False)
    except ValueError:
        return None
    if network.version == 6 and network.network_address.ipv4_mapped and network.prefixlen >= 96:
        length = network.prefixlen - 96
        return ipaddress.ip_network((network.network_address.ipv4_mapped, length), strict=False)
    return network


@lru_cache(maxsize=4096)
def _address(host: str) -> _Address | None:
    """The address of a connection's peer; None if it has none, as over a Unix socket."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None
    # A listener for both families sees IPv4 peers so.
    mapped = address.ipv4_mapped if address.version == 6 else None
    return mapped or address


class HostPattern:
    """The hosts of a binding; `covers` says whether a peer's address is one of them."""

    __slots__ = ("_network", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        # A host that is no address covers only itself: a log of Kafka may have one.
        self._network = None if text == ANY_HOST else _network(text)

    def covers(self, host: str) -> bool:
        if self.text in (ANY_HOST, host):
            return True
        if self._network is None:
            return False
        address = _address(host)
        return (
            address is not None
            and address.version == self._network.version
            and address in self._network
        )


# Names that the parts of a role have in the metadata and on the wire.
#
# A role `analysts` is a config resource of a type of headrace's own. Its rights are the ACLs of the
# principal `Role:analysts`, its members settings such as `member:User:alice`.


ROLE_KIND = "Role"
GROUP_KIND = "Group"
USER_KIND = "User"

DESCRIPTION = "description"
MEMBER_PREFIX = "member:"
