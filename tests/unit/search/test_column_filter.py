"""Search expressions on columns, compared with an evaluation of each record by itself."""

import json
import re
from math import isfinite
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.client.consumer.arrow_columns import arrow_schema
from headrace.errors import ConfigError
from headrace.search.column_filter import ColumnFilter
from headrace.search.expressions import (
    AnyElement,
    Conjunction,
    ContainsText,
    Disjunction,
    FieldComparison,
    FieldRef,
    IsNull,
    MatchesPattern,
    Negation,
    RecordPart,
    Relation,
    parse_expression,
)


def batch_of(rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    """Rows of (partition, offset, timestamp, key, value, headers) as `poll_arrow` returns them."""
    documents = [
        {
            "topic": "orders",
            "partition": partition,
            "offset": offset,
            "timestamp": timestamp,
            "key": key,
            "value": value,
            "headers": [{"key": name, "value": data} for name, data in headers],
        }
        for partition, offset, timestamp, key, value, headers in rows
    ]
    return pa.RecordBatch.from_pylist(documents, schema=arrow_schema())


def selected(expression: str, *values: bytes | None, ignore_case: bool = False) -> list[int]:
    """The numbers of the values that an expression selects."""
    batch = batch_of([(0, n, 1000, None, value, []) for n, value in enumerate(values)])
    parsed = parse_expression(expression, ignore_case=ignore_case)
    return ColumnFilter(parsed).matching_rows(batch)


# The naive evaluation: Python's json and re, one record at a time.


def json_of(data: bytes | None) -> Any:
    def refuse(name: str) -> Any:
        raise ValueError(name)

    def number(text: str) -> float:
        return float(text) if isfinite(float(text)) else refuse(text)

    try:
        return (
            None
            if data is None
            else json.loads(data.decode(), parse_constant=refuse, parse_float=number)
        )
    except (ValueError, RecursionError):
        return None


def walk(document: Any, path: tuple[Any, ...]) -> list[Any]:
    found = [document]
    for step in path:
        following = []
        for value in found:
            if step is AnyElement.STEP:
                following += value if isinstance(value, list) else []
            elif isinstance(value, dict):
                following.append(value.get(step))
            elif isinstance(value, list) and isinstance(step, int):
                following += value[step : step + 1]
        found = following
    return [value for value in found if value is not None]


def kind(value: Any) -> str:
    return "number" if type(value) in (int, float) else type(value).__name__


def related(relation: Relation, value: Any, literal: Any) -> bool:
    if relation is Relation.NOT_EQUAL:
        return kind(value) != kind(literal) or value != literal
    if kind(value) != kind(literal):
        return False
    outcomes = {"=": value == literal, "<": value < literal, ">": value > literal}
    return any(outcomes[sign] for sign in relation.value)


def cells_of(field: FieldRef, row: tuple[Any, ...]) -> list[bytes]:
    key, value, headers = row[3:]
    if field.part is RecordPart.HEADER and not field.header:
        texts = [part for name, data in headers for part in (name.encode(), data)]
    elif field.part is RecordPart.HEADER:
        texts = [data for name, data in headers if name == field.header]
    else:
        texts = [key if field.part is RecordPart.KEY else value]
    return [text for text in texts if text is not None]


def holds(expression: Any, row: tuple[Any, ...]) -> bool:
    match expression:
        case Conjunction(operands):
            return all(holds(operand, row) for operand in operands)
        case Disjunction(operands):
            return any(holds(operand, row) for operand in operands)
        case Negation(operand):
            return not holds(operand, row)
    field = expression.field
    numbers = {
        RecordPart.PARTITION: row[0],
        RecordPart.OFFSET: row[1],
        RecordPart.TIMESTAMP: row[2],
    }
    if field.part in numbers:
        return related(expression.relation, numbers[field.part], expression.literal)
    cells: list[Any] = cells_of(field, row)
    in_json = bool(field.path) or (
        isinstance(expression, FieldComparison) and not isinstance(expression.literal, str)
    )
    if in_json:
        cells = [value for cell in cells for value in walk(json_of(cell), field.path)]
    match expression:
        case IsNull():
            return not cells
        case FieldComparison(_, relation, literal):
            wanted = literal if in_json else str(literal).encode()
            return any(related(relation, cell, wanted) for cell in cells)
        case ContainsText(_, text, ignore_case):
            pattern = re.escape(text)
        case MatchesPattern(_, pattern, ignore_case):
            pass
    flags = re.IGNORECASE if ignore_case else 0
    texts = [
        cell.decode(errors="surrogateescape") if isinstance(cell, bytes) else cell
        for cell in cells
        if isinstance(cell, bytes | str)
    ]
    return any(re.search(pattern, text, flags) for text in texts)


NAMES = ("a", "b", 'q"')
TEXTS = st.sampled_from(["", "x", "X", "Ärger", "ä", 'say "q"', "7", "\\", "ab", "true"])
NUMBERS = st.sampled_from([0, 7, -7, 7.0, 0.5, 70, 10**9, 2**53 + 1, 1e300])
SCALARS = TEXTS | NUMBERS | st.sampled_from([None, True, False])
DOCUMENTS = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=2)
    ),
    max_leaves=4,
)
JSON = st.builds(
    lambda document, ascii_only: json.dumps(document, ensure_ascii=ascii_only).encode(),
    DOCUMENTS,
    st.booleans(),
)
ODD = st.sampled_from(
    [
        b"",
        b"{",
        b"NaN",
        b'{"a": NaN}',
        b"\xff\xfeX",
        b"7.0",
        b"70e-1",
        b"6.99999999999999999999",
        b'{"a":70E-1}',
        b'{"\\u0061": "\\u0058"}',
        b'{"a":1,"a":7}',
        b"\x1b[31mx\x00x",
        "\u202eX".encode(),
        b"[" * 2000 + b"]" * 2000,
    ]
)
BYTES = st.none() | JSON | ODD
HEADERS = st.lists(st.tuples(st.sampled_from(NAMES), BYTES), max_size=2)
ROWS = st.lists(
    st.tuples(
        st.integers(0, 2), st.integers(0, 5), st.sampled_from([-1, 0, 1000]), BYTES, BYTES, HEADERS
    ),
    min_size=1,
    max_size=6,
)
STEPS = st.sampled_from([*NAMES, 0, 1, AnyElement.STEP])
PATHS = st.lists(STEPS, max_size=3).map(tuple)
FIELDS = st.builds(
    FieldRef, st.sampled_from([RecordPart.KEY, RecordPart.VALUE]), path=PATHS
) | st.builds(FieldRef, st.just(RecordPart.HEADER), st.sampled_from(NAMES), PATHS)
SEARCHED = FIELDS | st.just(FieldRef(RecordPart.HEADER))
RELATIONS = st.sampled_from(list(Relation))
CONDITIONS = (
    st.builds(FieldComparison, FIELDS, RELATIONS, TEXTS | NUMBERS)
    | st.builds(
        FieldComparison,
        FIELDS,
        st.sampled_from([Relation.EQUAL, Relation.NOT_EQUAL]),
        st.booleans(),
    )
    | st.builds(
        FieldComparison,
        st.builds(
            FieldRef,
            st.sampled_from([RecordPart.PARTITION, RecordPart.OFFSET, RecordPart.TIMESTAMP]),
        ),
        RELATIONS,
        st.sampled_from([0, 1, 1000, 2**62]),
    )
    | st.builds(ContainsText, SEARCHED, TEXTS.filter(bool), st.booleans())
    | st.builds(
        MatchesPattern, SEARCHED, st.sampled_from(["^x", "7$", "[xy]", "a|b"]), st.booleans()
    )
    | st.builds(IsNull, SEARCHED)
)
EXPRESSIONS = st.recursive(
    CONDITIONS,
    lambda inner: (
        st.builds(Negation, inner)
        | st.builds(Conjunction, st.lists(inner, max_size=3).map(tuple))
        | st.builds(Disjunction, st.lists(inner, max_size=3).map(tuple))
    ),
    max_leaves=5,
)


@given(expression=EXPRESSIONS, rows=ROWS)
@settings(max_examples=400, deadline=None)
@example(
    expression=FieldComparison(FieldRef(RecordPart.VALUE, path=("a",)), Relation.EQUAL, 7),
    rows=[(0, 0, 0, None, b'{"a":70e-1}', []), (0, 1, 0, None, b'{"\\u0061":7}', [])],
)
@example(
    expression=FieldComparison(FieldRef(RecordPart.VALUE), Relation.EQUAL, 7),
    rows=[(0, 0, 0, None, b"6.99999999999999999999", [])],
)
def test_columns_select_what_an_evaluation_of_each_record_selects(
    expression: Any, rows: list[tuple[Any, ...]]
) -> None:
    expected = [number for number, row in enumerate(rows) if holds(expression, row)]
    assert ColumnFilter(expression).matching_rows(batch_of(rows)) == expected


NUMBER_TEXTS = st.sampled_from(
    ["0", "-0", "7", "7.0", "70e-1", "6.99999999999999999999", "-7", "8", "1e999", "0.1", "\"7\"",
     "9007199254740992", "9007199254740993", "9007199254740993.0", "1e-400", "true", "null", "07"]
)  # fmt: skip
NUMBER_DOCUMENTS = st.builds(
    lambda template, first, second: template.replace("N", first).replace("M", second).encode(),
    st.sampled_from(
        [
            '{"a":N}',
            '{"a" : N , "b":M}',
            '{"b":{"a":N},"a":M}',
            '{"b":"a","a":N}',
            '{"a":N,"a":M}',
            '{"\\u0061":N,"b":"\\""}',
            '{"b":{"a":N}}',
            '[{"a":N}]',
        ]
    ),
    NUMBER_TEXTS,
    NUMBER_TEXTS,
)


@given(
    relation=RELATIONS,
    literal=st.sampled_from([0, 7, 7.0, -7, 0.1, 2**53, 2**53 + 1, 10**30]),
    documents=st.lists(NUMBER_DOCUMENTS, min_size=4, max_size=20),
)
@settings(max_examples=300, deadline=None)
def test_a_search_for_numbers_before_json_is_read_loses_none(
    relation: Relation, literal: float, documents: list[bytes]
) -> None:
    condition = FieldComparison(FieldRef(RecordPart.VALUE, path=("a",)), relation, literal)
    rows: list[tuple[Any, ...]] = [
        (0, number, 0, None, document, []) for number, document in enumerate(documents)
    ]
    expected = [number for number, row in enumerate(rows) if holds(condition, row)]
    assert ColumnFilter(condition).matching_rows(batch_of(rows)) == expected


def test_fields_in_json_are_compared_by_their_type() -> None:
    values = [b'{"id": 7}', b'{"id": "7"}', b'{"id": 7.0}', b'{"id": null}', b"{}", b'{"id": true}']
    assert selected("value.id = 7", *values) == [0, 2]
    assert selected("value.id = '7'", *values) == [1]
    assert selected("value.id != 7", *values) == [1, 5]
    assert selected("not value.id = 7", *values) == [1, 3, 4, 5]
    assert selected("value.id is null", *values) == [3, 4]
    assert selected("value.id >= 1", *values) == [0, 2]


def test_hostile_values_are_searched_and_harm_nothing() -> None:
    deep = b"[" * 500_000 + b"]" * 500_000
    values = [deep, None, b"\xff\x00needle", b"x" * 1_000_000 + b"needle", b'{"a":' * 900 + b"1"]
    assert selected("needle", *values) == [2, 3]
    assert selected("value.a = 1 or value is null", *values) == [1]
    # A pattern that takes a backtracking engine for ever.
    assert selected("value matches '(x+x+)+y'", *values) == []


def test_case_is_ignored_beyond_ascii_if_asked() -> None:
    values = ["Ärger".encode(), "ÄRGER".encode(), b"\xc4rger"]
    assert selected("ärger", *values) == []
    assert selected("ärger", *values, ignore_case=True) == [0, 1]


@pytest.mark.parametrize("pattern", ["(", "a{1001}", r"(?<=x)y", r"(x)\\1"])
def test_a_pattern_that_re2_refuses_is_refused_before_anything_is_read(pattern: str) -> None:
    with pytest.raises(ConfigError, match="pattern"):
        ColumnFilter(parse_expression(f"value matches '{pattern}'"))
