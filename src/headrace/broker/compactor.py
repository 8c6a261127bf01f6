"""Background compaction of the logs of a broker, one after the other, in a worker thread.

Rule: the thread writes only files that nothing else uses; the log changes only between two steps,
on the loop's thread, where a new segment replaces others.
"""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import suppress

from headrace.broker.node import Node
from headrace.broker.replication.partition import Partition
from headrace.errors import CorruptBatch, HeadraceError
from headrace.metrics import catalog
from headrace.options import LONG_MAX
from headrace.replication.throttle import Throttle
from headrace.storage.compaction.compaction import (
    CompactionLimits,
    CompactionProgress,
    LogCompaction,
    SegmentReplacement,
    plan_for,
)
from headrace.storage.compaction.key_table import SECRET_SIZE
from headrace.storage.compaction.plan import CompactionPlan, is_late
from headrace.storage.segment import Segment
from headrace.tasks import TaskScope
from headrace.types import TopicPartition

logger = logging.getLogger(__name__)

# The pause after a compaction of a log that failed.
_RETRY_SECONDS = 60.0
_LOGS_A_TURN = 16
# The time that the running step has to finish when the broker stops.
_FINISH_SECONDS_MAX = 30.0

_Steps = Iterator[CompactionProgress | SegmentReplacement]


class Compactor:
    """Compacts the logs that are due, the dirtiest first; after a failure it tries again later."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._secret = node.rng.randbytes(SECRET_SIZE)
        self._throttle = Throttle(LONG_MAX)
        self._retry_at: dict[TopicPartition, float] = {}
        registry = node.metrics
        self._finished = registry.counter(catalog.COMPACTIONS)
        self._failures = registry.counter(catalog.COMPACTION_FAILURES)
        self._read_bytes = registry.counter(catalog.COMPACTION_READ)
        self._kept_bytes = registry.counter(catalog.COMPACTION_KEPT)
        self._is_compacting = False
        registry.gauge(catalog.COMPACTING, lambda: int(self._is_compacting))
        # Bytes of the present round: those read so far, and all that it has to read.
        self._bytes_read = self._bytes_to_read = 0
        registry.gauge(catalog.COMPACTION_DONE, self._done_ratio)
        self._stopping = asyncio.Event()
        self._tasks = TaskScope("compaction")

    def start(self) -> None:
        if self._node.config.log_cleaner_enable:
            self._tasks.start(self._run())

    async def stop(self) -> None:
        """Let the running step finish; it may be in the middle of a file operation."""
        self._stopping.set()
        await self._tasks.close(_FINISH_SECONDS_MAX)

    async def _run(self) -> None:
        while not self._stopping.is_set():
            if not await self.compact_dirtiest():
                await self._pause(self._node.config.log_cleaner_backoff_ms / 1000)

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()

    async def compact_dirtiest(self) -> bool:
        """Compact the log that needs it most; false if none does."""
        now = asyncio.get_running_loop().time()
        self._retry_at = {name: at for name, at in self._retry_at.items() if at > now}
        found: tuple[bool, float, Partition, CompactionPlan[Segment]] | None = None
        for number, partition in enumerate(list(self._node.replicas)):
            if number % _LOGS_A_TURN == _LOGS_A_TURN - 1:
                await asyncio.sleep(0)
            if "compact" not in partition.log.config.cleanup_policy:
                continue
            if partition.name in self._retry_at or self._is_moving(partition):
                continue
            try:
                plan = self._plan(partition)
            except HeadraceError as error:
                self._failed(partition, error)
                continue
            if plan is None or not plan.is_due(partition.log.config):
                continue
            if found is None or (plan.is_overdue, plan.dirty_ratio) > found[:2]:
                found = (plan.is_overdue, plan.dirty_ratio, partition, plan)
        if found is None or self._stopping.is_set():
            return False
        self._is_compacting = True
        try:
            await self._compact(found[2])
        finally:
            self._is_compacting = False
            self._bytes_read = self._bytes_to_read = 0
        return True

    def _done_ratio(self) -> float:
        # Sizes are those of the plan, which headers that are read twice may exceed.
        return min(self._bytes_read / self._bytes_to_read, 1.0) if self._bytes_to_read else 1.0

    def _plan(self, partition: Partition) -> CompactionPlan[Segment] | None:
        log = partition.log
        if log.offline is not None:
            return None
        now_ms = self._node.clock.now_ms()
        if log.config.max_compaction_lag_ms < LONG_MAX and is_late(log.active, log.config, now_ms):
            # No append has closed the active segment, and its records have waited long enough.
            log.roll(now_ms)
        return plan_for(log, partition.high_watermark, now_ms)

    async def _compact(self, partition: Partition) -> None:
        """Compact a log by a plan made now."""
        log, config = partition.log, self._node.config
        steps: _Steps = iter(())
        try:
            plan = self._plan(partition)
            if plan is None:
                return
            # What is dirty is read for its keys first, and then all is read to be rewritten.
            self._bytes_to_read = plan.clean_bytes + 2 * plan.dirty_bytes
            limits = CompactionLimits(
                config.log_cleaner_dedupe_buffer_size,
                config.log_cleaner_io_buffer_load_factor,
                config.log_cleaner_io_buffer_size,
            )
            now_ms = self._node.clock.now_ms()
            compaction = LogCompaction(log, plan, limits, self._secret, now_ms)
            steps = compaction.steps()
            if await self._run_steps(partition, compaction, steps):
                compaction.finish()
                await self._node.workers.flush(self._node.logs.checkpoint)
                self._report(partition, compaction)
        except HeadraceError as error:
            self._failed(partition, error)
        finally:
            await self._node.workers.compact(_close, steps)

    def _is_moving(self, partition: Partition) -> bool:
        """Whether the log is being copied to another data directory, byte for byte."""
        return partition.name in self._node.logs.moves.futures

    async def _run_steps(
        self, partition: Partition, compaction: LogCompaction, steps: _Steps
    ) -> bool:
        """Run every step; false if a change of the log has made the rest pointless."""
        workers, log = self._node.workers, partition.log
        while (step := await workers.compact(next, steps, None)) is not None:
            if self._stopping.is_set() or self._is_moving(partition) or partition.log is not log:
                return False
            if isinstance(step, CompactionProgress):
                self._bytes_read += step.bytes_read
                await self._pace(step)
                continue
            if not compaction.replace(step, self._node.clock.now_ms()):
                return False
            await workers.compact(compaction.sync_names)
        return True

    async def _pace(self, step: CompactionProgress) -> None:
        """Limit the rate to `log.cleaner.io.max.bytes.per.second`."""
        now = asyncio.get_running_loop().time()
        rate = max(int(min(self._node.config.log_cleaner_io_max_bytes_per_second, LONG_MAX)), 1)
        if rate != self._throttle.rate:
            self._throttle.change_rate(rate, now)
        self._throttle.record(step.bytes_read + step.bytes_written, now)
        wait_s = self._throttle.wait_s(now)
        if wait_s > 0:
            await self._pause(wait_s)

    def _failed(self, partition: Partition, error: HeadraceError) -> None:
        self._retry_at[partition.name] = asyncio.get_running_loop().time() + _RETRY_SECONDS
        self._failures.add()
        if isinstance(error, CorruptBatch):
            partition.log.suspect(partition.log.clean_offset)
        if any(held is partition for held in self._node.replicas):
            logger.error("%s: compaction failed: %s", partition.name, error)

    def _report(self, partition: Partition, compaction: LogCompaction) -> None:
        work = compaction.work
        self._finished.add()
        self._read_bytes.add(work.bytes_before)
        self._kept_bytes.add(work.bytes_after)
        logger.info(
            "%s: compacted up to offset %d, %d of %d records and %d of %d bytes are left",
            partition.name,
            work.end_offset,
            work.records_kept,
            work.records_read,
            work.bytes_after,
            work.bytes_before,
        )


def _close(steps: _Steps) -> None:
    """Remove the partly written files of a compaction that was given up."""
    close = getattr(steps, "close", None)
    if close is not None:
        close()
