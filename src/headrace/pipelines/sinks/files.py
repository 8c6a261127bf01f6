"""To files of a format of Spark's, each batch once for every reader.

Spark's own file sink keeps a list of the files that count, which only Spark reads: anybody else
sees those of failed attempts too. So on a disk the batches are staged (see staging.py). A store
without a rename of directories has Spark's sink, and its rule.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from headrace.pipelines.sinks.batches import Batch
from headrace.pipelines.sinks.staging import Staging
from headrace.pipelines.spec.model import FileSink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class FileTarget:
    """A directory of files on a disk that the driver and the workers see under the same path."""

    def __init__(self, sink: FileSink, root: Path) -> None:
        self._sink = sink
        self._root = root

    def write(self, frame: "DataFrame", batch: Batch) -> bool:
        """Write the batch's files and move them into place, if that was not done before."""
        staging = Staging(self._root, batch.query, self._has_rows)
        if staging.recover(batch.number):
            return False
        attempt = staging.attempt(batch.number)
        writer = frame.write.format(self._sink.format).options(**self._sink.options)
        writer.partitionBy(*self._sink.partition_by).save(f"file://{attempt}")
        staging.commit(batch.number, attempt)
        return True

    def _has_rows(self, file: Path) -> bool:
        """Whether to keep a file: Spark writes one for its first partition even without rows."""
        return not file.name.startswith("part-00000-") or rows_of(file, self._sink.format) > 0


def rows_of(file: Path, format: str) -> int:
    """How many rows a file has; for text, how many bytes, which is 0 for 0."""
    from pyarrow import orc, parquet  # noqa: PLC0415 - optional, and Spark needs it too

    match format:
        case "parquet":
            return int(parquet.read_metadata(file).num_rows)
        case "orc":
            return int(orc.ORCFile(file).nrows)
        case _:
            return file.stat().st_size
