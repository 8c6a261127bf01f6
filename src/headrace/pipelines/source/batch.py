"""A batch read: offsets are settled once, then every task reads its range."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from headrace.pipelines.source.bounds import FROM_EARLIEST, TO_LATEST
from headrace.pipelines.source.failures import OptionError
from headrace.pipelines.source.filters import Pruning, spark_pushes_filters, taken
from headrace.pipelines.source.links import borrowed
from headrace.pipelines.source.losses import Losses
from headrace.pipelines.source.options import ReadOptions
from headrace.pipelines.source.ranges import Range, RangePartition
from headrace.pipelines.source.splits import parallelism, split
from headrace.pipelines.source.topics import Topics

if TYPE_CHECKING:
    import pyarrow as pa


class BatchReader(DataSourceReader):
    """What `spark.read` reads with."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._pruning = Pruning()

    def partitions(self) -> list[InputPartition]:
        """What each task reads."""
        with borrowed(self._options.client) as link:
            ranges = batch_ranges(self._options, Topics(self._options, link), self._pruning)
        return [RangePartition(one) for one in split(ranges, self._options, parallelism())]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """The records of one task."""
        from headrace.pipelines.source.reading import read_range  # noqa: PLC0415

        # If there is nothing to read, Spark reads a partition of its own making.
        if not isinstance(partition, RangePartition):
            return iter(())
        return read_range(self._options, partition.range)


class FilteringBatchReader(BatchReader):
    """One that leaves out what the query's filters do."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take what filters can be taken; those returned are for Spark to apply."""
        self._pruning, rest = taken(filters)
        return rest


def batch_reader(options: ReadOptions) -> DataSourceReader:
    """The reader for what Spark is doing in this process."""
    return FilteringBatchReader(options) if spark_pushes_filters(options) else BatchReader(options)


def batch_ranges(options: ReadOptions, topics: Topics, pruning: Pruning) -> list[Range]:
    """The offsets of each partition that have to be read."""
    found = topics.require()
    partitions = found.partitions
    starting = options.starting or FROM_EARLIEST
    starts = topics.resolve(starting, partitions)
    ends = topics.resolve(options.ending or TO_LATEST, partitions)
    kept = [tp for tp in partitions if pruning.keeps(tp)]
    # The ends are known by now, so whatever is appended meanwhile is not missed.
    since = None if pruning.since_ms is None else topics.since(kept, pruning.since_ms)
    firsts, lasts = topics.beginnings(kept), topics.ends(kept)
    losses = Losses(fail=options.fail_on_data_loss)
    ranges = []
    for tp in kept:
        start, end = starts[tp], ends[tp]
        if start > end and starting.each is not None:
            raise OptionError(
                f"{tp} is to be read from offset {start} to {end}; check {starting.option}"
            )
        # "Earliest" is where the partition begins, even if that has moved meanwhile.
        if start < firsts[tp] and start < end and starting.each is not None:
            losses.report(f"{tp} begins at offset {firsts[tp]}, and {start} was to be read")
        if end > lasts[tp]:
            losses.report(f"{tp} ends at offset {lasts[tp]}, and was to be read up to {end}")
        first, until = pruning.within(max(start, firsts[tp]), min(end, lasts[tp]))
        if since is not None:
            first = max(first, since.get(tp, until))
        topic_id = found.topic_ids.get(tp.topic)
        ranges.append(Range(tp.topic, tp.partition, first, until, topic_id))
    return ranges
