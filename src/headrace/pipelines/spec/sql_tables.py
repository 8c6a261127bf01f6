"""Which tables a query reads, found without Spark by where their names stand. Pure.

Rule: a name is a table's where SQL can have nothing else: after FROM, JOIN and TABLE, and after a
comma between such. Names with a dot belong to Spark's catalogs, and names before a parenthesis are
functions; both are left out, and so are the names that a WITH gives.
"""

import re
from dataclasses import dataclass
from functools import lru_cache

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
# After these no comma of the same level is followed by a table any more.
_ENDS = {
    *("WHERE", "GROUP", "HAVING", "ORDER", "LIMIT", "OFFSET", "WINDOW", "QUALIFY"),
    *("CLUSTER", "DISTRIBUTE", "SORT", "UNION", "EXCEPT", "MINUS", "INTERSECT"),
    *("SELECT", "VALUES", "VIEW", "SET", "|>"),
}
# What may stand in the place of a table and is a query.
_BEGINS = {"SELECT", "VALUES", "WITH"}
# What may stand between FROM or JOIN and the table.
_PASSED = {"LATERAL", "STREAM", "ONLY"}
# Names that a source or a step cannot have, for a query could not be read with them.
RESERVED = {
    *(_ENDS - {"|>"}),
    *_PASSED,
    *("FROM", "JOIN", "TABLE", "DISTINCT", "AS", "ON", "USING", "WITH", "AND", "OR", "NOT", "NULL"),
    *("CROSS", "FULL", "INNER", "LEFT", "NATURAL", "RIGHT", "SEMI", "ANTI", "CASE", "WHEN", "THEN"),
    *("ELSE", "END", "IN", "IS", "BY", "TRUE", "FALSE", "ALL", "ANY", "EXISTS", "FOR", "CREATE"),
    *("PIVOT", "UNPIVOT"),
}
# Functions with a FROM of their own between their arguments.
_FROM_INSIDE = {"EXTRACT", "TRIM", "SUBSTRING", "SUBSTR", "OVERLAY", "POSITION"}


@dataclass(frozen=True, slots=True)
class _Token:
    """`word` is what the language takes it for; nothing, if it is a name in backquotes."""

    text: str
    word: str
    is_name: bool


@dataclass(slots=True)
class _Level:
    """Inside one pair of parentheses: is this a list of tables, and has FROM a meaning here?"""

    in_tables: bool = False
    own_from: bool = False


@lru_cache(maxsize=1024)
def tables_read(sql: str) -> tuple[str, ...]:
    """The tables a query reads, as they are written there, each once, in order of appearance."""
    tokens = _tokens(sql)
    given = _names_given(tokens)
    names = _table_names(tokens)
    # A WITH that is called like a table can read that table, within its own parentheses.
    read = [name for at, name in names if name.lower() not in given or at < given[name.lower()]]
    return tuple({name.lower(): name for name in reversed(read)}.values())[::-1]


def begins_query(sql: str) -> bool:
    """Whether a text is a query and no other statement, which Spark would run at once."""
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
    """The names in the places of tables, with where they stand."""
    levels = [_Level()]
    expected = False
    found = []
    for at, token in enumerate(tokens):
        level, word = levels[-1], token.word
        before = tokens[at - 1].word if at else ""
        if token.word == "(":
            # The parentheses of a table list are tables, all others are a matter of their own.
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
    """The names that WITH gives, each with where its parentheses end."""
    partners = _partners(tokens)
    given = {}
    for at, token in enumerate(tokens[:-1]):
        if token.word != "AS" or tokens[at + 1].word != "(" or at == 0:
            continue
        # Between the name and AS there can be the names of its columns.
        before = partners.get(at - 1, at) - 1 if tokens[at - 1].word == ")" else at - 1
        if before >= 0 and tokens[before].is_name:
            given[tokens[before].text.lower()] = partners.get(at + 1, len(tokens))
    return given


def _partners(tokens: list[_Token]) -> dict[int, int]:
    """Each parenthesis with the one it belongs to."""
    partners: dict[int, int] = {}
    opened: list[int] = []
    for at, token in enumerate(tokens):
        if token.word == "(":
            opened.append(at)
        elif token.word == ")" and opened:
            start = opened.pop()
            partners[start], partners[at] = at, start
    return partners
