"""Periodic jobs of a broker: flush, retire segments, checkpoint, drop idle connections."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from headrace.broker.node import Node
from headrace.broker.replication.flush_queue import FlushQueue
from headrace.broker.replication.partition import Partition
from headrace.errors import ConfigError, HeadraceError
from headrace.net.server import Server
from headrace.storage.data_directory import DataDirectory
from headrace.storage.disk_space import DiskSpaceChange
from headrace.storage.key_sources import configured_keyring
from headrace.storage.log_segments import RetiredSegment
from headrace.tasks import TaskScope
from headrace.types import TopicPartition

logger = logging.getLogger(__name__)

_TICK_SECONDS = 1.0
_SWEEP_SECONDS = 5.0
_EXPIRE_PRODUCERS_SECONDS = 600.0
# The time that the running job has to finish when the broker stops.
_FINISH_SECONDS_MAX = 30.0


class Housekeeping:
    """Runs the periodic jobs, one after the other; a failed job is logged and tried again later."""

    def __init__(self, node: Node, flusher: FlushQueue, server: Server) -> None:
        self._node = node
        self._flush_queue = flusher
        self._server = server
        self._high_watermarks: dict[TopicPartition, int] = {}
        self._key_problem = ""
        self._stopping = asyncio.Event()
        self._tasks = TaskScope("housekeeping")

    def start(self) -> None:
        self._tasks.start(self._run())

    async def stop(self) -> None:
        """Let the running job finish; it may be in the middle of a file operation."""
        self._stopping.set()
        await self._tasks.close(_FINISH_SECONDS_MAX)

    async def _run(self) -> None:
        loop, config = asyncio.get_running_loop(), self._node.config
        jobs: list[tuple[float, Callable[[], Awaitable[None]]]] = [
            (_TICK_SECONDS, self.check_free_space),
            (_TICK_SECONDS, self.flush_due),
            (_TICK_SECONDS, self.checkpoint_new_logs),
            (_SWEEP_SECONDS, self.delete_retired),
            (_SWEEP_SECONDS, self.sweep_connections),
            (config.log_retention_check_interval_ms / 1000, self.retire_segments),
            (config.log_flush_offset_checkpoint_interval_ms / 1000, self.checkpoint),
            (
                config.replica_high_watermark_checkpoint_interval_ms / 1000,
                self.checkpoint_high_watermarks,
            ),
            (_EXPIRE_PRODUCERS_SECONDS, self.expire_producers),
            (config.encryption_key_refresh_ms / 1000, self.refresh_keys),
        ]
        due = [loop.time() + seconds for seconds, _ in jobs]
        while not self._stopping.is_set():
            for number, (seconds, job) in enumerate(jobs):
                if loop.time() < due[number]:
                    continue
                due[number] = loop.time() + seconds
                try:
                    await job()
                except HeadraceError as error:
                    logger.error("%s: %s", job.__name__, error)
            with suppress(TimeoutError):
                async with asyncio.timeout(max(min(due) - loop.time(), 0.0)):
                    await self._stopping.wait()

    async def flush_due(self) -> None:
        """Flush logs whose `flush.ms` has passed, and segments that were rolled."""
        now_ms = self._node.clock.now_ms()
        for number, partition in enumerate(self._node.replicas):
            log = partition.log
            if log.offline is None and (log.has_unflushed_segments or log.flush_due(now_ms)):
                self._flush_queue.flush(log, lambda _: None)
            await _yield_to_loop(number)

    async def check_free_space(self) -> None:
        """Log data directories that became full or have room again, and report them to the
        controller.
        """
        node = self._node
        has_changed = False
        for directory in node.logs.directories:
            if directory.error is not None:
                continue
            directory.room.refresh()
            for change in directory.room.changes():
                _log_space_change(directory, change)
                has_changed = has_changed or change is not DiskSpaceChange.LOW
        if has_changed:
            node.membership.heartbeat_now()
        for number, _ in enumerate(node.replicas.reopen_after_shortage(node.config)):
            await _yield_to_loop(number)

    async def retire_segments(self) -> None:
        """Apply retention; the files are deleted `file.delete.delay.ms` later."""
        for number, partition in enumerate(self._node.replicas):
            if partition.log.offline is None:
                await self._retire(partition)
            await _yield_to_loop(number)

    async def _retire(self, partition: Partition) -> None:
        log, now_ms = partition.log, self._node.clock.now_ms()
        start_offset = log.retained_from(now_ms, partition.high_watermark)
        if start_offset > log.segments[0].base_offset:
            await self._node.workers.flush(log.note_start, start_offset)
            if log.closed or log is not partition.log:
                return  # Deleted or moved meanwhile.
        retired = log.retire_segments(now_ms, partition.high_watermark)
        _log_retired(partition.name, retired)
        if retired:
            partition.log_start_moved()

    async def delete_retired(self) -> None:
        """Remove the files of segments and topics that were deleted a while ago."""
        await self._node.workers.read(self._node.logs.delete_retired, self._node.clock.now_ms())

    async def checkpoint(self) -> None:
        """Write the offsets at which recovery after a crash begins."""
        for error in await self._node.workers.flush(self._node.logs.checkpoint):
            logger.error("checkpoint: %s", error)

    async def checkpoint_new_logs(self) -> None:
        """Checkpoint after logs were added, so that a start without them reports them lost."""
        if self._node.logs.names_changed:
            await self.checkpoint()

    async def checkpoint_high_watermarks(self) -> None:
        """Write the high watermarks with which replicas begin after a crash."""
        node = self._node
        high_watermarks = node.replicas.high_watermarks()
        if high_watermarks == self._high_watermarks:
            return
        for error in await node.workers.flush(
            node.logs.checkpoint_high_watermarks, high_watermarks
        ):
            logger.error("checkpoint of high watermarks: %s", error)
        self._high_watermarks = high_watermarks

    async def expire_producers(self) -> None:
        now_ms = self._node.clock.now_ms()
        for number, partition in enumerate(self._node.replicas):
            partition.log.expire_producers(now_ms)
            await _yield_to_loop(number)

    async def refresh_keys(self) -> None:
        """Read the keys of encrypted topics again; those that are known stay if that fails."""
        node = self._node
        if not node.config.encryption_key_source:
            return
        try:
            keyring = await node.workers.read(configured_keyring, node.config)
        except ConfigError as error:
            if str(error) != self._key_problem:
                self._key_problem = str(error)
                logger.error("%s; the keys that were read before stay in use", error)
            return
        self._key_problem = ""
        if keyring != node.logs.encryption.keyring:
            node.logs.encryption.replace_keyring(keyring)
            logger.info("keys of encrypted topics were read again: %s", keyring)

    async def sweep_connections(self) -> None:
        self._server.sweep()


def _log_space_change(directory: DataDirectory, change: DiskSpaceChange) -> None:
    room = directory.room
    if change is DiskSpaceChange.FULL:
        logger.error(
            "the data directory %s is full: %d bytes are free and the reserve is %d. Records are"
            " refused here, and other replicas lead where they can; delete topics or records, lower"
            " retention, or free space on that disk",
            directory.path,
            room.free_bytes,
            room.reserve.bytes,
        )
    elif change is DiskSpaceChange.HAS_ROOM:
        logger.warning(
            "the data directory %s has room again: %d bytes are free, and records are taken",
            directory.path,
            room.free_bytes,
        )
    else:
        logger.warning(
            "the data directory %s is used to %d %%: %d bytes are free, and below %d records are"
            " refused; delete topics or records, lower retention, or add space",
            directory.path,
            room.used_percent,
            room.free_bytes,
            room.reserve.bytes,
        )


def _log_retired(name: TopicPartition, retired: Sequence[RetiredSegment]) -> None:
    """Log each deleted segment with its reason, and the advice of the newest once for all."""
    advice = ""
    for segment in retired:
        assert segment.expiry is not None, segment
        advice = segment.expiry.advice or advice
        logger.info(
            "%s: deleted the segment at offset %d with %d bytes: %s",
            name,
            segment.base_offset,
            segment.size,
            segment.expiry.reason,
        )
    if advice:
        logger.warning("%s: the deleted records were too old on arrival: %s", name, advice)


async def _yield_to_loop(number: int) -> None:
    """Yield to the event loop after every few logs."""
    if number % 16 == 15:
        await asyncio.sleep(0)
