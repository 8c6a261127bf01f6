"""The asyncio producer: `headrace.aio.Producer`."""

import asyncio
import time
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack

from headrace.client.consumer.arguments import Offsets, group_of, offsets_of
from headrace.client.errors import ProducerFenced, TimedOut
from headrace.client.metrics import ProducerMetrics
from headrace.client.options import ProducerConfig, producer_options
from headrace.client.producer.accumulator import Accumulator
from headrace.client.producer.arrow_batches import planned
from headrace.client.producer.delivery import ColumnsFuture, Delivery, Future
from headrace.client.producer.producer_engine import (
    EXIT_S_MAX,
    closed,
    columns_future,
    give_back,
    log,
    new_cluster,
    no_partition,
    not_delivered,
    not_flushed,
    not_transactional,
    take_room_async,
)
from headrace.client.producer.sender import Sender
from headrace.client.producer.transaction_manager import Transactor
from headrace.client.producer_options import ProducerOptions
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


class Producer:
    """Sends records to the topics of a cluster, on the event loop that it is first used on.

    The same as `headrace.Producer` with calls that are awaited: `await send(...)` waits for room in
    the buffer, and gives a future; awaiting that waits for the brokers. Not for other threads.

    >>> async def main():
    ...     async with headrace.aio.Producer() as producer:
    ...         future = await producer.send(topic, "hello")
    ...         return (await future).offset
    >>> asyncio.run(main())
    0
    """

    def __init__(self, **options: Unpack[ProducerConfig]) -> None:
        self._options: ProducerOptions = producer_options(**options)
        self._cluster = new_cluster(self._options)
        self._metrics = ProducerMetrics(client_id=self._options.client_id)
        self._accumulator = Accumulator(
            self._options,
            self._wake,
            choice=self._cluster.rng.choice,
            # Looked up now, not when the module was loaded: in a simulation these are others.
            monotonic=time.monotonic,
            wall=time.time,
        )
        self._sender = Sender(self._cluster, self._accumulator, self._options, self._metrics)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_closed = False

    def __repr__(self) -> str:
        servers = ",".join(map(str, self._options.bootstrap_servers))
        state = "closed" if self._is_closed else f"{self._accumulator.records} unsettled"
        return f"<headrace.aio.Producer {self._options.client_id} of {servers}, {state}>"

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
        # What failed is more urgent than what is unsent, and must not be hidden by it.
        try:
            await self.close(timeout_ms=int(EXIT_S_MAX * 1000))
        except TimedOut as late:
            log.warning("%s", late)

    @property
    def client_id(self) -> str:
        """What the broker's log and the metrics call this client."""
        return self._options.client_id

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
        """Add a record to the batch of its partition, and return its future, to be awaited or not.

        Arguments and errors are those of `headrace.Producer.send`; callbacks run on the loop.
        """
        if isinstance(topic, ProducerRecord):
            record = topic
            topic, value, key, headers = record.topic, record.value, record.key, record.headers
            partition, timestamp_ms = record.partition, record.timestamp_ms
        if self._loop is None:
            self._bind()
        future = self._accumulator.send(
            topic, value, key, headers, partition, timestamp_ms, on_delivery
        )
        return await self._send_later(future) if isinstance(future, tuple) else future

    async def send_arrow(
        self, topic: str, batch: "pyarrow.RecordBatch | pyarrow.Table"
    ) -> ColumnsFuture:
        """Send the rows of Arrow columns; as `headrace.Producer.send_arrow`."""
        self._bind()
        max_block_s = self._options.max_block_ms / 1000
        await self._know(topic, None, time.monotonic() + max_block_s)
        deliveries: list[Delivery] = []
        now_ms = time.time_ns() // 1_000_000
        for one in planned(topic, batch, self._accumulator, self._options, now_ms=now_ms):
            await self._take_room(one.raw_bytes, time.monotonic() + max_block_s)
            try:
                deliveries.append(
                    self._accumulator.add_columns(
                        topic, one.partition, one.encode, one.count, one.raw_bytes
                    )
                )
            except BaseException:
                give_back(self._accumulator, one.raw_bytes)
                raise
        return columns_future(topic, deliveries)

    async def flush(self, timeout_ms: int | None = None) -> None:
        """Return when all that was sent has its outcome; `TimedOut` says how many have not."""
        if self._is_closed:
            raise closed()
        timeout_s = None if timeout_ms is None else timeout_ms / 1000
        if not await self._wait(self._accumulator.hurry(), timeout_s):
            assert timeout_s is not None
            raise not_flushed(self._accumulator.records, timeout_s)

    async def close(self, timeout_ms: int | None = None) -> None:
        """Deliver what was sent, and end. May be called again; `send` raises `Closed` from now.

        With a timeout, records without an outcome by then fail, and `TimedOut` says how many.
        """
        if self._is_closed:
            return
        self._is_closed = True
        self._accumulator.refuse(closed)
        timeout_s = None if timeout_ms is None else timeout_ms / 1000
        left = 0
        try:
            if self._sender.transactor is not None:
                await self._sender.transactor.close(EXIT_S_MAX if timeout_s is None else timeout_s)
            if not await self._wait(self._accumulator.hurry(), timeout_s):
                left = self._accumulator.records
        finally:
            await self._sender.stop(EXIT_S_MAX)
        if left:
            assert timeout_s is not None
            raise not_delivered(left, timeout_s)

    async def partitions_for(self, topic: str) -> list[int]:
        """The partitions of a topic, which is created if the broker creates topics by itself."""
        self._bind()
        deadline = time.monotonic() + self._options.max_block_ms / 1000
        return list(range(await self._know(topic, None, deadline)))

    # -- transactions

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Self]:
        """A block that is committed at its end or not at all; as `headrace.Producer.transaction`.

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
            await self._abort_after(error)
            raise

    async def init_transactions(self) -> None:
        """Take over the transactional id; the first transaction does so by itself."""
        await self._transactor("init_transactions()").init()

    async def begin_transaction(self) -> None:
        """Begin a transaction; records can be sent until it is committed or aborted."""
        await self._transactor("begin_transaction()").begin()

    async def send_offsets_to_transaction(
        self, offsets: Offsets, group_metadata: ConsumerGroupMetadata | str
    ) -> None:
        """Commit a group's offsets with the transaction; as the method of `headrace.Producer`."""
        transactor = self._transactor("send_offsets_to_transaction()")
        await transactor.send_offsets(offsets_of(offsets), group_of(group_metadata))

    async def commit_transaction(self) -> None:
        """Wait for every record of the transaction, and commit it."""
        await self._transactor("commit_transaction()").commit()

    async def abort_transaction(self) -> None:
        """Abort the transaction; records that are not acknowledged fail."""
        await self._transactor("abort_transaction()").abort()

    def metrics(self) -> dict[str, float]:
        """What this producer has counted, under Kafka's names."""
        self._metrics.queued(self._accumulator.used_bytes)
        return self._metrics.snapshot()

    def _transactor(self, what: str) -> Transactor:
        self._bind()
        if self._sender.transactor is None:
            raise not_transactional(what)
        return self._sender.transactor

    async def _abort_after(self, error: BaseException) -> None:
        """Abort a transaction that a block, or its commit, has failed in, if none was committed.

        What it failed with must not be hidden, unless by its reason: another producer took over.
        """
        transactor = self._sender.transactor
        assert transactor is not None
        if not transactor.state.is_open or self._is_closed:
            return
        try:
            await transactor.abort(None if isinstance(error, Exception) else EXIT_S_MAX)
        except ProducerFenced:
            if isinstance(error, HeadraceError):
                raise
        except HeadraceError as failed:
            log.warning("%s: a transaction was not aborted: %s", self.client_id, failed)

    def _bind(self) -> None:
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            raise HeadraceError("a producer belongs to the event loop that it was first used on")
        if self._is_closed:
            raise closed()

    def _wake(self) -> None:
        assert self._loop is not None
        self._loop.call_soon(self._sender.pump)

    async def _send_later(self, pending: Pending) -> Future:
        """Wait for what a record needs, at most `max_block_ms`, and add it."""
        self._bind()
        topic, partition, need = pending[0], pending[4], pending[7]
        deadline = time.monotonic() + self._options.max_block_ms / 1000
        await self._know(topic, partition, deadline)
        await self._take_room(need, deadline)
        try:
            future = self._accumulator.append(*pending, True)
            assert future is not None, "partitions are never taken away"
        except BaseException:
            give_back(self._accumulator, need)
            raise
        return future

    async def _know(self, topic: str, partition: int | None, deadline: float) -> int:
        if not isinstance(topic, str) or not topic:
            raise TypeError(f"a topic is named by a text that is not empty, not {topic!r}")
        count = self._accumulator.partition_count(topic)
        if count == 0:
            await self._sender.know_topic(topic, max(deadline - time.monotonic(), 0.0))
            count = self._accumulator.partition_count(topic)
        if partition is not None and partition >= count:
            await self._sender.ask_topic(topic, max(deadline - time.monotonic(), 0.0))
            count = self._accumulator.partition_count(topic)
            if partition >= count:
                raise no_partition(topic, partition, count)
        return count

    async def _take_room(self, size_bytes: int, deadline: float) -> None:
        left_s = max(deadline - time.monotonic(), 0.0)
        await take_room_async(self._accumulator, size_bytes, left_s, self._options)

    async def _wait(self, deliveries: list[Delivery], timeout_s: float | None) -> bool:
        waiters = [delivery.waiter() for delivery in deliveries if not delivery.is_done]
        if not waiters:
            return True
        _, pending = await asyncio.wait(waiters, timeout=timeout_s)
        return not pending
