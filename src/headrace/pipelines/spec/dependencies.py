"""Dependencies between the parts of a pipeline, their order, and the tables of a query. Pure."""

import re
from dataclasses import dataclass
from functools import lru_cache

from headrace.pipelines.spec.model import (
    DeduplicateStep,
    OnError,
    Pipeline,
    PythonStep,
    Source,
    SqlStep,
    Step,
    TopicSource,
)

# The tables that an SQL query reads, found without Spark by the positions of names.
#
# Pure.
#
# Rule: a name is a table's if SQL allows nothing else there: after FROM, JOIN and TABLE, and after
# a comma between such. Names with a dot belong to Spark's catalogs, and names before a parenthesis
# are functions; both are left out, and so are the names defined by WITH.


_TOKEN = re.compile(
    r"""
      (?P<comment>--[^\n]*|/\*.*?(?:\*/|\Z))
    | (?P<raw>[rR](?:'[^']*(?:'|\Z)|"[^"]*(?:"|\Z)))
    | (?P<string>'(?:[^'\\]|\\.|'')*(?:'|\Z)|"(?:[^"\\]|\\.|"")*(?:"|\Z))
    | `(?P<quoted>(?:[^`]|``)+)`
    | (?P<word>[^\W\d]\w*)
    | (?P<pipe>\|>)
    | (?P<mark>[(),.])
    | (?P<other>\d[\w.]*|\S)
    """,
    re.VERBOSE | re.DOTALL,
)
# After these keywords no comma of the same level is followed by a table any more.
_ENDS = {
    *("WHERE", "GROUP", "HAVING", "ORDER", "LIMIT", "OFFSET", "WINDOW", "QUALIFY"),
    *("CLUSTER", "DISTRIBUTE", "SORT", "UNION", "EXCEPT", "MINUS", "INTERSECT"),
    *("SELECT", "VALUES", "VIEW", "SET", "|>"),
}
# Keywords that begin a query in the place of a table.
_BEGINS = {"SELECT", "VALUES", "WITH"}
# Keywords between FROM or JOIN and the table.
_PASSED = {"LATERAL", "STREAM", "ONLY"}
# Reserved names for sources and steps, because a query with them could not be parsed.
RESERVED = {
    *(_ENDS - {"|>"}),
    *_PASSED,
    *("FROM", "JOIN", "TABLE", "DISTINCT", "AS", "ON", "USING", "WITH", "AND", "OR", "NOT", "NULL"),
    *("CROSS", "FULL", "INNER", "LEFT", "NATURAL", "RIGHT", "SEMI", "ANTI", "CASE", "WHEN", "THEN"),
    *("ELSE", "END", "IN", "IS", "BY", "TRUE", "FALSE", "ALL", "ANY", "EXISTS", "FOR", "CREATE"),
    *("PIVOT", "UNPIVOT"),
}
# Functions with a FROM between their arguments.
_FROM_INSIDE = {"EXTRACT", "TRIM", "SUBSTRING", "SUBSTR", "OVERLAY", "POSITION"}


@dataclass(frozen=True, slots=True)
class _Token:
    """A token of SQL. `word` is its keyword; empty for a name in backquotes."""

    text: str
    word: str
    is_name: bool


@dataclass(slots=True)
class _Level:
    """The state inside a pair of parentheses: a list of tables, and a function's own FROM."""

    in_tables: bool = False
    own_from: bool = False


@lru_cache(maxsize=1024)
def tables_read(sql: str) -> tuple[str, ...]:
    """The tables a query reads, as written there, without duplicates, in order of appearance."""
    tokens = _tokens(sql)
    given = _names_given(tokens)
    names = _table_names(tokens)
    # A WITH named like a table can read that table, within its own parentheses.
    read = [name for at, name in names if name.lower() not in given or at < given[name.lower()]]
    return tuple({name.lower(): name for name in reversed(read)}.values())[::-1]


def begins_query(sql: str) -> bool:
    """Whether a text is a query and not another statement, which Spark would run at once."""
    tokens = [token.word for token in _tokens(sql) if token.word != "("]
    return bool(tokens) and tokens[0] in ("SELECT", "WITH", "FROM", "VALUES", "TABLE")


def _tokens(sql: str) -> list[_Token]:
    tokens = []
    for match in _TOKEN.finditer(sql):
        if match["comment"]:
            continue
        if match["quoted"]:
            tokens.append(_Token(match["quoted"].replace("``", "`"), "", is_name=True))
        else:
            tokens.append(_Token(match[0], match[0].upper(), is_name=bool(match["word"])))
    return tokens


def _table_names(tokens: list[_Token]) -> list[tuple[int, str]]:
    """The names in table positions, each with the index of its token."""
    levels = [_Level()]
    expected = False
    found = []
    for at, token in enumerate(tokens):
        level, word = levels[-1], token.word
        before = tokens[at - 1].word if at else ""
        if token.word == "(":
            # The parentheses of a table list contain tables, all others are separate.
            levels.append(_Level(in_tables=expected, own_from=before in _FROM_INSIDE))
        elif token.word == ")":
            if len(levels) > 1:
                levels.pop()
            expected = False
        elif token.word == ",":
            expected = level.in_tables
        elif word == "FROM":
            expected = level.in_tables = not level.own_from and before != "DISTINCT"
        elif word == "JOIN":
            expected = level.in_tables = True
        elif word == "TABLE":
            expected = True
        elif word in _BEGINS or (word in _ENDS and not expected):
            expected = level.in_tables = False
        elif expected and word not in _PASSED:
            expected = False
            after = tokens[at + 1].word if at + 1 < len(tokens) else ""
            if token.is_name and after not in (".", "("):
                found.append((at, token.text))
    return found


def _names_given(tokens: list[_Token]) -> dict[str, int]:
    """The names defined by WITH, each with the index of its closing parenthesis."""
    partners = _partners(tokens)
    given = {}
    for at, token in enumerate(tokens[:-1]):
        if token.word != "AS" or tokens[at + 1].word != "(" or at == 0:
            continue
        # Between the name and AS there can be a list of columns.
        before = partners.get(at - 1, at) - 1 if tokens[at - 1].word == ")" else at - 1
        if before >= 0 and tokens[before].is_name:
            given[tokens[before].text.lower()] = partners.get(at + 1, len(tokens))
    return given


def _partners(tokens: list[_Token]) -> dict[int, int]:
    """The matching parenthesis of each parenthesis."""
    partners: dict[int, int] = {}
    opened: list[int] = []
    for at, token in enumerate(tokens):
        if token.word == "(":
            opened.append(at)
        elif token.word == ")" and opened:
            start = opened.pop()
            partners[start], partners[at] = at, start
    return partners


# The inputs of each part of a pipeline, and the order in which parts can be made.
#
# Pure.
#
# Spark ignores the case of table names, and so does all of this.


Part = Source | Step


def inputs(part: Part) -> tuple[str, ...]:
    """The input names of a part, as written there; a source has none."""
    match part:
        case SqlStep():
            return tables_read(part.sql)
        case PythonStep():
            return part.inputs
        case DeduplicateStep():
            return (part.input,)
    return ()


def parts_by_name(pipeline: Pipeline) -> dict[str, Part]:
    """Sources and steps by name in lower case."""
    return {part.name.lower(): part for part in (*pipeline.sources, *pipeline.steps)}


def needed(pipeline: Pipeline, name: str) -> list[Part]:
    """The parts needed for the part `name`, including itself: each after its inputs."""
    made: dict[str, Part] = {}
    _add(name.lower(), parts_by_name(pipeline), made, [])
    return list(made.values())


def ordered_steps(pipeline: Pipeline) -> list[Step]:
    """All steps, each after the steps it reads."""
    made: dict[str, Part] = {}
    parts = parts_by_name(pipeline)
    for step in pipeline.steps:
        _add(step.name.lower(), parts, made, [])
    return [part for part in made.values() if isinstance(part, Step)]


def unused(pipeline: Pipeline) -> list[Part]:
    """Sources and steps that no sink needs, which are never run."""
    used = {part.name for sink in pipeline.sinks for part in needed(pipeline, sink.input)}
    return [part for part in (*pipeline.sources, *pipeline.steps) if part.name not in used]


def dead_letter_sources(pipeline: Pipeline) -> list[TopicSource]:
    """The sources read by a sink whose undecodable records go to the dead-letter topic."""
    read = {part.name for sink in pipeline.sinks for part in needed(pipeline, sink.input)}
    return [
        source
        for source in pipeline.sources
        if isinstance(source, TopicSource)
        and source.name in read
        and source.decode.format != "raw"
        and source.decode.on_error is OnError.DEAD_LETTER
    ]


def cycles(pipeline: Pipeline) -> list[list[str]]:
    """The cycles of steps that read each other, each once, as names from its first step on."""
    parts = parts_by_name(pipeline)
    found: dict[frozenset[str], list[str]] = {}
    done: set[str] = set()

    def visit(name: str, path: list[str]) -> None:
        if name in path:
            circle = path[path.index(name) :]
            found.setdefault(frozenset(circle), [parts[part].name for part in circle])
        elif name in parts and name not in done:
            for input_name in inputs(parts[name]):
                visit(input_name.lower(), [*path, name])
            done.add(name)

    for name in parts:
        visit(name, [])
    return list(found.values())


def _add(name: str, parts: dict[str, Part], made: dict[str, Part], above: list[str]) -> None:
    # Missing inputs and self-references have been refused by the checks; here the recursion only
    # has to end.
    if name not in parts or name in made or name in above:
        return
    for input_name in inputs(parts[name]):
        _add(input_name.lower(), parts, made, [*above, name])
    made[name] = parts[name]
