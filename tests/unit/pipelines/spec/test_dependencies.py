"""The tables of a query, found without Spark."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.pipelines.spec.dependencies import RESERVED, begins_query, tables_read
from tests.unit.pipelines.spec.queries import NO_QUERIES, QUERIES


@pytest.mark.parametrize(("sql", "tables"), QUERIES)
def test_tables_of_a_query(sql: str, tables: list[str]) -> None:
    assert list(tables_read(sql)) == tables


@pytest.mark.parametrize("text", NO_QUERIES)
def test_what_is_no_query_has_no_tables(text: str) -> None:
    assert tables_read(text) == ()


@given(st.text(alphabet=st.sampled_from("`'\"(),.-/* \nafromjiwthslecs1"), max_size=60))
def test_any_text_has_tables_or_none(sql: str) -> None:
    assert all(tables_read(sql))


def test_long_texts_that_never_end_are_read_quickly() -> None:
    for piece in ("/*", "'", '"', "`", "(", "FROM "):
        tables_read(piece * 20_000)


@pytest.mark.parametrize(
    "sql", ["SELECT 1", "-- a\n with t AS (SELECT 1) SELECT * FROM t", "((TABLE a))"]
)
def test_queries(sql: str) -> None:
    assert begins_query(sql)


@pytest.mark.parametrize(
    "sql", ["DROP TABLE a", "INSERT INTO a SELECT 1", "-- SELECT", "SET x = 1"]
)
def test_statements_that_are_no_queries(sql: str) -> None:
    assert not begins_query(sql)


def test_words_that_would_confuse_a_query_are_no_names() -> None:
    assert {"FROM", "SELECT", "STREAM", "WINDOW", "VALUES"} <= RESERVED
    assert not {"ORDERS", "EVENTS", "TOTALS", "SESSIONS", "START"} & RESERVED
