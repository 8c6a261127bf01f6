"""Search expressions: their syntax tree, and the parser that makes it from text.

Pure. Rule: length, depth and the number of conditions are bounded, so that nothing a user types
costs more than a bounded amount of memory, of stack, or of time per byte that is searched.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from math import isfinite
from typing import Final, NamedTuple, NoReturn, TypeAlias

from headrace.errors import ConfigError

EXPRESSION_LENGTH_MAX = 4096
DEPTH_MAX = 32
CONDITIONS_MAX = 64
PATH_STEPS_MAX = 32
PATTERN_LENGTH_MAX = 1000
_INT64_MAX = 2**63 - 1


class ExpressionError(ConfigError):
    """A search expression that is not valid, with the position of the mistake in its text."""

    def __init__(self, problem: str, position: int) -> None:
        super().__init__(f"search expression, character {position + 1}: {problem}")
        self.problem = problem
        self.position = position


class RecordPart(Enum):
    """The part of a record that a condition is about."""

    KEY = "key"
    VALUE = "value"
    HEADER = "header"
    PARTITION = "partition"
    OFFSET = "offset"
    TIMESTAMP = "timestamp"


NUMERIC_PARTS: Final = frozenset((RecordPart.PARTITION, RecordPart.OFFSET, RecordPart.TIMESTAMP))


class AnyElement(Enum):
    """The step `[*]` of a path: every element of an array."""

    STEP = "*"


Step: TypeAlias = str | int | AnyElement
Literal: TypeAlias = str | int | float | bool


@dataclass(frozen=True, slots=True)
class FieldRef:
    """A part of a record, or what a path leads to in its JSON.

    `header` is the name of a header; empty: any header. A path of a header is in its value.
    """

    part: RecordPart
    header: str = ""
    path: tuple[Step, ...] = ()


class Relation(Enum):
    """The comparisons of a field with a literal."""

    EQUAL = "="
    NOT_EQUAL = "!="
    LESS = "<"
    LESS_OR_EQUAL = "<="
    GREATER = ">"
    GREATER_OR_EQUAL = ">="


@dataclass(frozen=True, slots=True)
class FieldComparison:
    """A field compared with a literal of its type; false for a missing field, even with `!=`."""

    field: FieldRef
    relation: Relation
    literal: Literal


@dataclass(frozen=True, slots=True)
class ContainsText:
    """A field whose bytes, or whose JSON string, contain a text."""

    field: FieldRef
    text: str
    ignore_case: bool = False


@dataclass(frozen=True, slots=True)
class MatchesPattern:
    """A field whose bytes, or whose JSON string, a regular expression of RE2 matches somewhere."""

    field: FieldRef
    pattern: str
    ignore_case: bool = False


@dataclass(frozen=True, slots=True)
class IsNull:
    """A field that is null or missing: a tombstone's value, JSON's null, no such header."""

    field: FieldRef


@dataclass(frozen=True, slots=True)
class Negation:
    """Records that a condition does not select."""

    operand: "Expression"


@dataclass(frozen=True, slots=True)
class Conjunction:
    """Records that all conditions select; all records if there are none."""

    operands: tuple["Expression", ...]


@dataclass(frozen=True, slots=True)
class Disjunction:
    """Records that at least one condition selects."""

    operands: tuple["Expression", ...]


Condition: TypeAlias = FieldComparison | ContainsText | MatchesPattern | IsNull
Expression: TypeAlias = Condition | Negation | Conjunction | Disjunction

ALL_RECORDS = Conjunction(())


def parse_expression(text: str, *, ignore_case: bool = False) -> Expression:
    """The expression that a text stands for; ExpressionError with the position of a mistake.

    An empty text selects all records. `ignore_case` is about `contains`, `matches` and bare texts.

    >>> parse_expression("key = 'a' and not value.n > 3").operands[0]
    FieldComparison(field=FieldRef(part=<RecordPart.KEY: 'key'>, header='', path=()), \
relation=<Relation.EQUAL: '='>, literal='a')
    """
    if len(text) > EXPRESSION_LENGTH_MAX:
        raise ExpressionError(
            f"it has {len(text):,} characters, and at most {EXPRESSION_LENGTH_MAX:,} are allowed",
            EXPRESSION_LENGTH_MAX,
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ExpressionError("it is no valid Unicode text here", error.start) from None
    if not text.strip():
        return ALL_RECORDS
    return _ExpressionParser(text, ignore_case).parse()


class _TokenKind(Enum):
    WORD = "a word"
    TEXT = "a text"
    NUMBER = "a number"
    SYMBOL = "a symbol"
    END = "the end"


class _ExpressionToken(NamedTuple):
    kind: _TokenKind
    text: str
    position: int
    # Whether white space, or nothing, is before it: `value .a` is no path.
    is_apart: bool = True


_SPACE = re.compile(r"\s*")
_WORD = re.compile(r"[^\W\d]\w*(?:-\w+)*")
_NUMBER = re.compile(r"-?\d{1,40}(?:\.\d{1,40})?(?:[eE][+-]?\d{1,4})?(?![\w])")
_SYMBOL = re.compile(r"!=|<>|<=|>=|==|&&|\|\||[=<>()\[\].,*!]")
_TEXT = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"", re.DOTALL)
_ESCAPED = re.compile(r"\\(u[0-9A-Fa-f]{4}|.)", re.DOTALL)
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "0": "\0", "\\": "\\", "'": "'", '"': '"', "/": "/"}

_SYNONYMS = {"==": "=", "<>": "!=", "&&": "and", "||": "or", "!": "not"}
_CONNECTIVES = frozenset(("and", "or", "not"))
_VERBS = frozenset(("contains", "matches", "in", "is"))
_RELATIONS = {relation.value: relation for relation in Relation}
_PARTS = {part.value: part for part in RecordPart} | {"headers": RecordPart.HEADER}
_CONSTANTS: dict[str, bool | None] = {"true": True, "false": False, "null": None}


def _tokens(text: str) -> list[_ExpressionToken]:
    found: list[_ExpressionToken] = []
    end = 0
    while True:
        match = _SPACE.match(text, end)
        assert match is not None
        start, is_apart = match.end(), match.end() > end or not found
        if start == len(text):
            found.append(_ExpressionToken(_TokenKind.END, "", start))
            return found
        kind, token_text, end = _next_token(text, start)
        found.append(_ExpressionToken(kind, token_text, start, is_apart))


def _next_token(text: str, start: int) -> tuple[_TokenKind, str, int]:
    """The kind, the meaning and the end of the token at a position."""
    if match := _TEXT.match(text, start):
        return _TokenKind.TEXT, _unquoted(match[0], start), match.end()
    if text[start] in "'\"":
        raise ExpressionError(f"the text has no closing {text[start]}", start)
    if match := _NUMBER.match(text, start):
        return _TokenKind.NUMBER, match[0], match.end()
    if match := _WORD.match(text, start):
        return _TokenKind.WORD, match[0], match.end()
    if match := _SYMBOL.match(text, start):
        symbol = _SYNONYMS.get(match[0], match[0])
        kind = _TokenKind.WORD if symbol in _CONNECTIVES else _TokenKind.SYMBOL
        return kind, symbol, match.end()
    raise ExpressionError(f"{text[start]!r} has no meaning here; put quotes around a text", start)


def _unquoted(quoted: str, position: int) -> str:
    def character(match: re.Match[str]) -> str:
        escape = match[1]
        if len(escape) == 5:
            return chr(int(escape[1:], 16))
        if escape not in _ESCAPES:
            raise ExpressionError(
                f"\\{escape} is no escape; a backslash in a text is written \\\\", position
            )
        return _ESCAPES[escape]

    text = _ESCAPED.sub(character, quoted[1:-1])
    try:
        # Two escapes may stand for a character beyond the first 65,536.
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
    except UnicodeDecodeError:
        raise ExpressionError("the text has half of a surrogate pair", position) from None


class _ExpressionParser:
    """A parser by recursive descent, over the tokens of one expression."""

    def __init__(self, text: str, ignore_case: bool) -> None:
        self._tokens = _tokens(text)
        self._index = 0
        self._depth = 0
        self._conditions = 0
        self._ignore_case = ignore_case

    def parse(self) -> Expression:
        expression = self._disjunction()
        token = self._token
        if token.kind is not _TokenKind.END:
            self._fail(
                f"{token.text!r} is not expected; join conditions by `and` or `or`, and put quotes"
                " around a text with spaces"
            )
        return expression

    @property
    def _token(self) -> _ExpressionToken:
        return self._tokens[self._index]

    def _fail(self, problem: str, token: _ExpressionToken | None = None) -> NoReturn:
        raise ExpressionError(problem, (token or self._token).position)

    def _advance(self) -> _ExpressionToken:
        token = self._token
        if token.kind is not _TokenKind.END:
            self._index += 1
        return token

    def _take_word(self, word: str) -> bool:
        token = self._token
        if token.kind is _TokenKind.WORD and token.text.lower() == word:
            self._index += 1
            return True
        return False

    def _take_symbol(self, symbol: str) -> bool:
        token = self._token
        if token.kind is _TokenKind.SYMBOL and token.text == symbol:
            self._index += 1
            return True
        return False

    def _expect_symbol(self, symbol: str) -> None:
        if not self._take_symbol(symbol):
            self._fail(f"{symbol!r} is expected here")

    def _disjunction(self) -> Expression:
        return self._joined("or", self._conjunction, Disjunction)

    def _conjunction(self) -> Expression:
        return self._joined("and", self._negation, Conjunction)

    def _joined(
        self,
        word: str,
        operand: Callable[[], Expression],
        join: Callable[[tuple[Expression, ...]], Expression],
    ) -> Expression:
        operands = [operand()]
        while self._take_word(word):
            operands.append(operand())
        return operands[0] if len(operands) == 1 else join(tuple(operands))

    def _negation(self) -> Expression:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            self._fail(f"it is nested deeper than {DEPTH_MAX} levels")
        try:
            if self._take_word("not"):
                return Negation(self._negation())
            if self._take_symbol("("):
                inner = self._disjunction()
                self._expect_symbol(")")
                return inner
            return self._condition()
        finally:
            self._depth -= 1

    def _count(self, conditions: int = 1) -> None:
        self._conditions += conditions
        if self._conditions > CONDITIONS_MAX:
            self._fail(f"it has more than {CONDITIONS_MAX} conditions")

    def _condition(self) -> Expression:
        token = self._token
        if token.kind in (_TokenKind.END, _TokenKind.SYMBOL) or (
            token.kind is _TokenKind.WORD and token.text.lower() in _CONNECTIVES | _VERBS
        ):
            self._fail("a condition is expected here: a field with a comparison, or a text")
        following = self._tokens[self._index + 1]
        is_field = token.kind is _TokenKind.WORD and token.text.lower() in _PARTS
        if not is_field or not _continues(following):
            if token.kind is _TokenKind.WORD and _continues(following):
                self._fail(f"{token.text!r} is no field; the fields are {', '.join(_PARTS)}")
            self._advance()
            return self._text_anywhere(token)
        return self._field_condition()

    def _text_anywhere(self, token: _ExpressionToken) -> Expression:
        if not token.text:
            self._fail("the text to search for is empty", token)
        self._count(3)
        return Disjunction(
            tuple(
                ContainsText(FieldRef(part), token.text, self._ignore_case)
                for part in (RecordPart.VALUE, RecordPart.KEY, RecordPart.HEADER)
            )
        )

    def _field_condition(self) -> Expression:
        start = self._token
        field = self._field()
        token = self._token
        if token.kind is _TokenKind.SYMBOL and token.text in _RELATIONS:
            self._advance()
            return self._comparison(field, _RELATIONS[token.text], start)
        is_negated = self._take_word("not")
        if self._take_word("contains"):
            self._check_text(field, start)
            condition: Expression = self._contains(field)
        elif self._take_word("matches"):
            self._check_text(field, start)
            condition = self._matches(field)
        elif self._take_word("in"):
            condition = self._membership(field, start)
        elif not is_negated and self._take_word("is"):
            is_negated = self._take_word("not")
            if not self._take_word("null"):
                self._fail("`null` or `not null` is expected after `is`")
            condition = self._null(field, start)
        else:
            self._fail(
                "a comparison is expected here: = != < <= > >=, contains, matches, in, is null"
            )
        return Negation(condition) if is_negated else condition

    def _contains(self, field: FieldRef) -> Expression:
        self._count()
        return ContainsText(field, self._text("contains"), self._ignore_case)

    def _matches(self, field: FieldRef) -> Expression:
        self._count()
        pattern = self._text("matches")
        if len(pattern) > PATTERN_LENGTH_MAX:
            self._fail(f"the pattern has more than {PATTERN_LENGTH_MAX} characters")
        return MatchesPattern(field, pattern, self._ignore_case)

    def _text(self, verb: str) -> str:
        token = self._advance()
        if token.kind is _TokenKind.END or token.kind is _TokenKind.SYMBOL:
            self._fail(f"a text is expected after `{verb}`", token)
        return token.text

    def _membership(self, field: FieldRef, start: _ExpressionToken) -> Expression:
        self._expect_symbol("(")
        operands = [self._comparison(field, Relation.EQUAL, start)]
        while self._take_symbol(","):
            operands.append(self._comparison(field, Relation.EQUAL, start))
        self._expect_symbol(")")
        return Disjunction(tuple(operands))

    def _null(self, field: FieldRef, start: _ExpressionToken) -> Expression:
        self._count()
        if field.part in NUMERIC_PARTS:
            self._fail(f"{field.part.value} is never null", start)
        return IsNull(field)

    def _comparison(
        self, field: FieldRef, relation: Relation, start: _ExpressionToken
    ) -> Expression:
        self._count()
        token = self._token
        literal = self._literal()
        if field.part in NUMERIC_PARTS:
            return FieldComparison(field, relation, _whole_number(field, literal, token))
        if field.part is RecordPart.HEADER and not field.header:
            self._fail("name the header to compare: header.name or header['name']", start)
        if literal is None:
            if relation in (Relation.EQUAL, Relation.NOT_EQUAL):
                null = IsNull(field)
                return null if relation is Relation.EQUAL else Negation(null)
            self._fail("null can only be compared by = and !=", token)
        if isinstance(literal, bool) and relation not in (Relation.EQUAL, Relation.NOT_EQUAL):
            self._fail("true and false can only be compared by = and !=", token)
        return FieldComparison(field, relation, literal)

    def _literal(self) -> Literal | None:
        token = self._advance()
        if token.kind is _TokenKind.TEXT:
            return token.text
        if token.kind is _TokenKind.NUMBER:
            return self._number(token)
        if token.kind is _TokenKind.WORD and token.text.lower() in _CONSTANTS:
            return _CONSTANTS[token.text.lower()]
        if token.kind is _TokenKind.WORD:
            self._fail(f"put quotes around a text: '{token.text}'", token)
        return self._fail("a number, a text in quotes, true, false or null is expected here", token)

    def _number(self, token: _ExpressionToken) -> int | float:
        if not set(token.text) & set(".eE"):
            return int(token.text)
        number = float(token.text)
        if not isfinite(number):
            self._fail(f"{token.text} is too large for a number", token)
        return number

    def _check_text(self, field: FieldRef, start: _ExpressionToken) -> None:
        if field.part in NUMERIC_PARTS:
            self._fail(f"{field.part.value} is a number; compare it by = != < <= > >=", start)

    def _field(self) -> FieldRef:
        start = self._advance()
        part = _PARTS[start.text.lower()]
        steps = self._path()
        if part in NUMERIC_PARTS:
            if steps:
                self._fail(f"{part.value} is a number and has no fields", start)
            return FieldRef(part)
        if part is not RecordPart.HEADER or not steps:
            return FieldRef(part, "", tuple(steps))
        name = steps[0]
        if not isinstance(name, str) or not name:
            self._fail("name the header: header.name or header['name']", start)
        return FieldRef(part, name, tuple(steps[1:]))

    def _path(self) -> list[Step]:
        steps: list[Step] = []
        while True:
            token = self._token
            if token.is_apart or token.kind is not _TokenKind.SYMBOL:
                return steps
            if self._take_symbol("."):
                steps.append(self._name_step())
            elif self._take_symbol("["):
                steps.append(self._bracket_step())
                self._expect_symbol("]")
            else:
                return steps
            if len(steps) > PATH_STEPS_MAX:
                self._fail(f"the path has more than {PATH_STEPS_MAX} steps")

    def _name_step(self) -> str:
        token = self._advance()
        if token.kind is not _TokenKind.WORD or token.is_apart:
            self._fail("a name is expected after the dot; write others as ['a name']", token)
        return token.text

    def _bracket_step(self) -> Step:
        token = self._advance()
        if token.kind is _TokenKind.TEXT:
            return token.text
        if token.kind is _TokenKind.SYMBOL and token.text == "*":
            return AnyElement.STEP
        if token.kind is _TokenKind.NUMBER and token.text.isdigit() and len(token.text) <= 9:
            return int(token.text)
        return self._fail("an index, a name in quotes, or * is expected here", token)


def _continues(token: _ExpressionToken) -> bool:
    """Whether a token after a field's name makes a condition of it, or a path."""
    if token.kind is _TokenKind.SYMBOL:
        return token.text in _RELATIONS or (not token.is_apart and token.text in (".", "["))
    return token.kind is _TokenKind.WORD and token.text.lower() in _VERBS | {"not"}


def _whole_number(field: FieldRef, literal: Literal | None, token: _ExpressionToken) -> int:
    """A literal for a numeric part of a record; a time may be ISO 8601 text."""
    if field.part is RecordPart.TIMESTAMP and isinstance(literal, str):
        return _milliseconds(literal, token)
    if isinstance(literal, int) and not isinstance(literal, bool):
        # Columns have 64 bits: what is beyond compares like the bound.
        return max(min(literal, _INT64_MAX), -_INT64_MAX)
    wanted = "milliseconds or a time such as '2026-01-31T12:00:00Z'"
    raise ExpressionError(
        f"{field.part.value} is compared with "
        f"{wanted if field.part is RecordPart.TIMESTAMP else 'a whole number'}",
        token.position,
    )


def _milliseconds(text: str, token: _ExpressionToken) -> int:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ExpressionError(
            f"{text!r} is no time; write it as '2026-01-31T12:00:00Z'", token.position
        ) from None
    if moment.tzinfo is None:
        raise ExpressionError(f"the time {text!r} needs a zone: end it in Z", token.position)
    since = moment.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1000 + since.microseconds // 1000
