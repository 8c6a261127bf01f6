"""Parquet files for a table format, and checks that their columns fit an existing table."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.pipelines.locations import hadoop_path
from headrace.pipelines.sinks.target import MicroBatch, TargetError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

# Parquet files for a table format: Spark writes them, in a separate directory for each attempt.
#
# Nothing lists that directory but the commit that follows, so files of an attempt that came to
# nothing are in no table. They stay until the table is vacuumed, as with any writer of tables.


_TIMESTAMPS = "spark.sql.parquet.outputTimestampType"


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file that Spark wrote. `path` is relative to the table's; `rows` is None if only Spark can
    read the file.
    """

    path: str
    size: int
    modified_ms: int
    rows: int | None


def write_files(
    frame: "DataFrame", table: str, within: str, batch: MicroBatch, partition_by: Sequence[str] = ()
) -> list[DataFile]:
    """Write the rows below the location of a table; returns the files with rows, in order."""
    spark = frame.sparkSession
    # Spark's default is a type of 96 bits that PyIceberg refuses. This session is the query's own.
    spark.conf.set(_TIMESTAMPS, "TIMESTAMP_MICROS")
    attempt = f"{within}headrace-{batch.query[:8]}/{batch.number}-{uuid.uuid4().hex[:8]}"
    writer = frame.write.format("parquet").partitionBy(*partition_by)
    writer.save(f"{table}/{attempt}")
    return [file for file in _files(spark, table, attempt) if file.rows != 0]


def _files(spark: "SparkSession", table: str, attempt: str) -> list[DataFile]:
    files, root = hadoop_path(spark, table)
    prefix = f"{root.toString()}/"
    is_local = root.toUri().getScheme() == "file"
    found = []
    listing = files.listFiles(hadoop_path(spark, f"{table}/{attempt}")[1], True)
    while listing.hasNext():
        status = listing.next()
        path = status.getPath()
        if path.getName().startswith(("_", ".")):
            continue
        rows = _rows(path.toUri().getPath()) if is_local else None
        relative = path.toString().removeprefix(prefix)
        found.append(DataFile(relative, status.getLen(), status.getModificationTime(), rows))
    return sorted(found, key=lambda file: file.path)


def _rows(path: str) -> int:
    from pyarrow import parquet  # noqa: PLC0415 - optional, and whoever has Spark has it

    return int(parquet.read_metadata(path).num_rows)


def arrow_schema(schema: "StructType") -> "pa.Schema":
    """The columns as Arrow types, all nullable, because later batches may have values."""
    from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415 - Spark is there

    return to_arrow_schema(schema.toNullable(), timezone="UTC")


def check_fit(table: str, has: "pa.Schema", rows: "pa.Schema", smallest_int: int = 8) -> None:
    """Raise TargetError for a column that the table lacks, has with another type, or requires.

    `smallest_int` is the smallest number of bits of an integer in the table's format.
    """
    columns = {field.name: field for field in has}
    for field in rows:
        if field.name not in columns:
            raise TargetError(
                f"{table} has no column {field.name}, only {', '.join(columns)};"
                " add it to the table, or leave it out of the rows"
            )
        wanted = type_name(columns[field.name].type, smallest_int)
        given = type_name(field.type, smallest_int)
        if wanted != given:
            raise TargetError(
                f"column {field.name} of {table} is {wanted}, and that of the rows is {given};"
                " cast it in a step, or write to another table"
            )
    for field in has:
        if not field.nullable and field.name not in rows.names:
            raise TargetError(
                f"{table} needs a column {field.name}, which the rows have not; add it in a step"
            )


def type_name(kind: "pa.DataType", smallest_int: int = 8) -> str:
    """A normalized type name: libraries differ in the widths of offsets and in inner names.

    >>> import pyarrow as pa
    >>> type_name(pa.large_list(pa.struct({"a": pa.large_string()})))
    'list<struct<a: string>>'
    """
    from pyarrow import types  # noqa: PLC0415 - whoever has a schema has it

    if types.is_list(kind) or types.is_large_list(kind):
        return f"list<{type_name(kind.value_type, smallest_int)}>"
    if types.is_map(kind):
        inner = type_name(kind.key_type, smallest_int), type_name(kind.item_type, smallest_int)
        return f"map<{inner[0]}, {inner[1]}>"
    if types.is_struct(kind):
        fields = (kind.field(index) for index in range(kind.num_fields))
        inside = (f"{field.name}: {type_name(field.type, smallest_int)}" for field in fields)
        return f"struct<{', '.join(inside)}>"
    if types.is_signed_integer(kind):
        return f"int{max(kind.bit_width, smallest_int)}"
    return str(kind).removeprefix("large_").replace("tz=+00:00", "tz=UTC")
