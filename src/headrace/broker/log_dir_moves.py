"""Moves of replicas between the data directories of this broker.

Rule: a worker thread reads the current log and writes the future log, which nothing else uses. On
the loop's thread, in one step, the future log gets the last records and replaces the current.
"""

import asyncio
import logging
from contextlib import suppress

from headrace.broker.node import Node
from headrace.broker.replication.partition import Partition
from headrace.errors import HeadraceError, KafkaError
from headrace.options import LONG_MAX
from headrace.replication.throttle import Throttle
from headrace.storage.future_log import FutureLog
from headrace.storage.log import Log
from headrace.tasks import TaskScope
from headrace.types import TopicPartition

logger = logging.getLogger(__name__)

_PIECE_BYTES = 1 << 20
# The pause after a copy that failed, or that could not be made.
_RETRY_SECONDS = 10.0
_CHECK_SECONDS = 0.5
# The longest pause for the rate limit, because it may change meanwhile, or the broker stop.
_PAUSE_SECONDS_MAX = 1.0
# The time that the running copy has to finish when the broker stops.
_FINISH_SECONDS_MAX = 30.0


class LogDirMoves:
    """Copies all moving replicas in turn, a piece at a time; a failed move is tried again later."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._moves = node.logs.moves
        self._throttle = Throttle(LONG_MAX)
        self._retry_at: dict[TopicPartition, float] = {}
        self._stopping = asyncio.Event()
        self._tasks = TaskScope("moves between directories")

    def start(self) -> None:
        self._tasks.start(self._run())

    async def stop(self) -> None:
        """Let the piece under way be written."""
        self._stopping.set()
        self._node.move_requested.set()
        await self._tasks.close(_FINISH_SECONDS_MAX)

    async def _run(self) -> None:
        while not self._stopping.is_set():
            self._node.move_requested.clear()
            busy = False
            for name in list(self._moves.futures):
                if not self._stopping.is_set():
                    busy |= await self._copy_next(name)
            for name, replaced in list(self._moves.replaced.items()):
                if not replaced.durable:
                    await self._make_durable(name)
            if busy:
                continue
            unsettled = any(not replaced.durable for replaced in self._moves.replaced.values())
            seconds = _CHECK_SECONDS if self._moves.futures or unsettled else None
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._node.move_requested.wait()

    async def _copy_next(self, name: TopicPartition) -> bool:
        """Copy the next piece of a replica, and end the move after the last; returns whether it
        could.
        """
        now = asyncio.get_running_loop().time()
        if self._retry_at.get(name, 0.0) > now:
            return False
        try:
            partition = self._node.replicas.replica_of(*name)
        except KafkaError:
            return False  # This replica is not in the applied metadata yet, or offline.
        future = self._moves.futures.get(name)
        if future is None or future.log.offline is not None or partition.log.offline is not None:
            return False  # Cancelled; or a disk failed, until a restart.
        try:
            await self._copy(partition, future)
        except HeadraceError as error:
            if self._moves.futures.get(name) is future:
                self._retry_at[name] = now + _RETRY_SECONDS
                logger.error("%s: the move to %s waits: %s", name, future.directory.path, error)
            return False
        self._retry_at.pop(name, None)
        return True

    async def _copy(self, partition: Partition, future: FutureLog) -> None:
        log, workers = partition.log, self._node.workers
        truncations, start_offset = log.truncations, log.log_start_offset
        end_offset = log.log_end_offset
        try:
            offset = future.divergence(log)
            if offset is not None:
                await workers.read(future.cut, offset)
            bytes_max = min(_PIECE_BYTES, self._rate)
            size = await workers.read(
                _copy_piece, future, log, bytes_max, self._node.clock.now_ms()
            )
        except KafkaError:
            if (truncations, start_offset) == (log.truncations, log.log_start_offset):
                raise
            return  # The records being read were deleted; the next piece begins elsewhere.
        has_all = future.log.log_end_offset >= end_offset
        if has_all and self._is_current(partition, future, log):
            size += await self._end(partition, future)
        await self._pace(size)

    async def _end(self, partition: Partition, future: FutureLog) -> int:
        """Copy the last piece, and replace the current log by the future log.

        Returns the bytes copied. If more than a piece was appended meanwhile, the current log
        stays.
        """
        name, node = partition.name, self._node
        log = partition.log
        if not future.prepared:
            await node.workers.flush(self._moves.prepare, name, future)
            if not self._is_current(partition, future, log):
                await node.workers.flush(self._moves.unprepare, name)
                return 0
        if future.divergence(log) is not None:
            return 0
        # No await from here on. Records since the last piece are in the page cache.
        size = future.copy(log, _PIECE_BYTES, node.clock.now_ms())
        if future.log.log_end_offset != log.log_end_offset:
            return size
        partition.replace_log(self._moves.promote(name, node.clock.now_ms()))
        logger.info("%s moved from %s to %s", name, log.directory, partition.log.directory)
        return size

    async def _make_durable(self, name: TopicPartition) -> None:
        """Flush a moved log in its new directory, after which the old log may be deleted."""
        now = asyncio.get_running_loop().time()
        if self._retry_at.get(name, 0.0) > now:
            return
        try:
            await self._node.workers.flush(self._moves.make_durable, name)
        except HeadraceError as error:
            if name not in self._moves.replaced:
                return  # Its topic was deleted meanwhile.
            self._retry_at[name] = now + _RETRY_SECONDS
            logger.error("%s: its old log stays for now: %s", name, error)

    def _is_current(self, partition: Partition, future: FutureLog, log: Log) -> bool:
        """Whether the move continues: it was not cancelled, nor its replica deleted meanwhile."""
        return self._moves.futures.get(partition.name) is future and partition.log is log

    @property
    def _rate(self) -> int:
        return self._node.config.replica_alter_log_dirs_io_max_bytes_per_second

    async def _pace(self, size: int) -> None:
        """Limit the rate to `replica.alter.log.dirs.io.max.bytes.per.second`."""
        loop = asyncio.get_running_loop()
        self._throttle.record(size, loop.time())
        while not self._stopping.is_set():
            now = loop.time()
            if self._rate != self._throttle.rate:
                self._throttle.change_rate(self._rate, now)
            wait_s = self._throttle.wait_s(now)
            if wait_s <= 0:
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(min(wait_s, _PAUSE_SECONDS_MAX)):
                    await self._stopping.wait()


def _copy_piece(future: FutureLog, log: Log, bytes_max: int, now_ms: int) -> int:
    size = future.copy(log, bytes_max, now_ms)
    if future.log.has_unflushed_segments:
        # A restart need not read the flushed part of the copy again.
        future.log.flush()
    return size
