"""The engine of a producer, blocking or asyncio: its parts, its calls, and its thread."""

import asyncio
import atexit
import logging
import os
import threading
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from headrace.client.blocking import Call, LoopThread, Signal, Wait, run_async
from headrace.client.cluster import ClusterClient
from headrace.client.consumer.arguments import Offsets, group_of, offsets_of
from headrace.client.errors import BufferExhausted, Closed, IllegalState, ProducerFenced, TimedOut
from headrace.client.metrics import ProducerMetrics
from headrace.client.producer.accumulator import Accumulator, Buffers
from headrace.client.producer.arrow_batches import planned
from headrace.client.producer.delivery import BatchDelivery, ColumnsFuture, Future
from headrace.client.producer.sender import Sender
from headrace.client.producer.transaction_manager import TransactionManager
from headrace.client.producer_options import ProducerOptions
from headrace.client.types import ConsumerGroupMetadata, Pending
from headrace.clock import wall_seconds
from headrace.errors import HeadraceError, unknown_partition
from headrace.protocol.codec_build import warn_if_uncompiled
from headrace.types import TopicPartition


class RoomWaiter:
    """A thread or a task that waits for `size_bytes` of the buffer."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.is_granted = False
        self._woken = Signal()

    def wake(self) -> None:
        """Called when its room is granted, or when waiting has become useless."""
        self._woken.set()

    def wait(self, timeout_s: float) -> Wait:
        """A wait until woken or until the timeout."""
        return self._woken.wait(timeout_s)


def reserve_memory(
    buffers: Buffers, size_bytes: int, timeout_s: float, options: ProducerOptions
) -> Call[None]:
    """Reserve `size_bytes` of the buffer; BufferExhausted if there is no room in time."""
    waiter = RoomWaiter(size_bytes)
    if buffers.enter(waiter):
        return
    try:
        yield waiter.wait(timeout_s)
        _check(buffers, waiter, options)
    except BaseException:
        buffers.leave(waiter)
        raise


def release_memory(buffers: Buffers, size_bytes: int) -> None:
    """Return reserved room that is not needed after all."""
    waiter = RoomWaiter(size_bytes)
    waiter.is_granted = True
    buffers.leave(waiter)


def _check(buffers: Buffers, waiter: RoomWaiter, options: ProducerOptions) -> None:
    if buffers.refusal is not None:
        raise buffers.refusal()
    if not waiter.is_granted:
        raise BufferExhausted(
            f"no room for {waiter.size_bytes} bytes in buffer_memory ({options.buffer_memory}"
            f" bytes) within max_block_ms ({options.max_block_ms} ms): {buffers.records} records"
            " are not acknowledged yet. Brokers are slower than the application, or cannot be"
            " reached; send more slowly, or raise buffer_memory or max_block_ms"
        )


# The time that the end of the process, or of a failed `with` block, waits for undelivered records.
EXIT_S_MAX = 10.0

log = logging.getLogger("headrace.producer")

Result = TypeVar("Result")


def closed() -> Closed:
    """The error of every use of a closed producer."""
    return Closed("the producer is closed", advice="make a new one")


def _forked() -> Closed:
    return Closed(
        "the producer was made before this process was forked, and its thread is in the parent;"
        " make a producer in each process"
    )


def not_transactional(what: str) -> IllegalState:
    """The error of every use of transactions without a transactional id."""
    return IllegalState(
        f"{what} needs a transactional producer",
        advice=(
            "give it a transactional_id, a name that this"
            " application's producers keep when they are started again"
        ),
    )


def not_flushed(records: int, timeout_s: float) -> TimedOut:
    """The error of a flush that exceeds its timeout."""
    return TimedOut(
        f"{records} records are not acknowledged within timeout_ms ({timeout_s * 1000:.0f} ms);"
        " the producer goes on until delivery_timeout_ms"
    )


def not_delivered(records: int, timeout_s: float) -> TimedOut:
    """The error of closing with undelivered records."""
    return TimedOut(
        f"closed with {records} records not acknowledged within timeout_ms"
        f" ({timeout_s * 1000:.0f} ms); their futures have failed, and they may be lost"
    )


def columns_future(topic: str, deliveries: list[BatchDelivery]) -> ColumnsFuture:
    """The joint future of several batches."""
    count = sum(delivery.count for delivery in deliveries)
    whole = BatchDelivery(
        TopicPartition(topic, -1), count, deliveries[0].home if deliveries else None
    )
    whole.divide([(0, delivery) for delivery in deliveries])
    return ColumnsFuture(whole)


class ProducerEngine:
    """Accumulator and sender of a producer, and its calls. `wake` has the loop run the sender."""

    def __init__(self, options: ProducerOptions, wake: Callable[[], None]) -> None:
        warn_if_uncompiled(log)
        self.options = options
        self.cluster = ClusterClient(options.bootstrap_servers, **options.cluster_arguments())
        self._clock = self.cluster.clock
        self.metrics = ProducerMetrics(self._clock, client_id=options.client_id)
        self.accumulator = Accumulator(
            options,
            wake,
            choice=self.cluster.rng.choice,
            monotonic=self._clock.monotonic,
            wall=wall_seconds(self._clock),
        )
        self.sender = Sender(self.cluster, self.accumulator, options, self.metrics)
        # The reason why every call is refused, if there is one. Outside of a transaction no record
        # may be sent either, but a transaction may begin.
        self.ending: Callable[[], Exception] | None = None

    def described(self, name: str, *, is_closed: bool) -> str:
        """The text of a producer's `repr`."""
        servers = ",".join(map(str, self.options.bootstrap_servers))
        state = "closed" if is_closed else f"{self.accumulator.records} unsettled"
        return f"<{name} {self.options.client_id} of {servers}, {state}>"

    def check_open(self) -> None:
        if self.ending is not None:
            raise self.ending()

    def refuse(self, reason: Callable[[], Exception]) -> None:
        """Refuse further records and calls."""
        self.ending = reason
        self.accumulator.refuse(reason)

    def snapshot(self) -> dict[str, float]:
        """The metrics, under Kafka's names."""
        self.metrics.queued(self.accumulator.used_bytes)
        return self.metrics.snapshot()

    # -- records

    def send_later(self, pending: Pending) -> Call[Future]:
        """Wait for metadata and buffer room of a record, at most `max_block_ms`, and add it."""
        topic, partition, need = pending[0], pending[4], pending[7]
        deadline = self._block_deadline()
        yield from self._know(topic, partition, deadline)
        yield from self._take_room(need, deadline)
        try:
            future = self.accumulator.append(*pending, True)
            assert future is not None, "partitions are never taken away"
        except BaseException:
            release_memory(self.accumulator, need)
            raise
        return future

    def send_columns(self, topic: str, table: Any) -> Call[ColumnsFuture]:
        """Add the batches of Arrow columns, waiting for room for each."""
        yield from self._know(topic, None, self._block_deadline())
        deliveries: list[BatchDelivery] = []
        now_ms = self._clock.now_ms()
        for column_batch in planned(topic, table, self.accumulator, self.options, now_ms=now_ms):
            yield from self._take_room(column_batch.raw_bytes, self._block_deadline())
            try:
                deliveries.append(
                    self.accumulator.add_columns(
                        topic,
                        column_batch.partition,
                        column_batch.encode,
                        column_batch.count,
                        column_batch.raw_bytes,
                    )
                )
            except BaseException:
                release_memory(self.accumulator, column_batch.raw_bytes)
                raise
        return columns_future(topic, deliveries)

    def partitions_for(self, topic: str) -> Call[list[int]]:
        """The numbers of a topic's partitions."""
        return list(range((yield from self._know(topic, None, self._block_deadline()))))

    def flush(self, timeout_ms: int | None) -> Call[None]:
        """Return when every record sent so far has its outcome."""
        self.check_open()
        timeout_s = None if timeout_ms is None else timeout_ms / 1000
        if not (yield from self._delivered(timeout_s)):
            assert timeout_s is not None
            raise not_flushed(self.accumulator.records, timeout_s)

    def finish(self, timeout_s: float | None) -> Call[TimedOut | None]:
        """Abort an open transaction and wait for all deliveries; returns the error of a timeout."""
        transactor = self.sender.transactor
        if transactor is not None and transactor.state.is_open:
            yield transactor.close(EXIT_S_MAX if timeout_s is None else timeout_s)
        if (yield from self._delivered(timeout_s)):
            return None
        assert timeout_s is not None
        left = self.accumulator.records
        return not_delivered(left, timeout_s) if left else None

    # -- transactions

    def transact(
        self, what: str, operation: Callable[[TransactionManager], Awaitable[None]]
    ) -> Call[None]:
        """Run an operation of the transaction manager; IllegalState without a transactional id."""
        if self.sender.transactor is None:
            raise not_transactional(what)
        self.check_open()
        yield operation(self.sender.transactor)

    def send_offsets(
        self, offsets: Offsets, group_metadata: ConsumerGroupMetadata | str
    ) -> Call[None]:
        """Commit a group's offsets in the transaction."""
        known = offsets_of(offsets)
        group = group_of(group_metadata)
        yield from self.transact(
            "send_offsets_to_transaction()", lambda manager: manager.send_offsets(known, group)
        )

    def abort_after(self, error: BaseException) -> Call[None]:
        """Abort a transaction after an error in its block or its commit, unless it was committed.

        The error must not be hidden, unless by its cause: another producer took over.
        """
        transactor = self.sender.transactor
        assert transactor is not None
        if not transactor.state.is_open or self.ending is not None:
            return
        try:
            yield transactor.abort(None if isinstance(error, Exception) else EXIT_S_MAX)
        except ProducerFenced:
            if isinstance(error, HeadraceError):
                raise
        except HeadraceError as failed:
            log.warning("%s: a transaction was not aborted: %s", self.options.client_id, failed)

    # -- waits

    def _block_deadline(self) -> float:
        return self._clock.monotonic() + self.options.max_block_ms / 1000

    def _know(self, topic: str, partition: int | None, deadline: float) -> Call[int]:
        """The partition count of a topic, looked up if it is unknown or too small."""
        if not isinstance(topic, str) or not topic:
            raise TypeError(f"a topic is named by a text that is not empty, not {topic!r}")
        count = self.accumulator.partition_count(topic)
        if count == 0:
            self.check_open()
            yield self.sender.load_topic(topic, max(deadline - self._clock.monotonic(), 0.0))
            count = self.accumulator.partition_count(topic)
        if partition is not None and partition >= count:
            self.check_open()
            yield self.sender.request_topic(topic, max(deadline - self._clock.monotonic(), 0.0))
            count = self.accumulator.partition_count(topic)
            if partition >= count:
                raise unknown_partition(topic, partition, count)
        return count

    def _take_room(self, size_bytes: int, deadline: float) -> Call[None]:
        """Reserve room in the buffer; BufferExhausted at the deadline."""
        left_s = max(deadline - self._clock.monotonic(), 0.0)
        return reserve_memory(self.accumulator, size_bytes, left_s, self.options)

    def _delivered(self, timeout_s: float | None) -> Call[bool]:
        """Whether all sent records have their outcome within the timeout."""
        unsettled = [
            delivery for delivery in self.accumulator.close_open_batches() if not delivery.is_done
        ]
        if not unsettled:
            return True

        def block(timeout_s: float | None) -> bool:
            deadline = None if timeout_s is None else self._clock.monotonic() + timeout_s
            for delivery in unsettled:
                left_s = None if deadline is None else max(deadline - self._clock.monotonic(), 0.0)
                if not delivery.wait(left_s):
                    return False
            return True

        def waiter() -> asyncio.Future[list[None]]:
            return asyncio.gather(*(delivery.waiter() for delivery in unsettled))

        is_delivered: bool = yield Wait(block, waiter, timeout_s)
        return is_delivered


class EngineThread:
    """The engine of a blocking producer, and the thread that its sender runs on.

    Rule: it does not refer to the producer that uses it, so that an unused producer can be
    garbage-collected; the engine then delivers its records, and ends.
    """

    def __init__(self, options: ProducerOptions) -> None:
        self.engine = ProducerEngine(options, self._wake)
        self.is_closed = False
        self._thread = LoopThread(f"headrace-{options.client_id}")
        self._lock = threading.Lock()
        self._draining: asyncio.Task[None] | None = None
        _engines.add(self)

    def run(self, call: Call[Result]) -> Result:
        """The result of a call; the thread is started only if the call waits."""
        return self._thread.run(call)

    def run_waiting(self, what: str, call: Call[Result]) -> Result:
        """The result of a call that waits, and so is not allowed in delivery callbacks."""
        if self._thread.is_current():
            raise HeadraceError(
                f"{what} would have to wait, and a delivery callback must not: it runs on the"
                " thread that is waited for; hand the work to another thread"
            )
        return self._thread.run(call)

    def close(self, timeout_ms: int | None) -> None:
        """Refuse further records, deliver the present ones, and end the thread."""
        # In the child of a fork the holder of the lock may not exist.
        if self.engine.ending is _forked:
            return
        if self._thread.is_current():
            # A callback cannot wait for other callbacks to be called.
            self.abandon()
            return
        # The first of several threads that close it does the work.
        with self._lock:
            was_closed, self.is_closed = self.is_closed, True
        if was_closed:
            return
        _engines.discard(self)
        self.engine.refuse(closed)
        if not self._thread.is_started:
            return
        try:
            timeout_s = None if timeout_ms is None else timeout_ms / 1000
            late = self._thread.run(self.engine.finish(timeout_s))
        finally:
            self._end()
        if late is not None:
            raise late

    def abandon(self) -> None:
        """The producer was garbage-collected unclosed: deliver its records in the background, then
        end.
        """
        if not self._thread.is_started or self.is_closed:
            _engines.discard(self)
            return
        self.engine.refuse(closed)
        self._thread.post(self._start_draining)

    def forked(self) -> None:
        """In the child of a fork: refuse everything; the parent's thread delivers the records."""
        self.is_closed = True
        self.engine.ending = self.engine.accumulator.refusal = _forked
        self._thread = LoopThread(f"headrace-{self.engine.options.client_id}")

    def _wake(self) -> None:
        if self._thread.is_started:
            self._thread.post(self.engine.sender.pump)

    def _end(self) -> None:
        try:
            self._thread.run(self.engine.sender.stop(EXIT_S_MAX), EXIT_S_MAX)
        finally:
            self._thread.close()

    def _start_draining(self) -> None:
        # Kept, or the loop's weak reference would be the only one.
        self._draining = asyncio.get_running_loop().create_task(self._drain())

    async def _drain(self) -> None:
        await run_async(self.engine.finish(None))
        if not self.is_closed:
            self.is_closed = True
            _engines.discard(self)
            await self.engine.sender.stop(EXIT_S_MAX)
            self._thread.close()


# Engines that may have records to deliver. They outlive their producers, so the references are not
# weak.
_engines: set[EngineThread] = set()


def _close_at_exit() -> None:
    """At the end of the process: deliver the records of unclosed producers, for a limited time."""
    for thread in list(_engines):
        left = thread.engine.accumulator.records
        try:
            thread.close(int(EXIT_S_MAX * 1000))
        except HeadraceError as error:
            log.warning("a producer with %d records was not closed: %s", left, error)


def _forget_at_fork() -> None:
    for thread in _engines:
        thread.forked()
    _engines.clear()


atexit.register(_close_at_exit)
os.register_at_fork(after_in_child=_forget_at_fork)
