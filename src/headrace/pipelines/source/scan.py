"""Direct scan: the segments of a data directory, read in parallel and without a broker.

Rule: the planner settles which bytes of which files are read, and tasks read just these. What the
broker deletes in between is a DataLoss, as it would be through the broker.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from headrace.errors import CorruptBatch, StorageError
from headrace.pipelines.source.batch import BatchReader, FilteringBatchReader, batch_ranges
from headrace.pipelines.source.failures import SourceError
from headrace.pipelines.source.filters import spark_pushes_filters
from headrace.pipelines.source.options import ReadOptions
from headrace.pipelines.source.ranges import Range
from headrace.pipelines.source.splits import parallelism
from headrace.pipelines.source.stored_topics import StoredTopics
from headrace.storage.stored import Aborted, Extent

if TYPE_CHECKING:
    import pyarrow as pa

# What one task reads: enough to be worth a task, and not so much that the last one is waited for.
SPLIT_BYTES_MIN = 8 * 1_048_576
SPLIT_BYTES_MAX = 128 * 1_048_576
# Tasks for each core, so that one that is slower than the others does not hold up everything.
SPLITS_PER_CORE = 2


@dataclass(frozen=True)
class ScanPartition(InputPartition):
    """What one task reads: the records of a range that lie in some bytes of a segment."""

    range: Range
    extent: Extent
    aborted: tuple[Aborted, ...] = ()


class ScanReader(BatchReader):
    """What `spark.read` reads with where the option `path` is given."""

    def partitions(self) -> list[InputPartition]:
        """What each task reads, in the order of topics, partitions and offsets."""
        options = self._options
        try:
            topics = StoredTopics(options)
            ranges = batch_ranges(options, topics, self._pruning)
            return list(splits(options, topics, ranges, parallelism()))
        except CorruptBatch as error:
            raise SourceError(
                f"{error}; if the broker is stopped, starting it cuts a torn end off; else see"
                " `headrace log dump`, and read around it with startingOffsets and endingOffsets"
            ) from None
        except StorageError as error:
            raise SourceError(
                f"{error}; option path must name data directories that Spark can read here"
            ) from None

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """The records of one task."""
        from headrace.pipelines.source.scanning import read_scan  # noqa: PLC0415

        # If there is nothing to read, Spark reads a partition of its own making.
        if not isinstance(partition, ScanPartition):
            return iter(())
        return read_scan(self._options, partition)


class FilteringScanReader(ScanReader, FilteringBatchReader):
    """One that leaves out what the query's filters do."""


def scan_reader(options: ReadOptions) -> DataSourceReader:
    """The reader for what Spark is doing in this process."""
    return FilteringScanReader(options) if spark_pushes_filters(options) else ScanReader(options)


def splits(
    options: ReadOptions, topics: StoredTopics, ranges: Sequence[Range], cores: int
) -> list[ScanPartition]:
    """The ranges as bytes of files, in pieces for so many cores."""
    committed_only = options.client["isolation.level"] == "read_committed"
    if committed_only:
        ranges = [_decided(topics, one) for one in ranges]
    wanted = [one for one in ranges if one.start < one.end]
    whole = [
        extent
        for one in wanted
        for extent in topics.log(one.topic, one.partition).extents(one.start, one.end)
    ]
    total = sum(extent.limit - extent.position for extent in whole)
    share = min(max(total // (cores * SPLITS_PER_CORE), SPLIT_BYTES_MIN), SPLIT_BYTES_MAX)
    if options.min_partitions is not None:
        share = min(share, max(total // options.min_partitions, 1))
    found = []
    for one in wanted:
        log = topics.log(one.topic, one.partition)
        aborted = tuple(log.aborted(one.start, one.end)) if committed_only else ()
        found += [
            ScanPartition(one, extent, aborted) for extent in log.extents(one.start, one.end, share)
        ]
    return found


def _decided(topics: StoredTopics, one: Range) -> Range:
    """The part of a range in which no transaction is open."""
    stable = topics.log(one.topic, one.partition).last_stable_offset()
    return replace(one, end=max(min(one.end, stable), one.start))
