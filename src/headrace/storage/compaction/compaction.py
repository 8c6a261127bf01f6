"""The compaction of a log: index its keys, rewrite its segments, replace the files."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from mmap import mmap
from typing import NamedTuple

from headrace.config import TopicConfig
from headrace.errors import CorruptBatch, HeadraceError, StorageError
from headrace.protocol.batch import HEADER_SIZE, BatchHeader, check_batch, read_header
from headrace.protocol.compression import EXPANDED_BYTES_MAX, compress, record_bytes
from headrace.protocol.markers import decode_marker
from headrace.storage.aborted_index import ABORTED_SUFFIX, AbortedIndex, AbortedTransaction
from headrace.storage.compaction.key_table import SLOT_SIZE, KeyIndexer, KeyTable
from headrace.storage.compaction.output import CompactionOutput
from headrace.storage.compaction.plan import CompactionPlan, groups, plan
from headrace.storage.compaction.record_filter import EVERYTHING, NOTHING, SOMETHING, RecordFilter
from headrace.storage.index import offset_index, time_index
from headrace.storage.log import Log
from headrace.storage.log_encryption import LogEncryption
from headrace.storage.open_files import OpenFiles
from headrace.storage.producer_state import ProducerStates
from headrace.storage.segment import (
    ALL_SUFFIXES,
    CLEANED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    Segment,
)
from headrace.types import Buffer

# The files of a compacted segment while they are written, beside those it will replace.
#
# Rule: they are not read before they are complete and flushed; a start removes leftover files.


# Flushed in portions: appends would have to wait for a single flush of everything at the end.
_SYNC_BYTES = 8 << 20


class NewSegment:
    """A segment being written to `.cleaned` files. For one thread at a time."""

    def __init__(
        self, open_files: OpenFiles, directory: str, base_offset: int, index_bytes_max: int
    ) -> None:
        self._open_files = open_files
        self._directory = directory
        self._base_offset = base_offset
        self._index_bytes_max = index_bytes_max
        self._path = f"{directory}/{base_offset:020d}"
        self._indexed_timestamp = -1
        self._synced = 0
        self.size = 0
        self.remove()
        for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX):
            open_files.files.open(self._name(suffix), create=True)
        self._file = open_files.files.open(self._name(LOG_SUFFIX), create=True)
        self._offsets = offset_index(open_files, self._name(INDEX_SUFFIX), 0, index_bytes_max)
        self._times = time_index(open_files, self._name(TIME_INDEX_SUFFIX), 0, index_bytes_max)
        self._aborted = AbortedIndex(open_files, self._name(ABORTED_SUFFIX), 0)

    def _name(self, suffix: str) -> str:
        return self._path + suffix + CLEANED_SUFFIX

    def write(self, output: CompactionOutput) -> None:
        """Write the batches that were kept since the last call."""
        used = output.used
        if used:
            with memoryview(output.data) as view:
                self._file.write_at(self.size, view[:used])
            self.size += used
            if self.size - self._synced >= _SYNC_BYTES:
                self._file.sync()
                self._synced = self.size
        for last_offset, position, timestamp, timestamp_offset in output.drain():
            self._offsets.append(last_offset - self._base_offset, position)
            self._note_timestamp(timestamp, timestamp_offset)
        for index in (self._offsets, self._times):
            if index.wants_write:
                index.write_pending()

    def _note_timestamp(self, timestamp: int, offset: int) -> None:
        if timestamp > self._indexed_timestamp:
            self._times.append(timestamp, offset - self._base_offset)
            self._indexed_timestamp = timestamp

    def finish(
        self, output: CompactionOutput, aborted: Sequence[AbortedTransaction], created_ms: int
    ) -> Segment:
        """Write the rest and make the files durable; return their segment."""
        self.write(output)
        self._note_timestamp(output.max_timestamp, output.max_timestamp_offset)
        for entry in aborted:
            self._aborted.append(entry)
        for index in (self._offsets, self._times, self._aborted):
            index.write_pending()
            index.sync()
        self._file.sync()
        return Segment(
            self._open_files,
            self._directory,
            self._base_offset,
            index_bytes_max=self._index_bytes_max,
            created_ms=created_ms,
            sizes=(self.size, self._offsets.size, self._times.size),
            aborted_size=self._aborted.size,
        )

    def remove(self) -> None:
        """Remove the files."""
        for suffix in ALL_SUFFIXES:
            self._open_files.files.remove(self._name(suffix))
            self._open_files.forget(self._name(suffix))

    def abandon(self) -> None:
        """Remove the files after a failure, and ignore further failures."""
        with suppress(StorageError):
            self.remove()


# Transactions during a pass of compaction: aborted batches, and markers that are obsolete.
#
# Rule: a marker is obsolete only if no batch of its transaction came before it in the same pass, so
# never before all those batches are removed.


class PassedTransactions:
    """The transactions of a log during a pass over its batches in order.

    `is_aborted` or `is_obsolete` must be called for each batch exactly once.
    """

    def __init__(self) -> None:
        self._coming: deque[AbortedTransaction] = deque()
        self._newest = -1
        # By producer: aborted transactions that have begun, and whether they had a batch so far.
        self._aborted: dict[int, tuple[AbortedTransaction, bool]] = {}
        self._committed: set[int] = set()
        # The entries for the index of the new segment.
        self.still_aborted: list[AbortedTransaction] = []

    def add_aborted(self, aborted: Iterable[AbortedTransaction]) -> None:
        """Add the aborted transactions with offsets in the next segment; known ones are skipped."""
        new = [transaction for transaction in aborted if transaction.first_offset > self._newest]
        new.sort(key=lambda transaction: transaction.first_offset)
        if new:
            self._newest = new[-1].first_offset
            self._coming.extend(new)

    def is_aborted(self, header: BatchHeader) -> bool:
        """Whether a batch of records belongs to an aborted transaction."""
        if not header.is_transactional:
            return False
        self._begin_until(header.last_offset)
        entry = self._aborted.get(header.producer_id)
        if entry is not None:
            if header.last_offset <= entry[0].last_offset:
                self._aborted[header.producer_id] = (entry[0], True)
                return True
            del self._aborted[header.producer_id]  # It ended, and its marker is removed already.
        self._committed.add(header.producer_id)
        return False

    def is_obsolete(self, header: BatchHeader, buffer: Buffer) -> bool:
        """Whether a control batch is not needed any more: its transaction has no batches left."""
        self._begin_until(header.last_offset)
        if not header.record_count:
            return True
        marker = decode_marker(buffer, header)
        if marker is None:
            return False
        if marker.committed:
            obsolete = header.producer_id not in self._committed
            self._committed.discard(header.producer_id)
            return obsolete
        entry = self._aborted.pop(header.producer_id, None)
        if entry is None or not entry[1]:
            return True
        self.still_aborted.append(entry[0])
        return False

    def _begin_until(self, offset: int) -> None:
        while self._coming and self._coming[0].first_offset <= offset:
            entry = self._coming.popleft()
            self._aborted[entry.producer_id] = (entry, False)


# The two passes over a log: index its keys, then rewrite its segments with the latest records.
#
# Rule: the work is cut into steps, each for a worker thread, so that its owner can pace it or stop
# it between any two. The log is not changed here: its owner replaces its segments by the new ones,
# in order. So a record is never replaced before the older records of its key are.


# The bytes that a step reads or decompresses at most.
_STEP_BYTES = 4 << 20
_SLOTS_MIN = 4
# The most that a record grows when its batch gets a delete horizon.
_RECORD_GROWTH_MAX = 14


class CompactionLimits(NamedTuple):
    """The limits on the memory of a compaction."""

    table_bytes: int
    load_factor: float
    buffer_bytes: int


@dataclass(frozen=True, slots=True)
class LastBatches:
    """The batches to keep so that producer state can be rebuilt from the log after a restart.

    The last offsets of the producers' last batches, sorted; and the epochs of producers that have
    only markers.
    """

    offsets: Sequence[int] = ()
    marker_epochs: Mapping[int, int] = field(default_factory=dict)


class CompactionProgress(NamedTuple):
    """The bytes that were read and written since the last step."""

    bytes_read: int
    bytes_written: int


class SegmentReplacement(NamedTuple):
    """A new segment, with complete `.cleaned` files, and the segments that it replaces."""

    old: tuple[Segment, ...]
    new: Segment


class Compaction:
    """The compaction of a log by a plan. `steps` is to be iterated once.

    Afterwards all records below `end_offset` are compacted.
    """

    def __init__(
        self,
        plan: CompactionPlan[Segment],
        open_files: OpenFiles,
        directory: str,
        config: TopicConfig,
        limits: CompactionLimits,
        secret: bytes,
        now_ms: int,
        *,
        last_batches: LastBatches,
        aborted_in: Callable[[int, int], list[AbortedTransaction]],
        encryption: LogEncryption | None = None,
    ) -> None:
        self._plan = plan
        self._open_files = open_files
        self._directory = directory
        self._config = config
        self._limits = limits
        self._now_ms = now_ms
        self._last_batches = last_batches
        self._aborted_in = aborted_in
        self._encryption = encryption
        self._buffer = bytearray(limits.buffer_bytes)
        # Only its pages up to the size of the largest decompressed batch take memory.
        self._scratch = memoryview(mmap(-1, EXPANDED_BYTES_MAX))
        self._table = _table(plan.end_offset - plan.dirty_offset, limits, secret)
        self.end_offset = plan.dirty_offset
        self.records_read = self.records_kept = 0
        self.bytes_before = self.bytes_after = 0

    def steps(self) -> Iterator[CompactionProgress | SegmentReplacement]:
        """Do the work in steps. The caller carries out each SegmentReplacement before it continues,
        or gives up.

        StorageError if the disk fails, CorruptBatch if a batch is damaged. New files that have not
        replaced others are removed then, and when the iterator is closed.
        """
        yield from self._note_keys()
        yield from self._rewrite()

    def _note_keys(self) -> Iterator[CompactionProgress]:
        plan = self._plan
        indexer = KeyIndexer(self._table, plan.dirty_offset)
        transactions = PassedTransactions()
        for segment, end in _with_ends(plan.segments, plan.end_offset):
            if end <= plan.dirty_offset:
                continue
            start = max(segment.base_offset, plan.dirty_offset)
            transactions.add_aborted(self._aborted_in(start, end))
            walk = _SegmentWalk(segment, self._buffer, start)
            while not walk.at_end and not indexer.is_full:
                walk.move_to(indexer.index_batches(walk.buffer, walk.position, walk.end))
                if not indexer.is_full and (header := walk.next_batch()) is not None:
                    self._note_batch(indexer, transactions, header, walk)
                if walk.is_step:
                    yield CompactionProgress(walk.take_bytes_read(), 0)
            self._buffer = walk.buffer
            yield CompactionProgress(walk.take_bytes_read(), 0)
            if indexer.is_full:
                break
        self.end_offset = indexer.next_offset if indexer.is_full else plan.end_offset

    def _note_batch(
        self,
        indexer: KeyIndexer,
        transactions: PassedTransactions,
        header: BatchHeader,
        walk: "_SegmentWalk",
    ) -> None:
        """Index the keys of a batch that is compressed or of a transaction."""
        check_batch(walk.buffer, header, compacted=True)
        if header.is_control:
            transactions.is_obsolete(header, walk.view(header))
            indexer.skip_batch(header)
        elif transactions.is_aborted(header):
            indexer.skip_batch(header)
        else:
            indexer.index_records(self._records(walk, *self._decrypted(walk, header)), header)
        if not indexer.is_full:
            walk.move_to(header.position + header.size)

    def _decrypted(self, walk: "_SegmentWalk", header: BatchHeader) -> tuple[Buffer, BatchHeader]:
        """The buffer and the header of a batch, decrypted if it is encrypted."""
        if not header.is_encrypted or self._encryption is None:
            return walk.buffer, header
        decrypted = self._encryption.decrypt_batch(walk.buffer, header)
        return decrypted, read_header(decrypted)

    def _records(self, walk: "_SegmentWalk", buffer: Buffer, header: BatchHeader) -> Buffer:
        """The decompressed records of a batch, valid until the next call."""
        records = record_bytes(buffer, header, scratch=self._scratch)
        walk.bytes_expanded += len(records)
        return records

    def _rewrite(self) -> Iterator[CompactionProgress | SegmentReplacement]:
        """Rewrite every group of segments, up to the end of the indexed offsets."""
        plan, config = self._plan, self._config
        segments = [segment for segment in plan.segments if segment.base_offset < self.end_offset]
        after = plan.segments[len(segments) :]
        end_offset = after[0].base_offset if after else plan.end_offset
        output = CompactionOutput(self._limits.buffer_bytes, config.index_interval_bytes)
        rules = RecordFilter(
            self._table,
            output,
            self.end_offset,
            self._now_ms,
            self._now_ms + config.delete_retention_ms,
            list(self._last_batches.offsets),
        )
        transactions = PassedTransactions()
        for group in groups(segments, config, end_offset):
            last_base = group[-1].base_offset
            later = (known.base_offset for known in segments if known.base_offset > last_base)
            group_end = next(later, end_offset)
            new = NewSegment(
                self._open_files, self._directory, group[0].base_offset, config.segment_index_bytes
            )
            try:
                yield from self._write_group(group, group_end, new, output, rules, transactions)
                aborted, transactions.still_aborted = transactions.still_aborted, []
                segment = new.finish(output, aborted, group[-1].created_ms)
                yield SegmentReplacement(group, segment)
            except (HeadraceError, GeneratorExit):
                new.abandon()
                raise
            self.bytes_before += sum(old.size for old in group)
            self.bytes_after += segment.size
        self.records_read, self.records_kept = rules.records_read, rules.records_kept

    def _write_group(
        self,
        group: tuple[Segment, ...],
        end_offset: int,
        new: NewSegment,
        output: CompactionOutput,
        rules: RecordFilter,
        transactions: PassedTransactions,
    ) -> Iterator[CompactionProgress]:
        output.begin_file()
        for segment, end in _with_ends(group, end_offset):
            transactions.add_aborted(self._aborted_in(segment.base_offset, end))
            walk = _SegmentWalk(segment, self._buffer, segment.base_offset)
            written = new.size
            while not walk.at_end:
                # The last batch stays, so that the end offset can be read from the file.
                last_at = walk.last_at if segment is group[-1] else -1
                walk.move_to(rules.filter_batches(walk.buffer, walk.position, walk.end, last_at))
                if (header := walk.next_batch()) is not None:
                    is_last = segment is group[-1] and walk.last_at == header.position + header.size
                    self._filter_batch(rules, transactions, header, walk, is_last, new, output)
                if walk.is_step:
                    yield CompactionProgress(walk.take_bytes_read(), new.size - written)
                    written = new.size
            self._buffer = walk.buffer
            yield CompactionProgress(walk.take_bytes_read(), new.size - written)

    def _filter_batch(
        self,
        rules: RecordFilter,
        transactions: PassedTransactions,
        header: BatchHeader,
        walk: "_SegmentWalk",
        is_last: bool,
        new: NewSegment,
        output: CompactionOutput,
    ) -> None:
        """Filter a batch that `filter_batches` did not take."""
        room = header.size + header.record_count * _RECORD_GROWTH_MAX
        if _is_plain(header) and room > output.capacity - output.used:
            # It was not taken only because the output was full.
            new.write(output)
            if room > output.capacity:
                output.grow(room)
            return
        check_batch(walk.buffer, header, compacted=True)
        is_obsolete = discard = False
        if header.is_control:
            is_obsolete = transactions.is_obsolete(header, walk.view(header))
            discard = is_obsolete and header.has_delete_horizon
            discard = discard and header.base_timestamp <= self._now_ms
        else:
            discard = transactions.is_aborted(header)
        buffer, decrypted = self._decrypted(walk, header)
        payload = self._records(walk, buffer, decrypted)
        left = rules.filter_records(payload, decrypted, discard, is_obsolete)
        if left != NOTHING or is_last or self._is_kept(rules, header):
            body: Buffer = b""
            source, changed = walk.buffer, header
            if left == SOMETHING:
                body = compress(header.compression, rules.kept_records(payload, decrypted))
                if header.is_encrypted:
                    source = self._encrypted_again(rules, buffer, decrypted, body)
                    changed, left, body = read_header(source), EVERYTHING, b""
            room = max(changed.size, HEADER_SIZE + len(body))
            if room > output.capacity - output.used:
                new.write(output)
                if room > output.capacity:
                    output.grow(room)
            rules.put(source, changed, left, body)
        walk.move_to(header.position + header.size)

    def _encrypted_again(
        self, rules: RecordFilter, decrypted: Buffer, header: BatchHeader, body: Buffer
    ) -> bytearray:
        """The batch with the records `body` that are left of it, encrypted as it was."""
        assert self._encryption is not None, header
        plain = CompactionOutput(HEADER_SIZE + len(body), self._config.index_interval_bytes)
        rules.put(decrypted, header, SOMETHING, body, plain)
        return self._encryption.encrypt(plain.data, read_header(plain.data), self._now_ms)

    def _is_kept(self, rules: RecordFilter, header: BatchHeader) -> bool:
        """Whether a batch stays without its records, as the last batch of its producer."""
        if not header.has_producer:
            return False
        if header.is_control:
            epoch = self._last_batches.marker_epochs.get(header.producer_id)
            return epoch == header.producer_epoch
        return rules.is_kept(header.last_offset)


class _SegmentWalk:
    """A walk over the batches of a segment, from the batch that holds an offset on.

    `buffer[position:end]` is read and not passed yet; the last batch in it may be incomplete.
    """

    def __init__(self, segment: Segment, buffer: bytearray, offset: int) -> None:
        self._segment = segment
        self._file = segment.file()  # Kept open, even if it is renamed meanwhile.
        self._limit = segment.size
        self._next = segment.position_of(offset, segment.size)
        self.buffer = buffer
        self.position = self.end = 0
        self.bytes_read = self.bytes_expanded = 0
        self._fill()

    @property
    def at_end(self) -> bool:
        """Whether every batch was passed."""
        return self.position == self.end and self._next == self._limit

    @property
    def last_at(self) -> int:
        """The position in the buffer of the segment's end, or -1 if that is not read yet."""
        return self.end if self._next == self._limit else -1

    @property
    def is_step(self) -> bool:
        """Whether enough bytes were read or decompressed since the last `take_bytes_read`."""
        return max(self.bytes_read, self.bytes_expanded) >= _STEP_BYTES

    def take_bytes_read(self) -> int:
        """The bytes read since the last call."""
        count, self.bytes_read, self.bytes_expanded = self.bytes_read, 0, 0
        return count

    def move_to(self, position: int) -> None:
        """Pass the batches before `position`."""
        self.position = position
        if position == self.end and self._next < self._limit:
            self._fill()

    def next_batch(self) -> BatchHeader | None:
        """The header of the batch at `position`; None if it was incomplete and more was read."""
        if self.position == self.end:
            return None
        size = self.end - self.position
        if size >= HEADER_SIZE:
            header = read_header(self.buffer, self.position)
            if header.size <= size:
                return header
            if header.size > len(self.buffer):
                rest = self._limit - self._next + size
                if header.size > rest:
                    raise self._corrupt(f"a batch of {header.size} bytes, and {rest} left")
                self.buffer = self.buffer[self.position : self.end].ljust(header.size, b"\0")
                self.position, self.end = 0, size
        if self._next == self._limit:
            raise self._corrupt(f"only {size} bytes left")
        self._fill()
        return None

    def view(self, header: BatchHeader) -> memoryview:
        """The bytes of the buffer up to the end of a batch."""
        return memoryview(self.buffer)[: header.position + header.size]

    def _fill(self) -> None:
        """Move the bytes not passed yet to the front of the buffer, and read more behind them."""
        kept = self.end - self.position
        self.buffer[:kept] = self.buffer[self.position : self.end]
        count = min(len(self.buffer) - kept, self._limit - self._next)
        with memoryview(self.buffer) as view:
            read = self._file.read_into(self._next, view[kept : kept + count])
        if read != count:
            raise self._corrupt(f"the file ends {count - read} bytes early")
        self._next += count
        self.bytes_read += count
        self.position, self.end = 0, kept + count

    def _corrupt(self, cause: str) -> CorruptBatch:
        position = self._next - (self.end - self.position)
        return CorruptBatch(cause, path=self._segment.log_path, position=position)


def _with_ends(segments: Sequence[Segment], end_offset: int) -> Iterator[tuple[Segment, int]]:
    """Each segment with its end offset."""
    for number, segment in enumerate(segments, 1):
        is_last = number == len(segments)
        yield segment, end_offset if is_last else segments[number].base_offset


def _is_plain(header: BatchHeader) -> bool:
    """Whether a batch is uncompressed and readable, of no transaction and no control batch."""
    return not (
        header.compression or header.is_encrypted or header.is_transactional or header.is_control
    )


def _table(offsets: int, limits: CompactionLimits, secret: bytes) -> KeyTable:
    """A table for the keys of `offsets` records, or of as many as the limits allow."""
    wanted = int(offsets / limits.load_factor) + 2
    slots = max(min(wanted, limits.table_bytes // SLOT_SIZE), _SLOTS_MIN)
    return KeyTable(slots, min(int(slots * limits.load_factor), slots - 1), secret)


# The compaction of a log, for the log's owner.
#
# Rule: the log's state is read in the thread that owns it, before the first step. Later appends lie
# behind the end of the plan, so they do not matter.


def plan_for(log: Log, high_watermark: int, now_ms: int) -> CompactionPlan[Segment]:
    """The plan of a compaction of a log."""
    return plan(
        log.segments,
        log.config,
        now_ms,
        clean_offset=log.clean_offset,
        log_start_offset=log.log_start_offset,
        last_stable_offset=log.last_stable_offset(high_watermark),
        recovery_point=log.recovery_point,
    )


class LogCompaction:
    """The compaction of a log by a plan that was just made.

    `steps` and `sync_names` may run in a worker thread; the rest is for the log's owner.
    """

    def __init__(
        self,
        log: Log,
        wanted: CompactionPlan[Segment],
        limits: CompactionLimits,
        secret: bytes,
        now_ms: int,
    ) -> None:
        self._log = log
        self._truncations = log.truncations
        self.work = Compaction(
            wanted,
            log.open_files,
            log.directory,
            log.config,
            limits,
            secret,
            now_ms,
            last_batches=last_batches(log.producers),
            aborted_in=log.aborted_transactions,
            encryption=log.encryption.for_compaction(),
        )

    def steps(self) -> Iterator[CompactionProgress | SegmentReplacement]:
        """The steps of the compaction: see `Compaction.steps`."""
        return self.work.steps()

    @property
    def is_outdated(self) -> bool:
        """Whether the log was truncated meanwhile, so that segments may have changed."""
        return self._log.truncations != self._truncations

    def replace(self, step: SegmentReplacement, now_ms: int) -> bool:
        """Replace segments by a new segment; False if the log has changed too much meanwhile."""
        return not self.is_outdated and self._log.replace_segments(step.old, step.new, now_ms)

    def sync_names(self) -> None:
        """Make a replacement durable. May run in a worker thread."""
        self._log.open_files.files.sync_directory(self._log.directory)

    def finish(self) -> None:
        """Set the log's clean offset, after every replacement was made and is durable."""
        if not self.is_outdated:
            self._log.clean_offset = self.work.end_offset


def last_batches(producers: ProducerStates) -> LastBatches:
    """The batches to keep for the producers of a log."""
    offsets = [producer.batches[-1].last_offset for _, producer in producers if producer.batches]
    epochs = {
        producer_id: producer.epoch for producer_id, producer in producers if not producer.batches
    }
    return LastBatches(sorted(offsets), epochs)
