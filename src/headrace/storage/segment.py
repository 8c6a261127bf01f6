"""A segment of a log: a file of record batches with its indexes.

Rule: a segment knows positions and timestamps. Which offsets may be read, and when to roll, is
decided by the log.
"""

import logging
from collections.abc import Callable, Iterator
from threading import Lock
from typing import NamedTuple, TypeAlias

from headrace.errors import CorruptBatch, StorageError
from headrace.protocol.batch import HEADER_SIZE, NO_TIMESTAMP, BatchHeader, read_header
from headrace.protocol.records import Record, decode_rows
from headrace.storage.aborted_index import ABORTED_SUFFIX, AbortedIndex
from headrace.storage.checkpoints import SegmentSizes
from headrace.storage.files import File
from headrace.storage.index import (
    OFFSET_ENTRY,
    TIME_ENTRY,
    DamagedIndex,
    ReadAt,
    WouldBlock,
    offset_index,
    read_waiting,
    time_index,
)
from headrace.storage.open_files import OpenFiles
from headrace.types import Buffer

logger = logging.getLogger(__name__)

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
DELETED_SUFFIX = ".deleted"
CLEANED_SUFFIX = ".cleaned"
SWAP_SUFFIX = ".swap"
SUFFIXES = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX)
# With the index of aborted transactions, which most segments do not have.
ALL_SUFFIXES = (*SUFFIXES, ABORTED_SUFFIX)

RELATIVE_OFFSET_MAX = 2**31 - 1

# The records of a batch, which may be encrypted.
ReadRows: TypeAlias = Callable[[Buffer, BatchHeader], list[Record]]

_WALK_BYTES = 4096 + HEADER_SIZE
_LOOKUP_BYTES = 1 << 16
_SCAN_BYTES = 1 << 20
# The distance between the entries of an index that is rebuilt while it is in use.
_REBUILT_INTERVAL_BYTES = 4096
_rebuilding = Lock()


class BatchPosition(NamedTuple):
    """A batch of a segment: its header, the buffer that holds it, its position in the file."""

    header: BatchHeader
    buffer: Buffer
    position: int


class TimestampOffset(NamedTuple):
    """A record found by its timestamp."""

    timestamp: int
    offset: int
    leader_epoch: int


class Segment:
    """An append-only file of record batches, the first at or after `base_offset`.

    Invariant: [0, size) holds whole batches in offset order. Bytes beyond that are a torn write,
    which recovery removes. One thread appends; others may read bytes below a `size` that they took
    before.
    """

    __slots__ = (
        "_bytes_since_entry",
        "_file",
        "_first_timestamp",
        "_indexed_timestamp",
        "_max_timestamp",
        "_max_timestamp_offset",
        "_open_files",
        "aborted",
        "base_offset",
        "created_ms",
        "is_closed",
        "offset_index",
        "path",
        "size",
        "sound_from",
        "time_index",
    )

    def __init__(
        self,
        open_files: OpenFiles,
        directory: str,
        base_offset: int,
        *,
        index_bytes_max: int,
        created_ms: int,
        sizes: tuple[int, int, int] = (0, 0, 0),
        aborted_size: int = 0,
    ) -> None:
        """Describe a segment by its files' sizes: .log, .index and .timeindex, then .txnindex."""
        self.path = f"{directory}/{base_offset:020d}"
        # Whether it is not appended to or truncated, so that any thread may rebuild its indexes.
        self.is_closed = False
        self.base_offset = base_offset
        self.created_ms = created_ms
        self.size = sizes[0]
        self.offset_index = offset_index(
            open_files, self.path + INDEX_SUFFIX, sizes[1], index_bytes_max
        )
        self.time_index = time_index(
            open_files, self.path + TIME_INDEX_SUFFIX, sizes[2], index_bytes_max
        )
        self.aborted = AbortedIndex(open_files, self.path + ABORTED_SUFFIX, aborted_size)
        self._open_files = open_files
        self._file: File | None = None
        # The offset and the position of the first sound batch behind damage. Searches begin there.
        self.sound_from: tuple[int, int] | None = None
        self._bytes_since_entry = 0
        # Read from the files on first use: for most closed segments they are never needed.
        self._first_timestamp: int | None = None
        self._max_timestamp: int | None = None if self.size else NO_TIMESTAMP
        self._max_timestamp_offset = base_offset
        self._indexed_timestamp = NO_TIMESTAMP

    def create(self) -> None:
        """Make empty files, replacing those that a failed attempt may have left."""
        files = self._open_files.files
        for suffix in SUFFIXES:
            files.open(self.path + suffix, create=True).truncate(0)
        files.remove(self.path + ABORTED_SUFFIX)

    @property
    def log_path(self) -> str:
        """The path of the file of batches."""
        return self.path + LOG_SUFFIX

    @property
    def max_timestamp(self) -> int:
        """The largest timestamp in the segment, or -1 if it has none."""
        if self._max_timestamp is None:
            last = self._last_time_entry()
            if last is None:
                self._max_timestamp = NO_TIMESTAMP
            else:
                self._max_timestamp_offset = self.base_offset + last[1]
                self._max_timestamp = self._indexed_timestamp = last[0]
        return self._max_timestamp

    def _last_time_entry(self) -> tuple[int, int] | None:
        """The last entry of the time index, checked against its batch: retention depends on it."""
        try:
            # An entry out of order may be that of a batch, and not of the latest one.
            self.time_index.check(value_max=RELATIVE_OFFSET_MAX)
            last = self.time_index.last()
            if last is None or self._is_of_batch(last):
                return last
        except DamagedIndex:
            last = None
        self._rebuild_wrong_indexes(self.time_index.path)
        try:
            return self.time_index.last()
        except DamagedIndex:
            return None

    def _is_of_batch(self, entry: tuple[int, int]) -> bool:
        """Whether the batch of an entry of the time index has the timestamp of the entry."""
        try:
            header = self._batch_of(entry)
            return header is not None and header.max_timestamp == entry[0]
        except CorruptBatch:
            return True  # The batches are damaged, and the index cannot be rebuilt from them.

    def _batch_of(self, entry: tuple[int, int]) -> BatchHeader | None:
        """The header of the batch of an entry of the time index; None if there is none."""
        offset = self.base_offset + entry[1]
        position = self.position_of(offset, self.size) if entry[1] >= 0 else self.size
        if position >= self.size:
            return None
        header = self._header(self.file().read_at(position, HEADER_SIZE), 0, position)
        return header if header.base_offset <= offset else None

    def age_timestamp(self) -> int:
        """The start of compaction lags: the largest timestamp, or the file's time of last write."""
        timestamp = self.max_timestamp
        return timestamp if timestamp >= 0 else self.modified_ms()

    def modified_ms(self) -> int:
        """The time of the last write to the file of batches, in milliseconds since 1970."""
        return self._open_files.files.modified_ms(self.log_path)

    def first_timestamp(self) -> int:
        """The timestamp of the first batch, or -1."""
        if self._first_timestamp is None:
            if not self.size:
                return NO_TIMESTAMP
            try:
                header = self._header(self.file().read_at(0, HEADER_SIZE), 0, 0)
            except CorruptBatch:
                return NO_TIMESTAMP  # Damage that is for readers and scrubbing to find.
            self._first_timestamp = header.max_timestamp
        return self._first_timestamp

    @property
    def index_bytes(self) -> int:
        """The size of the larger index."""
        return max(self.offset_index.size, self.time_index.size)

    def sizes(self) -> SegmentSizes:
        """The sizes of the files once all index entries are written."""
        return SegmentSizes(
            self.base_offset,
            self.size,
            self.offset_index.size,
            self.time_index.size,
            self.aborted.size,
            self.aborted.checksum(),
        )

    def file(self) -> File:
        """The open file of batches."""
        return self._file if self._file is not None else self._open_files.get(self.log_path)

    def read_from(self, file: File) -> None:
        """Read the batches from an open file, which does not have the segment's name yet."""
        self._file = file

    def hold_open(self) -> File:
        """Open the file and keep it open, for appends, until `allow_close`."""
        if self._file is None:
            self._file = self._open_files.files.open(self.log_path)
        return self._file

    def allow_close(self) -> None:
        """Stop keeping the file open; it is closed when too many files are open."""
        self._file = None

    @property
    def is_index_full(self) -> bool:
        """Whether one of the indexes is full."""
        return self.offset_index.is_full or self.time_index.is_full

    def note_batch(self, header: BatchHeader, position: int, interval: int) -> None:
        """Update timestamps and indexes for a batch that was written at `position`.

        For the active segment this touches memory only, so it cannot fail after the write.
        """
        timestamp = header.max_timestamp
        if position == 0:
            self._first_timestamp = timestamp
        if timestamp > self.max_timestamp:
            self._max_timestamp = timestamp
            self._max_timestamp_offset = header.last_offset
        if self._bytes_since_entry > interval:
            self.offset_index.append(header.last_offset - self.base_offset, position)
            self._note_timestamp()
            self._bytes_since_entry = 0
        self._bytes_since_entry += header.size

    def _note_timestamp(self) -> None:
        timestamp = self.max_timestamp
        if timestamp > self._indexed_timestamp:
            self.time_index.append(timestamp, self._max_timestamp_offset - self.base_offset)
            self._indexed_timestamp = timestamp

    def finish_indexes(self) -> None:
        """Write all index entries; the time index then ends with the largest timestamp."""
        self._note_timestamp()
        self.offset_index.write_pending()
        self.time_index.write_pending()
        self.aborted.write_pending()

    def write_indexes(self) -> None:
        """Write the index entries in memory, if there are enough to be worth a write."""
        if self.offset_index.wants_write:
            self.offset_index.write_pending()
        if self.time_index.wants_write:
            self.time_index.write_pending()

    def sync(self, *, indexes: bool) -> None:
        """Make the batches, and the written index entries, durable. May run in a worker thread."""
        self.file().sync()
        if indexes:
            self.offset_index.sync()
            self.time_index.sync()
            self.aborted.sync()

    def position_of(self, offset: int, limit: int, read: ReadAt = read_waiting) -> int:
        """The position of the first batch that ends at or after `offset`, at most `limit`.

        `limit` is a batch boundary: a `size` of this segment. Raises CorruptBatch at bytes that are
        no batch.
        """
        # A wrong index may cost time, but must not hide data.
        try:
            entry = self.offset_index.floor(offset - self.base_offset, read)
            sound = self.sound_from
            if sound is not None and sound[0] <= offset and (entry is None or entry[1] < sound[1]):
                return self._walk_to(offset, min(sound[1], limit), limit, read)
            if entry is not None:
                return self._walk_from(entry, offset, limit, read)
            is_wrong = False
        except (CorruptBatch, DamagedIndex):
            is_wrong = True
            if read is not read_waiting:
                raise WouldBlock from None  # A rebuild would take too long for the owner's thread.
        position = self._walk_to(offset, 0, limit, read)
        if is_wrong:
            self._rebuild_wrong_indexes(self.offset_index.path)
        return position

    def _walk_from(self, entry: tuple[int, int], offset: int, limit: int, read: ReadAt) -> int:
        """Find a position from an index entry on; DamagedIndex if no batch is at the entry."""
        relative, position = entry
        if 0 <= position <= self.size - HEADER_SIZE:
            header = self._header(read(self.file(), position, HEADER_SIZE), 0, position)
            # From a batch that begins no later than the entry's offset, the walk finds `offset`.
            if header.base_offset - self.base_offset <= relative:
                return self._walk_to(offset, min(position, limit), limit, read)
        raise DamagedIndex(
            f"{self.offset_index.path}: no batch that holds {self.base_offset + relative} is at"
            f" position {position}"
        )

    def _rebuild_wrong_indexes(self, path: str) -> None:
        """Rebuild both indexes from the batches, while other threads may be reading."""
        files = self._open_files.files
        if not files.writable or not _rebuilding.acquire(blocking=False):
            return
        try:
            if not self.is_closed:
                return  # The owner may have been changing the index during the read.
            logger.warning("%s was wrong: it is made again from its segment", path)
            offsets, times = bytearray(), bytearray()
            since_entry, largest, largest_offset, noted = 0, NO_TIMESTAMP, 0, NO_TIMESTAMP
            for header, position in self._headers(0, self.size):
                if header.max_timestamp > largest:
                    largest, largest_offset = header.max_timestamp, header.last_offset
                if since_entry > _REBUILT_INTERVAL_BYTES:
                    offsets += OFFSET_ENTRY.pack(header.last_offset - self.base_offset, position)
                    if largest > noted:
                        times += TIME_ENTRY.pack(largest, largest_offset - self.base_offset)
                        noted = largest
                    since_entry = 0
                since_entry += header.size
            if largest > noted:
                times += TIME_ENTRY.pack(largest, largest_offset - self.base_offset)
            self.offset_index.replace(offsets)
            self.time_index.replace(times)
        except (CorruptBatch, StorageError) as error:
            logger.warning("%s could not be made again: %s", path, error)
        finally:
            _rebuilding.release()

    def _headers(self, position: int, limit: int) -> Iterator[tuple[BatchHeader, int]]:
        """The headers of the batches in [position, limit), with their positions."""
        file = self.file()
        while position + HEADER_SIZE <= limit:
            header = self._header(file.read_at(position, HEADER_SIZE), 0, position)
            yield header, position
            position += header.size

    def _walk_to(self, offset: int, position: int, limit: int, read: ReadAt) -> int:
        file = self.file()
        while position < limit:
            chunk = read(file, position, min(_WALK_BYTES, limit - position))
            at = 0
            while at + HEADER_SIZE <= len(chunk):
                header = self._header(chunk, at, position)
                if header.last_offset >= offset:
                    return position + at
                at += header.size
            if at == 0:
                raise self._corrupt(position, f"only {len(chunk)} bytes left")
            position += at
        return limit

    def batches(
        self, position: int, limit: int, piece: int = _SCAN_BYTES
    ) -> Iterator[BatchPosition]:
        """The whole batches in [position, limit), reading about `piece` bytes at a time.

        Raises CorruptBatch where the next bytes are no batch, or a batch that reaches past `limit`.
        """
        file = self.file()
        while position < limit:
            chunk = file.read_at(position, min(piece, limit - position))
            at = 0
            while at + HEADER_SIZE <= len(chunk):
                header = self._header(chunk, at, position)
                if at + header.size > len(chunk):
                    break
                yield BatchPosition(header, chunk, position + at)
                at += header.size
            if at == 0:
                header = self._header(chunk, 0, position)
                if header.size <= limit - position:
                    chunk = file.read_at(position, header.size)
                if header.size > len(chunk):
                    raise self._corrupt(position, f"a batch of {header.size} bytes is cut short")
                yield BatchPosition(header, chunk, position)
                at = header.size
            position += at

    def find_timestamp(
        self, timestamp: int, start_offset: int, rows: ReadRows = decode_rows
    ) -> TimestampOffset | None:
        """The first record at or after `start_offset` whose timestamp is not before `timestamp`.

        `rows` gives the records of a batch, which may be encrypted.
        """
        try:
            entry = self.time_index.floor(timestamp)
            if entry is not None:
                batch = self._batch_of(entry)
                if batch is None or batch.max_timestamp != entry[0]:
                    raise DamagedIndex(f"{self.time_index.path}: no batch for {entry}")
        except DamagedIndex:
            entry = None
            self._rebuild_wrong_indexes(self.time_index.path)
        offset = max(start_offset, self.base_offset + (entry[1] if entry else 0))
        limit = self.size
        start = self.position_of(offset, limit)
        for header, buffer, _ in self.batches(start, limit, _LOOKUP_BYTES):
            if header.max_timestamp < timestamp or header.last_offset < start_offset:
                continue
            for record in rows(buffer, header):
                if record.timestamp >= timestamp and record.offset >= start_offset:
                    return TimestampOffset(record.timestamp, record.offset, header.leader_epoch)
        return None

    def max_timestamp_from(self, start_offset: int, rows: ReadRows = decode_rows) -> int:
        """The largest timestamp of the records at or after `start_offset`, or -1."""
        largest = self.max_timestamp
        if start_offset <= self.base_offset or self.find_timestamp(largest, start_offset, rows):
            return largest
        # The record that had it is deleted: the remaining batches must be read.
        largest = NO_TIMESTAMP
        start = self.position_of(start_offset, self.size)
        for header, buffer, _ in self.batches(start, self.size):
            if header.base_offset >= start_offset:
                largest = max(largest, header.max_timestamp)
            else:
                kept = (row.timestamp for row in rows(buffer, header) if row.offset >= start_offset)
                largest = max(kept, default=largest)
        return largest

    def load_tail(self, check: Callable[[Buffer, BatchHeader, int], None] | None = None) -> int:
        """Read the timestamps and the end offset of a segment that will be appended to.

        Reads only from the last index entry on. Raises CorruptBatch if the file does not end there
        with whole batches, or if `check` does, which gets each with the offset it should follow on.
        """
        last = self.offset_index.last()
        start = last[1] if last is not None else 0
        if start >= self.size > 0:
            raise self._corrupt(start, "the index points behind the end")
        end_offset = self.base_offset
        for header, buffer, position in self.batches(start, self.size):
            if check is not None:
                if last is not None and position == start:
                    end_offset = header.base_offset
                    if header.last_offset - self.base_offset != last[0]:
                        raise self._corrupt(start, "it is not the batch that the index names")
                check(buffer, header, end_offset)
            end_offset = header.next_offset
            if header.max_timestamp > self.max_timestamp:
                self._max_timestamp = header.max_timestamp
                self._max_timestamp_offset = header.last_offset
            if position == 0:
                self._first_timestamp = header.max_timestamp
        self._bytes_since_entry = self.size - start
        return end_offset

    def reset_indexes(self) -> None:
        """Empty the offset and time indexes, to be filled again with `note_batch`."""
        self.offset_index.reset()
        self.time_index.reset()
        self._bytes_since_entry = 0
        self._first_timestamp = None
        self._max_timestamp = self._indexed_timestamp = NO_TIMESTAMP
        self._max_timestamp_offset = self.base_offset

    def truncate(self, offset: int) -> int:
        """Remove every batch that reaches `offset` or beyond; return the new end offset."""
        self.is_closed = False
        with _rebuilding:
            pass  # Taken only to wait for the end of a rebuild; no other rebuild begins.
        position = self.position_of(offset, self.size)
        self.sound_from = None
        # The indexes first: an entry that points behind the end would be damage.
        try:
            self.offset_index.truncate(0, offset - self.base_offset)
            self.time_index.truncate(1, offset - self.base_offset)
        except DamagedIndex as error:
            logger.warning("%s: its entries are dropped", error)
            self.reset_indexes()
        self.aborted.truncate(offset)
        self.file().truncate(position)
        self.size = position
        # The largest timestamp may be removed: the tail is read again.
        self._first_timestamp = None
        self._max_timestamp = None if position else NO_TIMESTAMP
        self._indexed_timestamp = NO_TIMESTAMP
        self._max_timestamp_offset = self.base_offset
        return self.load_tail()

    def check_indexes(self) -> None:
        """Raise DamagedIndex if an index cannot belong to this segment."""
        self.offset_index.check(value_max=max(self.size - HEADER_SIZE, 0))
        self.time_index.check(value_max=RELATIVE_OFFSET_MAX)

    def check_aborted(self) -> None:
        """Raise DamagedIndex if the index of aborted transactions cannot be of this segment."""
        self.aborted.check(self.base_offset)

    def renamed(self, base_offset: int, index_bytes_max: int) -> "Segment":
        """Rename this segment, which is empty, to another base offset; return the new segment."""
        assert not self.size and not len(self.offset_index), self.path
        new = Segment(
            self._open_files,
            self.path.rpartition("/")[0],
            base_offset,
            index_bytes_max=index_bytes_max,
            created_ms=self.created_ms,
        )
        for suffix in SUFFIXES:
            self._open_files.files.rename(self.path + suffix, new.path + suffix)
            self._open_files.forget(self.path + suffix)
        return new

    def mark_deleted(self) -> list[str]:
        """Rename the files so that a restart does not load them; return the new names."""
        files = self._open_files.files
        renamed = []
        for suffix in ALL_SUFFIXES:
            path = self.path + suffix
            try:
                files.rename(path, path + DELETED_SUFFIX)
            except StorageError:
                if files.exists(path):
                    raise
            else:
                renamed.append(path + DELETED_SUFFIX)
            self._open_files.forget(path)
        return renamed

    def relocate(self, directory: str) -> None:
        """Follow a rename of the log's directory."""
        self.path = f"{directory}/{self.base_offset:020d}"
        self.offset_index.path = self.path + INDEX_SUFFIX
        self.time_index.path = self.path + TIME_INDEX_SUFFIX
        self.aborted.path = self.path + ABORTED_SUFFIX

    def rename_files(self, old: str, new: str) -> None:
        """Replace the suffix `old` of the files by `new`, the file of batches last."""
        for suffix in reversed(ALL_SUFFIXES):
            if suffix != ABORTED_SUFFIX or len(self.aborted):
                path = self.path + suffix
                self._open_files.files.rename(path + old, path + new)
                self._open_files.forget(path + old)
                self._open_files.forget(path + new)

    def remove(self) -> None:
        """Remove the files at once."""
        for suffix in ALL_SUFFIXES:
            self._open_files.files.remove(self.path + suffix)
            self._open_files.forget(self.path + suffix)

    def _header(self, chunk: Buffer, at: int, position: int) -> BatchHeader:
        """The header at `at` of a chunk read from `position`; CorruptBatch if it cannot be here."""
        try:
            header = read_header(chunk, at)
        except CorruptBatch as error:
            raise self._corrupt(position + at, str(error)) from error
        relative = header.base_offset - self.base_offset
        if not 0 <= relative <= RELATIVE_OFFSET_MAX - header.last_offset_delta:
            raise self._corrupt(position + at, f"offset {header.base_offset} is not of this file")
        return header

    def _corrupt(self, position: int, cause: str) -> CorruptBatch:
        return CorruptBatch(cause, path=self.log_path, position=position)


def index_sizes_fit(index_size: int, time_index_size: int) -> bool:
    """Whether index files of these sizes hold whole entries."""
    return index_size % OFFSET_ENTRY.size == 0 and time_index_size % TIME_ENTRY.size == 0
