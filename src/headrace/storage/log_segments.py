"""The segments of a log: reads over them, retention, the roll policy, and their replacement."""

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from operator import attrgetter, itemgetter
from typing import NamedTuple, Protocol
from zlib import crc32

from headrace.config import TopicConfig
from headrace.errors import CorruptBatch, StorageError
from headrace.protocol.batch import (
    HEADER_SIZE,
    LOG_OVERHEAD,
    BatchHeader,
    batch_size,
    byte_view,
    read_header,
    scan_headers,
)
from headrace.protocol.records import decode_rows
from headrace.storage.aborted_index import AbortedTransaction
from headrace.storage.files import File
from headrace.storage.index import ReadAt, WouldBlock, read_waiting
from headrace.storage.open_files import OpenFiles
from headrace.storage.segment import (
    CLEANED_SUFFIX,
    RELATIVE_OFFSET_MAX,
    SWAP_SUFFIX,
    ReadRows,
    Segment,
    TimestampOffset,
)
from headrace.types import Buffer, TopicPartition

# Reading a log: from an offset to batches, and from a timestamp to an offset.
#
# Rule: these functions use only their arguments, the segments and the end offset as they were when
# the caller took them, so that they can run in a worker thread while the owner appends.


_BASE_OFFSET = attrgetter("base_offset")
_HINTS_MAX = 128


class LogRead(NamedTuple):
    """The result of a read: batches as in the file. The last may be incomplete."""

    records: Buffer
    segment_base_offset: int
    position: int

    def cut_before(self, end_offset: int) -> "LogRead":
        """The batches of the read that end before `end_offset`, as long as they are contiguous."""
        records = byte_view(self.records)
        headers, _ = sound_headers(records)
        size = 0
        for header in headers:
            if header.next_offset > end_offset:
                break
            size = header.position + header.size
        return self._replace(records=records[:size])


class PositionHints:
    """Positions of recently appended and read batches, so that most reads need no search.

    Owned by one thread; others may call `get` at the same time.
    """

    __slots__ = ("_positions",)

    def __init__(self) -> None:
        self._positions: dict[int, int] = {}

    def add(self, offset: int, position: int) -> None:
        """Remember that the batch at `offset` begins at `position` of its segment."""
        positions = self._positions
        positions[offset] = position
        if len(positions) > _HINTS_MAX:
            del positions[next(iter(positions))]

    def get(self, offset: int) -> int | None:
        """The position of the batch that begins at `offset`."""
        return self._positions.get(offset)

    def clear(self) -> None:
        """Forget all positions, because files are about to change."""
        self._positions = {}


def read_cached(file: File, position: int, size: int) -> Buffer:
    """Read from the page cache; WouldBlock if it does not hold all bytes."""
    data = file.read_cached(position, size)
    if data is None:
        raise WouldBlock
    return data


def sound_headers(records: Buffer) -> tuple[list[BatchHeader], CorruptBatch | None]:
    """The headers of the whole batches before the first corrupt one, and its error, if any."""
    try:
        return scan_headers(records), None
    except CorruptBatch as error:
        headers: list[BatchHeader] = []
        end = 0
        with suppress(CorruptBatch):
            while end + HEADER_SIZE <= len(records):
                header = read_header(records, end)
                end += header.size
                if end <= len(records):
                    headers.append(header)
        return headers, error


def segment_index(segments: Sequence[Segment], offset: int) -> int:
    """The index of the segment that `offset` belongs to, -1 if it is before all segments."""
    if offset >= segments[-1].base_offset:
        return len(segments) - 1  # The usual case: most readers are near the end.
    return bisect_right(segments, offset, key=_BASE_OFFSET) - 1


def read_batches(
    segments: Sequence[Segment],
    hints: PositionHints,
    offset: int,
    max_bytes: int,
    max_offset: int | None,
    active_size: int,
    *,
    at_least_one: bool,
    read: ReadAt = read_waiting,
) -> LogRead:
    """Read batches of one segment, from the batch that holds `offset` up to `max_offset`.

    `active_size` is the size of the last segment, taken before the end offset: bytes behind it may
    be of offsets that the caller has not checked. Without `max_offset` it is the only limit.
    """
    index = max(segment_index(segments, offset), 0)
    last = len(segments) - 1
    while True:
        segment = segments[index]
        limit = active_size if index == last else segment.size
        position = hints.get(offset) if offset >= segment.base_offset else 0
        if position is None or position > limit:
            position = segment.position_of(offset, limit, read)
        if position < limit or index == last:
            break
        index += 1
    if max_offset is not None and (index == last or max_offset < segments[index + 1].base_offset):
        end = hints.get(max_offset) if max_offset > segment.base_offset else 0
        limit = segment.position_of(max_offset, limit, read) if end is None else min(end, limit)
    if position >= limit:
        return LogRead(b"", segment.base_offset, position)
    file = segment.file()
    wanted = min(max(max_bytes, LOG_OVERHEAD), limit - position)
    records = read(file, position, wanted)
    size = batch_size(records) if len(records) == wanted else 0
    if not LOG_OVERHEAD < size <= limit - position:
        raise CorruptBatch("no whole batch", path=segment.log_path, position=position)
    if size > max_bytes:
        if not at_least_one:
            return LogRead(b"", segment.base_offset, position)
        if size > len(records):
            records = read(file, position, size)
    return LogRead(records, segment.base_offset, position)


def find_aborted(
    segments: Sequence[Segment], start: int, end: int, read: ReadAt = read_waiting
) -> list[AbortedTransaction]:
    """The aborted transactions that have offsets in [start, end), in the order they ended."""
    found: list[AbortedTransaction] = []
    # The entry of a transaction is in the segment of its marker, perhaps far behind its records.
    for segment in segments[max(segment_index(segments, start), 0) :]:
        if len(segment.aborted):
            some, is_last = segment.aborted.overlapping(start, end, read)
            found += some
            if is_last:
                break
    return found


def find_timestamp(
    segments: Sequence[Segment], timestamp: int, start_offset: int, rows: ReadRows = decode_rows
) -> TimestampOffset | None:
    """The first record from `start_offset` on whose timestamp is not before `timestamp`."""
    for segment in segments[max(segment_index(segments, start_offset), 0) :]:
        if segment.max_timestamp >= timestamp:
            found = segment.find_timestamp(timestamp, start_offset, rows)
            if found is not None:
                return found
    return None


def find_max_timestamp(
    segments: Sequence[Segment], start_offset: int, rows: ReadRows = decode_rows
) -> TimestampOffset | None:
    """The first record of the largest timestamp, from `start_offset` on."""
    first, *others = segments[max(segment_index(segments, start_offset), 0) :]
    largest = [(first.max_timestamp_from(start_offset, rows), first)]
    largest += [(segment.max_timestamp, segment) for segment in others]
    timestamp, segment = max(largest, key=itemgetter(0))
    return segment.find_timestamp(timestamp, start_offset, rows) if timestamp >= 0 else None


# Retention: segments to delete because of their age, the log's size, or the log start offset.
#
# Rule: whole segments from the oldest on, and none that has a record above the high watermark.


_UNITS = ((86_400_000, "days"), (3_600_000, "hours"), (60_000, "minutes"), (1000, "seconds"))


class Expiry(NamedTuple):
    """The reason for the deletion of a segment, as text for the broker's log.

    `advice` is empty unless the records were past `retention.ms` already when they were appended.
    """

    reason: str
    advice: str = ""


class RetainedSegment(Protocol):
    """A segment's properties for retention: its size, its largest timestamp, its last write."""

    @property
    def base_offset(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def max_timestamp(self) -> int: ...
    def modified_ms(self) -> int: ...


def expired(
    segments: Sequence[RetainedSegment],
    config: TopicConfig,
    now_ms: int,
    *,
    log_start_offset: int,
    log_end_offset: int,
    high_watermark: int,
) -> list[Expiry]:
    """The reasons to delete segments, one for each from the oldest on, perhaps even the active."""
    deletes = "delete" in config.cleanup_policy
    log_bytes = sum(segment.size for segment in segments)
    found: list[Expiry] = []
    for index, segment in enumerate(segments):
        is_active = index == len(segments) - 1
        end_offset = log_end_offset if is_active else segments[index + 1].base_offset
        if end_offset > high_watermark or (is_active and not segment.size):
            break
        expiry = None
        if not is_active and end_offset <= log_start_offset:
            expiry = Expiry(
                f"it ends at offset {end_offset}, and the log start offset is {log_start_offset}"
            )
        elif deletes:
            expiry = _by_size(segment, log_bytes, config) or _by_age(segment, config, now_ms)
        if expiry is None:
            break
        log_bytes -= segment.size
        found.append(expiry)
    return found


def _by_size(segment: RetainedSegment, log_bytes: int, config: TopicConfig) -> Expiry | None:
    limit = config.retention_bytes
    if limit < 0 or log_bytes <= limit or log_bytes - segment.size < limit:
        return None
    return Expiry(
        f"the log has {log_bytes} bytes, and without this segment at least the {limit} bytes of"
        " retention.bytes"
    )


def _by_age(segment: RetainedSegment, config: TopicConfig, now_ms: int) -> Expiry | None:
    limit = config.retention_ms
    if limit < 0:
        return None
    timestamp = segment.max_timestamp
    compared = timestamp if timestamp >= 0 else segment.modified_ms()
    age_ms = now_ms - compared
    if age_ms <= limit:
        return None
    setting = f"retention.ms is {limit} ({_duration(limit)})"
    if timestamp < 0:
        return Expiry(
            f"its records have no timestamp, its file was last written at {_time(compared)},"
            f" {_duration(age_ms)} ago, and {setting}"
        )
    reason = (
        f"its largest record timestamp, {_time(compared)}, is {_duration(age_ms)} old, and"
        f" {setting}"
    )
    appended_ms = segment.modified_ms()
    if appended_ms - timestamp <= limit:
        return Expiry(reason)
    return Expiry(
        reason,
        f"they were appended {_duration(max(now_ms - appended_ms, 0))} ago with producer timestamps"
        f" that were {_duration(appended_ms - timestamp)} old by then, so they were past"
        " retention.ms from the start. To keep such records, set the topic's retention.ms to more"
        " than their age (or to -1), or message.timestamp.type=LogAppendTime, which counts from"
        " the time of the append",
    )


def _duration(duration_ms: int) -> str:
    for unit_ms, unit in _UNITS:
        if duration_ms >= unit_ms:
            return f"{duration_ms / unit_ms:.1f} {unit}"
    return f"{duration_ms} ms"


def _time(timestamp_ms: int) -> str:
    """A timestamp in ISO 8601, or as a number if it is beyond the calendar."""
    try:
        return datetime.fromtimestamp(timestamp_ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return str(timestamp_ms)


class RollPolicy:
    """The limits of an active segment: its size and age, by the topic's settings."""

    __slots__ = ("_age_ms_max", "_bytes_max")

    def __init__(self, name: TopicPartition, base_offset: int, config: TopicConfig) -> None:
        self._bytes_max = config.segment_bytes
        # From the name, not random, so that a simulation can be replayed; it differs between logs.
        jitter_ms = crc32(f"{name}-{base_offset}".encode()) % (config.segment_jitter_ms + 1)
        segment_ms = config.segment_ms
        if "compact" in config.cleanup_policy:
            # Only closed segments are compacted.
            segment_ms = min(segment_ms, config.max_compaction_lag_ms)
        self._age_ms_max = segment_ms - min(jitter_ms, segment_ms)

    def must_roll(self, segment: Segment, size: int, last: BatchHeader, now_ms: int) -> bool:
        """Whether to roll `segment` before an append of `size` bytes whose last batch is `last`."""
        if not segment.size:
            return False
        if (
            segment.size + size > self._bytes_max
            or last.last_offset - segment.base_offset > RELATIVE_OFFSET_MAX
            or segment.is_index_full
        ):
            return True
        # By the records' timestamps if they have any: replaying old data makes the same segments.
        first = segment.first_timestamp()
        age_ms = last.max_timestamp - first if first >= 0 else now_ms - segment.created_ms
        return age_ms > self._age_ms_max


# The list of segments: rolling, truncating, replacing and deleting.
#
# Rule: the tuple of segments is replaced, never changed, so a reader in another thread keeps a
# consistent list.


class RetiredSegment(NamedTuple):
    """A segment whose files were renamed for deletion at `delete_at_ms`, and the reason.

    `expiry` is None for a segment that compaction replaced.
    """

    base_offset: int
    size: int
    delete_at_ms: int
    paths: list[str]
    expiry: Expiry | None = None


class Segments:
    """The segments of a log, oldest first. Owned by the thread that owns the log.

    Invariant: there is at least one segment, and base offsets rise. `delete_retired` may run in
    another thread.
    """

    __slots__ = ("_directory", "_open_files", "_retired", "active", "all")

    def __init__(self, open_files: OpenFiles, directory: str, found: Sequence[Segment]) -> None:
        self._open_files = open_files
        self._directory = directory
        self._retired: deque[RetiredSegment] = deque()
        self.all: tuple[Segment, ...] = tuple(found)
        self.active = self.all[-1]
        for segment in self.all[:-1]:
            segment.is_closed = True

    @property
    def size_bytes(self) -> int:
        """The bytes of batches in all segments."""
        # Asked of each of many logs by a scrape, most of which have one segment.
        segments = self.all
        if len(segments) == 1:
            return segments[0].size
        return sum(segment.size for segment in segments)

    def begin(self, base_offset: int, index_bytes_max: int, now_ms: int) -> None:
        """Make a new active segment. After a failure nothing has changed."""
        new = Segment(
            self._open_files,
            self._directory,
            base_offset,
            index_bytes_max=index_bytes_max,
            created_ms=now_ms,
        )
        try:
            new.create()
        except StorageError as error:
            # An empty segment left here would hide records that are appended from now on.
            try:
                new.remove()
            except StorageError as second:
                raise StorageError(f"{error}; and then {second}") from second
            raise
        self.active.allow_close()
        self.active.is_closed = True
        self.all = (*self.all, new)
        self.active = new

    def truncate(self, offset: int) -> int:
        """Remove every batch that reaches `offset` or beyond; return the new end offset."""
        keep = segment_index(self.all, offset) + 1
        assert keep > 0, offset
        for segment in reversed(self.all[keep:]):
            segment.remove()
        self.all = self.all[:keep]
        self.active = self.all[-1]
        return self.active.truncate(offset)

    def restart(self, base_offset: int, index_bytes_max: int, now_ms: int) -> None:
        """Remove every segment and begin a new segment at `base_offset`.

        A log that was empty has either its old or its new segment at any moment. Any other log may
        have both after a crash, until the directory is flushed.
        """
        if len(self.all) == 1 and not self.active.size:
            self.active = self.active.renamed(base_offset, index_bytes_max)
        else:
            for segment in reversed(self.all):
                segment.remove()
            self.begin(base_offset, index_bytes_max, now_ms)
        self.all = (self.active,)

    def has(self, run: Sequence[Segment]) -> bool:
        """Whether `run` consists of successive closed segments of the log."""
        if run[0] not in self.all[:-1]:
            return False
        first = self.all.index(run[0])
        return self.all[first : min(first + len(run), len(self.all) - 1)] == tuple(run)

    def replace(self, old: Sequence[Segment], new: Segment, delete_at_ms: int) -> None:
        """Replace closed segments by `new`, which has the base offset of the first of them.

        After a crash behind the first rename, recovery finishes the replacement.
        """
        first = self.all.index(old[0])
        new.rename_files(CLEANED_SUFFIX, SWAP_SUFFIX)
        retired = [
            RetiredSegment(segment.base_offset, segment.size, delete_at_ms, segment.mark_deleted())
            for segment in old
        ]
        new.rename_files(SWAP_SUFFIX, "")
        new.is_closed = True
        self.all = (*self.all[:first], new, *self.all[first + len(old) :])
        self._retired.extend(retired)

    def retire(self, expiries: Sequence[Expiry], delete_at_ms: int) -> list[RetiredSegment]:
        """Rename the files of the oldest segments, one for each reason; see `delete_retired`."""
        oldest = self.all[: len(expiries)]
        # Removed from the list before the files are renamed, so that no new reader opens them.
        self.all = self.all[len(expiries) :]
        retired = [
            RetiredSegment(
                segment.base_offset, segment.size, delete_at_ms, segment.mark_deleted(), expiry
            )
            for segment, expiry in zip(oldest, expiries, strict=True)
        ]
        self._retired.extend(retired)
        return retired

    def relocate(self, directory: str) -> None:
        """Follow a rename of the log's directory; there must be no retired segments."""
        assert not self._retired, self._directory
        self._directory = directory
        for segment in self.all:
            segment.relocate(directory)

    def delete_retired(self, now_ms: int) -> int:
        """Remove files of retired segments after their delay; return the number of segments.

        Not for two threads at the same time.
        """
        count = 0
        while self._retired and self._retired[0].delete_at_ms <= now_ms:
            for path in self._retired[0].paths:
                self._open_files.files.remove(path)
            self._retired.popleft()
            count += 1
        return count
