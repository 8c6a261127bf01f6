"""Exactly-once writes: rows are written once, however often Spark runs their task.

Each task writes in one transaction. Its transactional id is made of the query and the number of the
task, so a new attempt fences the older ones; and its mark, which records the batch as written, is
committed in the transaction with the rows. An attempt first acquires the id, which aborts open
transactions of earlier attempts, and then reads the mark: from then on no other attempt can change
it.

Nothing of this needs more than Kafka's protocol.
"""

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from headrace.client.admin.groups import GroupOffsetAdmin
from headrace.client.cluster import ClusterClient
from headrace.client.coordinator_lookup import CoordinatorLookup
from headrace.client.producer.producer import Producer
from headrace.client.types import OffsetAndMetadata
from headrace.errors import ErrorCode, HeadraceError, KafkaError
from headrace.pipelines.datasource.brokers import borrowed, topic_ids
from headrace.pipelines.datasource.delivery import PendingSends, SinkTask, WrittenRows
from headrace.pipelines.datasource.errors import SinkError
from headrace.pipelines.datasource.read_options import listed
from headrace.pipelines.datasource.write_options import WriteOptions
from headrace.types import TopicPartition

# The progress of a query's tasks, stored by the brokers: a mark for each task.
#
# A mark is the committed offset of a consumer group without members that is named as the task's
# transactional id. It is committed in the transaction that has the rows, so the rows are there if
# and only if the mark is. The partition it is committed for has to exist and means nothing else:
# it is the first of each topic that the rows went to. The mark of a topic has the topic's id: rows
# in a topic that was deleted are gone, whatever has its name by now.


@dataclass(frozen=True, slots=True)
class BatchMark:
    """The record that all batches of a task up to and including `batch_id` are written.

    `rows` is the number of rows of the last batch, and `topic_count` the number of topics they went
    to; both are None if the commit has no metadata. `topic_ids` has the topics that still have the
    mark, with the ids they had: brokers may delete it with the topic.
    """

    batch_id: int
    rows: int | None
    topic_count: int | None = None
    topic_ids: Mapping[str, str] = field(default_factory=dict)

    def kept(self, current: Mapping[str, str]) -> list[str]:
        """The topics that still have the rows of the batch, given the present topic ids."""
        return sorted(name for name, known in self.topic_ids.items() if current.get(name) == known)


def mark_offsets(
    batch_id: int, rows: int, topics: Iterable[str], topic_ids: Mapping[str, str]
) -> dict[TopicPartition, OffsetAndMetadata]:
    """The offsets to commit for a mark in a transaction with rows for these topics.

    As with any group, the offset is that of the next one.
    """
    named = list(topics)
    document = {"batch": batch_id, "rows": rows, "topics": len(named)}
    return {
        TopicPartition(topic, 0): OffsetAndMetadata(
            batch_id + 1, json.dumps({**document, "topic_id": topic_ids.get(topic)})
        )
        for topic in named
    }


def find_mark(cluster: Mapping[str, str], group: str) -> BatchMark | None:
    """The mark of a task, or None; `cluster` has properties of a client.

    Waits for pending transactions.
    """
    with borrowed(cluster) as link:
        groups = GroupOffsetAdmin(link.cluster, CoordinatorLookup(link.cluster))
        return newest(link.run(groups.committed(group, require_stable=True)))


def current_topic_ids(cluster: Mapping[str, str], topics: Iterable[str]) -> dict[str, str]:
    """The present ids of topics; a deleted topic is left out."""
    with borrowed(cluster) as link:
        return link.run(_topic_ids(link.cluster, tuple(topics)))


async def _topic_ids(cluster: ClusterClient, names: tuple[str, ...]) -> dict[str, str]:
    deadline = cluster.deadline()
    view = await cluster.retrying(lambda: cluster.refresh(names, deadline), deadline)
    return topic_ids(view.topics[name] for name in names if name in view.topics)


def newest(committed: Mapping[TopicPartition, OffsetAndMetadata]) -> BatchMark | None:
    """The mark of the latest batch: topics without rows in that batch keep an older one."""
    last = max((offset.offset for offset in committed.values()), default=None)
    if last is None:
        return None
    documents = {
        tp.topic: _document(offset.metadata)
        for tp, offset in committed.items()
        if offset.offset == last
    }
    document = next(iter(documents.values()))
    ids = {topic: known.get("topic_id") for topic, known in documents.items()}
    return BatchMark(
        last - 1,
        _number(document, "rows"),
        _number(document, "topics"),
        {topic: known for topic, known in ids.items() if isinstance(known, str)},
    )


def _document(metadata: str) -> dict[str, Any]:
    try:
        document = json.loads(metadata)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def _number(document: Mapping[str, Any], name: str) -> int | None:
    value = document.get(name)
    return value if isinstance(value, int) else None


# The time limit for a failed task to abort its transaction. If it does not succeed, the next
# attempt aborts the transaction, or its timeout does.
_ABORT_MS_MAX = 5_000

# Error codes for a fenced producer, and for a producer whose transaction the brokers have ended.
_FENCED = (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH)
_ENDED = (*_FENCED, ErrorCode.INVALID_TXN_STATE, ErrorCode.TRANSACTION_ABORTABLE)


class ExactlyOnce:
    """The rows of a task in one transaction, with the mark that records them.

    A task without rows does nothing at all: there is nothing that could be repeated.
    """

    def __init__(self, options: WriteOptions, task: SinkTask) -> None:
        assert task.query_id is not None and task.batch_id is not None, "a write has a name"
        self._options = options
        self._task = task
        self._batch_id = task.batch_id
        self._name = f"{options.prefix}-{task.query_id}-{task.partition_id}"
        self._config = options.transactional_producer(self._name)
        self._timeout_ms = self._config["transaction_timeout_ms"]
        self._producer: Producer | None = None
        self._mark: BatchMark | None = None
        self._begun = time.monotonic()
        self._topics: set[str] = set()
        self._rows = 0

    def begin(self) -> None:
        """Do nothing yet: the first row begins a transaction."""

    def send(self, topic: str, rows: pa.RecordBatch) -> None:
        """Send rows within the transaction, or only count them if they are written already."""
        if not rows.num_rows:
            return
        self._rows += rows.num_rows
        with self._explained():
            if self._producer is None:
                self._open(topic)
            if not self._is_written:
                self._topics.add(topic)
                self._outbox.send(topic, rows)

    def commit(self) -> WrittenRows:
        """Commit rows and mark together; return when the coordinator has decided."""
        if self._producer is None:
            return WrittenRows(self._task, {})
        if self._is_written:
            self._check_rows()
            self._producer.close()
            return WrittenRows(self._task, {}, rows_before=self._rows)
        with self._explained():
            spans = self._outbox.settle()
            topics = sorted(self._topics)
            ids = current_topic_ids(self._options.cluster(), topics)
            offsets = mark_offsets(self._batch_id, self._rows, topics, ids)
            self._producer.send_offsets_to_transaction(offsets, self._name)
            self._producer.commit_transaction()
            self._producer.close()
        return WrittenRows(self._task, spans)

    def abort(self) -> None:
        """Abort the transaction if possible, and close the producer in any case."""
        if self._producer is not None:
            with suppress(HeadraceError):
                self._producer.close(timeout_ms=_ABORT_MS_MAX)

    @property
    def _is_written(self) -> bool:
        return self._mark is not None and self._mark.batch_id >= self._batch_id

    def _open(self, topic: str) -> None:
        """Fence other attempts, then check whether one of them has written the batch."""
        self._producer = Producer(**self._config)
        # A mark is committed for a partition that exists.
        self._producer.partitions_for(topic)
        self._producer.init_transactions()
        self._mark = self._valid_mark()
        if not self._is_written:
            self._producer.begin_transaction()
            self._begun = time.monotonic()
            self._outbox = PendingSends(self._producer)

    def _valid_mark(self) -> BatchMark | None:
        """The mark of the task, unless its rows were deleted with their topics.

        SinkError if only some of the topics are gone: writing the batch again would repeat the rows
        in the others, and skipping it would lose those of the topics created again.
        """
        cluster = self._options.cluster()
        mark = find_mark(cluster, self._name)
        if mark is None or mark.batch_id != self._batch_id or mark.topic_count is None:
            return mark
        kept = mark.kept(current_topic_ids(cluster, mark.topic_ids))
        if len(kept) == mark.topic_count:
            return mark
        if not kept:
            return None
        raise SinkError(
            f"{self._task} was written to {mark.topic_count} topics, and since then others than"
            f" {listed(kept)} were deleted and created again: rows in those are lost",
            advice=(
                "start the query over with a new checkpoint, or set deliveryGuarantee to"
                " at-least-once to write all rows of the batch again"
            ),
        )

    def _check_rows(self) -> None:
        """Check that the task has as many rows as when they were written: else some are lost, or
        twice.

        The mark of a later batch cannot be compared: this attempt is out of date.
        """
        mark = self._mark
        assert mark is not None, "rows are compared with those of a mark"
        if mark.batch_id == self._batch_id and mark.rows not in (None, self._rows):
            raise SinkError(
                f"{self._task} has {self._rows} rows, and had {mark.rows} when it was written:"
                " exactly once needs a query that gives each task the same rows when it is run"
                " again. Run it with the cores and the options it had before; if it cannot be so,"
                " set deliveryGuarantee to at-least-once"
            )

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Convert the errors of a fenced or ended transaction into SinkErrors with advice."""
        try:
            yield
        except KafkaError as error:
            explanation = self._explanation(error.code)
            if explanation is None:
                raise
            raise SinkError(explanation) from error

    def _explanation(self, code: ErrorCode) -> str | None:
        open_s = time.monotonic() - self._begun
        if code is ErrorCode.INVALID_TRANSACTION_TIMEOUT:
            return (
                f"the broker takes no transactions of {self._timeout_ms} ms; lower"
                " kafka.transaction.timeout.ms, or raise its transaction.max.timeout.ms"
            )
        if code in _ENDED and open_s * 1000 >= self._timeout_ms:
            return (
                f"the transaction of {self._task} was open for {open_s:.0f} s, and the broker has"
                " aborted it; raise kafka.transaction.timeout.ms, or have smaller batches"
            )
        if code in _FENCED:
            return (
                f"another attempt of {self._task} has taken over, and nothing of this one is"
                f" written; if there is none, somebody else uses the transactional id {self._name}"
            )
        return None
