"""Predicates over single records: the exact meaning of a search expression.

Pure. Rule: bytes that are no JSON have no fields, and a condition on a field that is missing, or of
another type, is false. A predicate never raises because of what a record contains.
"""

import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeAlias

import orjson
import re2  # type: ignore[import-untyped]

from headrace.errors import ConfigError
from headrace.search.expressions import (
    NUMERIC_PARTS,
    AnyElement,
    ContainsText,
    Disjunction,
    Expression,
    FieldComparison,
    FieldRef,
    IsNull,
    Literal,
    MatchesPattern,
    Negation,
    RecordPart,
    Relation,
    Step,
)

# What is larger is searched as text, and not read as JSON: its objects take ten times its size.
JSON_BYTES_MAX = 16 * 1024 * 1024

Headers: TypeAlias = Sequence[tuple[str, bytes | None]]
Predicate: TypeAlias = Callable[["SearchedRecord"], bool]
_ValueTest: TypeAlias = Callable[[Any], bool]

_UNREAD: Final = object()

RELATIONS: Final[dict[Relation, Callable[[Any, Any], bool]]] = {
    Relation.EQUAL: operator.eq,
    Relation.NOT_EQUAL: operator.ne,
    Relation.LESS: operator.lt,
    Relation.LESS_OR_EQUAL: operator.le,
    Relation.GREATER: operator.gt,
    Relation.GREATER_OR_EQUAL: operator.ge,
}


class SearchedRecord:
    """The parts of a record that predicates look at. Its JSON is read when it is first needed."""

    __slots__ = (
        "_key_document",
        "_value_document",
        "headers",
        "key",
        "offset",
        "partition",
        "timestamp",
        "value",
    )

    def __init__(
        self,
        partition: int,
        offset: int,
        timestamp: int,
        key: bytes | None,
        value: bytes | None,
        headers: Headers = (),
    ) -> None:
        self.partition = partition
        self.offset = offset
        self.timestamp = timestamp
        self.key = key
        self.value = value
        self.headers = headers
        self._key_document: Any = _UNREAD
        self._value_document: Any = _UNREAD

    def key_document(self) -> Any:
        """The JSON of the key; None if it is none."""
        if self._key_document is _UNREAD:
            self._key_document = read_json(self.key)
        return self._key_document

    def value_document(self) -> Any:
        """The JSON of the value; None if it is none."""
        if self._value_document is _UNREAD:
            self._value_document = read_json(self.value)
        return self._value_document


def read_json(data: bytes | None) -> Any:
    """The JSON in bytes; None if they are no JSON, too large, or null."""
    if data is None or len(data) > JSON_BYTES_MAX:
        return None
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return None


def compile_pattern(pattern: str, *, ignore_case: bool) -> Any:
    """A regular expression for bytes in UTF-8; ConfigError if RE2 refuses it."""
    options = re2.Options()
    options.case_sensitive = not ignore_case
    options.log_errors = False
    try:
        return re2.compile(pattern.encode(), options)
    except (re2.error, UnicodeEncodeError) as error:
        reason = error.args[0].decode() if isinstance(error.args[0], bytes) else error
        raise ConfigError(
            f"the pattern {pattern!r} is not valid: {reason}; patterns are written in RE2's syntax"
        ) from None


def compile_predicate(expression: Expression) -> Predicate:
    """The predicate of an expression; ConfigError for a pattern that is not valid."""
    match expression:
        case FieldComparison():
            return _comparison(expression)
        case ContainsText(field):
            return _text_predicate(field, *_text_tests(expression))
        case MatchesPattern(field):
            return _text_predicate(field, *_text_tests(expression))
        case IsNull(field):
            return _null(field)
        case Negation(operand):
            inner = compile_predicate(operand)
            return lambda record: not inner(record)
    # Calls in a loop, because a generator costs as much as the conditions in it.
    tests = tuple(map(compile_predicate, expression.operands))
    is_any = isinstance(expression, Disjunction)

    def joined(record: SearchedRecord) -> bool:
        for test in tests:
            if test(record) is is_any:
                return is_any
        return not is_any

    return joined


def _text_tests(condition: ContainsText | MatchesPattern) -> tuple[_ValueTest, _ValueTest]:
    """The tests of a condition about text: of bytes, and of a value in JSON."""
    if isinstance(condition, ContainsText) and not condition.ignore_case:
        text, needle = condition.text, condition.text.encode()
        return lambda data: needle in data, lambda value: isinstance(value, str) and text in value
    pattern = (
        re2.escape(condition.text) if isinstance(condition, ContainsText) else condition.pattern
    )
    search = compile_pattern(pattern, ignore_case=condition.ignore_case).search
    return (
        lambda data: search(data) is not None,
        lambda value: isinstance(value, str) and search(value.encode()) is not None,
    )


def _text_predicate(field: FieldRef, in_bytes: _ValueTest, in_json: _ValueTest) -> Predicate:
    if field.path:
        return _json_predicate(field, in_json)
    if field.part is RecordPart.HEADER and not field.header:
        return lambda record: any(
            in_bytes(name.encode()) or (data is not None and in_bytes(data))
            for name, data in record.headers
        )
    return _bytes_predicate(field, in_bytes)


def _comparison(condition: FieldComparison) -> Predicate:
    field, literal = condition.field, condition.literal
    compare = RELATIONS[condition.relation]
    if field.part in NUMERIC_PARTS:
        number_of = operator.attrgetter(field.part.value)
        return lambda record: compare(number_of(record), literal)
    if not field.path and isinstance(literal, str):
        wanted = literal.encode()
        return _bytes_predicate(field, lambda data: compare(data, wanted))
    return _json_predicate(field, _json_test(condition.relation, literal))


def _json_test(relation: Relation, literal: Literal) -> _ValueTest:
    """The comparison of a value in JSON with a literal; null is missing."""
    compare = RELATIONS[relation]
    if relation is Relation.NOT_EQUAL:
        is_equal = _json_test(Relation.EQUAL, literal)
        return lambda value: value is not None and not is_equal(value)
    if isinstance(literal, bool):
        return lambda value: value is literal
    if isinstance(literal, str):
        return lambda value: isinstance(value, str) and compare(value, literal)
    # JSON's true is no number, although Python's is.
    return lambda value: (type(value) is int or type(value) is float) and compare(value, literal)


def _bytes_predicate(field: FieldRef, test: _ValueTest) -> Predicate:
    """A test of the bytes of a key, of a value, or of any header with the field's name."""
    name = field.header
    match field.part:
        case RecordPart.KEY:
            return lambda record: record.key is not None and test(record.key)
        case RecordPart.VALUE:
            return lambda record: record.value is not None and test(record.value)
    return lambda record: any(
        header == name and data is not None and test(data) for header, data in record.headers
    )


def _json_predicate(field: FieldRef, test: _ValueTest) -> Predicate:
    """A test of the values that a path leads to; it is enough that one of them passes."""
    part, name, path = field.part, field.header, field.path
    if part is RecordPart.HEADER:
        return lambda record: any(
            test(value)
            for header, data in record.headers
            if header == name
            for value in values_at(read_json(data), path)
        )
    document_of = (
        SearchedRecord.key_document if part is RecordPart.KEY else SearchedRecord.value_document
    )
    if AnyElement.STEP in path:
        return lambda record: any(map(test, values_at(document_of(record), path)))
    return lambda record: test(_value_at(document_of(record), path))


def _null(field: FieldRef) -> Predicate:
    part, name = field.part, field.header
    if field.path:
        exists = _json_predicate(field, lambda value: value is not None)
        return lambda record: not exists(record)
    match part:
        case RecordPart.KEY:
            return lambda record: record.key is None
        case RecordPart.VALUE:
            return lambda record: record.value is None
    if not name:
        return lambda record: not record.headers
    return lambda record: (
        not any(header == name and data is not None for header, data in record.headers)
    )


def _value_at(document: Any, path: tuple[Step, ...]) -> Any:
    """The value that a path without `[*]` leads to, or None."""
    for step in path:
        if type(document) is dict and type(step) is str:
            document = document.get(step)
        elif type(document) is list and type(step) is int and step < len(document):
            document = document[step]
        else:
            return None
    return document


def values_at(document: Any, path: tuple[Step, ...]) -> Iterator[Any]:
    """The values that a path leads to, several with `[*]`."""
    if AnyElement.STEP not in path:
        yield _value_at(document, path)
        return
    index = path.index(AnyElement.STEP)
    elements = _value_at(document, path[:index])
    if isinstance(elements, list):
        for element in elements:
            yield from values_at(element, path[index + 1 :])
