"""How a table of keys is read: which keys there are, which are wanted, what each holds.

Rule: what is wrong is collected, not raised, so that a file is told all its errors at once.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Protocol

from headrace.pipelines.spec.model import Place, SpecError
from headrace.pipelines.spec.nodes import Entry, Node, Scalar, Table, describe


class Wrong(ValueError):
    """A value that its key cannot take. `told` is how the sentence goes on after the key."""


@dataclass
class Context:
    """What a reading knows of the file, and what it found wrong with it."""

    file: str
    directory: Path
    problems: list[SpecError] = field(default_factory=list)

    def place(self, line: int) -> Place:
        return Place(self.file, line)

    def problem(self, line: int, text: str) -> None:
        self.problems.append(SpecError(self.place(line), text))


class Kind(Protocol):
    """What a key can hold. `read` gives the value, raises Wrong, or notes problems itself."""

    @property
    def label(self) -> str: ...

    def read(self, node: Node, what: str, context: Context) -> Any: ...


@dataclass(frozen=True, slots=True)
class Key:
    """A key of a section: its value goes to the argument `field`, or the one of its own name."""

    name: str
    kind: Kind
    text: str
    required: bool = False
    default: str = ""
    field: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    """A mapping with fixed keys, of which exactly one of `one_of` is given.

    `make` takes the values by name, and `place`. A section that has a `short` key can be written
    as the value of that key alone.
    """

    name: str
    keys: tuple[Key, ...]
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

    def read(self, node: Node, what: str, context: Context, **given: Any) -> Any:
        """What `make` makes of the node; None if anything was wrong with it."""
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
        except Wrong as wrong:
            context.problem(node.line, f"{what} {wrong}")
            return None

    def _values(self, table: Table, what: str, context: Context) -> dict[str, Any]:
        keys = {key.name: key for key in self.keys}
        values: dict[str, Any] = {}
        for entry in table.entries:
            key = keys.get(entry.key)
            if key is None:
                context.problem(entry.line, unknown_key(entry.key, what, keys))
                continue
            values[key.field or key.name] = read_key(key, entry, what, context)
        given = {entry.key for entry in table.entries}
        # A key that was misspelt is not told missing as well.
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
class Variants:
    """One of several sections, chosen by which of their `one_of` keys is there."""

    name: str
    sections: tuple[Section, ...]

    @property
    def label(self) -> str:
        return " or ".join(section.label for section in self.sections)

    def read(self, node: Node, what: str, context: Context, **given: Any) -> Any:
        names = [entry.key for entry in node.entries] if isinstance(node, Table) else []
        chosen = [one for one in self.sections if set(names) & set(one.one_of)]
        if isinstance(node, Table) and len(chosen) == 1:
            return chosen[0].read(node, what, context, **given)
        starts = [name for one in self.sections for name in one.one_of]
        if not isinstance(node, Table):
            told = "has no value" if _is_null(node) else f"must be a mapping, not {describe(node)}"
            context.problem(node.line, f"{what} {told}; it has one of {listed(starts)}")
            return None
        if chosen:
            both = [name for name in names if name in starts]
            context.problem(node.line, f"{what} has both {_both(both)}: give one of them")
            return None
        every = dict.fromkeys(name for one in self.sections for name in one.names())
        unknown = [entry for entry in node.entries if entry.key not in every]
        for entry in unknown:
            context.problem(entry.line, unknown_key(entry.key, what, every))
        if not any(nearest(entry.key, starts) for entry in unknown):
            context.problem(node.line, f"{what} lacks one of {listed(starts)}")
        return None


@dataclass(frozen=True, slots=True)
class Named:
    """Parts by their names, in order."""

    section: Section | Variants

    @property
    def label(self) -> str:
        return f"a name for each {self.section.label}"

    def read(self, node: Node, what: str, context: Context) -> tuple[Any, ...]:
        if not isinstance(node, Table):
            raise Wrong(f"must be a mapping of names, not {describe(node)}")
        noun = self.section.name
        return tuple(
            self.section.read(_at(entry), f"{noun} {entry.key!r}", context, name=entry.key)
            for entry in node.entries
        )


def read_key(key: Key, entry: Entry, what: str, context: Context) -> Any:
    """The value under a key; None, with a problem noted, where it is not one."""
    if isinstance(key.kind, Section):
        return key.kind.read(_at(entry), f"the {key.kind.name} of {what}", context)
    if _is_null(entry.node):
        context.problem(entry.line, f"{entry.key!r} in {what} has no value")
        return None
    try:
        return key.kind.read(entry.node, what, context)
    except Wrong as wrong:
        context.problem(entry.node.line, f"{entry.key!r} in {what} {wrong}")
        return None


def unknown_key(name: str, what: str, known: Iterable[str]) -> str:
    """The message for a key that nobody reads."""
    names = list(known)
    near = nearest(name, names)
    hint = f"did you mean {near!r}?" if near else f"the keys are {listed(names)}"
    return f"unknown key {name!r} in {what}; {hint}"


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that was probably meant."""
    by_lower = {one.lower().replace("-", "_"): one for one in known}
    matches = get_close_matches(name.lower().replace("-", "_"), by_lower, n=1, cutoff=0.6)
    return by_lower[matches[0]] if matches else None


def listed(names: Iterable[str]) -> str:
    """Names in a sentence."""
    return ", ".join(names)


def anchor(heading: str) -> str:
    """Where a heading is linked to in a page."""
    return heading.lower().replace(" ", "-")


def _both(names: list[str]) -> str:
    return " and ".join(repr(name) for name in names)


def _is_null(node: Node) -> bool:
    return isinstance(node, Scalar) and node.is_null


def _at(entry: Entry) -> Node:
    """What an entry holds, at the line of its key: where a reader looks for a part."""
    match entry.node:
        case Table(entries):
            return Table(entries, entry.line)
    return entry.node
