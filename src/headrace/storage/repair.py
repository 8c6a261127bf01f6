"""Repair of a damaged log: by an operator's decision, or by its election as a leader.

Rule: `plan_repair` only reads; it finds every damaged extent. `apply_repair` cuts the log off at
the first, or removes just those extents and keeps the rest with its offsets, on a data directory
that no broker uses. Indexes and checkpoints are rebuilt by the next start, which scans the whole
log. A broker itself cuts a log with `cut_to_prefix`. Removed bytes are kept in files beside the
log.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple

from headrace.errors import CorruptBatch, StorageError
from headrace.protocol.batch import BatchHeader, check_batch
from headrace.storage.checkpoints import (
    CLEAN_OFFSETS,
    CLEAN_SHUTDOWN,
    FLUSHED_OFFSET,
    LEADER_EPOCHS,
    LOG_START,
    RECOVERY_POINTS,
    SEGMENT_SIZES,
    decode_epochs,
    decode_offsets,
    decode_segment_sizes,
    encode_offsets,
)
from headrace.storage.damage import DamagedLog, check_follows, find_whole_batch
from headrace.storage.data_directory import LOCK, parse_log_name
from headrace.storage.files import Files
from headrace.storage.leader_epochs import EpochScan, StaleBatch
from headrace.storage.log_start_offsets import known_start
from headrace.storage.recovery_point import read_flushed_offset
from headrace.storage.segment import LOG_SUFFIX, Segment
from headrace.storage.stored_logs import FILES, stored_segments
from headrace.types import Buffer, TopicPartition

REMOVED_SUFFIX = ".removed"
_COPY_BYTES = 1 << 20


class RepairMethod(Enum):
    """The kinds of repair of a damaged log."""

    CUT = "cut"  # The log ends before the first damage.
    SKIP = "skip"  # The log lacks the damaged extents, and keeps the batches behind them.


@dataclass(frozen=True, slots=True)
class DamagedExtent:
    """Bytes [position, limit) of a segment's file that hold no sound batch, and their offsets.

    For a missing file the range of bytes is empty. The offsets follow from the batches around it.
    """

    path: str
    position: int
    limit: int
    first_offset: int
    end_offset: int
    reason: str


@dataclass(frozen=True, slots=True)
class RepairPlan:
    """A log as it is in its directory, and its damaged extents, in order."""

    directory: str
    partition: TopicPartition
    start_offset: int
    end_offset: int
    size_bytes: int
    damaged: tuple[DamagedExtent, ...]
    # The recovery point, as far as it was written to a file.
    flushed_offset: int

    def lost_by(self, repair: RepairMethod) -> int:
        """The number of offsets, at most, that a repair leaves without a record."""
        end_offset = max(self.end_offset, self.flushed_offset)
        if repair is RepairMethod.CUT:
            return end_offset - self.damaged[0].first_offset
        return sum(extent.end_offset - extent.first_offset for extent in self.damaged)


def plan_repair(directory: str) -> RepairPlan:
    """Read a log and find all damage in it; StorageError if there is no log."""
    directory = os.path.abspath(directory)
    partition = parse_log_name(os.path.basename(directory))
    if partition is None or not FILES.exists(directory):
        raise StorageError(
            f"{directory} is not the directory of a partition, such as headrace-data/orders-0"
        )
    segments = stored_segments(directory)
    flushed_offset = max(
        _offsets(os.path.dirname(directory), RECOVERY_POINTS).get(partition, 0),
        read_flushed_offset(FILES, directory) or 0,
    )
    compacted = _offsets(os.path.dirname(directory), CLEAN_OFFSETS).get(partition, 0) > 0
    survey = _DamageSurvey(
        segments,
        EpochScan(_named_epochs(directory)),
        _noted_offsets(directory),
        compacted,
        known_start(FILES, directory, partition),
        flushed_offset,
    )
    damaged = sorted(survey.find(), key=lambda extent: extent.first_offset)
    end_offset = survey.end_offset
    if flushed_offset > end_offset:
        path = segments[-1].log_path if segments else directory
        size = segments[-1].size if segments else 0
        reason = f"it was flushed up to offset {flushed_offset} and ends before"
        if damaged and damaged[-1].end_offset == end_offset and damaged[-1].limit == size:
            damaged[-1] = replace(damaged[-1], end_offset=flushed_offset)
        else:
            damaged.append(DamagedExtent(path, size, size, end_offset, flushed_offset, reason))
    return RepairPlan(
        directory,
        partition,
        segments[0].base_offset if segments else 0,
        end_offset,
        sum(segment.size for segment in segments),
        tuple(damaged),
        flushed_offset,
    )


class _DamageSurvey:
    """A walk over all batches of a log that continues behind damage."""

    def __init__(
        self,
        segments: Sequence[Segment],
        epochs: EpochScan,
        noted: Sequence[int],
        compacted: bool,
        known_start: int | None,
        flushed_offset: int,
    ) -> None:
        self.end_offset = segments[0].base_offset if segments else 0
        # Segments before the first were deleted, or are missing.
        self._is_start_known = known_start is not None
        if known_start is not None:
            self.end_offset = min(self.end_offset, known_start)
        elif noted:
            self.end_offset = min(self.end_offset, noted[0])
        self._segments = segments
        self._epochs = epochs
        self._noted = noted
        self._compacted = compacted
        self._flushed_offset = flushed_offset
        # The position of the first batch that may turn out to be of a past epoch.
        self._stale_at = (0, 0)

    def find(self) -> Iterator[DamagedExtent]:
        """Every damaged extent; afterwards `end_offset` is that of the log."""
        for index, segment in enumerate(self._segments):
            is_gone = not index and self._is_start_known and self.end_offset < segment.base_offset
            if is_gone or self._is_missing(self.end_offset, segment.base_offset):
                reason = f"the segment before it is missing, with offset {self.end_offset}"
                yield DamagedExtent(
                    segment.log_path, 0, 0, self.end_offset, segment.base_offset, reason
                )
            self.end_offset = max(self.end_offset, segment.base_offset)
            yield from self._in_segment(index)
        stale = self._epochs.stale
        if stale is not None:
            yield from self._stale_extents(stale)

    def _is_missing(self, start: int, end: int) -> bool:
        """Whether a segment of [start, end) is missing, and not removed by compaction."""
        if self._compacted or not start < end:
            return any(start <= offset < end for offset in self._noted)
        return True

    def _in_segment(self, index: int) -> Iterator[DamagedExtent]:
        segment, position = self._segments[index], 0
        while position < segment.size:
            try:
                for header, buffer, at in segment.batches(position, segment.size):
                    position = at
                    self._check(index, header, buffer, at)
                    position = at + header.size
                    self.end_offset = header.next_offset
            except CorruptBatch as error:
                found = find_whole_batch(self._segments, index, position, self.end_offset)
                limit = segment.size
                next_offset = self.end_offset
                if found is not None:
                    next_offset = found.header.base_offset
                    if found.segment == index:
                        limit = found.position
                    else:
                        next_offset = self._segments[index + 1].base_offset
                yield DamagedExtent(
                    segment.log_path, position, limit, self.end_offset, next_offset, error.reason
                )
                position, self.end_offset = limit, next_offset

    def _check(self, index: int, header: BatchHeader, buffer: Buffer, at: int) -> None:
        behind = self._segments[index + 1 : index + 2]
        limit = behind[0].base_offset if behind else None
        check_follows(header, self.end_offset, self._flushed_offset, limit)
        check_batch(buffer, header, compacted=True)
        was_stale = self._epochs.stale is not None
        self._epochs.add(header)
        if self._epochs.stale is not None and not was_stale:
            self._stale_at = (index, at)

    def _stale_extents(self, stale: StaleBatch) -> Iterator[DamagedExtent]:
        """The extents from the first stale batch to the end: no newer epoch follows it."""
        first, position = self._stale_at
        offset = stale.offset
        for index in range(first, len(self._segments)):
            segment, is_last = self._segments[index], index + 1 == len(self._segments)
            end = self.end_offset if is_last else self._segments[index + 1].base_offset
            reason = (
                f"its batches are of leader epoch {stale.epoch}, where {LEADER_EPOCHS} says"
                f" {stale.newer_epoch}"
            )
            yield DamagedExtent(segment.log_path, position, segment.size, offset, end, reason)
            position, offset = 0, end


def apply_repair(files: Files, plan: RepairPlan, repair: RepairMethod) -> list[str]:
    """Repair the log as planned; return the files that hold the removed bytes.

    StorageError if a broker uses the data directory. After a crash halfway the log can be planned
    and repaired again: bytes are copied before they are removed.
    """
    data_directory = os.path.dirname(plan.directory)
    lock = files.lock(f"{data_directory}/{LOCK}")
    if lock is None:
        raise StorageError(
            f"the data directory {data_directory} is in use: stop its broker before a repair"
        )
    try:
        if not plan.damaged:
            return []
        _forget_flushes(files, plan)
        worker = _RepairWorker(files, plan.directory)
        if repair is RepairMethod.CUT:
            worker.cut(plan.damaged[0])
        else:
            worker.skip(plan.damaged)
        files.sync_directory(plan.directory)
        return worker.removed
    finally:
        lock.release()


def _forget_flushes(files: Files, plan: RepairPlan) -> None:
    """Remove the flushed offsets, so that the next start scans the log and accepts gaps."""
    data_directory = os.path.dirname(plan.directory)
    points = _offsets(data_directory, RECOVERY_POINTS)
    points[plan.partition] = 0
    files.write_atomically(f"{data_directory}/{RECOVERY_POINTS}", encode_offsets(points))
    files.remove(f"{data_directory}/{CLEAN_SHUTDOWN}")
    files.sync_directory(data_directory)
    for name in (FLUSHED_OFFSET, LOG_START, SEGMENT_SIZES):
        files.remove(f"{plan.directory}/{name}")
    files.sync_directory(plan.directory)


class IntactPrefix(NamedTuple):
    """The sound part of a damaged log, before its first damage. It has at least one batch."""

    base_offset: int
    """That of the last segment with a sound batch."""
    position: int
    """The position at which the sound batches of that segment end."""
    end_offset: int
    epoch: int
    """The leader epoch of the last sound batch."""


def intact_prefix(files: Files, directory: str, damage: DamagedLog) -> IntactPrefix | None:
    """The sound part of a log before its known damage, None if no batch is before it.

    The last segment of it is read and checked; segments before that count as sound, as they do
    when a log is opened.
    """
    for segment in reversed(stored_segments(directory, files)):
        if segment.base_offset >= damage.first_offset:
            continue
        prefix, offset = None, segment.base_offset
        try:
            for header, buffer, at in segment.batches(0, segment.size):
                check_follows(header, offset, 0, damage.first_offset)
                check_batch(buffer, header, compacted=True)
                offset = header.next_offset
                position = at + header.size
                prefix = IntactPrefix(segment.base_offset, position, offset, header.leader_epoch)
        except CorruptBatch:
            pass  # The damage begins here.
        if prefix is not None:
            return prefix
    return None


def cut_to_prefix(files: Files, directory: str, prefix: IntactPrefix) -> list[str]:
    """Cut a log off behind its sound part; return the files that hold the removed bytes."""
    for name in (FLUSHED_OFFSET, SEGMENT_SIZES):
        files.remove(f"{directory}/{name}")
    worker = _RepairWorker(files, directory)
    path = f"{directory}/{prefix.base_offset:020d}{LOG_SUFFIX}"
    position, offset = prefix.position, prefix.end_offset
    worker.cut(DamagedExtent(path, position, position, offset, offset, "damage follows"))
    files.sync_directory(directory)
    return worker.removed


class _RepairWorker:
    """The changes of files for a repair."""

    def __init__(self, files: Files, directory: str) -> None:
        self.removed: list[str] = []
        self._files = files
        self._directory = directory

    def cut(self, extent: DamagedExtent) -> None:
        """Remove all bytes from an extent on; the log keeps at least an empty segment."""
        for segment in reversed(stored_segments(self._directory, self._files)):
            path = segment.log_path
            if path > extent.path or segment.base_offset > extent.first_offset:
                self._set_aside(path)
            elif path == extent.path and extent.position < segment.size:
                self._copy(path, extent.position, segment.size)
                file = self._files.open(path)
                file.truncate(extent.position)
                file.sync()
        if not self._log_paths():
            path = f"{self._directory}/{extent.first_offset:020d}{LOG_SUFFIX}"
            self._files.open(path, create=True).sync()

    def skip(self, extents: Sequence[DamagedExtent]) -> None:
        """Remove the extents from their files, and close gaps between segments."""
        by_path: dict[str, list[DamagedExtent]] = {}
        for extent in extents:
            if extent.position < extent.limit:
                by_path.setdefault(extent.path, []).append(extent)
        for path, damaged in by_path.items():
            self._rewrite(path, damaged)
        self._files.remove(f"{self._directory}/{LEADER_EPOCHS}")
        self._join()

    def _rewrite(self, path: str, damaged: Sequence[DamagedExtent]) -> None:
        """Write a segment again without the extents, and replace it when that is complete."""
        old = self._files.open(path)
        new = self._files.open(path + ".tmp", create=True)
        new.truncate(0)
        position = written = 0
        for extent in damaged:
            self._copy(path, extent.position, extent.limit)
        for start, limit in [
            *((extent.position, extent.limit) for extent in damaged),
            (old.size(), old.size()),
        ]:
            while position < start:
                data = old.read_at(position, min(_COPY_BYTES, start - position))
                new.write_at(written, data)
                position, written = position + len(data), written + len(data)
            position = limit
        new.sync()
        self._files.rename(path + ".tmp", path)

    def _join(self) -> None:
        """Rename segments so that each begins where the segment before it ends."""
        segments = stored_segments(self._directory, self._files)
        end_offset = segments[0].base_offset
        for segment in segments:
            if segment.size == 0 and segment is not segments[-1]:
                self._files.remove(segment.log_path)
                continue
            if segment.base_offset != end_offset:
                name = f"{self._directory}/{end_offset:020d}{LOG_SUFFIX}"
                self._files.rename(segment.log_path, name)
                segment.read_from(self._files.open(name))
            for header, _, _ in segment.batches(0, segment.size):
                end_offset = header.next_offset

    def _log_paths(self) -> list[str]:
        return [segment.log_path for segment in stored_segments(self._directory, self._files)]

    def _set_aside(self, path: str) -> None:
        name = self._free_name(path + REMOVED_SUFFIX)
        self._files.rename(path, name)
        self.removed.append(name)

    def _copy(self, path: str, position: int, limit: int) -> None:
        """Copy a part of a file to a separate file."""
        name = self._free_name(f"{path}.{position}-{limit}{REMOVED_SUFFIX}")
        source, target = self._files.open(path), self._files.open(name, create=True)
        at = position
        while at < limit:
            data = source.read_at(at, min(_COPY_BYTES, limit - at))
            target.write_at(at - position, data)
            at += len(data)
        target.sync()
        self._files.sync_directory(self._directory)
        self.removed.append(name)

    def _free_name(self, name: str) -> str:
        number, found = 1, name
        while self._files.exists(found):
            number += 1
            found = f"{name}.{number}"
        return found


def _offsets(data_directory: str, name: str) -> dict[TopicPartition, int]:
    data = FILES.read_bytes(f"{data_directory}/{name}")
    try:
        return decode_offsets(data) if data is not None else {}
    except ValueError:
        return {}


def _noted_offsets(directory: str) -> list[int]:
    """The base offsets in the segment checkpoint."""
    data = FILES.read_bytes(f"{directory}/{SEGMENT_SIZES}")
    try:
        noted = decode_segment_sizes(data) if data is not None else []
    except (ValueError, TypeError):
        return []
    return [sizes.base_offset for sizes in noted]


def _named_epochs(directory: str) -> list[tuple[int, int]]:
    data = FILES.read_bytes(f"{directory}/{LEADER_EPOCHS}")
    try:
        return decode_epochs(data) if data is not None else []
    except ValueError:
        return []
