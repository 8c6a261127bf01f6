"""The asyncio consumer: the same as the blocking one, on the application's own event loop."""

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
from contextlib import contextmanager
from inspect import isawaitable
from re import Pattern
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack, overload

from headrace.client import list_offsets
from headrace.client.consumer import arguments
from headrace.client.consumer.arguments import Offsets, Partitions
from headrace.client.consumer.arrow_columns import arrow_schema, to_arrow
from headrace.client.consumer.commit_queue import CommitCallback
from headrace.client.consumer.facade import CLOSE_MS, NO_ROWS, WAIT_S_MAX, Facade
from headrace.client.consumer.rebalance_listener import Change, Listener
from headrace.client.consumer_options import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from headrace.client.errors import IllegalState
from headrace.client.options import ConsumerConfig
from headrace.client.types import OffsetAndMetadata, OffsetAndTimestamp
from headrace.protocol.consumer_records import ConsumerRecord
from headrace.types import TopicPartition

if TYPE_CHECKING:
    import pyarrow

Result = TypeVar("Result")


class _Done:
    """Something to await that has happened already."""

    def __await__(self) -> Generator[None, None, None]:
        return
        yield


_DONE = _Done()


class Consumer(Facade):
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
        self._signal = asyncio.Event()
        self._is_polling = False
        super().__init__(topics, options, lambda client_id: (self._post, self._signal.set))

    def _post(self, callback: Callable[..., object], *given: object) -> None:
        """Have the loop call something soon; what is posted before there is one waits."""
        if self._loop is None:
            self._posted.append((callback, given))
        else:
            self._loop.call_soon(callback, *given)

    def _bind(self) -> None:
        """Belong to the running loop, from the first call that is awaited on."""
        self._check_open()
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
            for callback, given in self._posted:
                loop.call_soon(callback, *given)
            self._posted.clear()
        elif self._loop is not loop:
            raise IllegalState("the consumer belongs to another event loop; make one for each")

    # -- what to read

    def subscribe(
        self,
        topics: Iterable[str] | str | None = None,
        pattern: str | Pattern[str] | None = None,
        listener: Listener | None = None,
    ) -> Awaitable[None]:
        """Read topics, or all whose whole name matches a pattern, instead of those read before.

        The methods of the listener may be coroutine functions.
        """
        self._subscribe(topics, pattern, listener)
        return _DONE

    async def unsubscribe(self) -> None:
        """Read nothing any more. The group is left, after a commit if commits are automatic."""
        self._bind()
        await self._leave(CLOSE_MS / 1000, with_given=True)

    def assign(self, partitions: Iterable[TopicPartition]) -> Awaitable[None]:
        """Read these partitions, without sharing them with anybody."""
        self._check_open()
        self._engine.assign(arguments.partitions_of([partitions]))
        return _DONE

    # -- reading

    async def poll(
        self, timeout_ms: float | None = 1000, max_records: int | None = None
    ) -> list[ConsumerRecord]:
        """The next records, at most `max_poll_records`; none if none come in time."""
        limit = self._limit(max_records)
        handout = self._engine.handout
        return await self._wait(lambda: handout.records(limit), timeout_ms) or []

    async def poll_arrow(
        self, timeout_ms: float | None = 1000, max_records: int | None = None
    ) -> "pyarrow.RecordBatch":
        """The next records as columns, without an object for each of them."""
        limit = None if max_records is None else arguments.count_of(max_records, "max_records")
        arrow_schema()  # Without pyarrow this raises, before anything is taken.
        handout = self._engine.handout
        return to_arrow(await self._wait(lambda: handout.columns(limit), timeout_ms) or [])

    def __aiter__(self) -> AsyncIterator[ConsumerRecord]:
        """Record by record, for ever, or until none came for `consumer_timeout_ms`."""
        return self

    async def __anext__(self) -> ConsumerRecord:
        rows = self._rows
        if rows.index >= rows.stop:
            self._rows = NO_ROWS
            limit = self._options.max_poll_records
            handout = self._engine.handout
            found = await self._wait(lambda: handout.run(limit), self._options.consumer_timeout_ms)
            if found is None:
                raise StopAsyncIteration
            rows = self._rows = found
        rows.index += 1
        return rows.records[rows.index - 1]

    async def _wait(self, take: Callable[[], Result], timeout_ms: float | None) -> Result | None:
        """What `take` finds before the timeout, after whatever else a poll has to do."""
        timeout_s = arguments.seconds_of(timeout_ms)
        self._bind()
        engine, signal = self._engine, self._signal
        with self._entered():
            now = asyncio.get_running_loop().time
            deadline = None if timeout_s is None else now() + timeout_s
            is_interrupted = True
            engine.begin_poll()
            try:
                # An application that always finds records must not keep the loop from fetching.
                await asyncio.sleep(0)
                while True:
                    signal.clear()
                    await self._call_back()
                    engine.check()
                    taken = take()
                    if taken:
                        break
                    left_s = WAIT_S_MAX if deadline is None else deadline - now()
                    if left_s <= 0 or engine.until_unreachable_s() <= 0:
                        engine.check_reached()
                    if left_s <= 0:
                        break
                    await _wait_for(signal, min(left_s, WAIT_S_MAX))
                is_interrupted = False
                return taken
            finally:
                engine.end_poll(is_interrupted=is_interrupted)

    @contextmanager
    def _entered(self) -> Iterator[None]:
        """See that only one task polls, and it only once."""
        if self._is_polling:
            raise IllegalState(
                "poll() or close() is running already, in another task or around a listener;"
                " a consumer is for one task at a time"
            )
        self._is_polling = True
        try:
            yield
        finally:
            self._is_polling = False

    async def _call_back(self) -> None:
        """Tell the application of rebalances and finished commits."""
        engine = self._engine
        await self._call_commit_callbacks()
        while (change := engine.rebalances.begin()) is not None:
            try:
                await self._tell(change.change, change.partitions)
            finally:
                engine.rebalances.end(change)

    async def _tell(self, change: Change, partitions: Sequence[TopicPartition]) -> None:
        answer = self._engine.rebalances.call_listener(change, partitions)
        if isawaitable(answer):
            await answer

    async def _call_commit_callbacks(self) -> None:
        while (callback := self._engine.committing.next_callback()) is not None:
            answer = callback()
            if isawaitable(answer):
                await answer

    # -- offsets

    async def commit(self, offsets: Offsets | None = None, timeout_ms: float | None = None) -> None:
        """Commit the position of every partition, or the given offsets, and wait for it."""
        self._bind()
        wanted = self._offsets(offsets)
        await self._engine.committing.commit(wanted, arguments.seconds_of(timeout_ms))
        await self._call_commit_callbacks()

    def commit_async(
        self, offsets: Offsets | None = None, callback: CommitCallback | None = None
    ) -> Awaitable[None]:
        """Commit without waiting; commits are done in the order they were asked for."""
        self._engine.commit_async(self._offsets(offsets), callback)
        return _DONE

    # A TopicPartition is a tuple, and so an iterable: the first signature is the one that counts.
    @overload
    async def committed(  # type: ignore[overload-overlap]
        self, partition: TopicPartition, /
    ) -> OffsetAndMetadata | None: ...
    @overload
    async def committed(
        self, *partitions: Partitions
    ) -> dict[TopicPartition, OffsetAndMetadata | None]: ...
    async def committed(self, *partitions: Partitions) -> Any:
        """The committed offset of a partition, or None; of several or all assigned, a dict."""
        self._bind()
        wanted = self._partitions(partitions)
        found = await self._engine.committed(wanted)
        if len(partitions) == 1 and arguments.is_partition(partitions[0]):
            return found[wanted[0]]
        return found

    async def position(self, partition: TopicPartition, timeout_ms: float | None = None) -> int:
        """The offset of the next record of a partition; waits until that is known."""
        self._bind()
        tp = arguments.partition_of(partition)
        return await self._engine.position(tp, arguments.seconds_of(timeout_ms))

    def seek(self, partition: TopicPartition, offset: int | OffsetAndMetadata) -> Awaitable[None]:
        """Go on at an offset. What was fetched of the partition is thrown away."""
        self._seek(partition, offset)
        return _DONE

    def seek_to_beginning(self, *partitions: Partitions) -> Awaitable[None]:
        """Go to the first record that partitions have; without arguments, of all assigned ones."""
        self._engine.seek_to(self._partitions(partitions), EARLIEST_TIMESTAMP)
        return _DONE

    def seek_to_end(self, *partitions: Partitions) -> Awaitable[None]:
        """Go behind the last record of partitions; without arguments, of all assigned ones."""
        self._engine.seek_to(self._partitions(partitions), LATEST_TIMESTAMP)
        return _DONE

    def seek_to_committed(self, *partitions: Partitions) -> Awaitable[None]:
        """Go back to what the group has committed; without arguments, in all assigned partitions.

        Where nothing is committed, `auto_offset_reset` says where to go on.
        """
        self._engine.seek_to(self._partitions(partitions), None)
        return _DONE

    def pause(self, *partitions: Partitions) -> Awaitable[None]:
        """Return no records of these partitions until they are resumed."""
        self._check_open()
        self._engine.pause(arguments.partitions_of(partitions))
        return _DONE

    def resume(self, *partitions: Partitions) -> Awaitable[None]:
        """Go on with partitions that were paused."""
        self._check_open()
        self._engine.resume(arguments.partitions_of(partitions))
        return _DONE

    # -- questions

    async def offsets_for_times(
        self, times: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record at or after a time in milliseconds, for each partition that has one."""
        self._bind()
        cluster = self._engine.cluster
        wanted = arguments.times_of(times)
        level = self._options.isolation_level
        return await list_offsets.offsets_for_times(cluster, wanted, cluster.deadline(), level)

    async def beginning_offsets(self, *partitions: Partitions) -> dict[TopicPartition, int]:
        """The offset of the first record each partition still has."""
        self._bind()
        cluster = self._engine.cluster
        wanted = self._partitions(partitions)
        return await list_offsets.beginning_offsets(cluster, wanted, cluster.deadline())

    async def end_offsets(self, *partitions: Partitions) -> dict[TopicPartition, int]:
        """The offset behind the last record of each partition."""
        self._bind()
        cluster = self._engine.cluster
        wanted = self._partitions(partitions)
        level = self._options.isolation_level
        return await list_offsets.end_offsets(cluster, wanted, cluster.deadline(), level)

    async def partitions_for(self, topic: str) -> list[int] | None:
        """The numbers of a topic's partitions; None if there is no such topic."""
        self._bind()
        return await self._engine.partitions_for(topic)

    async def topics(self) -> set[str]:
        """The names of all topics but the cluster's own."""
        self._bind()
        return set(await self._engine.topics())

    # -- ending

    async def close(self, timeout_ms: float = CLOSE_MS) -> None:
        """Commit, if commits are automatic, leave the group, and let go of everything."""
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
        if self._is_closed:
            return
        self._bind()
        try:
            await self._leave(
                CLOSE_MS / 1000 if timeout_s is None else timeout_s, with_given=with_given
            )
        finally:
            if not self._is_polling:
                self._is_closed = True
                await self._engine.close()

    async def _leave(self, timeout_s: float, *, with_given: bool) -> None:
        """Commit, tell the listener, leave the group."""
        engine = self._engine
        now = asyncio.get_running_loop().time
        with self._entered():
            deadline = now() + timeout_s
            if engine.cluster.was_reached:
                await engine.committing.drain(deadline - now())
                left_s = max(deadline - now(), 0)
                await engine.committing.commit_done(with_given=with_given, timeout_s=left_s)
                await self._call_commit_callbacks()
            try:
                await self._tell(Change.REVOKED, sorted(self.assignment()))
            finally:
                self._rows = NO_ROWS
                await engine.leave(deadline - now())
                await self._call_commit_callbacks()


async def _wait_for(signal: asyncio.Event, timeout_s: float) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            await signal.wait()
    except TimeoutError:
        return
