"""A streaming read: Spark asks how far to go, then what that means for its tasks.

Everything but `read` runs in one process for as long as the query does.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from headrace.pipelines.source.links import borrowed
from headrace.pipelines.source.offsets import Offsets, from_json, places_of, to_json
from headrace.pipelines.source.options import LATEST, Bound, Place, ReadOptions
from headrace.pipelines.source.ranges import Range, RangePartition
from headrace.pipelines.source.topics import Topics

if TYPE_CHECKING:
    import pyarrow as pa


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """What `spark.readStream` reads with."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._target: Offsets | None = None
        self._latest: Offsets | None = None

    def initialOffset(self) -> dict[str, Any]:
        """Where a query without a checkpoint starts."""
        starting = self._options.starting or Bound("startingOffsets", Place(LATEST))
        with borrowed(self._options.client) as link:
            topics = Topics(self._options, link)
            return to_json(
                topics.resolve(
                    places_of(starting, topics.require()),
                    option=starting.option,
                    latest_if_no_record=starting.latest_if_no_record,
                )
            )

    def getDefaultReadLimit(self) -> ReadLimit:
        """How much a micro-batch reads unless the trigger says otherwise."""
        most = self._options.limits.max_offsets
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:
        """Remember what is there now: the query ends when it has been read."""
        self._target = self._ends()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """How far the next micro-batch goes."""
        begin = from_json(start)
        self._latest = self._ends()
        ends = self._target or self._latest
        share = limit.max_rows // len(ends) if isinstance(limit, ReadMaxRows) else None
        return to_json(
            {
                tp: max(
                    begin.get(tp, 0),
                    end if share is None else min(end, begin.get(tp, 0) + max(share, 1)),
                )
                for tp, end in ends.items()
            }
        )

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Where the topics end, for the progress of the query."""
        return None if self._latest is None else to_json(self._latest)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """What each task of a micro-batch reads."""
        begin = from_json(start)
        return [
            RangePartition(Range(tp.topic, tp.partition, begin.get(tp, 0), until))
            for tp, until in from_json(end).items()
            if until > begin.get(tp, 0)
        ]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """The records of one task."""
        from headrace.pipelines.source.reading import read_range  # noqa: PLC0415

        if isinstance(partition, RangePartition):
            yield from read_range(self._options, partition.range)

    def _ends(self) -> Offsets:
        with borrowed(self._options.client) as link:
            topics = Topics(self._options, link)
            return topics.ends(topics.require())
