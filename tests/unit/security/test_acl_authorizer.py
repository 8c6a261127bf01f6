"""The authorizer's decisions, compared with a model that looks at every binding."""

import random
import time
from collections.abc import Mapping

from headrace.security.acl_authorizer import AclAuthorizer, AclPolicy
from headrace.security.acls import (
    IMPLIED_BY,
    AclBinding,
    AclOperation,
    AclPatternType,
    AclPermission,
    AclResourceType,
    HostPattern,
)
from headrace.security.authorization import Principal, Right

ALICE, BOB = Principal("User", "alice"), Principal("User", "bob")
READ, WRITE, DESCRIBE = AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE
TOPIC = AclResourceType.TOPIC
LITERAL, PREFIXED = AclPatternType.LITERAL, AclPatternType.PREFIXED
ALLOW, DENY = AclPermission.ALLOW, AclPermission.DENY
HOST = "10.0.0.1"


def rule(
    name: str = "orders",
    operation: AclOperation = READ,
    permission: AclPermission = ALLOW,
    principal: str = "User:alice",
    pattern: AclPatternType = LITERAL,
    host: str = "*",
) -> AclBinding:
    return AclBinding(TOPIC, name, pattern, principal, host, operation, permission)


def by_id(*bindings: AclBinding) -> dict[bytes, AclBinding]:
    return {str(number).encode(): binding for number, binding in enumerate(bindings)}


def authorizer(*bindings: AclBinding, policy: AclPolicy | None = None) -> AclAuthorizer:
    return AclAuthorizer(policy or AclPolicy(), by_id(*bindings))


def allows(
    by: AclAuthorizer,
    operation: AclOperation = READ,
    name: str = "orders",
    principal: Principal = ALICE,
    host: str = HOST,
) -> bool:
    return by.decide(principal, host, Right(operation, TOPIC, name)).allowed


def test_what_no_rule_allows_is_denied() -> None:
    rules = authorizer(rule())
    assert allows(rules)
    assert not allows(rules, principal=BOB)
    assert not allows(rules, WRITE)
    assert not allows(rules, name="other")
    assert not rules.decide(ALICE, HOST, Right(READ, AclResourceType.GROUP, "orders")).allowed


def test_a_denial_wins_over_what_is_allowed() -> None:
    for denied in (
        rule(permission=DENY),
        rule(permission=DENY, operation=AclOperation.ALL),
        rule("*", permission=DENY),
        rule("ord", permission=DENY, pattern=PREFIXED),
        rule(permission=DENY, principal="User:*"),
        rule(permission=DENY, host="10.0.0.0/24"),
    ):
        for bindings in ((rule(), denied), (denied, rule())):
            assert not allows(authorizer(*bindings)), denied
    assert allows(authorizer(rule(), rule(permission=DENY, host="10.0.1.0/24")))


def test_some_operations_include_others_and_their_denial_does_not() -> None:
    for operation in (READ, WRITE, AclOperation.DELETE, AclOperation.ALTER, AclOperation.ALL):
        assert allows(authorizer(rule(operation=operation)), DESCRIBE)
    changes = authorizer(rule(operation=AclOperation.ALTER_CONFIGS))
    assert allows(changes, AclOperation.DESCRIBE_CONFIGS)
    assert not allows(changes, DESCRIBE)
    denied = authorizer(rule(permission=DENY), rule(operation=DESCRIBE))
    assert allows(denied, DESCRIBE)
    assert not allows(denied)


def test_prefixes_and_the_asterisk_name_many_resources() -> None:
    rules = authorizer(rule("ord", pattern=PREFIXED), rule("*", WRITE))
    assert allows(rules, name="ord") and allows(rules, name="orders")
    assert not allows(rules, name="or")
    assert allows(rules, WRITE, "whatever")
    # An asterisk in a prefix is an ordinary character.
    assert not allows(authorizer(rule("*", pattern=PREFIXED)), name="orders")


def test_super_users_may_do_everything() -> None:
    rules = authorizer(rule(permission=DENY), policy=AclPolicy(frozenset({"User:alice"})))
    assert allows(rules) and allows(rules, AclOperation.ALTER, "other")
    assert not allows(rules, principal=BOB)
    assert not allows(rules, principal=Principal("Group", "alice"))


def test_everybody_may_use_what_no_rule_names_if_the_setting_says_so() -> None:
    rules = authorizer(
        rule(), rule("pre", pattern=PREFIXED), policy=AclPolicy(allow_without_acl=True)
    )
    assert allows(rules, WRITE, "unnamed", BOB)
    assert not allows(rules, WRITE, "orders", BOB)
    assert not allows(rules, WRITE, "prefix", BOB)


def test_roles_have_their_rights_for_members_and_for_groups_of_tokens() -> None:
    rights = by_id(rule(principal="Role:readers"), rule("secret", principal="Role:readers"))
    roles = {"User:alice": ("readers",), "Group:staff": ("readers",)}
    rules = AclAuthorizer(AclPolicy(), rights, roles)
    assert allows(rules) and not allows(rules, principal=BOB)
    assert allows(rules, principal=BOB._replace(groups=("staff",)))
    assert not allows(rules, principal=BOB._replace(groups=("other",)))
    # Nobody becomes a role, or its member, by the name of a user.
    assert not allows(rules, principal=Principal("User", "Role:readers"))
    unbound = rules.changed(rights, {})
    assert not allows(unbound)


def test_a_revoked_right_is_gone_although_its_decision_was_kept() -> None:
    rules = authorizer(rule(), rule("other"))
    assert allows(rules) and allows(rules, name="other")
    fewer = rules.changed({b"1": rule("other")}, {})
    assert not allows(fewer) and allows(fewer, name="other")
    assert allows(rules), "an authorizer is that of its image"


def test_a_right_to_any_resource_of_a_type() -> None:
    def any_topic(*bindings: AclBinding, principal: Principal = ALICE) -> bool:
        return authorizer(*bindings).decide_any(principal, HOST, READ, TOPIC).allowed

    assert not any_topic()
    assert any_topic(rule())
    assert any_topic(rule(operation=AclOperation.ALL))
    assert not any_topic(rule(), principal=BOB)
    assert not any_topic(rule(host="10.9.9.9"))
    assert any_topic(rule("o", pattern=PREFIXED))
    assert any_topic(rule("*"))
    # Denials count only if they take the right away from all resources it was given for.
    assert not any_topic(rule(), rule(permission=DENY))
    assert any_topic(rule(), rule("other"), rule(permission=DENY))
    assert not any_topic(rule(), rule("ord", permission=DENY, pattern=PREFIXED))
    assert not any_topic(
        rule("ord", pattern=PREFIXED), rule("o", permission=DENY, pattern=PREFIXED)
    )
    assert any_topic(rule("o", pattern=PREFIXED), rule("ord", permission=DENY, pattern=PREFIXED))
    assert not any_topic(rule("*"), rule("*", permission=DENY))
    super_user = AclAuthorizer(AclPolicy(frozenset({"User:alice"})))
    assert super_user.decide_any(ALICE, HOST, READ, TOPIC).allowed


def model(acls: Mapping[bytes, AclBinding], principal: Principal, right: Right) -> bool:
    """The rules of Kafka, over every binding."""
    counting = [
        binding
        for binding in acls.values()
        if binding.resource_type is right.resource_type
        and binding.principal in (str(principal), "User:*")
        and HostPattern(binding.host).covers(HOST)
        and (
            right.name.startswith(binding.resource_name)
            if binding.pattern_type is PREFIXED
            else binding.resource_name in (right.name, "*")
        )
    ]
    exact = (right.operation, AclOperation.ALL)
    if any(b.permission is DENY and b.operation in exact for b in counting):
        return False
    implied = IMPLIED_BY.get(right.operation, ())
    return any(b.permission is ALLOW and b.operation in (*exact, *implied) for b in counting)


def test_the_index_decides_as_a_search_of_all_rules_does_while_they_change() -> None:
    random_ = random.Random(4)
    names = ["a", "ab", "abc", "b", "*"]
    principals = ["User:alice", "User:bob", "User:*"]
    operations = [READ, WRITE, DESCRIBE, AclOperation.ALL]
    acls: dict[bytes, AclBinding] = {}
    rules = AclAuthorizer(AclPolicy())
    for step in range(400):
        acls = dict(acls)
        if acls and random_.random() < 0.45:
            del acls[random_.choice(sorted(acls))]
        else:
            acls[str(step).encode()] = AclBinding(
                TOPIC,
                random_.choice(names),
                random_.choice([LITERAL, PREFIXED]),
                random_.choice(principals),
                random_.choice(["*", HOST, "10.9.0.0/16"]),
                random_.choice(operations),
                random_.choice([ALLOW, ALLOW, DENY]),
            )
        # Kafka keeps no binding twice.
        acls = {key: b for key, b in acls.items() if list(acls.values()).index(b) >= 0}
        if len(set(acls.values())) < len(acls):
            del acls[str(step).encode()]
        rules = rules.changed(acls, {})
        for principal in (ALICE, BOB):
            for name in ("a", "abc", "abcd", "b", "c"):
                for operation in (READ, DESCRIBE):
                    right = Right(operation, TOPIC, name)
                    assert rules.decide(principal, HOST, right).allowed is model(
                        acls, principal, right
                    ), (principal, right, acls)


def test_a_decision_among_ten_thousand_rules_takes_microseconds() -> None:
    bindings = [
        rule(f"team-{number % 100}.topic-{number}", principal=f"User:u{number % 500}")
        for number in range(9000)
    ]
    bindings += [rule(f"team-{number}.", pattern=PREFIXED) for number in range(1000)]
    rules = authorizer(*bindings)
    rights = [Right(READ, TOPIC, f"team-{number % 100}.topic-{number}") for number in range(2000)]

    def seconds_each() -> float:
        began = time.perf_counter()
        for right in rights:
            rules.decide(ALICE, HOST, right)
        return (time.perf_counter() - began) / len(rights)

    first, again = seconds_each(), seconds_each()
    print(f"\n{first * 1e6:.1f} us for a new decision, {again * 1e6:.2f} us for one that is kept")
    # A search of all rules would take a thousand times as long.
    assert first < 0.001
