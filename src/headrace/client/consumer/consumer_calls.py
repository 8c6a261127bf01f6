"""The calls of a consumer, run by both the blocking and the asyncio class.

Rule: background work is done in the engine; this module waits, and calls listeners and callbacks.
"""

import asyncio
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from inspect import isawaitable, iscoroutine
from re import Pattern
from typing import TYPE_CHECKING, Any, TypeVar

from headrace.client import list_offsets
from headrace.client.blocking import Call
from headrace.client.consumer import arguments
from headrace.client.consumer.arguments import Offsets, Partitions
from headrace.client.consumer.arrow_columns import arrow_schema, to_arrow
from headrace.client.consumer.commit_queue import CommitCallback
from headrace.client.consumer.completed_fetch import RecordRun
from headrace.client.consumer.consumer_engine import ConsumerEngine
from headrace.client.consumer.rebalance_listener import RebalanceCallbacks, RebalanceEvent
from headrace.client.errors import Closed, IllegalState
from headrace.client.types import OffsetAndMetadata, OffsetAndTimestamp
from headrace.protocol.consumer_records import ConsumerRecord
from headrace.types import TopicPartition

if TYPE_CHECKING:
    import pyarrow

Result = TypeVar("Result")

CLOSE_MS = 10_000
# A waiting poll checks at this interval whether its group has failed.
WAIT_S_MAX = 0.2

_NO_ROWS = RecordRun([], 0, 0)


class ConsumerCalls:
    """The calls of one consumer, blocking or asyncio: generators where they wait.

    Listeners, callbacks and deserializers run between two waits, in the application's context. With
    `is_async` the results of listeners and callbacks are awaited.
    """

    def __init__(self, engine: ConsumerEngine, *, is_async: bool) -> None:
        self.is_closed = False
        # The records that an iteration has taken and not returned yet.
        self.rows = _NO_ROWS
        self._engine = engine
        self._options = engine.options
        self._is_async = is_async
        # The thread that polls or closes.
        self._user: int | None = None

    def check_open(self) -> None:
        if self.is_closed:
            raise Closed("the consumer is closed", advice="make a new one")

    def assignment(self) -> set[TopicPartition]:
        with self._engine.subscription.lock:
            return set(self._engine.subscription.states)

    # -- subscribing

    def subscribe(
        self, topics: Any, pattern: str | Pattern[str] | None, listener: RebalanceCallbacks | None
    ) -> None:
        self.check_open()
        if (topics is None) == (pattern is None):
            raise IllegalState("subscribe to topics or to a pattern: give one of the two")
        if topics is not None:
            self._engine.subscribe(arguments.topics_of(topics), None, listener)
        else:
            self._engine.subscribe(None, arguments.pattern_of(pattern), listener)

    def unsubscribe(self) -> Call[None]:
        self.check_open()
        yield from self._leave(CLOSE_MS / 1000, with_given=True)

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        self.check_open()
        self._engine.assign(arguments.partitions_of([partitions]))

    def seek(self, partition: TopicPartition, offset: int | OffsetAndMetadata) -> None:
        self.check_open()
        where = offset if isinstance(offset, OffsetAndMetadata) else OffsetAndMetadata(offset)
        tp = arguments.partition_of(partition)
        self._engine.seek(tp, arguments.offset_of(where.offset), where.leader_epoch)

    def seek_to(self, partitions: Sequence[Partitions], timestamp: int | None) -> None:
        self._engine.seek_to(self._partitions(partitions), timestamp)

    def pause(self, partitions: Sequence[Partitions]) -> None:
        self.check_open()
        self._engine.pause(arguments.partitions_of(partitions))

    def resume(self, partitions: Sequence[Partitions]) -> None:
        self.check_open()
        self._engine.resume(arguments.partitions_of(partitions))

    # -- reading

    def poll(self, timeout_ms: float | None, max_records: int | None) -> Call[list[ConsumerRecord]]:
        if max_records is None:
            limit = self._options.max_poll_records
        else:
            limit = arguments.count_of(max_records, "max_records")
        handout = self._engine.handout
        return (yield from self._take(lambda: handout.records(limit), timeout_ms)) or []

    def poll_arrow(
        self, timeout_ms: float | None, max_records: int | None
    ) -> "Call[pyarrow.RecordBatch]":
        limit = None if max_records is None else arguments.count_of(max_records, "max_records")
        arrow_schema()  # Without pyarrow this raises, before anything is taken.
        handout = self._engine.handout
        taken = yield from self._take(lambda: handout.columns(limit), timeout_ms)
        return to_arrow(taken or [])

    def next_record(self) -> Call[ConsumerRecord | None]:
        """The first record of new `rows`; None if none arrived for `consumer_timeout_ms`."""
        self.rows = _NO_ROWS
        limit = self._options.max_poll_records
        handout = self._engine.handout
        timeout_ms = self._options.consumer_timeout_ms
        rows = yield from self._take(lambda: handout.run(limit), timeout_ms)
        if rows is None:
            return None
        self.rows = rows
        rows.index += 1
        return rows.records[rows.index - 1]

    def _take(self, take: Callable[[], Result], timeout_ms: float | None) -> Call[Result | None]:
        """The result of `take` before the timeout, after the other work of a poll."""
        timeout_s = arguments.seconds_of(timeout_ms)
        engine = self._engine
        with self._entered():
            now = engine.cluster.clock.monotonic
            deadline = None if timeout_s is None else now() + timeout_s
            is_interrupted = True
            engine.begin_poll()
            try:
                if self._is_async:
                    # An application that always finds records must not keep the loop from fetching.
                    yield asyncio.sleep(0)
                while True:
                    engine.news.clear()
                    if engine.committing.has_callbacks or engine.rebalances.has_pending:
                        yield from self._call_back()
                    engine.check()
                    taken = take()
                    if taken:
                        break
                    left_s = WAIT_S_MAX if deadline is None else deadline - now()
                    if left_s <= 0 or engine.until_unreachable_s() <= 0:
                        engine.check_reached()
                    if left_s <= 0:
                        break
                    yield engine.news.wait(min(left_s, WAIT_S_MAX))
                is_interrupted = False
                return taken
            finally:
                engine.end_poll(is_interrupted=is_interrupted)

    @contextmanager
    def _entered(self) -> Iterator[None]:
        """Ensure that only one thread or task polls at a time, without recursion."""
        self.check_open()
        if self._user is not None:
            raise self._in_use()
        self._user = threading.get_ident()
        try:
            yield
        finally:
            self._user = None

    def _in_use(self) -> IllegalState:
        if self._is_async:
            where, user = "in another task or around a listener", "task"
        elif self._user == threading.get_ident():
            where, user = "called by a listener or callback", "thread"
        else:
            where, user = "called by another thread", "thread"
        return IllegalState(
            f"poll() or close() is running already, {where}",
            advice=f"a consumer is for one {user} at a time",
        )

    def _call_back(self) -> Call[None]:
        """Call the application's listener and the callbacks of finished commits."""
        yield from self._call_commit_callbacks()
        rebalances = self._engine.rebalances
        while (change := rebalances.begin()) is not None:
            try:
                yield from self._call_listener(change.change, change.partitions)
            finally:
                rebalances.end(change)

    def _call_listener(
        self, change: RebalanceEvent, partitions: Sequence[TopicPartition]
    ) -> Call[None]:
        answer = self._engine.rebalances.call_listener(change, partitions)
        if not isawaitable(answer):
            return
        if not self._is_async:
            if iscoroutine(answer):
                answer.close()
            raise IllegalState(
                "the listener has coroutines", advice="use it with headrace.aio.Consumer"
            )
        yield answer

    def _call_commit_callbacks(self) -> Call[None]:
        while (callback := self._engine.committing.next_callback()) is not None:
            answer = callback()
            if self._is_async and isawaitable(answer):
                yield answer

    # -- offsets

    def commit(self, offsets: Offsets | None, timeout_ms: float | None) -> Call[None]:
        wanted = self._offsets(offsets)
        yield self._engine.committing.commit(wanted, arguments.seconds_of(timeout_ms))
        yield from self._call_commit_callbacks()

    def commit_async(self, offsets: Offsets | None, callback: CommitCallback | None) -> None:
        self._engine.commit_async(self._offsets(offsets), callback)

    def committed(self, partitions: Sequence[Partitions]) -> Call[Any]:
        wanted = self._partitions(partitions)
        found = yield self._engine.committed(wanted)
        if len(partitions) == 1 and arguments.is_partition(partitions[0]):
            return found[wanted[0]]
        return found

    def position(self, partition: TopicPartition, timeout_ms: float | None) -> Call[int]:
        self.check_open()
        tp = arguments.partition_of(partition)
        position: int = yield self._engine.position(tp, arguments.seconds_of(timeout_ms))
        return position

    # -- questions

    def offsets_for_times(
        self, times: Mapping[TopicPartition, int]
    ) -> Call[dict[TopicPartition, OffsetAndTimestamp | None]]:
        self.check_open()
        cluster = self._engine.cluster
        wanted = arguments.times_of(times)
        level = self._options.isolation_level
        found: dict[
            TopicPartition, OffsetAndTimestamp | None
        ] = yield list_offsets.offsets_for_times(cluster, wanted, cluster.deadline(), level)
        return found

    def beginning_offsets(
        self, partitions: Sequence[Partitions]
    ) -> Call[dict[TopicPartition, int]]:
        wanted = self._partitions(partitions)
        cluster = self._engine.cluster
        found: dict[TopicPartition, int] = yield list_offsets.beginning_offsets(
            cluster, wanted, cluster.deadline()
        )
        return found

    def end_offsets(self, partitions: Sequence[Partitions]) -> Call[dict[TopicPartition, int]]:
        wanted = self._partitions(partitions)
        cluster = self._engine.cluster
        level = self._options.isolation_level
        found: dict[TopicPartition, int] = yield list_offsets.end_offsets(
            cluster, wanted, cluster.deadline(), level
        )
        return found

    def partitions_for(self, topic: str) -> Call[list[int] | None]:
        self.check_open()
        found: list[int] | None = yield self._engine.partitions_for(topic)
        return found

    def topics(self) -> Call[set[str]]:
        self.check_open()
        return set((yield self._engine.topics()))

    # -- ending

    def close(self, timeout_s: float | None, *, with_given: bool) -> Call[None]:
        """Leave the group and end the engine; a poll running on another thread continues."""
        if self.is_closed:
            return
        try:
            yield from self._leave(
                CLOSE_MS / 1000 if timeout_s is None else timeout_s, with_given=with_given
            )
        finally:
            if self._user is None:
                self.is_closed = True
                yield self._engine.close()

    def _leave(self, timeout_s: float, *, with_given: bool) -> Call[None]:
        """Commit, tell the listener, leave the group."""
        engine = self._engine
        now = engine.cluster.clock.monotonic
        with self._entered():
            deadline = now() + timeout_s
            if engine.cluster.was_reached:
                yield engine.committing.drain(deadline - now())
                left_s = max(deadline - now(), 0)
                yield engine.committing.commit_done(with_given=with_given, timeout_s=left_s)
                yield from self._call_commit_callbacks()
            try:
                yield from self._call_listener(RebalanceEvent.REVOKED, sorted(self.assignment()))
            finally:
                self.rows = _NO_ROWS
                yield engine.leave(deadline - now())
                yield from self._call_commit_callbacks()

    # -- arguments

    def _partitions(self, given: Sequence[Partitions]) -> list[TopicPartition]:
        """The partitions that a call names, or all assigned ones if it names none."""
        self.check_open()
        return arguments.partitions_of(given) if given else sorted(self.assignment())

    def _offsets(self, offsets: Offsets | None) -> dict[TopicPartition, OffsetAndMetadata]:
        """The offsets that a commit names, or all positions if it names none."""
        self.check_open()
        given = None if offsets is None else arguments.offsets_of(offsets)
        return self._engine.committing.wanted(given)
