"""Moves of logs between the data directories of a broker (KIP-113).

Rule: at any moment one directory has the complete log. Its copy is renamed into place only after
`move.metadata` beside the old log has named the new directory, durably; the old log goes only after
the new one, its name included, is durable. So a start that finds both knows which goes on: the
longer, and of two that are the same the copy.
"""

import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from headrace.errors import ConfigError, ErrorCode, KafkaError, StorageError
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
    """The logs of a broker that move, and those that have just moved.

    Owned by the thread that owns the logs; `prepare`, `settle` and `delete_replaced` may run in a
    worker thread.
    """

    def __init__(self, manager: "LogManager") -> None:
        self._manager = manager
        self._files = manager.files
        self._preferred: dict[TopicPartition, DataDirectory] = {}
        self.futures: dict[TopicPartition, FutureLog] = {}
        self.replaced: dict[TopicPartition, ReplacedLog] = {}

    def logs_in(self, directory: DataDirectory) -> list[Log]:
        """The logs in a directory that are not the current ones of their partitions."""
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

    # A log that is not there yet.

    def prefer(self, partition: TopicPartition, directory: DataDirectory) -> None:
        """Remember where a log is to be made once its replica comes to this broker."""
        self._preferred.pop(partition, None)
        self._preferred[partition] = directory
        if len(self._preferred) > _PREFERRED_MAX:
            del self._preferred[next(iter(self._preferred))]

    def take_preferred(self, partition: TopicPartition) -> DataDirectory | None:
        """The directory that was asked for, if it can be used; it is forgotten then."""
        directory = self._preferred.pop(partition, None)
        return directory if directory is not None and directory.error is None else None

    # A move, from its begin to its end.

    def begin(self, partition: TopicPartition, directory: DataDirectory, now_ms: int) -> bool:
        """Begin to move a log; whether a future log was made.

        A move to another directory is cancelled. Nothing else happens if the log is in `directory`
        or on its way there.
        """
        name = directory.future_name(partition, self._manager.new_id())
        future = self.futures.get(partition)
        if future is not None and future.directory is not directory:
            self.cancel(partition, now_ms)
        elif future is not None:
            return False
        if self._manager.home_of(partition) is directory:
            return False
        offline = [one.path for one in self._manager.directories if one.error is not None]
        if offline:
            # As in Kafka: there may be another future log of this partition.
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"no replica can be moved while {' and '.join(offline)} is offline",
            )
        if partition in self.replaced:
            self.settle(partition)
            self._discard_replaced(partition, now_ms)
        current = self._manager.logs[partition]
        directory.checkpoints.forget(partition)
        try:
            log = self._manager.open_log(
                partition, directory, name, current.config, now_ms, current.topic_id
            )
        except StorageError as error:
            with suppress(StorageError):  # Or the next start would go on with it.
                self._files.remove_tree(name)
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
        self._add_future(partition, FutureLog(log, directory))
        return True

    def cancel(self, partition: TopicPartition, now_ms: int) -> None:
        """Give a move up, if there is one: the future log is deleted."""
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
        """Make all durable that must be before the future log takes the place of the current."""
        future.log.flush()
        self._manager.checkpoint_directory(future.directory)
        meta, current = future.directory.meta, self._manager.logs.get(partition)
        assert meta is not None, future.directory.path
        if current is not None:  # Or it was deleted meanwhile.
            write_destination(self._files, current.directory, meta.directory_id)
            future.prepared = True

    def unprepare(self, partition: TopicPartition) -> None:
        """Take back what `prepare` has noted beside the current log."""
        log = self._manager.logs.get(partition)
        if log is not None:
            remove_destination(self._files, log.directory)

    def promote(self, partition: TopicPartition, now_ms: int) -> Log:
        """Put a future log that has all records in the place of the current one; the new one.

        Those who read the old log may go on for `file.delete.delay.ms`.
        """
        manager, future = self._manager, self.futures[partition]
        assert future.prepared, partition
        old, source = manager.logs[partition], manager.home_of(partition)
        new, destination = future.log, future.directory
        path = f"{destination.path}/{partition}"
        try:
            future.take_over(old)
            self._files.rename(new.directory, path)
        except StorageError as error:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
        new.relocate(path)
        # Not before: as long as both logs grow, each counts its own producers.
        new.producers = old.producers
        # A checkpoint must not take the offsets of one log for those of the other.
        with source.checkpointing, destination.checkpointing:
            self.replaced[partition] = ReplacedLog(
                old, source, destination, now_ms + old.config.file_delete_delay_ms
            )
            manager.replace(partition, new, destination)
            del self.futures[partition]
        return new

    def settle(self, partition: TopicPartition) -> None:
        """Make the log that has moved durable in its new place; then the old one may go.

        In a worker thread: its owner may delete the partition meanwhile, with both logs.
        """
        replaced, log = self.replaced.get(partition), self._manager.logs.get(partition)
        if replaced is not None and log is not None and not replaced.durable:
            log.flush()
            # Records that were deleted on request must not come back.
            self._manager.checkpoint_directory(replaced.new_directory)
            replaced.durable = True

    def delete_replaced(self, now_ms: int) -> None:
        """Give up old logs whose time has come."""
        for partition, replaced in list(self.replaced.items()):
            if replaced.durable and replaced.delete_at_ms <= now_ms:
                self._discard_replaced(partition, now_ms)

    def drop(self, partition: TopicPartition, now_ms: int) -> None:
        """Delete every other log of a partition that is itself deleted."""
        with suppress(KafkaError):  # Then the next start finds a future log of no replica.
            self.cancel(partition, now_ms)
        self._discard_replaced(partition, now_ms)

    def close(self) -> None:
        """Give up the old logs whose new ones were closed, and so are durable."""
        for partition in list(self.replaced):
            log = self._manager.logs.get(partition)
            if log is not None and log.offline is None:
                self._discard_replaced(partition, 0)

    def _discard_replaced(self, partition: TopicPartition, now_ms: int) -> None:
        replaced = self.replaced.pop(partition, None)
        if replaced is not None:
            with suppress(StorageError):  # The next start finds it, and which one is the newer.
                self._manager.discard(partition, replaced.directory, replaced.log, now_ms)

    # A start.

    def choose(
        self, partition: TopicPartition, found: Mapping[DataDirectory, Log | StorageError]
    ) -> tuple[DataDirectory, Log | StorageError]:
        """The log of a partition that goes on, of one or two that were found; the other goes.

        ConfigError if there are two, and not because of a move.
        """
        online = {
            directory.meta.directory_id: directory
            for directory in self._manager.directories
            if directory.error is None and directory.meta is not None
        }
        targets = {one: destination_of(self._files, f"{one.path}/{partition}") for one in found}
        if len(found) == 1:
            [(directory, log)] = found.items()
            return directory, self._only(directory, log, targets[directory], online)
        for source, target in targets.items():
            destination = None if target is None else online.get(target)
            if destination in found and destination is not source and len(found) == 2:
                assert destination is not None
                return self._newer(partition, source, destination, found)
        newest = max(found, key=lambda one: _position(found[one]))
        copies = ", ".join(
            f"{one.path}/{partition} ({_position_text(log)})" for one, log in found.items()
        )
        others = " and ".join(f"{one.path}/{partition}" for one in found if one is not newest)
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
        if target not in online and any(one.error for one in self._manager.directories):
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
            # It may have records that the old log has not.
            if isinstance(old, Log):
                old.close(clean=False)
            return destination, new
        if isinstance(old, StorageError) or _rank(old) <= _rank(new):
            if isinstance(old, Log):
                # Its directory may be the only one that has noted a deletion of records.
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
        """Open a future log that a restart has interrupted; one of another log is deleted.

        One that is left without a log is set aside, as it may be all there is.
        """
        manager = self._manager
        current = manager.logs.get(partition)
        try:
            log = manager.open_log(partition, directory, path, manager.config_of(partition), now_ms)
        except StorageError:
            return  # The move is forgotten until the next start.
        is_of_log = current is not None and log.topic_id == current.topic_id
        is_unknown = current is None and any(one.error for one in manager.directories)
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
    """Larger for a log that has more of what was written last."""
    return log.latest_epoch, log.log_end_offset


def _position(log: Log | StorageError) -> tuple[int, int]:
    """What tells the newer of two copies of a log; one that cannot be opened is none."""
    return (log.latest_epoch, log.log_end_offset) if isinstance(log, Log) else (-2, -1)


def _position_text(log: Log | StorageError) -> str:
    if isinstance(log, Log):
        return f"ends at offset {log.log_end_offset} in epoch {log.latest_epoch}"
    return f"cannot be opened: {log}"
