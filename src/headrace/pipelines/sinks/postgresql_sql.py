"""The SQL statements of the PostgreSQL sink. Needs psycopg for its quoting, but no server."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from psycopg import sql
from pyspark.sql import types

from headrace.pipelines.sinks.target import TargetError

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

BATCHES = "headrace_batches"
_STAGE = "headrace_rows"
_ROW = "headrace_row"

_TYPES: Mapping[type["DataType"], str] = {
    types.BooleanType: "boolean",
    types.ByteType: "smallint",
    types.ShortType: "smallint",
    types.IntegerType: "integer",
    types.LongType: "bigint",
    types.FloatType: "real",
    types.DoubleType: "double precision",
    types.StringType: "text",
    types.BinaryType: "bytea",
    types.DateType: "date",
    types.TimestampType: "timestamp with time zone",
    types.TimestampNTZType: "timestamp",
}
NESTED = (types.ArrayType, types.MapType, types.StructType)


def column_type(name: str, kind: "DataType") -> str:
    """PostgreSQL's type for a Spark column. Nested types become JSON."""
    if isinstance(kind, types.DecimalType):
        return f"numeric({kind.precision}, {kind.scale})"
    if isinstance(kind, NESTED):
        return "jsonb"
    for spark_type, found in _TYPES.items():
        if isinstance(kind, spark_type):
            return found
    raise TargetError(
        f"column {name} is {kind.simpleString()}, which PostgreSQL has no type for;"
        " cast it to string in a step"
    )


def instants(schema: "StructType") -> list[int]:
    """The indexes of columns that are instants, rather than times without a zone."""
    kinds = enumerate(field.dataType for field in schema.fields)
    return [index for index, kind in kinds if isinstance(kind, types.TimestampType)]


class SqlStatements:
    """The statements for rows of these columns into one table."""

    def __init__(self, table: str, columns: Sequence[str], keys: Sequence[str]) -> None:
        parts = table.split(".")
        self._table = sql.Identifier(*parts)
        self._batches = sql.Identifier(*parts[:-1], BATCHES)
        self._columns = [sql.Identifier(name) for name in columns]
        self._keys = [sql.Identifier(name) for name in keys]
        self._others = [sql.Identifier(name) for name in columns if name not in keys]

    def create_batches(self) -> sql.Composed:
        """The statement that creates the table with the last batch number of each query."""
        return sql.SQL(
            "CREATE TABLE IF NOT EXISTS {} (pipeline text, sink text, query text,"
            " batch bigint NOT NULL, at timestamp with time zone NOT NULL DEFAULT now(),"
            " PRIMARY KEY (pipeline, sink, query))"
        ).format(self._batches)

    def create_table(self, schema: "StructType") -> sql.Composed:
        """The statement that creates the table for these rows, with the keys as its primary key."""
        columns: list[sql.Composable] = [
            sql.SQL("{} {}").format(
                sql.Identifier(field.name), sql.SQL(column_type(field.name, field.dataType))
            )
            for field in schema.fields
        ]
        if self._keys:
            columns.append(sql.SQL("PRIMARY KEY ({})").format(_listed(self._keys)))
        return sql.SQL("CREATE TABLE IF NOT EXISTS {} ({})").format(self._table, _listed(columns))

    def look(self) -> sql.Composed:
        """A statement without rows, for the table's columns."""
        return sql.SQL("SELECT * FROM {} LIMIT 0").format(self._table)

    def enter_batch(self) -> sql.Composed:
        """The statement that ensures a row to lock, before any batch was stored."""
        return sql.SQL(
            "INSERT INTO {} (pipeline, sink, query, batch) VALUES (%s, %s, %s, -1)"
            " ON CONFLICT DO NOTHING"
        ).format(self._batches)

    def last_batch(self) -> sql.Composed:
        """The last batch that is stored; waits for another transaction that may be storing one."""
        return sql.SQL(
            "SELECT batch FROM {} WHERE (pipeline, sink, query) = (%s, %s, %s) FOR UPDATE"
        ).format(self._batches)

    def keep_batch(self) -> sql.Composed:
        """The statement that records a batch as stored."""
        return sql.SQL(
            "UPDATE {} SET batch = %s, at = now() WHERE (pipeline, sink, query) = (%s, %s, %s)"
        ).format(self._batches)

    def stage(self) -> sql.Composed:
        """The temporary table for the rows of a batch, with the table's types, until the
        transaction ends.
        """
        return sql.SQL(
            "CREATE TEMPORARY TABLE {} ON COMMIT DROP AS SELECT {}, 0::bigint AS {} FROM {}"
            " WITH NO DATA"
        ).format(sql.Identifier(_STAGE), _listed(self._columns), sql.Identifier(_ROW), self._table)

    def copy(self) -> sql.Composed:
        """The COPY of rows into the temporary table, each with its number."""
        return sql.SQL("COPY {} ({}, {}) FROM STDIN").format(
            sql.Identifier(_STAGE), _listed(self._columns), sql.Identifier(_ROW)
        )

    def merge(self) -> sql.Composed:
        """The upsert of rows from the temporary table: new ones, or replacing those with the same
        keys. Of rows of one batch with the same keys the last one wins.
        """
        names = _listed(self._columns)
        insert = sql.SQL("INSERT INTO {} ({}) ").format(self._table, names)
        if not self._keys:
            return insert + sql.SQL("SELECT {} FROM {} ORDER BY {}").format(
                names, sql.Identifier(_STAGE), sql.Identifier(_ROW)
            )
        keys = _listed(self._keys)
        update: sql.Composable = sql.SQL("NOTHING")
        if self._others:
            pairs = [sql.SQL("{0} = EXCLUDED.{0}").format(name) for name in self._others]
            update = sql.SQL("UPDATE SET {}").format(_listed(pairs))
        return insert + sql.SQL(
            "SELECT DISTINCT ON ({}) {} FROM {} ORDER BY {}, {} DESC ON CONFLICT ({}) DO {}"
        ).format(keys, names, sql.Identifier(_STAGE), keys, sql.Identifier(_ROW), keys, update)


def _listed(parts: Sequence[sql.Composable]) -> sql.Composed:
    return sql.SQL(", ").join(parts)
