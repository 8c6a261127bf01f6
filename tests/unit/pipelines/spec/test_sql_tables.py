"""The tables of a query, found without Spark."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.pipelines.spec.sql_tables import RESERVED, begins_query, tables_read


@pytest.mark.parametrize(
    ("sql", "tables"),
    [
        ("SELECT 1", []),
        ("SELECT * FROM a", ["a"]),
        ("select * from a x, b AS y, c where d = e", ["a", "b", "c"]),
        ("SELECT * FROM a JOIN b ON a.x = b.x LEFT JOIN c USING (x)", ["a", "b", "c"]),
        ("SELECT * FROM a NATURAL JOIN b", ["a", "b"]),
        ("SELECT * FROM (a JOIN b ON a.x = b.y)", ["a", "b"]),
        ("SELECT * FROM (SELECT x, y FROM a) z, b", ["a", "b"]),
        ("SELECT * FROM a, LATERAL (SELECT * FROM b WHERE b.x = a.x)", ["a", "b"]),
        (
            "SELECT * FROM a WHERE x IN (SELECT y FROM b) AND EXISTS (SELECT 1 FROM c)",
            ["a", "b", "c"],
        ),
        ("SELECT (SELECT max(x) FROM b) AS m FROM a", ["b", "a"]),
        ("SELECT * FROM a UNION ALL SELECT * FROM b", ["a", "b"]),
        ("TABLE a UNION TABLE b", ["a", "b"]),
        ("FROM a SELECT x, y", ["a"]),
        ("FROM a |> EXTEND x AS y, z |> JOIN b USING (k) |> SELECT c, d", ["a", "b"]),
        ("SELECT * FROM a GROUP BY x, y ORDER BY z, w", ["a"]),
        ("SELECT * FROM a PIVOT (sum(x) FOR y IN (1, 2))", ["a"]),
        ("SELECT * FROM a LATERAL VIEW explode(m) t AS k, v", ["a"]),
        ("SELECT * FROM VALUES (1), (2) AS t", []),
        ("SELECT * FROM range(10), explode(array(1)), a", ["a"]),
        ("SELECT * FROM f(TABLE a)", ["a"]),
        ("SELECT * FROM STREAM(a)", ["a"]),
        ("SELECT * FROM STREAM a", ["a"]),
        # Tables of a catalog are written with their database.
        ("SELECT * FROM default.a, parquet.`/x`, b", ["b"]),
        ("SELECT * FROM `a`, `b c`, `from`", ["a", "b c", "from"]),
        ("SELECT * FROM A, a, B", ["A", "B"]),
        # FROM that means something else.
        ("SELECT extract(HOUR FROM x), trim(BOTH ' ' FROM y), substring(z FROM 2) FROM a", ["a"]),
        ("SELECT * FROM a WHERE x IS DISTINCT FROM y AND z IS NOT DISTINCT FROM w", ["a"]),
        ("SELECT a.x, count(*) FILTER (WHERE y) OVER (PARTITION BY b, c) FROM a", ["a"]),
        ("SELECT count(*) AS totals, window.start FROM a", ["a"]),
        # What only looks like SQL.
        ("SELECT 'FROM b', \"FROM c\" -- FROM d\nFROM a /* , e */", ["a"]),
        ("SELECT 'it''s FROM b', 'a \\' FROM c' FROM a", ["a"]),
        ("SELECT /*+ BROADCAST(b) */ * FROM a JOIN b", ["a", "b"]),
        ("SELECT 'open FROM b", []),
        ("SELECT * FROM order", ["order"]),
        # Names given by WITH.
        ("SELECT * FROM (WITH t AS (SELECT * FROM a) SELECT x, y FROM t)", ["a"]),
        ("WITH t AS (SELECT * FROM a) SELECT * FROM t, b", ["a", "b"]),
        ("WITH t(x, y) AS (SELECT * FROM a), u AS (SELECT * FROM t) SELECT * FROM u", ["a"]),
        ("WITH a AS (SELECT * FROM a) SELECT * FROM a", ["a"]),
        ("WITH totals AS (SELECT * FROM a) SELECT * FROM Totals", ["a"]),
        ("", []),
        ("FROM", []),
        (")))(((FROM", []),
    ],
)
def test_tables_of_a_query(sql: str, tables: list[str]) -> None:
    assert list(tables_read(sql)) == tables


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
