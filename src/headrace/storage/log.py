"""A partition's log: append, read, roll, flush and truncate.

Rule: bytes below `log_end_offset` are whole batches, bytes below `recovery_point` are on stable
storage. Every failure of the disk becomes a KafkaError that names the file and what to do.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple, TypeVar

from headrace.config import TopicConfig
from headrace.errors import CorruptBatch, ErrorCode, KafkaError, StorageError
from headrace.metadata.topic_names import is_internal
from headrace.protocol.batch import NO_TIMESTAMP, BatchHeader, assign, stamp_log_append_time
from headrace.protocol.markers import decode_marker
from headrace.security.batch_encryption import OVERHEAD, BatchEncryption
from headrace.storage import log_segments, recovery
from headrace.storage.aborted_index import AbortedTransaction
from headrace.storage.checkpoints import SEGMENT_SIZES, encode_segment_sizes
from headrace.storage.disk_space import DiskSpace
from headrace.storage.files import DiskFull, Files, ResourceShortage, TooManyOpenFiles
from headrace.storage.index import DamagedIndex, ReadAt, WouldBlock, read_waiting
from headrace.storage.log_encryption import WITHOUT_KEYS, LogEncryption
from headrace.storage.log_segments import (
    LogRead,
    RetiredSegment,
    RollPolicy,
    read_cached,
    segment_index,
)
from headrace.storage.log_state import LogState
from headrace.storage.open_files import OpenFiles
from headrace.storage.segment import Segment, TimestampOffset
from headrace.types import Buffer, TopicPartition

PRODUCER_EXPIRATION_MS = 86_400_000

_Result = TypeVar("_Result")


class AppendResult(NamedTuple):
    """The offsets of appended records. `log_append_time` is -1 if the producer's times stand."""

    base_offset: int
    last_offset: int
    log_append_time: int
    log_start_offset: int
    duplicate: bool


class Log:
    """The log of a partition.

    One thread owns it. Only `flush`, `delete_retired` and methods that read may run in another
    thread at the same time: they take the tuple of segments and their sizes first; the sizes only
    grow, and the tuple is replaced as a whole. Methods named `cached` are for the owner alone.

    Durability: `append` passes the bytes to the operating system; they survive a crash of the
    process then, and a crash of the machine once `flush` has returned.
    """

    def __init__(
        self,
        topic_partition: TopicPartition,
        directory: str,
        config: TopicConfig,
        loaded: recovery.LoadedLog,
        *,
        clean_offset: int = 0,
        producer_expiration_ms: int = PRODUCER_EXPIRATION_MS,
        on_truncate: Callable[[], None] | None = None,
        room: DiskSpace | None = None,
        encryption: BatchEncryption = WITHOUT_KEYS,
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
        self._recovery_point = loaded.flusher
        self._start = loaded.start
        self._state = LogState(
            topic_partition, loaded.segments, loaded.log_start_offset, loaded.log_end_offset
        )
        self.encryption = LogEncryption(encryption, topic_partition, lambda: self.topic_id)
        self._health = self._state.health
        # The offset below which the log is compacted.
        self.clean_offset = clean_offset
        # The end offset of a log that was closed cleanly and the count of truncations: as long as
        # they have not changed, everything is on disk, indexes included.
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
        check_start: bool = True,
        open_files: OpenFiles | None = None,
        producer_expiration_ms: int = PRODUCER_EXPIRATION_MS,
        on_truncate: Callable[[], None] | None = None,
        room: DiskSpace | None = None,
        encryption: BatchEncryption = WITHOUT_KEYS,
    ) -> "Log":
        """Open the log in `directory`, made if need be; scan it unless it was closed `clean`.

        DamagedLog if flushed bytes are missing; then nothing is cut off. `same_boot` says that the
        machine was not rebooted since the log was written.

        `on_truncate` is called when the recovery point has moved back: the checkpoint on disk must
        follow before bytes are removed, or recovery would trust bytes that were never flushed.
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
                check_start=check_start,
            )
        except StorageError:
            # The directory may be set aside, and a new log may use the names of these files.
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
            encryption=encryption,
        )
        log.expire_producers(now_ms)
        return log

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The segments, oldest first."""
        return self._state.segments.all

    @property
    def active(self) -> Segment:
        """The last segment, which is appended to."""
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
        """A number that changes before and after records are removed from the end of the log."""
        return self._state.truncations

    @property
    def size_bytes(self) -> int:
        """The bytes of batches in all segments."""
        return self._state.segments.size_bytes

    def bytes_from(self, offset: int) -> int | None:
        """The bytes of all batches from that which begins at `offset` on.

        None if its position is not remembered: only those of recent batches are. For the owner.
        """
        segments, position = self._state.segments.all, self._state.hints.get(offset)
        if position is None:
            return None
        first = segment_index(segments, offset)
        return sum(segment.size for segment in segments[first:]) - position

    @property
    def offline(self) -> StorageError | None:
        """The failure that took the log offline, until it is opened again; None if serving."""
        return self._state.health.offline

    @property
    def may_reopen(self) -> bool:
        """Whether the log is offline, and opening it again makes it serve once there is room."""
        return self._state.health.may_reopen

    @property
    def closed(self) -> bool:
        """Whether the log was closed, and its files may be gone."""
        return self._state.health.closed

    @property
    def shortage(self) -> StorageError | None:
        """The shortage that failed the last append, such as a full disk; None if it succeeded."""
        return self._state.health.shortage

    @property
    def suspected_offset(self) -> int | None:
        """The offset at which a reader met damage; None if none did since `clear_suspicion`."""
        return self._state.suspected_offset

    def suspect(self, offset: int) -> None:
        """Have the segment of `offset`, and then the others, checked for damage soon.

        For readers that find wrong bytes in records they read. May be called in any thread.
        """
        self._state.suspected_offset = offset

    def clear_suspicion(self) -> None:
        self._state.suspected_offset = None

    def mark_damaged(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Refuse reads of these ranges of offsets, and of no others, with CORRUPT_MESSAGE."""
        self._state.damaged = tuple(ranges)

    def read(
        self, offset: int, max_bytes: int, max_offset: int, *, at_least_one: bool = False
    ) -> LogRead:
        """Read batches, from the batch that holds `offset` up to `max_offset`.

        At most `max_bytes`, so that the last batch may be incomplete; with `at_least_one` the first
        batch is complete. May wait for the disk; may run in a worker thread.
        """
        return self._state.find_consistently(
            offset, lambda: self._read(offset, max_bytes, max_offset, at_least_one, read_waiting)
        )

    def read_cached(
        self, offset: int, max_bytes: int, max_offset: int, *, at_least_one: bool = False
    ) -> LogRead | None:
        """Read as `read`, on the owner's thread; None if it would have to wait for the disk."""
        state = self._state
        try:
            found = self._read(offset, max_bytes, max_offset, at_least_one, read_cached)
        except WouldBlock:
            return None
        except (StorageError, CorruptBatch) as error:
            raise self._state.failed_read(error, offset) from error
        if found.records and found.segment_base_offset <= offset:
            state.hints.add(offset, found.position)
        return found

    def aborted_transactions(self, start: int, end: int) -> list[AbortedTransaction]:
        """The aborted transactions that have offsets in [start, end), in the order they ended.

        `end` is not above the last stable offset. May wait for the disk; may run in a worker
        thread.
        """
        return self._state.find_consistently(start, lambda: self._aborted(start, end, read_waiting))

    def aborted_transactions_cached(self, start: int, end: int) -> list[AbortedTransaction] | None:
        """As `aborted_transactions`, on the owner's thread; None if it would have to wait for the
        disk.
        """
        try:
            return self._aborted(start, end, read_cached)
        except WouldBlock:
            return None
        except StorageError as error:
            raise self._state.failed_read(error, start) from error

    def decrypted(self, records: Buffer, offset: int) -> Buffer:
        """Batches read at `offset`, as they are for clients; the same if none is encrypted.

        May run in a worker thread.
        """
        try:
            return self.encryption.decrypt_batches(records)
        except CorruptBatch as error:
            raise self._state.failed_read(error, offset) from error

    def offset_for_timestamp(self, timestamp: int) -> TimestampOffset | None:
        """The first record whose timestamp is not before `timestamp`.

        May wait for the disk; may run in a worker thread.
        """
        state = self._state
        start, rows = state.log_start_offset, self.encryption.rows
        return self._state.find_consistently(
            start, lambda: log_segments.find_timestamp(state.segments.all, timestamp, start, rows)
        )

    def max_timestamp_offset(self) -> TimestampOffset | None:
        """The first record of the largest timestamp.

        May wait for the disk; may run in a worker thread.
        """
        state = self._state
        start, rows = state.log_start_offset, self.encryption.rows
        return self._state.find_consistently(
            start, lambda: log_segments.find_max_timestamp(state.segments.all, start, rows)
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
        if state.damaged and (first_damaged := state.intact_until(offset)) is not None:
            # No search may skip the damage: the batches behind it are cut off afterwards.
            found = log_segments.read_batches(
                segments,
                state.hints,
                offset,
                max_bytes,
                None,
                size,
                at_least_one=at_least_one,
                read=read,
            )
            return found.cut_before(min(first_damaged, max_offset))
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
                # These segments may have been replaced, and their files renamed.
                if segments is self._state.segments.all:
                    raise
            else:
                if start < self._state.log_start_offset:
                    raise self._state.out_of_range(start)  # Its entries may be deleted too.
                return found

    def last_stable_offset(self, high_watermark: int) -> int:
        """The offset below which every transaction has ended, and its marker is committed.

        `high_watermark` is the partition's: markers below it are forgotten.
        """
        unstable = self.producers.transactions.first_unstable(high_watermark)
        if unstable is None or unstable >= high_watermark:
            return high_watermark
        return max(unstable, self.log_start_offset)

    @property
    def recovery_point(self) -> int:
        """The offset below which all records are on stable storage."""
        return self._recovery_point.recovery_point

    @property
    def latest_epoch(self) -> int:
        """The newest leader epoch of the log, or -1."""
        return self.epochs.latest

    def update_config(self, config: TopicConfig) -> None:
        """Apply changed settings of the topic from the next append on."""
        self.config = config
        self._stamps_time = config.message_timestamp_type == "LogAppendTime"
        # A coordinator must not need a key to know its groups and transactions.
        self._encrypts = config.encryption_enable and not is_internal(self.topic_partition.topic)
        self._begin_roll_policy()

    def append(
        self,
        data: bytearray | memoryview,
        headers: Sequence[BatchHeader],
        leader_epoch: int,
        now_ms: int,
    ) -> AppendResult:
        """Append a producer's batches: `data` is exactly the validated batches of `headers`.

        Offsets, the leader epoch and under LogAppendTime the timestamp are written in place. For a
        duplicate of an appended batch the offsets of that batch are returned.
        """
        if self._health.down:
            raise self._health.refusal()
        size = len(data)
        if self._encrypts:
            # Before anything is stamped: a batch that is refused must stay as it came.
            self.encryption.prepare(now_ms)
            size += OVERHEAD * len(headers)
        if size > self.config.segment_bytes:
            raise KafkaError(
                ErrorCode.RECORD_LIST_TOO_LARGE,
                f"{size} bytes do not fit a segment of {self.config.segment_bytes}",
            )
        idempotent = headers[0].has_producer or len(headers) > 1
        if idempotent and (batch := self.producers.check(headers, data)) is not None:
            time = batch.timestamp if self._stamps_time else NO_TIMESTAMP
            return AppendResult(
                batch.base_offset, batch.last_offset, time, self.log_start_offset, True
            )
        base_offset = offset = self.log_end_offset
        for header in headers:
            if self._stamps_time:
                stamp_log_append_time(data, header, now_ms)
            assign(data, header, offset, leader_epoch)
            offset = header.next_offset
        stored: Buffer = data
        if self._encrypts and not headers[0].is_control:
            stored, headers = self.encryption.encrypt_batches(data, headers, now_ms)
        self._write(stored, headers, now_ms)
        if idempotent:
            self._update_producers(stored, headers, now_ms)
        time = now_ms if self._stamps_time else NO_TIMESTAMP
        return AppendResult(base_offset, offset - 1, time, self.log_start_offset, False)

    def append_replicated(self, data: Buffer, headers: Sequence[BatchHeader], now_ms: int) -> None:
        """Append batches of the leader, with their offsets, which may leave gaps but not go back.

        Only an empty log may get a batch that begins before its log start offset: the leader's log
        start offset may lie in the middle of a batch.
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
                decode_marker(data, header)  # A marker that cannot be read must not be written.
        self._write(data, headers, now_ms)
        # With the time of now, as at the leader: by that of an old record it could expire at once.
        self._update_producers(data, headers, now_ms)
        self.advance_log_start(start_offset)

    def _update_producers(self, data: Buffer, headers: Sequence[BatchHeader], now_ms: int) -> None:
        """Update producer state and aborted transactions by batches that were written."""
        for header in headers:
            if not header.has_producer:
                continue
            if not header.is_control:
                self.producers.record(header, header.base_offset, now_ms)
                continue
            aborted = self.producers.record_marker(header, data, now_ms)
            if aborted is not None:
                self.active.aborted.append(aborted)
                # At once, for tools that read the files; a failure is made up for by a later write.
                with suppress(StorageError):
                    self.active.aborted.write_pending()

    def _write(self, data: Buffer, headers: Sequence[BatchHeader], now_ms: int) -> None:
        last = headers[-1]
        assert last.position + last.size == len(data), headers
        segment = self._segments.active
        try:
            if self._room is not None:
                self._room.count_append(len(data))
            if self._policy.must_roll(segment, len(data), last, now_ms):
                self._roll(now_ms)
                segment = self._segments.active
            segment.write_indexes()
            file = segment.hold_open()
        except StorageError as error:
            self._note_refused(error, len(data))
            raise self._health.failed(error) from error
        position = segment.size
        try:
            file.write_at(position, data)
            # Never before: with the epochs of batches that a full disk has refused, this replica
            # would win elections against those that have the batches.
            if last.leader_epoch > self.epochs.latest:
                self.epochs.assign_batches(headers)
        except StorageError as error:
            self._note_refused(error, len(data))
            raise self._undo_write(segment, error) from error
        interval = self.config.index_interval_bytes
        for header in headers:
            at = position + header.position
            segment.note_batch(header, at, interval)
            self._state.hints.add(header.base_offset, at)
        self._recovery_point.appended(self.log_end_offset, now_ms)
        self._health.shortage = None
        # Readers in other threads rely on this order.
        self._state.log_end_offset = last.next_offset
        segment.size = position + len(data)

    def _note_refused(self, error: StorageError, size: int) -> None:
        if self._room is not None:
            self._room.refused(error, size)

    def _undo_write(self, segment: Segment, error: StorageError) -> KafkaError:
        """Cut off the bytes of a failed write, so that the file ends with a whole batch again."""
        try:
            segment.file().truncate(segment.size)
        except StorageError as second:
            return self._health.failed(StorageError(f"{error}; and then {second}"))
        return self._health.failed(error)

    def roll(self, now_ms: int, base_offset: int = 0) -> None:
        """Close the active segment and begin a new segment, unless the active segment is empty.

        A `base_offset` behind the log's end becomes the end: compaction left no record before it.
        """
        if self.active.size or base_offset > self.log_end_offset:
            self._guard(lambda: self._roll(now_ms, base_offset))

    def _roll(self, now_ms: int, base_offset: int = 0) -> None:
        """Begin a new segment. After a failure it can be retried."""
        offset = max(self.log_end_offset, base_offset)
        self.active.finish_indexes()
        with suppress(ResourceShortage):  # The checkpoint is needed only if files get lost as well.
            self._write_segment_sizes()
        self.snapshots.take(self.producers, offset)
        self._recovery_point.names_changed = True
        self._segments.begin(offset, self.config.segment_index_bytes, now_ms)
        self._state.log_end_offset = offset
        self._begin_roll_policy()

    def _begin_roll_policy(self) -> None:
        self._policy = RollPolicy(self.topic_partition, self.active.base_offset, self.config)

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """The largest epoch not above `epoch` and its end offset; (-1, -1) if unknown."""
        return self.epochs.end_offset_for(epoch, self.log_end_offset)

    def start_epoch(self, epoch: int) -> None:
        """Note that a leader begins to write in `epoch` at the end of the log."""
        self._guard(lambda: self.epochs.assign(epoch, self.log_end_offset))

    def flush_due(self, now_ms: int) -> bool:
        """Whether `flush.messages` or `flush.ms` demands a flush now."""
        unflushed = self.log_end_offset - self._recovery_point.recovery_point
        return unflushed >= self.config.flush_messages or (
            unflushed > 0 and self._recovery_point.dirty_ms(now_ms) >= self.config.flush_ms
        )

    @property
    def has_unflushed_segments(self) -> bool:
        """Whether a closed segment is not durable yet. Flushing it soon keeps recovery short."""
        return self.recovery_point < self.active.base_offset

    def flush(self) -> int:
        """Make all records appended so far durable; return the new recovery point.

        May run in a worker thread. If an fsync fails the log is offline for good.
        """
        self._health.check()
        end_offset = self.log_end_offset
        try:
            return self._recovery_point.flush(end_offset, self._segments.all)
        except StorageError as error:
            fatal = not isinstance(error, TooManyOpenFiles)
            raise self._health.failed(error, fatal=fatal) from error

    def truncate_to(self, offset: int) -> None:
        """Remove every batch that reaches `offset` or beyond, and epochs without records."""
        if offset < self.segments[0].base_offset:
            self.truncate_fully_and_start_at(offset)
        elif offset < self.log_end_offset:
            self._guard(lambda: self._truncate(offset), fatal=True)
        else:
            # A replica that led for a moment may have noted an epoch that no other replica has.
            self._guard(lambda: self.epochs.truncate_from_end(self.log_end_offset))

    def _truncate(self, offset: int) -> None:
        self.clean_offset = min(self.clean_offset, offset)
        recovery_point = self.recovery_point
        if recovery_point > offset:
            # First of all: a crash may undo any part of the following, so none may be trusted.
            self._recovery_point.truncated(
                self.segments[segment_index(self.segments, offset)].base_offset
            )
            if self._on_truncate is not None:
                self._on_truncate()
        self._stop_readers()
        end_offset = self._segments.truncate(offset)
        self._state.log_end_offset = end_offset
        self.mark_damaged([extent for extent in self._state.damaged if extent[1] <= end_offset])
        self._state.log_start_offset = min(self.log_start_offset, end_offset)
        self.epochs.truncate_from_end(end_offset)
        heard_ms = self.producers.newest_timestamp
        recovery.load_producers(self.producers, self.snapshots, self.segments, end_offset, heard_ms)
        self._truncated(min(recovery_point, end_offset))
        # Before anything is appended: else a crash could undo the truncation and keep the epochs of
        # later appends, and recovery could not see that the old batches were truncated.
        self.active.sync(indexes=True)
        self.open_files.files.sync_file(self.epochs.path)
        self.open_files.files.sync_directory(self.directory)

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Remove all records; the next append goes to `offset`."""
        self._guard(lambda: self._restart(offset), fatal=True)

    def _restart(self, offset: int) -> None:
        was_empty = not self.size_bytes
        self.clean_offset = min(self.clean_offset, offset)
        if self.recovery_point > 0:
            # A crash halfway leaves no segment at all, which would count as damage otherwise.
            self._recovery_point.truncated(0)
            if self._on_truncate is not None:
                self._on_truncate()
        if self._start.is_durable or not was_empty:
            self._start.raise_to(offset)
        self._stop_readers()
        self._segments.restart(offset, self.config.segment_index_bytes, self.active.created_ms)
        self._start.settle_at(offset)
        self._state.log_end_offset = self._state.log_start_offset = offset
        self.mark_damaged(())
        self.epochs.clear()
        self.producers.clear()
        self.snapshots.remove_after(-1)
        self._truncated(offset)
        if not was_empty:
            # Else a crash could bring the old segments back beside the new segment.
            self._recovery_point.flush(offset, self.segments)

    def _stop_readers(self) -> None:
        """Invalidate reads by other threads until `_truncated`; called before files shrink."""
        self._state.truncations += 1
        self._state.hints.clear()

    def _truncated(self, recovery_point: int) -> None:
        self._begin_roll_policy()
        self._recovery_point.names_changed = True
        moved_back = recovery_point < self.recovery_point
        self._recovery_point.truncated(recovery_point)
        if moved_back and self._on_truncate is not None:
            self._on_truncate()
        self._state.truncations += 1

    def advance_log_start(self, offset: int) -> None:
        """Raise the log start offset; retention removes the segments below it."""
        if offset > self.log_end_offset:
            raise self._state.out_of_range(offset)
        if offset > self.log_start_offset:
            self._guard(lambda: self.epochs.truncate_from_start(offset))
            self._state.log_start_offset = offset

    def retire_segments(self, now_ms: int, high_watermark: int) -> list[RetiredSegment]:
        """Rename the segments that retention deletes; `delete_retired` removes them later."""
        return self._guard(lambda: self._retire(now_ms, high_watermark))

    def retained_from(self, now_ms: int, high_watermark: int) -> int:
        """The base offset of the first segment that retention keeps."""
        count = len(self._guard(lambda: self._expired(now_ms, high_watermark)))
        segments = self.segments
        return segments[count].base_offset if count < len(segments) else self.log_end_offset

    def note_start(self, offset: int) -> None:
        """Record durably that segments below `offset` are about to be deleted. May run in a worker
        thread.

        `retire_segments` does so too, but an fsync blocks the owner's thread.
        """
        self._guard(lambda: self._start.raise_to(offset))

    def _expired(self, now_ms: int, high_watermark: int) -> list[log_segments.Expiry]:
        return log_segments.expired(
            self.segments,
            self.config,
            now_ms,
            log_start_offset=self.log_start_offset,
            log_end_offset=self.log_end_offset,
            high_watermark=high_watermark,
        )

    def _retire(self, now_ms: int, high_watermark: int) -> list[RetiredSegment]:
        expiries = self._expired(now_ms, high_watermark)
        if len(expiries) == len(self.segments):
            try:
                self._roll(now_ms)
            except DiskFull:
                expiries.pop()  # The older segments can be deleted, and make room.
        if not expiries:
            return []
        start_offset = self.segments[len(expiries)].base_offset
        self._start.raise_to(start_offset)
        self._state.log_start_offset = max(self.log_start_offset, start_offset)
        self._recovery_point.names_changed = True
        retired = self._segments.retire(expiries, now_ms + self.config.file_delete_delay_ms)
        self.snapshots.remove_before(start_offset)
        with suppress(DiskFull):  # This frees room; the next call writes the epochs.
            self.epochs.truncate_from_start(self.log_start_offset)
        return retired

    def replace_segments(self, old: Sequence[Segment], new: Segment, now_ms: int) -> bool:
        """Replace closed segments by a compacted segment; False if they were removed meanwhile.

        The files of `new` are complete and durable. A failure halfway takes the log offline;
        opening it again finishes the replacement.
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
        self._recovery_point.names_changed = True
        self.snapshots.keep_only({segment.base_offset for segment in self.segments})

    def delete_retired(self, now_ms: int) -> int:
        """Remove files of deleted segments after their delay; return the number of segments.

        May run in a worker thread. StorageError if a file cannot be removed; the next call tries it
        again.
        """
        return self._segments.delete_retired(now_ms)

    def expire_producers(self, now_ms: int) -> int:
        """Remove the producers that were inactive for too long; return their number."""
        return self.producers.expire(now_ms - self._producer_expiration_ms)

    def relocate(self, directory: str) -> None:
        """Follow a rename of the log's directory."""
        self.open_files.forget_under(self.directory)
        self.directory = directory
        for part in (
            self._segments,
            self._recovery_point,
            self._start,
            self.snapshots,
            self.epochs,
        ):
            part.relocate(directory)

    def take_offline(self, error: StorageError) -> None:
        """Take the log offline because its data directory failed."""
        self._health.take_down(error)

    def check_room(self) -> None:
        """KAFKA_STORAGE_ERROR if the data directory is full, and appends are refused."""
        try:
            if self._room is not None:
                self._room.check()
        except DiskFull as error:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error

    def close(self, *, clean: bool = True) -> None:
        """Close the log; if `clean`, make it durable, so that opening it needs no scan."""
        if self._health.closed:
            return
        try:
            if clean and not self._health.down:
                self._guard(self._close_files, fatal=True)
        finally:
            self._health.close()
            self.active.allow_close()
            self.open_files.forget_under(self.directory)

    def _close_files(self) -> None:
        try:
            self._make_durable()
        except ResourceShortage as error:
            # The caller, which closes all logs on that disk, says so once.
            self._health.take_down(error)
            raise self._health.refusal() from error

    def _make_durable(self) -> None:
        self.active.finish_indexes()
        if self.log_end_offset not in self.snapshots.offsets:
            self.snapshots.take(self.producers, self.log_end_offset)
        if self._opened_at != (self.log_end_offset, self._state.truncations):
            # The last two: if the active segment is empty, the other was active at the last flush.
            for segment in self.segments[-2:]:
                segment.sync(indexes=True)
            self._recovery_point.names_changed = True
        if self._write_segment_sizes():
            self.open_files.files.sync_file(f"{self.directory}/{SEGMENT_SIZES}")
            self._recovery_point.names_changed = True
        self._recovery_point.flush(self.log_end_offset, self.segments)

    def _write_segment_sizes(self) -> bool:
        """Write the segment checkpoint if it has changed; return whether it had."""
        path = f"{self.directory}/{SEGMENT_SIZES}"
        content = encode_segment_sizes(segment.sizes() for segment in self.segments)
        if self.open_files.files.read_bytes(path) == content:
            return False
        self.open_files.files.write_atomically(path, content, sync=False)
        return True

    def _guard(self, change: Callable[[], _Result], *, fatal: bool = False) -> _Result:
        """Make a change in the files; a failure of the disk becomes a KafkaError."""
        self._health.check()
        try:
            return change()
        except (StorageError, CorruptBatch) as error:
            raise self._health.failed(error, fatal=fatal) from error
