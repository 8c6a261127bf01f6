"""Java `.properties` files, as Kafka's `server.properties` is written."""

import re
from collections.abc import Mapping

from headrace.errors import ConfigError

_BLANK = " \t\f"
_SEPARATOR = re.compile(r"(?:[^\\=: \t\f]|\\.)*")
_ESCAPE = re.compile(r"\\(u[0-9A-Fa-f]{4}|.|\Z)")
_ESCAPED = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_ESCAPES = {character: f"\\{letter}" for letter, character in _ESCAPED.items()}
_IN_KEYS = re.compile(r"[\\=: \t\n\r\f#!]")
# Blanks in front of a value would be taken for a part of the separator.
_IN_VALUES = re.compile(r"[\\\t\n\r\f]|\A ")


class Properties(dict[str, str]):
    """Keys and values of a file, with the line each key stands on for error messages."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: dict[str, int] = {}


def read_properties(text: str) -> Properties:
    """Read comments, continued lines, escapes, and `=`, `:` or blanks between key and value.

    Unlike Kafka: a key given twice is an error rather than silently taking its last value.
    """
    properties = Properties()
    for number, line in _logical_lines(text):
        end = _SEPARATOR.match(line).end()  # type: ignore[union-attr]  # matches the empty string
        key = _unescape(line[:end], number)
        rest = line[end:].lstrip(_BLANK)
        if rest[:1] in ("=", ":"):
            rest = rest[1:].lstrip(_BLANK)
        if not key:
            raise ConfigError(f"line {number}: a name is missing before {line[end:].strip()!r}")
        if key in properties:
            raise ConfigError(
                f"line {number}: {key} was already given on line {properties.lines[key]}"
            )
        properties[key] = _unescape(rest, number)
        properties.lines[key] = number
    return properties


def properties_text(properties: Mapping[str, str]) -> str:
    """The text of a file that `read_properties` reads back as these properties."""
    return "".join(
        f"{_escape(key, _IN_KEYS)}={_escape(value, _IN_VALUES)}\n"
        for key, value in properties.items()
    )


def _escape(text: str, special: re.Pattern[str]) -> str:
    return special.sub(lambda match: _ESCAPES.get(match[0], f"\\{match[0]}"), text)


def _logical_lines(text: str) -> list[tuple[int, str]]:
    """Lines with their numbers, comments dropped and continued lines joined."""
    joined: list[tuple[int, str]] = []
    continued = False
    for number, physical in enumerate(re.split(r"\r\n|\r|\n", text), 1):
        line = physical.lstrip(_BLANK)
        if not continued and (not line or line[0] in "#!"):
            continue
        trailing = len(line) - len(line.rstrip("\\"))
        body = line[:-1] if trailing % 2 else line
        if continued:
            first, so_far = joined[-1]
            joined[-1] = (first, so_far + body)
        else:
            joined.append((number, body))
        continued = trailing % 2 == 1
    return [(number, line) for number, line in joined if line]


def _unescape(text: str, number: int) -> str:
    def unescape(match: re.Match[str]) -> str:
        code = match[1]
        if code[:1] == "u" and len(code) == 5:
            return chr(int(code[1:], 16))
        if code == "u":
            raise ConfigError(f"line {number}: \\u needs four hexadecimal digits")
        return _ESCAPED.get(code, code)

    return _ESCAPE.sub(unescape, text)
