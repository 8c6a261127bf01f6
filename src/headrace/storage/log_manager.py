"""The logs of a broker, spread over its data directories.

Rule: a directory or a log that fails goes offline alone; the others continue to serve.
"""

import logging
import os
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from headrace.config import TopicConfig
from headrace.errors import ErrorCode, HeadraceError, KafkaError, StorageError
from headrace.security.batch_encryption import BatchEncryption
from headrace.storage.checkpoints import PARTITION_METADATA, encode_partition_metadata
from headrace.storage.damage import DamagedLog, without_traceback
from headrace.storage.data_directory import METADATA_LOG, DataDirectory
from headrace.storage.files import Files, ResourceShortage
from headrace.storage.log import PRODUCER_EXPIRATION_MS, Log
from headrace.storage.log_encryption import WITHOUT_KEYS
from headrace.storage.log_moves import LogMoves
from headrace.storage.open_files import OpenFiles
from headrace.storage.recovery import read_topic_id
from headrace.storage.repair import IntactPrefix, cut_to_prefix, intact_prefix
from headrace.storage.strays import StrayNote, rename_aside, time_text
from headrace.types import TopicPartition, uuid_text

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DirectoryState:
    """The description of a data directory and its logs. Bytes are -1 if unknown."""

    path: str
    error: StorageError | None
    total_bytes: int
    usable_bytes: int
    logs: tuple[Log, ...]
    future_logs: tuple[Log, ...] = ()
    is_full: bool = False


class LogManager:
    """All logs of a broker. Owned by one thread, as the logs are.

    Only `checkpoint` and `delete_retired` may run in a worker thread at the same time.

    Durability: a checkpoint is on stable storage when `checkpoint` returns; after a crash, later
    offsets are found again by a scan.
    """

    def __init__(
        self,
        files: Files,
        directories: Sequence[str],
        *,
        node_id: int,
        config_of: Callable[[TopicPartition], TopicConfig],
        producer_expiration_ms: int = PRODUCER_EXPIRATION_MS,
        open_files_max: int = 512,
        reserved_bytes: int = 0,
        warn_percent: int = 100,
        new_id: Callable[[], bytes] = lambda: os.urandom(16),
        encryption: BatchEncryption = WITHOUT_KEYS,
    ) -> None:
        self.node_id = node_id
        self.cluster_id = ""
        self.logs: dict[TopicPartition, Log] = {}
        self.failed: dict[TopicPartition, StorageError] = {}
        # Partitions that a checkpoint lists and that have no log: it was lost, not deleted.
        self.missing: dict[TopicPartition, DataDirectory] = {}
        # Whether logs were made or removed since the last checkpoint, which tells the next start
        # the logs that must exist.
        self.names_changed = False
        self.directories = [
            DataDirectory(files, os.path.abspath(path), reserved_bytes, warn_percent)
            for path in directories
        ]
        self.files = files
        self._open_files = OpenFiles(files, open_files_max)
        self.config_of = config_of
        self._producer_expiration_ms = producer_expiration_ms
        self.new_id = new_id
        self.encryption = encryption
        self._homes: dict[TopicPartition, DataDirectory] = {}
        self._metadata_log: Log | None = None
        self.moves = LogMoves(self)
        self._deleted: list[tuple[int, str]] = []

    @classmethod
    def open(
        cls,
        files: Files,
        directories: Sequence[str],
        *,
        node_id: int,
        cluster_id: str | None,
        config_of: Callable[[TopicPartition], TopicConfig],
        now_ms: int,
        load_logs: bool = True,
        producer_expiration_ms: int = PRODUCER_EXPIRATION_MS,
        open_files_max: int = 512,
        reserved_bytes: int = 0,
        warn_percent: int = 100,
        new_id: Callable[[], bytes] = lambda: os.urandom(16),
        new_cluster_id: Callable[[], str] | None = None,
        prepare: Callable[[list[str]], None] | None = None,
        encryption: BatchEncryption = WITHOUT_KEYS,
    ) -> "LogManager":
        """Lock the data directories and, with `load_logs`, open every log in them.

        `prepare` is called with their paths when they are locked and nothing is changed yet.

        Without a `cluster_id` that of the directories is used, or a new id, from `new_cluster_id`
        if it is given. ConfigError if a directory belongs to another node or cluster; StorageError
        if none of the directories can be used.
        """
        manager = cls(
            files,
            directories,
            node_id=node_id,
            config_of=config_of,
            producer_expiration_ms=producer_expiration_ms,
            open_files_max=open_files_max,
            reserved_bytes=reserved_bytes,
            warn_percent=warn_percent,
            new_id=new_id,
            encryption=encryption,
        )
        try:
            manager._lock_directories(cluster_id, new_cluster_id, prepare)
            if load_logs:
                manager.load_logs(now_ms)
        except HeadraceError:
            manager._release()
            raise
        return manager

    def _lock_directories(
        self,
        cluster_id: str | None,
        new_cluster_id: Callable[[], str] | None,
        prepare: Callable[[list[str]], None] | None,
    ) -> None:
        for directory in self.directories:
            self._try(directory, directory.lock)
        first = self.directories[0]
        if prepare is not None and first.error is None:
            self._try(first, prepare, [directory.path for directory in self._online()])
        for directory in self._online():
            self._try(directory, directory.read_meta)
        known = [
            directory.meta.cluster_id for directory in self._online() if directory.meta is not None
        ]
        if not known:
            known = [new_cluster_id() if new_cluster_id else uuid_text(self.new_id())]
        self.cluster_id = cluster_id or known[0]
        for directory in self._online():
            self._try(directory, self._claim, directory)
        if not self._online():
            causes = "; ".join(str(directory.error) for directory in self.directories)
            raise StorageError(f"none of the data directories can be used: {causes}")

    def _claim(self, directory: DataDirectory) -> None:
        directory.claim(self.cluster_id, self.node_id, self.new_id)
        directory.load()

    def load_logs(self, now_ms: int) -> None:
        """Open every log; deleted logs are left for `delete_retired` to remove."""
        found: dict[TopicPartition, dict[DataDirectory, Log | StorageError]] = {}
        futures: list[tuple[TopicPartition, str, DataDirectory]] = []
        for directory in self._online():
            self._try(directory, self._load_directory, directory, now_ms, found, futures)
        for partition, copies in found.items():
            home, log = self.moves.choose(partition, copies)
            self._homes[partition] = home
            home.log_count += 1
            flushed = home.checkpoints.recovery_points.get(partition, 0)
            if isinstance(log, Log) and log.log_end_offset < flushed:
                log.close(clean=False)
                log = DamagedLog(
                    log.directory,
                    f"it ends at offset {log.log_end_offset}, though all before offset {flushed}"
                    " was flushed",
                    log.log_end_offset,
                    flushed,
                    0,
                )
            if isinstance(log, Log):
                self.logs[partition] = log
            else:
                self.failed[partition] = log
        for partition, path, directory in futures:
            self.moves.load_future(partition, path, directory, now_ms)
        for directory in self._online():
            self._try(directory, self._find_missing, directory)

    def _find_missing(self, directory: DataDirectory) -> None:
        listed = directory.checkpoints.recovery_points
        known = {METADATA_LOG, *self._homes, *directory.deleted_partitions()}
        self.missing |= {name: directory for name in listed if name not in known}

    def _load_directory(
        self,
        directory: DataDirectory,
        now_ms: int,
        found: dict[TopicPartition, dict[DataDirectory, Log | StorageError]],
        futures: list[tuple[TopicPartition, str, DataDirectory]],
    ) -> None:
        self._deleted += [(now_ms, path) for path in directory.deleted_directories()]
        futures += [(partition, path, directory) for partition, path in directory.future_logs()]
        for partition, path in directory.log_directories().items():
            copies = found.setdefault(partition, {})
            try:
                config = self.config_of(partition)
                copies[directory] = self.open_log(partition, directory, path, config, now_ms)
            except ResourceShortage as error:
                copies[directory] = type(error)(str(error))  # `open_failed` tries again.
            except StorageError as error:
                copies[directory] = without_traceback(error)

    def open_log(
        self,
        partition: TopicPartition,
        directory: DataDirectory,
        path: str,
        config: TopicConfig,
        now_ms: int,
        topic_id: bytes | None = None,
        *,
        trusted: bool = True,
    ) -> Log:
        """Open a log; without `trusted` it is scanned even after a clean shutdown."""
        written = directory.checkpoints
        return Log.open(
            self.files,
            path,
            partition,
            config,
            now_ms,
            topic_id=topic_id,
            recovery_point=written.recovery_points.get(partition, 0),
            log_start_offset=written.log_start_offsets.get(partition, 0),
            clean_offset=written.clean_offsets.get(partition, 0),
            clean=directory.clean and trusted,
            same_boot=directory.same_boot,
            # The metadata log begins where a snapshot allows, which is checked before it is opened.
            check_start=partition != METADATA_LOG,
            open_files=self._open_files,
            producer_expiration_ms=self._producer_expiration_ms,
            on_truncate=lambda: self.checkpoint_directory(directory),
            # The metadata log may use the reserve: without it the broker could delete nothing.
            room=None if partition == METADATA_LOG else directory.room,
            encryption=self.encryption,
        )

    def __iter__(self) -> Iterator[Log]:
        return iter(self.logs.values())

    def get(self, partition: TopicPartition) -> Log | None:
        """The log of a partition or None; KafkaError if its log could not be opened."""
        log = self.logs.get(partition)
        if log is None and partition in self.failed:
            error = self.failed[partition]
            advice = "repair or replace the disk, then restart the broker"
            if isinstance(error, DamagedLog):
                advice = error.repair_advice
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"{error}; the log {partition} is offline: {advice}"
            ) from error
        return log

    def create(
        self, partition: TopicPartition, topic_id: bytes, config: TopicConfig, now_ms: int
    ) -> Log:
        """Make a new, empty log in its preferred directory or in that with the fewest logs."""
        assert partition not in self._homes, partition
        online = self._online()
        if not online:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "every data directory is offline")
        directory = self.moves.take_preferred(partition)
        if directory is None:
            directory = min(
                online, key=lambda candidate: (candidate.room.is_full, candidate.log_count)
            )
        path = f"{directory.path}/{partition}"
        try:
            self._forget(partition, directory)
            if self.files.exists(path):
                raise StorageError(f"{path} is there already: move it away")
            directory.room.check()
            log = self.open_log(partition, directory, path, config, now_ms, topic_id)
        except ResourceShortage as error:
            with suppress(StorageError):  # An incomplete log would fail the next attempt.
                self.files.remove_tree(path)
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
        except StorageError as error:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
        self._homes[partition] = directory
        directory.log_count += 1
        self.logs[partition] = log
        self.names_changed = True
        return log

    def _forget(self, partition: TopicPartition, directory: DataDirectory) -> None:
        """Drop the offsets of an earlier log of a partition, in memory and in checkpoints.

        Else a start after a crash would take the new, shorter log for a log that lost records.
        """
        self.missing.pop(partition, None)
        written = directory.checkpoints
        if partition in written.recovery_points:
            self.checkpoint_directory(directory)
        if partition in written.high_watermarks:
            with directory.checkpointing:
                known = written.high_watermarks.items()
                directory.write_high_watermarks(
                    {name: offset for name, offset in known if name in self._homes}
                )
        written.forget(partition)

    def set_topic_id(self, partition: TopicPartition, topic_id: bytes) -> None:
        """Write the topic id of a log whose `partition.metadata` is unreadable."""
        log = self.logs[partition]
        path = f"{log.directory}/{PARTITION_METADATA}"
        try:
            self.files.write_atomically(path, encode_partition_metadata(topic_id))
        except StorageError as error:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
        log.topic_id = topic_id

    def set_aside(
        self, partition: TopicPartition, reason: str, now_ms: int, *, is_lost: bool = False
    ) -> str:
        """Take a log out of service and keep its files under another name; return their path.

        With `is_lost`, checkpoints still list the partition, so that a start does not consider it
        new before its log is made again.
        """
        self.moves.drop(partition, now_ms)
        directory = self._homes[partition]
        log = self.logs.pop(partition, None)
        topic_id = None if log is None else log.topic_id
        if log is not None:
            log.close(clean=False)
        try:
            if log is None:
                topic_id = read_topic_id(self.files, f"{directory.path}/{partition}")
            note = StrayNote(partition, topic_id, reason, time_text(now_ms))
            aside = rename_aside(self.files, directory.path, note, self.new_id())
            self._forget_files(f"{directory.path}/{partition}")
        except StorageError as error:
            self.failed[partition] = StorageError(str(error))
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
        self._forget_home(partition)
        if is_lost:
            self.missing[partition] = directory
        return aside

    def close_offline(self, partition: TopicPartition, now_ms: int) -> None:
        """Close a log that a full disk took offline, for `open_failed` to open it again."""
        log = self.logs[partition]
        assert log.offline is not None and log.may_reopen, partition
        with suppress(KafkaError):  # A copy would not know of the change that was broken off.
            self.moves.cancel(partition, now_ms)
        del self.logs[partition]
        log.close(clean=False)
        self._forget_files(log.directory)
        self.failed[partition] = log.offline

    def open_failed(self, partition: TopicPartition, now_ms: int) -> None:
        """Retry to open a log that failed for lack of disk space or file descriptors."""
        if not isinstance(self.failed.get(partition), ResourceShortage):
            return
        directory = self._homes[partition]
        path, config = f"{directory.path}/{partition}", self.config_of(partition)
        with suppress(StorageError):
            # It may have been changed since the start, which a clean shutdown says nothing about.
            self.logs[partition] = self.open_log(
                partition, directory, path, config, now_ms, trusted=False
            )
            del self.failed[partition]

    def intact_prefix(self, partition: TopicPartition) -> IntactPrefix | None:
        """The sound part of a damaged log, None if there is none. May run in any thread."""
        damage = self.failed.get(partition)
        if not isinstance(damage, DamagedLog):
            return None
        return intact_prefix(self.files, f"{self._homes[partition].path}/{partition}", damage)

    def cut_damaged(self, partition: TopicPartition, prefix: IntactPrefix, now_ms: int) -> Log:
        """Cut a damaged log off behind its sound part, and open it.

        The removed bytes are kept beside the log. KafkaError if that fails: the log is offline.
        """
        directory, path = self._homes[partition], f"{self._homes[partition].path}/{partition}"
        points = directory.checkpoints.recovery_points
        try:
            # The segment that is cut is scanned, which rebuilds its indexes.
            points[partition] = min(points.get(partition, 0), prefix.base_offset)
            self.checkpoint_directory(directory)
            removed = cut_to_prefix(self.files, path, prefix)
            self._forget_files(path)
            config = self.config_of(partition)
            log = self.open_log(partition, directory, path, config, now_ms, trusted=False)
        except StorageError as error:
            self.failed[partition] = without_traceback(error)
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
        logger.warning(
            "%s: the damaged log was cut off at offset %d; what was behind it is kept in %s",
            partition,
            log.log_end_offset,
            ", ".join(removed) or "no file, since nothing was",
        )
        del self.failed[partition]
        self.logs[partition] = log
        return log

    def fail(self, partition: TopicPartition, error: DamagedLog, now_ms: int) -> None:
        """Take a damaged log out of service; its files stay."""
        self.moves.drop(partition, now_ms)
        self.logs.pop(partition).close(clean=False)
        self.failed[partition] = error.copy()

    def delete(self, partition: TopicPartition, now_ms: int) -> None:
        """Delete a log; `delete_retired` removes its files after `file.delete.delay.ms`."""
        self.moves.drop(partition, now_ms)
        directory = self._homes[partition]
        log = self.logs.pop(partition, None)
        delay_ms = 0
        if log is not None:
            log.close(clean=False)
            delay_ms = log.config.file_delete_delay_ms
        gone = directory.deleted_name(partition, self.new_id())
        try:
            # Not made durable here: if a crash undoes it, the next start finds a log of no topic.
            self.files.rename(f"{directory.path}/{partition}", gone)
            self._forget_files(f"{directory.path}/{partition}")
        except StorageError as error:
            self.failed[partition] = StorageError(str(error))
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
        self._forget_home(partition)
        self._deleted.append((now_ms + delay_ms, gone))

    def _forget_home(self, partition: TopicPartition) -> None:
        """Remove a partition whose log was renamed from the records of its data directory."""
        self.failed.pop(partition, None)
        self._homes.pop(partition).log_count -= 1
        self.names_changed = True

    def _forget_files(self, path: str) -> None:
        """Close the open files of a log whose directory was renamed.

        Closing the log did so too, but until the rename a thread may have opened some again, and
        a new log may use their names.
        """
        self._open_files.forget_under(path)

    def directory_of(self, partition: TopicPartition) -> DataDirectory:
        """The data directory of a partition's log."""
        return self._homes[partition]

    def replace(self, partition: TopicPartition, log: Log, directory: DataDirectory) -> None:
        """Replace a partition's log by its future log, which `directory` has counted already."""
        self._homes[partition].log_count -= 1
        self.logs[partition] = log
        self._homes[partition] = directory

    def discard(
        self, partition: TopicPartition, directory: DataDirectory, log: Log, delete_at_ms: int
    ) -> None:
        """Close and delete a log that is not the current log of its partition.

        The rename is durable: else a crash could undo it when some files are removed already.
        """
        log.close(clean=False)
        gone = directory.deleted_name(partition, self.new_id())
        self.files.rename(log.directory, gone)
        self._forget_files(log.directory)
        self.files.sync_directory(directory.path)
        self._deleted.append((delete_at_ms, gone))

    def delete_retired(self, now_ms: int) -> int:
        """Remove deleted segments and logs after their delay; return their number.

        Those that cannot be removed now are retried by the next call. May run in a worker thread.
        """
        count = 0
        self.moves.delete_replaced(now_ms)
        for log in list(self.logs.values()):
            with suppress(StorageError):
                count += log.delete_retired(now_ms)
        for delete_at_ms, path in list(self._deleted):
            if delete_at_ms > now_ms:
                continue
            with suppress(StorageError):
                self.files.remove_tree(path)
                self._deleted.remove((delete_at_ms, path))
                count += 1
        return count

    def open_metadata_log(self, config: TopicConfig, now_ms: int) -> Log:
        """Open the cluster's metadata log, in the first directory; `close` closes it too."""
        if self._metadata_log is None:
            directory = self.directories[0]
            if directory.error is not None:
                raise directory.error
            path = f"{directory.path}/{METADATA_LOG}"
            self._metadata_log = self.open_log(METADATA_LOG, directory, path, config, now_ms)
            # It has SCRAM's salted keys.
            self.files.make_private(path)
        return self._metadata_log

    def high_watermark(self, partition: TopicPartition) -> int | None:
        """The high watermark of a partition in the last checkpoint."""
        home = self._homes.get(partition)
        return None if home is None else home.checkpoints.high_watermarks.get(partition)

    def checkpoint(
        self, high_watermarks: Mapping[TopicPartition, int] | None = None
    ) -> list[StorageError]:
        """Write the checkpoints with which a restart begins; return the failures.

        A directory that fails goes offline with its logs; a directory that is merely full does not,
        as an older checkpoint is also right and only makes a scan longer. May run in any thread,
        but not in two at a time.
        """
        self.names_changed = False
        return self._in_each_directory(
            lambda directory: self.checkpoint_directory(directory, high_watermarks)
        )

    def checkpoint_high_watermarks(
        self, high_watermarks: Mapping[TopicPartition, int]
    ) -> list[StorageError]:
        """Write the checkpoints of high watermarks alone, otherwise as `checkpoint`."""

        def write(directory: DataDirectory) -> None:
            with directory.checkpointing:
                logs = self._logs_in(directory)
                failed = [name for name in self.failed if self._homes.get(name) is directory]
                _write_high_watermarks(directory, logs, high_watermarks, failed)

        return self._in_each_directory(write)

    def _in_each_directory(self, write: Callable[[DataDirectory], None]) -> list[StorageError]:
        errors: list[StorageError] = []
        for directory in self._online():
            try:
                write(directory)
            except StorageError as error:
                errors.append(error)
                if not isinstance(error, ResourceShortage):
                    self._take_offline(directory, error)
        return errors

    def checkpoint_directory(
        self,
        directory: DataDirectory,
        high_watermarks: Mapping[TopicPartition, int] | None = None,
    ) -> None:
        """Write the checkpoints of one directory; StorageError if that fails."""
        # Collected under the lock: else offsets from before a truncation could be written after it.
        with directory.checkpointing:
            logs = self._logs_in(directory)
            listed = directory.checkpoints.recovery_points
            lost = {
                name: listed.get(name, 0)
                for name, home in list(self.missing.items())
                if home is directory
            }
            # A log that could not be opened keeps its offsets, for recovery at the next start.
            failed = [name for name in self.failed if self._homes.get(name) is directory]
            kept = [
                {name: offsets[name] for name in failed if name in offsets}
                for offsets in (
                    directory.checkpoints.recovery_points,
                    directory.checkpoints.log_start_offsets,
                    directory.checkpoints.clean_offsets,
                )
            ]
            directory.write_checkpoints(
                # Records before the log start count as flushed, since they are not read any more;
                # and a start takes a log start beyond the recovery point for an error.
                {log.topic_partition: max(log.recovery_point, log.log_start_offset) for log in logs}
                | kept[0]
                | lost,
                {log.topic_partition: log.log_start_offset for log in logs if log.log_start_offset}
                | kept[1],
                {log.topic_partition: log.clean_offset for log in logs if log.clean_offset}
                | kept[2],
            )
            if high_watermarks is not None:
                _write_high_watermarks(directory, logs, high_watermarks, failed)

    def offline_directories(self) -> list[bytes]:
        """The ids of the directories that are offline, for heartbeats to the controller."""
        return [
            directory.meta.directory_id
            for directory in self.directories
            if directory.error is not None and directory.meta is not None
        ]

    @property
    def has_room(self) -> bool:
        """Whether a directory accepts records."""
        return any(not directory.room.is_full for directory in self._online())

    def full_directories(self) -> list[bytes]:
        """The ids of the directories that are full, for heartbeats to the controller."""
        return [
            directory.meta.directory_id
            for directory in self._online()
            if directory.room.is_full and directory.meta is not None
        ]

    def describe(self) -> list[DirectoryState]:
        """The state of each directory, with its logs and the space of its disk."""
        states = []
        for directory in self.directories:
            total = usable = -1
            error = directory.error
            if error is None:
                try:
                    total, usable = self.files.space(directory.path)
                except StorageError as failure:
                    error = failure
            logs = tuple(log for name, log in self.logs.items() if self._homes[name] is directory)
            futures = tuple(
                future.log
                for future in self.moves.futures.values()
                if future.directory is directory
            )
            states.append(
                DirectoryState(
                    directory.path, error, total, usable, logs, futures, directory.room.is_full
                )
            )
        return states

    @property
    def previous_broker_epoch(self) -> int:
        """The broker epoch of the last run, if it shut down cleanly in every directory; else -1.

        If a directory is missing, new or of an earlier run, logs may lack records.
        """
        epochs = {
            directory.broker_epoch if directory.clean and directory.error is None else -1
            for directory in self.directories
        }
        return epochs.pop() if len(epochs) == 1 else -1

    def close(
        self,
        *,
        clean: bool = True,
        high_watermarks: Mapping[TopicPartition, int] | None = None,
        broker_epoch: int = -1,
    ) -> None:
        """Close every log and unlock the directories.

        If `clean`, each directory whose logs were all flushed gets a clean-shutdown marker with the
        broker epoch of this run, and its logs are not scanned at the next start; a directory where
        something failed gets none.
        """
        for directory in self.directories:
            sound = clean and directory.error is None
            for log in self._logs_in(directory):
                self.close_log(log, clean=clean)
                sound = sound and log.offline is None
            _warn_of_shortage(directory, self._logs_in(directory))
            if sound and not any(self._homes[name] is directory for name in self.failed):
                self._try(directory, self.checkpoint_directory, directory, high_watermarks)
                if directory.error is None:
                    self._try(directory, directory.mark_clean, broker_epoch)
        if clean:
            self.moves.close()
        self._release()

    @staticmethod
    def close_log(log: Log, *, clean: bool = True) -> None:
        """Close a log, before `close`; several threads may do so for different logs."""
        with suppress(KafkaError):  # Then the log is offline, which `close` checks.
            log.close(clean=clean)

    def _logs_in(self, directory: DataDirectory) -> list[Log]:
        logs = [log for name, log in list(self.logs.items()) if self._homes.get(name) is directory]
        logs += self.moves.logs_in(directory)
        if self._metadata_log is not None and directory is self.directories[0]:
            logs.append(self._metadata_log)
        return logs

    def _online(self) -> list[DataDirectory]:
        return [directory for directory in self.directories if directory.error is None]

    def _try(
        self, directory: DataDirectory, action: Callable[..., None], *arguments: object
    ) -> None:
        try:
            action(*arguments)
        except StorageError as error:
            self._take_offline(directory, error)

    def _take_offline(self, directory: DataDirectory, error: StorageError) -> None:
        directory.error = StorageError(str(error))
        logs = self._logs_in(directory)
        logger.error(
            "the data directory %s is offline with %d logs: %s. Repair or replace the disk, then"
            " restart the broker",
            directory.path,
            len(logs),
            error,
        )
        for log in logs:
            log.take_offline(error)

    def _release(self) -> None:
        for directory in self.directories:
            directory.release()


def _write_high_watermarks(
    directory: DataDirectory,
    logs: Iterable[Log],
    high_watermarks: Mapping[TopicPartition, int],
    failed: Iterable[TopicPartition] = (),
) -> None:
    """Write the high watermarks of logs; a log without a new value keeps its old value."""
    written = directory.checkpoints.high_watermarks
    known = ChainMap(dict(high_watermarks), written)
    names = [*(log.topic_partition for log in logs), *failed]
    directory.write_high_watermarks({name: known[name] for name in names if name in known})


def _warn_of_shortage(directory: DataDirectory, logs: Iterable[Log]) -> None:
    """Log once for all logs of a directory which a full disk kept from being closed cleanly."""
    errors = [log.offline for log in logs if isinstance(log.offline, ResourceShortage)]
    if errors:
        logger.warning(
            "%d logs in %s were not closed cleanly, and the next start reads their ends: %s",
            len(errors),
            directory.path,
            errors[0],
        )
