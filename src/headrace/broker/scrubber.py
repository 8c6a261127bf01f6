"""Background scrubbing of a broker: reads its segments again, at a limited rate, to find damage.

Rule: bytes are read in a worker thread, at `log.scrub.bytes.per.second`; the log is accessed on the
loop's thread only. A damaged replica is given up only if another one is in sync. After a start the
last segment of each log is read first, unless the start has scanned it, and then a whole pass: a
start trusts logs that were closed cleanly. Damage met by a reader is checked soon.
"""

import asyncio
import logging
import os
from collections.abc import Iterator
from contextlib import suppress

from headrace.broker.node import Node
from headrace.broker.replication.partition import Partition
from headrace.errors import KafkaError, StorageError
from headrace.metrics import catalog
from headrace.replication.throttle import Throttle
from headrace.storage.damage import DamagedLog
from headrace.storage.data_directory import DataDirectory
from headrace.storage.files import ResourceShortage
from headrace.storage.log_segments import segment_index
from headrace.storage.scrubbing import (
    NEVER,
    SCRUB_CHECKPOINT,
    ScrubProgress,
    SegmentDamage,
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

# The time after which a changed interval, or a replica back in sync, is noticed.
_POLL_SECONDS = 10.0
# The delay before damage that a reader has met is checked.
_SUSPICION_SECONDS = 1.0
# The interval of writing the progress while segments are read.
_CHECKPOINT_SECONDS = 60.0
# The time that the running read has to finish when the broker stops.
_FINISH_SECONDS_MAX = 30.0


class Scrubber:
    """Reads one segment after the other, in all data directories. For the loop's thread only."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._throttle = Throttle(node.config.log_scrub_bytes_per_second)
        self._progress = node.scrub_progress
        self._written: dict[DataDirectory, float] = {}
        for directory in node.logs.directories:
            node.metrics.counter(catalog.SCRUBBED, {"directory": directory.path})
        self._reported: set[SegmentDamage] = set()
        self._began_ms = NEVER
        # Logs whose last segment was read since the start, or by it.
        self._tails: set[TopicPartition] = set()
        self._stopping = asyncio.Event()
        self._tasks = TaskScope("scrubbing")

    def start(self) -> None:
        self._began_ms = self._node.clock.now_ms()
        self._tasks.start(self._run())
        self._tasks.start(self._check_suspects())

    async def stop(self) -> None:
        """End after the piece that is being read, and write the progress."""
        self._stopping.set()
        await self._tasks.close(_FINISH_SECONDS_MAX)

    async def _run(self) -> None:
        for directory in self._node.logs.directories:
            if directory.error is None:
                self._load_progress(directory)  # For DescribeLogDirs, even without another pass.
        while not self._stopping.is_set():
            if not self._node.replicas.is_applied:
                await self._pause(_SUSPICION_SECONDS)
                continue
            has_read = False
            for directory in self._node.logs.directories:
                if directory.error is None and self._node.config.log_scrub_interval_ms >= 0:
                    await self.recheck_damage(directory)
                    has_read |= await self.read_tail(directory) or await self.scrub_next(directory)
            if not has_read:
                await self._pause(_POLL_SECONDS)
        for directory, progress in list(self._progress.items()):
            if progress.started_ms != NEVER:
                await self._write_progress(directory)

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()

    def _load_progress(self, directory: DataDirectory) -> ScrubProgress:
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
        interval_ms = node.config.log_scrub_interval_ms
        progress = self._load_progress(directory).begun(now_ms, interval_ms, self._began_ms)
        self._progress[directory] = progress
        if not progress.is_under_way:
            return False
        held = self._held_in(directory)
        key = next_segment(
            progress,
            sorted(held),
            lambda name: [
                segment.base_offset for segment in held[name].log.segments if segment.size
            ],
        )
        if key is None:
            self._progress[directory] = progress = progress.ended(now_ms)
            _report_pass(directory, progress)
            await self._write_progress(directory)
            return False
        partition = held[key.partition]
        segment = _segment_of(partition, key)
        assert segment is not None, key
        size = segment.size
        damage = await self._check(partition, segment)
        if not self._stopping.is_set():
            found = None if damage is None else _damage_of(key, damage)
            self._progress[directory] = self._progress[directory].read(key, size, found)
            self._mark(directory, partition)
            if damage is not None:
                self._handle_damage(directory, partition, key, damage)
                await self._write_progress(directory)
            elif self._loop_time() - self._written[directory] > _CHECKPOINT_SECONDS:
                await self._write_progress(directory)
        return True

    async def read_tail(self, directory: DataDirectory) -> bool:
        """Read the last segment of a log that no start and no tail read has; false if none is."""
        held = self._held_in(directory)
        for name in sorted(held.keys() - self._tails):
            self._tails.add(name)
            partition = held[name]
            written = [segment for segment in partition.log.segments[-2:] if segment.size]
            if written and not partition.log.recovery.scanned:
                await self._check_segment(directory, partition, written[-1])
                return True
        return False

    async def _check_suspects(self) -> None:
        while not self._stopping.is_set():
            for partition in list(self._node.replicas):
                if partition.log.suspected_offset is not None and not self._stopping.is_set():
                    await self.check_suspect(partition)
            await self._pause(_SUSPICION_SECONDS)

    async def check_suspect(self, partition: Partition) -> None:
        """Check a log in which a reader met damage: first the place, then the rest of the log."""
        log, offset = partition.log, partition.log.suspected_offset
        log.clear_suspicion()
        if offset is None or log.closed or log.offline is not None:
            return
        directory, segments = self._node.logs.directory_of(partition.name), log.segments
        first = max(segment_index(segments, offset), 0)
        for segment in (segments[first], *segments[:first], *segments[first + 1 :]):
            if await self._check_segment(directory, partition, segment) or self._stopping.is_set():
                return

    async def _check_segment(
        self, directory: DataDirectory, partition: Partition, segment: Segment
    ) -> bool:
        """Check a segment out of the order of the pass; returns whether it is damaged."""
        key = SegmentKey(partition.name, segment.base_offset)
        is_reported = any(damage.key == key for damage in self._reported)
        if is_reported and not self._can_be_fetched(partition):
            return True  # Unchanged since.
        damage = await self._check(partition, segment)
        if damage is None or self._stopping.is_set():
            return False
        self._progress[directory] = self._load_progress(directory).found(_damage_of(key, damage))
        self._mark(directory, partition)
        self._handle_damage(directory, partition, key, damage)
        await self._write_progress(directory)
        return True

    def _mark(self, directory: DataDirectory, partition: Partition) -> None:
        """Make the log refuse the known damaged offsets, and no others."""
        known = [
            damage
            for damage in self._load_progress(directory).damage
            if damage.key.partition == partition.name
        ]
        partition.log.mark_damaged([(damage.first_offset, damage.end_offset) for damage in known])

    def _held_in(self, directory: DataDirectory) -> dict[TopicPartition, Partition]:
        return {
            partition.name: partition
            for partition in self._node.replicas
            if self._is_in(partition, directory)
        }

    def _is_in(self, partition: Partition, directory: DataDirectory) -> bool:
        logs = self._node.logs
        return partition.log.offline is None and logs.directory_of(partition.name) is directory

    async def recheck_damage(self, directory: DataDirectory) -> None:
        """Check known damage again: it may be gone, or other replicas may be in sync now."""
        for damage in self._load_progress(directory).damage:
            name = damage.key.partition
            try:
                partition = self._node.replicas.replica_of(*name)
            except KafkaError:
                if name not in self._node.logs.failed:
                    self._forget_damage(directory, damage)  # Deleted, or moved away.
                continue
            segment = _segment_of(partition, damage.key)
            if segment is None:
                self._forget_damage(directory, damage)
                self._mark(directory, partition)
            elif damage not in self._reported or self._can_be_fetched(partition):
                error = await self._check(partition, segment)
                if self._stopping.is_set():
                    return
                if error is None:
                    self._forget_damage(directory, damage)
                    self._mark(directory, partition)
                else:
                    self._mark(directory, partition)
                    self._handle_damage(directory, partition, damage.key, error)

    def _forget_damage(self, directory: DataDirectory, damage: SegmentDamage) -> None:
        self._reported.discard(damage)
        self._progress[directory] = self._progress[directory].without(damage)

    async def _check(self, partition: Partition, segment: Segment) -> DamagedLog | None:
        """The damage of a segment; None if it is intact, or not in the log any more."""
        log, truncations = partition.log, partition.log.truncations
        if segment not in log.segments:
            return None
        damage = None
        for _ in range(2):  # Twice, because the memory it was read into may have failed.
            behind = log.segments[log.segments.index(segment) + 1 :]
            end_offset = behind[0].base_offset if behind else log.log_end_offset
            pieces = check_segment(segment, end_offset, log.epochs.entries)
            damage = await self._read(os.path.dirname(log.directory), pieces)
            if damage is None or self._stopping.is_set():
                return None
            # Compaction, retention, a move or a truncation may have replaced the file meanwhile.
            if (
                not self._is_held(partition)
                or partition.log is not log
                or log.truncations != truncations
                or segment not in log.segments
                or log.offline is not None
            ):
                return None
        return damage

    def _is_held(self, partition: Partition) -> bool:
        """Whether this broker still has the replica."""
        try:
            return self._node.replicas.replica_of(*partition.name) is partition
        except KafkaError:
            return False

    async def _read(self, directory: str, pieces: Iterator[int]) -> DamagedLog | None:
        scrubbed = self._node.metrics.counter(catalog.SCRUBBED, {"directory": directory})
        try:
            while (size := await self._node.workers.read(next, pieces, None)) is not None:
                scrubbed.add(size)
                if self._stopping.is_set():
                    return None
                await self._pace(size)
        except DamagedLog as damage:
            return damage
        except ResourceShortage as error:
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
        """Whether another replica is in sync, from which this replica can be fetched again."""
        return any(broker_id != self._node.node_id for broker_id in partition.isr)

    def _handle_damage(
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
        if damage not in self._reported:
            self._reported.add(damage)
            logger.error(
                "%s: %s. No other replica is in sync: the rest can be read; restore the file, or"
                " stop the broker and see what `headrace log repair %s` can save",
                partition.name,
                error,
                f"{directory.path}/{partition.name}",
            )

    async def _write_progress(self, directory: DataDirectory) -> None:
        self._written[directory] = self._loop_time()
        path = f"{directory.path}/{SCRUB_CHECKPOINT}"
        data = encode_progress(self._progress[directory])
        files = self._node.logs.files
        with suppress(StorageError):  # Some segments are read again then.
            await self._node.workers.flush(files.write_atomically, path, data, sync=False)

    @staticmethod
    def _loop_time() -> float:
        return asyncio.get_running_loop().time()


def _segment_of(partition: Partition, key: SegmentKey) -> Segment | None:
    segments = partition.log.segments
    return next((segment for segment in segments if segment.base_offset == key.base_offset), None)


def _damage_of(key: SegmentKey, error: DamagedLog) -> SegmentDamage:
    return SegmentDamage(key, error.first_offset, error.end_offset)


def _report_pass(directory: DataDirectory, progress: ScrubProgress) -> None:
    if not progress.segment_count:
        return
    damaged: set[TopicPartition] = {damage.key.partition for damage in progress.damage}
    logger.log(
        logging.WARNING if damaged else logging.INFO,
        "scrubbed %d segments with %d bytes in %s: %s",
        progress.segment_count,
        progress.byte_count,
        directory.path,
        f"damaged are {', '.join(map(str, sorted(damaged)))}" if damaged else "all are intact",
    )
