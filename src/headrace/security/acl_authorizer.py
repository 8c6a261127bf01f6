"""The authorizer that decides by access control lists, as Kafka's StandardAuthorizer does.

A right is denied if one binding denies it, else allowed if one allows it. A binding counts if its
pattern has the resource, and its principal and host have the sender. What no binding mentions at
all is denied, unless `allow.everyone.if.no.acl.found` is set. Super users have every right.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, Self, TypeAlias

from headrace.security.acls import (
    ANY_NAME,
    ANY_USER,
    GROUP_KIND,
    IMPLIED_BY,
    ROLE_KIND,
    AclBinding,
    AclOperation,
    AclPatternType,
    AclPermission,
    AclResourceType,
    HostPattern,
)
from headrace.security.authorization import Decision, Principal, Right

# The roles of members: `User:alice` or `Group:ops` -> names of roles.
RolesOfMembers: TypeAlias = Mapping[str, tuple[str, ...]]

# Decisions that are kept, so that a client's next request costs one look-up.
_DECISIONS_MAX = 16_384

_SUPER_USER = Decision(True, "a super user")
_NO_ACL_ALLOWS = Decision(False, "no ACL allows it")
_NO_ACL_ALLOWED = Decision(True, "no ACL names the resource (allow.everyone.if.no.acl.found)")
_NO_ACL_DENIED = Decision(False, "no ACL names the resource")


class AclPolicy(NamedTuple):
    """The settings of the authorizer."""

    super_users: frozenset[str] = frozenset()
    allow_without_acl: bool = False


class _AclRule(NamedTuple):
    """A binding within those of a resource pattern and a principal."""

    operation: AclOperation
    allows: bool
    host: HostPattern
    decision: Decision


# The rules of a resource pattern, by principal. Never changed, always replaced.
_PatternRules: TypeAlias = dict[str, tuple[_AclRule, ...]]


class _TypeIndex:
    """The rules of one resource type. A copy shares the rules of all patterns."""

    __slots__ = ("literal", "prefix_lengths", "prefixed")

    def __init__(
        self, literal: dict[str, _PatternRules], prefixed: dict[str, _PatternRules]
    ) -> None:
        self.literal = literal
        self.prefixed = prefixed
        self.prefix_lengths = tuple(sorted({len(prefix) for prefix in prefixed}))

    def matching(self, name: str) -> Iterator[_PatternRules]:
        """The rules of every pattern that has a resource."""
        rules = self.literal.get(name)
        if rules is not None:
            yield rules
        if name != ANY_NAME:
            rules = self.literal.get(ANY_NAME)
            if rules is not None:
                yield rules
        for length in self.prefix_lengths:
            if length > len(name):
                break
            rules = self.prefixed.get(name[:length])
            if rules is not None:
                yield rules


_EMPTY = _TypeIndex({}, {})
_RESOURCE_TYPES = max(AclResourceType) + 1
_IMPLIED_BY = [
    next((more for included, more in IMPLIED_BY.items() if included == code), ())
    for code in range(max(AclOperation) + 1)
]


class AclAuthorizer:
    """The decisions by the bindings and roles of one image. Immutable but for kept decisions."""

    def __init__(
        self,
        policy: AclPolicy,
        acls: Mapping[bytes, AclBinding] | None = None,
        roles: RolesOfMembers | None = None,
    ) -> None:
        self.policy = policy
        self._acls: Mapping[bytes, AclBinding] = {}
        self.roles = roles or {}
        # By resource type: lists, since to hash an enumeration's member takes long.
        self._index = [_EMPTY] * _RESOURCE_TYPES
        self._decisions: dict[tuple[Principal, str, int, str], Decision] = {}
        if acls:
            self._replace_bindings(acls)

    def changed(self, acls: Mapping[bytes, AclBinding], roles: RolesOfMembers) -> Self:
        """The authorizer of another image; it shares the index of patterns that are the same."""
        successor = type(self)(self.policy, None, roles)
        successor._acls = self._acls
        successor._index = list(self._index)
        successor._replace_bindings(acls)
        return successor

    def decide(self, principal: Principal, host: str, right: Right) -> Decision:
        operation, resource_type, name = right
        key = (principal, host, operation * _RESOURCE_TYPES + resource_type, name)
        decision = self._decisions.get(key)
        if decision is None:
            decision = self._decide(principal, host, right)
            if len(self._decisions) >= _DECISIONS_MAX:
                # Names come from clients: what is kept must not grow with them.
                self._decisions.clear()
            self._decisions[key] = decision
        return decision

    def decide_any(
        self,
        principal: Principal,
        host: str,
        operation: AclOperation,
        resource_type: AclResourceType,
    ) -> Decision:
        """Kafka's authorizeByResourceType: a right to a resource that no binding takes away."""
        # A name that no pattern but "*" has finds super users and what is allowed for all names.
        decision = self._decide(principal, host, Right(operation, resource_type, "\0"))
        if decision.allowed:
            return decision
        index = self._index[resource_type]
        principals = self._principals(principal)

        def rules_of(rules: _PatternRules, *, allowing: bool) -> Iterator[_AclRule]:
            for rule in _rules_of_principals(rules, principals):
                operations = (operation, AclOperation.ALL)
                if rule.allows is allowing and rule.operation in operations:
                    if rule.host.covers(host):
                        yield rule

        def denied(rules: _PatternRules | None) -> bool:
            return rules is not None and any(rules_of(rules, allowing=False))

        if denied(index.literal.get(ANY_NAME)):
            return _NO_ACL_ALLOWS
        prefixes = {prefix for prefix, rules in index.prefixed.items() if denied(rules)}
        for patterns, is_prefix in ((index.literal, False), (index.prefixed, True)):
            for name, rules in patterns.items():
                rule = next(rules_of(rules, allowing=True), None)
                if rule is None or any(name.startswith(prefix) for prefix in prefixes):
                    continue
                if is_prefix or not denied(rules):
                    return rule.decision
        return _NO_ACL_ALLOWS

    def _decide(self, principal: Principal, host: str, right: Right) -> Decision:
        if str(principal) in self.policy.super_users:
            return _SUPER_USER
        index = self._index[right.resource_type]
        principals = self._principals(principal)
        operation = right.operation
        implied_by = _IMPLIED_BY[operation]
        allowed: Decision | None = None
        is_mentioned = False
        for rules in index.matching(right.name):
            is_mentioned = True
            for rule in _rules_of_principals(rules, principals):
                is_same = rule.operation is operation or rule.operation is AclOperation.ALL
                if rule.allows:
                    if allowed is None and (is_same or rule.operation in implied_by):
                        if rule.host.covers(host):
                            allowed = rule.decision
                elif is_same and rule.host.covers(host):
                    return rule.decision
        if allowed is not None:
            return allowed
        if is_mentioned:
            return _NO_ACL_ALLOWS
        return _NO_ACL_ALLOWED if self.policy.allow_without_acl else _NO_ACL_DENIED

    def _principals(self, principal: Principal) -> tuple[str, ...]:
        """The principals of bindings that have a sender: itself, all users, and its roles."""
        name = str(principal)
        if not self.roles:
            return (name, ANY_USER)
        members = (name, *(f"{GROUP_KIND}:{group}" for group in principal.groups))
        roles = {role for member in members for role in self.roles.get(member, ())}
        return (name, ANY_USER, *(f"{ROLE_KIND}:{role}" for role in sorted(roles)))

    def _replace_bindings(self, acls: Mapping[bytes, AclBinding]) -> None:
        """Renew the rules of the patterns whose bindings are not those of before."""
        before = self._acls
        removed = [before[acl_id] for acl_id in before.keys() - acls.keys()]
        added = [acls[acl_id] for acl_id in acls.keys() - before.keys()]
        self._acls = acls
        changes: dict[AclResourceType, tuple[list[AclBinding], list[AclBinding]]] = {}
        for binding in removed:
            changes.setdefault(binding.resource_type, ([], []))[0].append(binding)
        for binding in added:
            changes.setdefault(binding.resource_type, ([], []))[1].append(binding)
        for resource_type, (gone, new) in changes.items():
            index = self._index[resource_type]
            self._index[resource_type] = _TypeIndex(
                _renewed(index.literal, gone, new, AclPatternType.LITERAL),
                _renewed(index.prefixed, gone, new, AclPatternType.PREFIXED),
            )


def _rules_of_principals(rules: _PatternRules, principals: Iterable[str]) -> Iterator[_AclRule]:
    for principal in principals:
        yield from rules.get(principal, ())


def _renewed(
    patterns: dict[str, _PatternRules],
    removed: Iterable[AclBinding],
    added: Iterable[AclBinding],
    pattern_type: AclPatternType,
) -> dict[str, _PatternRules]:
    """The rules by name after a change of bindings; `patterns` itself if it has none of them."""
    gone = [binding for binding in removed if binding.pattern_type is pattern_type]
    new = [binding for binding in added if binding.pattern_type is pattern_type]
    if not gone and not new:
        return patterns
    renewed = dict(patterns)
    copied: set[str] = set()

    def rules_of(name: str) -> _PatternRules:
        if name not in copied:
            copied.add(name)
            renewed[name] = dict(renewed.get(name, {}))
        return renewed[name]

    for binding in gone:
        rules = rules_of(binding.resource_name)
        rule = _rule_of(binding)
        left = tuple(
            other
            for other in rules.get(binding.principal, ())
            if other.decision.rule != rule.decision.rule
        )
        if left:
            rules[binding.principal] = left
        else:
            rules.pop(binding.principal, None)
    additions: dict[tuple[str, str], list[_AclRule]] = {}
    for binding in new:
        place = (binding.resource_name, binding.principal)
        additions.setdefault(place, []).append(_rule_of(binding))
    for (name, principal), more in additions.items():
        rules = rules_of(name)
        rules[principal] = (*rules.get(principal, ()), *more)
    for name in copied:
        if not renewed[name]:
            del renewed[name]
    return renewed


def _rule_of(binding: AclBinding) -> _AclRule:
    allows = binding.permission is AclPermission.ALLOW
    return _AclRule(
        binding.operation, allows, HostPattern(binding.host), Decision(allows, str(binding))
    )
