"""Parquet files for a table format: Spark writes them, in a directory of each attempt's own.

Nothing lists that directory but the commit that follows, so files of an attempt that came to
nothing are in no table. They stay until the table is vacuumed, as with any writer of tables.
"""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.pipelines.sinks.batches import Batch
from headrace.pipelines.sinks.locations import hadoop_path

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TIMESTAMPS = "spark.sql.parquet.outputTimestampType"


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file that Spark wrote. `path` is relative to the table's; `rows` is None where only Spark
    can read it."""

    path: str
    size: int
    modified_ms: int
    rows: int | None


def write_files(
    frame: "DataFrame", table: str, within: str, batch: Batch, partition_by: Sequence[str] = ()
) -> list[DataFile]:
    """Write the rows below the location of a table; the files with rows, in order."""
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
