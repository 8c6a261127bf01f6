"""The recovery point of a log, and the flushes that move it.

Rule: the recovery point moves only to an offset that was the log's end before the first fsync
began, and only if every fsync succeeded. After a failed fsync the state of the pages is unknown
(Linux drops them), so there is no retry.
"""

import os
from collections.abc import Sequence
from contextlib import suppress
from struct import Struct
from threading import Lock

from headrace.errors import StorageError
from headrace.protocol.batch import crc32c
from headrace.storage.checkpoints import FLUSHED_OFFSET, PARTITION_METADATA
from headrace.storage.files import Files
from headrace.storage.leader_epochs import LeaderEpochs
from headrace.storage.log_segments import segment_index
from headrace.storage.log_start_offsets import LogStart
from headrace.storage.open_files import OpenFiles
from headrace.storage.producer_state import ProducerSnapshots
from headrace.storage.segment import Segment

_OFFSET = Struct(">q")
_CRC = Struct(">I")


def encode_flushed_offset(offset: int) -> bytes:
    """The content of `flushed-offset`, of the same length for every offset."""
    number = _OFFSET.pack(offset)
    return number + _CRC.pack(crc32c(number))


def read_flushed_offset(files: Files, directory: str) -> int | None:
    """The recovery point in `flushed-offset`; None if the file is missing or damaged.

    The checkpoint of all logs is written only from time to time. This file is written by every
    flush, but not flushed itself: a loss of power may leave an older value, which is true as well.
    """
    data = files.read_bytes(f"{directory}/{FLUSHED_OFFSET}") or b""
    if len(data) != _OFFSET.size + _CRC.size:
        return None
    offset: int = _OFFSET.unpack_from(data)[0]
    return offset if data == encode_flushed_offset(offset) and offset >= 0 else None


class RecoveryPoint:
    """The recovery point of a log, and the files that must be durable before it moves.

    A flush writes the recovery point to `flushed-offset`. Before flushed bytes are removed it is
    moved back there, durably: so bytes below it are never missing because of a crash. `flush` may
    run in a worker thread; other methods are for the owner of the log.
    """

    __slots__ = (
        "_appended_ms",
        "_directory",
        "_dirty_since_ms",
        "_epoch_changes",
        "_epochs",
        "_files",
        "_is_new",
        "_moving",
        "_noted",
        "_open_files",
        "_running",
        "_snapshots",
        "_start",
        "_truncations",
        "names_changed",
        "recovery_point",
    )

    def __init__(
        self,
        open_files: OpenFiles,
        directory: str,
        epochs: LeaderEpochs,
        snapshots: ProducerSnapshots,
        start: LogStart,
        *,
        recovery_point: int,
        now_ms: int,
        flushed_offset: int = 0,
        names_unsynced: bool = False,
    ) -> None:
        """Begin at a recovery point; `flushed_offset` is the content of the file of that name.

        `names_unsynced` is for a new log, and for a log after a crash, whose new file names may not
        have been flushed.
        """
        self.recovery_point = recovery_point
        # Whether files were made or renamed in the directory since it was last flushed.
        self.names_changed = names_unsynced
        self._is_new = names_unsynced
        self._open_files = open_files
        self._files = open_files.files
        self._noted = flushed_offset
        self._directory = directory
        self._epochs = epochs
        self._epoch_changes = 0
        self._snapshots = snapshots
        self._start = start
        self._appended_ms = now_ms
        self._dirty_since_ms = now_ms
        self._truncations = 0
        self._running = Lock()
        self._moving = Lock()

    def appended(self, end_offset: int, now_ms: int) -> None:
        """Note an append that is about to move the log's end from `end_offset`."""
        if end_offset == self.recovery_point:
            self._dirty_since_ms = now_ms
        self._appended_ms = now_ms

    def dirty_ms(self, now_ms: int) -> int:
        """The time since the append of the oldest record that is not flushed.

        If the clock was set back the time begins anew, or the next flush would be late by as much.
        """
        self._dirty_since_ms = min(self._dirty_since_ms, now_ms)
        return now_ms - self._dirty_since_ms

    def truncated(self, recovery_point: int) -> None:
        """Move the recovery point because bytes are removed; a flush in progress has no effect.

        StorageError if the recovery point on disk cannot be moved back.
        """
        with self._moving:
            self._truncations += 1
            self.recovery_point = recovery_point
            if self._noted > recovery_point:
                self._note()
                self._open_files.get(f"{self._directory}/{FLUSHED_OFFSET}").sync()

    def relocate(self, directory: str) -> None:
        """Follow a rename of the log's directory, which the next flush makes durable."""
        self._directory = directory
        self._is_new = True

    def flush(self, end_offset: int, segments: Sequence[Segment]) -> int:
        """Make all records below `end_offset` durable; return the new recovery point.

        `segments` were taken after `end_offset` was, so they have all those records.
        """
        with self._running:
            truncations = self._truncations
            appended_ms = self._appended_ms
            if end_offset > self.recovery_point:
                # From the last durable record on: its segment may have been closed since.
                first = max(segment_index(segments, self.recovery_point - 1), 0)
                for segment in segments[first:]:
                    # The active segment's indexes still grow; a scan rebuilds them after a crash.
                    segment.sync(indexes=segment is not segments[-1])
            self._sync_names()
            with self._moving:
                if truncations == self._truncations and end_offset > self.recovery_point:
                    self.recovery_point = end_offset
                    self._dirty_since_ms = appended_ms
                    with suppress(StorageError):  # The older value in the file is true as well.
                        self._note()
                return self.recovery_point

    def restore_note(self) -> None:
        """Make `flushed-offset` again, which is damaged: records below here are durable."""
        with suppress(StorageError):  # The next flush makes it.
            self._files.remove(f"{self._directory}/{FLUSHED_OFFSET}")
            self._note()

    def _note(self) -> None:
        """Write the recovery point to `flushed-offset`, within one sector and so atomically."""
        self._noted = self.recovery_point
        file = self._open_files.get(f"{self._directory}/{FLUSHED_OFFSET}", create=True)
        file.write_at(0, encode_flushed_offset(self.recovery_point))

    def _sync_names(self) -> None:
        """Make snapshots and epochs durable, and the names of new files."""
        self._snapshots.sync()
        changes = self._epochs.changes
        if changes != self._epoch_changes:
            self._files.sync_file(self._epochs.path)
            self.names_changed = True
        if self._is_new:
            self._files.sync_file(f"{self._directory}/{PARTITION_METADATA}")
            self._start.sync()
            self._files.sync_directory(os.path.dirname(self._directory))
            self._is_new = False
        if self.names_changed:
            self.names_changed = False
            self._files.sync_directory(self._directory)
        self._epoch_changes = changes
