"""A partition's log: append, read, roll, flush, truncate, and whether it can serve.

Rule: bytes below `log_end_offset` are whole batches, bytes below `recovery_point` are on stable
storage. Every failure of the disk leaves as a KafkaError that says which file and what to do.
"""

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Lock
from typing import NamedTuple, TypeVar

from headrace.config import TopicConfig
from headrace.errors import CorruptBatch, ErrorCode, HeadraceError, KafkaError, StorageError
from headrace.protocol.markers import decode_marker
from headrace.protocol.records import (
    NO_TIMESTAMP,
    BatchHeader,
    assign,
    stamp_log_append_time,
)
from headrace.storage import log_segments, recovery
from headrace.storage.aborted_index import AbortedTransaction
from headrace.storage.checkpoints import SEGMENT_SIZES, encode_segment_sizes
from headrace.storage.disk_space import Room
from headrace.storage.files import DiskFull, Files, Shortage, TooManyOpenFiles
from headrace.storage.index import DamagedIndex, ReadAt, WouldBlock, read_waiting
from headrace.storage.log_segments import (
    Hints,
    LogRead,
    Retired,
    RollPolicy,
    Segments,
    read_cached,
    segment_index,
)
from headrace.storage.open_files import OpenFiles
from headrace.storage.segment import Segment, TimestampOffset
from headrace.types import Buffer, TopicPartition

# Whether a log can serve, and what a peer is told when it cannot.
#
# Rule: a damaged disk takes the log offline for good; a resource that is used up refuses one
# operation.


logger = logging.getLogger(__name__)


class Health:
    """The state of one log: serving, short of something, offline or closed.

    Unlike Kafka: a full disk does not take the log offline. The failed write is undone, records can
    still be read and old segments dropped, and appends succeed again once there is room.
    """

    __slots__ = ("_name", "closed", "down", "offline", "shortage")

    def __init__(self, topic_partition: TopicPartition) -> None:
        self._name = str(topic_partition)
        self.down = False
        self.closed = False
        self.offline: StorageError | None = None
        self.shortage: Shortage | None = None

    def close(self) -> None:
        """Refuse everything from now on."""
        self.down = self.closed = True

    def check(self) -> None:
        """Raise KafkaError unless the log serves."""
        if self.down:
            raise self.refusal()

    def refusal(self) -> KafkaError:
        """Why the log does not serve."""
        if self.offline is not None:
            return KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"{self.offline}; the log {self._name} is offline: repair or replace the disk,"
                " then restart the broker",
            )
        # The client looks up the leader again, and learns where the log is now or that it is gone.
        return KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"the log {self._name} is closed")

    def failed(self, error: HeadraceError, *, fatal: bool = False) -> KafkaError:
        """Note a failure of the disk; what to raise for it."""
        if self.closed:
            return self.refusal()  # Its files may have other names by now, or none.
        # A copy is kept: the error itself holds on to the frames, and so to buffers and files.
        if isinstance(error, Shortage) and not fatal:
            self.shortage = type(error)(str(error))
            return KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"{error}; the log {self._name} takes records again after that",
            )
        if self.offline is None:
            self.take_down(error)
            logger.error(
                "the log %s is offline: %s. Other replicas lead in its place; repair or replace the"
                " disk, then restart the broker",
                self._name,
                error,
            )
        return self.refusal()

    def take_down(self, error: HeadraceError) -> None:
        """Serve nothing any more, for a reason that is logged elsewhere."""
        if self.offline is None and not self.closed:
            self.offline = StorageError(str(error))
            self.down = True


# Reading a log while its owner appends to it, rolls it, and drops segments.
#
# Rule: a reader takes the segments first, then the active one's size, then the end offset; the
# owner changes them the other way round. So the bytes a reader takes are always of offsets it has
# seen.


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
            start, lambda: log_segments.find_timestamp(state.segments.all, timestamp, start)
        )

    def max_timestamp_offset(self) -> TimestampOffset | None:
        """The first record of the largest timestamp. May wait, may run in a worker thread."""
        state = self._state
        start = state.log_start_offset
        return self._unless_truncated(
            start, lambda: log_segments.find_max_timestamp(state.segments.all, start)
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
        return log_segments.read_batches(
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
                found = log_segments.find_aborted(segments, start, end, read)
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


PRODUCER_EXPIRATION_MS = 86_400_000

_Result = TypeVar("_Result")


class Appended(NamedTuple):
    """Where an append put its records. `log_append_time` is -1 if the producer's times stand."""

    base_offset: int
    last_offset: int
    log_append_time: int
    log_start_offset: int
    duplicate: bool


class Log(LogReader):
    """The log of one partition.

    One thread owns it. Only `flush`, `delete_retired` and what reads may run in another thread
    meanwhile: they take the segments and their sizes first, and those only grow or are replaced.

    Durability: `append` hands the bytes to the operating system; they survive the process then,
    and the machine once `flush` has returned.
    """

    def __init__(
        self,
        topic_partition: TopicPartition,
        directory: str,
        config: TopicConfig,
        loaded: recovery.Loaded,
        *,
        clean_offset: int = 0,
        producer_expiration_ms: int = PRODUCER_EXPIRATION_MS,
        on_truncate: Callable[[], None] | None = None,
        room: Room | None = None,
    ) -> None:
        self.topic_partition = topic_partition
        self.directory = directory
        self.topic_id = loaded.topic_id
        self.recovery = loaded.report
        self.epochs = loaded.epochs
        self.producers = loaded.producers
        self.snapshots = loaded.snapshots
        self.open_files = loaded.open_files
        self._segments = loaded.segments
        self._flusher = loaded.flusher
        super().__init__(
            LogState(
                topic_partition, loaded.segments, loaded.log_start_offset, loaded.log_end_offset
            )
        )
        self._health = self._state.health
        # Where the last compaction came to.
        self.clean_offset = clean_offset
        # As it lay on disk, indexes included, if it was closed cleanly: nothing to flush then.
        self._opened_at = (-1 if loaded.report.scanned else loaded.log_end_offset, 0)
        self._producer_expiration_ms = producer_expiration_ms
        self._on_truncate = on_truncate
        self._room = room
        self.update_config(config)

    @classmethod
    def open(
        cls,
        files: Files,
        directory: str,
        topic_partition: TopicPartition,
        config: TopicConfig,
        now_ms: int,
        *,
        topic_id: bytes | None = None,
        recovery_point: int = 0,
        log_start_offset: int = 0,
        clean_offset: int = 0,
        clean: bool = False,
        same_boot: bool = False,
        open_files: OpenFiles | None = None,
        producer_expiration_ms: int = PRODUCER_EXPIRATION_MS,
        on_truncate: Callable[[], None] | None = None,
        room: Room | None = None,
    ) -> "Log":
        """Open the log in `directory`, made if need be; scan it unless it was closed `clean`.

        DamagedLog if what was flushed is not there: nothing is cut off then. `same_boot` tells that
        the machine has not gone down since the log was written.

        `on_truncate` is called when the recovery point has moved back: the checkpoint on disk must
        follow before bytes are removed, or a crash would trust some that were never flushed.
        """
        open_files = OpenFiles(files) if open_files is None else open_files
        try:
            loaded = recovery.load(
                open_files,
                directory,
                config,
                now_ms,
                topic_id=topic_id,
                recovery_point=recovery_point,
                log_start_offset=log_start_offset,
                clean=clean,
                compacted=clean_offset > 0,
                same_boot=same_boot,
            )
        except StorageError:
            # The directory may be set aside, and another log get the names of these files.
            open_files.forget_under(directory)
            raise
        log = cls(
            topic_partition,
            directory,
            config,
            loaded,
            clean_offset=clean_offset,
            producer_expiration_ms=producer_expiration_ms,
            on_truncate=on_truncate,
            room=room,
        )
        log.expire_producers(now_ms)
        return log

    def last_stable_offset(self, high_watermark: int) -> int:
        """The offset below which every transaction is decided, and its marker committed.

        `high_watermark` is the partition's: a marker below it is never asked for again.
        """
        unstable = self.producers.transactions.first_unstable(high_watermark)
        if unstable is None or unstable >= high_watermark:
            return high_watermark
        return max(unstable, self.log_start_offset)

    @property
    def recovery_point(self) -> int:
        """The offset below which everything is on stable storage."""
        return self._flusher.recovery_point

    @property
    def latest_epoch(self) -> int:
        """The newest leader epoch of the log, or -1."""
        return self.epochs.latest

    def update_config(self, config: TopicConfig) -> None:
        """Follow a change of the topic's settings from the next append on."""
        self.config = config
        self._stamps_time = config.message_timestamp_type == "LogAppendTime"
        self._begin_roll_policy()

    def append(
        self,
        data: bytearray | memoryview,
        headers: Sequence[BatchHeader],
        leader_epoch: int,
        now_ms: int,
    ) -> Appended:
        """Append what a producer sent: `data` is exactly the batches of `headers`, checked already.

        Offsets, the leader epoch and under LogAppendTime the timestamp are stamped in place. A
        batch that was appended before is answered with the offsets it got then.
        """
        if self._health.down:
            raise self._health.refusal()
        if len(data) > self.config.segment_bytes:
            raise KafkaError(
                ErrorCode.RECORD_LIST_TOO_LARGE,
                f"{len(data)} bytes do not fit a segment of {self.config.segment_bytes}",
            )
        idempotent = headers[0].has_producer or len(headers) > 1
        if idempotent and (batch := self.producers.check(headers, data)) is not None:
            time = batch.timestamp if self._stamps_time else NO_TIMESTAMP
            return Appended(batch.base_offset, batch.last_offset, time, self.log_start_offset, True)
        base_offset = offset = self.log_end_offset
        for header in headers:
            if self._stamps_time:
                stamp_log_append_time(data, header, now_ms)
            assign(data, header, offset, leader_epoch)
            offset = header.next_offset
        self._write(data, headers, now_ms)
        if idempotent:
            self._remember(data, headers, now_ms)
        time = now_ms if self._stamps_time else NO_TIMESTAMP
        return Appended(base_offset, offset - 1, time, self.log_start_offset, False)

    def append_replicated(self, data: Buffer, headers: Sequence[BatchHeader], now_ms: int) -> None:
        """Append batches that have their offsets already; they may leave gaps but not go back.

        Only an empty log may get a batch that begins before it: its leader's log may start in the
        middle of one.
        """
        self._health.check()
        start_offset = self.log_start_offset
        first = headers[0]
        if first.base_offset < start_offset == self.log_end_offset < first.next_offset:
            self.truncate_fully_and_start_at(first.base_offset)
        expected = self.log_end_offset
        for header in headers:
            if header.base_offset < expected:
                raise KafkaError(
                    ErrorCode.OFFSET_OUT_OF_RANGE,
                    f"{self.topic_partition}: a batch at offset {header.base_offset}, where"
                    f" {expected} or later is expected",
                )
            expected = header.next_offset
            if header.is_control and header.has_producer:
                decode_marker(data, header)  # One that cannot be read must not be written.
        self._write(data, headers, now_ms)
        # As of now, like the leader: by the time of an old record it could expire at once.
        self._remember(data, headers, now_ms)
        self.advance_log_start(start_offset)

    def _remember(self, data: Buffer, headers: Sequence[BatchHeader], now_ms: int) -> None:
        """Bring what is known of producers up to batches that were written."""
        for header in headers:
            if not header.has_producer:
                continue
            if not header.is_control:
                self.producers.record(header, header.base_offset, now_ms)
                continue
            aborted = self.producers.record_marker(header, data, now_ms)
            if aborted is not None:
                self.active.aborted.append(aborted)
                # At once, for who reads the files; but it may wait until the segment is closed.
                with suppress(StorageError):
                    self.active.aborted.write_pending()

    def _write(self, data: Buffer, headers: Sequence[BatchHeader], now_ms: int) -> None:
        last = headers[-1]
        assert last.position + last.size == len(data), headers
        segment = self._segments.active
        try:
            if self._room is not None:
                self._room.take(len(data))
            if self._policy.must_roll(segment, len(data), last, now_ms):
                self._roll(now_ms)
                segment = self._segments.active
            if last.leader_epoch > self.epochs.latest:
                for header in headers:
                    self.epochs.assign(header.leader_epoch, header.base_offset)
            segment.write_indexes()
            file = segment.hold_open()
        except StorageError as error:
            self._note_refused(error, len(data))
            raise self._health.failed(error) from error
        position = segment.size
        try:
            file.write_at(position, data)
        except StorageError as error:
            self._note_refused(error, len(data))
            raise self._undo_write(segment, error) from error
        interval = self.config.index_interval_bytes
        for header in headers:
            at = position + header.position
            segment.note_batch(header, at, interval)
            self._state.hints.add(header.base_offset, at)
        self._flusher.appended(self.log_end_offset, now_ms)
        self._health.shortage = None
        # In this order, which readers in other threads rely on.
        self._state.log_end_offset = last.next_offset
        segment.size = position + len(data)

    def _note_refused(self, error: StorageError, size: int) -> None:
        if self._room is not None:
            self._room.refused(error, size)

    def _undo_write(self, segment: Segment, error: StorageError) -> KafkaError:
        """Cut off what a failed write left, so that the file ends with a whole batch again."""
        try:
            segment.file().truncate(segment.size)
        except StorageError as second:
            return self._health.failed(StorageError(f"{error}; and then {second}"))
        return self._health.failed(error)

    def roll(self, now_ms: int, base_offset: int = 0) -> None:
        """Close the active segment and begin a new one; nothing happens if it is empty.

        A `base_offset` behind the log's end becomes the end: compaction left nothing before it.
        """
        if self.active.size or base_offset > self.log_end_offset:
            self._guard(lambda: self._roll(now_ms, base_offset))

    def _roll(self, now_ms: int, base_offset: int = 0) -> None:
        """Begin a new segment. If that fails, nothing has changed that a retry would mind."""
        offset = max(self.log_end_offset, base_offset)
        self.active.finish_indexes()
        with suppress(Shortage):  # It is missed only if files get lost as well.
            self._note_segments()
        self.snapshots.take(self.producers, offset)
        self._flusher.names_changed = True
        self._segments.begin(offset, self.config.segment_index_bytes, now_ms)
        self._state.log_end_offset = offset
        self._begin_roll_policy()

    def _begin_roll_policy(self) -> None:
        self._policy = RollPolicy(self.topic_partition, self.active.base_offset, self.config)

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """The largest epoch not above `epoch` and where it ended; (-1, -1) if unknown."""
        return self.epochs.end_offset_for(epoch, self.log_end_offset)

    def start_epoch(self, epoch: int) -> None:
        """Note that a leader begins to write in `epoch` at the end of the log."""
        self._guard(lambda: self.epochs.assign(epoch, self.log_end_offset))

    def flush_due(self, now_ms: int) -> bool:
        """Whether `flush.messages` or `flush.ms` asks for a flush now."""
        unflushed = self.log_end_offset - self._flusher.recovery_point
        return unflushed >= self.config.flush_messages or (
            unflushed > 0 and self._flusher.dirty_ms(now_ms) >= self.config.flush_ms
        )

    @property
    def has_unflushed_segments(self) -> bool:
        """Whether a closed segment is not durable yet. Flushing it soon keeps recovery short."""
        return self.recovery_point < self.active.base_offset

    def flush(self) -> int:
        """Make all that was appended before the call durable; the recovery point afterwards.

        May run in a worker thread. If an fsync fails the log is offline for good.
        """
        self._health.check()
        end_offset = self.log_end_offset
        try:
            return self._flusher.flush(end_offset, self._segments.all)
        except StorageError as error:
            fatal = not isinstance(error, TooManyOpenFiles)
            raise self._health.failed(error, fatal=fatal) from error

    def truncate_to(self, offset: int) -> None:
        """Remove every batch that reaches `offset` or beyond, and epochs that wrote nothing."""
        if offset < self.segments[0].base_offset:
            self.truncate_fully_and_start_at(offset)
        elif offset < self.log_end_offset:
            self._guard(lambda: self._truncate(offset), fatal=True)
        else:
            # One who led for a moment noted an epoch that nobody else has heard of.
            self._guard(lambda: self.epochs.truncate_from_end(self.log_end_offset))

    def _truncate(self, offset: int) -> None:
        self.clean_offset = min(self.clean_offset, offset)
        recovery_point = self.recovery_point
        if recovery_point > offset:
            # First of all: a crash may undo any part of what follows, and must not trust the rest.
            self._flusher.truncated(self.segments[segment_index(self.segments, offset)].base_offset)
            if self._on_truncate is not None:
                self._on_truncate()
        self._stop_readers()
        end_offset = self._segments.truncate(offset)
        self._state.log_end_offset = end_offset
        self._state.log_start_offset = min(self.log_start_offset, end_offset)
        self.epochs.truncate_from_end(end_offset)
        heard_ms = self.producers.newest_timestamp
        recovery.load_producers(self.producers, self.snapshots, self.segments, end_offset, heard_ms)
        self._truncated(min(recovery_point, end_offset))
        # Before anything is appended: or a crash could undo the cut and keep the epochs of what
        # was appended, and nobody could tell that the old batches were cut off.
        self.active.sync(indexes=True)
        self.open_files.files.sync_file(self.epochs.path)
        self.open_files.files.sync_directory(self.directory)

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Drop everything; the next append goes to `offset`."""
        self._guard(lambda: self._restart(offset), fatal=True)

    def _restart(self, offset: int) -> None:
        was_empty = not self.size_bytes
        self.clean_offset = min(self.clean_offset, offset)
        if self.recovery_point > 0:
            # A crash halfway leaves no segment at all, which would be damage if one was flushed.
            self._flusher.truncated(0)
            if self._on_truncate is not None:
                self._on_truncate()
        self._stop_readers()
        self._segments.restart(offset, self.config.segment_index_bytes, self.active.created_ms)
        self._state.log_end_offset = self._state.log_start_offset = offset
        self.epochs.clear()
        self.producers.clear()
        self.snapshots.remove_after(-1)
        self._truncated(offset)
        if not was_empty:
            # Or a crash could bring the old segments back beside the new one.
            self._flusher.flush(offset, self.segments)

    def _stop_readers(self) -> None:
        """Before files shrink: whoever reads until the count is even again must not trust it."""
        self._state.truncations += 1
        self._state.hints.clear()

    def _truncated(self, recovery_point: int) -> None:
        self._begin_roll_policy()
        self._flusher.names_changed = True
        moved_back = recovery_point < self.recovery_point
        self._flusher.truncated(recovery_point)
        if moved_back and self._on_truncate is not None:
            self._on_truncate()
        self._state.truncations += 1

    def advance_log_start(self, offset: int) -> None:
        """Hide the records below `offset`; retention removes the segments they fill."""
        if offset > self.log_end_offset:
            raise self._state.out_of_range(offset)
        if offset > self.log_start_offset:
            self._guard(lambda: self.epochs.truncate_from_start(offset))
            self._state.log_start_offset = offset

    def retire_segments(self, now_ms: int, high_watermark: int) -> list[Retired]:
        """Rename the segments that retention lets go; `delete_retired` removes them later."""
        return self._guard(lambda: self._retire(now_ms, high_watermark))

    def _retire(self, now_ms: int, high_watermark: int) -> list[Retired]:
        expiries = log_segments.expired(
            self.segments,
            self.config,
            now_ms,
            log_start_offset=self.log_start_offset,
            log_end_offset=self.log_end_offset,
            high_watermark=high_watermark,
        )
        if len(expiries) == len(self.segments):
            try:
                self._roll(now_ms)
            except DiskFull:
                expiries.pop()  # The older ones can go all the same, and make room.
        if not expiries:
            return []
        start_offset = self.segments[len(expiries)].base_offset
        self._state.log_start_offset = max(self.log_start_offset, start_offset)
        self._flusher.names_changed = True
        retired = self._segments.retire(expiries, now_ms + self.config.file_delete_delay_ms)
        self.snapshots.remove_before(start_offset)
        with suppress(DiskFull):  # Room is what is being made; the next time will do.
            self.epochs.truncate_from_start(self.log_start_offset)
        return retired

    def replace_segments(self, old: Sequence[Segment], new: Segment, now_ms: int) -> bool:
        """Put a compacted segment in the place of closed ones; false if they are gone meanwhile.

        Its files are complete and durable. A failure halfway takes the log offline; opening it
        finishes the exchange then.
        """
        self._health.check()
        if not self._segments.has(old):
            return False
        self._guard(lambda: self._replace(old, new, now_ms), fatal=True)
        return True

    def _replace(self, old: Sequence[Segment], new: Segment, now_ms: int) -> None:
        with self._state.swapping:
            self._state.begin_swap()
            self._segments.replace(old, new, now_ms + self.config.file_delete_delay_ms)
            self._state.end_swap()
        self._flusher.names_changed = True
        self.snapshots.keep_only({segment.base_offset for segment in self.segments})

    def delete_retired(self, now_ms: int) -> int:
        """Remove the files whose delay is over; how many segments. May run in a worker thread.

        StorageError if one cannot be removed; it is tried again the next time.
        """
        return self._segments.delete_retired(now_ms)

    def expire_producers(self, now_ms: int) -> int:
        """Forget the producers that were silent for too long; how many."""
        return self.producers.expire(now_ms - self._producer_expiration_ms)

    def relocate(self, directory: str) -> None:
        """Follow a rename of the log's directory."""
        self.open_files.forget_under(self.directory)
        self.directory = directory
        for part in (self._segments, self._flusher, self.snapshots, self.epochs):
            part.relocate(directory)

    def take_offline(self, error: StorageError) -> None:
        """Serve nothing any more: the disk failed in something that is not only this log's."""
        self._health.take_down(error)

    def close(self, *, clean: bool = True) -> None:
        """Close the log; if `clean`, durably and so that it need not be scanned when opened."""
        if self._health.closed:
            return
        try:
            if clean and not self._health.down:
                self._guard(self._make_durable, fatal=True)
        finally:
            self._health.close()
            self.active.let_go()
            self.open_files.forget_under(self.directory)

    def _make_durable(self) -> None:
        self.active.finish_indexes()
        if self.log_end_offset not in self.snapshots.offsets:
            self.snapshots.take(self.producers, self.log_end_offset)
        if self._opened_at != (self.log_end_offset, self._state.truncations):
            # The last two: if the active one is empty, a flush has seen the other as active.
            for segment in self.segments[-2:]:
                segment.sync(indexes=True)
            self._flusher.names_changed = True
        if self._note_segments():
            self.open_files.files.sync_file(f"{self.directory}/{SEGMENT_SIZES}")
            self._flusher.names_changed = True
        self._flusher.flush(self.log_end_offset, self.segments)

    def _note_segments(self) -> bool:
        """Write down which files the log has, unless that is known; whether it was not."""
        path = f"{self.directory}/{SEGMENT_SIZES}"
        content = encode_segment_sizes(segment.sizes() for segment in self.segments)
        if self.open_files.files.read_bytes(path) == content:
            return False
        self.open_files.files.write_atomically(path, content, sync=False)
        return True

    def _guard(self, change: Callable[[], _Result], *, fatal: bool = False) -> _Result:
        """Make a change in the files; a failure of the disk becomes the peer's answer."""
        self._health.check()
        try:
            return change()
        except (StorageError, CorruptBatch) as error:
            raise self._health.failed(error, fatal=fatal) from error
