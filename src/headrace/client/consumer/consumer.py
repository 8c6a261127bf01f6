"""The blocking consumer: `poll`, or a `for` loop, in the application's thread.

Rule: what happens in the background happens in `engine`; here is waiting, and calling back.
"""

import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from inspect import isawaitable, iscoroutine
from re import Pattern
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack, overload

from headrace.client import list_offsets
from headrace.client.blocking import LoopThread
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


class Consumer(Facade):
    """Reads records of topics, alone or as a member of a group.

    Records are fetched ahead in the background, at most two chunks of `max_partition_fetch_bytes`
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
        self._signal = threading.Event()
        self._polling: int | None = None
        super().__init__(topics, options, self._connect)

    def _connect(self, client_id: str) -> tuple[Callable[..., None], Callable[[], None]]:
        self._thread = LoopThread(f"headrace {client_id}")
        return self._thread.post, self._signal.set

    # -- what to read

    def subscribe(
        self,
        topics: Iterable[str] | str | None = None,
        pattern: str | Pattern[str] | None = None,
        listener: Listener | None = None,
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
        self._subscribe(topics, pattern, listener)

    def unsubscribe(self) -> None:
        """Read nothing any more. The group is left, after a commit if commits are automatic."""
        self._check_open()
        self._leave(CLOSE_MS / 1000, with_given=True)

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read these partitions, without sharing them with anybody.

        >>> metadata = producer.send(topic, "first").result()
        >>> consumer.unsubscribe()
        >>> consumer.assign([TopicPartition(topic, 0)])
        >>> consumer.seek(TopicPartition(topic, 0), 0)
        >>> consumer.poll(timeout_ms=10_000)[0].offset
        0
        """
        self._check_open()
        self._engine.assign(arguments.partitions_of([partitions]))

    # -- reading

    def poll(
        self, timeout_ms: float | None = 1000, max_records: int | None = None
    ) -> list[ConsumerRecord]:
        """The next records, at most `max_poll_records`; none if none come in time.

        Records of one partition are in the order of their offsets. Rebalances of the group, and
        the callbacks that go with them, happen inside `poll`, so it has to be called at least
        every `max_poll_interval_ms`. Calling it says that the records it returned before are done.
        """
        limit = self._limit(max_records)
        handout = self._engine.handout
        return self._wait(lambda: handout.records(limit), timeout_ms) or []

    def poll_arrow(
        self, timeout_ms: float | None = 1000, max_records: int | None = None
    ) -> "pyarrow.RecordBatch":
        """The next records as columns, without an object for each of them.

        The columns are topic, partition, offset, timestamp, key, value and headers; deserializers
        are not used. Without `max_records` a batch holds what one fetch brought from a partition,
        or several small ones joined. pyarrow has to be installed.

        >>> metadata = producer.send(topic, "first").result()
        >>> batch = consumer.poll_arrow(timeout_ms=10_000)
        >>> batch.column("value")[0].as_py()
        b'first'
        """
        limit = None if max_records is None else arguments.count_of(max_records, "max_records")
        arrow_schema()  # Without pyarrow this raises, before anything is taken.
        handout = self._engine.handout
        return to_arrow(self._wait(lambda: handout.columns(limit), timeout_ms) or [])

    def __iter__(self) -> Iterator[ConsumerRecord]:
        """Record by record, for ever, or until none came for `consumer_timeout_ms`.

        A record is done, for automatic commits, when the next one is asked for; `commit()` in the
        loop commits up to and with the record at hand.

        >>> metadata = producer.send(topic, "first").result()
        >>> with Consumer(topic, auto_offset_reset="earliest", consumer_timeout_ms=1000) as reader:
        ...     values = [record.value for record in reader]
        >>> values[0]
        b'first'
        """
        return self

    def __next__(self) -> ConsumerRecord:
        run = self._rows
        index = run.index
        if index < run.stop:
            run.index = index + 1
            return run.records[index]
        return self._next_run()

    def _next_run(self) -> ConsumerRecord:
        self._rows = NO_ROWS
        limit = self._options.max_poll_records
        handout = self._engine.handout
        run = self._wait(lambda: handout.run(limit), self._options.consumer_timeout_ms)
        if run is None:
            raise StopIteration
        self._rows = run
        run.index += 1
        return run.records[run.index - 1]

    def _wait(self, take: Callable[[], Result], timeout_ms: float | None) -> Result | None:
        """What `take` finds before the timeout, after whatever else a poll has to do."""
        timeout_s = arguments.seconds_of(timeout_ms)
        engine, signal = self._engine, self._signal
        with self._entered():
            deadline = None if timeout_s is None else monotonic() + timeout_s
            is_interrupted = True
            engine.begin_poll()
            try:
                while True:
                    signal.clear()
                    self._call_back()
                    engine.check()
                    taken = take()
                    if taken:
                        break
                    left_s = WAIT_S_MAX if deadline is None else deadline - monotonic()
                    if left_s <= 0 or engine.until_unreachable_s() <= 0:
                        engine.check_reached()
                    if left_s <= 0:
                        break
                    signal.wait(min(left_s, WAIT_S_MAX))
                is_interrupted = False
                return taken
            finally:
                engine.end_poll(is_interrupted=is_interrupted)

    @contextmanager
    def _entered(self) -> Iterator[None]:
        """See that only one thread polls, and it only once."""
        self._check_open()
        me = threading.get_ident()
        if self._polling is not None:
            whose = "by a listener or callback" if self._polling == me else "by another thread"
            raise IllegalState(
                f"poll() or close() is running already, called {whose};"
                " a consumer is for one thread at a time"
            )
        self._polling = me
        try:
            yield
        finally:
            self._polling = None

    def _call_back(self) -> None:
        """Tell the application of rebalances and finished commits."""
        engine = self._engine
        self._call_commit_callbacks()
        while (change := engine.rebalances.begin()) is not None:
            try:
                self._tell(change.change, change.partitions)
            finally:
                engine.rebalances.end(change)

    def _tell(self, change: Change, partitions: Sequence[TopicPartition]) -> None:
        answer = self._engine.rebalances.call_listener(change, partitions)
        if isawaitable(answer):
            if iscoroutine(answer):
                answer.close()
            raise IllegalState("the listener has coroutines; use it with headrace.aio.Consumer")

    # -- offsets

    def commit(self, offsets: Offsets | None = None, timeout_ms: float | None = None) -> None:
        """Commit the position of every partition, or the given offsets, and wait for it.

        A committed offset is that of the next record to read. `CommitFailed` says that the
        partitions went to another member of the group, which will read the records again.

        >>> metadata = producer.send(topic, "first").result()
        >>> [record.value for record in consumer.poll(timeout_ms=10_000)]
        [b'first']
        >>> consumer.commit()
        >>> consumer.committed(TopicPartition(topic, 0)).offset
        1
        """
        wanted = self._offsets(offsets)
        committing = self._engine.committing
        self._await(committing.commit(wanted, arguments.seconds_of(timeout_ms)))
        self._call_commit_callbacks()

    def commit_async(
        self, offsets: Offsets | None = None, callback: CommitCallback | None = None
    ) -> None:
        """Commit without waiting; commits are done in the order they were asked for.

        `callback(offsets, error)` is called in a later `poll`, `commit` or `close`. Without one a
        failure is logged.
        """
        self._engine.commit_async(self._offsets(offsets), callback)

    # A TopicPartition is a tuple, and so an iterable: the first signature is the one that counts.
    @overload
    def committed(  # type: ignore[overload-overlap]
        self, partition: TopicPartition, /
    ) -> OffsetAndMetadata | None: ...
    @overload
    def committed(
        self, *partitions: Partitions
    ) -> dict[TopicPartition, OffsetAndMetadata | None]: ...
    def committed(self, *partitions: Partitions) -> Any:
        """The committed offset of a partition, or None; of several or all assigned, a dict."""
        wanted = self._partitions(partitions)
        found = self._await(self._engine.committed(wanted))
        if len(partitions) == 1 and arguments.is_partition(partitions[0]):
            return found[wanted[0]]
        return found

    def position(self, partition: TopicPartition, timeout_ms: float | None = None) -> int:
        """The offset of the next record of a partition; waits until that is known."""
        self._check_open()
        tp = arguments.partition_of(partition)
        return self._await(self._engine.position(tp, arguments.seconds_of(timeout_ms)))

    def seek(self, partition: TopicPartition, offset: int | OffsetAndMetadata) -> None:
        """Go on at an offset. What was fetched of the partition is thrown away."""
        self._seek(partition, offset)

    def seek_to_beginning(self, *partitions: Partitions) -> None:
        """Go to the first record that partitions have; without arguments, of all assigned ones."""
        self._engine.seek_to(self._partitions(partitions), EARLIEST_TIMESTAMP)

    def seek_to_end(self, *partitions: Partitions) -> None:
        """Go behind the last record of partitions; without arguments, of all assigned ones."""
        self._engine.seek_to(self._partitions(partitions), LATEST_TIMESTAMP)

    def seek_to_committed(self, *partitions: Partitions) -> None:
        """Go back to what the group has committed; without arguments, in all assigned partitions.

        That is what to do after a transaction was aborted that had the offsets of what was polled.
        Where nothing is committed, `auto_offset_reset` says where to go on.
        """
        self._engine.seek_to(self._partitions(partitions), None)

    def pause(self, *partitions: Partitions) -> None:
        """Return no records of these partitions until they are resumed.

        >>> consumer.pause(consumer.assignment())
        >>> consumer.resume(consumer.paused())
        """
        self._check_open()
        self._engine.pause(arguments.partitions_of(partitions))

    def resume(self, *partitions: Partitions) -> None:
        """Go on with partitions that were paused."""
        self._check_open()
        self._engine.resume(arguments.partitions_of(partitions))

    # -- questions

    def offsets_for_times(
        self, times: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record at or after a time in milliseconds, for each partition that has one."""
        self._check_open()
        cluster = self._engine.cluster
        wanted = arguments.times_of(times)
        level = self._options.isolation_level
        return self._await(
            list_offsets.offsets_for_times(cluster, wanted, cluster.deadline(), level)
        )

    def beginning_offsets(self, *partitions: Partitions) -> dict[TopicPartition, int]:
        """The offset of the first record each partition still has."""
        wanted = self._partitions(partitions)
        cluster = self._engine.cluster
        return self._await(list_offsets.beginning_offsets(cluster, wanted, cluster.deadline()))

    def end_offsets(self, *partitions: Partitions) -> dict[TopicPartition, int]:
        """The offset behind the last record of each partition.

        With `isolation_level="read_committed"` it is where the first open transaction begins.

        >>> consumer.end_offsets(TopicPartition(topic, 0))
        {TopicPartition(topic='...', partition=0): 0}
        """
        wanted = self._partitions(partitions)
        cluster = self._engine.cluster
        level = self._options.isolation_level
        return self._await(list_offsets.end_offsets(cluster, wanted, cluster.deadline(), level))

    def partitions_for(self, topic: str) -> list[int] | None:
        """The numbers of a topic's partitions; None if there is no such topic."""
        self._check_open()
        return self._await(self._engine.partitions_for(topic))

    def topics(self) -> set[str]:
        """The names of all topics but the cluster's own."""
        self._check_open()
        return set(self._await(self._engine.topics()))

    # -- ending

    def close(self, timeout_ms: float = CLOSE_MS) -> None:
        """Commit, if commits are automatic, leave the group, and let go of everything.

        The records of the last `poll` count as done. If the application failed while it worked on
        them, leave its `with` block by the exception instead: then they are not committed.
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
        if self._is_closed:
            return
        try:
            self._leave(CLOSE_MS / 1000 if timeout_s is None else timeout_s, with_given=with_given)
        finally:
            if not self._polling:
                self._is_closed = True
                try:
                    self._await(self._engine.close())
                finally:
                    self._thread.close()

    def _leave(self, timeout_s: float, *, with_given: bool) -> None:
        """Commit, tell the listener, leave the group."""
        engine = self._engine
        with self._entered():
            deadline = monotonic() + timeout_s
            if engine.cluster.was_reached:
                self._await(engine.committing.drain(deadline - monotonic()))
                left_s = max(deadline - monotonic(), 0)
                self._await(engine.committing.commit_done(with_given=with_given, timeout_s=left_s))
                self._call_commit_callbacks()
            try:
                self._tell(Change.REVOKED, sorted(self.assignment()))
            finally:
                self._rows = NO_ROWS
                self._await(engine.leave(deadline - monotonic()))
                self._call_commit_callbacks()

    def _call_commit_callbacks(self) -> None:
        while (callback := self._engine.committing.next_callback()) is not None:
            callback()

    def _await(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        return self._thread.run(coroutine)
