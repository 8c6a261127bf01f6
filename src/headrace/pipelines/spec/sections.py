"""Sections of a pipeline file: the allowed and required keys, and the types of their values.

The types of single values are those of `headrace.options`; structure and lines are read here. Rule:
problems are collected, not raised, so that all errors of a file are reported at once.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

from headrace.options import (
    Bool,
    Custom,
    Int,
    NotAllowed,
    OneOf,
    Text,
    ValueType,
    nearest,
)
from headrace.options import one_of as one_of_names
from headrace.pipelines.spec.model import SourceLocation, SpecError, Trigger
from headrace.pipelines.spec.nodes import Entry, Listing, Node, Scalar, Table, describe


class InvalidValue(ValueError):
    """A value that its key does not allow. `told` is the rest of the sentence after the key."""


@dataclass
class ReadContext:
    """The state of reading a file: its name, and the problems found."""

    file: str
    directory: Path
    problems: list[SpecError] = field(default_factory=list)

    def place(self, line: int) -> SourceLocation:
        return SourceLocation(self.file, line)

    def problem(self, line: int, text: str) -> None:
        self.problems.append(SpecError(self.place(line), text))


class KeyType(Protocol):
    """The type of a key's value. `read` returns it, raises InvalidValue, or notes problems."""

    @property
    def label(self) -> str: ...

    def read(self, node: Node, what: str, context: ReadContext) -> Any: ...


@dataclass(frozen=True, slots=True)
class SectionKey:
    """A key of a section: its value becomes the argument `field`, by default of the same name."""

    name: str
    kind: KeyType
    text: str
    required: bool = False
    default: str = ""
    field: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    """A mapping with fixed keys, of which exactly one of `one_of` must be present.

    `make` is called with the values by name, and `place`. A section with a `short` key can be
    written as the value of that key alone.
    """

    name: str
    keys: tuple[SectionKey, ...]
    make: Callable[..., Any]
    text: str = ""
    one_of: tuple[str, ...] = ()
    short: str = ""

    @property
    def label(self) -> str:
        short = next((key.kind.label for key in self.keys if key.name == self.short), "")
        return f"[{self.name}](#{anchor(self.name)})" + (f", or {short}" if short else "")

    def names(self) -> list[str]:
        return [key.name for key in self.keys]

    def read(self, node: Node, what: str, context: ReadContext, **given: Any) -> Any:
        """The result of `make` for the node's values; None if there was any problem."""
        if isinstance(node, Scalar) and self.short and not node.is_null:
            node = Table((Entry(self.short, node, node.line),), node.line)
        if not isinstance(node, Table):
            told = "has no value" if _is_null(node) else f"must be a mapping, not {describe(node)}"
            context.problem(node.line, f"{what} {told}; its keys are {listed(self.names())}")
            return None
        before = len(context.problems)
        values = self._values(node, what, context)
        if len(context.problems) > before:
            return None
        try:
            return self.make(**given, **values, place=context.place(node.line))
        except InvalidValue as wrong:
            context.problem(node.line, f"{what} {wrong}")
            return None

    def _values(self, table: Table, what: str, context: ReadContext) -> dict[str, Any]:
        keys = {key.name: key for key in self.keys}
        values: dict[str, Any] = {}
        for entry in table.entries:
            key = keys.get(entry.key)
            if key is None:
                context.problem(entry.line, unknown_key(entry.key, what, keys))
                continue
            values[key.field or key.name] = read_key(key, entry, what, context)
        given = {entry.key for entry in table.entries}
        # A misspelt key is not reported as missing too.
        meant = {nearest(name, keys) for name in given if name not in keys}
        for key in self.keys:
            if key.required and key.name not in given | meant:
                context.problem(table.line, f"{what} lacks {key.name!r}")
        chosen = [name for name in self.one_of if name in given]
        if len(chosen) > 1:
            context.problem(table.line, f"{what} has both {_both(chosen)}: give one of them")
        elif self.one_of and not chosen:
            context.problem(table.line, f"{what} lacks one of {listed(self.one_of)}")
        return values


@dataclass(frozen=True, slots=True)
class SectionVariants:
    """One of several sections, chosen by the `one_of` key that is present."""

    name: str
    sections: tuple[Section, ...]

    @property
    def label(self) -> str:
        return " or ".join(section.label for section in self.sections)

    def read(self, node: Node, what: str, context: ReadContext, **given: Any) -> Any:
        names = [entry.key for entry in node.entries] if isinstance(node, Table) else []
        chosen = [section for section in self.sections if set(names) & set(section.one_of)]
        if isinstance(node, Table) and len(chosen) == 1:
            return chosen[0].read(node, what, context, **given)
        starts = [name for section in self.sections for name in section.one_of]
        if not isinstance(node, Table):
            told = "has no value" if _is_null(node) else f"must be a mapping, not {describe(node)}"
            context.problem(node.line, f"{what} {told}; it has one of {listed(starts)}")
            return None
        if chosen:
            both = [name for name in names if name in starts]
            context.problem(node.line, f"{what} has both {_both(both)}: give one of them")
            return None
        every = dict.fromkeys(name for section in self.sections for name in section.names())
        unknown = [entry for entry in node.entries if entry.key not in every]
        for entry in unknown:
            context.problem(entry.line, unknown_key(entry.key, what, every))
        if not any(nearest(entry.key, starts) for entry in unknown):
            context.problem(node.line, f"{what} lacks one of {listed(starts)}")
        return None


@dataclass(frozen=True, slots=True)
class NamedParts:
    """Parts by their names, in order."""

    section: Section | SectionVariants

    @property
    def label(self) -> str:
        return f"a name for each {self.section.label}"

    def read(self, node: Node, what: str, context: ReadContext) -> tuple[Any, ...]:
        if not isinstance(node, Table):
            raise InvalidValue(f"must be a mapping of names, not {describe(node)}")
        noun = self.section.name
        return tuple(
            self.section.read(_at(entry), f"{noun} {entry.key!r}", context, name=entry.key)
            for entry in node.entries
        )


def read_key(key: SectionKey, entry: Entry, what: str, context: ReadContext) -> Any:
    """The value of a key; None, with a problem noted, if it is invalid."""
    if isinstance(key.kind, Section):
        return key.kind.read(_at(entry), f"the {key.kind.name} of {what}", context)
    if _is_null(entry.node):
        context.problem(entry.line, f"{entry.key!r} in {what} has no value")
        return None
    try:
        return key.kind.read(entry.node, what, context)
    except InvalidValue as wrong:
        context.problem(entry.node.line, f"{entry.key!r} in {what} {wrong}")
        return None


def unknown_key(name: str, what: str, known: Iterable[str]) -> str:
    """The message for an unknown key."""
    names = list(known)
    near = nearest(name, names)
    hint = f"did you mean {near!r}?" if near else f"the keys are {listed(names)}"
    return f"unknown key {name!r} in {what}; {hint}"


def listed(names: Iterable[str]) -> str:
    """Names in a sentence."""
    return ", ".join(names)


def anchor(heading: str) -> str:
    """The anchor of a heading in a page."""
    return heading.lower().replace(" ", "-")


def _both(names: list[str]) -> str:
    return " and ".join(repr(name) for name in names)


def _is_null(node: Node) -> bool:
    return isinstance(node, Scalar) and node.is_null


def _at(entry: Entry) -> Node:
    """The value of an entry, with the line of its key for messages."""
    match entry.node:
        case Table(entries):
            return Table(entries, entry.line)
    return entry.node


_DURATION = re.compile(
    r"(?:\d+\s+(?:microsecond|millisecond|second|minute|hour|day|week)s?(?:\s+|$))+", re.IGNORECASE
)
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")


@dataclass(frozen=True, slots=True)
class SingleValue:
    """A value that is a single text. `label` is its type in the documentation."""

    label: str
    type: ValueType

    def read(self, node: Node, what: str, context: ReadContext) -> Any:
        if not isinstance(node, Scalar):
            raise InvalidValue(f"must be {self.type.allowed}, not {describe(node)}")
        return _parsed(self.type, node.text)


@dataclass(frozen=True, slots=True)
class PlacedText:
    """A text with the place of its first line."""

    label: str = "text"

    def read(self, node: Node, what: str, context: ReadContext) -> Any:
        text = TEXT.read(node, what, context)
        assert isinstance(node, Scalar)
        return text, context.place(node.text_line or node.line)


@dataclass(frozen=True, slots=True)
class LocalPath:
    """A path, made absolute from the directory of the file; a URI is unchanged."""

    label: str = "path or URI"

    def read(self, node: Node, what: str, context: ReadContext) -> Any:
        return resolve(TEXT.read(node, what, context), context.directory)


@dataclass(frozen=True, slots=True)
class FileText:
    """The text of a file, given by its path."""

    label: str = "path"

    def read(self, node: Node, what: str, context: ReadContext) -> Any:
        path = Path(resolve(TEXT.read(node, what, context), context.directory))
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
            raise InvalidValue(f"cannot be read: {path}: {reason}") from None


@dataclass(frozen=True, slots=True)
class NameList:
    """A list of texts, or a single one."""

    label: str = "text, or list of texts"

    def read(self, node: Node, what: str, context: ReadContext) -> Any:
        items = node.items if isinstance(node, Listing) else (node,)
        if not items:
            raise InvalidValue("is empty")
        return tuple(TEXT.read(item, what, context) for item in items)


@dataclass(frozen=True, slots=True)
class OptionMapping:
    """Names with values, which are kept as text. A lone text is the value of `short`."""

    short: str = ""

    @property
    def label(self) -> str:
        return "mapping of texts" + (f", or text: its `{self.short}`" if self.short else "")

    def read(self, node: Node, what: str, context: ReadContext) -> Any:
        if isinstance(node, Scalar) and self.short:
            return {self.short: TEXT.read(node, what, context)}
        if not isinstance(node, Table):
            raise InvalidValue(f"must be a mapping of names to values, not {describe(node)}")
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
class RenamedNames:
    """Names out of a choice, each optionally renamed in the result."""

    choices: tuple[str, ...]

    @property
    def label(self) -> str:
        return "list of names, or of `{name: new name}`"

    def read(self, node: Node, what: str, context: ReadContext) -> Any:
        items = node.items if isinstance(node, Listing) else (node,)
        names: dict[str, str] = {}
        for item in items:
            if isinstance(item, Table):
                pairs = {entry.key: TEXT.read(entry.node, what, context) for entry in item.entries}
            else:
                text = TEXT.read(item, what, context)
                pairs = {text: text}
            for name, new_name in pairs.items():
                _parsed(one_of_names(*self.choices), name)
                if name in names:
                    raise InvalidValue(f"names {name!r} twice")
                names[name] = new_name
        doubled = [name for name in names.values() if list(names.values()).count(name) > 1]
        if doubled:
            raise InvalidValue(f"gives two columns the name {doubled[0]!r}")
        return names


def choice(values: type[StrEnum]) -> SingleValue:
    """One of the values of an enumeration."""
    return _one_of(OneOf({str(value): value for value in values}))


def one_of(*names: str) -> SingleValue:
    """One of some words."""
    return _one_of(one_of_names(*names))


def _one_of(values: OneOf) -> SingleValue:
    return SingleValue(" | ".join(f"`{name}`" for name in values.values), values)


def number(least: int) -> SingleValue:
    """A whole number, at least `least`."""
    return SingleValue("whole number", Int(least))


def resolve(path: str, directory: Path) -> str:
    """A local path made absolute; a URI unchanged."""
    if _URI.match(path):
        return path
    # Not resolved further: a symbolic link is the user's choice, and a pattern (*.csv) stays one.
    return str((directory / Path(path).expanduser()).absolute())


def _parsed(values: ValueType, text: str) -> Any:
    """The value of a text; InvalidValue if it is not allowed."""
    shown = describe(Scalar(text, 0))
    try:
        return values.check(values.parse(text))
    except InvalidValue:
        raise
    except NotAllowed as error:
        hint = f"; did you mean {error.nearest!r}?" if error.nearest else ""
    except ValueError as error:
        if str(error):
            raise InvalidValue(f"cannot be {shown}: {error}") from None
        hint = ""
    raise InvalidValue(f"must be {values.allowed}, not {shown}{hint}")


def _duration(text: str) -> str:
    if not _DURATION.fullmatch(text.strip()):
        raise ValueError
    return " ".join(text.split())


def _trigger(text: str) -> Trigger:
    if text == "available-now":
        return Trigger(available_now=True)
    return Trigger(_duration(text))


def _starting(text: str) -> dict[str, str]:
    """The data source's options for this start."""
    if text in ("earliest", "latest"):
        return {"startingOffsets": text}
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError from None
    if instant.tzinfo is None:
        raise InvalidValue(f"is an instant without its zone: write {instant.isoformat()}Z for UTC")
    milliseconds = round(instant.timestamp() * 1000)
    if milliseconds < 0:
        raise ValueError
    return {"startingTimestamp": str(milliseconds)}


def _pattern(text: str) -> str:
    if not text.strip():
        raise ValueError
    try:
        re.compile(text)
    except re.error as error:
        raise InvalidValue(f"is not a regular expression: {error}") from None
    return text


TEXT = SingleValue("text", Text(may_be_blank=False))
FLAG = SingleValue("`true` | `false`", Bool())
DURATION = SingleValue(
    "duration", Custom("a duration such as '10 seconds' or '5 minutes'", _duration)
)
TRIGGER = SingleValue(
    "duration, or `available-now`",
    Custom("available-now or a duration such as '10 seconds' or '5 minutes'", _trigger),
)
STARTING = SingleValue(
    "`earliest` | `latest` | instant",
    Custom("earliest, latest or an instant such as 2026-01-31T12:00:00Z", _starting),
)
PATTERN = SingleValue("regular expression", Custom("a regular expression", _pattern))
NAMES = NameList()
OPTIONS = OptionMapping()
PATH = LocalPath()
