"""Start offsets: `log-start-offset-checkpoint`, its copy, and `log-start-offset` of each log.

Rule: records below a log's start count as deleted, so a wrong number is never believed. Kafka's
file has no field for a checksum; the copy beside it has one, and is written first. If the two
differ and the copy is sound, the copy is right. `log-start-offset` is the proof that segments were
removed on purpose: it is durable before they go, so a log that begins later has lost some.
"""

import os
from collections.abc import Mapping
from contextlib import suppress
from struct import Struct
from threading import Lock

from headrace.protocol.batch import crc32c
from headrace.storage.checkpoints import (
    LOG_START,
    LOG_START_OFFSETS,
    decode_offsets,
    encode_offsets,
)
from headrace.storage.files import DiskFull, Files, ResourceShortage
from headrace.storage.open_files import OpenFiles
from headrace.types import TopicPartition

# Not a file of Kafka.
LOG_START_OFFSETS_COPY = f"{LOG_START_OFFSETS}.copy"
_SHOWN_MAX = 3
_NUMBER = Struct(">q")
_CRC = Struct(">I")


def _encode_log_start(offset: int) -> bytes:
    number = _NUMBER.pack(offset)
    return number + _CRC.pack(crc32c(number))


def read_log_start(files: Files, directory: str) -> int | None:
    """The offset below which segments of a log may be gone; None without a sound file.

    Logs of older versions and of Kafka have no such file until they are opened.
    """
    data = files.read_bytes(f"{directory}/{LOG_START}") or b""
    if len(data) != _NUMBER.size + _CRC.size:
        return None
    offset: int = _NUMBER.unpack_from(data)[0]
    return offset if offset >= 0 and data == _encode_log_start(offset) else None


def known_start(files: Files, directory: str, partition: TopicPartition) -> int | None:
    """The offset at or before which a log must begin, by its files and its checkpoint.

    None if neither has it: then the log begins with its first segment.
    """
    noted = read_log_start(files, directory)
    starts, _ = read_log_start_offsets(files, os.path.dirname(directory))
    return None if noted is None else max(noted, starts.get(partition, 0))


class LogStart:
    """The file `log-start-offset` of one log: the offset below which segments may be gone.

    Invariant: on stable storage it is at or above the base offset of the first segment that exists
    on purpose. Safe to use from any thread.
    """

    __slots__ = ("_directory", "_lock", "_open_files", "is_durable", "offset")

    def __init__(self, open_files: OpenFiles, directory: str, offset: int | None) -> None:
        self.offset = -1 if offset is None else offset
        # Whether a loss of power may leave this offset, or an older one, but not nothing.
        self.is_durable = offset is not None
        self._open_files = open_files
        self._directory = directory
        self._lock = Lock()

    def raise_to(self, offset: int) -> None:
        """Raise the offset, durably, before segments below it are removed.

        If the disk has no room for it, the file is removed: then no segment counts as missing.
        """
        with self._lock:
            if offset <= self.offset:
                return
            try:
                self._write(offset)
                self._open_files.get(self._path).sync()
            except DiskFull:
                self._open_files.files.remove(self._path)
                self._open_files.forget(self._path)
                offset = -1
            self._open_files.files.sync_directory(self._directory)
            self.offset, self.is_durable = offset, offset >= 0

    def sync(self) -> None:
        """Make the file durable; the caller flushes the log's directory, too."""
        with self._lock:
            self._open_files.files.sync_file(self._path)
            self.is_durable = True

    def settle_at(self, offset: int) -> None:
        """Set the offset to the base offset of the log's first segment.

        Not durably: a loss of power leaves an older one, below which nothing was removed since.
        """
        with self._lock:
            if offset != self.offset:
                with suppress(
                    ResourceShortage
                ):  # Without it a lost segment is not missed, but no more.
                    self._write(offset)
                    self.offset = offset

    def relocate(self, directory: str) -> None:
        """Follow a rename of the log's directory."""
        self._directory = directory

    @property
    def _path(self) -> str:
        return f"{self._directory}/{LOG_START}"

    def _write(self, offset: int) -> None:
        """Write the offset in one sector, so that it is whole or not at all."""
        self._open_files.get(self._path, create=True).write_at(0, _encode_log_start(offset))


def encode_copy(offsets: Mapping[TopicPartition, int]) -> bytes:
    """The content of the copy: the checkpoint, and its checksum in the last line."""
    content = encode_offsets(offsets)
    return content + b"%08x\n" % crc32c(content)


def decode_copy(data: bytes) -> dict[TopicPartition, int]:
    """The inverse of `encode_copy`; ValueError for anything else."""
    offsets = decode_offsets(data[: data.rstrip(b"\n").rfind(b"\n") + 1])
    if data != encode_copy(offsets):
        raise ValueError(f"the checksum of {LOG_START_OFFSETS_COPY} is not that of its content")
    return offsets


def read_log_start_offsets(
    files: Files, directory: str
) -> tuple[dict[TopicPartition, int], str | None]:
    """The log start offsets of a data directory, and the problem with its files, or None.

    The problem "" means that there is no copy yet, as in a directory written by Kafka.
    """
    path = f"{directory}/{LOG_START_OFFSETS}"
    data = files.read_bytes(path)
    copy_data = files.read_bytes(f"{directory}/{LOG_START_OFFSETS_COPY}")
    try:
        found = None if data is None else decode_offsets(data)
        problem = f"{path} is missing"
    except ValueError as error:
        found, problem = None, f"{path} is damaged: {error}"
    try:
        copy = None if copy_data is None else decode_copy(copy_data)
    except ValueError as error:
        return found or {}, f"{path}.copy is damaged: {error}; it is made again"
    if copy is None:
        if found is None and data is not None:
            return {}, f"{problem}; it has no copy, so logs begin with their first segments"
        return found or {}, "" if found else None
    if found == copy:
        return copy, None
    if found is not None:
        problem = f"{path} is wrong: {_differences(found, copy)}"
    return copy, f"{problem}; it is made again from its copy"


def write_log_start_offsets(
    files: Files, directory: str, offsets: Mapping[TopicPartition, int]
) -> None:
    """Replace the checkpoint and its copy, durably."""
    files.write_atomically(f"{directory}/{LOG_START_OFFSETS_COPY}", encode_copy(offsets))
    files.write_atomically(f"{directory}/{LOG_START_OFFSETS}", encode_offsets(offsets))


def _differences(found: Mapping[TopicPartition, int], copy: Mapping[TopicPartition, int]) -> str:
    names = sorted(name for name in {*found, *copy} if found.get(name, 0) != copy.get(name, 0))
    shown = [
        f"{name} at {found.get(name, 0)} is {copy.get(name, 0)}" for name in names[:_SHOWN_MAX]
    ]
    return ", ".join(shown) + (", ..." if len(names) > _SHOWN_MAX else "")
