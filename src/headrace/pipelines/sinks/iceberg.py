"""The Iceberg sink: Spark writes the files, the driver commits them with the batch's number.

The number is a property of the table, set in the commit that adds the files; the snapshot has it
too, but snapshots expire.
"""

from typing import TYPE_CHECKING, Any

from headrace.pipelines.sinks.lake_files import arrow_schema, check_fit, write_files
from headrace.pipelines.sinks.target import MicroBatch, TargetError, library, one_line
from headrace.pipelines.spec.model import IcebergSink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# PyIceberg's name for an unnamed catalog. A catalog in a database stores its name with each table,
# so another name would not find them.
_CATALOG = "default"


class IcebergTarget:
    """An Iceberg table in any catalog that PyIceberg supports; created if it does not exist."""

    def __init__(self, sink: IcebergSink) -> None:
        self._sink = sink
        self._name = f"Iceberg table {sink.table}"
        catalogs = library("pyiceberg.catalog", extra="iceberg")
        self._schemas = library("pyiceberg.io.pyarrow", extra="iceberg")
        self._errors = _errors()
        try:
            self._catalog = catalogs.load_catalog(**{"name": _CATALOG} | dict(sink.catalog))
        except self._errors as error:
            text = f"the catalog of {self._name}: {_reason(error)}; check its properties"
            raise TargetError(text) from error

    def write(self, frame: "DataFrame", batch: MicroBatch) -> bool:
        """Commit the files of the batch, unless the table has its number already."""
        table = self._opened(frame)
        number = table.properties.get(_property(batch))
        if number is not None and int(number) >= batch.number:
            return False
        location = table.location()
        files = write_files(frame, location, "data/", batch)
        if files:
            try:
                self._commit(table, [f"{location}/{file.path}" for file in files], batch)
            except self._errors as error:
                text = f"{self._name}: {_reason(error)}; the batch was not added, run it again"
                raise TargetError(text) from error
        return True

    def _opened(self, frame: "DataFrame") -> Any:
        rows = arrow_schema(frame.schema)
        try:
            self._catalog.create_namespace_if_not_exists(self._sink.table.rpartition(".")[0])
            table = self._catalog.create_table_if_not_exists(
                self._sink.table, schema=rows, location=self._sink.location
            )
            has = self._schemas.schema_to_pyarrow(table.schema(), include_field_ids=False)
        except self._errors as error:
            text = f"{self._name}: {_reason(error)}; check its name, location and catalog"
            raise TargetError(text) from error
        check_fit(self._name, has, rows, smallest_int=32)
        if not table.spec().is_unpartitioned():
            raise TargetError(
                f"{self._name} is partitioned, and files of several partitions cannot be added to"
                " it; write to a table without partitions"
            )
        return table

    def _commit(self, table: Any, paths: list[str], batch: MicroBatch) -> None:
        properties = {"headrace.query": batch.writer, "headrace.batch": str(batch.number)}
        with table.transaction() as transaction:
            # The names are new, so there is no need to search the whole table for them.
            transaction.add_files(
                paths, snapshot_properties=properties, check_duplicate_files=False
            )
            transaction.set_properties({_property(batch): str(batch.number)})


def _reason(error: Exception) -> str:
    # SQLAlchemy appends a link to its documentation.
    return one_line(str(error).partition("(Background on")[0])


def _property(batch: MicroBatch) -> str:
    return f"headrace.batch.{batch.query}"


def _errors() -> tuple[type[Exception], ...]:
    """The errors of PyIceberg, which have no class in common, and of SQLAlchemy in its catalogs."""
    found: list[type[Exception]] = [OSError, ValueError]
    for module, root in (("pyiceberg.exceptions", Exception), ("sqlalchemy.exc", Exception)):
        try:
            names = vars(library(module, extra="iceberg")).values()
        except TargetError:
            continue
        found += [name for name in names if isinstance(name, type) and issubclass(name, root)]
    return tuple(found)
