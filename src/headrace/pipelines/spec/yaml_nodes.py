"""YAML text into nodes: syntax, doubled keys, variables, and limits on all that can grow."""

from collections.abc import Mapping
from typing import Any

from headrace.errors import ConfigError
from headrace.pipelines.spec.keys import Context
from headrace.pipelines.spec.nodes import Entry, Listing, Node, Scalar, Table
from headrace.pipelines.spec.variables import UnsetVariable, substitute

try:
    import yaml
except ImportError:
    raise ConfigError(
        "a pipeline file needs PyYAML, which is not installed: pip install 'headrace[spark]'"
    ) from None

CHARACTERS_MAX = 256 * 1024
DEPTH_MAX = 30
# What aliases stand for is counted each time, so that a few lines cannot mean millions.
NODES_MAX = 20_000

_TAGS = {f"tag:yaml.org,2002:{name}" for name in ("str", "seq", "map")}
_MERGE = "<<"


class _Unreadable(Exception):
    """What ends the reading of a file: after it nothing else can be said."""

    def __init__(self, line: int, text: str) -> None:
        super().__init__(text)
        self.line = line


class _Loader(yaml.BaseLoader):
    """Composes nodes, all text untyped, and no deeper than a pipeline can be."""

    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        self.depth += 1
        if self.depth > DEPTH_MAX:
            raise _Unreadable(self.line + 1, _too_deep())
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


def read_nodes(text: str, context: Context, variables: Mapping[str, str]) -> Node | None:
    """The one document of a file. Problems go to the context; None if there is no going on."""
    if len(text) > CHARACTERS_MAX:
        context.problem(1, f"too large for a pipeline: more than {CHARACTERS_MAX} characters")
        return None
    try:
        root = _compose(text)
        if root is None:
            raise _Unreadable(1, "the file is empty: headrace pipeline init writes one to start")
        return _Conversion(context, variables).convert(root)
    except _Unreadable as error:
        context.problem(error.line, str(error))
    return None


def _compose(text: str) -> Any:
    try:
        loader = _Loader(text)
        try:
            return loader.get_single_node()
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        told = ", ".join(part for part in (error.context, error.problem) if part)
        lines = text.splitlines()
        hint = "; put quotes around ${...} inside { } and [ ]"
        has_variable = any("${" in one for one in lines[max(0, line - 2) : line])
        raise _Unreadable(line, f"not valid YAML: {told}{hint * has_variable}") from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise _Unreadable(line, f"not valid YAML: {error.reason}") from None


class _Conversion:
    """PyYAML's nodes into ours."""

    def __init__(self, context: Context, variables: Mapping[str, str]) -> None:
        self._context = context
        self._variables = variables
        self._count = 0
        self._depth = 0

    def convert(self, node: Any) -> Node:
        line = node.start_mark.line + 1
        self._count += 1
        self._depth += 1
        if self._count > NODES_MAX:
            raise _Unreadable(line, f"too large: with its aliases more than {NODES_MAX} values")
        if self._depth > DEPTH_MAX:
            raise _Unreadable(line, _too_deep())
        if node.tag not in _TAGS:
            self._context.problem(line, f"the tag {node.tag!r} means nothing here: leave it out")
        converted: Node
        if isinstance(node, yaml.ScalarNode):
            converted = self._scalar(node, line)
        elif isinstance(node, yaml.SequenceNode):
            converted = Listing(tuple(self.convert(one) for one in node.value), line)
        else:
            converted = Table(tuple(self._entries(node).values()), line)
        self._depth -= 1
        return converted

    def _scalar(self, node: Any, line: int) -> Scalar:
        text_line = line + (node.style in ("|", ">"))
        text = node.value
        try:
            text = substitute(text, self._variables)
        except UnsetVariable as error:
            self._context.problem(text_line + text.count("\n", 0, error.position), str(error))
        return Scalar(text, line, plain=node.style is None, text_line=text_line)

    def _entries(self, node: Any) -> dict[str, Entry]:
        own: dict[str, Entry] = {}
        merged: dict[str, Entry] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                self._context.problem(line, "a key must be text, not a list or a mapping")
                continue
            key = key_node.value
            if key == _MERGE:
                merged = self._merged(value_node) | merged
            elif key in own:
                first = own[key].line
                self._context.problem(line, f"key {key!r} is there twice, first in line {first}")
            else:
                own[key] = Entry(key, self.convert(value_node), line)
        return {key: entry for key, entry in merged.items() if key not in own} | own

    def _merged(self, node: Any) -> dict[str, Entry]:
        sources = node.value if isinstance(node, yaml.SequenceNode) else [node]
        entries: dict[str, Entry] = {}
        for source in sources:
            table = self.convert(source)
            if not isinstance(table, Table):
                self._context.problem(table.line, "what << takes in must be a mapping")
                continue
            # The first of several wins.
            entries = {entry.key: entry for entry in table.entries} | entries
        return entries


def _too_deep() -> str:
    return f"nested too deeply: more than {DEPTH_MAX} levels"
