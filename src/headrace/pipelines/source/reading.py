"""Reading a range of offsets in a worker: Fetch answers in, Arrow batches out.

Rule: the next answer is on its way while the last one is decoded and passed on to Spark, and
nothing is asked for that lies behind the range.
"""

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.client.consumer.chunks import Batches, batches_of
from headrace.client.consumer.resets import beginning_offsets, end_offsets
from headrace.client.failures import TimedOut, UnknownTopic, Unreachable
from headrace.client.options import IsolationLevel
from headrace.client.outcomes import check
from headrace.errors import CorruptBatch, ErrorCode, KafkaError
from headrace.net.outgoing import ConnectionFailed
from headrace.pipelines.source.decoding import Decoder
from headrace.pipelines.source.failures import SourceError
from headrace.pipelines.source.links import Link, borrowed
from headrace.pipelines.source.losses import Losses
from headrace.pipelines.source.ranges import Range
from headrace.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    PartitionData,
)
from headrace.protocol.records import read_header
from headrace.types import ZERO_UUID, Buffer, TopicPartition, parse_uuid

if TYPE_CHECKING:
    from headrace.pipelines.source.options import ReadOptions

# How long a broker may lag behind the offsets it told the planner, as a new leader may at first.
LAG_S_MAX = 10.0

_BYTES_MAX = 0x7FFF_FFFF
_SESSIONLESS = -1


def read_range(options: "ReadOptions", range: Range) -> Iterator[pa.RecordBatch]:
    """The records of a range that its partition still has, in their order.

    What is gone is a DataLoss, or with `fail_on_data_loss` off a warning in the worker's log.
    """
    with borrowed(options.client) as link:
        yield from _Reader(options, range, link).batches()


class _Reader:
    """One pass through one range."""

    def __init__(self, options: "ReadOptions", range: Range, link: Link) -> None:
        self._tp = TopicPartition(range.topic, range.partition)
        self._topic_id = None if range.topic_id is None else parse_uuid(range.topic_id)
        self._position = range.start
        self._end = range.end
        self._link = link
        self._cluster = link.cluster
        self._losses = Losses(fail=options.fail_on_data_loss)
        self._committed_only = link.options.isolation_level is IsolationLevel.READ_COMMITTED
        self._bytes = link.options.max_partition_fetch_bytes
        self._decoder = Decoder(
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

    def _next_answer(self) -> tuple[int, Buffer, Batches] | None:
        """The batches from the position on, and which that was; None behind the last."""
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
            # Not one whole batch fits what was asked for, so more has to be asked for.
            self._bytes = min(self._bytes * 2, _BYTES_MAX)
        return None

    def _answer(self) -> PartitionData | None:
        """What the leader has at the position; None if that had to be moved."""
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
                # Spark may have been busy for so long that it was not the broker's fault.
                pass
        return self._link.run(self._fetch(self._position))

    async def _fetch(self, offset: int) -> PartitionData:
        cluster, tp = self._cluster, self._tp
        deadline = cluster.deadline()

        async def ask() -> PartitionData:
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
            check(response.error_code, subject="fetch")
            answer: PartitionData = response.responses[0].partitions[0]
            if answer.error_code == ErrorCode.UNKNOWN_TOPIC_ID:
                await self._check_topic_id(deadline)
            check(answer.error_code, subject=f"{tp} at offset {offset}")
            return answer

        return await cluster.retrying(ask, deadline)

    async def _check_topic_id(self, deadline: float) -> None:
        """UnknownTopic if the topic of the range is gone, whatever has its name by now."""
        name = self._tp.topic
        view = await self._cluster.refresh((name,), deadline)
        topic = view.topics.get(name)
        if self._topic_id is not None and topic is not None and topic.topic_id != self._topic_id:
            raise UnknownTopic(f"topic {name} was deleted and created again")

    def _decoded(self, begin: int, data: Buffer, found: Batches) -> Iterator[pa.RecordBatch]:
        try:
            yield from self._decoder.batches(data, found.headers, begin, self._end)
        except CorruptBatch as error:
            offset = read_header(data, self._decoder.position).base_offset
            raise self._corrupt(offset, error) from None
        if found.corrupt is not None and self._position < self._end:
            raise self._corrupt(self._position, found.corrupt)

    def _corrupt(self, offset: int, error: CorruptBatch) -> SourceError:
        return SourceError(
            f"{self._tp} has a corrupt batch at offset {offset}: {error}; read around it with"
            " startingOffsets and endingOffsets, and see `headrace log dump` on the broker"
        )

    def _move_into_log(self) -> None:
        """Go on where the log begins, if it does so in the range."""
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
        """Pass over offsets that nobody can read any more, if that is allowed."""
        if position == self._position:
            return
        self._losses.report(
            f"{self._tp}: offsets {self._position} to {position - 1} are gone: {reason}"
        )
        self._position = position
