"""The grammar of search expressions: what is accepted, and where a mistake is found."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.search.expressions import (
    ALL_RECORDS,
    AnyElement,
    Conjunction,
    ContainsText,
    Disjunction,
    ExpressionError,
    FieldComparison,
    FieldRef,
    IsNull,
    MatchesPattern,
    Negation,
    RecordPart,
    Relation,
    parse_expression,
)

VALUE = FieldRef(RecordPart.VALUE)
USER_ID = FieldRef(RecordPart.VALUE, path=("user", "id"))


def equal(field: FieldRef, literal: str | int | float | bool) -> FieldComparison:
    return FieldComparison(field, Relation.EQUAL, literal)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("  ", ALL_RECORDS),
        ("value.user.id = 7", equal(USER_ID, 7)),
        ("VALUE['user'][\"id\"] == -7.5e1", equal(USER_ID, -75.0)),
        (
            "value.items[*][0]['a b'] <> true",
            FieldComparison(
                FieldRef(RecordPart.VALUE, path=("items", AnyElement.STEP, 0, "a b")),
                Relation.NOT_EQUAL,
                True,
            ),
        ),
        (
            "header.trace-id.user = 'x'",
            equal(FieldRef(RecordPart.HEADER, "trace-id", ("user",)), "x"),
        ),
        (
            "timestamp >= '2026-01-31T13:00:00+01:00'",
            FieldComparison(
                FieldRef(RecordPart.TIMESTAMP), Relation.GREATER_OR_EQUAL, 1_769_860_800_000
            ),
        ),
        (
            "partition in (1, 2)",
            Disjunction(
                (equal(FieldRef(RecordPart.PARTITION), 1), equal(FieldRef(RecordPart.PARTITION), 2))
            ),
        ),
        ("value is not null", Negation(IsNull(VALUE))),
        ("value = null", IsNull(VALUE)),
        ("value not matches '^a'", Negation(MatchesPattern(VALUE, "^a"))),
        ("value contains 'it\\'s \\ud83d\\ude00'", ContainsText(VALUE, "it's 😀")),
        (
            "not key = 'a' && offset < 9 || value contains x",
            Disjunction(
                (
                    Conjunction(
                        (
                            Negation(equal(FieldRef(RecordPart.KEY), "a")),
                            FieldComparison(FieldRef(RecordPart.OFFSET), Relation.LESS, 9),
                        )
                    ),
                    ContainsText(VALUE, "x"),
                )
            ),
        ),
    ],
)
def test_an_expression_means(text: str, expected: object) -> None:
    assert parse_expression(text) == expected


@pytest.mark.parametrize("text", ["espresso", "'espresso'", '"espresso"'])
def test_a_text_alone_is_searched_in_value_key_and_headers(text: str) -> None:
    expected = [
        ContainsText(FieldRef(part), "espresso", ignore_case=True)
        for part in (RecordPart.VALUE, RecordPart.KEY, RecordPart.HEADER)
    ]
    assert parse_expression(text, ignore_case=True) == Disjunction(tuple(expected))


@pytest.mark.parametrize(
    ("text", "position", "problem"),
    [
        ("value.a >", 9, "a number, a text in quotes"),
        ("value.a = b", 10, "put quotes around a text: 'b'"),
        ("'abc", 0, "no closing '"),
        ("user.id = 7", 0, "'user' is no field"),
        ("black coffee", 6, "put quotes around a text with spaces"),
        ("value .a", 6, "not expected"),
        ("value = 'a\\q'", 8, "no escape"),
        ("value = '\\ud800'", 8, "surrogate"),
        ("partition = 'a'", 12, "a whole number"),
        ("timestamp > '2026-01-31T12:00:00'", 12, "needs a zone"),
        ("offset contains 'a'", 0, "offset is a number"),
        ("header = 'a'", 0, "name the header"),
        ("value.a > null", 10, "null"),
        ("value.a = 1e999", 10, "too large"),
        ("(a or b", 7, "')' is expected"),
        ("a and", 5, "a condition is expected"),
        ("(" * 33 + "a", 32, "nested deeper"),
        (" or ".join(["key = 'a'"] * 65), 838, "more than 64 conditions"),
        ("value" + ".a" * 33, 71, "more than 32 steps"),
        ("a" * 4097, 4096, "4,097 characters"),
        ("a\udcff", 1, "Unicode"),
    ],
)
def test_a_mistake_is_told_with_its_position(text: str, position: int, problem: str) -> None:
    with pytest.raises(ExpressionError) as error:
        parse_expression(text)
    assert problem in error.value.problem
    assert error.value.position == position


@given(st.text(alphabet="av.[]()'\"\\=<>!&|,*07- \n\x00é", max_size=60))
def test_any_text_is_parsed_or_refused_at_a_position_in_it(text: str) -> None:
    position = 0
    try:
        parse_expression(text)
    except ExpressionError as error:
        position = error.position
    assert 0 <= position <= len(text)
