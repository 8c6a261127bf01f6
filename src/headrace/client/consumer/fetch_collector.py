"""Takes records from completed fetches for `poll`, decoding them in the caller's thread.

Rule: an error is raised only when no record comes before it. Until then the records in front of it
are returned, so that a position never passes records the application has not seen.
"""

from collections.abc import Callable, Iterator
from sys import maxsize
from typing import NamedTuple

from headrace.client.consumer.completed_fetch import ColumnRun, CompletedFetch, RecordRun
from headrace.client.consumer.subscription import PartitionState, SubscriptionState
from headrace.client.errors import SerializationFailed
from headrace.client.metrics import ConsumerMetrics
from headrace.client.options import ConsumerOptions, IsolationLevel
from headrace.client.serializers import decode_all
from headrace.errors import CorruptBatch
from headrace.protocol.batch import read_header
from headrace.protocol.column_decoder import decode_columns
from headrace.protocol.columns import Columns
from headrace.protocol.consumer_records import ConsumerRecord, decode_batches
from headrace.types import TopicPartition

# Fetches are joined to one Arrow batch up to this size; joining copies, a larger fetch is not
# copied.
JOINED_BYTES = 262_144


class PartitionColumns(NamedTuple):
    """Columns of one partition."""

    tp: TopicPartition
    columns: Columns


class FetchCollector:
    """Takes records out of a subscription's buffers. For one thread at a time."""

    def __init__(
        self,
        subscription: SubscriptionState,
        options: ConsumerOptions,
        metrics: ConsumerMetrics,
        on_room: Callable[[], None],
    ) -> None:
        self._subscription = subscription
        self._lock = subscription.lock
        self._metrics = metrics
        self._on_room = on_room
        self._check_crcs = options.check_crcs
        self._key_deserializer = options.key_deserializer
        self._value_deserializer = options.value_deserializer
        self._deserializes = bool(options.key_deserializer or options.value_deserializer)
        self._committed_only = options.isolation_level is IsolationLevel.READ_COMMITTED

    def records(self, limit: int) -> list[ConsumerRecord]:
        """The next fetched records, at most `limit`."""
        taken: list[ConsumerRecord] = []
        while len(taken) < limit:
            state = self._next_state()
            if state is None:
                break
            try:
                rows = self._advance(state, limit - len(taken))
            except (CorruptBatch, SerializationFailed):
                self._settle(state)
                if taken:
                    break
                raise
            if rows is not None:
                part = rows.records[rows.index : rows.stop]
                if part:
                    self._metrics.delivered(part[0].timestamp)
                taken = taken + part if taken else part
                rows.index = rows.stop
            self._settle(state)
        if taken:
            self._metrics.consumed(len(taken))
        return taken

    def run(self, limit: int) -> RecordRun | None:
        """The next records of one partition, at most `limit`, for iteration to return singly."""
        while True:
            state = self._next_state()
            if state is None:
                return None
            try:
                rows = self._advance(state, limit)
            except (CorruptBatch, SerializationFailed):
                self._settle(state)
                raise
            if rows is not None:
                rows.iterating = True
                self._metrics.consumed(rows.stop - rows.index)
                if rows.index < rows.stop:
                    self._metrics.delivered(rows.records[rows.index].timestamp)
            self._settle(state)
            if rows is not None:
                return rows

    def columns(self, limit: int | None) -> list[PartitionColumns]:
        """The next fetches as columns: several small ones or a large one."""
        pieces: list[PartitionColumns] = []
        left = maxsize if limit is None else limit
        size = 0
        while left > 0 and size < JOINED_BYTES:
            state = self._next_state()
            if state is None:
                break
            try:
                slices, read_bytes = self._advance_columns(state, left)
            except CorruptBatch:
                self._settle(state)
                if pieces:
                    break
                raise
            if slices is not None:
                columns = slices.next_rows(left)
                if columns.length:
                    self._metrics.delivered(memoryview(columns.timestamps).cast("B").cast("q")[0])
                pieces.append(PartitionColumns(state.tp, columns))
                left -= columns.length
                size += read_bytes
            self._settle(state)
        if pieces:
            self._metrics.consumed(sum(piece.columns.length for piece in pieces))
        return pieces

    def _next_state(self) -> PartitionState | None:
        with self._lock:
            return self._subscription.next_ready()

    def _settle(self, state: PartitionState) -> None:
        """Return a partition to the queue, and trigger fetching if there is room."""
        with self._lock:
            has_room = self._subscription.gave_out(state)
            self._subscription.put_back(state)
            position = state.position
        end = state.last_stable_offset if self._committed_only else state.high_watermark
        if position is not None and end >= 0:
            self._metrics.lag(state.tp, max(end - position, 0))
        if has_room:
            self._on_room()

    def _next_fetch(self, state: PartitionState) -> CompletedFetch | None:
        """The fetch to read next, after a fully read one is released."""
        with self._lock:
            has_room = self._subscription.let_go(state)
            completed = state.completed_fetches[0] if state.completed_fetches else None
        if has_room:
            self._on_room()
        if completed is not None and not completed.spans:
            raise CorruptBatch(
                f"{state.tp}: at offset {completed.next_offset}: {completed.corrupt}; {_SKIP}"
            )
        return completed

    def _advance(self, state: PartitionState, limit: int) -> RecordRun | None:
        """Records, 1 to `limit` of them ready to return; None if there are no more."""
        rows = state.given
        assert rows is not None, state
        if not isinstance(rows, RecordRun):
            # Columns were polled before: their remaining rows are decoded again, as rows.
            rows = state.given = RecordRun([], rows.position, rows.position, _settled(rows))
        while rows.is_done:
            completed = self._next_fetch(state)
            if completed is None:
                return None
            rows = state.given = self._decode(state.tp, completed, rows.position, limit)
        rows.stop = min(rows.index + limit, len(rows.records))
        if self._deserializes:
            self._deserialize(rows)
        else:
            rows.ready = rows.stop
        return rows

    def _decode(
        self, tp: TopicPartition, completed: CompletedFetch, position: int, limit: int
    ) -> RecordRun:
        try:
            records, end, next_offset = decode_batches(
                completed.data,
                tp.topic,
                tp.partition,
                completed.position,
                completed.spans[0][1],
                position,
                limit,
                check_crcs=self._check_crcs,
            )
        except CorruptBatch as error:
            raise _corrupt(tp, completed, error) from None
        return RecordRun(records, position, completed.offset_behind(end, next_offset), end)

    def _deserialize(self, rows: RecordRun) -> None:
        """Deserialize all records up to `stop`, or those before the first that fails."""
        try:
            decode_all(_readied(rows), self._key_deserializer, self._value_deserializer)
        except SerializationFailed:
            rows.stop = rows.ready
            if rows.stop == rows.index:
                raise

    def _advance_columns(self, state: PartitionState, limit: int) -> tuple[ColumnRun | None, int]:
        """Columns with at least one row left, and the number of bytes decoded for them."""
        slices = state.given
        assert slices is not None, state
        if not isinstance(slices, ColumnRun):
            end = _settled(slices)
            if not slices.is_done:
                slices = state.given = RecordRun([], slices.position, slices.position, end)
        read_bytes = 0
        while slices.is_done:
            completed = self._next_fetch(state)
            if completed is None:
                return None, 0
            begin = completed.position
            slices = state.given = self._decode_columns(state.tp, completed, slices.position)
            read_bytes += slices.end_position - begin
        assert isinstance(slices, ColumnRun)
        return slices, read_bytes

    def _decode_columns(
        self, tp: TopicPartition, completed: CompletedFetch, position: int
    ) -> ColumnRun:
        try:
            columns = decode_columns(
                completed.data,
                completed.position,
                completed.spans[0][1],
                position,
                check_crcs=self._check_crcs,
            )
        except CorruptBatch as error:
            raise _corrupt(tp, completed, error) from None
        end = columns.end_position
        return ColumnRun(columns, position, completed.offset_behind(end, columns.next_offset), end)


_SKIP = "seek past it to go on"


def _settled(given: RecordRun | ColumnRun) -> int:
    """The offset the fetch was read to; -1 if decoded records are left over."""
    return given.end_position if given.is_done else -1


def _readied(rows: RecordRun) -> Iterator[ConsumerRecord]:
    for record in rows.records[rows.ready : rows.stop]:
        yield record
        # A record is finished only when the next one is requested.
        rows.ready += 1


def _corrupt(tp: TopicPartition, completed: CompletedFetch, error: CorruptBatch) -> CorruptBatch:
    try:
        offset = f"offset {read_header(completed.data, completed.position).base_offset}"
    except CorruptBatch:
        offset = f"an offset before {completed.next_offset}"
    return CorruptBatch(f"{tp}: the batch at {offset} is corrupt: {error}; {_SKIP}")
