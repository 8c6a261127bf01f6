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


_HEADER_MAX = 65536


class FileTarget:
    """A directory of files on a disk that the driver and the workers see under the same path."""

    def __init__(self, sink: FileSink, root: Path) -> None:
        self._sink = sink
        self._root = root

    def prepare(self) -> None:
        """Make the directory, before the first batch."""
        self._root.mkdir(parents=True, exist_ok=True)

    def write(self, frame: "DataFrame", batch: Batch) -> bool:
        """Write the batch's files and move them into place, if that was not done before."""
        staging = Staging(self._root, batch.query, self._is_wanted)
        if staging.recover(batch.number):
            return False
        attempt = staging.attempt(batch.number)
        writer = frame.write.format(self._sink.format).options(**self._sink.options)
        writer.partitionBy(*self._sink.partition_by).save(f"file://{attempt}")
        staging.commit(batch.number, attempt)
        return True

    def _is_wanted(self, file: Path) -> bool:
        """Whether to keep a file: Spark writes one for its first partition even without rows."""
        if not file.name.startswith("part-00000-"):
            return True
        is_headed = self._sink.options.get("header", "").lower() == "true"
        return has_rows(file, self._sink.format, is_headed=is_headed)


def has_rows(file: Path, format: str, *, is_headed: bool = False) -> bool:
    """Whether there are rows in a file of Spark's."""
    import pyarrow as pa  # noqa: PLC0415 - optional, and whoever has Spark has it
    from pyarrow import orc, parquet  # noqa: PLC0415

    match format:
        case "parquet":
            return bool(parquet.read_metadata(file).num_rows)
        case "orc":
            return bool(orc.ORCFile(file).nrows)
    with pa.input_stream(str(file), compression="detect") as stream:
        text = stream.read(_HEADER_MAX)
    _, _, after_header = text.partition(b"\n")
    return bool(after_header if is_headed else text)
