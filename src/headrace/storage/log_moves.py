"""Moves of logs between the data directories of a broker (KIP-113).

Rule: at any moment one directory has the complete log. Its copy is renamed into place only after
`move.metadata` beside the old log has named the new directory, durably; the old log is deleted only
after the new log, its name included, is durable. So a start that finds both keeps the longer log,
and of two that are the same the copy.
"""

import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from headrace.errors import ConfigError, ErrorCode, KafkaError, StorageError
from headrace.storage.damage import DamagedLog
from headrace.storage.data_directory import DataDirectory
from headrace.storage.future_log import (
    FutureLog,
    ReplacedLog,
    destination_of,
    remove_destination,
    write_destination,
)
from headrace.storage.log import Log
from headrace.storage.strays import StrayNote, rename_aside, time_text
from headrace.types import TopicPartition

if TYPE_CHECKING:
    from headrace.storage.log_manager import LogManager

logger = logging.getLogger(__name__)

_PREFERRED_MAX = 10_000


class LogMoves:
    """The future logs of a broker, and the replaced logs that are not deleted yet.

    Owned by the thread that owns the logs; `prepare`, `make_durable` and `delete_replaced` may run
    in a worker thread.
    """

    def __init__(self, manager: "LogManager") -> None:
        self._manager = manager
        self._files = manager.files
        self._preferred: dict[TopicPartition, DataDirectory] = {}
        self.futures: dict[TopicPartition, FutureLog] = {}
        self.replaced: dict[TopicPartition, ReplacedLog] = {}

    def logs_in(self, directory: DataDirectory) -> list[Log]:
        """The future logs and replaced logs in a directory."""
        copies: list[FutureLog | ReplacedLog] = [*list(self.futures.values())]
        copies += list(self.replaced.values())
        return [copy.log for copy in copies if copy.directory is directory]

    def directory_at(self, path: str) -> DataDirectory:
        """The data directory at `path`; KafkaError if there is none, or it is offline."""
        for directory in self._manager.directories:
            if directory.path == path:
                if directory.error is None:
                    return directory
                raise KafkaError(
                    ErrorCode.KAFKA_STORAGE_ERROR, f"{path} is offline: {directory.error}"
                )
        known = ", ".join(directory.path for directory in self._manager.directories)
        raise KafkaError(
            ErrorCode.LOG_DIR_NOT_FOUND, f"{path} is not in log.dirs of the broker: {known}"
        )

    # The directory of a log that is not made yet.

    def prefer(self, partition: TopicPartition, directory: DataDirectory) -> None:
        """Remember the directory for a partition's log, until this broker gets a replica."""
        self._preferred.pop(partition, None)
        self._preferred[partition] = directory
        if len(self._preferred) > _PREFERRED_MAX:
            del self._preferred[next(iter(self._preferred))]

    def take_preferred(self, partition: TopicPartition) -> DataDirectory | None:
        """Forget and return the preferred directory of a partition; None unless online."""
        directory = self._preferred.pop(partition, None)
        return directory if directory is not None and directory.error is None else None

    # A move, from its begin to its end.

    def begin(self, partition: TopicPartition, directory: DataDirectory, now_ms: int) -> bool:
        """Begin to move a log; returns whether a future log was made.

        A move to another directory is cancelled. Nothing else happens if the log is in `directory`
        or moving there.
        """
        name = directory.future_name(partition, self._manager.new_id())
        future = self.futures.get(partition)
        if future is not None and future.directory is not directory:
            self.cancel(partition, now_ms)
        elif future is not None:
            return False
        if self._manager.directory_of(partition) is directory:
            return False
        offline = [
            candidate.path for candidate in self._manager.directories if candidate.error is not None
        ]
        if offline:
            # As in Kafka: there may be another future log of this partition.
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"no replica can be moved while {' and '.join(offline)} is offline",
            )
        if partition in self.replaced:
            self.make_durable(partition)
            self._discard_replaced(partition, now_ms)
        current = self._manager.logs[partition]
        directory.checkpoints.forget(partition)
        try:
            log = self._manager.open_log(
                partition, directory, name, current.config, now_ms, current.topic_id
            )
        except StorageError as error:
            with suppress(StorageError):  # Else the next start would resume the move.
                self._files.remove_tree(name)
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
        self._add_future(partition, FutureLog(log, directory))
        return True

    def cancel(self, partition: TopicPartition, now_ms: int) -> None:
        """Cancel the move of a partition, if it has a future log, and delete that log."""
        future = self.futures.pop(partition, None)
        if future is None:
            return
        future.directory.log_count -= 1
        try:
            self._manager.discard(partition, future.directory, future.log, now_ms)
            if future.prepared:
                self.unprepare(partition)
        except StorageError as error:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error

    def prepare(self, partition: TopicPartition, future: FutureLog) -> None:
        """Make the future log durable and write `move.metadata`, before `promote`."""
        future.log.flush()
        self._manager.checkpoint_directory(future.directory)
        meta, current = future.directory.meta, self._manager.logs.get(partition)
        assert meta is not None, future.directory.path
        if current is not None:  # Otherwise it was deleted meanwhile.
            write_destination(self._files, current.directory, meta.directory_id)
            future.prepared = True

    def unprepare(self, partition: TopicPartition) -> None:
        """Remove the `move.metadata` that `prepare` has written."""
        log = self._manager.logs.get(partition)
        if log is not None:
            remove_destination(self._files, log.directory)

    def promote(self, partition: TopicPartition, now_ms: int) -> Log:
        """Replace the current log by its future log, which has all its records; return the latter.

        Reads of the old log in progress may continue for `file.delete.delay.ms`.
        """
        manager, future = self._manager, self.futures[partition]
        assert future.prepared, partition
        old, source = manager.logs[partition], manager.directory_of(partition)
        new, destination = future.log, future.directory
        path = f"{destination.path}/{partition}"
        try:
            future.take_over(old)
            self._files.rename(new.directory, path)
        except StorageError as error:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
        new.relocate(path)
        # Not before: as long as both logs grow, each has its own producer state.
        new.producers = old.producers
        # Under both locks: a checkpoint must not mix up the offsets of the two logs.
        with source.checkpointing, destination.checkpointing:
            self.replaced[partition] = ReplacedLog(
                old, source, destination, now_ms + old.config.file_delete_delay_ms
            )
            manager.replace(partition, new, destination)
            del self.futures[partition]
        return new

    def make_durable(self, partition: TopicPartition) -> None:
        """Flush a log that has moved and its directory, so that the old log may be deleted.

        Runs in a worker thread: the owner may delete the partition meanwhile, with both logs.
        """
        replaced, log = self.replaced.get(partition), self._manager.logs.get(partition)
        if replaced is not None and log is not None and not replaced.durable:
            log.flush()
            # Else records that DeleteRecords removed could come back.
            self._manager.checkpoint_directory(replaced.new_directory)
            replaced.durable = True

    def delete_replaced(self, now_ms: int) -> None:
        """Delete the replaced logs whose delay has passed."""
        for partition, replaced in list(self.replaced.items()):
            if replaced.durable and replaced.delete_at_ms <= now_ms:
                self._discard_replaced(partition, now_ms)

    def drop(self, partition: TopicPartition, now_ms: int) -> None:
        """Delete the future log and the replaced log of a partition."""
        with suppress(KafkaError):  # Then the next start finds a future log without a replica.
            self.cancel(partition, now_ms)
        self._discard_replaced(partition, now_ms)

    def close(self) -> None:
        """Delete the replaced logs whose new logs were closed, and so are durable."""
        for partition in list(self.replaced):
            log = self._manager.logs.get(partition)
            if log is not None and log.offline is None:
                self._discard_replaced(partition, 0)

    def _discard_replaced(self, partition: TopicPartition, now_ms: int) -> None:
        replaced = self.replaced.pop(partition, None)
        if replaced is not None:
            with suppress(StorageError):  # The next start finds both logs, and keeps the newer.
                self._manager.discard(partition, replaced.directory, replaced.log, now_ms)

    # Startup.

    def choose(
        self, partition: TopicPartition, found: Mapping[DataDirectory, Log | StorageError]
    ) -> tuple[DataDirectory, Log | StorageError]:
        """Choose the current log of a partition among the logs that were found; delete the other.

        ConfigError if there are several, and not because of a move.
        """
        online = {
            directory.meta.directory_id: directory
            for directory in self._manager.directories
            if directory.error is None and directory.meta is not None
        }
        targets = {
            directory: destination_of(self._files, f"{directory.path}/{partition}")
            for directory in found
        }
        if len(found) == 1:
            [(directory, log)] = found.items()
            return directory, self._only(directory, log, targets[directory], online)
        for source, target in targets.items():
            destination = None if target is None else online.get(target)
            if destination in found and destination is not source and len(found) == 2:
                assert destination is not None
                return self._newer(partition, source, destination, found)
        newest = max(found, key=lambda directory: _position(found[directory]))
        copies = ", ".join(
            f"{directory.path}/{partition} ({_position_text(log)})"
            for directory, log in found.items()
        )
        others = " and ".join(
            f"{directory.path}/{partition}" for directory in found if directory is not newest
        )
        raise ConfigError(
            f"{partition} is in more than one data directory: {copies}. Move {others} out of the"
            " data directories and keep it, or the other one if you know that it is the right one"
        )

    def _only(
        self,
        directory: DataDirectory,
        log: Log | StorageError,
        target: bytes | None,
        online: Mapping[bytes, DataDirectory],
    ) -> Log | StorageError:
        if target is None or isinstance(log, StorageError):
            return log
        if target not in online and any(known.error for known in self._manager.directories):
            log.close(clean=False)
            return StorageError(
                f"{log.directory} may be older than a copy of it in a data directory that is"
                f" offline; without that directory, remove it from log.dirs"
            )
        with suppress(StorageError):  # The next start tries again.
            remove_destination(self._files, log.directory)
        return log

    def _newer(
        self,
        partition: TopicPartition,
        source: DataDirectory,
        destination: DataDirectory,
        found: Mapping[DataDirectory, Log | StorageError],
    ) -> tuple[DataDirectory, Log | StorageError]:
        old, new = found[source], found[destination]
        if isinstance(new, StorageError):
            # It may have records that the old log does not have.
            if isinstance(old, Log):
                old.close(clean=False)
            return destination, new
        if isinstance(old, StorageError) or _rank(old) <= _rank(new):
            if isinstance(old, Log):
                # A log start offset raised by DeleteRecords may be in its checkpoint only.
                with suppress(KafkaError):  # Then the log is offline.
                    new.advance_log_start(min(old.log_start_offset, new.log_end_offset))
                with suppress(StorageError):
                    self._manager.discard(partition, source, old, 0)
            return destination, new
        with suppress(StorageError):
            self._manager.discard(partition, destination, new, 0)
            remove_destination(self._files, old.directory)
        return source, old

    def load_future(
        self, partition: TopicPartition, path: str, directory: DataDirectory, now_ms: int
    ) -> None:
        """Open the future log of a move that a restart has interrupted.

        A future log of another topic id is deleted. A future log without a current log is set
        aside, as it may be the only copy. A damaged one is deleted and made again.
        """
        manager = self._manager
        current = manager.logs.get(partition)
        try:
            log = manager.open_log(partition, directory, path, manager.config_of(partition), now_ms)
        except DamagedLog as error:
            if current is not None and partition not in self.futures:
                logger.warning("%s: its copy for a move is made again: %s", partition, error)
                with suppress(StorageError, KafkaError):
                    self._files.remove_tree(path)
                    self.begin(partition, directory, now_ms)
            return
        except StorageError as error:
            logger.warning("%s: its move waits for the next start: %s", partition, error)
            return
        is_of_log = current is not None and log.topic_id == current.topic_id
        is_unknown = current is None and any(known.error for known in manager.directories)
        if partition not in self.futures and (
            is_of_log or is_unknown or partition in manager.failed
        ):
            self._add_future(partition, FutureLog(log, directory))
            return
        with suppress(StorageError):
            if current is None:
                log.close(clean=False)
                reason = "the log that it was a copy of is gone"
                note = StrayNote(partition, log.topic_id, reason, time_text(now_ms))
                aside = rename_aside(self._files, directory.path, note, manager.new_id(), path)
                logger.warning("%s: its copy for a move was set aside in %s", partition, aside)
            else:
                manager.discard(partition, directory, log, now_ms)

    def _add_future(self, partition: TopicPartition, future: FutureLog) -> None:
        self.futures[partition] = future
        future.directory.log_count += 1


def _rank(log: Log) -> tuple[int, int]:
    """The latest epoch and end offset of a log: larger for the newer of two copies."""
    return log.latest_epoch, log.log_end_offset


def _position(log: Log | StorageError) -> tuple[int, int]:
    """The rank of a log; a log that cannot be opened ranks below all others."""
    return (log.latest_epoch, log.log_end_offset) if isinstance(log, Log) else (-2, -1)


def _position_text(log: Log | StorageError) -> str:
    if isinstance(log, Log):
        return f"ends at offset {log.log_end_offset} in epoch {log.latest_epoch}"
    return f"cannot be opened: {log}"
