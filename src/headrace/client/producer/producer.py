"""The producer: `headrace.Producer`, blocking, and `headrace.aio.Producer`, for asyncio.

Rule: a method runs a call of the engine, on the engine's thread or on the application's loop.
"""

import asyncio
import warnings
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

from headrace.client.blocking import Call, run_async
from headrace.client.consumer.arguments import Offsets
from headrace.client.errors import TimedOut
from headrace.client.options import ProducerConfig, producer_options
from headrace.client.producer.accumulator import RecordSender
from headrace.client.producer.delivery import ColumnsFuture, Future
from headrace.client.producer.producer_engine import (
    EXIT_S_MAX,
    EngineThread,
    ProducerEngine,
    closed,
    log,
)
from headrace.client.producer.transaction_manager import TransactionManager
from headrace.client.types import (
    ConsumerGroupMetadata,
    Headers,
    OnDelivery,
    Pending,
    ProducerRecord,
)
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    import pyarrow

Result = TypeVar("Result")


class Producer(RecordSender):
    """Sends records to the topics of a cluster. May be shared by threads.

    It connects when first used, gathers records into batches (`batch_size`, `linger_ms`), and sends
    them from its own thread. With the defaults a record is written once and in order, even when
    brokers fail in between. Options are keyword arguments; docs/client-options.md has all.

    Close it with `close` or a `with` block: both wait for the delivery of sent records. A producer
    that is not closed still delivers its records: in the background after it is garbage-collected,
    and for up to 10 s at the end of the process, after which a warning is logged.

    >>> with headrace.Producer(linger_ms=20, compression_type="zstd") as producer:
    ...     future = producer.send(topic, "hello", key="greeting")
    >>> future.result().offset
    0
    """

    def __init__(self, **options: Unpack[ProducerConfig]) -> None:
        thread = EngineThread(producer_options(**options))
        super().__init__(thread.engine.accumulator)
        self._thread = thread
        self._engine = thread.engine
        self._finalizer = weakref.finalize(self, thread.abandon)
        self._finalizer.atexit = False

    def __repr__(self) -> str:
        return self._engine.described("headrace.Producer", is_closed=self._thread.is_closed)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
            return
        # The exception in the block is more important than undelivered records, and must not be
        # hidden by a TimedOut.
        try:
            self.close(timeout_ms=int(EXIT_S_MAX * 1000))
        except TimedOut as late:
            log.warning("%s", late)

    @property
    def client_id(self) -> str:
        """The client id, which the broker's log and the metrics show."""
        return self._engine.options.client_id

    def send_arrow(self, topic: str, batch: "pyarrow.RecordBatch | pyarrow.Table") -> ColumnsFuture:
        """Send the rows of Arrow columns, without a Python object for each.

        Columns are `value` and, optionally, `key` (binary or text), `timestamp` (milliseconds or an
        Arrow timestamp), `partition` and `headers`. Rows without a partition go where `send` puts
        their keys; rows without a key stay together. The result is a list of `BatchMetadata`.

        >>> import pyarrow
        >>> rows = pyarrow.record_batch({"key": [b"a", b"b"], "value": [b"1", b"2"]})
        >>> sum(written.count for written in producer.send_arrow(topic, rows).result())
        2
        """
        return self._thread.run_waiting("send_arrow()", self._engine.send_columns(topic, batch))

    def flush(self, timeout_ms: int | None = None) -> None:
        """Wait until every record sent so far has its outcome; `TimedOut` has the number of the
        rest.

        Records that failed do not raise here: their futures have the exceptions.

        >>> future = producer.send(topic, b"hello")
        >>> producer.flush()
        >>> future.done()
        True
        """
        self._thread.run_waiting("flush()", self._engine.flush(timeout_ms))

    def close(self, timeout_ms: int | None = None) -> None:
        """Deliver all sent records, then close. May be called again; `send` raises `Closed`
        afterwards.

        Without a timeout it returns when every record has its outcome, which `delivery_timeout_ms`
        limits. With a timeout, records without an outcome by then fail with `Closed`, and
        `TimedOut` has their number.
        """
        self._finalizer.detach()
        self._thread.close(timeout_ms)

    def partitions_for(self, topic: str) -> list[int]:
        """The partitions of a topic, which is created if the brokers auto-create topics.

        >>> producer.partitions_for(topic)
        [0]
        """
        return self._thread.run(self._engine.partitions_for(topic))

    # -- transactions

    @contextmanager
    def transaction(self) -> Iterator[Self]:
        """A transaction as a block: its records and offsets are committed together at its end, or
        aborted.

        An exception aborts the transaction and propagates. If the transaction cannot be committed,
        because a record could not be written for example, it is aborted and `TransactionAbortable`
        raised; the next transaction may begin then. `ProducerFenced` says that another producer has
        taken over, and `TimedOut` of the commit that its outcome is unknown: call
        `commit_transaction` again to learn it.

        >>> with headrace.Producer(transactional_id=f"{topic}-copier") as copier:
        ...     with copier.transaction():
        ...         future = copier.send(topic, "first")
        ...         future = copier.send(topic, "second")
        >>> future.result().offset
        1
        """
        self.begin_transaction()
        try:
            yield self
            self.commit_transaction()
        except BaseException as error:
            self._thread.run(self._engine.abort_after(error))
            raise

    def init_transactions(self) -> None:
        """Fence other producers with the transactional id, and abort their open transaction.

        The first transaction does this too. Call it before a consumer reads committed offsets:
        offsets in an open transaction have to be decided first.
        """
        self._transact("init_transactions()", TransactionManager.init)

    def begin_transaction(self) -> None:
        """Begin a transaction; records can be sent until it is committed or aborted.

        >>> with headrace.Producer(transactional_id=f"{topic}-writer") as writer:
        ...     writer.begin_transaction()
        ...     future = writer.send(topic, "kept")
        ...     writer.commit_transaction()
        ...     writer.begin_transaction()
        ...     future = writer.send(topic, "dropped")
        ...     writer.abort_transaction()
        """
        self._transact("begin_transaction()", TransactionManager.begin)

    def send_offsets_to_transaction(
        self, offsets: Offsets, group_metadata: ConsumerGroupMetadata | str
    ) -> None:
        """Commit a group's offsets in the transaction: they take effect when it is committed.

        `offsets` has the next offset to read of each partition, as `Consumer.positions` returns
        them. With `Consumer.group_metadata()` the coordinator refuses them, by
        `TransactionAbortable`, if the partitions belong to another member of the group by now; the
        name of a group alone checks nothing.
        """
        call = self._engine.send_offsets(offsets, group_metadata)
        self._thread.run_waiting("send_offsets_to_transaction()", call)

    def commit_transaction(self) -> None:
        """Wait for every record of the transaction, and commit it.

        `TransactionAbortable`: it cannot be committed, call `abort_transaction`. `TimedOut`: no
        coordinator has answered within `max_block_ms`; call this again to learn the outcome.
        """
        self._transact("commit_transaction()", TransactionManager.commit)

    def abort_transaction(self) -> None:
        """Abort the transaction; unacknowledged records fail with `TransactionAborted`.

        After `TimedOut` call it again, or begin another transaction, which finishes it first.
        """
        self._transact("abort_transaction()", TransactionManager.abort)

    def metrics(self) -> dict[str, float]:
        """The metrics of this producer, under Kafka's names.

        >>> producer.send(topic, b"hello").result().offset
        0
        >>> producer.metrics()["record-send-total"] >= 1
        True
        """
        return self._engine.snapshot()

    def _send_later(self, pending: Pending) -> Future:
        return self._thread.run_waiting("send()", self._engine.send_later(pending))

    def _transact(
        self, what: str, operation: Callable[[TransactionManager], Awaitable[None]]
    ) -> None:
        self._thread.run_waiting(what, self._engine.transact(what, operation))


class AsyncProducer:
    """Sends records to the topics of a cluster, on the event loop that it is first used on.

    The equivalent of `headrace.Producer` with awaited calls: `await send(...)` waits for room in
    the buffer, and returns a future; awaiting that waits for the brokers. Not for other threads.

    >>> async def main():
    ...     async with headrace.aio.Producer() as producer:
    ...         future = await producer.send(topic, "hello")
    ...         return (await future).offset
    >>> asyncio.run(main())
    0
    """

    def __init__(self, **options: Unpack[ProducerConfig]) -> None:
        self._engine = ProducerEngine(producer_options(**options), self._wake)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_closed = False

    def __repr__(self) -> str:
        return self._engine.described("headrace.aio.Producer", is_closed=self._is_closed)

    def __del__(self) -> None:
        if self._loop is not None and not self._is_closed:
            warnings.warn(f"not closed: {self!r}", ResourceWarning, source=self, stacklevel=2)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            await self.close()
            return
        # The exception in the block is more important than undelivered records, and must not be
        # hidden by a TimedOut.
        try:
            await self.close(timeout_ms=int(EXIT_S_MAX * 1000))
        except TimedOut as late:
            log.warning("%s", late)

    @property
    def client_id(self) -> str:
        """The client id, which the broker's log and the metrics show."""
        return self._engine.options.client_id

    async def send(
        self,
        topic: str | ProducerRecord,
        value: Any = None,
        key: Any = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> Future:
        """Add a record to the batch of its partition, and return its `Future`.

        The future may be awaited, and need not be. Arguments and errors are those of
        `headrace.Producer.send`; callbacks run on the loop.
        """
        if self._loop is None:
            self._bind()
        future = self._engine.accumulator.send(
            topic, value, key, headers, partition, timestamp_ms, on_delivery
        )
        if isinstance(future, tuple):
            return await self._run(self._engine.send_later(future))
        return future

    async def send_arrow(
        self, topic: str, batch: "pyarrow.RecordBatch | pyarrow.Table"
    ) -> ColumnsFuture:
        """Send the rows of Arrow columns, without a Python object for each.

        As `headrace.Producer.send_arrow`.
        """
        return await self._run(self._engine.send_columns(topic, batch))

    async def flush(self, timeout_ms: int | None = None) -> None:
        """Wait until every record sent so far has its outcome; `TimedOut` has the number of the
        rest.

        Records that failed do not raise here: their futures have the exceptions.
        """
        await run_async(self._engine.flush(timeout_ms))

    async def close(self, timeout_ms: int | None = None) -> None:
        """Deliver all sent records, then close. May be called again; `send` raises `Closed`
        afterwards.

        With a timeout, records without an outcome by then fail, and `TimedOut` has their number.
        """
        if self._is_closed:
            return
        self._is_closed = True
        self._engine.refuse(closed)
        try:
            timeout_s = None if timeout_ms is None else timeout_ms / 1000
            late = await run_async(self._engine.finish(timeout_s))
        finally:
            await self._engine.sender.stop(EXIT_S_MAX)
        if late is not None:
            raise late

    async def partitions_for(self, topic: str) -> list[int]:
        """The partitions of a topic, which is created if the brokers auto-create topics."""
        return await self._run(self._engine.partitions_for(topic))

    # -- transactions

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Self]:
        """A transaction as a block: its records and offsets are committed together at its end, or
        aborted.

        As `headrace.Producer.transaction`.

        >>> async def main():
        ...     async with headrace.aio.Producer(transactional_id=f"{topic}-copier") as copier:
        ...         async with copier.transaction():
        ...             future = await copier.send(topic, "hello")
        ...         return future.result().offset
        >>> asyncio.run(main())
        0
        """
        await self.begin_transaction()
        try:
            yield self
            await self.commit_transaction()
        except BaseException as error:
            await run_async(self._engine.abort_after(error))
            raise

    async def init_transactions(self) -> None:
        """Fence other producers with the transactional id, and abort their open transaction.

        The first transaction does this too.
        """
        await self._run(self._engine.transact("init_transactions()", TransactionManager.init))

    async def begin_transaction(self) -> None:
        """Begin a transaction; records can be sent until it is committed or aborted."""
        await self._run(self._engine.transact("begin_transaction()", TransactionManager.begin))

    async def send_offsets_to_transaction(
        self, offsets: Offsets, group_metadata: ConsumerGroupMetadata | str
    ) -> None:
        """Commit a group's offsets in the transaction: they take effect when it is committed.

        As `headrace.Producer.send_offsets_to_transaction`.
        """
        await self._run(self._engine.send_offsets(offsets, group_metadata))

    async def commit_transaction(self) -> None:
        """Wait for every record of the transaction, and commit it."""
        await self._run(self._engine.transact("commit_transaction()", TransactionManager.commit))

    async def abort_transaction(self) -> None:
        """Abort the transaction; unacknowledged records fail with `TransactionAborted`.

        After `TimedOut` call it again, or begin another transaction, which finishes it first.
        """
        await self._run(self._engine.transact("abort_transaction()", TransactionManager.abort))

    def metrics(self) -> dict[str, float]:
        """The metrics of this producer, under Kafka's names."""
        return self._engine.snapshot()

    def _bind(self) -> None:
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            raise HeadraceError("a producer belongs to the event loop that it was first used on")
        if self._is_closed:
            raise closed()

    async def _run(self, call: Call[Result]) -> Result:
        self._bind()
        return await run_async(call)

    def _wake(self) -> None:
        assert self._loop is not None
        self._loop.call_soon(self._engine.sender.pump)


# The name that users know it by is `headrace.aio.Producer`.
AsyncProducer.__name__ = "Producer"
