"""The PostgreSQL sink: a batch in one transaction, which also stores the batch's number.

One transaction means one connection, so the rows come to the driver: a partition at a time, through
COPY into a temporary table, and from there into the table in one statement.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import UTC
from itertools import chain
from typing import TYPE_CHECKING, Any

from headrace.pipelines.sinks.target import MicroBatch, TargetError, library, one_line
from headrace.pipelines.spec.model import PostgresSink

if TYPE_CHECKING:
    from psycopg import Connection
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

# Advice by SQLSTATE, which the server's message lacks.
_REMEDIES: Mapping[str, str] = {
    "42P10": "give the table a primary key or a unique index on the keys of the sink",
    "42P01": "create the table, or let the sink do it with create: true",
    "42501": "grant the role the right to do so",
    "23502": "leave such rows out in a step, or allow NULL in the table",
    "23505": "name the columns of that constraint as the keys of the sink",
    "22P02": "cast the column in a step to what the table has",
    "22021": "remove such characters in a step",
}
_AGAIN = "run the pipeline again, it goes on with this batch"


class PostgresTarget:
    """A table of a PostgreSQL database. Opens a connection for each batch."""

    def __init__(self, sink: PostgresSink, schema: "StructType") -> None:
        self._psycopg = library("psycopg", extra="postgresql")
        from headrace.pipelines.sinks import postgresql_sql  # noqa: PLC0415 - it needs psycopg

        self._sink = sink
        self._schema = schema
        self._nested = postgresql_sql.NESTED
        self._instants = postgresql_sql.instants(schema)
        self._statements = postgresql_sql.SqlStatements(sink.table, schema.fieldNames(), sink.keys)

    def prepare(self) -> None:
        """Create missing tables and check the existing ones, before the first batch."""
        statements = self._statements
        with self._connected() as connection:
            connection.execute(statements.create_batches())
            if self._sink.create:
                connection.execute(statements.create_table(self._schema))
            described = connection.execute(statements.look()).description or []
            columns = [column.name for column in described]
        for name in self._schema.fieldNames():
            if name not in columns:
                raise TargetError(
                    f"table {self._sink.table} has no column {name}, only {', '.join(columns)};"
                    " add it to the table, or leave it out of the rows"
                )

    def write(self, frame: "DataFrame", batch: MicroBatch) -> bool:
        """Store the rows and the batch's number together, unless the number is stored already."""
        identity = (batch.pipeline, batch.sink, batch.query)
        statements = self._statements
        with self._connected() as connection:
            connection.execute(statements.enter_batch(), identity)
            last = connection.execute(statements.last_batch(), identity).fetchone()
            if last is not None and last[0] >= batch.number:
                return False
            if self._copy(connection, frame):
                connection.execute(statements.merge())
            connection.execute(statements.keep_batch(), (batch.number, *identity))
        return True

    def _copy(self, connection: "Connection[Any]", frame: "DataFrame") -> bool:
        """Copy the rows into a temporary table; returns whether there are any."""
        rows = numbered(self._flat(frame).toLocalIterator(prefetchPartitions=True), self._instants)
        first = next(rows, None)
        if first is None:
            return False
        connection.execute(self._statements.stage())
        with connection.cursor().copy(self._statements.copy()) as copy:
            for row in chain([first], rows):
                copy.write_row(row)
        return True

    def _flat(self, frame: "DataFrame") -> "DataFrame":
        """The rows with nested columns as JSON, their type in the table."""
        from pyspark.sql import functions  # noqa: PLC0415 - Spark is there

        columns = [
            functions.to_json(frame[f"`{field.name}`"]).alias(field.name)
            if isinstance(field.dataType, self._nested)
            else frame[f"`{field.name}`"]
            for field in self._schema.fields
        ]
        return frame.select(*columns)

    def _connected(self) -> "_DatabaseConnection":
        return _DatabaseConnection(self._psycopg, self._sink)


class _DatabaseConnection:
    """A connection for the length of a block, as one transaction; errors become TargetErrors."""

    def __init__(self, psycopg: Any, sink: PostgresSink) -> None:
        self._psycopg = psycopg
        self._sink = sink

    def __enter__(self) -> "Connection[Any]":
        try:
            connection: Connection[Any] = self._psycopg.connect(self._sink.dsn)
        except self._psycopg.Error as error:
            raise TargetError(
                f"PostgreSQL does not let us in: {one_line(error)};"
                " check dsn, and that the server runs"
            ) from error
        self._connection = connection
        return connection

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: Any
    ) -> None:
        try:
            self._connection.__exit__(kind, error, None)
        except self._psycopg.Error as failed:
            raise self._explained(failed) from failed
        if isinstance(error, self._psycopg.Error):
            raise self._explained(error) from error

    def _explained(self, error: Any) -> TargetError:
        message = error.diag.message_primary or str(error)
        context = f" ({error.diag.context})" if error.diag.context else ""
        again = isinstance(error, self._psycopg.OperationalError)
        default = _AGAIN if again else "correct the rows in a step, or the table"
        remedy = _REMEDIES.get(error.sqlstate or "", default)
        return TargetError(f"table {self._sink.table}: {one_line(message + context)}; {remedy}")


def numbered(
    rows: Iterable[tuple[Any, ...]], instants: Collection[int]
) -> Iterator[tuple[Any, ...]]:
    """Rows for COPY, each with its number at the end.

    `instants` are the indexes of instant columns: Spark returns those as naive times in this
    machine's time zone.
    """
    for number, row in enumerate(rows):
        values = [*row, number]
        for index in instants:
            if values[index] is not None:
                values[index] = values[index].astimezone(UTC)
        yield tuple(values)
