"""A batch read: offsets are settled once, then every task reads its range."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from headrace.pipelines.source.links import borrowed
from headrace.pipelines.source.offsets import places_of
from headrace.pipelines.source.options import EARLIEST, LATEST, Bound, Place, ReadOptions
from headrace.pipelines.source.ranges import Range, RangePartition
from headrace.pipelines.source.topics import Topics

if TYPE_CHECKING:
    import pyarrow as pa


class BatchReader(DataSourceReader):
    """What `spark.read` reads with."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        """What each task reads."""
        options = self._options
        with borrowed(options.client) as link:
            topics = Topics(options, link)
            found = topics.require()
            starting = options.starting or Bound("startingOffsets", Place(EARLIEST))
            ending = options.ending or Bound("endingOffsets", Place(LATEST))
            starts, ends = (
                topics.resolve(
                    places_of(bound, found),
                    option=bound.option,
                    latest_if_no_record=bound.latest_if_no_record,
                )
                for bound in (starting, ending)
            )
        return [
            RangePartition(Range(tp.topic, tp.partition, starts[tp], ends[tp]))
            for tp in found
            if starts[tp] < ends[tp]
        ]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """The records of one task."""
        from headrace.pipelines.source.reading import read_range  # noqa: PLC0415

        # Spark asks even if there is nothing to read, with a partition of its own.
        if isinstance(partition, RangePartition):
            yield from read_range(self._options, partition.range)


def batch_reader(options: ReadOptions) -> DataSourceReader:
    """The reader for what Spark asks now."""
    return BatchReader(options)
