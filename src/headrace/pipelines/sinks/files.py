"""The file sink: files in one of Spark's formats, each batch visible once, despite crashes.

Spark's own file sink keeps a list of the valid files, which only Spark reads: other readers see
those of failed attempts too. So on a local disk the batches are staged (see `Staging`). A store
without a rename of directories uses Spark's sink, and its rule.
"""

import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.pipelines.sinks.target import MicroBatch
from headrace.pipelines.spec.model import FileSink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Files of a batch become visible once, however often the process that brings them is killed.
#
# Spark writes a batch to a directory that no reader looks into. Renaming that directory to `ready`
# decides the batch; then its files are moved to where they belong, one after the other; then the
# directory is renamed to `done`. A process that finds `ready` finishes the moves of the one before
# it, and one that finds `done` has nothing to do. No step takes anything back, so whatever two
# steps a process dies between, the next one leads to the same files.
#
# Below the directory of the data, for each query: `.headrace/<query>/<batch>.<attempt>`, `.ready`,
# `.done`. Readers leave out names that begin with a dot.


AREA = ".headrace"
_READY = "ready"
_DONE = "done"


class Staging:
    """The staging of one query's batches into a directory. One process at a time."""

    def __init__(self, root: Path, query: str, is_wanted: Callable[[Path], bool]) -> None:
        self._root = root
        self._area = root / AREA / query
        # Whether to keep a file that Spark wrote: it has rows.
        self._is_wanted = is_wanted

    def recover(self, batch: int) -> bool:
        """Finish a decided batch, delete undecided attempts; returns whether `batch` is decided."""
        self._area.mkdir(parents=True, exist_ok=True)
        for number in self._numbers(_READY):
            self._publish(number)
        done = self._numbers(_DONE)
        for path in self._area.iterdir():
            if path.suffix != f".{_DONE}":
                _forget(path)
        return bool(done) and done[-1] >= batch

    def attempt(self, batch: int) -> Path:
        """A new directory for Spark to write to. Never used twice: an executor that outlives its
        driver may still be writing to an older one.
        """
        return self._area / f"{batch}.{uuid.uuid4().hex}"

    def commit(self, batch: int, attempt: Path) -> None:
        """Publish the files of an attempt as those of the batch."""
        os.rename(attempt, self._path(batch, _READY))
        self._publish(batch)

    def _publish(self, batch: int) -> None:
        ready = self._path(batch, _READY)
        for file in _data_files(ready):
            if self._is_wanted(file):
                place = self._root / file.parent.relative_to(ready)
                place.mkdir(parents=True, exist_ok=True)
                os.rename(file, place / f"batch-{batch:06}-{file.name}")
        older = self._numbers(_DONE)
        os.rename(ready, self._path(batch, _DONE))
        for number in older:
            _forget(self._path(number, _DONE))

    def _path(self, batch: int, state: str) -> Path:
        return self._area / f"{batch}.{state}"

    def _numbers(self, state: str) -> list[int]:
        return sorted(int(path.stem) for path in self._area.glob(f"*.{state}"))


def _data_files(directory: Path) -> Iterator[Path]:
    """The data files that Spark wrote, without markers and checksums."""
    for path in sorted(directory.rglob("*")):
        if path.is_file() and not path.name.startswith((".", "_")):
            yield path


def _forget(directory: Path) -> None:
    # Files that an executor without a driver still writes there do no harm.
    shutil.rmtree(directory, ignore_errors=True)


_HEADER_MAX = 65536


class FileTarget:
    """A directory of files on a disk with the same path for the driver and the workers."""

    def __init__(self, sink: FileSink, root: Path) -> None:
        self._sink = sink
        self._root = root

    def prepare(self) -> None:
        """Make the directory, before the first batch."""
        self._root.mkdir(parents=True, exist_ok=True)

    def write(self, frame: "DataFrame", batch: MicroBatch) -> bool:
        """Write the batch's files and move them into place, unless that was done before."""
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
    """Whether a file written by Spark has rows."""
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
