"""A data directory: its lock, its owner in `meta.properties`, and the checkpoints of its logs.

Rule: the clean-shutdown marker is written last of all and is durably removed before a log is
opened, so it exists only if every log in the directory was flushed and closed.
"""

import logging
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock as Mutex

from headrace.errors import ConfigError, ErrorCode, KafkaError, StorageError
from headrace.storage.checkpoints import (
    BOOT_ID,
    CLEAN_OFFSETS,
    CLEAN_SHUTDOWN,
    HIGH_WATERMARKS,
    META_COPY,
    META_PROPERTIES,
    RECOVERY_POINTS,
    MetaProperties,
    decode_clean_shutdown,
    decode_meta,
    decode_offsets,
    encode_clean_shutdown,
    encode_meta,
    encode_meta_checksum,
    encode_offsets,
    has_meta_checksum,
)
from headrace.storage.disk_space import DiskSpace
from headrace.storage.files import AccessDenied, DirectoryLock, Files, ResourceShortage
from headrace.storage.log_start_offsets import (
    read_log_start_offsets,
    write_log_start_offsets,
)
from headrace.types import TopicPartition

logger = logging.getLogger(__name__)

LOCK = ".lock"
METADATA_LOG = TopicPartition("__cluster_metadata", 0)
DELETE_SUFFIX = "-delete"
FUTURE_SUFFIX = "-future"
# The suffix under which a damaged file is kept when it is replaced.
DAMAGED_SUFFIX = "-damaged"

NAME_BYTES_MAX = 255


@dataclass(slots=True)
class OffsetCheckpoints:
    """Offsets of the logs in a directory as of the last checkpoint."""

    recovery_points: dict[TopicPartition, int]
    log_start_offsets: dict[TopicPartition, int]
    high_watermarks: dict[TopicPartition, int]
    clean_offsets: dict[TopicPartition, int]

    def forget(self, partition: TopicPartition) -> None:
        """Drop the offsets of a partition, whose name may get a new log."""
        for offsets in (
            self.recovery_points,
            self.log_start_offsets,
            self.high_watermarks,
            self.clean_offsets,
        ):
            offsets.pop(partition, None)


class DataDirectory:
    """A directory of logs. `error` is the failure that took it offline, or None."""

    def __init__(
        self, files: Files, path: str, reserved_bytes: int = 0, warn_percent: int = 100
    ) -> None:
        self.path = path
        self.room = DiskSpace(files, path, reserved_bytes, warn_percent)
        self.error: StorageError | None = None
        self.meta: MetaProperties | None = None
        self.checkpoints = OffsetCheckpoints({}, {}, {}, {})
        self.clean = False
        # The broker epoch in the clean-shutdown marker of the last run, -1 without a marker.
        self.broker_epoch = -1
        # Whether the machine was not rebooted since the directory was last written to: then no
        # written byte is missing, whether it was flushed or not.
        self.same_boot = False
        self.log_count = 0
        self.checkpointing = Mutex()
        self._files = files
        self._lock: DirectoryLock | None = None

    def lock(self) -> None:
        """Make the directory if missing and lock it; ConfigError if another process has it."""
        self._make()
        self._lock = self._files.lock(f"{self.path}/{LOCK}")
        if self._lock is None:
            raise ConfigError(
                f"the data directory {self.path} is in use by another process: stop that one, or"
                " give each its own log.dirs"
            )
        self.room.open()

    def _make(self) -> None:
        """Make the directory and its parents, durably.

        All parents are flushed as long as there is no `meta.properties`: an earlier start may have
        made them and ended before they were.
        """
        is_new = not self._files.exists(self.path)
        self._files.make_directory(self.path)
        if is_new:
            # One that an administrator has made keeps the mode that it was given.
            self._files.make_private(self.path)
        if self._files.exists(f"{self.path}/{META_PROPERTIES}"):
            return
        path = self.path
        while not self._files.is_mount_point(path):
            parent = os.path.dirname(path) or "."
            if parent == path:
                break
            # Whoever may not read a directory cannot flush it.
            with suppress(AccessDenied):
                self._files.sync_directory(parent)
            path = parent

    def read_meta(self) -> None:
        """Read `meta.properties`; ConfigError if it is damaged and there is no copy."""
        path = f"{self.path}/{META_PROPERTIES}"
        self.meta, problem = self._decode_meta(path)
        if self.meta is None:
            self.meta, _ = self._decode_meta(f"{self.path}/{META_COPY}")
            if self.meta is not None:
                self._restore_meta(path, problem)
            elif problem:
                raise ConfigError(
                    f"{path} is damaged: {problem}; and it has no copy. Restore it from a backup."
                    " Without one, remove it: the directory then gets a new id, and the cluster"
                    " may take the replicas in it for lost and fetch them again from others"
                )
            elif self.log_directories():
                logger.warning(
                    "%s is missing, and the directory has logs: it gets a new id, and the cluster"
                    " may take the replicas in it for lost and fetch them again from others",
                    path,
                )

    def _decode_meta(self, path: str) -> tuple[MetaProperties | None, str]:
        """The properties in a file, or None and the problem with it; no problem if missing."""
        data = self._files.read_bytes(path)
        try:
            return (None if data is None else decode_meta(data)), ""
        except ValueError as error:
            return None, str(error) or "it is empty"

    def _restore_meta(self, path: str, problem: str) -> None:
        assert self.meta is not None
        if problem:
            self._files.rename(path, path + DAMAGED_SUFFIX)
        self._files.write_atomically(path, encode_meta(self.meta))
        content = f"is damaged: {problem}" if problem else "is missing"
        logger.warning("%s %s; it is made again from its copy, %s", path, content, META_COPY)

    def _keep_copy(self, path: str) -> None:
        """Add a checksum to `meta.properties`, if Kafka wrote it without, and write its copy."""
        assert self.meta is not None
        data = self._files.read_bytes(path) or b""
        if not has_meta_checksum(data):
            line = encode_meta_checksum(self.meta)
            self._files.write_atomically(path, data.rstrip() + b"\n" + line)
        copy = f"{self.path}/{META_COPY}"
        if self._files.read_bytes(copy) != encode_meta(self.meta):
            self._files.write_atomically(copy, encode_meta(self.meta))

    def claim(self, cluster_id: str, node_id: int, new_id: Callable[[], bytes]) -> None:
        """Check that the directory belongs to this node; a new directory gets its properties."""
        path = f"{self.path}/{META_PROPERTIES}"
        if self.meta is None:
            self.meta = MetaProperties(cluster_id, node_id, new_id())
            self._files.write_atomically(path, encode_meta(self.meta))
        for name, ours, theirs in (
            ("cluster.id", cluster_id, self.meta.cluster_id),
            ("node.id", node_id, self.meta.node_id),
        ):
            if ours != theirs:
                raise ConfigError(
                    f"{path} says {name}={theirs}, this broker has {name}={ours}: set {name} to"
                    f" {theirs}, or point log.dirs at another directory"
                )
        with suppress(ResourceShortage):  # The next start tries again.
            self._keep_copy(path)

    def load(self) -> None:
        """Read the checkpoints, and read and remove the clean-shutdown marker."""
        self.checkpoints = OffsetCheckpoints(
            self._read_offsets(RECOVERY_POINTS),
            self._load_log_start_offsets(),
            self._read_offsets(HIGH_WATERMARKS),
            self._read_offsets(CLEAN_OFFSETS),
        )
        self._note_boot()
        marker = f"{self.path}/{CLEAN_SHUTDOWN}"
        data = self._files.read_bytes(marker)
        self.clean = data is not None
        if data is not None:
            # Even a marker that cannot be decoded was made durable only after the logs were.
            try:
                self.broker_epoch = decode_clean_shutdown(data)
            except (ValueError, KeyError, TypeError):
                logger.warning("%s is damaged: the cluster is told of an unclean shutdown", marker)
            self._files.remove(marker)
        # Without a marker too: an earlier start may have removed it and ended before this.
        self._files.sync_directory(self.path)

    def _note_boot(self) -> None:
        """Compare the machine's boot id with that in the file, and write it.

        Not durably: if the file is missing or older, missing bytes count as torn.
        """
        path, boot_id = f"{self.path}/{BOOT_ID}", self._files.boot_id()
        noted = (self._files.read_bytes(path) or b"").decode("ascii", "replace")
        self.same_boot = bool(boot_id) and noted == boot_id
        if noted != boot_id:
            with suppress(ResourceShortage):  # The older boot id does no harm.
                self._files.write_atomically(path, boot_id.encode(), sync=False)

    def _load_log_start_offsets(self) -> dict[TopicPartition, int]:
        """The log start offsets; a problem with their files is logged, and repaired."""
        offsets, problem = read_log_start_offsets(self._files, self.path)
        if problem:
            logger.warning("%s", problem)
        if problem is not None:
            with suppress(ResourceShortage):  # The next start tries again.
                write_log_start_offsets(self._files, self.path, offsets)
        return offsets

    def _read_offsets(self, name: str) -> dict[TopicPartition, int]:
        path = f"{self.path}/{name}"
        data = self._files.read_bytes(path)
        try:
            return decode_offsets(data) if data is not None else {}
        except ValueError as error:
            # Without recovery points every log is scanned whole: slow, but no record is lost.
            logger.warning("%s is damaged: %s; the logs tell what it said", path, error)
            return {}

    def log_directories(self) -> dict[TopicPartition, str]:
        """The partitions that have a log here, with its path; without the metadata log."""
        found = {}
        for name in self._files.list_directories(self.path):
            partition = parse_log_name(name)
            if partition is not None and partition != METADATA_LOG:
                found[partition] = f"{self.path}/{name}"
        return found

    def deleted_directories(self) -> list[str]:
        """The paths of logs that were renamed for deletion and not removed yet."""
        names = self._files.list_directories(self.path)
        return [f"{self.path}/{name}" for name in names if name.endswith(DELETE_SUFFIX)]

    def deleted_partitions(self) -> set[TopicPartition]:
        """The partitions of `deleted_directories`, parsed from their names."""
        names = (os.path.basename(path) for path in self.deleted_directories())
        partitions = (parse_log_name(name.rpartition(".")[0]) for name in names)
        return {partition for partition in partitions if partition}

    def deleted_name(self, partition: TopicPartition, unique: bytes) -> str:
        """The path of a deleted log until it is removed; its name is free for a new topic."""
        tail = f"-{partition.partition}.{unique.hex()}{DELETE_SUFFIX}"
        return f"{self.path}/{partition.topic[: NAME_BYTES_MAX - len(tail)]}{tail}"

    def future_logs(self) -> list[tuple[TopicPartition, str]]:
        """The future logs here: copies of logs that are to move into this directory."""
        names = [
            (name, parse_future_name(name)) for name in self._files.list_directories(self.path)
        ]
        return [(partition, f"{self.path}/{name}") for name, partition in names if partition]

    def future_name(self, partition: TopicPartition, unique: bytes) -> str:
        """The path of a future log; KafkaError if the topic's name is too long for the suffix."""
        name = f"{partition}.{unique.hex()}{FUTURE_SUFFIX}"
        if len(name) > NAME_BYTES_MAX:
            raise KafkaError(
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                f"the name of topic {partition.topic} is too long for its replicas to be moved"
                " between data directories",
            )
        return f"{self.path}/{name}"

    def write_checkpoints(
        self,
        recovery_points: Mapping[TopicPartition, int],
        log_start_offsets: Mapping[TopicPartition, int],
        clean_offsets: Mapping[TopicPartition, int],
    ) -> None:
        """Replace the checkpoints with which recovery and compaction begin, if they changed."""
        written = self.checkpoints
        if recovery_points != written.recovery_points:
            self._write_offsets(RECOVERY_POINTS, recovery_points)
            written.recovery_points = dict(recovery_points)
        if log_start_offsets != written.log_start_offsets:
            write_log_start_offsets(self._files, self.path, log_start_offsets)
            written.log_start_offsets = dict(log_start_offsets)
        if clean_offsets != written.clean_offsets:
            self._write_offsets(CLEAN_OFFSETS, clean_offsets)
            written.clean_offsets = dict(clean_offsets)

    def write_high_watermarks(self, high_watermarks: Mapping[TopicPartition, int]) -> None:
        """Replace the checkpoint of high watermarks if they changed.

        It is not flushed: a replica with a lower high watermark catches up from its leader, while
        every flush delays the appends of all logs on the disk.
        """
        if high_watermarks != self.checkpoints.high_watermarks:
            path = f"{self.path}/{HIGH_WATERMARKS}"
            self._files.write_atomically(path, encode_offsets(high_watermarks), sync=False)
            self.checkpoints.high_watermarks = dict(high_watermarks)

    def _write_offsets(self, name: str, offsets: Mapping[TopicPartition, int]) -> None:
        self._files.write_atomically(f"{self.path}/{name}", encode_offsets(offsets))

    def mark_clean(self, broker_epoch: int = -1) -> None:
        """Write the clean-shutdown marker: every log was flushed and closed by this run."""
        # A run that never registered changed no log, so the epoch of the run before it stands.
        epoch = self.broker_epoch if broker_epoch < 0 else broker_epoch
        self._files.write_atomically(f"{self.path}/{CLEAN_SHUTDOWN}", encode_clean_shutdown(epoch))

    def release(self) -> None:
        """Unlock the directory for other processes."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None


def parse_log_name(name: str) -> TopicPartition | None:
    """The partition of a log's directory: `orders-0`; None for any other name."""
    topic, dash, partition = name.rpartition("-")
    if not (topic and dash and partition.isascii() and partition.isdigit()):
        return None
    return TopicPartition(topic, int(partition)) if str(int(partition)) == partition else None


def parse_future_name(name: str) -> TopicPartition | None:
    """The partition of a future log: `orders-0.<id>-future`; None for any other name."""
    stem, _, tail = name.rpartition(".")
    return parse_log_name(stem) if tail.endswith(FUTURE_SUFFIX) else None
