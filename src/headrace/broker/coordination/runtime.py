"""Coordinator runtime: a shard and its driver for each led partition of an internal topic."""

import asyncio
import logging
import shlex
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Generic, NamedTuple, TypeVar

from headrace.broker.replication.partition import Partition
from headrace.clock import Clock, SteadyClock
from headrace.coordinator.shard import (
    NO_PRODUCER,
    CoordinatorRecord,
    RequestClient,
    Shard,
    ShardEffects,
)
from headrace.errors import CorruptBatch, ErrorCode, HeadraceError, KafkaError
from headrace.protocol.batch import BatchHeader
from headrace.protocol.markers import decode_marker
from headrace.protocol.records import decode_rows, encode_batch
from headrace.protocol.schema import Message
from headrace.storage.log import Log
from headrace.storage.log_segments import sound_headers
from headrace.tasks import TaskScope, report_bug
from headrace.types import Buffer

# The driver of a shard: the state machine for the groups or transactional ids of one partition.
#
# The shard decides; the driver gives it time, writes its records, replays them once they are
# committed, and only then sends the replies that depend on them. A shard whose log fails is
# dropped: it is not available until the partition is loaded again. So is a shard that raises: its
# state may be half changed, and the log has all that counts.


logger = logging.getLogger(__name__)

_LOAD_BYTES = 1024 * 1024
_BATCH_BYTES = 1024 * 1024

ShardT = TypeVar("ShardT", bound=Shard)
R = TypeVar("R")


class _PendingReply:
    """A request until it is answered; it gets a future only if it has to wait."""

    __slots__ = ("future", "response")

    def __init__(self) -> None:
        self.response: Message | None = None
        self.future: asyncio.Future[Message] | None = None

    def answer(self, response: Message) -> None:
        self.response = response
        if self.future is not None and not self.future.done():
            self.future.set_result(response)


class _PendingEffects(NamedTuple):
    """Effects whose records are written but not committed."""

    effects: ShardEffects
    last_offset: int


class ShardDriver(Generic[ShardT]):
    """One shard and its partition. Used on the event loop's thread only.

    Invariant: effects are applied in the order in which the shard returned them. `on_change` is
    called when effects were applied, and when the shard is loaded. `on_failure` is called once,
    when the driver has closed because its log failed, and `on_bug` in its place if the shard
    raised.
    """

    def __init__(
        self,
        partition: Partition,
        shard: ShardT,
        clock: Clock,
        on_failure: Callable[["ShardDriver[ShardT]"], None],
        on_change: Callable[["ShardDriver[ShardT]"], None] | None = None,
        on_bug: Callable[["ShardDriver[ShardT]", Exception], None] = lambda *_: None,
    ) -> None:
        self.partition = partition
        self.leader_epoch = partition.leader_epoch
        self.shard = shard
        self.loading = True
        self._clock = clock
        self._steady = SteadyClock(clock)
        self._on_failure = on_failure
        self._on_change = on_change
        self._on_bug = on_bug
        self._pending: deque[_PendingEffects] = deque()
        # Ordered, so that a run of the simulator repeats itself.
        self._waiting: dict[_PendingReply, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms: int | None = None
        self._closed = False

    @property
    def closed(self) -> bool:
        """Whether the driver has ended for good: another continues, here or elsewhere."""
        return self._closed

    def now_ms(self) -> int:
        """The monotonic time, for a call of the shard; the shard gets the wall-clock time, too."""
        now_ms = self._steady.now_ms()
        self.shard.times.ahead_ms = self._clock.now_ms() - now_ms
        return now_ms

    def load_if_empty(self) -> bool:
        """Become ready at once if the log is empty, as in a new topic; returns whether it is."""
        log = self.partition.log
        if log.log_start_offset < log.log_end_offset:
            return False
        self._loaded()
        return True

    async def load(self) -> None:
        """Replay the partition's log, yielding to other tasks of the loop in between."""
        offset = self.partition.log.log_start_offset
        # The log may be replaced during each await, by a move to another directory.
        while offset < (log := self.partition.log).log_end_offset:
            try:
                data = log.read(offset, _LOAD_BYTES, log.log_end_offset, at_least_one=True).records
                headers, damage = sound_headers(data)
                for header in headers:
                    self._replay(data, header)
                    offset = header.next_offset
                if damage is not None:
                    raise damage
            except CorruptBatch as error:
                raise _unreadable(log, offset, error) from error
            except KafkaError as error:
                if error.code is not ErrorCode.CORRUPT_MESSAGE:
                    raise
                raise _unreadable(log, offset, error) from error
            if not headers:
                break  # Compaction may have removed all records at the end.
            await asyncio.sleep(0)
        await self._wait_until_committed(offset)
        self._loaded()

    async def _wait_until_committed(self, end_offset: int) -> None:
        """Wait until the replayed records are committed, so that any later leader has them."""
        committed = self.partition.when_committed(end_offset - 1)
        if committed is None:
            return
        try:
            await committed
        except KafkaError as error:
            # Fewer than `min.insync.replicas` have them, but all replicas that may lead.
            if error.code is not ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND:
                raise

    def _replay(self, data: Buffer, header: BatchHeader) -> None:
        try:
            self._replay_batch(data, header)
        except HeadraceError:
            raise  # The log cannot be read.
        except Exception as error:
            raise self._drop_after_bug(error) from error

    def _replay_batch(self, data: Buffer, header: BatchHeader) -> None:
        if header.is_control:
            marker = decode_marker(data, header)
            if marker is not None:
                self.shard.end_transaction(marker.producer_id, marker.committed)
            return
        producer_id = header.producer_id if header.is_transactional else NO_PRODUCER
        for row in decode_rows(data, header):
            self.shard.replay(CoordinatorRecord(row.key or b"", row.value), producer_id)

    def _loaded(self) -> None:
        self.ask(lambda shard: shard.loaded(self.now_ms()))
        self.loading = False
        self._changed()

    def changed(self) -> None:
        """Call `on_change`, as the shard may have orders for its owner before a commit."""
        if not self._closed:
            self._changed()

    def _changed(self) -> None:
        if self._on_change is not None:
            self._on_change(self)
        self._arm_timer()

    def handle(
        self, request: Message, version: int, client: RequestClient
    ) -> Message | asyncio.Future[Message]:
        """The shard's response to a request, or a future of it.

        On a full disk requests that need records are refused before the shard sees them: an append
        that fails costs the shard, and with it the members of its groups, which can go on reading.
        """
        if type(request) in self.shard.recording_requests:
            self._check_room()
        waiting = _PendingReply()
        try:
            effects = self.shard.handle(request, version, waiting, client, self.now_ms())
        except Exception as error:
            raise self._drop_after_bug(error) from error
        self.perform(effects)
        if waiting.response is not None:
            return waiting.response
        future = waiting.future = asyncio.get_running_loop().create_future()
        self._waiting[waiting] = None
        future.add_done_callback(lambda _: self._answered(waiting))
        return future

    def _check_room(self) -> None:
        try:
            self.partition.log.check_room()
        except KafkaError as error:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(error)) from error

    def ask(self, question: Callable[[ShardT], R]) -> R:
        """Call the shard and return the result; COORDINATOR_NOT_AVAILABLE if it raises anything."""
        try:
            return question(self.shard)
        except Exception as error:
            raise self._drop_after_bug(error) from error

    def perform(self, effects: ShardEffects) -> None:
        """Write the records of `effects`, and send its replies when they are committed."""
        if effects.records or effects.marker is not None:
            try:
                last_offset = self._append(effects)
            except HeadraceError as error:
                if effects.marker is not None and isinstance(error, KafkaError):
                    raise  # Refused, and the shard knows nothing of it yet.
                self.fail(error)
                raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(error)) from error
            committed = self.partition.when_committed(last_offset)
            if committed is not None or self._pending:
                self._pending.append(_PendingEffects(effects, last_offset))
                if committed is not None:
                    committed.add_done_callback(self._on_committed)
                return
        elif self._pending:
            # Behind uncommitted records: a reply must not report a state before it is valid.
            self._pending.append(_PendingEffects(effects, self._pending[-1].last_offset))
            return
        self._finish(effects)

    async def perform_and_wait(self, effects: ShardEffects) -> None:
        """As `perform`, returning when the records are committed and replayed."""
        await self.perform_with_future(effects)

    def perform_with_future(self, effects: ShardEffects) -> "asyncio.Future[Message]":
        """As `perform`; the future ends when the records are committed and replayed."""
        done = _PendingReply()
        future = done.future = asyncio.get_running_loop().create_future()
        self.perform(effects._replace(replies=(*effects.replies, (done, _DONE))))
        if not future.done():
            self._waiting[done] = None
            future.add_done_callback(lambda _: self._waiting.pop(done, None))
        return future

    def fail(self, error: HeadraceError, *, level: int = logging.ERROR) -> None:
        """Close for good, and make all waiting clients look up the coordinator again."""
        if not self._closed:
            logger.log(level, "the coordinator of %s is gone: %s", self.partition.name, error)
            self.close()
            self._on_failure(self)

    def _drop_after_bug(self, error: Exception) -> KafkaError:
        """Drop the shard after a bug in it, and return the error for the request."""
        name = self.partition.name
        logger.critical(
            "bug in the coordinator of %s, which is dropped and loaded again", name, exc_info=error
        )
        if not self._closed:
            self.close()
            self._on_bug(self, error)
        return KafkaError(
            ErrorCode.COORDINATOR_NOT_AVAILABLE, f"the coordinator of {name} met a bug: {error!r}"
        )

    def close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for waiting in tuple(self._waiting):
            if waiting.future is not None and not waiting.future.done():
                waiting.future.set_exception(KafkaError(ErrorCode.NOT_COORDINATOR))

    def _append(self, effects: ShardEffects) -> int:
        now_ms = self._clock.now_ms()
        if effects.marker is not None:
            assert not effects.records
            return self.partition.append_marker(effects.marker, now_ms).last_offset
        last_offset = -1
        producer = effects.producer
        for records in to_batches(effects.records, _BATCH_BYTES):
            batch = encode_batch(
                [(now_ms, record.key, record.value, ()) for record in records],
                producer_id=producer.producer_id,
                producer_epoch=producer.producer_epoch,
                transactional=producer.producer_id != NO_PRODUCER,
            )
            last_offset = self.partition.append_own(batch, now_ms).last_offset
        return last_offset

    def _on_committed(self, committed: asyncio.Future[None]) -> None:
        error = None if committed.cancelled() else committed.exception()
        if self._closed:
            return
        if error is not None:
            self.fail(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)))
            return
        with suppress(KafkaError):  # All waiting requests have been answered.
            while self._pending and self._pending[0].last_offset < self.partition.high_watermark:
                self._finish(self._pending.popleft().effects)

    def _finish(self, effects: ShardEffects) -> None:
        replies = effects.replies
        if effects.records or effects.marker is not None:
            replies = self.ask(lambda shard: shard.commit(effects, self.now_ms()))
        for token, response in replies:
            assert isinstance(token, _PendingReply)
            token.answer(response)
        self._changed()

    def _answered(self, waiting: _PendingReply) -> None:
        self._waiting.pop(waiting, None)
        assert waiting.future is not None
        if waiting.future.cancelled() and not self._closed:
            with suppress(KafkaError):
                self.ask(lambda shard: shard.cancel(waiting))

    def _arm_timer(self) -> None:
        """Schedule `_tick` at the shard's next deadline."""
        deadline_ms = self.shard.next_deadline_ms
        if deadline_ms == self._timer_ms or self._closed:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_ms = deadline_ms
        if deadline_ms is not None:
            delay_ms = max(deadline_ms - self._steady.now_ms(), 0)
            self._timer = asyncio.get_running_loop().call_later(delay_ms / 1000, self._tick)

    def _tick(self) -> None:
        self._timer, self._timer_ms = None, None
        try:
            self.perform(self.ask(lambda shard: shard.tick(self.now_ms())))
        except KafkaError:
            return  # All waiting requests have been answered.
        self._arm_timer()


def _unreadable(log: Log, offset: int, error: HeadraceError) -> KafkaError:
    """The error of a log that is damaged at `offset`, and cannot be replayed.

    It is checked then: another replica that is in sync takes its place.
    """
    log.suspect(offset)
    return KafkaError(
        ErrorCode.CORRUPT_MESSAGE,
        f"{log.directory} cannot be read at offset {offset}: {error}. Another replica takes its"
        f" place if one is in sync; without one, stop the broker and run `headrace log repair"
        f" {shlex.quote(log.directory)}` to see what can be saved",
    )


def to_batches(
    records: Sequence[CoordinatorRecord], bytes_max: int
) -> Iterator[Sequence[CoordinatorRecord]]:
    """Split records into batches: a request may commit more than fits a segment."""
    start, size = 0, 0
    for index, record in enumerate(records):
        record_size = len(record.key) + len(record.value or b"")
        if size + record_size > bytes_max and index > start:
            yield records[start:index]
            start, size = index, 0
        size += record_size
    yield records[start:]


class _CommittedReply(Message, versions=(0, 0)):
    """The internal reply that records are committed."""


_DONE = _CommittedReply()

OFFSETS_TOPIC = "__consumer_offsets"
TRANSACTIONS_TOPIC = "__transaction_state"
RELOAD_SECONDS = 5.0
# BUGS_MAX bugs in coordinators of a kind within BUGS_SECONDS stop the process.
BUGS_MAX = 3
BUGS_SECONDS = 60.0


def java_hash(text: str) -> int:
    """`String.hashCode` of Java, which decides the partition of a group or a transactional id."""
    value = 0
    data = text.encode("utf-16-be", "surrogatepass")
    for high, low in zip(data[::2], data[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) & 0xFFFFFFFF
    return value - 0x1_0000_0000 if value & 0x8000_0000 else value


class CoordinatorRuntime(Generic[ShardT]):
    """The shards on this broker of one kind of coordinator, by partition of its topic."""

    def __init__(
        self,
        topic: str,
        clock: Clock,
        new_shard: Callable[[Partition], ShardT],
        on_change: Callable[[ShardDriver[ShardT]], None] | None = None,
    ) -> None:
        self.topic = topic
        self._clock = clock
        self._new_shard = new_shard
        self._on_change = on_change
        self._drivers: dict[int, ShardDriver[ShardT]] = {}
        self._led: dict[int, Partition] = {}
        # The errors of partitions that could not be loaded: logged once, not with every attempt.
        self._unloaded: dict[int, ErrorCode | None] = {}
        self._tasks = TaskScope(f"coordinators of {topic}")
        # The times of the last bugs.
        self._bugs: deque[float] = deque(maxlen=BUGS_MAX)
        self._closed = False
        self.partition_count = 0

    def __iter__(self) -> Iterator[ShardDriver[ShardT]]:
        return iter(tuple(self._drivers.values()))

    def lead(self, partition_count: int, partitions: dict[int, Partition]) -> None:
        """Drive exactly these partitions; new partitions are loaded in the background."""
        self.partition_count = partition_count
        self._led = partitions
        for index, driver in tuple(self._drivers.items()):
            # Not by its index alone: the topic may have been created again, or another broker may
            # have led in between, and written records that this driver has not replayed.
            led = partitions.get(index)
            if led is not driver.partition or led.leader_epoch != driver.leader_epoch:
                self._drivers.pop(index).close()
        for index, partition in partitions.items():
            if index not in self._drivers:
                self._drive(partition)

    def driver_of(self, key: str) -> ShardDriver[ShardT]:
        """The driver of a group or transactional id; KafkaError if it is not here or not ready."""
        if not self.partition_count:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return self.driver_at(self.partition_of(key))

    def driver_at(self, index: int) -> ShardDriver[ShardT]:
        """The driver of a partition; KafkaError if it is not here or not ready."""
        driver = self._drivers.get(index)
        if driver is None:
            raise KafkaError(ErrorCode.NOT_COORDINATOR)
        if driver.loading:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return driver

    def partition_of(self, key: str) -> int:
        """The partition of a group or transactional id, as every Kafka broker computes it."""
        return (java_hash(key) & 0x7FFF_FFFF) % self.partition_count

    def close(self) -> None:
        self._closed = True
        self._tasks.cancel()
        for driver in self:
            driver.close()

    def _drive(self, partition: Partition) -> None:
        driver = ShardDriver(
            partition,
            self._new_shard(partition),
            self._clock,
            self._on_failure,
            self._on_change,
            self._on_bug,
        )
        self._drivers[partition.name.partition] = driver
        try:
            if driver.load_if_empty():
                return
        except KafkaError:
            return  # The driver has logged the reason; it is tried again later.
        self._tasks.start(self._load(driver), f"load of {partition.name}")

    async def _load(self, driver: ShardDriver[ShardT]) -> None:
        index = driver.partition.name.partition
        try:
            await driver.load()
        except HeadraceError as error:
            code = error.code if isinstance(error, KafkaError) else None
            is_known = code is not None and self._unloaded.get(index) is code
            self._unloaded[index] = code
            driver.fail(error, level=logging.DEBUG if is_known else logging.ERROR)
        else:
            self._unloaded.pop(index, None)

    def _on_failure(self, driver: ShardDriver[ShardT]) -> None:
        """Drop a driver, and load its partition again later: a full disk may have space then."""
        self._forget(driver)
        loop = asyncio.get_running_loop()
        loop.call_later(RELOAD_SECONDS, self._drive_again, driver.partition)

    def _on_bug(self, driver: ShardDriver[ShardT], error: Exception) -> None:
        """Drop a driver whose shard raised, and load the partition again at once.

        Not too often: code that fails repeatedly stops the process. A shard that raises while it is
        loaded does not count, since it keeps no half changed state and has no requests, and a
        record that cannot be replayed would stop each next leader, too.
        """
        if driver.loading:
            self._on_failure(driver)
            return
        self._forget(driver)
        loop = asyncio.get_running_loop()
        self._bugs.append(loop.time())
        if len(self._bugs) == BUGS_MAX and self._bugs[-1] - self._bugs[0] < BUGS_SECONDS:
            report_bug(f"the coordinators of {self.topic}", error)
        loop.call_soon(self._drive_again, driver.partition)

    def _forget(self, driver: ShardDriver[ShardT]) -> None:
        index = driver.partition.name.partition
        if self._drivers.get(index) is driver:
            del self._drivers[index]

    def _drive_again(self, partition: Partition) -> None:
        index = partition.name.partition
        if not self._closed and self._led.get(index) is partition and index not in self._drivers:
            self._drive(partition)
