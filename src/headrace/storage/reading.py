"""Reading a log: from an offset to the bytes that answer a fetch, and from a time to an offset.

Rule: everything here works on what it is given, the segments and the end offset as they were when
the caller took them, so that it can run in a worker thread while the owner appends.
"""

from bisect import bisect_right
from collections.abc import Sequence
from operator import attrgetter, itemgetter
from typing import NamedTuple

from headrace.errors import CorruptBatch
from headrace.protocol.batch import LOG_OVERHEAD, batch_size
from headrace.storage.aborted_index import AbortedTransaction
from headrace.storage.files import File
from headrace.storage.index import ReadAt, WouldBlock, read_waiting
from headrace.storage.segment import Segment, TimestampOffset
from headrace.types import Buffer

_BASE_OFFSET = attrgetter("base_offset")
_HINTS_MAX = 128


class LogRead(NamedTuple):
    """What a read found: batches as they lie in the file. The last one may be cut short."""

    records: Buffer
    segment_base_offset: int
    position: int


class Hints:
    """Where batches lie that were appended or read lately, so that a follower needs no search.

    Owned by one thread; another may call `get` meanwhile.
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
        """Forget all of them: the log was truncated."""
        self._positions = {}


def read_cached(file: File, position: int, size: int) -> Buffer:
    """Read what the page cache holds; WouldBlock if that is not all."""
    data = file.read_cached(position, size)
    if data is None:
        raise WouldBlock
    return data


def segment_index(segments: Sequence[Segment], offset: int) -> int:
    """The index of the segment that `offset` belongs to, -1 if it lies before them all."""
    if offset >= segments[-1].base_offset:
        return len(segments) - 1  # The usual case: readers follow the end.
    return bisect_right(segments, offset, key=_BASE_OFFSET) - 1


def read_batches(
    segments: Sequence[Segment],
    hints: Hints,
    offset: int,
    max_bytes: int,
    max_offset: int | None,
    active_size: int,
    *,
    at_least_one: bool,
    read: ReadAt = read_waiting,
) -> LogRead:
    """Bytes from the batch that holds `offset` on, all of one segment, below `max_offset`.

    `active_size` is the size of the last segment, taken before its end offset was: bytes behind it
    may belong to offsets the caller has not judged. No `max_offset` means up to there.
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
        raise CorruptBatch(f"{segment.log_path} at position {position}: no whole batch")
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
    # A transaction is found where its marker is, which may be segments behind its records.
    for segment in segments[max(segment_index(segments, start), 0) :]:
        if len(segment.aborted):
            some, is_last = segment.aborted.overlapping(start, end, read)
            found += some
            if is_last:
                break
    return found


def find_timestamp(
    segments: Sequence[Segment], timestamp: int, start_offset: int
) -> TimestampOffset | None:
    """The first record from `start_offset` on whose timestamp is not before `timestamp`."""
    for segment in segments[max(segment_index(segments, start_offset), 0) :]:
        if segment.max_timestamp >= timestamp:
            found = segment.find_timestamp(timestamp, start_offset)
            if found is not None:
                return found
    return None


def find_max_timestamp(segments: Sequence[Segment], start_offset: int) -> TimestampOffset | None:
    """The first record of the largest timestamp there is."""
    first, *others = segments[max(segment_index(segments, start_offset), 0) :]
    largest = [(first.max_timestamp_from(start_offset), first)]
    largest += [(segment.max_timestamp, segment) for segment in others]
    timestamp, segment = max(largest, key=itemgetter(0))
    return segment.find_timestamp(timestamp, start_offset) if timestamp >= 0 else None
