"""Batch and streaming readers for Spark, and the reading of a range in a worker."""

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, Filter, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from headrace.client.consumer.completed_fetch import ReadableBatches, batches_of
from headrace.client.errors import TimedOut, Unreachable, check
from headrace.client.list_offsets import beginning_offsets, end_offsets
from headrace.client.options import IsolationLevel, consumer_options, from_properties
from headrace.client.property_files import resolved_properties
from headrace.clock import SystemClock
from headrace.errors import CorruptBatch, ErrorCode, KafkaError, Subject, UnknownTopic
from headrace.net.client_connection import ConnectionFailed
from headrace.pipelines.datasource.brokers import PooledConnection, SourceTopics, borrowed
from headrace.pipelines.datasource.errors import LossHandling, OptionError, SourceError
from headrace.pipelines.datasource.filters import OffsetFilter, spark_pushes_filters, taken
from headrace.pipelines.datasource.offset_ranges import (
    OffsetRange,
    RangePartition,
    from_json,
    parallelism,
    split,
    to_json,
)
from headrace.pipelines.datasource.planner import Planner
from headrace.pipelines.datasource.read_options import (
    FROM_EARLIEST,
    TO_LATEST,
    MicroBatchLimits,
    ReadOptions,
)
from headrace.pipelines.datasource.record_columns import PartitionDecoder
from headrace.protocol.batch import read_header
from headrace.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    PartitionData,
)
from headrace.types import ZERO_UUID, Buffer, TopicPartition, parse_uuid


class SparkBatchReader(DataSourceReader):
    """The reader behind `spark.read`."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._pruning = OffsetFilter()

    def partitions(self) -> list[InputPartition]:
        """The inputs of all tasks."""
        with borrowed(self._options.client) as link:
            ranges = batch_ranges(self._options, SourceTopics(self._options, link), self._pruning)
        return [
            RangePartition(offset_range)
            for offset_range in split(ranges, self._options, parallelism())
        ]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """The records of one task."""

        # For an empty read Spark passes a partition of its own.
        if not isinstance(partition, RangePartition):
            return iter(())
        return read_range(self._options, partition.range)


class FilteringBatchReader(SparkBatchReader):
    """A SparkBatchReader that skips partitions and offsets excluded by the query's filters."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Apply the filters that can be pushed down; Spark applies the returned ones."""
        self._pruning, rest = taken(filters)
        return rest


def batch_reader(options: ReadOptions) -> DataSourceReader:
    """The reader for this process: with filter pushdown if Spark uses it."""
    return (
        FilteringBatchReader(options)
        if spark_pushes_filters(options)
        else SparkBatchReader(options)
    )


def batch_ranges(
    options: ReadOptions, topics: SourceTopics, pruning: OffsetFilter
) -> list[OffsetRange]:
    """The offset range of each partition that has to be read."""
    found = topics.require()
    partitions = found.partitions
    starting = options.starting or FROM_EARLIEST
    starts = topics.resolve(starting, partitions)
    ends = topics.resolve(options.ending or TO_LATEST, partitions)
    kept = [tp for tp in partitions if pruning.keeps(tp)]
    # The ends are fixed by now, so a record appended meanwhile is out of range either way.
    since = None if pruning.since_ms is None else topics.since(kept, pruning.since_ms)
    firsts, lasts = topics.beginnings(kept), topics.ends(kept)
    losses = LossHandling(fail=options.fail_on_data_loss)
    ranges = []
    for tp in kept:
        start, end = starts[tp], ends[tp]
        if start > end and starting.each is not None:
            raise OptionError(
                f"{tp} is to be read from offset {start} to {end}; check {starting.option}"
            )
        # EARLIEST is the start of the log, even if that has moved meanwhile.
        if start < firsts[tp] and start < end and starting.each is not None:
            losses.report(f"{tp} begins at offset {firsts[tp]}, and {start} was to be read")
        if end > lasts[tp]:
            losses.report(f"{tp} ends at offset {lasts[tp]}, and was to be read up to {end}")
        first, until = pruning.within(max(start, firsts[tp]), min(end, lasts[tp]))
        if since is not None:
            first = max(first, since.get(tp, until))
        topic_id = found.topic_ids.get(tp.topic)
        ranges.append(OffsetRange(tp.topic, tp.partition, first, until, topic_id))
    return ranges


# Reading a range of offsets in a worker: Fetch responses in, Arrow batches out.
#
# Rule: the next response is in flight while the last one is decoded and passed to Spark, and
# nothing behind the range is fetched.


# How long a broker may lag behind the planned end offsets, as a new leader may at first.
LAG_S_MAX = 10.0

_BYTES_MAX = 0x7FFF_FFFF
_SESSIONLESS = -1


def read_range(options: "ReadOptions", range: OffsetRange) -> Iterator[pa.RecordBatch]:
    """The records of a range that its partition still has, in their order.

    Deleted records are a DataLoss, or with `fail_on_data_loss` off a warning in the worker's log.
    """
    with borrowed(options.client) as link:
        yield from _RangeReader(options, range, link).batches()


class _RangeReader:
    """One pass through one range."""

    def __init__(self, options: "ReadOptions", range: OffsetRange, link: PooledConnection) -> None:
        self._tp = TopicPartition(range.topic, range.partition)
        self._topic_id = None if range.topic_id is None else parse_uuid(range.topic_id)
        self._position = range.start
        self._end = range.end
        self._link = link
        self._cluster = link.cluster
        self._losses = LossHandling(fail=options.fail_on_data_loss)
        self._committed_only = link.options.isolation_level is IsolationLevel.READ_COMMITTED
        self._bytes = link.options.max_partition_fetch_bytes
        self._decoder = PartitionDecoder(
            options.columns,
            self._tp,
            options.max_batch_rows,
            check_crcs=link.options.check_crcs,
        )
        self._ahead: asyncio.Task[PartitionData] | None = None

    def batches(self) -> Iterator[pa.RecordBatch]:
        try:
            while (answer := self._next_answer()) is not None:
                begin, data, found = answer
                self._position = found.next_offset
                if self._position < self._end and found.corrupt is None:
                    self._ahead = self._link.begin(self._fetch(self._position))
                yield from self._decoded(begin, data, found)
        finally:
            if self._ahead is not None:
                self._ahead.cancel()
                self._link.run(asyncio.sleep(0))

    def _next_answer(self) -> tuple[int, Buffer, ReadableBatches] | None:
        """The next readable batches, with their position and data; None behind the last."""
        empty_since: float | None = None
        while self._position < self._end:
            answer = self._answer()
            if answer is None:
                continue
            if not answer.records:
                now = self._cluster.clock.monotonic()
                empty_since = now if empty_since is None else empty_since
                if now - empty_since >= LAG_S_MAX:
                    self._lose(self._end, f"the partition ends at offset {self._position}")
                continue
            aborted = answer.aborted_transactions if self._committed_only else None
            found = batches_of(answer.records, self._position, aborted)
            if found is not None:
                return self._position, answer.records, found
            # Not one whole batch fits the requested size, so a larger size has to be requested.
            self._bytes = min(self._bytes * 2, _BYTES_MAX)
        return None

    def _answer(self) -> PartitionData | None:
        """The leader's data at the position; None if the position had to be moved."""
        try:
            return self._run_fetch()
        except UnknownTopic as error:
            self._lose(self._end, error.detail)
        except KafkaError as error:
            if error.code is not ErrorCode.OFFSET_OUT_OF_RANGE:
                raise
            self._move_into_log()
        return None

    def _run_fetch(self) -> PartitionData:
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            try:
                return self._link.run(ahead)
            except (TimedOut, ConnectionFailed, Unreachable):
                # Spark may have been busy for longer than the timeout, so the broker is not at
                # fault.
                pass
        return self._link.run(self._fetch(self._position))

    async def _fetch(self, offset: int) -> PartitionData:
        cluster, tp = self._cluster, self._tp
        deadline = cluster.deadline()

        async def attempt() -> PartitionData:
            partition = await cluster.partition(tp, deadline)
            topic = cluster.known_topic(tp.topic)
            request = FetchRequest(
                max_wait_ms=self._link.options.fetch_max_wait_ms,
                min_bytes=1,
                max_bytes=self._bytes,
                isolation_level=self._link.options.isolation_level,
                session_epoch=_SESSIONLESS,
                topics=[
                    FetchTopic(
                        topic=tp.topic,
                        topic_id=self._topic_id or (topic.topic_id if topic else ZERO_UUID),
                        partitions=[
                            FetchPartition(
                                partition=tp.partition,
                                current_leader_epoch=partition.leader_epoch,
                                fetch_offset=offset,
                                partition_max_bytes=self._bytes,
                            )
                        ],
                    )
                ],
            )
            response = await cluster.call(request, deadline, partition.leader)
            check(response.error_code, subject=Subject("fetch"))
            answer: PartitionData = response.responses[0].partitions[0]
            if answer.error_code == ErrorCode.UNKNOWN_TOPIC_ID:
                await self._check_topic_id(deadline)
            check(answer.error_code, subject=Subject("partition", f"{tp} at offset {offset}"))
            return answer

        return await cluster.retrying(attempt, deadline)

    async def _check_topic_id(self, deadline: float) -> None:
        """Raise UnknownTopic if the topic of the range was deleted, even if it was recreated."""
        name = self._tp.topic
        view = await self._cluster.refresh((name,), deadline)
        topic = view.topics.get(name)
        if self._topic_id is not None and topic is not None and topic.topic_id != self._topic_id:
            raise UnknownTopic(f"topic {name} was deleted and created again")

    def _decoded(
        self, begin: int, data: Buffer, found: ReadableBatches
    ) -> Iterator[pa.RecordBatch]:
        try:
            yield from self._decoder.batches(data, found.headers, begin, self._end)
        except CorruptBatch as error:
            offset = read_header(data, self._decoder.position).base_offset
            raise self._corrupt(offset, error) from None
        if found.corrupt is not None and self._position < self._end:
            raise self._corrupt(self._position, found.corrupt)

    def _corrupt(self, offset: int, error: CorruptBatch) -> SourceError:
        return SourceError(
            f"{self._tp} has a corrupt batch at offset {offset}: {error}",
            advice=(
                "read around it with"
                " startingOffsets and endingOffsets, and see `headrace log dump` on the broker"
            ),
        )

    def _move_into_log(self) -> None:
        """Move the position to the start of the log, if that lies in the range."""
        first, last = self._link.run(self._log_ends())
        if last < self._position:
            self._lose(self._end, f"the partition ends at offset {last}")
        else:
            self._lose(min(max(first, self._position), self._end), f"it begins at offset {first}")

    async def _log_ends(self) -> tuple[int, int]:
        cluster, partitions = self._cluster, [self._tp]
        deadline = cluster.deadline()
        first = await beginning_offsets(cluster, partitions, deadline)
        last = await end_offsets(cluster, partitions, deadline, IsolationLevel.READ_UNCOMMITTED)
        return first[self._tp], last[self._tp]

    def _lose(self, position: int, reason: str) -> None:
        """Report deleted offsets, and skip them if losses are allowed."""
        if position == self._position:
            return
        self._losses.report(
            f"{self._tp}: offsets {self._position} to {position - 1} are gone: {reason}"
        )
        self._position = position


# A streaming read: Spark requests the end offset of each micro-batch, then its partitions.
#
# All methods but `read` run in one process for as long as the query does; it gets no call to stop.


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader behind `spark.readStream`."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._link: PooledConnection | None = None

    @cached_property
    def _planner(self) -> Planner:
        # Made on first use: the reader is also sent to tasks, which plan nothing.
        client = from_properties(resolved_properties(self._options.client), "consumer")
        self._link = PooledConnection(consumer_options(**client))
        topics = SourceTopics(self._options, self._link)
        return Planner(self._options, topics, SystemClock(), parallelism())

    def initialOffset(self) -> dict[str, Any]:
        """The first offsets of a query without a checkpoint."""
        return to_json(self._planner.initial())

    def getDefaultReadLimit(self) -> ReadLimit:
        """The limit of a micro-batch; of several limits Spark uses only one."""
        limits = self._options.limits
        if limits.max_offsets is not None:
            return ReadMaxRows(limits.max_offsets)
        if limits.max_bytes is not None:
            return ReadMaxBytes(limits.max_bytes)
        if limits.min_offsets is not None:
            return ReadMinRows(limits.min_offsets)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Set the present end offsets as the end of the query."""
        self._planner.aim_at_now()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The end offsets of the next micro-batch."""
        return to_json(self._planner.latest(from_json(start), self._limits(limit)))

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The end offsets of the topics, for the progress of the query."""
        ends = self._planner.ends
        return None if ends is None else to_json(ends)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The inputs of all tasks of a micro-batch."""
        ranges = self._planner.ranges(from_json(start), from_json(end))
        return [RangePartition(range_) for range_ in ranges]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """The records of one task."""

        assert isinstance(partition, RangePartition)
        return read_range(self._options, partition.range)

    def commit(self, end: dict[str, Any]) -> None:
        """Note that micro-batches up to this position are complete."""
        self._planner.commit(from_json(end))

    def stop(self) -> None:
        """Close the connections, if Spark calls this instead of ending the process."""
        if self._link is not None:
            self._link.close()
            self._link = None

    def _limits(self, limit: ReadLimit) -> MicroBatchLimits:
        """The limit from `getDefaultReadLimit`, or that of the trigger instead."""
        match limit:
            case ReadAllAvailable():
                return MicroBatchLimits()
            case ReadMaxRows(max_rows=most):
                return replace(self._options.limits, max_offsets=most)
        return self._options.limits
