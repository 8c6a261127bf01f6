"""Delivery of a task's rows to the brokers, and its guarantees.

A delivery is begun, sends rows, and is committed or aborted. The one here is at-least-once: a task
that succeeds has all of its rows on the brokers, and one that is run again writes them again. The
other is in `exactly_once`.
"""

from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from headrace.client.errors import TimedOut
from headrace.client.producer.delivery import ColumnsFuture
from headrace.client.producer.producer import Producer
from headrace.pipelines.datasource.errors import SinkError
from headrace.pipelines.datasource.write_options import WriteOptions
from headrace.types import TopicPartition


@dataclass(frozen=True, slots=True)
class SinkTask:
    """The identity of a write task: query, batch, partition and attempt.

    `query_id` and `batch_id` are None for a batch write without a name. A streaming batch that is
    planned again after a failure has the same ones.
    """

    query_id: str | None
    batch_id: int | None
    partition_id: int
    attempt: int

    def __str__(self) -> str:
        batch = "" if self.batch_id is None else f" of batch {self.batch_id}"
        return f"task {self.partition_id}{batch}"


def current_task() -> SinkTask:
    """The task that this process runs now."""
    context = TaskContext.get()
    assert context is not None, "writers write in tasks"
    batch_id = context.getLocalProperty("streaming.sql.batchId")
    return SinkTask(
        context.getLocalProperty("sql.streaming.queryId"),
        None if batch_id is None else int(batch_id),
        context.partitionId(),
        context.attemptNumber(),
    )


@dataclass(frozen=True, slots=True)
class WrittenSpan:
    """A count of `rows` records written to a partition, and the first and last of their offsets;
    other records may lie between. Offsets are -1 with `acks=0`.
    """

    rows: int
    first_offset: int
    last_offset: int


@dataclass(frozen=True)
class WrittenRows(WriterCommitMessage):
    """The rows a task has written: sent to the driver once all of them are acknowledged.

    `rows_before` are rows that an earlier attempt had written, and this one did not write again.
    """

    task: SinkTask
    spans: dict[TopicPartition, WrittenSpan]
    rows_before: int = 0

    @property
    def rows(self) -> int:
        """The number of rows the task has written."""
        return sum(span.rows for span in self.spans.values())


class TaskDelivery(Protocol):
    """The life of one task's rows. `begin` comes first, and `commit` or `abort` last."""

    def begin(self) -> None:
        """Get ready to send."""
        ...

    def send(self, topic: str, rows: pa.RecordBatch) -> None:
        """Send rows, or raise the error of earlier ones."""
        ...

    def commit(self) -> WrittenRows:
        """Return when every row is acknowledged."""
        ...

    def abort(self) -> None:
        """Send no more rows. Does not raise errors that were raised before."""
        ...


class PendingSends:
    """Rows that were passed to a producer, and the partitions and offsets of acknowledged ones.

    Memory is bounded by the producer's `buffer.memory`, and by the size of Spark's batches.
    """

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._spans: dict[TopicPartition, WrittenSpan] = {}
        self._unsettled: deque[ColumnsFuture] = deque()

    def send(self, topic: str, rows: pa.RecordBatch) -> None:
        """Pass rows to the producer, and raise the error of earlier ones."""
        try:
            self._unsettled.append(self._producer.send_arrow(topic, rows))
        except (TypeError, ValueError) as error:
            raise SinkError(f"rows for topic {topic}: {error}") from error
        while self._unsettled and self._unsettled[0].done():
            self._settle()

    def settle(self) -> dict[TopicPartition, WrittenSpan]:
        """Wait until all sent rows are acknowledged; returns their partitions and offsets."""
        while self._unsettled:
            self._settle()
        return self._spans

    def _settle(self) -> None:
        for batch in self._unsettled.popleft().result():
            where = TopicPartition(batch.topic, batch.partition)
            first, last = batch.base_offset, batch.base_offset + batch.count - 1
            before = self._spans.get(where, WrittenSpan(0, first, last))
            self._spans[where] = WrittenSpan(
                before.rows + batch.count,
                min(before.first_offset, first),
                max(before.last_offset, last),
            )


class AtLeastOnce:
    """Rows are written when they are sent, so a task that is run again writes them again."""

    def __init__(self, options: WriteOptions, task: SinkTask) -> None:
        self._options = options
        self._task = task

    def begin(self) -> None:
        """Make a producer, which connects when it is first used."""
        self._producer = Producer(**self._options.producer())
        self._outbox = PendingSends(self._producer)

    def send(self, topic: str, rows: pa.RecordBatch) -> None:
        """Pass rows to the producer, and raise the error of earlier ones."""
        self._outbox.send(topic, rows)

    def commit(self) -> WrittenRows:
        """Wait until all sent rows are acknowledged."""
        spans = self._outbox.settle()
        self._producer.close()
        return WrittenRows(self._task, spans)

    def abort(self) -> None:
        """Close the producer without waiting for rows in flight."""
        with suppress(TimedOut):
            self._producer.close(timeout_ms=0)


def deliver(delivery: TaskDelivery, rows: Iterable[tuple[str, pa.RecordBatch]]) -> WrittenRows:
    """Send rows to their topics and commit; on any error abort and raise.

    All rows are consumed, even if the delivery skips them: the tasks that make them keep the state
    of the query.
    """
    delivery.begin()
    try:
        for topic, batch in rows:
            delivery.send(topic, batch)
        return delivery.commit()
    except BaseException:
        delivery.abort()
        raise
