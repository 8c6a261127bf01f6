"""`sasl.jaas.config`: one login module of Java with its options, as Kafka's settings have it.

Rule: no error has a part of the text in it, for the text has passwords.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple

PLAIN_MODULE = "PlainLoginModule"
SCRAM_MODULE = "ScramLoginModule"
OAUTH_MODULE = "OAuthBearerLoginModule"

_MODULES = {
    f"org.apache.kafka.common.security.{package}.{name}": name
    for package, name in (
        ("plain", PLAIN_MODULE),
        ("scram", SCRAM_MODULE),
        ("oauthbearer", OAUTH_MODULE),
        ("oauthbearer.secured", OAUTH_MODULE),
    )
}
_FLAGS = ("required", "requisite", "sufficient", "optional")
_TOKEN = re.compile(
    r"""\s*(?:(?P<double>"(?:[^"\\]|\\.)*")|(?P<single>'(?:[^'\\]|\\.)*')"""
    r"""|(?P<sign>[=;])|(?P<word>[^\s=;"']+))""",
    re.DOTALL,
)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_TEXT_CHARACTERS_MAX = 1024 * 1024
_USER_PREFIX = "user_"


class LoginModule(NamedTuple):
    """A login module, by the last part of its class name, and its options."""

    name: str
    options: Mapping[str, str]

    def __repr__(self) -> str:
        return f"<LoginModule {self.name}>"

    @property
    def users(self) -> dict[str, str]:
        """The passwords of users, of options such as `user_alice="secret"`."""
        return {
            name.removeprefix(_USER_PREFIX): password
            for name, password in self.options.items()
            if name.startswith(_USER_PREFIX)
        }


def parse_jaas(text: str) -> LoginModule:
    """The login module of a text; ValueError with the mistake, which quotes nothing of the text."""
    if len(text) > _TEXT_CHARACTERS_MAX:
        raise ValueError("it is too long")
    tokens = _tokens(text)
    if len(tokens) < 3 or tokens[-1] != (";", True):
        raise ValueError('it must be a login module, "required", its options, and ";" at the end')
    class_name, flag = tokens[0][0], tokens[1][0]
    if class_name not in _MODULES:
        raise ValueError(
            f"it must begin with one of {', '.join(sorted(_MODULES))}; headrace has no others"
        )
    if flag.lower() not in _FLAGS:
        raise ValueError(f"the name of the login module must be followed by {_FLAGS[0]}")
    options: dict[str, str] = {}
    rest = tokens[2:-1]
    if len(rest) % 3:
        raise ValueError('every option must be name="value"')
    for (name, is_sign), equals, (value, value_is_sign) in zip(
        rest[::3], rest[1::3], rest[2::3], strict=True
    ):
        if is_sign or value_is_sign or equals != ("=", True):
            raise ValueError('every option must be name="value", with ";" only after the last')
        if name in options:
            raise ValueError("it has an option twice")
        options[name] = value
    return LoginModule(_MODULES[class_name], options)


def _tokens(text: str) -> list[tuple[str, bool]]:
    """The words and quoted texts of a text, and its signs, which are marked as such."""
    tokens: list[tuple[str, bool]] = []
    position = 0
    while position < len(text) and text[position:].strip():
        match = _TOKEN.match(text, position)
        if match is None:
            raise ValueError("a quotation mark is not closed")
        position = match.end()
        quoted = match["double"] or match["single"]
        if quoted is not None:
            tokens.append((_ESCAPE.sub(r"\1", quoted[1:-1]), False))
        else:
            tokens.append((match["sign"] or match["word"], match["sign"] is not None))
    return tokens
