"""Logs in a data directory, read by tools without their broker, which may be running.

Rule: nothing is changed, and nothing is locked. Names are listed first and sizes taken after that:
a segment that has a successor by then is closed, so its size is final. The last segment counts up
to its last whole batch; bytes behind it are being written, or were when the broker crashed.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from headrace.errors import CorruptBatch
from headrace.protocol.batch import HEADER_SIZE, BatchHeader, read_header
from headrace.security.batch_encryption import BatchEncryption
from headrace.security.keyring import NO_KEYS, Keyring
from headrace.storage import log_segments
from headrace.storage.aborted_index import ABORTED_SUFFIX, decode_aborted
from headrace.storage.data_directory import METADATA_LOG, parse_log_name
from headrace.storage.files import FileMissing, Files, ReadOnlyFiles
from headrace.storage.future_log import destination_of
from headrace.storage.index import DamagedIndex
from headrace.storage.log_encryption import LogEncryption
from headrace.storage.log_start_offsets import read_log_start_offsets
from headrace.storage.open_files import OpenFiles
from headrace.storage.producer_state import SUFFIX as SNAPSHOT_SUFFIX
from headrace.storage.producer_state import ProducerStates
from headrace.storage.recovery import read_topic_id
from headrace.storage.segment import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    Segment,
    TimestampOffset,
)
from headrace.types import TopicPartition

_INDEX_BYTES_MAX = 2**31 - 1


FILES = ReadOnlyFiles()


class SegmentExtent(NamedTuple):
    """A run of whole batches in a segment's file: [position, limit).

    `file_size` is the size of a closed segment's file, which differs if it was compacted since;
    None for the last segment.
    """

    path: str
    position: int
    limit: int
    file_size: int | None = None


class AbortedRange(NamedTuple):
    """An aborted transaction, whose records are hidden from read_committed."""

    producer_id: int
    first_offset: int
    last_offset: int


@dataclass(frozen=True)
class StoredLog:
    """The log of a partition as it was when opened. Offsets are those a broker would serve."""

    partition: TopicPartition
    segments: tuple[Segment, ...]
    start_offset: int
    end_offset: int
    encryption: LogEncryption

    def find_timestamp(self, timestamp: int) -> TimestampOffset | None:
        """The first record whose timestamp is not before `timestamp`."""
        if self.start_offset >= self.end_offset:
            return None
        return log_segments.find_timestamp(
            self.segments, timestamp, self.start_offset, self.encryption.rows
        )

    def extents(self, start: int, end: int, bytes_max: int | None = None) -> list[SegmentExtent]:
        """The extents of batches with offsets of [start, end), one for each segment.

        With `bytes_max` larger extents are cut into pieces of about that size, by their index.
        """
        found = []
        first = max(log_segments.segment_index(self.segments, start), 0)
        for segment in self.segments[first:]:
            if segment.base_offset >= end:
                break
            position = segment.position_of(start, segment.size)
            limit = segment.position_of(end, segment.size)
            if limit < segment.size:
                header = read_header(segment.file().read_at(limit, HEADER_SIZE), 0)
                limit += header.size if header.base_offset < end else 0
            inner = [] if bytes_max is None else _cuts(segment, position, limit, bytes_max)
            cuts = [position, *inner, limit]
            size = None if segment is self.segments[-1] else segment.size
            found += [
                SegmentExtent(segment.log_path, begin, stop, size)
                for begin, stop in pairwise(cuts)
                if begin < stop
            ]
        return found

    def last_stable_offset(self) -> int:
        """The first offset of the oldest open transaction, or the end offset.

        It reads the headers of the batches since the newest snapshot of producers.
        """
        if not self.segments:
            return self.end_offset
        producers = ProducerStates()
        offset = _load_snapshot(producers, os.path.dirname(self.segments[0].path), self.end_offset)
        first = max(log_segments.segment_index(self.segments, offset), 0)
        for segment in self.segments[first:]:
            for header, data in _headers(segment, segment.position_of(offset, segment.size)):
                producers.replay(header, data)
        unstable = producers.transactions.first_open
        return self.end_offset if unstable is None else max(unstable, self.start_offset)

    def aborted(self, start: int, end: int) -> list[AbortedRange]:
        """The aborted transactions with records in [start, end), from the indexes."""
        found = []
        first = max(log_segments.segment_index(self.segments, start), 0)
        for segment in self.segments[first:]:
            path = segment.path + ABORTED_SUFFIX
            for entry in decode_aborted(FILES.read_bytes(path) or b"", path):
                if entry.first_offset < end and entry.last_offset >= start:
                    found.append(AbortedRange(*entry[:3]))
        return found


def stored_partitions(directory: str) -> dict[TopicPartition, str]:
    """The partitions that have a log in a data directory, with the path of the log."""
    found = {}
    for name in FILES.list_directories(directory):
        partition = parse_log_name(name)
        if partition is not None and partition != METADATA_LOG:
            found[partition] = f"{directory}/{name}"
    return dict(sorted(found.items()))


def stored_log_starts(directory: str) -> dict[TopicPartition, int]:
    """The checkpointed log start offsets; other logs begin with their first segment."""
    offsets, _ = read_log_start_offsets(FILES, directory)
    return offsets


def current_logs(directories: Iterable[str]) -> dict[TopicPartition, tuple[str, int]]:
    """The partitions in all data directories of a broker, with path and start of each log.

    A replica that has just moved has a log in two of them; the older has `move.metadata`.
    """
    found: dict[TopicPartition, tuple[str, int]] = {}
    for directory in directories:
        starts = stored_log_starts(directory)
        for partition, path in stored_partitions(directory).items():
            known = found.get(partition)
            if known is None or destination_of(FILES, known[0]) is not None:
                found[partition] = (path, starts.get(partition, 0))
    return found


def encryption_of(
    partition: TopicPartition, directory: str, keyring: Keyring = NO_KEYS
) -> LogEncryption:
    """The decryptor of the encrypted batches of the log in a directory."""
    encryption = BatchEncryption(keyring, os.urandom)
    return LogEncryption(encryption, partition, lambda: read_topic_id(FILES, directory))


def open_stored(
    partition: TopicPartition, directory: str, log_start: int = 0, keyring: Keyring = NO_KEYS
) -> StoredLog:
    """Open the log in a directory; FileMissing if the directory does not exist.

    Raises CorruptBatch if the last segment has bytes that are no batch. The keys are for a search
    by time alone, which reads records.
    """
    segments = stored_segments(directory)
    encryption = encryption_of(partition, directory, keyring)
    if not segments:
        return StoredLog(partition, (), log_start, log_start, encryption)
    end_offset = _cut_to_whole_batches(segments[-1])
    start_offset = max(log_start, segments[0].base_offset)
    return StoredLog(
        partition, tuple(segments), start_offset, max(end_offset, start_offset), encryption
    )


def open_segment(
    directory: str, base_offset: int, sizes: tuple[int, int, int], files: Files = FILES
) -> Segment:
    """A segment to read from. `sizes` are those of the files .log, .index and .timeindex."""
    return Segment(
        OpenFiles(files),
        directory,
        base_offset,
        index_bytes_max=_INDEX_BYTES_MAX,
        created_ms=0,
        sizes=sizes,
    )


def base_offset_of(stem: str) -> int | None:
    """The base offset in a file's name of twenty digits; None for any other name."""
    return int(stem) if len(stem) == 20 and stem.isascii() and stem.isdigit() else None


def stored_segments(directory: str, files: Files = FILES) -> list[Segment]:
    """The segments in a directory, oldest first."""
    names = files.list_directory(directory)
    sizes = files.file_sizes(directory)
    found = []
    for name in names:
        stem, suffix = os.path.splitext(name)
        base_offset = base_offset_of(stem)
        # A file without a size was deleted a moment ago.
        if suffix == LOG_SUFFIX and base_offset is not None and name in sizes:
            size = sizes[name]
            index_size = sizes.get(stem + INDEX_SUFFIX, 0)
            time_index_size = sizes.get(stem + TIME_INDEX_SUFFIX, 0)
            found.append(
                open_segment(directory, base_offset, (size, index_size, time_index_size), files)
            )
    return found


def _cut_to_whole_batches(segment: Segment) -> int:
    """Exclude the bytes behind the last whole batch; return the end offset."""
    size = segment.size
    end_offset, end = segment.base_offset, 0
    # An index that is wrong, or ahead of the batches, must not hide batches.
    with suppress(CorruptBatch, DamagedIndex, FileMissing):
        last = segment.offset_index.last()
        if last is not None:
            end_offset, end = _walk(segment, last[1], size)
    if end_offset == segment.base_offset:
        end_offset, end = _walk(segment, 0, size)
    segment.size = end
    return end_offset


def _load_snapshot(producers: ProducerStates, directory: str, end_offset: int) -> int:
    """Load the newest sound snapshot of producers up to `end_offset`; return its offset, or 0."""
    names = [name for name in FILES.list_directory(directory) if name.endswith(SNAPSHOT_SUFFIX)]
    found = [(base_offset_of(name.removesuffix(SNAPSHOT_SUFFIX)), name) for name in names]
    for offset, name in reversed(found):
        if offset is not None and offset <= end_offset:
            with suppress(ValueError):
                producers.load_snapshot(FILES.read_bytes(f"{directory}/{name}") or b"", offset)
                return offset
    return 0


def _headers(segment: Segment, position: int) -> Iterator[tuple[BatchHeader, bytes]]:
    """The headers of a segment's batches from `position` on, with the bytes of control batches."""
    file = segment.file()
    while position < segment.size:
        data = file.read_at(position, HEADER_SIZE)
        header = read_header(data, 0)
        yield header, file.read_at(position, header.size) if header.is_control else data
        position += header.size


def _walk(segment: Segment, position: int, size: int) -> tuple[int, int]:
    """The end offset of the last whole batch, and its end position."""
    end_offset = segment.base_offset
    file = segment.file()
    while size - position >= HEADER_SIZE:
        data = file.read_at(position, HEADER_SIZE)
        if len(data) < HEADER_SIZE:
            break
        try:
            header = read_header(data, 0)
        except CorruptBatch as error:
            raise CorruptBatch(str(error), path=segment.log_path, position=position) from None
        if header.size > size - position:
            break
        if header.base_offset < end_offset:
            raise CorruptBatch(
                f"{segment.log_path} at position {position}: offset {header.base_offset} follows"
                f" {end_offset - 1}"
            )
        end_offset = header.next_offset
        position += header.size
    return end_offset, position


def _cuts(segment: Segment, position: int, limit: int, bytes_max: int) -> Iterator[int]:
    """Positions of batches that cut [position, limit) into pieces, as far as the index has any."""
    at = position
    while at + 2 * bytes_max <= limit:
        try:
            entry = segment.offset_index.ceiling_of_value(at + bytes_max)
            if entry is None or entry[1] >= limit:
                return
            relative, at = entry
            header = read_header(segment.file().read_at(at, HEADER_SIZE), 0)
        except (CorruptBatch, DamagedIndex, FileMissing):
            return
        # If no such batch is there the index is wrong: the piece is larger, but no data is lost.
        if header.last_offset - segment.base_offset != relative:
            return
        yield at
