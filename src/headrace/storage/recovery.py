"""Opening a log: loading its files, and recovery after a crash.

Rule: segments that end before the last record below the recovery point are trusted: the flush of
that record made their indexes durable too. From its segment on every batch is walked and its CRC
checked. A bad batch at or past the recovery point was never flushed: the log ends before it. A bad
batch below is damage, as is a missing segment, even the first, and the log is not opened. After a
clean shutdown only the tail behind the last index entry is read, and everything is below the
recovery point.
"""

import os
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple

from headrace.config import TopicConfig
from headrace.errors import CorruptBatch
from headrace.protocol.batch import HEADER_SIZE, BatchHeader, check_batch, read_header
from headrace.storage.aborted_index import ABORTED_SUFFIX, aborted_size_fits
from headrace.storage.checkpoints import (
    FLUSHED_OFFSET,
    LEADER_EPOCHS,
    LOG_START,
    PARTITION_METADATA,
    SEGMENT_SIZES,
    SegmentSizes,
    decode_partition_metadata,
    decode_segment_sizes,
    encode_partition_metadata,
)
from headrace.storage.damage import DamagedLog, check_follows, find_whole_batch
from headrace.storage.files import FileMissing, Files
from headrace.storage.index import DamagedIndex
from headrace.storage.leader_epochs import EpochScan, LeaderEpochs, StaleBatch
from headrace.storage.log_segments import Segments, segment_index
from headrace.storage.log_start_offsets import LogStart, read_log_start
from headrace.storage.open_files import OpenFiles
from headrace.storage.producer_state import SUFFIX as SNAPSHOT_SUFFIX
from headrace.storage.producer_state import ProducerSnapshots, ProducerStates
from headrace.storage.recovery_point import RecoveryPoint, read_flushed_offset
from headrace.storage.segment import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SUFFIXES,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    BatchPosition,
    Segment,
    index_sizes_fit,
)
from headrace.types import Buffer

TEMPORARY_SUFFIX = ".tmp"


@dataclass(slots=True)
class RecoveryReport:
    """A report on opening a log, for the broker's log.

    A torn tail was cut off from offset `truncated_from` on, up to `truncated_end` as far as whole
    batches of it were found. `rebuilt` has a line for each small file that was wrong.
    """

    scanned: bool = False
    scanned_bytes: int = 0
    truncated_bytes: int = 0
    truncated_because: str = ""
    truncated_from: int = -1
    truncated_end: int = -1
    rebuilt_indexes: int = 0
    rebuilt: list[str] = field(default_factory=list)


class LoadedLog(NamedTuple):
    """The parts of an opened log."""

    open_files: OpenFiles
    segments: Segments
    epochs: LeaderEpochs
    producers: ProducerStates
    snapshots: ProducerSnapshots
    flusher: RecoveryPoint
    start: LogStart
    topic_id: bytes | None
    log_start_offset: int
    log_end_offset: int
    report: RecoveryReport


def load(
    open_files: OpenFiles,
    directory: str,
    config: TopicConfig,
    now_ms: int,
    *,
    topic_id: bytes | None,
    recovery_point: int,
    log_start_offset: int,
    clean: bool,
    compacted: bool = False,
    same_boot: bool = False,
    check_start: bool = True,
) -> LoadedLog:
    """Open the log in `directory`, or make a new log there with `topic_id`.

    Unless `check_start` is false, its first segment must be where `log-start-offset` says.

    Segments of a log that was ever `compacted` need not be contiguous. `same_boot` says that the
    machine was not rebooted since the log was written, so that no byte that reached a file is
    missing. DamagedLog if flushed data are lost: then the log keeps all the batches it was found
    with.
    """
    flushed_offset = read_flushed_offset(open_files.files, directory)
    if not clean:
        recovery_point = max(recovery_point, flushed_offset or 0)
    loader = _LogLoader(
        open_files,
        directory,
        config,
        now_ms,
        # Below the log start offset records may be missing: DeleteRecords has removed them.
        flushed=recovery_point if recovery_point > log_start_offset else 0,
        log_start_offset=log_start_offset,
        compacted=compacted or "compact" in config.cleanup_policy,
        same_boot=same_boot,
        check_start=check_start,
    )
    is_new = loader.find(log_start_offset)
    loader.load_epochs()
    if is_new:
        end_offset = log_start_offset
        if topic_id is not None:
            write_topic_id(open_files.files, directory, topic_id)
    else:
        end_offset = loader.load(recovery_point, clean=clean)
        topic_id = read_topic_id(open_files.files, directory) or topic_id
    log_start_offset, end_offset = loader.begin_at(log_start_offset, end_offset, recovery_point)
    loader.snapshots.keep_only({segment.base_offset for segment in loader.segments})
    loader.start.settle_at(loader.segments[0].base_offset)
    start_offset = max(log_start_offset, loader.segments[0].base_offset)
    loader.epochs.truncate_from_end(end_offset)
    loader.epochs.truncate_from_start(start_offset)
    return LoadedLog(
        open_files,
        Segments(open_files, directory, loader.segments),
        loader.epochs,
        loader.producers,
        loader.snapshots,
        loader.flusher(end_offset, flushed_offset, names_unsynced=is_new or not clean),
        loader.start,
        topic_id,
        start_offset,
        end_offset,
        loader.report,
    )


def load_producers(
    producers: ProducerStates,
    snapshots: ProducerSnapshots,
    segments: Sequence[Segment],
    end_offset: int,
    heard_ms: int,
) -> None:
    """Load producer state as of `end_offset`, from a snapshot and the batches after it.

    The producers of those batches count as active at `heard_ms`.
    """
    offset = snapshots.load_newest(producers, end_offset) or 0
    _replay(producers, segments, offset, end_offset, heard_ms)


def _replay(
    producers: ProducerStates,
    segments: Sequence[Segment],
    offset: int,
    end_offset: int,
    heard_ms: int,
) -> None:
    if offset >= end_offset or not segments:
        return
    for segment in segments[max(segment_index(segments, offset), 0) :]:
        start = segment.position_of(offset, segment.size)
        for header, buffer, _ in segment.batches(start, segment.size):
            if header.next_offset > end_offset:
                return
            producers.replay(header, buffer, heard_ms)


def read_topic_id(files: Files, directory: str) -> bytes | None:
    """The topic id in `partition.metadata`; None if it is missing or damaged."""
    data = files.read_bytes(f"{directory}/{PARTITION_METADATA}")
    try:
        return decode_partition_metadata(data) if data else None
    except ValueError:
        return None


def write_topic_id(files: Files, directory: str, topic_id: bytes) -> None:
    """Write `partition.metadata`. It is not flushed: the cluster's metadata has the id as well."""
    path = f"{directory}/{PARTITION_METADATA}"
    files.write_atomically(path, encode_partition_metadata(topic_id), sync=False)


class _LogLoader:
    """A log while it is being opened."""

    def __init__(
        self,
        open_files: OpenFiles,
        directory: str,
        config: TopicConfig,
        now_ms: int,
        *,
        flushed: int,
        log_start_offset: int,
        compacted: bool,
        same_boot: bool,
        check_start: bool,
    ) -> None:
        self.report = RecoveryReport()
        self.segments: list[Segment] = []
        self.epochs = LeaderEpochs(open_files.files, directory)
        self.producers = ProducerStates()
        self.snapshots = ProducerSnapshots(open_files.files, directory, [])
        self._open_files = open_files
        self._files = open_files.files
        self._directory = directory
        self._config = config
        self._now_ms = now_ms
        # The time at which producers found in the log count as active: not before the last append.
        self._heard_ms = now_ms
        self._flushed = flushed
        self._compacted = compacted
        self._compacted_now = False
        self._log_start_offset = log_start_offset
        self._same_boot = same_boot
        self._check_start = check_start
        log_start = read_log_start(open_files.files, directory)
        self.start = LogStart(open_files, directory, log_start)
        if log_start is None:
            self._report_unreadable(LOG_START)
        self._epochs_unreadable = False
        self._scanned_epochs = EpochScan(())
        self._damaged: set[int] = set()
        self._damaged_aborted: set[int] = set()

    def find(self, log_start_offset: int) -> bool:
        """List the segments and snapshots; returns whether there were none, so that a new log is
        made.
        """
        if not self._files.exists(self._directory):
            self._files.make_directory(self._directory)
            sizes = {}
        else:
            sizes = self._without_leftovers(self._files.file_sizes(self._directory))
        offsets = [_offset(name) for name in sizes if name.endswith(SNAPSHOT_SUFFIX)]
        self.snapshots = ProducerSnapshots(
            self._files, self._directory, [offset for offset in offsets if offset is not None]
        )
        for name, size in sizes.items():
            if name.endswith(LOG_SUFFIX) and (offset := _offset(name)) is not None:
                stem = name.removesuffix(LOG_SUFFIX)
                index_sizes = tuple(sizes.get(stem + suffix, -1) for suffix in SUFFIXES[1:])
                aborted_size = sizes.get(stem + ABORTED_SUFFIX, 0)
                self._add(offset, size, index_sizes[0], index_sizes[1], aborted_size)
        if self.segments:
            # The clock may be behind that of the time when the log was written.
            self._heard_ms = max(self._now_ms, self.segments[-1].modified_ms())
            return False
        if self._flushed:
            raise DamagedLog(
                self._directory, "it has no segment", log_start_offset, self._flushed, 0
            )
        self.restart(log_start_offset)
        return True

    def load_epochs(self) -> None:
        """Read the epoch checkpoint; if it is damaged it is rebuilt from the batches later."""
        try:
            self.epochs.load()
        except ValueError as error:
            self._epochs_unreadable = True
            self.report.rebuilt.append(f"{self.epochs.path} cannot be read: {error}")

    def _report_unreadable(self, name: str) -> bool:
        """Report a file that is damaged, and is written again; False if it is missing."""
        path = f"{self._directory}/{name}"
        is_there = self._files.exists(path)
        if is_there:
            self.report.rebuilt.append(f"{path} cannot be read")
        return is_there

    def _add(
        self, base_offset: int, size: int, index_size: int, time_index_size: int, aborted_size: int
    ) -> None:
        if min(index_size, time_index_size) < 0 or not index_sizes_fit(index_size, time_index_size):
            self._damaged.add(base_offset)
        if not aborted_size_fits(aborted_size):
            self._damaged_aborted.add(base_offset)
        sizes = (size, max(index_size, 0), max(time_index_size, 0))
        self.segments.append(self._segment(base_offset, sizes, aborted_size))

    def _segment(
        self, base_offset: int, sizes: tuple[int, int, int] = (0, 0, 0), aborted_size: int = 0
    ) -> Segment:
        return Segment(
            self._open_files,
            self._directory,
            base_offset,
            index_bytes_max=self._config.segment_index_bytes,
            created_ms=self._now_ms,
            sizes=sizes,
            aborted_size=aborted_size,
        )

    def _without_leftovers(self, sizes: dict[str, int]) -> dict[str, int]:
        """Finish or undo changes that a crash interrupted; return the remaining files."""
        gone = [n for n in sizes if n.endswith((DELETED_SUFFIX, CLEANED_SUFFIX, TEMPORARY_SUFFIX))]
        stems = {n.removesuffix(LOG_SUFFIX) for n in sizes if n.endswith(LOG_SUFFIX)}
        indexes = (INDEX_SUFFIX, TIME_INDEX_SUFFIX, ABORTED_SUFFIX)
        gone += [n for n in sizes if n.endswith(indexes) and n.rpartition(".")[0] not in stems]
        for name in gone:
            self._files.remove(f"{self._directory}/{name}")
        swaps = [name for name in sizes if name.endswith(SWAP_SUFFIX)]
        if not swaps:
            return {name: size for name, size in sizes.items() if name not in gone}
        for name in swaps:
            self._finish_swap(name, sizes)
        return self._files.file_sizes(self._directory)

    def _finish_swap(self, name: str, sizes: dict[str, int]) -> None:
        """Finish the replacement of segments by a compacted one, which is complete under its
        `.swap` name.

        Its indexes are dropped, since they may be older, and rebuilt. It gets its final name last,
        so that after a crash here it is not left beside the old segments.
        """
        path = f"{self._directory}/{name}"
        final = path.removesuffix(SWAP_SUFFIX)
        base_offset = _offset(name.removesuffix(SWAP_SUFFIX))
        if not final.endswith(LOG_SUFFIX) or base_offset is None:
            self._files.remove(path)
            return
        swapped = self._segment(base_offset, (sizes[name], 0, 0))
        swapped.read_from(self._files.open(path))
        end_offset = base_offset
        for header, _, _ in swapped.batches(0, swapped.size):
            end_offset = header.next_offset
        for other in sizes:
            offset = _offset(other) if other.endswith(LOG_SUFFIX) else None
            if offset is not None and base_offset < offset < end_offset:
                self._segment(offset).remove()
        for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX, ABORTED_SUFFIX):
            self._files.remove(final.removesuffix(LOG_SUFFIX) + suffix)
        self._files.rename(path, final)
        self._damaged_aborted.add(base_offset)
        self._compacted = self._compacted_now = True

    def restart(self, base_offset: int) -> None:
        """Remove everything and begin an empty log at `base_offset`."""
        for segment in self.segments:
            segment.remove()
        self.producers.clear()
        self.snapshots.remove_after(-1)
        self.segments = [self._segment(base_offset)]
        self.segments[0].create()

    def begin_at(
        self, log_start_offset: int, end_offset: int, recovery_point: int
    ) -> tuple[int, int]:
        """The start and end offset of the log; the checkpointed start may be behind its end."""
        if end_offset >= log_start_offset:
            return log_start_offset, end_offset
        if log_start_offset <= recovery_point:
            # Records deleted on request must not come back, nor their offsets be used again.
            self.start.raise_to(log_start_offset)
            self.restart(log_start_offset)
            return log_start_offset, log_start_offset
        self.report.rebuilt.append(
            f"the checkpointed log start offset {log_start_offset} of {self._directory} lies behind"
            f" its end {end_offset} and its recovery point {recovery_point}: it is ignored"
        )
        return 0, end_offset

    def flusher(
        self, end_offset: int, flushed_offset: int | None, *, names_unsynced: bool
    ) -> RecoveryPoint:
        """The flusher of the log, whose recovery point is its end."""
        flusher = RecoveryPoint(
            self._open_files,
            self._directory,
            self.epochs,
            self.snapshots,
            self.start,
            recovery_point=end_offset,
            now_ms=self._now_ms,
            flushed_offset=flushed_offset or 0,
            names_unsynced=names_unsynced,
        )
        if flushed_offset is None and self._report_unreadable(FLUSHED_OFFSET):
            flusher.restore_note()
        return flusher

    def load(self, recovery_point: int, *, clean: bool) -> int:
        """Load the log, scanning as little as is safe; return its end offset."""
        try:
            return self._load(recovery_point, clean=clean)
        except CorruptBatch as error:
            raise self._damage_of(error) from error

    def _load(self, recovery_point: int, *, clean: bool) -> int:
        newest_snapshot = self.snapshots.offsets[-1] if self.snapshots.offsets else 0
        if clean:
            # Closing a log leaves a snapshot at its end offset.
            self._flushed = max(self._flushed, newest_snapshot)
        noted = self._noted_segments()
        if self._check_start:
            self._check_first_segment(noted)
        for number, sizes in enumerate(noted):
            following = noted[number + 1].base_offset if number + 1 < len(noted) else self._flushed
            self._compare_sizes(sizes, following, clean=clean)
        end_offset = self._load_clean_tail(is_joined=bool(noted)) if clean else None
        if end_offset is None:
            end_offset = self._recover(recovery_point)
            if clean:
                self._report_indexes(self.segments[-1])
        else:
            load_producers(
                self.producers, self.snapshots, self.segments, end_offset, self._heard_ms
            )
        if self._epochs_unreadable or not self._epochs_fit(end_offset):
            self._rebuild_epochs()
        if clean and end_offset == newest_snapshot < self._flushed:
            self.report.rebuilt.append(
                f"the checkpointed recovery point {self._flushed} of {self._directory} lies behind"
                f" its end {end_offset}: it is ignored"
            )
        elif end_offset < self._flushed:
            raise DamagedLog(
                self.segments[-1].log_path,
                f"it ends before offset {self._flushed}, up to which it was flushed",
                end_offset,
                self._flushed,
                0,
            )
        return end_offset

    def _epochs_fit(self, end_offset: int) -> bool:
        """Whether the first and the last batch of each epoch in the checkpoint have that epoch."""
        first = self.segments[0].base_offset
        entries = self.epochs.entries
        for epoch, start_offset in [*entries, (self.epochs.latest, end_offset)]:
            for offset in (start_offset - 1, start_offset):
                if not first <= offset < end_offset:
                    continue
                try:
                    header = self._batch_at(offset)
                except CorruptBatch:
                    return False
                if header is None or header.leader_epoch < 0:
                    continue
                known = self.epochs.epoch_of(header.base_offset)
                if header.base_offset < start_offset <= header.last_offset:
                    # Only at the log start may an epoch begin in the middle of a batch.
                    if epoch != entries[0][0] or start_offset > self._log_start_offset:
                        return False
                elif header.leader_epoch != known:
                    # Epochs of batches before the log start need not be in the checkpoint.
                    is_needed = header.base_offset >= self._log_start_offset or not entries
                    if known >= 0 or is_needed:
                        return False
        return True

    def _batch_at(self, offset: int) -> BatchHeader | None:
        """The header of the batch that ends at or behind `offset`; None if not in its segment."""
        segment = self.segments[segment_index(self.segments, offset)]
        position = segment.position_of(offset, segment.size)
        if position >= segment.size:
            return None
        return read_header(segment.file().read_at(position, HEADER_SIZE))

    def _rebuild_epochs(self) -> None:
        """Rebuild the epoch checkpoint from all batches; DamagedLog if some of them are stale."""
        scan = EpochScan(self.epochs.entries)
        for index in range(len(self.segments)):
            for header, _, position in self._trusted_batches(index):
                try:
                    scan.add(header)
                except CorruptBatch as error:
                    reason = str(error)
                    raise self._damage(index, position, header.base_offset, reason) from error
        if scan.stale is not None:
            self._refuse_stale(scan.stale)
        if not self._epochs_unreadable:
            self.report.rebuilt.append(f"{self.epochs.path} contradicted the batches")
        self.epochs.replace(scan.found)
        self._files.sync_file(self.epochs.path)
        self._files.sync_directory(self._directory)

    def _refuse_stale(self, stale: StaleBatch) -> None:
        index = max(segment_index(self.segments, stale.offset), 0)
        raise DamagedLog(
            self.segments[index].log_path,
            f"its batches from offset {stale.offset} on are of leader epoch {stale.epoch}, where"
            f" {self.epochs.path} says {stale.newer_epoch}",
            stale.offset,
            max(self._flushed, stale.offset),
            sum(segment.size for segment in self.segments[index:]),
        )

    def _trusted_batches(self, index: int) -> Iterator[BatchPosition]:
        """The batches of a segment that was flushed; DamagedLog at the first bad batch."""
        segment = self.segments[index]
        position, offset, limit = 0, segment.base_offset, self._limit(index)
        try:
            for batch in segment.batches(0, segment.size):
                header = batch.header
                check_follows(header, offset, self._flushed, limit)
                check_batch(batch.buffer, header, compacted=True)
                yield batch
                position, offset = batch.position + header.size, header.next_offset
        except CorruptBatch as error:
            raise self._damage(index, position, offset, str(error)) from error

    def _damage_of(self, error: CorruptBatch) -> DamagedLog:
        """The DamagedLog for a bad batch that was found in a flushed part of the log."""
        for index in range(len(self.segments)):
            try:
                for _ in self._trusted_batches(index):
                    pass
            except DamagedLog as damage:
                return damage
        end_offset = max(self._flushed, self.segments[0].base_offset)
        return DamagedLog(self._directory, str(error), end_offset, end_offset, 0)

    def _damage(self, index: int, position: int, offset: int, reason: str) -> DamagedLog:
        """The DamagedLog for bytes from a position of a segment up to the next whole batch."""
        segment = self.segments[index]
        reason = reason.removeprefix(f"{segment.log_path} ")
        found = find_whole_batch(self.segments, index, position, offset)
        if found is None:
            later = self.segments[index + 1 :]
            size = segment.size - position + sum(following.size for following in later)
            return DamagedLog(segment.log_path, reason, offset, max(offset, self._flushed), size)
        between = self.segments[index : found.segment]
        size = found.position - position + sum(passed.size for passed in between)
        return DamagedLog(segment.log_path, reason, offset, found.header.base_offset, size)

    def _noted_segments(self) -> list[SegmentSizes]:
        """The segment checkpoint: file sizes when the log was closed, or last rolled."""
        path = f"{self._directory}/{SEGMENT_SIZES}"
        data = self._files.read_bytes(path)
        try:
            return decode_segment_sizes(data) if data is not None else []
        except (ValueError, TypeError) as error:
            self.report.rebuilt.append(f"{path} cannot be read: {error}")
            return []

    def _check_first_segment(self, noted: Sequence[SegmentSizes]) -> None:
        """DamagedLog if the log begins behind the offset below which segments may be gone."""
        first = self.segments[0].base_offset
        start_offset = max(self.start.offset, self._log_start_offset)
        if self.start.offset < 0 or first <= start_offset:
            return
        path = f"{self._directory}/{self.start.offset:020d}{LOG_SUFFIX}"
        size = sum(sizes.size for sizes in noted if start_offset <= sizes.base_offset < first)
        raise DamagedLog(path, "it is missing", start_offset, first, size)

    def _compare_sizes(self, noted: SegmentSizes, following: int, *, clean: bool) -> None:
        """Compare a segment with the segment checkpoint: mark wrong indexes for a rebuild.

        DamagedLog if batches are missing after a clean shutdown. Without a clean shutdown the
        checkpoint may have segments that were compacted or removed since.
        """
        index = bisect_left(self.segments, noted.base_offset, key=attrgetter("base_offset"))
        if index == len(self.segments) or self.segments[index].base_offset != noted.base_offset:
            if clean and not self._compacted_now and following > self._log_start_offset:
                path = f"{self._directory}/{noted.base_offset:020d}{LOG_SUFFIX}"
                first = max(noted.base_offset, self._log_start_offset)
                raise DamagedLog(path, "it is missing", first, following, noted.size)
            return
        segment = self.segments[index]
        if segment.size < noted.size and clean:
            end_offset = segment.base_offset
            for batch in self._trusted_batches(index):
                end_offset = batch.header.next_offset
            reason = f"it has {segment.size} bytes, and had {noted.size} when the log was closed"
            lost = noted.size - segment.size
            raise DamagedLog(segment.log_path, reason, end_offset, following, lost)
        if segment.size != noted.size:
            return
        if (segment.offset_index.size, segment.time_index.size) != noted[2:4]:
            self._damaged.add(segment.base_offset)
        try:
            if (segment.aborted.size, segment.aborted.checksum()) != noted[4:]:
                raise DamagedIndex(segment.aborted.path)
        except (DamagedIndex, FileMissing):
            self._damaged_aborted.add(segment.base_offset)

    def _load_clean_tail(self, *, is_joined: bool) -> int | None:
        """The end offset of a cleanly closed log; None if its tail has to be scanned after all."""
        for index, segment in enumerate(self.segments[:-1]):
            if segment.base_offset in self._damaged:
                self._rebuild(segment)
            if segment.base_offset in self._damaged_aborted:
                self._rebuild_aborted(index)
            if not is_joined:
                self._check_joined(index)
        active = self.segments[-1]
        if active.base_offset in self._damaged | self._damaged_aborted:
            return None
        try:
            active.check_indexes()
            active.check_aborted()
            return active.load_tail(self._check_batch)
        except (CorruptBatch, DamagedIndex):
            return None

    def _check_batch(self, buffer: Buffer, header: BatchHeader, offset: int) -> None:
        """CorruptBatch if a batch of the active segment is wrong, or not the one at `offset`."""
        check_follows(header, offset, self._flushed)
        check_batch(buffer, header, compacted=True)

    def _limit(self, index: int) -> int | None:
        """The base offset of the next segment; None if there is none."""
        return self.segments[index + 1].base_offset if index + 1 < len(self.segments) else None

    def _recover(self, recovery_point: int) -> int:
        """Scan the segments that may be torn, and cut the log there; return its end offset."""
        first = max(segment_index(self.segments, recovery_point - 1), 0)
        for index in range(first):
            self._check_trusted(index)
            self._check_joined(index)
        start_offset = self.segments[first].base_offset
        load_producers(
            self.producers, self.snapshots, self.segments[:first], start_offset, self._heard_ms
        )
        if first and start_offset not in self.snapshots.offsets:
            # It was damaged. Once earlier segments are deleted it could not be rebuilt.
            self.snapshots.take(self.producers, start_offset)
        end_offset = self._scan_from(first)
        while (stale := self._scanned_epochs.stale) is not None:
            self._cut_stale(stale)
            load_producers(
                self.producers, self.snapshots, self.segments[:first], start_offset, self._heard_ms
            )
            end_offset = self._scan_from(first)
        if self._scanned_epochs.file_is_wrong:
            self._rebuild_epochs()
        else:
            newest = self.epochs.latest
            newer = [entry for entry in self._scanned_epochs.found if entry[0] > newest]
            self.epochs.replace([*self.epochs.entries, *newer])
        if end_offset != recovery_point or self.report.truncated_because:
            # Bytes that the crashed process wrote may be in the page cache only.
            for segment in self.segments[first:]:
                segment.sync(indexes=True)
            self.snapshots.sync()
            for name in (LEADER_EPOCHS, PARTITION_METADATA):
                self._files.sync_file(f"{self._directory}/{name}")
            self._files.sync_directory(self._directory)
            self._files.sync_directory(os.path.dirname(self._directory))
        self.report.scanned = True
        return end_offset

    def _scan_from(self, first: int) -> int:
        """Check the batches from a segment on; return the end offset."""
        self._scanned_epochs = EpochScan(self.epochs.entries)
        end_offset = self.segments[first].base_offset
        for index in range(first, len(self.segments)):
            segment = self.segments[index]
            if index > first:
                if segment.base_offset != end_offset and not self._compacted:
                    # A segment begins where the segment before it ended: batches were lost.
                    reason = f"{segment.log_path} does not follow on offset {end_offset}"
                    self._end_at(index - 1, self.segments[index - 1].size, end_offset, reason)
                    break
                self.snapshots.take(self.producers, segment.base_offset)
            end_offset = self._scan(index, end_offset)
            if index + 1 >= len(self.segments):
                break  # Later segments were cut off.
        return end_offset

    def _cut_stale(self, stale: StaleBatch) -> None:
        """Cut off batches of an epoch that had ended, if they were never flushed."""
        if stale.offset < self._flushed:
            self._refuse_stale(stale)
        index = segment_index(self.segments, stale.offset)
        segment = self.segments[index]
        self._cut(
            index,
            segment.position_of(stale.offset, segment.size),
            stale.offset,
            f"{segment.log_path}: batches of leader epoch {stale.epoch} from offset {stale.offset}"
            f" on, where {self.epochs.path} says {stale.newer_epoch}",
        )

    def _end_at(self, index: int, position: int, offset: int, reason: str) -> None:
        """Cut the log before a bad batch; DamagedLog if a crash cannot have caused it."""
        if offset < self._flushed:
            raise self._damage(index, position, offset, reason)
        if self._same_boot and find_whole_batch(self.segments, index, position, offset) is not None:
            # A crash of the process may leave an incomplete batch, but no batch behind it.
            raise self._damage(index, position, offset, reason)
        self._cut(index, position, offset, reason)

    def _cut(self, index: int, position: int, offset: int, reason: str) -> None:
        """Remove everything from a position of a segment on."""
        segment, report = self.segments[index], self.report
        found = find_whole_batch(self.segments, index, position, offset)
        report.truncated_because = reason
        report.truncated_from = report.truncated_end = offset
        if found is not None:
            last = self.segments[-1].base_offset
            report.truncated_end = max(found.header.next_offset, last)
        report.truncated_bytes += segment.size - position
        for later in reversed(self.segments[index + 1 :]):
            report.truncated_bytes += later.size
            later.remove()
        del self.segments[index + 1 :]
        segment.file().truncate(position)
        segment.size = position

    def _check_trusted(self, index: int) -> None:
        segment = self.segments[index]
        try:
            if segment.base_offset in self._damaged:
                raise DamagedIndex(segment.path)
            segment.check_indexes()
        except DamagedIndex:
            self._rebuild(segment)
        try:
            if segment.base_offset in self._damaged_aborted:
                raise DamagedIndex(segment.aborted.path)
            segment.check_aborted()
        except DamagedIndex:
            self._rebuild_aborted(index)

    def _check_joined(self, index: int) -> None:
        """Raise DamagedLog if the next segment does not begin where a trusted segment ends."""
        if self._compacted:
            return
        segment, following = self.segments[index], self.segments[index + 1]
        last_offset = following.base_offset - 1
        position = segment.position_of(last_offset, segment.size)
        if position < segment.size:
            header = read_header(segment.file().read_at(position, HEADER_SIZE))
            end_offset = header.next_offset
            if end_offset == following.base_offset and position + header.size == segment.size:
                return
            reason = f"it reaches beyond offset {last_offset}, where {following.log_path} begins"
            size = segment.size - position
            raise DamagedLog(segment.log_path, reason, following.base_offset, end_offset, size)
        end_offset = segment.base_offset
        for batch in self._trusted_batches(index):
            end_offset = batch.header.next_offset
        if end_offset != following.base_offset:
            reason = f"{following.log_path} does not follow on it, and nothing is between them"
            raise DamagedLog(segment.log_path, reason, end_offset, following.base_offset, 0)

    def _rebuild(self, segment: Segment) -> None:
        """Rebuild the indexes of a trusted segment from its batches."""
        self._report_indexes(segment)
        segment.reset_indexes()
        for header, _, position in self._trusted_batches(self.segments.index(segment)):
            segment.note_batch(header, position, self._config.index_interval_bytes)
            segment.write_indexes()
        segment.finish_indexes()
        segment.sync(indexes=True)

    def _report_indexes(self, segment: Segment) -> None:
        self.report.rebuilt_indexes += 1
        self.report.rebuilt.append(f"the indexes of {segment.log_path} were wrong or missing")

    def _rebuild_aborted(self, index: int) -> None:
        """Rebuild the index of aborted transactions of a trusted segment."""
        self.report.rebuilt_indexes += 1
        segment = self.segments[index]
        self.report.rebuilt.append(f"{segment.aborted.path} was wrong or missing")
        segment.aborted.reset()
        producers = ProducerStates()
        offset = self.snapshots.load_as_of(producers, segment.base_offset) or 0
        _replay(producers, self.segments[:index], offset, segment.base_offset, self._heard_ms)
        for header, buffer, _ in self._trusted_batches(index):
            aborted = producers.replay(header, buffer)
            if aborted is not None:
                segment.aborted.append(aborted)
        segment.aborted.write_pending()
        segment.aborted.sync()
        self._files.sync_directory(self._directory)

    def _scan(self, index: int, end_offset: int) -> int:
        """Check a segment's batches, and rebuild its indexes; return its end offset."""
        segment = self.segments[index]
        size, valid = segment.size, 0
        self.report.scanned_bytes += size
        segment.reset_indexes()
        segment.aborted.reset()
        expected, limit = max(end_offset, segment.base_offset), self._limit(index)
        low: int | None = None
        try:
            for header, buffer, position in segment.batches(0, size):
                low = header.base_offset if header.base_offset < expected else None
                check_follows(header, expected, self._flushed, limit)
                check_batch(buffer, header, compacted=True)
                self._scanned_epochs.add(header)
                segment.note_batch(header, position, self._config.index_interval_bytes)
                segment.write_indexes()
                aborted = self.producers.replay(header, buffer, self._heard_ms)
                if aborted is not None:
                    segment.aborted.append(aborted)
                valid = position + header.size
                expected = header.next_offset
        except CorruptBatch as error:
            if not error.path:
                error = CorruptBatch(error.reason, path=segment.log_path, position=valid)
            if low is not None:
                valid, expected = self._first_beyond(index, low)
            self._end_at(index, valid, expected, str(error))
        segment.finish_indexes()
        return expected

    def _first_beyond(self, index: int, offset: int) -> tuple[int, int]:
        """The position of the first batch of a segment that ends behind `offset`, and its offset.

        If offsets go back, that batch or a later one has a wrong offset.
        """
        segment = self.segments[index]
        end_offset = segment.base_offset
        for header, _, position in segment.batches(0, segment.size):
            if header.next_offset > offset:
                return position, end_offset
            end_offset = header.next_offset
        return segment.size, end_offset


def _offset(name: str) -> int | None:
    """The offset in a file's name; None for any other name."""
    stem = name.partition(".")[0]
    return int(stem) if len(stem) == 20 and stem.isascii() and stem.isdigit() else None
