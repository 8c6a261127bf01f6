"""The logs of a broker, spread over its data directories.

Rule: a directory or a log that fails is offline by itself; the others serve.
"""

import logging
import os
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from headrace.config import TopicConfig
from headrace.errors import ErrorCode, HeadraceError, KafkaError, StorageError
from headrace.storage.checkpoints import PARTITION_METADATA, encode_partition_metadata
from headrace.storage.damage import DamagedLog, kept_error
from headrace.storage.data_directory import METADATA_LOG, DataDirectory
from headrace.storage.files import Files, Shortage
from headrace.storage.log import PRODUCER_EXPIRATION_MS, Log
from headrace.storage.log_moves import LogMoves
from headrace.storage.open_files import OpenFiles
from headrace.storage.recovery import read_topic_id
from headrace.storage.strays import StrayNote, rename_aside, time_text
from headrace.types import TopicPartition, uuid_text

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DirectoryState:
    """What there is to tell about a data directory. Bytes are -1 if the disk does not say."""

    path: str
    error: StorageError | None
    total_bytes: int
    usable_bytes: int
    logs: tuple[Log, ...]
    future_logs: tuple[Log, ...] = ()
    is_full: bool = False


class LogManager:
    """Every log of a broker. Owned by one thread, as the logs are.

    Only `checkpoint` and `delete_retired` may run in a worker thread meanwhile.

    Durability: a checkpoint is on stable storage when `checkpoint` returns; what it does not have
    yet is found again by a scan.
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
    ) -> None:
        self.node_id = node_id
        self.cluster_id = ""
        self.logs: dict[TopicPartition, Log] = {}
        self.failed: dict[TopicPartition, StorageError] = {}
        # Partitions that a checkpoint lists and that have no log: it was lost, not deleted.
        self.missing: dict[TopicPartition, DataDirectory] = {}
        # Whether logs came or went since the last checkpoint, which tells a start which there were.
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
    ) -> "LogManager":
        """Take the directories and load every log in them, unless that is to be done later.

        `prepare` is called with their paths when they are locked and nothing is changed yet.

        Without a `cluster_id` it is the one the directories have, or a new one, which
        `new_cluster_id` makes if it is given. ConfigError if a
        directory belongs to somebody else; StorageError if none of them can be used.
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
        )
        try:
            manager._take_directories(cluster_id, new_cluster_id, prepare)
            if load_logs:
                manager.load_logs(now_ms)
        except HeadraceError:
            manager._release()
            raise
        return manager

    def _take_directories(
        self,
        cluster_id: str | None,
        new_cluster_id: Callable[[], str] | None,
        prepare: Callable[[list[str]], None] | None,
    ) -> None:
        for directory in self.directories:
            self._try(directory, directory.take)
        first = self.directories[0]
        if prepare is not None and first.error is None:
            self._try(first, prepare, [directory.path for directory in self._online()])
        for directory in self._online():
            self._try(directory, directory.read_meta)
        known = [one.meta.cluster_id for one in self._online() if one.meta is not None]
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
        """Open every log; those that were deleted are removed by `delete_retired`."""
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
            except Shortage as error:
                copies[directory] = type(error)(str(error))  # `open_failed` tries again.
            except StorageError as error:
                copies[directory] = kept_error(error)

    def open_log(
        self,
        partition: TopicPartition,
        directory: DataDirectory,
        path: str,
        config: TopicConfig,
        now_ms: int,
        topic_id: bytes | None = None,
    ) -> Log:
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
            clean=directory.clean,
            same_boot=directory.same_boot,
            open_files=self._open_files,
            producer_expiration_ms=self._producer_expiration_ms,
            on_truncate=lambda: self.checkpoint_directory(directory),
            # Without its metadata log no broker could free anything.
            room=None if partition == METADATA_LOG else directory.room,
        )

    def __iter__(self) -> Iterator[Log]:
        return iter(self.logs.values())

    def get(self, partition: TopicPartition) -> Log | None:
        """The log of a partition; KafkaError if there is one and it could not be opened."""
        log = self.logs.get(partition)
        if log is None and partition in self.failed:
            error = self.failed[partition]
            advice = "repair or replace the disk, then restart the broker"
            if isinstance(error, DamagedLog):
                advice = error.advice
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"{error}; the log {partition} is offline: {advice}"
            ) from error
        return log

    def create(
        self, partition: TopicPartition, topic_id: bytes, config: TopicConfig, now_ms: int
    ) -> Log:
        """Make a new, empty log, where it was asked for or in the directory that has the fewest."""
        assert partition not in self._homes, partition
        online = self._online()
        if not online:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "every data directory is offline")
        directory = self.moves.take_preferred(partition)
        if directory is None:
            directory = min(online, key=lambda one: (one.room.is_full, one.log_count))
        path = f"{directory.path}/{partition}"
        try:
            self._forget(partition, directory)
            if self.files.exists(path):
                raise StorageError(f"{path} is there already: move it away")
            directory.room.check()
            log = self.open_log(partition, directory, path, config, now_ms, topic_id)
        except Shortage as error:
            with suppress(StorageError):  # Half of a log would be in the way of the next attempt.
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
        """Have no offsets of an earlier log of a partition, in memory or in a checkpoint.

        Or a start after a crash would take the new, shorter log for one that lost records.
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

    def adopt(self, partition: TopicPartition, topic_id: bytes) -> None:
        """Give a log the id of the topic that it belongs to, in the place of an unreadable one."""
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
        """Take a log out of service and keep its files under another name; their directory.

        If that `is_lost`, checkpoints go on to list the partition, so that a start does not take it
        for new before its log is made again.
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
        self.failed.pop(partition, None)
        del self._homes[partition]
        directory.log_count -= 1
        self.names_changed = True
        if is_lost:
            self.missing[partition] = directory
        return aside

    def open_failed(self, partition: TopicPartition, now_ms: int) -> None:
        """Try again to open a log for which there was no room, or no descriptor."""
        if not isinstance(self.failed.get(partition), Shortage):
            return
        directory = self._homes[partition]
        path, config = f"{directory.path}/{partition}", self.config_of(partition)
        with suppress(StorageError):
            self.logs[partition] = self.open_log(partition, directory, path, config, now_ms)
            del self.failed[partition]

    def fail(self, partition: TopicPartition, error: DamagedLog, now_ms: int) -> None:
        """Take a log out of service that was found damaged; its files stay."""
        self.moves.drop(partition, now_ms)
        self.logs.pop(partition).close(clean=False)
        self.failed[partition] = error.copy()

    def delete(self, partition: TopicPartition, now_ms: int) -> None:
        """Take a log out of service; `delete_retired` removes its files after the usual delay."""
        self.moves.drop(partition, now_ms)
        directory = self._homes[partition]
        log = self.logs.pop(partition, None)
        delay_ms = 0
        if log is not None:
            log.close(clean=False)
            delay_ms = log.config.file_delete_delay_ms
        gone = directory.deleted_name(partition, self.new_id())
        try:
            # Not made durable here: if a crash undoes it, the log comes back as one of no topic.
            self.files.rename(f"{directory.path}/{partition}", gone)
            self._forget_files(f"{directory.path}/{partition}")
        except StorageError as error:
            self.failed[partition] = StorageError(str(error))
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
        self.failed.pop(partition, None)
        del self._homes[partition]
        directory.log_count -= 1
        self.names_changed = True
        self._deleted.append((now_ms + delay_ms, gone))

    def _forget_files(self, path: str) -> None:
        """Let go of the files of a log whose directory was renamed.

        Closing the log did so too, but until the rename a thread may have opened some again, and
        another log may get their names.
        """
        self._open_files.forget_under(path)

    def home_of(self, partition: TopicPartition) -> DataDirectory:
        """The directory of a log."""
        return self._homes[partition]

    def replace(self, partition: TopicPartition, log: Log, directory: DataDirectory) -> None:
        """Have another log for a partition, in another directory, which has counted it already."""
        self._homes[partition].log_count -= 1
        self.logs[partition] = log
        self._homes[partition] = directory

    def discard(
        self, partition: TopicPartition, directory: DataDirectory, log: Log, delete_at_ms: int
    ) -> None:
        """Close a log that is not the current one of its partition, and have it deleted.

        Durably: or a crash could bring it back when some of its files are gone.
        """
        log.close(clean=False)
        gone = directory.deleted_name(partition, self.new_id())
        self.files.rename(log.directory, gone)
        self._forget_files(log.directory)
        self.files.sync_directory(directory.path)
        self._deleted.append((delete_at_ms, gone))

    def delete_retired(self, now_ms: int) -> int:
        """Remove segments and logs that were deleted long enough ago; how many.

        What cannot be removed now is tried again by the next call. May run in a worker thread.
        """
        count = 0
        self.moves.delete_replaced(now_ms)
        for log in list(self.logs.values()):
            with suppress(StorageError):
                count += log.delete_retired(now_ms)
        for entry in [one for one in self._deleted if one[0] <= now_ms]:
            with suppress(StorageError):
                self.files.remove_tree(entry[1])
                self._deleted.remove(entry)
                count += 1
        return count

    def open_metadata_log(self, config: TopicConfig, now_ms: int) -> Log:
        """The cluster's metadata log, in the first directory. Closed with the others."""
        if self._metadata_log is None:
            directory = self.directories[0]
            if directory.error is not None:
                raise directory.error
            path = f"{directory.path}/{METADATA_LOG}"
            self._metadata_log = self.open_log(METADATA_LOG, directory, path, config, now_ms)
        return self._metadata_log

    def high_watermark(self, partition: TopicPartition) -> int | None:
        """What the last checkpoint says of a partition's high watermark."""
        home = self._homes.get(partition)
        return None if home is None else home.checkpoints.high_watermarks.get(partition)

    def checkpoint(
        self, high_watermarks: Mapping[TopicPartition, int] | None = None
    ) -> list[StorageError]:
        """Write the offsets that a restart begins from; what went wrong. For any one thread.

        A directory that fails goes offline with its logs; one that is merely full does not, as an
        older checkpoint is as good and only makes a scan longer.
        """
        self.names_changed = False
        return self._in_each_directory(lambda one: self.checkpoint_directory(one, high_watermarks))

    def checkpoint_high_watermarks(
        self, high_watermarks: Mapping[TopicPartition, int]
    ) -> list[StorageError]:
        """As `checkpoint`, of the high watermarks alone."""

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
                if not isinstance(error, Shortage):
                    self._take_offline(directory, error)
        return errors

    def checkpoint_directory(
        self,
        directory: DataDirectory,
        high_watermarks: Mapping[TopicPartition, int] | None = None,
    ) -> None:
        """As `checkpoint`, of the logs in one directory; StorageError if it fails."""
        # Collected under the lock: or offsets of before a truncation could be written after it.
        with directory.checkpointing:
            logs = self._logs_in(directory)
            listed = directory.checkpoints.recovery_points
            lost = {
                name: listed.get(name, 0)
                for name, home in list(self.missing.items())
                if home is directory
            }
            # A log that could not be opened keeps its own, for the next start to judge it by.
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
                # Nobody needs what lies before the log start, so it counts as flushed; a log start
                # beyond its recovery point cannot be right.
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
        """The ids of the directories that cannot be used any more, for the controller to know."""
        return [
            directory.meta.directory_id
            for directory in self.directories
            if directory.error is not None and directory.meta is not None
        ]

    @property
    def has_room(self) -> bool:
        """Whether a directory takes records."""
        return any(not directory.room.is_full for directory in self._online())

    def full_directories(self) -> list[bytes]:
        """The ids of the directories that take no records, for the controller to know."""
        return [
            directory.meta.directory_id
            for directory in self._online()
            if directory.room.is_full and directory.meta is not None
        ]

    def describe(self) -> list[DirectoryState]:
        """Each directory with its logs, and the room its disk has."""
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
                one.log for one in self.moves.futures.values() if one.directory is directory
            )
            states.append(
                DirectoryState(
                    directory.path, error, total, usable, logs, futures, directory.room.is_full
                )
            )
        return states

    @property
    def previous_broker_epoch(self) -> int:
        """The epoch of the broker's last run, if that shut down cleanly in every directory; or -1.

        A directory that is missing, new or from another time tells that logs may lack records.
        """
        epochs = {
            one.broker_epoch if one.clean and one.error is None else -1 for one in self.directories
        }
        return epochs.pop() if len(epochs) == 1 else -1

    def close(
        self,
        *,
        clean: bool = True,
        high_watermarks: Mapping[TopicPartition, int] | None = None,
        broker_epoch: int = -1,
    ) -> None:
        """Close every log and let go of the directories.

        If `clean`, each directory whose logs were all flushed is marked with the epoch of this run,
        and is not scanned when opened again; one where something failed is not marked.
        """
        for directory in self.directories:
            sound = clean and directory.error is None
            for log in self._logs_in(directory):
                self.close_log(log, clean=clean)
                sound = sound and log.offline is None
            if sound and not any(self._homes[name] is directory for name in self.failed):
                self._try(directory, self.checkpoint_directory, directory, high_watermarks)
                if directory.error is None:
                    self._try(directory, directory.mark_clean, broker_epoch)
        if clean:
            self.moves.close()
        self._release()

    @staticmethod
    def close_log(log: Log, *, clean: bool = True) -> None:
        """Close one log, before `close`; several threads may do so for different logs."""
        with suppress(KafkaError):  # It is offline then, which `close` sees.
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
    """Write those of the logs. One that is not given has no replica yet, and keeps its old one."""
    written = directory.checkpoints.high_watermarks
    known = ChainMap(dict(high_watermarks), written)
    names = [*(log.topic_partition for log in logs), *failed]
    directory.write_high_watermarks({name: known[name] for name in names if name in known})
