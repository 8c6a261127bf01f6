"""Group coordinators: each partition of `__consumer_offsets` led here drives one shard of groups.

The shard decides; this module gives it time, writes its records, replays them once they are
committed, and only then sends the replies that depend on them. A shard whose log fails is dropped:
its groups are not available until the partition is loaded again.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from headrace.broker.replication.partition import Partition
from headrace.clock import Clock
from headrace.config import BrokerConfig
from headrace.coordinator.groups import GroupShard
from headrace.coordinator.shard import Client, Effects, GroupSettings, Record
from headrace.errors import ErrorCode, HeadraceError, KafkaError
from headrace.protocol.records import decode_rows, encode_batch, scan_headers
from headrace.protocol.schema import Message

logger = logging.getLogger(__name__)

OFFSETS_TOPIC = "__consumer_offsets"
RELOAD_SECONDS = 5.0

_LOAD_BYTES = 1024 * 1024
_BATCH_BYTES = 1024 * 1024


def group_settings(config: BrokerConfig) -> GroupSettings:
    """What a shard needs to know of the broker's settings."""
    return GroupSettings(
        min_session_timeout_ms=config.group_min_session_timeout_ms,
        max_session_timeout_ms=config.group_max_session_timeout_ms,
        initial_rebalance_delay_ms=config.group_initial_rebalance_delay_ms,
        max_size=config.group_max_size,
        offset_metadata_bytes_max=config.offset_metadata_max_bytes,
        offsets_retention_ms=config.offsets_retention_minutes * 60_000,
        offsets_retention_check_interval_ms=config.offsets_retention_check_interval_ms,
        record_bytes_max=config.message_max_bytes,
    )


def java_hash(text: str) -> int:
    """`String.hashCode` of Java, which decides the partition of a group."""
    value = 0
    data = text.encode("utf-16-be", "surrogatepass")
    for high, low in zip(data[::2], data[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) & 0xFFFFFFFF
    return value - 0x1_0000_0000 if value & 0x8000_0000 else value


class _Waiting:
    """A request until it is answered; a future is made only for one that has to wait."""

    __slots__ = ("future", "response")

    def __init__(self) -> None:
        self.response: Message | None = None
        self.future: asyncio.Future[Message] | None = None

    def answer(self, response: Message) -> None:
        self.response = response
        if self.future is not None and not self.future.done():
            self.future.set_result(response)


class _Pending(NamedTuple):
    """Effects whose records are written but not committed."""

    effects: Effects
    last_offset: int


class ShardDriver:
    """One shard and its partition. Used on the event loop's thread only.

    Invariant: effects take hold in the order in which the shard gave them.
    """

    def __init__(
        self,
        partition: Partition,
        shard: GroupShard,
        clock: Clock,
        on_failure: Callable[["ShardDriver"], None],
    ) -> None:
        self.partition = partition
        self.leader_epoch = partition.leader_epoch
        self.shard = shard
        self.loading = True
        self._clock = clock
        self._on_failure = on_failure
        self._pending: deque[_Pending] = deque()
        # In order, so that a run of the simulator repeats itself.
        self._waiting: dict[_Waiting, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms: int | None = None
        self._closed = False

    def load_nothing(self) -> bool:
        """Be ready at once if the log is empty, as that of a new group topic is."""
        log = self.partition.log
        if log.log_start_offset < log.log_end_offset:
            return False
        self._loaded()
        return True

    async def load(self) -> None:
        """Replay the partition's log, letting the loop breathe in between."""
        log = self.partition.log
        offset = log.log_start_offset
        while offset < log.log_end_offset:
            data = log.read(offset, _LOAD_BYTES, log.log_end_offset, at_least_one=True).records
            headers = scan_headers(data)
            for header in headers:
                for row in decode_rows(data, header):
                    self.shard.replay(Record(row.key or b"", row.value))
            offset = headers[-1].next_offset
            await asyncio.sleep(0)
        self._loaded()

    def _loaded(self) -> None:
        self.shard.loaded(self._clock.now_ms())
        self.loading = False
        self._arm()

    def handle(
        self, request: Message, version: int, client: Client
    ) -> Message | asyncio.Future[Message]:
        """The shard's response to a request, at once or when it has one."""
        waiting = _Waiting()
        effects = self.shard.handle(request, version, waiting, client, self._clock.now_ms())
        self.perform(effects)
        if waiting.response is not None:
            return waiting.response
        future = waiting.future = asyncio.get_running_loop().create_future()
        self._waiting[waiting] = None
        future.add_done_callback(lambda _: self._answered(waiting))
        return future

    def perform(self, effects: Effects) -> None:
        """Write the records of `effects`, and send its replies when they are committed."""
        if effects.records:
            try:
                last_offset = self._append(effects.records)
            except HeadraceError as error:
                self.fail(error)
                raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(error)) from error
            committed = self.partition.committed(last_offset)
            if committed is not None or self._pending:
                self._pending.append(_Pending(effects, last_offset))
                if committed is not None:
                    committed.add_done_callback(self._on_committed)
                return
        elif self._pending:
            # Behind what is being written: a reply must not tell of a state before it holds.
            self._pending.append(_Pending(effects, self._pending[-1].last_offset))
            return
        self._finish(effects)

    async def perform_and_wait(self, effects: Effects) -> None:
        """As `perform`, returning when the records are committed and replayed."""
        done = _Waiting()
        done.future = asyncio.get_running_loop().create_future()
        self._waiting[done] = None
        done.future.add_done_callback(lambda _: self._waiting.pop(done, None))
        self.perform(Effects(effects.records, (*effects.replies, (done, _DONE))))
        await done.future

    def fail(self, error: HeadraceError) -> None:
        """Stop for good and tell everybody who waits to look for the coordinator again."""
        if not self._closed:
            logger.error("the coordinator of %s is gone: %s", self.partition.name, error)
            self.close()
            self._on_failure(self)

    def close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for waiting in tuple(self._waiting):
            if waiting.future is not None and not waiting.future.done():
                waiting.future.set_exception(KafkaError(ErrorCode.NOT_COORDINATOR))

    def _append(self, records: tuple[Record, ...]) -> int:
        now_ms = self._clock.now_ms()
        last_offset = -1
        for some in to_batches(records, _BATCH_BYTES):
            batch = encode_batch([(now_ms, record.key, record.value, ()) for record in some])
            last_offset = self.partition.append_own(bytearray(batch), now_ms).last_offset
        return last_offset

    def _on_committed(self, committed: asyncio.Future[None]) -> None:
        error = None if committed.cancelled() else committed.exception()
        if self._closed:
            return
        if error is not None:
            self.fail(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)))
            return
        while self._pending and self._pending[0].last_offset < self.partition.high_watermark:
            self._finish(self._pending.popleft().effects)

    def _finish(self, effects: Effects) -> None:
        replies = effects.replies
        if effects.records:
            replies = self.shard.commit(effects, self._clock.now_ms())
        for token, response in replies:
            assert isinstance(token, _Waiting)
            token.answer(response)
        self._arm()

    def _answered(self, waiting: _Waiting) -> None:
        self._waiting.pop(waiting, None)
        assert waiting.future is not None
        if waiting.future.cancelled():
            self.shard.cancel(waiting)

    def _arm(self) -> None:
        """Have `_tick` called when the shard next has something to do."""
        deadline_ms = self.shard.next_deadline_ms
        if deadline_ms == self._timer_ms or self._closed:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_ms = deadline_ms
        if deadline_ms is not None:
            delay_ms = max(deadline_ms - self._clock.now_ms(), 0)
            self._timer = asyncio.get_running_loop().call_later(delay_ms / 1000, self._tick)

    def _tick(self) -> None:
        self._timer, self._timer_ms = None, None
        try:
            self.perform(self.shard.tick(self._clock.now_ms()))
        except KafkaError:
            return  # `fail` has told everybody.
        self._arm()


def to_batches(records: Sequence[Record], bytes_max: int) -> Iterator[Sequence[Record]]:
    """Records by the batch: one request may commit more than fits a segment of the log."""
    start, size = 0, 0
    for index, record in enumerate(records):
        record_size = len(record.key) + len(record.value or b"")
        if size + record_size > bytes_max and index > start:
            yield records[start:index]
            start, size = index, 0
        size += record_size
    yield records[start:]


class _Done(Message, versions=(0, 0)):
    """The reply to ourselves that records are committed."""


_DONE = _Done()


class Coordinators:
    """The shards of this broker, by partition of `__consumer_offsets`."""

    def __init__(self, clock: Clock, new_shard: Callable[[], GroupShard]) -> None:
        self._clock = clock
        self._new_shard = new_shard
        self._drivers: dict[int, ShardDriver] = {}
        self._led: dict[int, Partition] = {}
        self._loads: set[asyncio.Task[None]] = set()
        self._closed = False
        self.partition_count = 0

    def __iter__(self) -> Iterator[ShardDriver]:
        return iter(tuple(self._drivers.values()))

    def lead(self, partition_count: int, partitions: dict[int, Partition]) -> None:
        """Drive exactly these partitions; new ones are loaded in the background."""
        self.partition_count = partition_count
        self._led = partitions
        for index, driver in tuple(self._drivers.items()):
            # Not by its number alone: the topic may have been made again, or led by another broker
            # in between, who wrote what this driver has not replayed.
            led = partitions.get(index)
            if led is not driver.partition or led.leader_epoch != driver.leader_epoch:
                self._drivers.pop(index).close()
        for index, partition in partitions.items():
            if index not in self._drivers:
                self._drive(partition)

    def driver_of(self, group_id: str) -> ShardDriver:
        """The driver of a group's shard; KafkaError if it is not here or not ready."""
        if not self.partition_count:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        driver = self._drivers.get(self.partition_of(group_id))
        if driver is None:
            raise KafkaError(ErrorCode.NOT_COORDINATOR)
        if driver.loading:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return driver

    def partition_of(self, group_id: str) -> int:
        """The partition that keeps a group, as every Kafka broker computes it."""
        return (java_hash(group_id) & 0x7FFF_FFFF) % self.partition_count

    def close(self) -> None:
        self._closed = True
        for driver in self:
            driver.close()

    def _drive(self, partition: Partition) -> None:
        driver = ShardDriver(partition, self._new_shard(), self._clock, self._on_failure)
        self._drivers[partition.name.partition] = driver
        if driver.load_nothing():
            return
        task = asyncio.create_task(self._load(driver))
        self._loads.add(task)
        task.add_done_callback(self._loads.discard)

    async def _load(self, driver: ShardDriver) -> None:
        try:
            await driver.load()
        except HeadraceError as error:
            driver.fail(error)

    def _on_failure(self, driver: ShardDriver) -> None:
        """Forget a driver, and try again in a while: a disk that was full may have room by then."""
        self._drivers.pop(driver.partition.name.partition, None)
        loop = asyncio.get_running_loop()
        loop.call_later(RELOAD_SECONDS, self._drive_again, driver.partition)

    def _drive_again(self, partition: Partition) -> None:
        index = partition.name.partition
        if not self._closed and self._led.get(index) is partition and index not in self._drivers:
            self._drive(partition)
