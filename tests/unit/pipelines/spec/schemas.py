"""Schemas with their columns; tests/spark asks Spark itself whether that is so."""

SCHEMAS: list[tuple[str, list[str]]] = [
    ("id BIGINT", ["id"]),
    ("id BIGINT, at TIMESTAMP NOT NULL, note STRING COMMENT 'a, b'", ["id", "at", "note"]),
    ("a DECIMAL(10, 2), b MAP<STRING, ARRAY<INT>>, c INT", ["a", "b", "c"]),
    ("s STRUCT<x: INT, y: STRUCT<z: DATE>>, `odd name` int", ["s", "odd name"]),
    ("id: bigint, 2nd string", ["id", "2nd"]),
    (
        "a BOOLEAN, b TINYINT, c SMALLINT, d INTEGER, e LONG, f REAL, g DOUBLE, h NUMERIC",
        [*"abcdefgh"],
    ),
    ("a CHAR(3), b VARCHAR(9), c BINARY, d DATE, e TIMESTAMP_NTZ, f VARIANT, g VOID", [*"abcdefg"]),
    ("a INTERVAL DAY TO SECOND, b BYTE, c SHORT, d DEC(5, 2), e TIMESTAMP_LTZ", [*"abcde"]),
]
