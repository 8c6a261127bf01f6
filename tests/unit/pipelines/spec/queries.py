"""Queries with the tables they read; tests/spark asks Spark's own parser whether that is so."""

QUERIES: list[tuple[str, list[str]]] = [
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
    ("SELECT * FROM f(TABLE(a))", ["a"]),
    ("SELECT * FROM a UNPIVOT (v FOR n IN (x, y)), b", ["a", "b"]),
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
    ("SELECT * FROM order", ["order"]),
    ("SELECT r'a\\', 'b' FROM a", ["a"]),
    # Names given by WITH.
    ("SELECT * FROM (WITH t AS (SELECT * FROM a) SELECT x, y FROM t)", ["a"]),
    ("WITH t AS (SELECT * FROM a) SELECT * FROM t, b", ["a", "b"]),
    ("WITH t(x, y) AS (SELECT * FROM a), u AS (SELECT * FROM t) SELECT * FROM u", ["a"]),
    ("WITH a AS (SELECT * FROM a) SELECT * FROM a", ["a"]),
    ("WITH totals AS (SELECT * FROM a) SELECT * FROM Totals", ["a"]),
    (
        "SELECT a.*, b.x FROM a LEFT OUTER JOIN b ON a.id = b.id AND b.at BETWEEN"
        " a.at - INTERVAL 5 MINUTES AND a.at, c CROSS JOIN d",
        ["a", "b", "c", "d"],
    ),
    ("SELECT * FROM a GROUP BY window(at, '1 minute'), b HAVING count(*) > 1 LIMIT 5", ["a"]),
    ("SELECT * FROM a LEFT SEMI JOIN b USING (id) LEFT ANTI JOIN c ON a.x = c.x", ["a", "b", "c"]),
    ("SELECT transform(xs, x -> x + 1) FROM a TABLESAMPLE (10 PERCENT), b", ["a", "b"]),
    ("SELECT lag(x, 1) OVER w FROM a WINDOW w AS (PARTITION BY b, c), v AS (ORDER BY d)", ["a"]),
    (
        "SELECT * FROM (SELECT * FROM a) AS s(x, y), LATERAL explode(array(1)) AS t(z), b",
        ["a", "b"],
    ),
    ("SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY x, y) FROM a", ["a"]),
    ("SELECT * FROM a JOIN LATERAL (SELECT * FROM b WHERE b.x = a.x) ON true", ["a", "b"]),
    ("SELECT overlay(x PLACING 'y' FROM 3 FOR 2), cast(x AS STRUCT<a: INT>) FROM a", ["a"]),
    ("FROM a |> AGGREGATE sum(y) AS s, count(*) AS c GROUP BY z, w |> ORDER BY s, c", ["a"]),
    ("SELECT x AS table, y AS `from`, named_struct('from', x).from FROM a", ["a"]),
    ("SELECT * FROM VALUES (1, 2), (3, 4) AS t(x, y) JOIN a USING (x)", ["a"]),
    ("SELECT * FROM (TABLE a) EXCEPT (SELECT * FROM b MINUS SELECT * FROM c)", ["a", "b", "c"]),
]

NO_QUERIES = ["", "FROM", ")))(((FROM", "SELECT 'open FROM b"]
