"""The consumer: `headrace.Consumer`, blocking, and `headrace.aio.Consumer`, for asyncio.

Rule: a method runs a call of `consumer_calls`, on a thread of its own or on the application's loop.
"""

import asyncio
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from re import Pattern
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack, overload

from headrace.client.blocking import Call, LoopThread, run_async
from headrace.client.consumer import arguments
from headrace.client.consumer.arguments import Offsets, Partitions
from headrace.client.consumer.commit_queue import CommitCallback
from headrace.client.consumer.consumer_calls import CLOSE_MS, ConsumerCalls
from headrace.client.consumer.consumer_engine import ConsumerEngine
from headrace.client.consumer.rebalance_listener import RebalanceCallbacks
from headrace.client.consumer_options import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from headrace.client.errors import IllegalState
from headrace.client.options import ConsumerConfig, ConsumerOptions, consumer_options
from headrace.client.types import ConsumerGroupMetadata, OffsetAndMetadata, OffsetAndTimestamp
from headrace.protocol.consumer_records import ConsumerRecord
from headrace.types import TopicPartition

if TYPE_CHECKING:
    import pyarrow

Result = TypeVar("Result")


class _Face:
    """The common base of the blocking and the asyncio consumer: the calls that never wait."""

    def __init__(
        self,
        topics: Sequence[str],
        options: ConsumerOptions,
        post: Callable[..., None],
        *,
        is_async: bool,
    ) -> None:
        names = arguments.topics_of(topics) if topics else None
        self._options = options
        self._engine = ConsumerEngine(options, post=post)
        self._calls = ConsumerCalls(self._engine, is_async=is_async)
        if names is not None:
            self._engine.subscribe(names, None, None)

    def __repr__(self) -> str:
        group = f", group {self._options.group_id}" if self._options.group_id else ""
        state = "closed" if self._calls.is_closed else f"{len(self.assignment())} partitions"
        return f"<{type(self).__name__} {self._options.client_id}{group}, {state}>"

    @property
    def client_id(self) -> str:
        """The client id, which the broker's log and the metrics show."""
        return self._options.client_id

    def assignment(self) -> set[TopicPartition]:
        """The partitions currently assigned."""
        return self._calls.assignment()

    def subscription(self) -> set[str]:
        """The topics subscribed to; with a pattern, those that match at the moment."""
        return set(self._engine.subscription.topics)

    def paused(self) -> set[TopicPartition]:
        """The partitions that are paused."""
        with self._engine.subscription.lock:
            states = self._engine.subscription.states
            return {tp for tp, state in states.items() if state.is_paused}

    def positions(self) -> dict[TopicPartition, int]:
        """The next offset of each partition, after the last polled record; `commit()` commits
        these.

        A partition without a position is missing.
        """
        with self._engine.subscription.lock:
            return self._engine.subscription.positions()

    def group_metadata(self) -> ConsumerGroupMetadata:
        """The identity of this group member, for `Producer.send_offsets_to_transaction`."""
        return self._engine.committing.group_metadata()

    def lag(self) -> dict[TopicPartition, int]:
        """The number of records not yet polled, by partition, as of the last fetch."""
        return self._engine.metrics.lags()

    def metrics(self) -> dict[str, float]:
        """The metrics of this consumer, under Kafka's names."""
        return self._engine.metrics.snapshot()


class Consumer(_Face):
    """Reads records of topics, alone or as a member of a group.

    Records are fetched ahead in the background, at most two fetches of `max_partition_fetch_bytes`
    for each partition and `fetch_max_bytes` in all, and are decoded when they are polled.

    >>> metadata = producer.send(topic, "first").result()
    >>> with Consumer(topic, group_id="billing", auto_offset_reset="earliest") as consumer:
    ...     records = consumer.poll(timeout_ms=10_000)
    >>> records[0].value
    b'first'

    A consumer is for one thread at a time. The arguments are the topics to subscribe to, and the
    options of `ConsumerConfig`.
    """

    def __init__(self, *topics: str, **options: Unpack[ConsumerConfig]) -> None:
        settled = consumer_options(**options)
        self._thread = LoopThread(f"headrace {settled.client_id}")
        super().__init__(topics, settled, self._thread.post, is_async=False)

    # -- subscribing

    def subscribe(
        self,
        topics: Iterable[str] | str | None = None,
        pattern: str | Pattern[str] | None = None,
        listener: RebalanceCallbacks | None = None,
    ) -> None:
        """Read topics, or all whose whole name matches a pattern, instead of those read before.

        In a group, the topics' partitions are shared with its other members. Without a `group_id`
        all of them are read. (Java's consumer refuses that.) Topics may be created later.

        >>> consumer.subscribe(["orders", "payments"])
        >>> sorted(consumer.subscription())
        ['orders', 'payments']
        >>> consumer.unsubscribe()
        >>> consumer.subscribe(pattern="invoices-.*")
        """
        self._calls.subscribe(topics, pattern, listener)

    def unsubscribe(self) -> None:
        """End the subscription and leave the group, after a commit if commits are automatic."""
        self._thread.run(self._calls.unsubscribe())

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read these partitions, without a group's assignment.

        >>> metadata = producer.send(topic, "first").result()
        >>> consumer.unsubscribe()
        >>> consumer.assign([TopicPartition(topic, 0)])
        >>> consumer.seek(TopicPartition(topic, 0), 0)
        >>> consumer.poll(timeout_ms=10_000)[0].offset
        0
        """
        self._calls.assign(partitions)

    # -- reading

    def poll(
        self, timeout_ms: float | None = 1000, max_records: int | None = None
    ) -> list[ConsumerRecord]:
        """The next records, at most `max_poll_records`; none if none arrive in time.

        Records of one partition are in the order of their offsets. Rebalances of the group, and
        their callbacks, happen inside `poll`, so it has to be called at least every
        `max_poll_interval_ms`. Calling it says that the records it returned before are finished.
        """
        return self._thread.run(self._calls.poll(timeout_ms, max_records))

    def poll_arrow(
        self, timeout_ms: float | None = 1000, max_records: int | None = None
    ) -> "pyarrow.RecordBatch":
        """The next records as columns, without an object for each record.

        The columns are topic, partition, offset, timestamp, key, value and headers; deserializers
        are not used. Without `max_records` a batch holds the result of one fetch of a partition, or
        several small ones joined. pyarrow has to be installed.

        >>> metadata = producer.send(topic, "first").result()
        >>> batch = consumer.poll_arrow(timeout_ms=10_000)
        >>> batch.column("value")[0].as_py()
        b'first'
        """
        return self._thread.run(self._calls.poll_arrow(timeout_ms, max_records))

    def __iter__(self) -> Iterator[ConsumerRecord]:
        """Iterate over records for ever, or until none arrived for `consumer_timeout_ms`.

        A record is finished, for automatic commits, when the next record is requested; `commit()`
        in the loop commits up to and including the current record.

        >>> metadata = producer.send(topic, "first").result()
        >>> with Consumer(topic, auto_offset_reset="earliest", consumer_timeout_ms=1000) as reader:
        ...     values = [record.value for record in reader]
        >>> values[0]
        b'first'
        """
        return self

    def __next__(self) -> ConsumerRecord:
        rows = self._calls.rows
        index = rows.index
        if index < rows.stop:
            rows.index = index + 1
            return rows.records[index]
        record = self._thread.run(self._calls.next_record())
        if record is None:
            raise StopIteration
        return record

    # -- offsets

    def commit(self, offsets: Offsets | None = None, timeout_ms: float | None = None) -> None:
        """Commit the position of every partition, or the given offsets, and wait for the result.

        A committed offset is that of the next record to read. `CommitFailed` says that the
        partitions went to another member of the group, which will read the records again.

        >>> metadata = producer.send(topic, "first").result()
        >>> [record.value for record in consumer.poll(timeout_ms=10_000)]
        [b'first']
        >>> consumer.commit()
        >>> consumer.committed(TopicPartition(topic, 0)).offset
        1
        """
        self._thread.run(self._calls.commit(offsets, timeout_ms))

    def commit_async(
        self, offsets: Offsets | None = None, callback: CommitCallback | None = None
    ) -> None:
        """Commit without waiting; commits are performed in the order of the calls.

        `callback(offsets, error)` is called in a later `poll`, `commit` or `close`. Without one a
        failure is logged.
        """
        self._calls.commit_async(offsets, callback)

    # A TopicPartition is a tuple, and so an iterable: the first overload applies.
    @overload
    def committed(  # type: ignore[overload-overlap]
        self, partition: TopicPartition, /
    ) -> OffsetAndMetadata | None: ...
    @overload
    def committed(
        self, *partitions: Partitions
    ) -> dict[TopicPartition, OffsetAndMetadata | None]: ...
    def committed(self, *partitions: Partitions) -> Any:
        """The committed offset of a partition, or None; a dict for several or, by default, all
        assigned.
        """
        return self._thread.run(self._calls.committed(partitions))

    def position(self, partition: TopicPartition, timeout_ms: float | None = None) -> int:
        """The offset of the next record of a partition; waits until it is known."""
        return self._thread.run(self._calls.position(partition, timeout_ms))

    def seek(self, partition: TopicPartition, offset: int | OffsetAndMetadata) -> None:
        """Set the position of a partition. Its prefetched records are dropped."""
        self._calls.seek(partition, offset)

    def seek_to_beginning(self, *partitions: Partitions) -> None:
        """Seek partitions, by default all assigned, to their first records."""
        self._calls.seek_to(partitions, EARLIEST_TIMESTAMP)

    def seek_to_end(self, *partitions: Partitions) -> None:
        """Seek partitions, by default all assigned, behind their last records."""
        self._calls.seek_to(partitions, LATEST_TIMESTAMP)

    def seek_to_committed(self, *partitions: Partitions) -> None:
        """Seek partitions, by default all assigned, to the group's committed offsets.

        To be called after aborting a transaction that had the offsets of polled records. A
        partition without a committed offset follows `auto_offset_reset`.
        """
        self._calls.seek_to(partitions, None)

    def pause(self, *partitions: Partitions) -> None:
        """Return no records of these partitions until they are resumed.

        >>> consumer.pause(consumer.assignment())
        >>> consumer.resume(consumer.paused())
        """
        self._calls.pause(partitions)

    def resume(self, *partitions: Partitions) -> None:
        """Return records of paused partitions again."""
        self._calls.resume(partitions)

    # -- questions

    def offsets_for_times(
        self, times: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record at or after a time in milliseconds, for each partition that has one."""
        return self._thread.run(self._calls.offsets_for_times(times))

    def beginning_offsets(self, *partitions: Partitions) -> dict[TopicPartition, int]:
        """The offset of the first record of each partition."""
        return self._thread.run(self._calls.beginning_offsets(partitions))

    def end_offsets(self, *partitions: Partitions) -> dict[TopicPartition, int]:
        """The offset behind the last record of each partition.

        With `isolation_level="read_committed"` it is the first offset of the first open
        transaction.

        >>> consumer.end_offsets(TopicPartition(topic, 0))
        {TopicPartition(topic='...', partition=0): 0}
        """
        return self._thread.run(self._calls.end_offsets(partitions))

    def partitions_for(self, topic: str) -> list[int] | None:
        """The numbers of a topic's partitions; None if the topic does not exist."""
        return self._thread.run(self._calls.partitions_for(topic))

    def topics(self) -> set[str]:
        """The names of all topics except internal ones."""
        return self._thread.run(self._calls.topics())

    # -- ending

    def close(self, timeout_ms: float = CLOSE_MS) -> None:
        """Commit if commits are automatic, leave the group, and release all resources.

        The records of the last `poll` count as finished. If the application failed while it
        processed them, leave the `with` block by the exception instead: then they are not
        committed.
        """
        self._close(arguments.seconds_of(timeout_ms), with_given=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close(CLOSE_MS / 1000, with_given=error is None)

    def _close(self, timeout_s: float | None, *, with_given: bool) -> None:
        try:
            self._thread.run(self._calls.close(timeout_s, with_given=with_given))
        finally:
            if self._calls.is_closed:
                self._thread.close()


class _Done:
    """An awaitable that is already done."""

    def __await__(self) -> Generator[None, None, None]:
        return
        yield


_DONE = _Done()


class AsyncConsumer(_Face):
    """Reads records of topics, alone or as a member of a group, on the running event loop.

    >>> import asyncio, headrace
    >>> metadata = producer.send(topic, "first").result()
    >>> async def first_value():
    ...     async with headrace.aio.Consumer(topic, auto_offset_reset="earliest") as consumer:
    ...         async for record in consumer:
    ...             return record.value
    >>> asyncio.run(first_value())
    b'first'

    The methods are those of the blocking consumer. What waits is awaited. What does not, such as
    `seek`, has happened when the call returns; it may be awaited, and need not be.
    """

    def __init__(self, *topics: str, **options: Unpack[ConsumerConfig]) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._posted: list[tuple[Callable[..., object], tuple[Any, ...]]] = []
        super().__init__(topics, consumer_options(**options), self._post, is_async=True)

    def _post(self, callback: Callable[..., object], *given: object) -> None:
        """Schedule a callback on the loop; before there is a loop, callbacks are queued."""
        if self._loop is None:
            self._posted.append((callback, given))
        else:
            self._loop.call_soon(callback, *given)

    def _bind(self) -> None:
        """Bind to the running loop; called by the first awaited call."""
        self._calls.check_open()
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
            for callback, given in self._posted:
                loop.call_soon(callback, *given)
            self._posted.clear()
        elif self._loop is not loop:
            raise IllegalState(
                "the consumer belongs to another event loop", advice="make one for each"
            )

    async def _run(self, call: Call[Result]) -> Result:
        self._bind()
        return await run_async(call)

    # -- subscribing

    def subscribe(
        self,
        topics: Iterable[str] | str | None = None,
        pattern: str | Pattern[str] | None = None,
        listener: RebalanceCallbacks | None = None,
    ) -> Awaitable[None]:
        """Read topics, or all whose whole name matches a pattern, instead of those read before.

        The methods of the listener may be coroutine functions.
        """
        self._calls.subscribe(topics, pattern, listener)
        return _DONE

    async def unsubscribe(self) -> None:
        """End the subscription and leave the group, after a commit if commits are automatic."""
        await self._run(self._calls.unsubscribe())

    def assign(self, partitions: Iterable[TopicPartition]) -> Awaitable[None]:
        """Read these partitions, without a group's assignment."""
        self._calls.assign(partitions)
        return _DONE

    # -- reading

    async def poll(
        self, timeout_ms: float | None = 1000, max_records: int | None = None
    ) -> list[ConsumerRecord]:
        """The next records, at most `max_poll_records`; none if none arrive in time."""
        return await self._run(self._calls.poll(timeout_ms, max_records))

    async def poll_arrow(
        self, timeout_ms: float | None = 1000, max_records: int | None = None
    ) -> "pyarrow.RecordBatch":
        """The next records as columns, without an object for each record."""
        return await self._run(self._calls.poll_arrow(timeout_ms, max_records))

    def __aiter__(self) -> AsyncIterator[ConsumerRecord]:
        """Iterate over records for ever, or until none arrived for `consumer_timeout_ms`."""
        return self

    async def __anext__(self) -> ConsumerRecord:
        rows = self._calls.rows
        index = rows.index
        if index < rows.stop:
            rows.index = index + 1
            return rows.records[index]
        record = await self._run(self._calls.next_record())
        if record is None:
            raise StopAsyncIteration
        return record

    # -- offsets

    async def commit(self, offsets: Offsets | None = None, timeout_ms: float | None = None) -> None:
        """Commit the position of every partition, or the given offsets, and wait for the result."""
        await self._run(self._calls.commit(offsets, timeout_ms))

    def commit_async(
        self, offsets: Offsets | None = None, callback: CommitCallback | None = None
    ) -> Awaitable[None]:
        """Commit without waiting; commits are performed in the order of the calls."""
        self._calls.commit_async(offsets, callback)
        return _DONE

    # A TopicPartition is a tuple, and so an iterable: the first overload applies.
    @overload
    async def committed(  # type: ignore[overload-overlap]
        self, partition: TopicPartition, /
    ) -> OffsetAndMetadata | None: ...
    @overload
    async def committed(
        self, *partitions: Partitions
    ) -> dict[TopicPartition, OffsetAndMetadata | None]: ...
    async def committed(self, *partitions: Partitions) -> Any:
        """The committed offset of a partition, or None; a dict for several or, by default, all
        assigned.
        """
        return await self._run(self._calls.committed(partitions))

    async def position(self, partition: TopicPartition, timeout_ms: float | None = None) -> int:
        """The offset of the next record of a partition; waits until it is known."""
        return await self._run(self._calls.position(partition, timeout_ms))

    def seek(self, partition: TopicPartition, offset: int | OffsetAndMetadata) -> Awaitable[None]:
        """Set the position of a partition. Its prefetched records are dropped."""
        self._calls.seek(partition, offset)
        return _DONE

    def seek_to_beginning(self, *partitions: Partitions) -> Awaitable[None]:
        """Seek partitions, by default all assigned, to their first records."""
        self._calls.seek_to(partitions, EARLIEST_TIMESTAMP)
        return _DONE

    def seek_to_end(self, *partitions: Partitions) -> Awaitable[None]:
        """Seek partitions, by default all assigned, behind their last records."""
        self._calls.seek_to(partitions, LATEST_TIMESTAMP)
        return _DONE

    def seek_to_committed(self, *partitions: Partitions) -> Awaitable[None]:
        """Seek partitions, by default all assigned, to the group's committed offsets.

        A partition without a committed offset follows `auto_offset_reset`.
        """
        self._calls.seek_to(partitions, None)
        return _DONE

    def pause(self, *partitions: Partitions) -> Awaitable[None]:
        """Return no records of these partitions until they are resumed."""
        self._calls.pause(partitions)
        return _DONE

    def resume(self, *partitions: Partitions) -> Awaitable[None]:
        """Return records of paused partitions again."""
        self._calls.resume(partitions)
        return _DONE

    # -- questions

    async def offsets_for_times(
        self, times: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record at or after a time in milliseconds, for each partition that has one."""
        return await self._run(self._calls.offsets_for_times(times))

    async def beginning_offsets(self, *partitions: Partitions) -> dict[TopicPartition, int]:
        """The offset of the first record of each partition."""
        return await self._run(self._calls.beginning_offsets(partitions))

    async def end_offsets(self, *partitions: Partitions) -> dict[TopicPartition, int]:
        """The offset behind the last record of each partition."""
        return await self._run(self._calls.end_offsets(partitions))

    async def partitions_for(self, topic: str) -> list[int] | None:
        """The numbers of a topic's partitions; None if the topic does not exist."""
        return await self._run(self._calls.partitions_for(topic))

    async def topics(self) -> set[str]:
        """The names of all topics except internal ones."""
        return await self._run(self._calls.topics())

    # -- ending

    async def close(self, timeout_ms: float = CLOSE_MS) -> None:
        """Commit if commits are automatic, leave the group, and release all resources."""
        await self._close(arguments.seconds_of(timeout_ms), with_given=True)

    async def __aenter__(self) -> Self:
        self._bind()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._close(CLOSE_MS / 1000, with_given=error is None)

    async def _close(self, timeout_s: float | None, *, with_given: bool) -> None:
        if not self._calls.is_closed:
            await self._run(self._calls.close(timeout_s, with_given=with_given))


# The name that users know it by is `headrace.aio.Consumer`.
AsyncConsumer.__name__ = "Consumer"
