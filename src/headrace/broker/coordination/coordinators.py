"""The coordinators of one kind on this broker, which come and go with the partitions it leads."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic

from headrace.broker.coordination.driver import ShardDriver, ShardT
from headrace.broker.replication.partition import Partition
from headrace.clock import Clock
from headrace.errors import ErrorCode, HeadraceError, KafkaError
from headrace.tasks import TaskScope, report_bug

OFFSETS_TOPIC = "__consumer_offsets"
TRANSACTIONS_TOPIC = "__transaction_state"
RELOAD_SECONDS = 5.0
# So many bugs in coordinators of a kind within so long stop the process.
BUGS_MAX = 3
BUGS_SECONDS = 60.0


def java_hash(text: str) -> int:
    """`String.hashCode` of Java, which decides the partition of a group or a transactional id."""
    value = 0
    data = text.encode("utf-16-be", "surrogatepass")
    for high, low in zip(data[::2], data[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) & 0xFFFFFFFF
    return value - 0x1_0000_0000 if value & 0x8000_0000 else value


class Coordinators(Generic[ShardT]):
    """The shards of this broker, by partition of the topic that they are kept in."""

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
        self._tasks = TaskScope(f"coordinators of {topic}")
        # When the last bugs showed.
        self._bugs: deque[float] = deque(maxlen=BUGS_MAX)
        self._closed = False
        self.partition_count = 0

    def __iter__(self) -> Iterator[ShardDriver[ShardT]]:
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

    def driver_of(self, key: str) -> ShardDriver[ShardT]:
        """The driver of what is kept under a key; KafkaError if it is not here or not ready."""
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
        """The partition that keeps a key, as every Kafka broker computes it."""
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
            if driver.load_nothing():
                return
        except KafkaError:
            return  # The driver has said why; it is tried again later.
        self._tasks.start(self._load(driver), f"load of {partition.name}")

    async def _load(self, driver: ShardDriver[ShardT]) -> None:
        try:
            await driver.load()
        except HeadraceError as error:
            driver.fail(error)

    def _on_failure(self, driver: ShardDriver[ShardT]) -> None:
        """Forget a driver, and try again in a while: a disk that was full may have room by then."""
        self._forget(driver)
        loop = asyncio.get_running_loop()
        loop.call_later(RELOAD_SECONDS, self._drive_again, driver.partition)

    def _on_bug(self, driver: ShardDriver[ShardT], error: Exception) -> None:
        """Forget a driver whose shard raised, and load the partition again at once.

        Not too often: code that fails again and again stops the process. A shard that raises while
        it is loaded does not count, since it keeps nothing half done and answers nobody, and a
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
