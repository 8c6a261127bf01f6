"""A streaming read: Spark asks how far to go, then what that means for its tasks.

Everything but `read` runs in one process for as long as the query does; nobody tells it to stop.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from headrace.client.options import consumer_options, from_properties
from headrace.clock import SystemClock
from headrace.pipelines.source.links import Link
from headrace.pipelines.source.offsets import from_json, to_json
from headrace.pipelines.source.options import Limits, ReadOptions
from headrace.pipelines.source.planner import Planner
from headrace.pipelines.source.ranges import RangePartition
from headrace.pipelines.source.splits import parallelism
from headrace.pipelines.source.topics import Topics

if TYPE_CHECKING:
    import pyarrow as pa


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """What `spark.readStream` reads with."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._link: Link | None = None

    @cached_property
    def _planner(self) -> Planner:
        # Made when it is needed: the reader also travels to tasks, which plan nothing.
        client = from_properties(self._options.client, "consumer")
        self._link = Link(consumer_options(**client))
        topics = Topics(self._options, self._link)
        return Planner(self._options, topics, SystemClock(), parallelism())

    def initialOffset(self) -> dict[str, Any]:
        """Where a query without a checkpoint starts."""
        return to_json(self._planner.initial())

    def getDefaultReadLimit(self) -> ReadLimit:
        """How much a micro-batch reads; of several limits Spark can be told one only."""
        limits = self._options.limits
        if limits.max_offsets is not None:
            return ReadMaxRows(limits.max_offsets)
        if limits.max_bytes is not None:
            return ReadMaxBytes(limits.max_bytes)
        if limits.min_offsets is not None:
            return ReadMinRows(limits.min_offsets)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Remember what is there now: the query ends when it has been read."""
        self._planner.aim_at_now()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """How far the next micro-batch goes."""
        return to_json(self._planner.latest(from_json(start), self._limits(limit)))

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Where the topics end, for the progress of the query."""
        ends = self._planner.ends
        return None if ends is None else to_json(ends)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """What each task of a micro-batch reads."""
        ranges = self._planner.ranges(from_json(start), from_json(end))
        return [RangePartition(one) for one in ranges]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """The records of one task."""
        from headrace.pipelines.source.reading import read_range  # noqa: PLC0415

        assert isinstance(partition, RangePartition)
        return read_range(self._options, partition.range)

    def commit(self, end: dict[str, Any]) -> None:
        """A micro-batch is complete up to here."""
        self._planner.commit(from_json(end))

    def stop(self) -> None:
        """Close the connections, should Spark say so rather than end the process."""
        if self._link is not None:
            self._link.close()
            self._link = None

    def _limits(self, limit: ReadLimit) -> Limits:
        """What Spark was told by `getDefaultReadLimit`, or what its trigger says instead."""
        match limit:
            case ReadAllAvailable():
                return Limits()
            case ReadMaxRows(max_rows=most):
                return replace(self._options.limits, max_offsets=most)
        return self._options.limits
