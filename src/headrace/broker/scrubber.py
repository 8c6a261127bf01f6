"""Reads the closed segments of a broker again, in the background, to find damage early.

Rule: bytes are read in a worker thread, at `log.scrub.bytes.per.second`; the log is looked at on
the loop's thread only. A damaged replica is given up only where another one is in sync.
"""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import suppress

from headrace.broker.node import Node
from headrace.broker.replication.partition import Partition
from headrace.errors import KafkaError, StorageError
from headrace.replication.throttle import Throttle
from headrace.storage.damage import DamagedLog
from headrace.storage.data_directory import DataDirectory
from headrace.storage.files import Shortage
from headrace.storage.scrubbing import (
    NEVER,
    SCRUB_CHECKPOINT,
    Damage,
    Progress,
    SegmentKey,
    check_segment,
    decode_progress,
    encode_progress,
    next_segment,
)
from headrace.storage.segment import Segment
from headrace.tasks import TaskScope
from headrace.types import TopicPartition

logger = logging.getLogger(__name__)

# How soon a changed interval is noticed, and a replica that is in sync again.
_POLL_SECONDS = 10.0
# How often the progress is written down while segments are read.
_CHECKPOINT_SECONDS = 60.0
# How long the piece under way may take to be read when the broker stops.
_FINISH_SECONDS_MAX = 30.0


class Scrubber:
    """One segment after the other, over all data directories. Used on the loop's thread only."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._throttle = Throttle(node.config.log_scrub_bytes_per_second)
        self._progress = node.scrub_progress
        self._written: dict[DataDirectory, float] = {}
        self._told: set[Damage] = set()
        self._stopping = asyncio.Event()
        self._tasks = TaskScope("scrubbing")

    def start(self) -> None:
        self._tasks.start(self._run())

    async def stop(self) -> None:
        """End after the piece that is being read, and write down how far it has come."""
        self._stopping.set()
        await self._tasks.close(_FINISH_SECONDS_MAX)

    async def _run(self) -> None:
        for directory in self._node.logs.directories:
            if directory.error is None:
                self._load(directory)  # Operators ask for it, also if there is to be no other pass.
        while not self._stopping.is_set():
            has_read = False
            for directory in self._node.logs.directories:
                if directory.error is None and self._node.config.log_scrub_interval_ms >= 0:
                    await self.look_again(directory)
                    has_read |= await self.scrub_next(directory)
            if not has_read:
                await self._pause(_POLL_SECONDS)
        for directory, progress in list(self._progress.items()):
            if progress.started_ms != NEVER:
                await self._write(directory)

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()

    def _load(self, directory: DataDirectory) -> Progress:
        progress = self._progress.get(directory)
        if progress is None:
            data = None
            with suppress(StorageError):
                data = self._node.logs.files.read_bytes(f"{directory.path}/{SCRUB_CHECKPOINT}")
            progress = self._progress[directory] = decode_progress(data)
            self._written[directory] = self._loop_time()
        return progress

    async def scrub_next(self, directory: DataDirectory) -> bool:
        """Read the next segment of a directory; false if none is due."""
        node = self._node
        now_ms = node.clock.now_ms()
        progress = self._load(directory).begun(now_ms, node.config.log_scrub_interval_ms)
        self._progress[directory] = progress
        if not progress.is_under_way:
            return False
        held = {one.name: one for one in node.replicas if self._is_in(one, directory)}
        key = next_segment(
            progress,
            sorted(held),
            lambda name: [one.base_offset for one in held[name].log.segments[:-1]],
        )
        if key is None:
            self._progress[directory] = progress = progress.ended(now_ms)
            _report_pass(directory, progress)
            await self._write(directory)
            return False
        partition = held[key.partition]
        segment = _closed_segment(partition, key)
        assert segment is not None, key
        damage = await self._check(partition, segment)
        if not self._stopping.is_set():
            found = None if damage is None else _damage_of(key, damage)
            self._progress[directory] = self._progress[directory].read(key, segment.size, found)
            if damage is not None:
                self._act(directory, partition, key, damage)
                await self._write(directory)
            elif self._loop_time() - self._written[directory] > _CHECKPOINT_SECONDS:
                await self._write(directory)
        return True

    def _is_in(self, partition: Partition, directory: DataDirectory) -> bool:
        logs = self._node.logs
        return partition.log.offline is None and logs.home_of(partition.name) is directory

    async def look_again(self, directory: DataDirectory) -> None:
        """See to damage that was found before: it may be gone, or others may be in sync now."""
        for damage in self._load(directory).damage:
            name = damage.key.partition
            try:
                partition = self._node.replicas.replica_of(*name)
            except KafkaError:
                if name not in self._node.logs.failed:
                    self._drop(directory, damage)  # Deleted, or moved away.
                continue
            segment = _closed_segment(partition, damage.key)
            if segment is None:
                self._drop(directory, damage)
            elif damage not in self._told or self._can_be_fetched(partition):
                error = await self._check(partition, segment)
                if self._stopping.is_set():
                    return
                if error is None:
                    self._drop(directory, damage)
                else:
                    self._act(directory, partition, damage.key, error)

    def _drop(self, directory: DataDirectory, damage: Damage) -> None:
        self._told.discard(damage)
        self._progress[directory] = self._progress[directory].without(damage)

    async def _check(self, partition: Partition, segment: Segment) -> DamagedLog | None:
        """What is wrong with a segment; None if nothing is, or if it is not in the log any more."""
        log, truncations = partition.log, partition.log.truncations
        damage = None
        for _ in range(2):  # Twice, as it may be a slip of the memory that it was read into.
            following = log.segments[log.segments.index(segment) + 1]
            pieces = check_segment(segment, following.base_offset, log.epochs.entries)
            damage = await self._read(pieces)
            if damage is None or self._stopping.is_set():
                return None
            # Compaction, retention, a move or a truncation may have had the file meanwhile.
            if (
                not self._is_held(partition)
                or partition.log is not log
                or log.truncations != truncations
                or segment not in log.segments[:-1]
                or log.offline is not None
            ):
                return None
        return damage

    def _is_held(self, partition: Partition) -> bool:
        """Whether it is still the replica of its name, and not one that was deleted meanwhile."""
        try:
            return self._node.replicas.replica_of(*partition.name) is partition
        except KafkaError:
            return False

    async def _read(self, pieces: Iterator[int]) -> DamagedLog | None:
        try:
            while (size := await self._node.workers.read(next, pieces, None)) is not None:
                if self._stopping.is_set():
                    return None
                await self._pace(size)
        except DamagedLog as damage:
            return damage
        except Shortage as error:
            logger.warning("a segment was not scrubbed, the next pass will: %s", error)
        return None

    async def _pace(self, size: int) -> None:
        now = self._loop_time()
        rate = self._node.config.log_scrub_bytes_per_second
        if rate != self._throttle.rate:
            self._throttle.change_rate(rate, now)
        self._throttle.record(size, now)
        wait_s = self._throttle.wait_s(now)
        if wait_s > 0:
            await self._pause(wait_s)

    def _can_be_fetched(self, partition: Partition) -> bool:
        """Whether another replica is in sync, from which this one can be made anew."""
        return any(one != self._node.node_id for one in partition.isr)

    def _act(
        self,
        directory: DataDirectory,
        partition: Partition,
        key: SegmentKey,
        error: DamagedLog,
    ) -> None:
        if self._can_be_fetched(partition):
            self._node.replicas.report_damage(partition.name, error)
            return
        damage = _damage_of(key, error)
        if damage not in self._told:
            self._told.add(damage)
            logger.error(
                "%s: %s. No other replica is in sync: the rest can be read; restore the file, or"
                " stop the broker and see what `headrace log repair %s` can save",
                partition.name,
                error,
                f"{directory.path}/{partition.name}",
            )

    async def _write(self, directory: DataDirectory) -> None:
        self._written[directory] = self._loop_time()
        path = f"{directory.path}/{SCRUB_CHECKPOINT}"
        data = encode_progress(self._progress[directory])
        files = self._node.logs.files
        with suppress(StorageError):  # Some segments are read again then.
            await self._node.workers.flush(files.write_atomically, path, data, sync=False)

    @staticmethod
    def _loop_time() -> float:
        return asyncio.get_running_loop().time()


def _closed_segment(partition: Partition, key: SegmentKey) -> Segment | None:
    segments = partition.log.segments[:-1]
    return next((one for one in segments if one.base_offset == key.base_offset), None)


def _damage_of(key: SegmentKey, error: DamagedLog) -> Damage:
    return Damage(key, error.first_offset, error.end_offset)


def _report_pass(directory: DataDirectory, progress: Progress) -> None:
    damaged: set[TopicPartition] = {one.key.partition for one in progress.damage}
    logger.log(
        logging.WARNING if damaged else logging.INFO,
        "scrubbed %d closed segments with %d bytes in %s: %s",
        progress.segment_count,
        progress.byte_count,
        directory.path,
        f"damaged are {', '.join(map(str, sorted(damaged)))}" if damaged else "all are intact",
    )
