"""What tests of storage share: batches, logs in a directory, and a disk that fails on demand."""

import errno
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from headrace.config import TopicConfig
from headrace.errors import StorageError
from headrace.protocol.batch import read_header, scan_headers
from headrace.protocol.records import decode_rows
from headrace.protocol.records import encode_batch as encode
from headrace.storage.files import File, Files, storage_error
from headrace.storage.log import AppendResult, Log
from headrace.types import Buffer, TopicPartition

NAME = TopicPartition("orders", 0)
NOW_MS = 1_700_000_000_000
TOPIC_ID = bytes(range(16))

# Small enough that a few hundred bytes make indexes, rolls and several segments.
SMALL = TopicConfig(segment_bytes=1000, index_interval_bytes=100, retention_ms=-1)


def config(**changes: object) -> TopicConfig:
    """The small configuration with some settings changed."""
    return replace(SMALL, **changes)  # type: ignore[arg-type]


def batch(
    count: int = 1,
    *,
    value: bytes = b"value",
    timestamp: int = NOW_MS,
    producer: tuple[int, int, int] = (-1, -1, -1),
    base_offset: int = 0,
    leader_epoch: int = -1,
) -> bytearray:
    """A batch of `count` records; `producer` is id, epoch and first sequence."""
    producer_id, producer_epoch, base_sequence = producer
    records = [(timestamp + index, None, value, ()) for index in range(count)]
    encoded = encode(
        records,
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
    )
    return bytearray(encoded)


def set_modified(directory: Path) -> None:
    """Have the files of batches be written at the time of the tests' clock."""
    for path in directory.glob("*.log"):
        os.utime(path, (NOW_MS / 1000, NOW_MS / 1000))


def open_log(path: Path, settings: TopicConfig = SMALL, **options: object) -> Log:
    """The log in `path`, opened after a crash unless `clean` is given."""
    files = options.pop("files", None) or Files()
    now_ms = options.pop("now_ms", NOW_MS)
    return Log.open(files, str(path), NAME, settings, now_ms, **options)  # type: ignore[arg-type]


def append(
    log: Log,
    count: int = 1,
    *,
    value: bytes = b"value",
    timestamp: int = NOW_MS,
    producer: tuple[int, int, int] = (-1, -1, -1),
    leader_epoch: int = 0,
    now_ms: int = NOW_MS,
) -> AppendResult:
    """Append one batch as a producer would."""
    data = batch(count, value=value, timestamp=timestamp, producer=producer)
    return log.append(data, [read_header(data)], leader_epoch, now_ms)


def values(records: Buffer) -> list[tuple[int, bytes]]:
    """The offset and value of each record in the whole batches of a read."""
    found = []
    for header in scan_headers(records):
        for record in decode_rows(records, header):
            found.append((record.offset, bytes(record.value or b"")))
    return found


def read_all(log: Log, max_bytes: int = 300) -> list[tuple[int, bytes]]:
    """Every record from the log start on, read as a consumer does: a piece at a time."""
    offset = log.log_start_offset
    found: list[tuple[int, bytes]] = []
    while offset < log.log_end_offset:
        piece = log.read(offset, max_bytes, log.log_end_offset, at_least_one=True)
        records = [value for value in values(piece.records) if value[0] >= offset]
        if not records:
            break
        found += records
        offset = records[-1][0] + 1
    return found


def check_indexes(log: Log) -> None:
    """Every index entry must point at a batch that is what the entry says."""
    for segment in log.segments:
        batches = list(segment.batches(0, segment.size))
        ends = {entry.position: entry.header.last_offset for entry in batches}
        last_key = -1
        for key, position in segment.offset_index.entries():
            assert ends[position] == segment.base_offset + key
            assert key > last_key
            last_key = key
        last_timestamp = -1
        for timestamp, relative in segment.time_index.entries():
            until = [
                entry
                for entry in batches
                if entry.header.last_offset <= segment.base_offset + relative
            ]
            assert timestamp == max(entry.header.max_timestamp for entry in until)
            assert timestamp > last_timestamp
            last_timestamp = timestamp


class FaultyFiles(Files):
    """A disk whose operations fail when `fails` says so: it gets their name and path."""

    def __init__(self) -> None:
        self.fails: Callable[[str, str], int] = lambda _operation, _path: 0
        self.operations: list[tuple[str, str]] = []

    def fail(self, operation: str, suffix: str, number: int = errno.EIO) -> None:
        """From now on let every `operation` on a path with that ending fail."""
        self.fails = lambda name, path: number * (name == operation and path.endswith(suffix))

    def heal(self) -> None:
        self.fails = lambda _operation, _path: 0

    def attempt(self, operation: str, path: str) -> None:
        self.operations.append((operation, path))
        if number := self.fails(operation, path):
            raise fault(operation, path, number)

    def open(self, path: str, *, create: bool = False) -> File:
        self.attempt("open", path)
        return FaultyFile(path, descriptor(path, create), self)

    def rename(self, old: str, new: str) -> None:
        self.attempt("rename", old)
        super().rename(old, new)

    def remove(self, path: str) -> None:
        self.attempt("remove", path)
        super().remove(path)

    def sync_directory(self, path: str) -> None:
        self.attempt("sync_directory", path)
        super().sync_directory(path)


class FaultyFile(File):
    """An open file of `FaultyFiles`. A write that fails leaves half of its bytes, as a disk may."""

    def __init__(self, path: str, fd: int, faulty: FaultyFiles) -> None:
        super().__init__(path, fd)
        self.faulty = faulty

    def read_at(self, position: int, size: int) -> bytes:
        self.faulty.attempt("read", self.path)
        return super().read_at(position, size)

    def write_at(self, position: int, data: Buffer) -> None:
        try:
            self.faulty.attempt("write", self.path)
        except StorageError:
            super().write_at(position, memoryview(data)[: len(data) // 2])
            raise
        super().write_at(position, data)

    def truncate(self, size: int) -> None:
        self.faulty.attempt("truncate", self.path)
        super().truncate(size)

    def sync(self) -> None:
        self.faulty.attempt("sync", self.path)
        super().sync()


class UnsyncedFiles(Files):
    """The real disk without its slowest part, for tests that open hundreds of logs."""

    def open(self, path: str, *, create: bool = False) -> File:
        return UnsyncedFile(path, descriptor(path, create))

    def sync_directory(self, path: str) -> None:
        pass


class UnsyncedFile(File):
    def sync(self) -> None:
        pass


def descriptor(path: str, create: bool) -> int:
    try:
        return os.open(path, os.O_RDWR | (os.O_CREAT if create else 0), 0o644)
    except OSError as error:
        raise storage_error("open", path, error) from error


def fault(operation: str, path: str, number: int) -> StorageError:
    action = operation.replace("sync_directory", "flush directory").replace("sync", "flush")
    return storage_error(action, path, OSError(number, errno.errorcode[number]))
