"""Move, join and rename the modules of headrace by the rows of tools/module_moves.toml.

    python tools/move_modules.py --apply storage    # the rows of a group, or of several
    python tools/move_modules.py --apply all        # every group at once
    python tools/move_modules.py --check            # clashes of names and import cycles, no change
    python tools/move_modules.py --figures          # how many modules, how long, how lonely
    python tools/move_modules.py --words            # texts that may quote a module that moved

A row that was applied is skipped, so the command can be given again, and after other changes.
Sources are joined in the row's order, except that a module comes behind those it imports.
"""

import argparse
import ast
import builtins
import keyword
import re
import shutil
import statistics
import subprocess
import sys
import textwrap
import tomllib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROWS = Path("tools") / "module_moves.toml"
PACKAGE = "headrace"
CODE_ROOTS = ("src", "tests", "bench", "tools", "examples")
TEXT_ROOTS = (*CODE_ROOTS, "docs", "deploy", ".ci")
TEXT_FILES = ("CONTRIBUTING.md", "README.md", "Makefile", "pyproject.toml", "setup.py")
TEXT_SUFFIXES = {".py", ".pyi", ".pxd", ".md", ".toml", ".txt", ".yaml", ".yml", ".sh", ".json"}
# The mover's own rows, and files about the past.
UNTOUCHED = {"tools/move_modules.py", "tools/module_moves.toml", "CHANGELOG.md"}
MESSAGE_TABLES = f"{PACKAGE}.protocol.messages."
LINE_LENGTH_MAX = 100
REMARK_WORDS_MAX = 6
COMMENT_WIDTH = LINE_LENGTH_MAX - 2
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


class MoveError(Exception):
    """A row cannot be applied as it is; the text says what to change."""


@dataclass(frozen=True)
class Row:
    """A target module and the modules it is made of, all named below the package."""

    target: str
    sources: tuple[str, ...]
    group: str
    doc: str = ""
    notes: bool = True
    rename: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Extract:
    """Definitions that are moved to another module before modules are joined."""

    source: str
    target: str
    names: tuple[str, ...]
    group: str


@dataclass(frozen=True)
class Edit:
    """A change of text that a row needs beside the moves, made after them."""

    path: str
    old: str
    new: str
    group: str
    count: int = 1


@dataclass(frozen=True)
class House:
    """The content of the file of rows."""

    groups: tuple[str, ...]
    rows: tuple[Row, ...]
    extracts: tuple[Extract, ...]
    dissolved: Mapping[str, str]
    packages: Mapping[str, Mapping[str, str]]
    tests: Mapping[str, Mapping[str, str]]
    edits: tuple[Edit, ...]
    edits_before: tuple[Edit, ...]


def read_house(path: Path) -> House:
    """The rows, checked: a source moves once, and a target is not a module that stays."""
    given = tomllib.loads(path.read_text())
    groups = tuple(given["groups"])
    rows = []
    for target, entry in given["modules"].items():
        group = entry.get("group") or target.split(".", 1)[0]
        rows.append(
            Row(
                target,
                tuple(entry["from"]),
                group,
                entry.get("doc", ""),
                entry.get("notes", True),
                entry.get("rename", {}),
            )
        )
    counts = Counter(source for row in rows for source in row.sources)
    twice = [source for source, count in counts.items() if count > 1]
    unknown = {row.group for row in rows} - set(groups)
    if twice or unknown:
        raise MoveError(f"modules with two rows: {twice}; groups without a place: {unknown}")
    return House(
        groups,
        tuple(rows),
        tuple(
            Extract(e["from"], e["to"], tuple(e["names"]), e["group"])
            for e in given.get("extract", [])
        ),
        given.get("dissolve", {}),
        given.get("packages", {}),
        given.get("tests", {}),
        tuple(Edit(**entry) for entry in given.get("edit", [])),
        tuple(Edit(**entry) for entry in given.get("edit_before", [])),
    )


# --- Text with positions -------------------------------------------------------------------------


class Source:
    """A Python file that is changed at positions of its syntax tree; all else stays as it is."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tree = ast.parse(text)
        self._bytes = text.encode()
        self._starts = [0]
        for line in self._bytes.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))
        self._edits: dict[tuple[int, int], str] = {}

    def at(self, line: int, column: int) -> int:
        """The byte position of a line's column."""
        return self._starts[line - 1] + column

    def span(self, node: ast.stmt | ast.expr) -> tuple[int, int]:
        """The start and end of a node; a definition starts with its decorators."""
        decorators = getattr(node, "decorator_list", None)
        first = min([node, *(decorators or [])], key=lambda part: part.lineno)
        assert node.end_lineno is not None and node.end_col_offset is not None
        start = self.at(first.lineno, first.col_offset if first is node else node.col_offset)
        return start, self.at(node.end_lineno, node.end_col_offset)

    def piece(self, start: int, end: int) -> str:
        return self._bytes[start:end].decode()

    def replace(self, start: int, end: int, text: str) -> None:
        self._edits[(start, end)] = text

    def remove_lines(self, node: ast.stmt) -> None:
        """Remove a statement with its whole lines, including a trailing comment."""
        start, end = self.span(node)
        line_start = self._bytes.rfind(b"\n", 0, start) + 1
        line_end = self._bytes.find(b"\n", end)
        self._edits[(line_start, len(self._bytes) if line_end < 0 else line_end + 1)] = ""

    def find(self, pattern: str, start: int, end: int) -> tuple[int, int]:
        """The position of a pattern's group 1 between two positions."""
        found = re.search(pattern.encode(), self._bytes[start:end])
        if found is None:
            raise MoveError(f"{pattern!r} is not in {self.piece(start, end)!r}")
        return start + found.start(1), start + found.end(1)

    def result(self) -> str:
        parts, position = [], 0
        for (start, end), text in sorted(self._edits.items()):
            if start < position:
                continue  # Inside a removed part.
            parts += [self._bytes[position:start], text.encode()]
            position = end
        return b"".join([*parts, self._bytes[position:]]).decode()


def bound_names(body: Iterable[ast.AST]) -> set[str]:
    """Names that statements bind in their own scope, without nested scopes."""
    names: set[str] = set()
    globals_: set[str] = set()
    pending = list(body)
    while pending:
        node = pending.pop()
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                names.add(node.name)
                continue
            case ast.Lambda():
                continue
            case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                inner = (n for n in ast.walk(node) if isinstance(n, ast.NamedExpr))
                names.update(n.target.id for n in inner)
                continue
            case ast.Name(ctx=ast.Store() | ast.Del()):
                names.add(node.id)
            case ast.Import() | ast.ImportFrom():
                names.update((a.asname or a.name).split(".")[0] for a in node.names)
            case ast.ExceptHandler(name=str(name)):
                names.add(name)
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                names.add(name)
            case ast.MatchMapping(rest=str(name)):
                names.add(name)
            case ast.Global():
                globals_.update(node.names)
        pending += list(ast.iter_child_nodes(node))
    return names - globals_


def argument_names(arguments: ast.arguments) -> set[str]:
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    every += [entry for entry in (arguments.vararg, arguments.kwarg) if entry is not None]
    return {argument.arg for argument in every}


class Uses(ast.NodeVisitor):
    """All uses of names of the module's scope, with the local names that hide them."""

    def __init__(self, tree: ast.Module, names: Iterable[str]) -> None:
        self.names = set(names)
        self.found: list[tuple[ast.Name, frozenset[str]]] = []
        self.attributes: list[tuple[ast.Attribute, frozenset[str]]] = []
        self.globals: list[ast.Global] = []
        self._hidden: frozenset[str] = frozenset()
        for statement in tree.body:
            self.visit(statement)

    def _within(self, hidden: set[str], nodes: Iterable[ast.AST]) -> None:
        before = self._hidden
        self._hidden = before | frozenset(hidden)
        for node in nodes:
            self.visit(node)
        self._hidden = before

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        outside: list[ast.AST] = [*node.decorator_list, node.args]
        for part in [*outside, *([node.returns] if node.returns else [])]:
            self.visit(part)
        self._within(argument_names(node.args) | bound_names(node.body), node.body)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._function(node)

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self.visit(node.args)
        self._within(argument_names(node.args), [node.body])

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for part in [*node.decorator_list, *node.bases, *node.keywords]:
            self.visit(part)
        inside = bound_names(node.body)
        for statement in node.body:
            if isinstance(statement, FUNCTIONS):
                # Methods do not see the names of their class; annotations and defaults may.
                self._function(statement)
            elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                self._within({statement.target.id} & self.names, [statement.target])
                self.visit(statement.annotation)
                if statement.value is not None:
                    self._within(
                        inside
                        - {n.id for n in ast.walk(statement.value) if isinstance(n, ast.Name)},
                        [statement.value],
                    )
            else:
                self._within(inside, [statement])

    def _comprehension(self, node: ast.AST, generators: list[ast.comprehension]) -> None:
        self.visit(generators[0].iter)
        bound = bound_names(generator.target for generator in generators)
        self._within(bound, ast.iter_child_nodes(node))

    def visit_ListComp(self, node: ast.ListComp) -> None:
        self._comprehension(node, node.generators)

    def visit_SetComp(self, node: ast.SetComp) -> None:
        self._comprehension(node, node.generators)

    def visit_DictComp(self, node: ast.DictComp) -> None:
        self._comprehension(node, node.generators)

    def visit_GeneratorExp(self, node: ast.GeneratorExp) -> None:
        self._comprehension(node, node.generators)

    def visit_Global(self, node: ast.Global) -> None:
        if self.names & set(node.names):
            self.globals.append(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if isinstance(node.value, ast.Name) and node.value.id in self.names:
            if node.value.id not in self._hidden:
                self.attributes.append((node, self._hidden))
        self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        if node.id in self.names and node.id not in self._hidden:
            self.found.append((node, self._hidden))


def annotation_strings(tree: ast.Module) -> Iterator[ast.Constant]:
    """Strings that hold types: annotations, and the types of `cast` and of TypeVar's bound."""
    for node in ast.walk(tree):
        parts: list[ast.AST | None] = []
        match node:
            case ast.arg() | ast.AnnAssign():
                parts = [node.annotation]
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                parts = [node.returns]
            case ast.Call(func=ast.Name(id="cast"), args=[first, *_]):
                parts = [first]
            case ast.Call(func=ast.Name(id="TypeVar")):
                parts = [k.value for k in node.keywords if k.arg == "bound"]
            case ast.Assign(value=ast.Subscript() as value):
                parts = [value]
        for part in parts:
            for inner in ast.walk(part) if part is not None else ():
                if isinstance(inner, ast.Constant) and isinstance(inner.value, str):
                    yield inner


def rename_names(text: str, names: Mapping[str, str]) -> str:
    """The module with names of its own scope, defined or imported there, renamed."""
    if not names:
        return text
    source = Source(text)
    for node in ast.walk(source.tree):
        match node:
            case ast.Import() | ast.ImportFrom() if node in source.tree.body or _in_head(
                source.tree, node
            ):
                _rename_imported(source, node, names)
    for statement in _definitions(source.tree):
        if statement.name in names:
            start = source.at(statement.lineno, statement.col_offset)
            end = source.span(statement)[1]
            where = source.find(rf"(?:def|class)\s+({statement.name})\b", start, end)
            source.replace(*where, names[statement.name])
    uses = Uses(source.tree, names)
    for name, _ in uses.found:
        source.replace(*source.span(name), names[name.id])
    for declaration in uses.globals:
        start, end = source.span(declaration)
        words = [names.get(word, word) for word in declaration.names]
        source.replace(start, end, f"global {', '.join(words)}")
    for constant in annotation_strings(source.tree):
        start, end = source.span(constant)
        source.replace(start, end, _with_words(source.piece(start, end), names))
    changed = source.result()
    for old, new in names.items():
        # In docstrings and comments a name stands in backticks.
        changed = re.sub(rf"`{re.escape(old)}\b(?=[`.(\[])", f"`{new}", changed)
    return changed


def _with_words(text: str, names: Mapping[str, str]) -> str:
    pattern = r"(?<![\w.])(" + "|".join(map(re.escape, names)) + r")\b"
    return re.sub(pattern, lambda found: names[found[1]], text)


def _definitions(
    tree: ast.Module,
) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
    for statement in tree.body:
        if isinstance(statement, (*FUNCTIONS, ast.ClassDef)):
            yield statement


def _in_head(tree: ast.Module, node: ast.AST) -> bool:
    """Whether a statement stands in an `if` or `try` of the module's scope."""
    blocks = (s for s in tree.body if isinstance(s, ast.If | ast.Try))
    return any(node is inner for block in blocks for inner in _scope_statements(block))


def _scope_statements(block: ast.stmt) -> Iterator[ast.stmt]:
    for name in ("body", "orelse", "finalbody"):
        for inner in getattr(block, name, []):
            yield inner
            yield from _scope_statements(inner) if isinstance(inner, ast.If | ast.Try) else ()
    for handler in getattr(block, "handlers", []):
        yield from handler.body


def _rename_imported(
    source: Source, node: ast.Import | ast.ImportFrom, names: Mapping[str, str]
) -> None:
    if not any((alias.asname or alias.name) in names for alias in node.names):
        return
    words = []
    for alias in node.names:
        bound = alias.asname or alias.name
        wanted = names.get(bound, bound)
        words.append(alias.name if wanted == alias.name else f"{alias.name} as {wanted}")
    head = f"from {node.module} import " if isinstance(node, ast.ImportFrom) else "import "
    source.replace(*source.span(node), _import_text(head, words, node.col_offset))


def _import_text(head: str, words: Sequence[str], indent: int) -> str:
    line = head + ", ".join(words)
    if indent + len(line) <= COMMENT_WIDTH or not head.startswith("from"):
        return line
    inner = "".join(f"\n{' ' * (indent + 4)}{word}," for word in words)
    return f"{head}({inner}\n{' ' * indent})"


# --- Where everything goes -----------------------------------------------------------------------


class Tree:
    """The Python modules of the package by their full names, as they are on disk."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.paths = {
            self.name_of(path): path for path in sorted((root / "src").glob(f"{PACKAGE}/**/*.py"))
        }

    def name_of(self, path: Path) -> str:
        parts = path.relative_to(self.root / "src").with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    def path_of(self, name: str) -> Path:
        """The file of a module that is no package."""
        return self.root / "src" / (name.replace(".", "/") + ".py")

    def is_package(self, name: str) -> bool:
        return name in self.paths and self.paths[name].name == "__init__.py"


class Moves:
    """The moves of modules and names in one run: all rows of a group at the same time."""

    def __init__(self, tree: Tree, house: House, groups: Iterable[str]) -> None:
        self.tree = tree
        wanted = set(groups)
        self.rows = [row for row in house.rows if row.group in wanted and self._is_due(row)]
        self.modules: dict[str, str] = {}
        self.renames: dict[tuple[str, str], str] = {}
        self.target_of: dict[str, str] = {}
        for row in self.rows:
            for source in self.sources(row):
                old, new = _full(source), _full(row.target)
                self.target_of[old] = new
                if old != new:
                    self.modules[old] = new
                defined = defined_names(tree.paths[old].read_text())
                for name, other in row.rename.get(source, {}).items():
                    if name in defined:
                        self.renames[(old, name)] = other
        self.exports = self._exports(house, wanted)
        self.tests = self._tests(house, wanted)
        self.renamed_packages = {
            _full(entry["from"]): _full(name)
            for name, entry in house.packages.items()
            if "from" in entry and name.split(".")[0] in wanted
        }
        self._paths = self._path_table()

    def sources(self, row: Row) -> list[str]:
        """The existing sources of a row; a package only if the target replaces it."""
        return [
            source
            for source in row.sources
            if _full(source) in self.tree.paths
            and (source == row.target or not self.tree.is_package(_full(source)))
        ]

    def _is_due(self, row: Row) -> bool:
        there = self.sources(row)
        stays = [source for source in there if source == row.target]
        if stays and self.tree.is_package(_full(row.target)):
            return True
        return bool(there) and there != stays

    def _exports(self, house: House, groups: set[str]) -> dict[str, dict[str, tuple[str, str]]]:
        """The origins of the names that each dissolved module re-exports."""
        exports = {}
        for module, group in house.dissolved.items():
            path = self.tree.paths.get(_full(module))
            if group in groups and path is not None:
                origins: dict[str, tuple[str, str]] = {}
                for node in ast.parse(path.read_text()).body:
                    if isinstance(node, ast.ImportFrom) and node.module is not None:
                        for alias in node.names:
                            origins[alias.asname or alias.name] = (node.module, alias.name)
                exports[_full(module)] = origins
        return exports

    def _tests(self, house: House, groups: set[str]) -> dict[str, str]:
        """Test files that mirror a moved module: old and new path, below the root."""
        units = Path("tests") / "unit"
        moved: dict[str, str] = {}
        taken = {path.relative_to(self.tree.root) for path in self.tree.root.glob("tests/**/*.py")}

        def move(old: Path, new: Path) -> None:
            if old != new and new not in taken:
                moved[old.as_posix()] = new.as_posix()
                taken.add(new)

        for name, entry in house.packages.items():
            if "from" in entry and name.split(".")[0] in groups:
                home = units / entry["from"].replace(".", "/")
                for path in sorted((self.tree.root / home).glob("*.py")):
                    if not path.name.startswith("test_"):
                        move(home / path.name, units / name.replace(".", "/") / path.name)
        for group, table in house.tests.items():
            for before, after in table.items() if group in groups else ():
                if Path(before) in taken:
                    move(Path(before), Path(after))
        for row in self.rows:
            tested = [source for source in self.sources(row) if _test_of(source) in taken]
            for source in tested:
                old = _test_of(source)
                same = source.split(".")[-1] == row.target.split(".")[-1]
                alone = len(tested) == 1 and len(row.sources) <= 2
                kept = _test_of(row.target).with_name(old.name)
                move(old, _test_of(row.target) if same or alone else kept)
            if not tested and len(row.sources) == 1:
                self._flat_test(row, move, taken)
        for name, entry in house.packages.items():
            # Tests of scenarios move with their package.
            if "from" in entry and name.split(".")[0] in groups:
                home = units / entry["from"].replace(".", "/")
                for path in sorted((self.tree.root / home).glob("test_*.py")):
                    if (home / path.name).as_posix() not in moved:
                        move(home / path.name, units / name.replace(".", "/") / path.name)
        return moved

    def _flat_test(self, row: Row, move: Callable[[Path, Path], None], taken: set[Path]) -> None:
        """The test in the directory of a top package, if only one module there has its name."""
        package, _, rest = row.sources[0].partition(".")
        base = rest.split(".")[-1]
        names = [m for m in self.tree.paths if m.startswith(_full(package) + ".")]
        alike = [name for name in names if name.split(".")[-1] == base]
        old = Path("tests") / "unit" / package / f"test_{base}.py"
        if len(alike) == 1 and old in taken:
            move(old, old.with_name(f"test_{row.target.split('.')[-1]}.py"))

    def _path_table(self) -> dict[str, str]:
        """Paths in texts, below the package or below the root, without a suffix."""
        table = {}
        for old, new in self.modules.items():
            below = old.removeprefix(f"{PACKAGE}.").replace(".", "/")
            if self.tree.is_package(old):
                below += "/__init__"
            table[below] = new.removeprefix(f"{PACKAGE}.").replace(".", "/")
        for path, other in self.tests.items():
            table[path.removesuffix(".py")] = other.removesuffix(".py")
        return table

    def module(self, name: str) -> str:
        """A module's new full name, of the package or of the tests."""
        if name in self.modules:
            return self.modules[name]
        test = self.tests.get(name.replace(".", "/") + ".py")
        if test is not None:
            return test.removesuffix(".py").replace("/", ".")
        return self.renamed_packages.get(name, name)

    def resolve(self, module: str, name: str) -> tuple[str, str]:
        """The module and name of `from module import name` after the moves."""
        if module in self.exports and name in self.exports[module]:
            return self.resolve(*self.exports[module][name])
        whole = f"{module}.{name}"
        if self.module(whole) != whole:
            parent, _, last = self.module(whole).rpartition(".")
            return parent, last
        return self.module(module), self.renames.get((module, name), name)

    def is_module(self, module: str, name: str) -> bool:
        whole = f"{module}.{name}"
        return whole in self.tree.paths or self.module(whole) != whole

    # Names in texts

    def mentions(self) -> re.Pattern[str]:
        """A pattern for texts that may name a moved module."""
        words = set()
        old = {*self.modules, *self.target_of, *self.exports, *self.renamed_packages}
        for name in old:
            package, _, last = name.removeprefix(f"{PACKAGE}.").rpartition(".")
            words |= {f"{package}.{last}", f"{package}/{last}", f"{last}.py", f"{package} import"}
        for test in self.tests:
            words |= {test, test.removesuffix(".py").replace("/", "."), Path(test).stem}
        return re.compile("|".join(map(re.escape, sorted(words))) or "(?!)")

    def in_text(self, text: str, package: str = "") -> str:
        """A text with the dotted names and paths of moved modules renewed."""
        imports = rf"\bfrom ({PACKAGE}(?:\.\w+)*) import (\w+(?:, \w+)*)"
        text = re.sub(rf"{imports}|(?<![\w.]){PACKAGE}(?:\.\w+)+", self._dotted, text)
        text = re.sub(r"(?<![\w.])tests(?:\.\w+)+", self._dotted, text)
        path = r"(?:(?<=headrace/)|(?<![\w/.-]))(\w+(?:/\w+)+)(?=\.(?:py|pyi|pxd)\b)"
        text = re.sub(path, lambda found: self._paths.get(found[1], found[1]), text)
        text = re.sub(r"`(\w+(?:\.\w+)+)(?=`)", self._short_dotted, text)
        text = re.sub(r"`(\w+(?:/\w+)+)(?=`)", self._quoted_path, text)
        if package:
            below = package.removeprefix(PACKAGE).removeprefix(".")

            def own(found: re.Match[str]) -> str:
                old = f"{below}.{found[1]}".lstrip(".")
                new = self.modules.get(_full(old))
                if new is None:
                    return found[0]
                home, _, last = new.removeprefix(f"{PACKAGE}.").rpartition(".")
                return f"`{last if home == below else new[9:].replace('.', '/')}"

            text = re.sub(r"`(\w+)(?=\.(?:py|pxd)`)", own, text)
        return text

    def in_comments(self, text: str, package: str) -> str:
        """Comments with unquoted file names of moved modules of their package, renewed."""

        def changed(found: re.Match[str]) -> str:
            new = self.modules.get(f"{package}.{found[1]}", "")
            return new.rpartition(".")[2] or found[1]

        return re.sub(r"(?<![\w/`])(\w+)(?=\.py\b)", changed, text)

    def _imports(self, module: str, names: str) -> str:
        """An import in a text, kept on one line."""
        words: dict[str, list[str]] = defaultdict(list)
        for name in names.split(", "):
            home, new = self.resolve(module, name)
            words[home].append(name if new == name else f"{new} as {name}")
        return "; ".join(f"from {home} import {', '.join(new)}" for home, new in words.items())

    def _dotted(self, found: re.Match[str]) -> str:
        if found[0].startswith("from "):
            return self._imports(found[1], found[2])
        parts = found[0].split(".")
        for count in range(len(parts), 1, -1):
            name = ".".join(parts[:count])
            new = self.module(name)
            rest = parts[count:]
            if rest:
                rest[0] = self.renames.get((name, rest[0]), rest[0])
                if name in self.exports and rest[0] in self.exports[name]:
                    origin = self.resolve(name, rest[0])
                    return ".".join([*origin, *rest[1:]])
            if new != name or rest != parts[count:]:
                return ".".join([new, *rest])
        return found[0]

    def _short_dotted(self, found: re.Match[str]) -> str:
        if found[1].startswith(PACKAGE):
            return found[0]
        new = self.modules.get(_full(found[1]))
        return found[0] if new is None else "`" + new.removeprefix(f"{PACKAGE}.")

    def _quoted_path(self, found: re.Match[str]) -> str:
        return "`" + self._paths.get(found[1], found[1])

    def exact(self, text: str) -> str:
        """A string that is a module's whole name below the package, as in lazy import tables."""
        new = self.modules.get(_full(text)) if "." in text else None
        return text if new is None else new.removeprefix(f"{PACKAGE}.")


def _full(name: str) -> str:
    return f"{PACKAGE}.{name}"


def _test_of(module: str) -> Path:
    path = Path("tests") / "unit" / module.replace(".", "/")
    return path.with_name(f"test_{path.name}.py")


def defined_names(text: str) -> set[str]:
    """The names that a module defines in its own scope, without imported names."""
    names = set()
    for statement in ast.parse(text).body:
        if not isinstance(statement, ast.Import | ast.ImportFrom | ast.Try):
            is_head = isinstance(statement, ast.If) and _import_block(statement)
            names |= set() if is_head else bound_names([statement])
    return names


def _import_block(block: ast.If) -> bool:
    """Whether an `if` contains only imports."""
    inside = [*block.body, *block.orelse]
    return all(isinstance(statement, ast.Import | ast.ImportFrom) for statement in inside)


# --- Rewriting a file ----------------------------------------------------------------------------


class Rewriter:
    """A Python file after the moves: its imports, and names in its strings and comments.

    Of a module that is joined, `home` is the target: imports from it are removed.
    """

    def __init__(self, moves: Moves, text: str, *, home: str = "", package: str = "") -> None:
        self._moves = moves
        self._home = home
        self._package = package
        self._source = Source(self._in_strings(text))
        self._renames: dict[str, str] = {}
        self._bound = bound_names(self._source.tree.body)
        self._everywhere = {
            *(n.id for n in ast.walk(self._source.tree) if isinstance(n, ast.Name)),
            *(n.arg for n in ast.walk(self._source.tree) if isinstance(n, ast.arg)),
            *self._bound,
        }

    def result(self) -> str:
        top = set(map(id, self._source.tree.body))
        for node in ast.walk(self._source.tree):
            match node:
                case ast.ImportFrom(level=0, module=str(module)):
                    is_top = id(node) in top or _in_head(self._source.tree, node)
                    self._import_from(node, module, is_top=is_top)
                case ast.Import():
                    start, end = self._source.span(node)
                    old = self._source.piece(start, end)
                    self._source.replace(start, end, self._moves.in_text(old))
        changed = _without_empty_blocks(self._source.result())
        changed = rename_names(changed, self._renames)
        return _with_exported(changed, self._renames)

    def _in_strings(self, text: str) -> str:
        """Rename in strings and comments only; code is renamed by the syntax tree."""
        import io  # noqa: PLC0415
        import tokenize  # noqa: PLC0415

        lines = text.splitlines(keepends=True)
        starts = [0]
        for line in lines:
            starts.append(starts[-1] + len(line))
        kinds = {tokenize.STRING, tokenize.COMMENT, getattr(tokenize, "FSTRING_MIDDLE", -1)}
        parts, position = [], 0
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type not in kinds:
                continue
            start = starts[token.start[0] - 1] + token.start[1]
            end = starts[token.end[0] - 1] + token.end[1]
            old = text[start:end]
            new = self._moves.in_text(old, self._package)
            if token.type == tokenize.STRING and re.fullmatch(r"\"[\w.]+\"", old):
                new = f'"{self._moves.exact(old[1:-1])}"' if new == old else new
            parts += [text[position:start], new]
            position = end
        return "".join([*parts, text[position:]])

    def _import_from(self, node: ast.ImportFrom, module: str, *, is_top: bool) -> None:
        prefix = "cython.cimports."
        c_names = module.startswith(prefix)
        module = module.removeprefix(prefix)
        if not module.startswith((PACKAGE, "tests")):
            return
        words: dict[str, list[str]] = defaultdict(list)
        for alias in node.names:
            home, name = self._moves.resolve(module, alias.name)
            bound = alias.asname or alias.name
            is_module = self._moves.is_module(module, alias.name)
            if is_module and self._home and f"{home}.{name}" == self._home:
                self._unqualify(bound, f"{module}.{alias.name}", node)
            elif home == self._home and not is_module:
                if bound != name:
                    self._renames[bound] = name
            else:
                if is_module:
                    self._attributes(bound, f"{module}.{alias.name}", node)
                word = self._word(name, bound, alias, is_top=is_top)
                if word not in words[home]:
                    words[home].append(word)
        self._emit(node, module, {prefix * c_names + h: w for h, w in words.items()}, c_names)

    def _word(self, name: str, bound: str, alias: ast.alias, *, is_top: bool) -> str:
        """The import of a name; if it was renamed, its uses are renamed too where possible."""
        if alias.asname is not None:
            return f"{name} as {bound}"  # also `X as X`, by which a stub passes a name on
        if name == alias.name:
            return name
        free = name not in self._everywhere and not hasattr(builtins, name)
        if is_top and (free or self._renames.get(bound) == name) and not keyword.iskeyword(name):
            self._renames[bound] = name
            self._everywhere.add(name)
            return name
        if is_top and any(new == name for new in self._renames.values()):
            self._renames[bound] = name
            return name
        return f"{name} as {bound}"

    def _emit(
        self, node: ast.ImportFrom, module: str, words: Mapping[str, list[str]], c_names: bool
    ) -> None:
        before = [f"{a.name} as {a.asname}" if a.asname else a.name for a in node.names]
        old = ("cython.cimports." if c_names else "") + module
        if words == {old: before}:
            return
        if not words:
            self._source.remove_lines(node)
            return
        start, end = self._source.span(node)
        if len(words) == 1 and [*words.values()] == [before]:
            where = self._source.find(rf"from\s+({re.escape(old)})\s", start, end)
            self._source.replace(*where, next(iter(words)))
            return
        line_end = self._source.text.splitlines()[node.end_lineno - 1 if node.end_lineno else 0]
        comment = line_end.encode()[node.end_col_offset :].decode()
        indent = " " * node.col_offset
        texts = [
            _import_text(f"from {home} import ", names, node.col_offset)
            for home, names in words.items()
        ]
        self._source.replace(start, end, f"{comment}\n{indent}".join(texts))

    def _uses(self, bound: str, node: ast.ImportFrom) -> Uses:
        """Uses of a module that an import binds, in the enclosing function if there is one."""
        for function in ast.walk(self._source.tree):
            if isinstance(function, FUNCTIONS) and any(node is n for n in ast.walk(function)):
                body = [s for s in function.body if s is not node]
                uses = Uses(ast.Module(body, []), [bound])
                hidden = frozenset(argument_names(function.args) | bound_names(body))
                uses.attributes = [
                    (attribute, hidden | more) for attribute, more in uses.attributes
                ]
                return uses
        return Uses(self._source.tree, [bound])

    def _unqualify(self, bound: str, module: str, node: ast.ImportFrom) -> None:
        """Replace `module.name` by `name`, since both are in one module now."""
        uses = self._uses(bound, node)
        qualified = {id(attribute.value) for attribute, _ in uses.attributes}
        if any(id(name) not in qualified for name, _ in uses.found):
            raise MoveError(f"{self._home}: {bound} is used as a value; change that by hand first")
        for attribute, hidden in uses.attributes:
            name = self._moves.renames.get((module, attribute.attr), attribute.attr)
            if name in hidden:
                raise MoveError(
                    f"{self._home}: {bound}.{attribute.attr} would be hidden by a local variable; "
                    f"give {module.removeprefix(PACKAGE + '.')} a rename of it"
                )
            self._source.replace(*self._source.span(attribute), name)

    def _attributes(self, bound: str, module: str, node: ast.ImportFrom) -> None:
        """Rename attributes that are accessed through their module."""
        for attribute, _ in self._uses(bound, node).attributes:
            name = self._moves.renames.get((module, attribute.attr))
            if name is not None:
                end = self._source.span(attribute)[1]
                self._source.replace(end - len(attribute.attr.encode()), end, name)


def _without_empty_blocks(text: str) -> str:
    """The text without blocks of imports that have become empty."""
    lines = text.splitlines(keepends=True)
    kept: list[str] = []
    for number, line in enumerate(lines):
        opens = re.match(r"(if TYPE_CHECKING|if cython\.compiled|else):\s*$", line)
        follows = next((later for later in lines[number + 1 :] if later.strip()), "")
        if not (opens and not follows.startswith((" ", "\t"))):
            kept.append(line)
    return "".join(kept)


def _with_exported(text: str, names: Mapping[str, str]) -> str:
    """`__all__` with renamed names, without duplicates."""
    if not names or "__all__" not in text:
        return text
    source = Source(text)
    for statement in source.tree.body:
        match statement:
            case ast.Assign(targets=[ast.Name(id="__all__")], value=ast.List(elts=elements)):
                given = [str(e.value) for e in elements if isinstance(e, ast.Constant)]
                words = [names.get(word, word) for word in given]
                lines = "".join(f"\n    {word!r}," for word in dict.fromkeys(words))
                source.replace(*source.span(statement.value), f"[{lines}\n]")
    return source.result()


def with_merged_entries(text: str) -> str:
    """Tables of lazy imports, module to names, with one entry for each module."""
    source = Source(text)
    for table in ast.walk(source.tree):
        if not isinstance(table, ast.Dict):
            continue
        entries: dict[str, list[tuple[ast.Constant, ast.Tuple]]] = defaultdict(list)
        for key, value in zip(table.keys, table.values, strict=True):
            if isinstance(key, ast.Constant) and isinstance(value, ast.Tuple):
                entries[str(key.value)].append((key, value))
        for same in (found for found in entries.values() if len(found) > 1):
            words = sorted(ast.literal_eval(e) for _, value in same for e in value.elts)
            inside = "".join(f"{word!r}, " for word in words)
            source.replace(*source.span(same[0][1]), f"({inside})")
            for key, value in same[1:]:
                start, end = source.span(key)[0], source.span(value)[1]
                source.replace(start, end + 1, "")
    return source.result()


def with_short_lines(text: str) -> str:
    """Rewrap comments and docstring paragraphs that a longer name made too long."""
    lines = text.split("\n")
    number = 0
    while number < len(lines):
        if len(lines[number]) <= LINE_LENGTH_MAX or '"""' in lines[number]:
            number += 1
            continue
        indent = lines[number][: len(lines[number]) - len(lines[number].lstrip())]
        mark = "# " if lines[number].lstrip().startswith("# ") else ""

        def is_same(line: str, head: str = indent + mark) -> bool:
            plain = bool(re.match(r"[\w`(]", line[len(head) :]))
            return line.startswith(head) and plain and '"""' not in line

        if not mark and not _in_docstring(text, number + 1):
            number += 1
            continue
        first = last = number
        while first > 0 and is_same(lines[first - 1]):
            first -= 1
        while last + 1 < len(lines) and is_same(lines[last + 1]):
            last += 1
        words = " ".join(line[len(indent + mark) :].strip() for line in lines[first : last + 1])
        new = textwrap.wrap(
            words,
            LINE_LENGTH_MAX,
            initial_indent=indent + mark,
            subsequent_indent=indent + mark,
            break_long_words=False,
            break_on_hyphens=False,
        )
        lines[first : last + 1] = new
        number = first + len(new)
    return "\n".join(lines)


def _in_docstring(text: str, number: int) -> bool:
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Expr(value=ast.Constant(value=str())):
                if node.lineno <= number <= (node.end_lineno or 0):
                    return True
    return False


# --- Joining modules -----------------------------------------------------------------------------


@dataclass
class Part:
    """A module taken apart: the parts for the head of the joined module, and the rest."""

    name: str
    directives: str = ""
    docstring: str = ""
    futures: list[str] = field(default_factory=list)
    imports: list[str] = field(default_factory=list)
    cython: str = ""
    typing: list[str] = field(default_factory=list)
    compiled: list[str] = field(default_factory=list)
    pure: list[str] = field(default_factory=list)
    exported: list[str] = field(default_factory=list)
    body: str = ""
    defined: dict[str, str] = field(default_factory=dict)
    imported: dict[str, str] = field(default_factory=dict)
    builtins: set[str] = field(default_factory=set)


def take_apart(name: str, text: str, seen: Mapping[str, str]) -> Part:
    """The parts of a module, without definitions that an earlier module (`seen`) has verbatim."""
    part = Part(name)
    source = Source(text)
    part.directives = "".join(re.match(r"(?:#[^\n]*\n)*", text)[0])  # type: ignore[index]
    if part.directives:
        source.replace(0, len(part.directives.encode()), "")
    lines = text.splitlines()
    for statement in source.tree.body:
        whole = _with_comments(lines, statement)
        if _take_head(part, source, statement, whole, lines):
            _remove_with_comments(source, statement, lines)
            continue
        for defined in bound_names([statement]):
            dump = ast.dump(statement)
            if seen.get(defined) == dump:
                _remove_with_comments(source, statement, lines)
            part.defined[defined] = dump
    part.body = source.result().strip("\n")
    free = {name.id for name, _ in Uses(source.tree, dir(builtins)).found}
    part.builtins = free - set(part.defined) - set(part.imported)
    return part


def _take_head(
    part: Part, source: Source, statement: ast.stmt, whole: str, lines: list[str]
) -> bool:
    """Take a statement that belongs to the head of a module; returns whether it does."""
    match statement:
        case ast.Expr(value=ast.Constant(value=str(text))) if statement is source.tree.body[0]:
            part.docstring = text
        case ast.ImportFrom(module="__future__"):
            part.futures.append(whole)
        case ast.Import() | ast.ImportFrom():
            part.imports.append(whole)
            _note_imported(part, statement)
        case ast.Try(body=[ast.Import(names=[ast.alias(name="cython")])]):
            part.cython = whole
        case ast.If(test=ast.Name(id="TYPE_CHECKING")) if _import_block(statement):
            part.typing += [_with_comments(lines, inner) for inner in statement.body]
            for inner in statement.body:
                _note_imported(part, inner)
        case ast.If(test=ast.Attribute(attr="compiled")) if _import_block(statement):
            part.compiled += [_with_comments(lines, inner) for inner in statement.body]
            part.pure += [_with_comments(lines, inner) for inner in statement.orelse]
            for inner in statement.body:
                _note_imported(part, inner)
        case ast.Assign(targets=[ast.Name(id="__all__")], value=ast.List(elts=elements)):
            part.exported += [e.value for e in elements if isinstance(e, ast.Constant)]  # type: ignore[misc]
        case _:
            return False
    return True


def _note_imported(part: Part, statement: ast.stmt) -> None:
    if isinstance(statement, ast.ImportFrom):
        module = (statement.module or "").removeprefix("cython.cimports.")
        for alias in statement.names:
            part.imported[alias.asname or alias.name] = f"{module}:{alias.name}"
    elif isinstance(statement, ast.Import):
        for alias in statement.names:
            bound = alias.asname or alias.name.split(".")[0]
            part.imported[bound] = f"{alias.name if alias.asname else bound}:"


def _first_line(lines: list[str], statement: ast.stmt) -> int:
    """The first line of a statement, including its decorators and the comments above."""
    decorators = getattr(statement, "decorator_list", [])
    number = (
        min(statement.lineno, *(d.lineno for d in decorators)) if decorators else (statement.lineno)
    )
    while number > 1 and lines[number - 2].lstrip().startswith("#"):
        number -= 1
    return number


def _with_comments(lines: list[str], statement: ast.stmt) -> str:
    first = _first_line(lines, statement)
    return textwrap.dedent("\n".join(lines[first - 1 : statement.end_lineno]))


def _remove_with_comments(source: Source, statement: ast.stmt, lines: list[str]) -> None:
    first = _first_line(lines, statement)
    if first == 1:
        source.remove_lines(statement)
        return
    assert statement.end_lineno is not None
    end = source.at(statement.end_lineno + 1, 0)
    source.replace(source.at(first, 0), end, "")


def clashes(parts: Sequence[Part], target: str) -> list[str]:
    """Names with different meanings in modules to be joined."""
    meanings: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for part in parts:
        for name, dump in part.defined.items():
            meanings[name][dump].append(part.name)
        for name, origin in part.imported.items():
            meanings[name][origin].append(part.name)
    found = [
        f"{target}: {name}: {part.name} means the builtin, another defines it"
        for part in parts
        for name in sorted(part.builtins)
        if any(name in other.defined for other in parts if other is not part)
    ]
    for name, ways in sorted(meanings.items()):
        if len(ways) > 1:
            places = "; ".join(
                f"{' '.join(names)} ({'defined' if '(' in way else way})"
                for way, names in ways.items()
            )
            found.append(f"{target}: {name}: {places}")
    return found


def join(row: Row, parts: Sequence[Part]) -> str:
    """The text of the joined module, to be sorted and formatted by ruff."""
    directives = next((part.directives for part in parts if part.directives), "")
    imports = _unique(line for part in parts for line in part.imports)
    ours = [line for line in imports if re.search(rf"^from {PACKAGE}\b", line, re.MULTILINE)]
    cython = next((part.cython for part in parts if part.cython), "")
    runtime = {name for part in parts for name in _imported_at_runtime(part)}
    typing = [_without_names(line, runtime) for part in parts for line in part.typing]
    head = [
        *_unique(line for part in parts for line in part.futures),
        "\n".join(line for line in imports if line not in ours),
        cython,
        "\n".join(ours),
        _block("if TYPE_CHECKING:", _unique(filter(None, typing))),
        _block("if cython.compiled:", _unique(line for p in parts for line in p.compiled))
        + _block("else:", _unique(line for p in parts for line in p.pure)),
        _exported(parts),
    ]
    sections = [_section(row, part) for part in parts]
    pieces = [_docstring(row, parts), *head, *sections]
    return directives + "\n\n".join(piece.strip("\n") for piece in pieces if piece.strip()) + "\n"


def _imported_at_runtime(part: Part) -> Iterator[str]:
    for text in part.imports:
        for statement in ast.parse(text).body:
            yield from bound_names([statement])


def _without_names(text: str, names: set[str]) -> str:
    """An import without names that are imported elsewhere already."""
    [node] = ast.parse(text).body
    assert isinstance(node, ast.Import | ast.ImportFrom)
    left = [alias for alias in node.names if (alias.asname or alias.name) not in names]
    if len(left) == len(node.names):
        return text
    if not left:
        return ""
    node.names = left
    return ast.unparse(node)


def _unique(lines: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(lines))


def _block(opening: str, lines: Sequence[str]) -> str:
    if not lines:
        return ""
    return opening + "\n" + "".join(textwrap.indent(line, "    ") + "\n" for line in lines)


def _exported(parts: Sequence[Part]) -> str:
    names = sorted({name for part in parts for name in part.exported})
    if not names:
        return ""
    return "__all__ = [" + "".join(f"\n    {name!r}," for name in names) + "\n]"


def _namesake(row: Row) -> str:
    """The source with the target's name, whose notes stay in the docstring."""
    last = row.target.split(".")[-1]
    return next((source for source in row.sources if source.split(".")[-1] == last), "")


def docstring_parts(docstring: str) -> tuple[str, str]:
    """The first sentence, and everything behind it."""
    text = textwrap.dedent(
        docstring.split("\n", 1)[0]
        + "\n"
        + textwrap.dedent(docstring.split("\n", 1)[1] if "\n" in docstring else "")
    ).strip()
    first, _, rest = text.partition("\n\n")
    sentence = re.match(r"(.+?\.)(?:\s+(?=[A-Z`])|$)", first, re.DOTALL)
    if sentence is None or sentence.end() == len(first):
        return first, rest.strip()
    more = first[sentence.end() :].strip()
    return sentence[1], f"{more}\n\n{rest}".strip()


def _docstring(row: Row, parts: Sequence[Part]) -> str:
    """The row's sentence, then the notes in the docstring of the target's namesake."""
    own = (part for part in parts if part.name == _namesake(row) and row.notes)
    return _quoted(row.doc, next((docstring_parts(part.docstring)[1] for part in own), ""))


def _quoted(first: str, notes: str) -> str:
    mark = "r" if "\\" in first + notes else ""
    if not notes:
        return f'{mark}"""{first}"""'
    return f'{mark}"""{first}\n\n{notes}\n"""'


def _section(row: Row, part: Part) -> str:
    """A source's code, below its docstring if that has notes."""
    first, notes = docstring_parts(part.docstring)
    is_remark = len(notes.split()) < REMARK_WORDS_MAX  # "Pure." and the like
    if is_remark or not row.notes or part.name == _namesake(row):
        return part.body
    paragraphs = [
        "\n".join(
            f"# {line}" if line.strip() else "#"
            for line in (
                paragraph.splitlines()
                if paragraph.startswith("    ")
                else textwrap.wrap(" ".join(paragraph.split()), COMMENT_WIDTH)
            )
        )
        for paragraph in [first, *re.split(r"\n\s*\n", notes)]
    ]
    return "\n#\n".join(paragraphs) + "\n\n\n" + part.body


def with_first_sentence(text: str, doc: str) -> str:
    """A module with another first sentence in its docstring."""
    source = Source(text)
    first = source.tree.body[0]
    if not (isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)):
        raise MoveError(f"no docstring to replace by {doc!r}")
    notes = docstring_parts(str(first.value.value))[1]
    source.replace(*source.span(first), _quoted(doc, notes))
    return source.result()


# --- Applying ------------------------------------------------------------------------------------


class Mover:
    """Applies groups of rows to a tree of files."""

    def __init__(self, root: Path, house: House) -> None:
        self._root = root
        self._house = house
        self.problems: list[str] = []

    def apply(self, groups: Sequence[str]) -> list[str]:
        """Apply groups; returns the changed paths. Nothing is written when names clash."""
        original = self._contents()
        try:
            return self._apply(groups, original)
        except BaseException:
            for path in text_files(self._root):
                if path.relative_to(self._root).as_posix() not in original:
                    path.unlink()
            for name, text in original.items():
                if (self._root / name).read_text() != text:
                    (self._root / name).write_text(text)
            raise

    def _apply(self, groups: Sequence[str], original: Mapping[str, str]) -> list[str]:
        for edit in self._house.edits_before:
            self._edit(edit, groups)
        for extract in self._house.extracts:
            if extract.group in groups:
                self._extract(extract)
        tree = Tree(self._root)
        moves = Moves(tree, self._house, groups)
        files = self._rewritten(moves)
        joined: dict[Path, str] = {}
        for row in moves.rows:
            joined |= self._joined(moves, row, files)
        if self.problems:
            raise MoveError("\n".join(self.problems))
        gone = [tree.paths[name] for name in moves.target_of]
        gone += [tree.paths[name] for name in moves.exports if self._is_facade(tree.paths[name])]
        gone += [self._root / path for path in moves.tests]
        for path in gone:
            for suffix in (".py", ".pyi", ".pxd"):
                path.with_suffix(suffix).unlink(missing_ok=True)
        for path, text in {**files, **joined}.items():
            if path.with_suffix(".py") not in gone or path in joined:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
        for old, new in moves.tests.items():
            (self._root / new).parent.mkdir(parents=True, exist_ok=True)
            (self._root / new).write_text(files[self._root / old])
        self._packages(moves, files)
        self._settings(moves)
        self._tidy_directories()
        for edit in self._house.edits:
            self._edit(edit, groups)
        self._format(original, [str(p) for p in joined if p.suffix in {".py", ".pyi"}])
        after = self._contents()
        return sorted(p for p in {*original, *after} if original.get(p) != after.get(p))

    def check(self, groups: Sequence[str]) -> None:
        """Find clashes without writing anything."""
        moves = Moves(Tree(self._root), self._house, groups)
        files = self._rewritten(moves)
        for row in moves.rows:
            self._joined(moves, row, files)

    def _is_facade(self, path: Path) -> bool:
        """Whether a dissolved module defines nothing itself, so that it can be removed."""
        return not defined_names(path.read_text()) - {"__all__"}

    def _contents(self) -> dict[str, str]:
        return {
            path.relative_to(self._root).as_posix(): path.read_text()
            for path in text_files(self._root)
        }

    def _rewritten(self, moves: Moves) -> dict[Path, str]:
        """Every file after the moves, still at its old path."""
        files = {}
        mentions = moves.mentions()
        for path in text_files(self._root):
            text = path.read_text()
            if not (mentions.search(text) or name_is_moved(moves, path)):
                continue
            if path.suffix in {".py", ".pyi"} and path.name != "setup.py":
                inside = path.is_relative_to(self._root / "src")
                name = moves.tree.name_of(path) if inside else ""
                names = self._own_renames(moves, name)
                package = name if path.name == "__init__.py" else name.rpartition(".")[0]
                home = moves.target_of.get(name, "")
                try:
                    new = rename_names(text, names)
                    new = Rewriter(moves, new, home=home, package=package).result()
                except MoveError as error:
                    self.problems.append(f"{path.relative_to(self._root)}: {error}")
                    continue
            else:
                new = moves.in_text(text)
                if path.suffix == ".pxd":
                    new = moves.in_comments(new, moves.tree.name_of(path).rpartition(".")[0])
            if new != text or name_is_moved(moves, path):
                files[path] = new
        return files

    def _own_renames(self, moves: Moves, name: str) -> Mapping[str, str]:
        below = name.removeprefix(f"{PACKAGE}.")
        for row in moves.rows:
            if below in row.rename and below in row.sources:
                return row.rename[below]
        return {}

    def _joined(self, moves: Moves, row: Row, files: Mapping[Path, str]) -> dict[Path, str]:
        """The files of a target: the module, and its stub and declarations if it is compiled."""
        sources = moves.sources(row)
        paths = {source: moves.tree.paths[_full(source)] for source in sources}
        target = moves.tree.path_of(_full(row.target))
        if target.exists() and moves.target_of.get(_full(row.target)) is None:
            self.problems.append(f"{row.target}: there is such a module already; join it or rename")
        order = self._order(moves, row, sources)
        made = {}
        text = self._module(row, order, {s: files[paths[s]] for s in sources})
        made[target] = text
        stubs = {s: paths[s].with_suffix(".pyi") for s in sources}
        if any(path.exists() for path in stubs.values()):
            texts = {s: files[p] if p.exists() else stub(files[paths[s]]) for s, p in stubs.items()}
            text = self._module(row, order, texts)
            made[target.with_suffix(".pyi")] = re.sub(r'^""".*?"""\n+', "", text, flags=re.S)
        headers = [paths[s].with_suffix(".pxd") for s in order]
        texts_c = [files[path] for path in headers if path.exists()]
        if texts_c:
            made[target.with_suffix(".pxd")] = join_declarations(_full(row.target), texts_c)
        return made

    def _module(self, row: Row, order: Sequence[str], texts: Mapping[str, str]) -> str:
        if len(order) == 1:
            [text] = texts.values()
            return with_first_sentence(text, row.doc) if row.doc else text
        if not row.doc:
            self.problems.append(f"{row.target}: a joined module needs a `doc`")
        seen: dict[str, str] = {}
        parts = []
        for source in order:
            part = take_apart(source, texts[source], seen)
            seen |= part.defined
            parts.append(part)
        self.problems += clashes(parts, row.target)
        return join(row, parts)

    def _order(self, moves: Moves, row: Row, sources: Sequence[str]) -> list[str]:
        """The row's order, but each source after those that it imports when loaded."""
        needs = {
            source: [
                other
                for other in sources
                if other != source
                and _full(other) in runtime_imports(moves.tree.paths[_full(source)].read_text())
            ]
            for source in sources
        }
        order: list[str] = []

        def place(source: str, above: tuple[str, ...]) -> None:
            if source in order or source in above:
                return
            for needed in needs[source]:
                place(needed, (*above, source))
            order.append(source)

        for source in sources:
            place(source, ())
        return order

    def _extract(self, extract: Extract) -> None:
        """Move definitions into a separate module, and change all imports of them."""
        tree = Tree(self._root)
        path = tree.paths.get(_full(extract.source))
        target = tree.path_of(_full(extract.target))
        if path is None or target.exists():
            return
        source = Source(path.read_text())
        lines = source.text.splitlines()
        pieces = []
        for statement in source.tree.body:
            names = bound_names([statement])
            if names & set(extract.names) and not isinstance(statement, ast.ImportFrom):
                pieces.append(_with_comments(lines, statement))
                _remove_with_comments(source, statement, lines)
        head = take_apart("", source.text, {})
        row = Row(extract.target, (extract.target,), "", f"Taken out of {extract.source}.")
        head.docstring = ""
        head.body = "\n\n\n".join(pieces)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(join(row, [head]))
        rest = Source(source.result())
        behind = next(s for s in rest.tree.body if isinstance(s, ast.Import | ast.ImportFrom))
        start = rest.span(behind)[0]
        words = ", ".join(extract.names)
        rest.replace(start, start, f"from {_full(extract.target)} import {words}\n")
        path.write_text(rest.result())
        self._follow(extract, target)
        self._ruff("check", "--fix", "--quiet", "--select", "I,F401", str(path), str(target))
        self._ruff("format", "--quiet", str(path), str(target))

    def _follow(self, extract: Extract, target: Path) -> None:
        """Change imports of extracted definitions to the new module."""
        moves = Moves(Tree(self._root), House((), (), (), {}, {}, {}, (), ()), ())
        moves.exports = {
            _full(extract.source): {name: (_full(extract.target), name) for name in extract.names}
        }
        for path in text_files(self._root):
            if path.suffix in {".py", ".pyi"} and path != target:
                text = path.read_text()
                new = Rewriter(moves, text).result()
                if new != text:
                    path.write_text(new)

    def _packages(self, moves: Moves, files: Mapping[Path, str]) -> None:
        """Write the `__init__` of packages that are new or renamed."""
        for name, entry in self._house.packages.items():
            opening = self._root / "src" / PACKAGE / name.replace(".", "/") / "__init__.py"
            if not opening.parent.exists() or opening.exists():
                continue
            old = moves.tree.paths.get(_full(entry.get("from", "?")))
            if old is not None:
                opening.write_text(files.get(old, old.read_text()))
                old.unlink()
            else:
                doc, _, rest = entry["doc"].partition("\n")
                opening.write_text(_quoted(doc, rest.strip()) + "\n")

    def _tidy_directories(self) -> None:
        """Remove directories without modules, with an `__init__` that is no longer needed."""
        source = self._root / "src" / PACKAGE
        for directory in sorted((p for p in source.rglob("*") if p.is_dir()), reverse=True):
            left = [p for p in directory.iterdir() if p.name != "__pycache__"]
            if directory.name != "__pycache__" and all(
                p.name == "__init__.py" or p.suffix in {".so", ".c"} for p in left
            ):
                shutil.rmtree(directory)
        for directory in sorted((self._root / "tests").rglob("*"), reverse=True):
            if directory.is_dir() and directory.name != "__pycache__":
                if all(p.name == "__pycache__" for p in directory.iterdir()):
                    shutil.rmtree(directory)

    def _settings(self, moves: Moves) -> None:
        """Rename in the lists of modules in pyproject.toml, setup.py and the Makefile."""
        for name in ("pyproject.toml", "setup.py", "tests/test_tidy.py"):
            path = self._root / name
            text = re.sub(r"([\w/]+/)\{([\w,]+)\}\.py", self._braces(moves), path.read_text())
            text = _without_repeats(text)
            if name == "setup.py":
                text = re.sub(r'(?:    "headrace[\w.]+",\n)+', _sorted_lines, text)
            path.write_text(text)
        makefile = self._root / "Makefile"
        text = makefile.read_text()
        before, middle, after = re.split(
            r"(^PURE_TESTS.*?\n\n)", text, maxsplit=1, flags=re.M | re.S
        )
        for old, new in moves.tests.items():
            old_name, new_name = (Path(p).name.removeprefix("test_") for p in (old, new))
            if (
                Path(old)
                .parent.as_posix()
                .startswith(("tests/unit/protocol", "tests/unit/storage"))
            ):
                stays = Path(old).parent == Path(new).parent
                word = rf"(?<=[\s,]){re.escape(old_name)}\b" + ("" if stays else " ?")
                middle = re.sub(word, new_name if stays else "", middle)
        makefile.write_text(before + middle + after)

    def _braces(self, moves: Moves) -> Callable[[re.Match[str]], str]:
        def changed(found: re.Match[str]) -> str:
            home = found[1].removeprefix("src/").replace("/", ".")
            names = [moves.module(home + name).rpartition(".")[2] for name in found[2].split(",")]
            return f"{found[1]}{{{','.join(sorted(set(names)))}}}.py"

        return changed

    def _edit(self, edit: Edit, groups: Sequence[str]) -> None:
        if edit.group not in groups:
            return
        path = self._root / edit.path
        text = path.read_text() if path.exists() else ""
        if edit.old in edit.new and edit.new in text:
            return  # made already
        if edit.old in text:
            path.write_text(text.replace(edit.old, edit.new, edit.count))
        elif text and (edit.new not in text or not edit.new):
            print(f"!! {edit.path} has no {edit.old.splitlines()[0]!r}: edit by hand", flush=True)

    def _format(self, before: Mapping[str, str], joined: Sequence[str]) -> None:
        changed = [
            str(path)
            for path in text_files(self._root)
            if path.suffix in {".py", ".pyi"}
            and before.get(path.relative_to(self._root).as_posix()) != path.read_text()
        ]
        for name in changed:
            text = Path(name).read_text()
            new = with_short_lines(with_merged_entries(text) if "_MODULES" in text else text)
            if new != text:
                Path(name).write_text(new)
        if changed:
            # Only in joined modules: others may import names to re-export them.
            self._ruff("check", "--fix", "--quiet", "--select", "F401", *joined)
            self._ruff("check", "--fix", "--quiet", "--select", "I", *changed)
            self._ruff("format", "--quiet", *changed)

    def _ruff(self, *arguments: str) -> None:
        program = Path(sys.executable).parent / "ruff"
        subprocess.run([str(program), *arguments], cwd=self._root, check=False)


def name_is_moved(moves: Moves, path: Path) -> bool:
    """Whether a file is moved even if its text stays."""
    root = moves.tree.root
    if path.is_relative_to(root / "src"):
        return moves.tree.name_of(path) in moves.target_of
    return path.relative_to(root).as_posix() in moves.tests


def text_files(root: Path) -> list[Path]:
    """The files that may contain names of modules."""
    found = [root / name for name in TEXT_FILES]
    for name in TEXT_ROOTS:
        found += [p for p in sorted((root / name).rglob("*")) if p.suffix in TEXT_SUFFIXES]
    return [
        path
        for path in found
        if path.is_file()
        and path.relative_to(root).as_posix() not in UNTOUCHED
        and "golden" not in path.parts
    ]


def _without_repeats(text: str) -> str:
    """Lists and sets of quoted names, and dictionaries, without duplicate entries."""
    kept: list[str] = []
    for line in text.splitlines(keepends=True):
        entry = re.match(r"\s+(\"[\w./*> -]+\"),$|\s+(\"[\w./]+\"): ", line)
        if entry and line.strip():
            quoted = entry[1] or entry[2]
            above = iter(reversed(kept))
            if any(_same_entry(other, quoted) for other in _list_above(above)):
                continue
        inline = re.search(r"[\[{]((?:\"[\w./]+\"(?:, )?){2,})[\]}]", line)
        if inline:
            words = ", ".join(dict.fromkeys(inline[1].split(", ")))
            kept.append(line.replace(inline[1], words))
        else:
            kept.append(line)
    return "".join(kept)


def _sorted_lines(found: re.Match[str]) -> str:
    return "".join(sorted(found[0].splitlines(keepends=True)))


def _list_above(lines: Iterator[str]) -> Iterator[str]:
    for line in lines:
        if re.search(r"[\[({]\s*$", line):
            return
        yield line


def _same_entry(line: str, quoted: str) -> bool:
    return line.strip().startswith((f"{quoted},", f"{quoted}:"))


def stub(text: str) -> str:
    """The stub of a small module: its functions and constants without bodies."""
    source = Source(text)
    for statement in source.tree.body:
        if all(name.startswith("_") for name in bound_names([statement])) and (
            not isinstance(statement, ast.Import | ast.ImportFrom | ast.If)
        ):
            source.remove_lines(statement)
        elif isinstance(statement, FUNCTIONS):
            first, last = statement.body[0], statement.body[-1]
            source.replace(source.span(first)[0], source.span(last)[1], "...")
        elif isinstance(statement, ast.ClassDef):
            if any(isinstance(inner, FUNCTIONS) for inner in statement.body):
                raise MoveError(f"class {statement.name} needs a stub written by hand")
            first, last = statement.body[0], statement.body[-1]
            source.replace(source.span(first)[0], source.span(last)[1], "...")
    return source.result()


def join_declarations(target: str, texts: Sequence[str]) -> str:
    """Joined declarations for Cython, without cimports of each other."""
    imports: list[str] = []
    bodies = []
    for text in texts:
        lines = text.splitlines()
        imports += [line for line in lines if re.match(r"from \S+ cimport", line)]
        body = [line for line in lines if not re.match(r"from \S+ cimport", line)]
        if len(texts) > 1 and body and body[0].startswith("#"):
            body = body[1:]
        bodies.append("\n".join(body).strip("\n"))
    own = re.compile(rf"from {re.escape(target)} cimport")
    outside = sorted({line for line in imports if not own.match(line)})
    if len(bodies) == 1:
        return texts[0]
    about = f"# Types of the attributes of the classes in {target.rsplit('.', maxsplit=1)[-1]}.py."
    return "\n\n".join([about, *(["\n".join(outside)] if outside else []), *bodies]) + "\n"


# --- Figures -------------------------------------------------------------------------------------


def imported_modules(text: str, known: Iterable[str], *, at_load: bool) -> set[str]:
    """Modules that a module imports anywhere, or, `at_load`, when it is loaded."""
    names = set(known)
    found = set()
    tree = ast.parse(text)
    nodes: Iterable[ast.AST] = _loaded_statements(tree) if at_load else ast.walk(tree)
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            module = node.module.removeprefix("cython.cimports.")
            for alias in node.names:
                whole = f"{module}.{alias.name}"
                found.add(whole if whole in names else module)
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found & names


def _loaded_statements(tree: ast.Module) -> Iterator[ast.stmt]:
    for statement in tree.body:
        yield statement
        typing = isinstance(statement, ast.If) and ast.unparse(statement.test) == "TYPE_CHECKING"
        if isinstance(statement, ast.If | ast.Try) and not typing:
            yield from _scope_statements(statement)


def runtime_imports(text: str) -> set[str]:
    """Full names of modules, or of names in them, that are imported when a module is loaded."""
    found = set()
    for node in _loaded_statements(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            module = node.module.removeprefix("cython.cimports.")
            found |= {module, *(f"{module}.{alias.name}" for alias in node.names)}
    return found


def cycles(root: Path) -> list[list[str]]:
    """Modules that import each other when they are loaded."""
    tree = Tree(root)
    graph = {
        name: imported_modules(path.read_text(), tree.paths, at_load=True) - {name}
        for name, path in tree.paths.items()
    }
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in sorted(graph[name]):
            if other not in index:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            group: list[str] = []
            while not group or group[-1] != name:
                group.append(stack.pop())
            if len(group) > 1:
                found.append(sorted(group))

    for name in graph:
        if name not in index:
            visit(name)
    return found


def figures(root: Path) -> str:
    """The number, size and importers of modules, without `__init__` and message tables."""
    tree = Tree(root)
    modules = {
        name: path
        for name, path in tree.paths.items()
        if path.name != "__init__.py" and not name.startswith(MESSAGE_TABLES)
    }
    lines = {name: len(path.read_text().splitlines()) for name, path in modules.items()}
    importers: Counter[str] = Counter()
    for name, path in tree.paths.items():
        for other in imported_modules(path.read_text(), tree.paths, at_load=False) - {name}:
            importers[other] += 1
    lonely = [name for name in modules if importers[name] == 1]
    short = [name for name in lonely if lines[name] < 100]
    longest = max(lines, key=lines.__getitem__)
    return (
        f"{len(modules)} modules, median {statistics.median(lines.values()):.0f} lines, "
        f"largest {longest} ({lines[longest]}); {len(lonely)} with one importer, "
        f"{len(short)} of these below 100 lines"
    )


def lonely_modules(root: Path) -> list[str]:
    """Short modules with one importer, and that importer."""
    tree = Tree(root)
    importers: dict[str, set[str]] = defaultdict(set)
    for name, path in tree.paths.items():
        for other in imported_modules(path.read_text(), tree.paths, at_load=False) - {name}:
            importers[other].add(name)
    rows = []
    for name, path in tree.paths.items():
        count = len(path.read_text().splitlines())
        if path.name != "__init__.py" and len(importers[name]) == 1 and count < 100:
            if not name.startswith(MESSAGE_TABLES):
                rows.append(f"{name} ({count}) <- {min(importers[name])}")
    return rows


def stale_words(root: Path, house: House) -> list[str]:
    """Lines of a package that quote the name of a former module of it, for manual review."""
    tree = Tree(root)
    words: dict[str, set[str]] = defaultdict(set)
    for row in house.rows:
        for source in row.sources:
            package, _, last = source.rpartition(".")
            if _full(source) not in tree.paths:
                words[_full(row.target).rpartition(".")[0]].add(last)
                words[_full(package)].add(last)
    found = []
    for name, path in tree.paths.items():
        package = name if tree.is_package(name) else name.rpartition(".")[0]
        if package not in words:
            continue
        text = path.read_text()
        known = {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}
        known |= bound_names(ast.parse(text).body)
        known |= {n.arg for n in ast.walk(ast.parse(text)) if isinstance(n, ast.arg)}
        for number, line in enumerate(text.splitlines(), 1):
            for word in re.findall(r"`(\w+)(?:\.pyx?)?`", line):
                if word in words[package] and word not in known:
                    found.append(f"{path.relative_to(root)}:{number}: {line.strip()}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--apply", nargs="+", metavar="GROUP", default=[])
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--figures", action="store_true")
    parser.add_argument("--words", action="store_true")
    parser.add_argument("--root", type=Path, default=ROOT)
    arguments = parser.parse_args()
    root: Path = arguments.root.resolve()
    house = read_house(ROOT / ROWS)
    groups = house.groups if "all" in arguments.apply else tuple(arguments.apply)
    unknown = set(groups) - set(house.groups)
    if unknown:
        raise SystemExit(f"no group {', '.join(sorted(unknown))}; there are {house.groups}")
    print(f"before: {figures(root)}")
    if arguments.check:
        mover = Mover(root, house)
        mover.check(house.groups)
        print("\n".join(mover.problems))
    if arguments.figures:
        print("\n".join(lonely_modules(root)))
    if arguments.words:
        print("\n".join(stale_words(root, house)))
    if groups:
        try:
            changed = Mover(root, house).apply(groups)
        except MoveError as error:
            raise SystemExit(f"nothing was applied:\n{error}") from error
        print(f"{', '.join(groups)}: {len(changed)} files changed", flush=True)
        file_map = root / "tools" / "make_file_map.py"
        subprocess.run([sys.executable, str(file_map)], cwd=root, check=False)
        print(f"after: {figures(root)}")
    for cycle in cycles(root):
        print(f"!! import cycle: {' '.join(cycle)}")


if __name__ == "__main__":
    main()
