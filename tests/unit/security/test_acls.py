"""Bindings, filters and hosts of ACLs."""

from typing import Any

import pytest

from headrace.errors import KafkaError
from headrace.security.acls import (
    AclBinding,
    AclFilter,
    AclOperation,
    AclPatternType,
    AclPermission,
    AclResourceType,
    HostPattern,
    acl_binding,
    acl_filter,
    operation_bits,
)

TOPIC, GROUP, CLUSTER = 2, 3, 4
MATCH, LITERAL, PREFIXED = 2, 3, 4
READ, ALLOW = 3, 3


def binding(name: str = "orders", pattern: int = LITERAL, host: str = "*") -> AclBinding:
    return acl_binding(TOPIC, name, pattern, "User:alice", host, READ, ALLOW)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ((0, "x", LITERAL, "User:a", "*", READ, ALLOW), "no resource type 0"),
        ((1, "x", LITERAL, "User:a", "*", READ, ALLOW), "ANY is for filters"),
        ((TOPIC, "", LITERAL, "User:a", "*", READ, ALLOW), "name of the resource is empty"),
        ((TOPIC, "x", MATCH, "User:a", "*", READ, ALLOW), "MATCH is for filters"),
        ((TOPIC, "x", LITERAL, "alice", "*", READ, ALLOW), "'alice' is no principal"),
        ((TOPIC, "x", LITERAL, "User:", "*", READ, ALLOW), "is no principal"),
        ((TOPIC, "x", LITERAL, "User:a", "*", 1, ALLOW), "ANY is for filters"),
        ((TOPIC, "x", LITERAL, "User:a", "*", 99, ALLOW), "no operation 99"),
        ((TOPIC, "x", LITERAL, "User:a", "*", READ, 1), "ANY is for filters"),
        ((TOPIC, "x", LITERAL, "User:a", "", READ, ALLOW), "is no address"),
        ((TOPIC, "x", LITERAL, "User:a", "10.0.0.0/99", READ, ALLOW), "is no address"),
        ((CLUSTER, "x", LITERAL, "User:a", "*", READ, ALLOW), "only resource of type CLUSTER"),
    ],
)
def test_a_binding_that_could_never_apply_is_refused(
    arguments: tuple[int, str, int, str, str, int, int], reason: str
) -> None:
    with pytest.raises(KafkaError, match=reason):
        acl_binding(*arguments)


@pytest.mark.parametrize(
    ("pattern", "host", "covered"),
    [
        ("*", "10.0.0.1", True),
        ("10.0.0.1", "10.0.0.1", True),
        ("10.0.0.1", "10.0.0.2", False),
        ("10.0.0.0/8", "10.9.9.9", True),
        ("10.1.2.3/8", "10.9.9.9", True),
        ("10.0.0.0/8", "11.0.0.1", False),
        ("10.0.0.0/8", "::ffff:10.1.1.1", True),
        ("::ffff:10.0.0.0/104", "10.1.1.1", True),
        ("2001:db8::/32", "2001:db8::7", True),
        ("2001:db8::/32", "2001:db9::7", False),
        ("2001:db8::1", "2001:0db8:0::1", True),
        ("fe80::/10", "fe80::1%eth0", True),
        ("2001:db8::/32", "10.0.0.1", False),
        ("0.0.0.0/0", "::1", False),
        ("10.0.0.0/8", "local", False),
        ("gateway", "gateway", True),
        ("gateway", "10.0.0.1", False),
    ],
)
def test_hosts_are_addresses_networks_or_all(pattern: str, host: str, covered: bool) -> None:
    assert HostPattern(pattern).covers(host) is covered


def test_filters_select_by_every_field() -> None:
    orders = binding()
    assert AclFilter().matches(orders)
    others: dict[str, Any] = {
        "resource_type": AclResourceType.GROUP,
        "resource_name": "other",
        "pattern_type": AclPatternType.PREFIXED,
        "principal": "User:bob",
        "host": "10.0.0.1",
        "operation": AclOperation.WRITE,
        "permission": AclPermission.DENY,
    }
    for field, value in others.items():
        same: dict[str, Any] = {field: getattr(orders, field)}
        assert AclFilter()._replace(**same).matches(orders)
        assert not AclFilter()._replace(**{field: value}).matches(orders)


@pytest.mark.parametrize(
    ("name", "pattern", "found"),
    [
        ("orders", LITERAL, True),
        ("ord", PREFIXED, True),
        ("orders", PREFIXED, True),
        ("*", LITERAL, True),
        ("orders-2", PREFIXED, False),
        ("other", LITERAL, False),
        ("*", PREFIXED, False),
    ],
)
def test_the_filter_match_finds_what_counts_for_a_resource(
    name: str, pattern: int, found: bool
) -> None:
    selected = acl_filter(TOPIC, "orders", MATCH, None, None, 1, 1)
    assert selected.matches(binding(name, pattern)) is found
    literal = acl_filter(TOPIC, "orders", LITERAL, None, None, 1, 1)
    assert literal.matches(binding(name, pattern)) is ((name, pattern) == ("orders", LITERAL))


def test_operations_are_bits_of_a_field() -> None:
    assert operation_bits((AclOperation.READ, AclOperation.DESCRIBE)) == (1 << 3) + (1 << 8)
