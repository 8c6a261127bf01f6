"""A pipeline from a YAML file: variables, syntax, nodes, and limits on sizes and depth."""

import dataclasses
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace.client.property_files import resolved
from headrace.errors import ConfigError
from headrace.pipelines.spec.model import Pipeline, SourceLocation, SpecError, raise_problems
from headrace.pipelines.spec.nodes import Entry, Listing, Node, Scalar, Table
from headrace.pipelines.spec.sections import ReadContext
from headrace.pipelines.spec.table import PIPELINE, default_checkpoint

# `${NAME}`, `${NAME:-default}`, `${env:NAME}` and `${file:PATH}` in the text of a pipeline file.
#
# `$${` stands for `${` itself. The last two are left as they are in properties of clients, which
# become options in Spark: the data source replaces them where it opens a connection, so that Spark
# never has the secret.


_REFERENCE = re.compile(r"\$(?P<escaped>\$)?\{(?P<body>[^{}]*)\}")
_SECRETS = ("env:", "file:")
_BODY = re.compile(r"(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?P<default>:-.*)?", re.DOTALL)


class UnsetVariable(ValueError):
    """A variable without a value and a default; `position` is its place in the text."""

    def __init__(self, text: str, position: int) -> None:
        super().__init__(text)
        self.position = position


def substitute(text: str, variables: Mapping[str, str], *, is_client: bool = False) -> str:
    """The text with every reference replaced. Replacements are not expanded again.

    `is_client` says that it is a property of a client, which keeps references to secrets.
    """

    def value(reference: re.Match[str]) -> str:
        if reference["escaped"]:
            return reference[0][1:]
        if reference["body"].startswith(_SECRETS):
            return reference[0] if is_client else _secret(reference)
        body = _BODY.fullmatch(reference["body"])
        if body is None:
            raise UnsetVariable(
                f"{reference[0]} is not the name of a variable: write ${{NAME}} or"
                " ${NAME:-default}, or $${ for the characters themselves",
                reference.start(),
            )
        name, default = body["name"], body["default"]
        # As in a shell, an empty variable takes its default too.
        found = variables.get(name)
        if default is not None:
            return found or default[2:]
        if found is None:
            raise UnsetVariable(
                f"the environment variable {name} is not set:"
                f" set it, or write ${{{name}:-default}}",
                reference.start(),
            )
        return found

    return _REFERENCE.sub(value, text) if "${" in text else text


def _secret(reference: re.Match[str]) -> str:
    try:
        return resolved(reference[0], "the file")
    except ConfigError as error:
        raise UnsetVariable(str(error), reference.start()) from None


try:
    import yaml
except ImportError:
    raise ConfigError(
        "a pipeline file needs PyYAML, which is not installed: pip install 'headrace[spark]'"
    ) from None

CHARACTERS_MAX = 256 * 1024
DEPTH_MAX = 30
# The target of an alias is counted each time, so that a few lines cannot mean millions of nodes.
NODES_MAX = 20_000

_TAGS = {f"tag:yaml.org,2002:{name}" for name in ("str", "seq", "map")}
_MERGE = "<<"
_BROKER, _KAFKA = "broker", "kafka."


class _Unreadable(Exception):
    """An error that ends the reading of a file, since nothing after it can be judged."""

    def __init__(self, line: int, text: str) -> None:
        super().__init__(text)
        self.line = line


class _YamlLoader(yaml.BaseLoader):
    """Composes nodes, with all scalars as text, no deeper than a pipeline can be."""

    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        self.depth += 1
        if self.depth > DEPTH_MAX:
            raise _Unreadable(self.line + 1, _too_deep())
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


def read_nodes(text: str, context: ReadContext, variables: Mapping[str, str]) -> Node | None:
    """The root node of a file's only document. Problems go to the context; None if it is
    unreadable.
    """
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
        loader = _YamlLoader(text)
        try:
            return loader.get_single_node()
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        description = ", ".join(part for part in (error.context, error.problem) if part)
        lines = text.splitlines()
        hint = "; put quotes around ${...} inside { } and [ ]"
        has_variable = any("${" in line for line in lines[max(0, line - 2) : line])
        raise _Unreadable(line, f"not valid YAML: {description}{hint * has_variable}") from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise _Unreadable(line, f"not valid YAML: {error.reason}") from None


class _Conversion:
    """Converts PyYAML nodes to nodes of `nodes`."""

    def __init__(self, context: ReadContext, variables: Mapping[str, str]) -> None:
        self._context = context
        self._variables = variables
        self._count = 0
        self._depth = 0
        self._is_client = False

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
            converted = Listing(tuple(self.convert(item) for item in node.value), line)
        else:
            converted = Table(tuple(self._entries(node).values()), line)
        self._depth -= 1
        return converted

    def _scalar(self, node: Any, line: int) -> Scalar:
        text_line = line + (node.style in ("|", ">"))
        text = node.value
        try:
            text = substitute(text, self._variables, is_client=self._is_client)
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
                own[key] = Entry(key, self._entry_value(key, value_node), line)
        return {key: entry for key, entry in merged.items() if key not in own} | own

    def _entry_value(self, key: str, node: Any) -> Node:
        """The value of a key; below the pipeline's `broker`, and of `kafka.*`, it is a client's."""
        was_client = self._is_client
        is_broker = key == _BROKER and self._depth == 1
        self._is_client = was_client or is_broker or key.lower().startswith(_KAFKA)
        try:
            return self.convert(node)
        finally:
            self._is_client = was_client

    def _merged(self, node: Any) -> dict[str, Entry]:
        sources = node.value if isinstance(node, yaml.SequenceNode) else [node]
        entries: dict[str, Entry] = {}
        for source in sources:
            table = self.convert(source)
            if not isinstance(table, Table):
                self._context.problem(table.line, "what << takes in must be a mapping")
                continue
            # Of several merged tables the first one wins.
            entries = {entry.key: entry for entry in table.entries} | entries
        return entries


def _too_deep() -> str:
    return f"nested too deeply: more than {DEPTH_MAX} levels"


# Set for every file, for values that are neither paths nor made relative to the file.
DIRECTORY_VARIABLE = "PIPELINE_DIR"


def load(path: Path | str, variables: Mapping[str, str] | None = None) -> Pipeline:
    """The pipeline that a file declares, with `variables` or those of the environment.

    Raises SpecError, with a line in the text for each problem. References between the parts are not
    checked: that is `checks.check`.
    """
    path = Path(path)
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(CHARACTERS_MAX + 1)
    except OSError as error:
        raise SpecError(None, f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SpecError(SourceLocation(str(path), 1), "not UTF-8 text") from None
    return parse(text, path, os.environ if variables is None else variables)


def parse(text: str, path: Path, variables: Mapping[str, str]) -> Pipeline:
    """The pipeline in a text, as if it were the file at `path`."""
    directory = path.parent.absolute()
    context = ReadContext(str(path), directory)
    root = read_nodes(text, context, {DIRECTORY_VARIABLE: str(directory), **variables})
    pipeline = None
    if root is not None:
        pipeline = PIPELINE.read(_without_extensions(root), "the pipeline", context)
    raise_problems(
        sorted(context.problems, key=lambda problem: problem.place.line if problem.place else 0)
    )
    assert isinstance(pipeline, Pipeline)
    return dataclasses.replace(
        pipeline,
        directory=directory,
        checkpoint=pipeline.checkpoint or default_checkpoint(pipeline.name, directory),
    )


def _without_extensions(root: Node) -> Node:
    if not isinstance(root, Table):
        return root
    return Table(
        tuple(entry for entry in root.entries if not entry.key.startswith("x-")), root.line
    )
