"""What both producers are made of: the parts behind them, and waits for memory of the buffer."""

import asyncio
import atexit
import logging
import os
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from headrace.client.blocking import LoopThread, wait_in_parts
from headrace.client.cluster import Cluster
from headrace.client.errors import (
    BufferExhausted,
    Closed,
    IllegalState,
    ProducerFenced,
    TimedOut,
    UnknownTopic,
)
from headrace.client.metrics import ProducerMetrics
from headrace.client.producer.accumulator import Accumulator, Buffers
from headrace.client.producer.arrow_batches import planned
from headrace.client.producer.delivery import ColumnsFuture, Delivery, Future
from headrace.client.producer.sender import Sender
from headrace.client.producer.transaction_manager import Transactor
from headrace.client.producer_options import ProducerOptions
from headrace.client.types import Pending
from headrace.errors import HeadraceError
from headrace.protocol.codec_build import warn_if_uncompiled
from headrace.types import TopicPartition


class ThreadWaiter:
    """A thread that waits until it is given `size_bytes`. Ctrl-C interrupts it."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.is_granted = False
        self._event = threading.Event()

    def wake(self) -> None:
        """Called when it has its room, or when there is no more to wait for."""
        self._event.set()

    def wait(self, timeout_s: float) -> None:
        """Return when woken, or at the end of the time."""
        wait_in_parts(self._event.wait, timeout_s)


class TaskWaiter:
    """A task that waits until it is given `size_bytes`; it is woken on its own loop."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.is_granted = False
        self._loop = asyncio.get_running_loop()
        self._woken = self._loop.create_future()

    def wake(self) -> None:
        """Called when it has its room, or when there is no more to wait for."""
        if not self._woken.done():
            self._woken.set_result(None)

    async def wait(self, timeout_s: float) -> None:
        """Return when woken, or at the end of the time."""
        await asyncio.wait([self._woken], timeout=timeout_s)


def take_room(
    buffers: Buffers, size_bytes: int, timeout_s: float, options: ProducerOptions
) -> None:
    """Have `size_bytes` of the buffer reserved; BufferExhausted if there is no room in time."""
    waiter = ThreadWaiter(size_bytes)
    if buffers.enter(waiter):
        return
    try:
        waiter.wait(timeout_s)
        _check(buffers, waiter, options)
    except BaseException:
        buffers.leave(waiter)
        raise


async def take_room_async(
    buffers: Buffers, size_bytes: int, timeout_s: float, options: ProducerOptions
) -> None:
    """The same for a task."""
    waiter = TaskWaiter(size_bytes)
    if buffers.enter(waiter):
        return
    try:
        await waiter.wait(timeout_s)
        _check(buffers, waiter, options)
    except BaseException:
        buffers.leave(waiter)
        raise


def give_back(buffers: Buffers, size_bytes: int) -> None:
    """Return room that was taken and is not needed after all."""
    waiter = ThreadWaiter(size_bytes)
    waiter.is_granted = True
    buffers.leave(waiter)


def _check(buffers: Buffers, waiter: ThreadWaiter | TaskWaiter, options: ProducerOptions) -> None:
    if buffers.refusal is not None:
        raise buffers.refusal()
    if not waiter.is_granted:
        raise BufferExhausted(
            f"no room for {waiter.size_bytes} bytes in buffer_memory ({options.buffer_memory}"
            f" bytes) within max_block_ms ({options.max_block_ms} ms): {buffers.records} records"
            " are not acknowledged yet. Brokers are slower than the application, or cannot be"
            " reached; send more slowly, or raise buffer_memory or max_block_ms"
        )


# What both producers are made of, and how the blocking one lives on a thread of its own.
#
# Rule: an engine knows nothing of the producer in front of it, so a producer that nobody holds any
# more can be told apart from one that is used; its engine then delivers what it has, and ends.


# How long the end of the process, or of a `with` block that failed, waits for what is unsent.
EXIT_S_MAX = 10.0

log = logging.getLogger("headrace.producer")

Result = TypeVar("Result")


def new_cluster(options: ProducerOptions) -> Cluster:
    """The cluster that a producer's options name."""
    warn_if_uncompiled(log)
    return Cluster(options.bootstrap_servers, **options.cluster_arguments())


def closed() -> Closed:
    """What every use of a closed producer raises."""
    return Closed("the producer is closed; make a new one")


def _forked() -> Closed:
    return Closed(
        "the producer was made before this process was forked, and its thread is in the parent;"
        " make a producer in each process"
    )


def not_transactional(what: str) -> IllegalState:
    """What every use of transactions raises in a producer without a transactional id."""
    return IllegalState(
        f"{what} needs a transactional producer; give it a transactional_id, a name that this"
        " application's producers keep when they are started again"
    )


def not_flushed(records: int, timeout_s: float) -> TimedOut:
    """What a flush ends with that takes too long."""
    return TimedOut(
        f"{records} records are not acknowledged within timeout_ms ({timeout_s * 1000:.0f} ms);"
        " the producer goes on until delivery_timeout_ms"
    )


def not_delivered(records: int, timeout_s: float) -> TimedOut:
    """What closing ends with when records had to be given up."""
    return TimedOut(
        f"closed with {records} records not acknowledged within timeout_ms"
        f" ({timeout_s * 1000:.0f} ms); their futures have failed, and they may be lost"
    )


def no_partition(topic: str, partition: int, count: int) -> UnknownTopic:
    """What naming a partition that is not there ends with."""
    return UnknownTopic(
        f"topic {topic} has no partition {partition};"
        f" it has {count}, numbered from 0 to {count - 1}"
    )


def columns_future(topic: str, deliveries: list[Delivery]) -> ColumnsFuture:
    """The future of batches together."""
    count = sum(delivery.count for delivery in deliveries)
    whole = Delivery(TopicPartition(topic, -1), count, deliveries[0].home if deliveries else None)
    whole.divide([(0, delivery) for delivery in deliveries])
    return ColumnsFuture(whole)


class Engine:
    """Accumulator and sender of a blocking producer, with the thread that the sender runs on."""

    def __init__(self, options: ProducerOptions) -> None:
        self.options = options
        self.cluster = new_cluster(options)
        self.metrics = ProducerMetrics(client_id=options.client_id)
        self.accumulator = Accumulator(options, self._wake, choice=self.cluster.rng.choice)
        self.sender = Sender(self.cluster, self.accumulator, options, self.metrics)
        self.is_closed = False
        # Why nothing more may be asked of it, if that is so. Without a transaction no record may
        # be sent either, but a transaction may begin.
        self._ending: Callable[[], Exception] | None = None
        self._thread: LoopThread | None = None
        self._lock = threading.Lock()
        self._draining: asyncio.Task[None] | None = None
        _engines.add(self)

    def run(self, call: Coroutine[Any, Any, Result]) -> Result:
        """What a coroutine returns on the engine's thread, which is started if need be."""
        try:
            thread = self._started()
        except BaseException:
            call.close()
            raise
        return thread.run(call)

    def send_later(self, pending: Pending) -> Future:
        """Wait for what a record needs, at most `max_block_ms`, and add it."""
        topic, partition, need = pending[0], pending[4], pending[7]
        deadline = time.monotonic() + self.options.max_block_ms / 1000
        self._check_may_wait("send()")
        self.know(topic, partition, deadline)
        self.take_room(need, deadline)
        try:
            future = self.accumulator.append(*pending, True)
            assert future is not None, "partitions are never taken away"
        except BaseException:
            give_back(self.accumulator, need)
            raise
        return future

    def send_columns(self, topic: str, table: Any) -> ColumnsFuture:
        """Add the batches that Arrow columns make, waiting for room for each."""
        max_block_s = self.options.max_block_ms / 1000
        self._check_may_wait("send_arrow()")
        self.know(topic, None, time.monotonic() + max_block_s)
        deliveries: list[Delivery] = []
        now_ms = time.time_ns() // 1_000_000
        for one in planned(topic, table, self.accumulator, self.options, now_ms=now_ms):
            self.take_room(one.raw_bytes, time.monotonic() + max_block_s)
            try:
                deliveries.append(
                    self.accumulator.add_columns(
                        topic, one.partition, one.encode, one.count, one.raw_bytes
                    )
                )
            except BaseException:
                give_back(self.accumulator, one.raw_bytes)
                raise
        return columns_future(topic, deliveries)

    def know(self, topic: str, partition: int | None, deadline: float) -> int:
        """How many partitions a topic has, asked for if that is not known or too few."""
        if not isinstance(topic, str) or not topic:
            raise TypeError(f"a topic is named by a text that is not empty, not {topic!r}")
        count = self.accumulator.partition_count(topic)
        if count == 0:
            self.run(self.sender.know_topic(topic, max(deadline - time.monotonic(), 0.0)))
            count = self.accumulator.partition_count(topic)
        if partition is not None and partition >= count:
            self.run(self.sender.ask_topic(topic, max(deadline - time.monotonic(), 0.0)))
            count = self.accumulator.partition_count(topic)
            if partition >= count:
                raise no_partition(topic, partition, count)
        return count

    def take_room(self, size_bytes: int, deadline: float) -> None:
        """Have room in the buffer reserved; BufferExhausted at the deadline."""
        left_s = max(deadline - time.monotonic(), 0.0)
        take_room(self.accumulator, size_bytes, left_s, self.options)

    def flush(self, timeout_s: float | None) -> None:
        """Return when every record sent so far has its outcome."""
        if self._ending is not None:
            raise self._ending()
        self._check_may_wait("flush()")
        if not self._wait(self.accumulator.hurry(), timeout_s):
            assert timeout_s is not None
            raise not_flushed(self.accumulator.records, timeout_s)

    def close(self, timeout_s: float | None) -> None:
        """Take no more records, deliver those there are, and end the thread."""
        # In the child of a fork nobody may be left to give the lock back.
        if self._ending is _forked:
            return
        if self._thread is not None and self._thread.is_current():
            # A callback cannot wait for other callbacks to be called.
            self.abandon()
            return
        # The first of several threads that close it does so.
        with self._lock:
            was_closed, self.is_closed = self.is_closed, True
        if was_closed:
            return
        _engines.discard(self)
        self._refuse(closed)
        thread = self._thread
        if thread is None:
            return
        left = 0
        try:
            self._abort_open(thread, timeout_s)
            if not self._wait(self.accumulator.hurry(), timeout_s):
                left = self.accumulator.records
        finally:
            self._end(thread)
        if left:
            assert timeout_s is not None
            raise not_delivered(left, timeout_s)

    def abandon(self) -> None:
        """The producer is gone and was not closed: deliver what there is, then end; do not wait."""
        thread = self._thread
        if thread is None or self.is_closed:
            _engines.discard(self)
            return
        self._refuse(closed)
        thread.post(self._start_draining)

    def forked(self) -> None:
        """This is the child of a fork: what the parent's thread does it does there."""
        self.is_closed = True
        self._ending = self.accumulator.refusal = _forked
        self._thread = None

    # -- transactions

    def transact(self, what: str, call: Callable[[Transactor], Coroutine[Any, Any, None]]) -> None:
        """Do something with the transactions of this producer, on its thread."""
        transactor = self.sender.transactor
        if transactor is None:
            raise not_transactional(what)
        self._check_may_wait(what)
        self.run(call(transactor))

    def abort_after(self, error: BaseException) -> None:
        """Abort a transaction that a block, or its commit, has failed in, if none was committed.

        What it failed with must not be hidden, unless by its reason: another producer took over.
        """
        transactor = self.sender.transactor
        assert transactor is not None
        if not transactor.state.is_open or self._ending is not None:
            return
        timeout_s = None if isinstance(error, Exception) else EXIT_S_MAX
        try:
            self.transact("abort_transaction()", lambda one: one.abort(timeout_s))
        except ProducerFenced:
            if isinstance(error, HeadraceError):
                raise
        except HeadraceError as failed:
            log.warning("%s: a transaction was not aborted: %s", self.options.client_id, failed)

    def _abort_open(self, thread: LoopThread, timeout_s: float | None) -> None:
        transactor = self.sender.transactor
        if transactor is not None and transactor.state.is_open:
            thread.run(transactor.close(EXIT_S_MAX if timeout_s is None else timeout_s))

    # -- its thread

    def _refuse(self, reason: Callable[[], Exception]) -> None:
        self._ending = reason
        self.accumulator.refuse(reason)

    def _started(self) -> LoopThread:
        with self._lock:
            if self._ending is not None:
                raise self._ending()
            if self._thread is None:
                self._thread = LoopThread(f"headrace-{self.options.client_id}")
            return self._thread

    def _wake(self) -> None:
        if self._thread is not None:
            self._thread.post(self.sender.pump)

    def _check_may_wait(self, what: str) -> None:
        if self._thread is not None and self._thread.is_current():
            raise HeadraceError(
                f"{what} would have to wait, and a delivery callback must not: it runs on the"
                " thread that is waited for; hand the work to another thread"
            )

    def _wait(self, deliveries: list[Delivery], timeout_s: float | None) -> bool:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        for delivery in deliveries:
            left_s = None if deadline is None else max(deadline - time.monotonic(), 0.0)
            if not delivery.wait(left_s):
                return False
        return True

    def _end(self, thread: LoopThread) -> None:
        try:
            thread.run(self.sender.stop(EXIT_S_MAX), EXIT_S_MAX)
        finally:
            thread.close()

    def _start_draining(self) -> None:
        # Kept, or the loop's weak reference would be the only one.
        self._draining = asyncio.get_running_loop().create_task(self._drain())

    async def _drain(self) -> None:
        if self.sender.transactor is not None:
            await self.sender.transactor.close(EXIT_S_MAX)
        for delivery in self.accumulator.hurry():
            await delivery.waiter()
        thread = self._thread
        if thread is not None and not self.is_closed:
            self.is_closed = True
            _engines.discard(self)
            await self.sender.stop(EXIT_S_MAX)
            thread.close()


# Engines that may have something to deliver. They outlive their producers, so not weakly.
_engines: set[Engine] = set()


def _close_at_exit() -> None:
    """Deliver what short programs leave behind, without holding up their end for long."""
    for engine in list(_engines):
        left = engine.accumulator.records
        try:
            engine.close(EXIT_S_MAX)
        except HeadraceError as error:
            log.warning("a producer with %d records was not closed: %s", left, error)


def _forget_at_fork() -> None:
    for engine in _engines:
        engine.forked()
    _engines.clear()


atexit.register(_close_at_exit)
os.register_at_fork(after_in_child=_forget_at_fork)
