"""Reading a log while its owner appends to it, rolls it, and drops segments.

Rule: a reader takes the segments first, then the active one's size, then the end offset; the owner
changes them the other way round. So the bytes a reader takes are always of offsets it has seen.
"""

from collections.abc import Callable
from threading import Lock
from typing import TypeVar

from headrace.errors import CorruptBatch, ErrorCode, KafkaError, StorageError
from headrace.storage import reading
from headrace.storage.aborted_index import AbortedTransaction
from headrace.storage.health import Health
from headrace.storage.index import DamagedIndex, ReadAt, WouldBlock, read_waiting
from headrace.storage.reading import Hints, LogRead, read_cached
from headrace.storage.segment import Segment, TimestampOffset
from headrace.storage.segments import Segments
from headrace.types import TopicPartition

_Found = TypeVar("_Found")


class LogState:
    """What there is to read. Changed by the owner of the log only; anyone may look."""

    __slots__ = (
        "health",
        "hints",
        "log_end_offset",
        "log_start_offset",
        "segments",
        "swapping",
        "swaps",
        "topic_partition",
        "truncations",
    )

    def __init__(
        self,
        topic_partition: TopicPartition,
        segments: Segments,
        log_start_offset: int,
        log_end_offset: int,
    ) -> None:
        self.topic_partition = topic_partition
        self.segments = segments
        self.log_start_offset = log_start_offset
        self.log_end_offset = log_end_offset
        self.health = Health(topic_partition)
        self.hints = Hints()
        # Odd while bytes are being removed: what is read then, or across a change, is no good.
        self.truncations = 0
        # Odd while segments are replaced by what compaction has made of them: what is read then, or
        # across a change, is read again. Whoever replaces them holds the lock.
        self.swaps = 0
        self.swapping = Lock()

    def begin_swap(self) -> None:
        """Before files get other names."""
        self.swaps += 1
        self.hints.clear()

    def end_swap(self) -> None:
        """When the new segments can be read."""
        self.swaps += 1

    def out_of_range(self, offset: int) -> KafkaError:
        """What to tell who asks for an offset that the log does not have."""
        return KafkaError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"{self.topic_partition} has offsets from {self.log_start_offset} to"
            f" {self.log_end_offset}, {offset} was asked for",
        )


class LogReader:
    """The reading side of a log. What is called `cached` is bound to the owner's thread."""

    def __init__(self, state: LogState) -> None:
        self._state = state

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The segments, oldest first."""
        return self._state.segments.all

    @property
    def active(self) -> Segment:
        """The segment that is appended to: the last one."""
        return self._state.segments.active

    @property
    def log_start_offset(self) -> int:
        """The offset of the first record that may be read."""
        return self._state.log_start_offset

    @property
    def log_end_offset(self) -> int:
        """The offset that the next record gets."""
        return self._state.log_end_offset

    @property
    def truncations(self) -> int:
        """Differs whenever records were removed from the end of the log, or are right now."""
        return self._state.truncations

    @property
    def size_bytes(self) -> int:
        """The bytes of batches in all segments."""
        return self._state.segments.size_bytes

    @property
    def offline(self) -> StorageError | None:
        """What took the log offline; it serves nothing until it is opened again."""
        return self._state.health.offline

    @property
    def shortage(self) -> StorageError | None:
        """What the last append that failed was short of, such as room on the disk."""
        return self._state.health.shortage

    def read(
        self, offset: int, max_bytes: int, max_offset: int, *, at_least_one: bool = False
    ) -> LogRead:
        """Batches from the one that holds `offset` on, none that reaches `max_offset`.

        At most `max_bytes`, the last batch cut short if need be; but the first whole if
        `at_least_one`. May wait for the disk; may run in a worker thread.
        """
        return self._unless_truncated(
            offset, lambda: self._read(offset, max_bytes, max_offset, at_least_one, read_waiting)
        )

    def read_cached(
        self, offset: int, max_bytes: int, max_offset: int, *, at_least_one: bool = False
    ) -> LogRead | None:
        """As `read`, for the owner's thread: None where the disk would have to be waited for."""
        state = self._state
        try:
            found = self._read(offset, max_bytes, max_offset, at_least_one, read_cached)
        except WouldBlock:
            return None
        except (StorageError, CorruptBatch) as error:
            raise self._failed(error, offset) from error
        if found.records and found.segment_base_offset <= offset:
            state.hints.add(offset, found.position)
        return found

    def aborted_transactions(self, start: int, end: int) -> list[AbortedTransaction]:
        """The aborted transactions that have offsets in [start, end), in the order they ended.

        `end` is not above the last stable offset. May wait for the disk; may run in a worker
        thread.
        """
        return self._unless_truncated(start, lambda: self._aborted(start, end, read_waiting))

    def aborted_transactions_cached(self, start: int, end: int) -> list[AbortedTransaction] | None:
        """As above, for the owner's thread: None where the disk would have to be waited for."""
        try:
            return self._aborted(start, end, read_cached)
        except WouldBlock:
            return None
        except StorageError as error:
            raise self._failed(error, start) from error

    def offset_for_timestamp(self, timestamp: int) -> TimestampOffset | None:
        """The first record whose timestamp is not before `timestamp`.

        May wait for the disk; may run in a worker thread.
        """
        state = self._state
        start = state.log_start_offset
        return self._unless_truncated(
            start, lambda: reading.find_timestamp(state.segments.all, timestamp, start)
        )

    def max_timestamp_offset(self) -> TimestampOffset | None:
        """The first record of the largest timestamp. May wait, may run in a worker thread."""
        state = self._state
        start = state.log_start_offset
        return self._unless_truncated(
            start, lambda: reading.find_max_timestamp(state.segments.all, start)
        )

    def _read(
        self, offset: int, max_bytes: int, max_offset: int, at_least_one: bool, read: ReadAt
    ) -> LogRead:
        state = self._state
        if state.health.down:
            raise state.health.refusal()
        segments = state.segments.all
        size = segments[-1].size
        end_offset = state.log_end_offset
        if not state.log_start_offset <= offset <= end_offset:
            raise state.out_of_range(offset)
        if offset >= min(max_offset, end_offset):
            return LogRead(b"", segments[-1].base_offset, size)
        return reading.read_batches(
            segments,
            state.hints,
            offset,
            max_bytes,
            max_offset if max_offset < end_offset else None,
            size,
            at_least_one=at_least_one,
            read=read,
        )

    def _aborted(self, start: int, end: int, read: ReadAt) -> list[AbortedTransaction]:
        self._state.health.check()
        while True:
            segments = self._state.segments.all
            try:
                found = reading.find_aborted(segments, start, end, read)
            except DamagedIndex:
                # Others may have taken the place of these segments, and of their files.
                if segments is self._state.segments.all:
                    raise
            else:
                if start < self._state.log_start_offset:
                    raise self._state.out_of_range(start)  # Markers may have gone with the records.
                return found

    def _unless_truncated(self, offset: int, find: Callable[[], _Found]) -> _Found:
        state = self._state
        state.health.check()
        truncations = state.truncations
        failure: StorageError | CorruptBatch | None = None
        while True:
            swaps = state.swaps
            try:
                found = find()
            except (StorageError, CorruptBatch) as error:
                failure = error
            if swaps == state.swaps and swaps % 2 == 0:
                break
            failure = None
            with state.swapping:
                pass  # Only waits for the end of the swap.
        if truncations != state.truncations or truncations % 2:
            # Only a follower truncates, so this sends the client to the leader.
            detail = f"{state.topic_partition} was truncated during the read"
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, detail)
        if failure is not None:
            raise self._failed(failure, offset) from failure
        return found

    def _failed(self, error: StorageError | CorruptBatch, offset: int) -> KafkaError:
        if offset < self._state.log_start_offset:
            return self._state.out_of_range(offset)  # Retention dropped it during the read.
        if isinstance(error, CorruptBatch):
            return KafkaError(ErrorCode.CORRUPT_MESSAGE, str(error))
        return self._state.health.failed(error)
