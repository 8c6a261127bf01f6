"""The kinds of value that keys hold."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from headrace.pipelines.spec.keys import Context, Wrong, listed, nearest
from headrace.pipelines.spec.model import Trigger
from headrace.pipelines.spec.nodes import Listing, Node, Scalar, Table, describe

_DURATION = re.compile(
    r"(?:\d+\s+(?:microsecond|millisecond|second|minute|hour|day|week)s?(?:\s+|$))+", re.IGNORECASE
)
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")


@dataclass(frozen=True, slots=True)
class Plain:
    """One value as text; `parse` gives what it stands for, or raises ValueError."""

    label: str
    expected: str
    parse: Callable[[str], Any]

    def read(self, node: Node, what: str, context: Context) -> Any:
        if isinstance(node, Scalar):
            try:
                return self.parse(node.text)
            except Wrong:
                raise
            except ValueError:
                pass
        raise Wrong(f"must be {self.expected}, not {describe(node)}")


@dataclass(frozen=True, slots=True)
class PlacedText:
    """Text with the place where its first line is."""

    label: str = "text"

    def read(self, node: Node, what: str, context: Context) -> Any:
        text = TEXT.read(node, what, context)
        assert isinstance(node, Scalar)
        return text, context.place(node.text_line or node.line)


@dataclass(frozen=True, slots=True)
class LocalPath:
    """A path, relative to the directory of the file, or a URI as it is."""

    label: str = "path or URI"

    def read(self, node: Node, what: str, context: Context) -> Any:
        return resolve(TEXT.read(node, what, context), context.directory)


@dataclass(frozen=True, slots=True)
class FileText:
    """The text of a file that is named by its path."""

    label: str = "path"

    def read(self, node: Node, what: str, context: Context) -> Any:
        path = Path(resolve(TEXT.read(node, what, context), context.directory))
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
            raise Wrong(f"cannot be read: {path}: {reason}") from None


@dataclass(frozen=True, slots=True)
class Names:
    """A list of texts, or a single one."""

    label: str = "text, or list of texts"

    def read(self, node: Node, what: str, context: Context) -> Any:
        items = node.items if isinstance(node, Listing) else (node,)
        if not items:
            raise Wrong("is empty")
        return tuple(TEXT.read(item, what, context) for item in items)


@dataclass(frozen=True, slots=True)
class Options:
    """Names with values, which go on as text. As one text it is the value of `short`."""

    short: str = ""

    @property
    def label(self) -> str:
        return "mapping of texts" + (f", or text: its `{self.short}`" if self.short else "")

    def read(self, node: Node, what: str, context: Context) -> Any:
        if isinstance(node, Scalar) and self.short:
            return {self.short: TEXT.read(node, what, context)}
        if not isinstance(node, Table):
            raise Wrong(f"must be a mapping of names to values, not {describe(node)}")
        values: dict[str, str] = {}
        for entry in node.entries:
            value = entry.node
            if isinstance(value, Scalar) and not value.is_null:
                values[entry.key] = value.text
            else:
                told = "has no value" if isinstance(value, Scalar) else "must be a single value"
                context.problem(entry.line, f"{entry.key!r} in {what} {told}")
        return values


@dataclass(frozen=True, slots=True)
class Renamed:
    """Names out of a choice, each as it is or with another name for the result."""

    choices: tuple[str, ...]

    @property
    def label(self) -> str:
        return "list of names, or of `{name: new name}`"

    def read(self, node: Node, what: str, context: Context) -> Any:
        items = node.items if isinstance(node, Listing) else (node,)
        names: dict[str, str] = {}
        for item in items:
            if isinstance(item, Table):
                pairs = {entry.key: TEXT.read(entry.node, what, context) for entry in item.entries}
            else:
                text = TEXT.read(item, what, context)
                pairs = {text: text}
            for name, new_name in pairs.items():
                _choose(name, self.choices)
                if name in names:
                    raise Wrong(f"names {name!r} twice")
                names[name] = new_name
        doubled = [name for name in names.values() if list(names.values()).count(name) > 1]
        if doubled:
            raise Wrong(f"gives two columns the name {doubled[0]!r}")
        return names


def choice(values: type[StrEnum]) -> Plain:
    """One of the values of an enumeration."""
    names = [str(value) for value in values]

    def parse(text: str) -> StrEnum:
        return values(_choose(text, names))

    return Plain(" | ".join(f"`{name}`" for name in names), f"one of {listed(names)}", parse)


def one_of(*names: str) -> Plain:
    """One of some words."""
    label = " | ".join(f"`{name}`" for name in names)
    return Plain(label, f"one of {listed(names)}", lambda text: _choose(text, names))


def number(least: int) -> Plain:
    """A whole number."""

    def parse(text: str) -> int:
        if not re.fullmatch(r"\d{1,9}", text) or int(text) < least:
            raise ValueError
        return int(text)

    return Plain("whole number", f"a whole number of at least {least}", parse)


def resolve(path: str, directory: Path) -> str:
    """An absolute path for a local one; a URI as it is."""
    if _URI.match(path):
        return path
    # Not resolved further: a link in a path is the user's, and a pattern (*.csv) stays one.
    return str((directory / Path(path).expanduser()).absolute())


def _choose(text: str, choices: tuple[str, ...] | list[str]) -> str:
    if text in choices:
        return text
    near = nearest(text, choices)
    hint = f"; did you mean {near!r}?" if near else ""
    raise Wrong(f"must be one of {listed(choices)}, not {text!r}{hint}")


def _text(text: str) -> str:
    if not text.strip():
        raise ValueError
    return text


def _flag(text: str) -> bool:
    return {"true": True, "false": False}[_choose(text.lower(), ("true", "false"))]


def _duration(text: str) -> str:
    if not _DURATION.fullmatch(text.strip()):
        raise ValueError
    return " ".join(text.split())


def _trigger(text: str) -> Trigger:
    if text == "available-now":
        return Trigger(available_now=True)
    return Trigger(_duration(text))


def _starting(text: str) -> dict[str, str]:
    """The options of the data source that start there."""
    if text in ("earliest", "latest"):
        return {"startingOffsets": text}
    instant = datetime.fromisoformat(text)
    if instant.tzinfo is None:
        raise Wrong(f"is an instant without its zone: write {instant.isoformat()}Z for UTC")
    milliseconds = round(instant.timestamp() * 1000)
    if milliseconds < 0:
        raise ValueError
    return {"startingTimestamp": str(milliseconds)}


def _pattern(text: str) -> str:
    try:
        re.compile(_text(text))
    except re.error as error:
        raise Wrong(f"is not a regular expression: {error}") from None
    return text


TEXT = Plain("text", "text", _text)
FLAG = Plain("`true` | `false`", "true or false", _flag)
DURATION = Plain("duration", "a duration such as '10 seconds' or '5 minutes'", _duration)
TRIGGER = Plain(
    "duration, or `available-now`",
    "available-now or a duration such as '10 seconds' or '5 minutes'",
    _trigger,
)
STARTING = Plain(
    "`earliest` | `latest` | instant",
    "earliest, latest or an instant such as 2026-01-31T12:00:00Z",
    _starting,
)
PATTERN = Plain("regular expression", "a regular expression", _pattern)
NAMES = Names()
OPTIONS = Options()
PATH = LocalPath()
