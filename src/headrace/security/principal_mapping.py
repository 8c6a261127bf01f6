"""Rules that make the name of a user of the name in a certificate.

The rules of `ssl.principal.mapping.rules`: `RULE:pattern/replacement/[LU]` and `DEFAULT`, tried in
order. A pattern must match the whole name; `$1` in a replacement is its first group.
"""

import re
from typing import Any, NamedTuple

from headrace.errors import ConfigError, HeadraceError
from headrace.security.authorization import ANONYMOUS, Principal
from headrace.security.distinguished_names import subject_name

_SETTING = "ssl.principal.mapping.rules"
_PREFIX = "RULE:"
_FORM = "write RULE:pattern/replacement/, with an L or U behind if you want, or DEFAULT"
# A part of a rule goes to the next slash that no backslash precedes.
_RULE = re.compile(
    r"RULE:(?P<pattern>(?:\\.|[^\\/])*)/(?P<replacement>(?:\\.|[^\\/])*)/(?P<case>[LU]?)\Z",
    re.DOTALL,
)
_GROUP = re.compile(r"\$([0-9])")


class NoRuleMatches(HeadraceError):
    """A name that none of the rules is for."""


class _Rule(NamedTuple):
    """A rule; the one without a pattern takes the name as it is."""

    pattern: Any | None
    replacement: str
    case: str

    def apply(self, name: str) -> str | None:
        """The name of the user, or None if the rule is not for this name."""
        if self.pattern is None:
            return name
        match = self.pattern.fullmatch(name)
        if match is None:
            return None
        user = _GROUP.sub(lambda group: match.group(int(group[1])) or "", self.replacement)
        if self.case == "L":
            return user.lower()
        return user.upper() if self.case == "U" else user


class PrincipalMapping:
    """Maps certificates to principals by the rules of a setting; ConfigError if they are wrong."""

    def __init__(self, rules: str) -> None:
        self._rules = [_parsed(text) for text in _split(rules)]

    def principal_of(self, certificate: bytes | None) -> Principal:
        """The principal of a certificate in DER; that of nobody if there is none.

        NoRuleMatches if there is no rule for its name.
        """
        if certificate is None:
            return ANONYMOUS
        return Principal("User", self.user_of(subject_name(certificate)))

    def user_of(self, name: str) -> str:
        """The name of the user whose certificate has a name."""
        for rule in self._rules:
            user = rule.apply(name)
            if user is not None:
                return user
        raise NoRuleMatches(name)


def _split(rules: str) -> list[str]:
    """The rules of a text, with commas between them; patterns may have commas, too."""
    found: list[str] = []
    for part in rules.split(","):
        stripped = part.strip()
        if not found or stripped == "DEFAULT" or stripped.startswith(_PREFIX):
            found.append(part.lstrip())
        else:
            found[-1] += f",{part}"
    return [rule.strip() for rule in found if rule.strip()] or ["DEFAULT"]


def _parsed(text: str) -> _Rule:
    if text == "DEFAULT":
        return _Rule(None, "", "")
    match = _RULE.match(text)
    if match is None:
        raise ConfigError(f"{_SETTING} has {text!r}; {_FORM}")
    import re2  # type: ignore[import-untyped]  # noqa: PLC0415  # Most brokers have no such rules.

    # RE2 takes time in proportion to the name, whatever the pattern.
    options = re2.Options()
    options.log_errors = False
    try:
        pattern = re2.compile(match["pattern"].replace("\\/", "/"), options)
    except (re2.error, UnicodeEncodeError) as error:
        raise ConfigError(f"{_SETTING} has {text!r}, whose pattern is wrong: {error}") from None
    replacement = match["replacement"].replace("\\/", "/")
    groups = [int(number) for number in _GROUP.findall(replacement)]
    if groups and max(groups) > pattern.groups:
        raise ConfigError(
            f"{_SETTING} has {text!r}, whose replacement has ${max(groups)}, and whose pattern has"
            f" {pattern.groups} groups"
        )
    return _Rule(pattern, replacement, match["case"])
