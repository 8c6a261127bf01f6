"""Nodes of a pipeline file before they are interpreted: text, lists, mappings, with lines.

A YAML file and the arguments of the Python builder are both converted to nodes, so that one table
of keys reads both. A text has no type of its own: that is decided by its key.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_NULLS = {"", "~", "null", "Null", "NULL"}


@dataclass(frozen=True, slots=True)
class Scalar:
    """A text. `plain` means without quotes, where YAML reads `null` as no value; `text_line` is the
    line of its first character, which for a block (`|`) is below the line it is declared on.
    """

    text: str
    line: int
    plain: bool = False
    text_line: int = 0

    @property
    def is_null(self) -> bool:
        return self.plain and self.text in _NULLS


@dataclass(frozen=True, slots=True)
class Listing:
    """A list of nodes, in order."""

    items: "tuple[Node, ...]"
    line: int


@dataclass(frozen=True, slots=True)
class Entry:
    """A key of a table with its value node."""

    key: str
    node: "Node"
    line: int


@dataclass(frozen=True, slots=True)
class Table:
    """Keys in order, without duplicates."""

    entries: tuple[Entry, ...]
    line: int


Node = Scalar | Listing | Table


def from_python(value: object, line: int) -> Node:
    """The node of a Python value, all of it on one line. Raises TypeError for a value that is not
    text, path, number, boolean, or a sequence or mapping of those.
    """
    match value:
        case str():
            return Scalar(value, line, text_line=line)
        case os.PathLike():
            return Scalar(os.fsdecode(value), line)
        case bool():
            return Scalar("true" if value else "false", line)
        case int() | float():
            return Scalar(str(value), line)
        case Mapping():
            entries = (
                Entry(str(key), from_python(entry, line), line)
                for key, entry in value.items()
                if entry is not None
            )
            return Table(tuple(entries), line)
        case Sequence() if not isinstance(value, bytes | bytearray):
            return Listing(tuple(from_python(item, line) for item in value), line)
    raise TypeError(f"{type(value).__name__} {value!r}")


def describe(node: Node) -> str:
    """The text for a node in an error message about an unexpected value."""
    match node:
        case Listing():
            return "a list"
        case Table():
            return "a mapping"
    text = node.text if len(node.text) <= 60 else f"{node.text[:57]}..."
    return repr(text)
