"""The Delta sink: Spark writes the files, the driver commits them with the batch's number.

The number is in the table's log as a transaction of this query, in the commit that adds the files,
so both become visible at once.
"""

import json
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from headrace.pipelines.sinks.lake_files import DataFile, arrow_schema, check_fit, write_files
from headrace.pipelines.sinks.target import MicroBatch, TargetError, library, one_line, remedy
from headrace.pipelines.spec.model import DeltaSink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_NULL = "__HIVE_DEFAULT_PARTITION__"


class DeltaTarget:
    """A Delta table, created with the first batch if it does not exist."""

    def __init__(self, sink: DeltaSink, location: str) -> None:
        self._delta = library("deltalake", extra="delta")
        self._transactions = library("deltalake.transaction", extra="delta")
        self._errors = library("deltalake.exceptions", extra="delta")
        self._sink = sink
        self._location = location

    def write(self, frame: "DataFrame", batch: MicroBatch) -> bool:
        """Commit the files of the batch, unless the log has its number already."""
        table = self._opened(frame)
        version = table.transaction_version(batch.writer)
        if version is not None and version >= batch.number:
            return False
        partition_by = self._sink.partition_by
        files = write_files(frame, self._location, "", batch, partition_by)
        if files:
            self._commit(table, files, batch)
        return True

    def _opened(self, frame: "DataFrame") -> Any:
        rows = arrow_schema(frame.schema)
        storage = dict(self._sink.options) or None
        try:
            table = self._delta.DeltaTable.create(
                self._location,
                schema=self._delta.Schema.from_arrow(rows),
                mode="ignore",
                partition_by=list(self._sink.partition_by),
                storage_options=storage,
            )
            # The table that `create` returns, if it existed, need not be its newest version.
            table = self._delta.DeltaTable(self._location, storage_options=storage)
        except (self._errors.DeltaError, OSError) as error:
            what = remedy(str(error)) or f"{one_line(error)}; check path and options of the sink"
            raise TargetError(f"Delta table {self._location}: {what}") from error
        import pyarrow as pa  # noqa: PLC0415 - deltalake was asked for, so this is there

        check_fit(f"Delta table {self._location}", pa.schema(table.schema().to_arrow()), rows)
        columns = table.metadata().partition_columns
        if list(columns) != list(self._sink.partition_by):
            raise TargetError(
                f"Delta table {self._location} is partitioned by {', '.join(columns) or 'nothing'};"
                f" say partition_by: [{', '.join(columns)}]"
            )
        return table

    def _commit(self, table: Any, files: list[DataFile], batch: MicroBatch) -> None:
        actions = [
            self._transactions.AddAction(
                path=file.path,
                size=file.size,
                partition_values=partition_values(file.path),
                modification_time=file.modified_ms,
                data_change=True,
                stats=json.dumps({} if file.rows is None else {"numRecords": file.rows}),
            )
            for file in files
        ]
        numbered = self._delta.Transaction(batch.writer, batch.number)
        try:
            table.create_write_transaction(
                actions,
                mode="append",
                schema=table.schema(),
                partition_by=list(self._sink.partition_by),
                commit_properties=self._delta.CommitProperties(app_transactions=[numbered]),
            )
        except self._errors.CommitFailedError as error:
            raise TargetError(
                f"Delta table {self._location}: {one_line(error)};"
                " is the pipeline running twice? run one, it goes on where this one stopped"
            ) from error
        except self._errors.DeltaError as error:
            text = f"Delta table {self._location}: {one_line(error)}; the batch was not added"
            raise TargetError(text) from error


def partition_values(path: str) -> dict[str, str | None]:
    """The values of the partition columns in a path written by Spark.

    >>> partition_values("headrace-1/0-2/day=2026-01-01/city=S%3Ao/part-0.parquet")
    {'day': '2026-01-01', 'city': 'S:o'}
    """
    pairs = [part.split("=", 1) for part in path.split("/")[:-1] if "=" in part]
    return {unquote(name): None if text == _NULL else unquote(text) for name, text in pairs}
