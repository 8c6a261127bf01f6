"""The statements of the PostgreSQL sink, as texts."""

from datetime import datetime, timedelta

import pytest
from pyspark.sql import types

from headrace.pipelines.sinks.postgresql import numbered
from headrace.pipelines.sinks.postgresql_sql import SqlStatements, column_type, instants
from headrace.pipelines.sinks.target import TargetError


def statements(*keys: str) -> SqlStatements:
    return SqlStatements('app.the "t"', ["id", "Region", "n"], keys)


def test_names_are_quoted() -> None:
    schema = types.StructType()
    schema.add("id", types.LongType()).add("Region", types.StringType())
    schema.add("n", types.DecimalType(9, 2))
    assert statements("id").create_table(schema).as_string(None) == (
        'CREATE TABLE IF NOT EXISTS "app"."the ""t""" ("id" bigint, "Region" text,'
        ' "n" numeric(9, 2), PRIMARY KEY ("id"))'
    )


def test_numbers_of_batches_are_in_the_schema_of_the_table() -> None:
    assert 'FROM "app"."headrace_batches" WHERE' in statements().last_batch().as_string(None)


def test_rows_with_keys_replace() -> None:
    assert statements("id", "Region").merge().as_string(None) == (
        'INSERT INTO "app"."the ""t""" ("id", "Region", "n")'
        ' SELECT DISTINCT ON ("id", "Region") "id", "Region", "n" FROM "headrace_rows"'
        ' ORDER BY "id", "Region", "headrace_row" DESC'
        ' ON CONFLICT ("id", "Region") DO UPDATE SET "n" = EXCLUDED."n"'
    )


def test_rows_that_are_all_key_have_nothing_to_replace() -> None:
    assert statements("id", "Region", "n").merge().as_string(None).endswith("DO NOTHING")


def test_rows_without_keys_are_added_in_their_order() -> None:
    text = statements().merge().as_string(None)
    assert "CONFLICT" not in text
    assert text.endswith('FROM "headrace_rows" ORDER BY "headrace_row"')


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        (types.ByteType(), "smallint"),
        (types.IntegerType(), "integer"),
        (types.FloatType(), "real"),
        (types.BinaryType(), "bytea"),
        (types.TimestampType(), "timestamp with time zone"),
        (types.TimestampNTZType(), "timestamp"),
        (types.ArrayType(types.StringType()), "jsonb"),
        (types.StructType(), "jsonb"),
        (types.StringType(), "text"),
    ],
)
def test_types(kind: types.DataType, wanted: str) -> None:
    assert column_type("a", kind) == wanted


def test_a_type_that_the_server_lacks() -> None:
    with pytest.raises(TargetError, match=r"column wait is interval .*; cast it to string"):
        column_type("wait", types.DayTimeIntervalType())


def test_instants_get_their_zone_and_other_times_none() -> None:
    schema = types.StructType().add("a", types.TimestampType())
    schema.add("b", types.TimestampNTZType()).add("c", types.TimestampType())
    time = datetime(2026, 1, 1, 12)
    [row] = numbered([(time, time, None)], instants(schema))
    assert row[0].utcoffset() == timedelta() and row[0].timestamp() == time.timestamp()
    assert row[1:] == (time, None, 0)
