"""The recovery point: what of a log is on stable storage, and how the rest gets there.

Rule: the recovery point moves only to an offset that was the log's end before the first fsync
began, and only when every fsync worked. After one that failed nothing is known of the pages (Linux
drops them), so there is no retry.
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
from headrace.storage.open_files import OpenFiles
from headrace.storage.producer_state import Snapshots
from headrace.storage.segment import Segment

_OFFSET = Struct(">q")
_CRC = Struct(">I")


def encode_flushed_offset(offset: int) -> bytes:
    """The content of `flushed-offset`, of the same length for every offset."""
    number = _OFFSET.pack(offset)
    return number + _CRC.pack(crc32c(number))


def read_flushed_offset(files: Files, directory: str) -> int | None:
    """The recovery point as of the last flush that left word of it; None if none did.

    The checkpoint of all logs is written only now and then. This one is not flushed, so a loss of
    power may leave an older value, but never one that was not true. A damaged file says nothing.
    """
    data = files.read_bytes(f"{directory}/{FLUSHED_OFFSET}") or b""
    if len(data) != _OFFSET.size + _CRC.size:
        return None
    offset: int = _OFFSET.unpack_from(data)[0]
    return offset if data == encode_flushed_offset(offset) and offset >= 0 else None


class Flusher:
    """The recovery point of one log, and everything that has to be durable before it may move.

    A flush notes the recovery point in `flushed-offset`, and whatever takes flushed bytes away
    durably takes that back first: so bytes below it are never missing because of a crash. `flush`
    may run in a worker thread; the rest belongs to the owner of the log.
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
        "_truncations",
        "names_changed",
        "recovery_point",
    )

    def __init__(
        self,
        open_files: OpenFiles,
        directory: str,
        epochs: LeaderEpochs,
        snapshots: Snapshots,
        *,
        recovery_point: int,
        now_ms: int,
        flushed_offset: int = 0,
        names_unsynced: bool = False,
    ) -> None:
        """`flushed_offset` is what the file of that name says.

        `names_unsynced` is for a log that is new, and for one whose process died: nobody knows
        whether that one got to flush the names it had made.
        """
        self.recovery_point = recovery_point
        # Files were made or renamed in the directory since it was last flushed.
        self.names_changed = names_unsynced
        self._is_new = names_unsynced
        self._open_files = open_files
        self._files = open_files.files
        self._noted = flushed_offset
        self._directory = directory
        self._epochs = epochs
        self._epoch_changes = 0
        self._snapshots = snapshots
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
        """How long the oldest record has waited that was not flushed.

        A clock that was set back begins anew: it must not put a flush off for as long.
        """
        self._dirty_since_ms = min(self._dirty_since_ms, now_ms)
        return now_ms - self._dirty_since_ms

    def truncated(self, recovery_point: int) -> None:
        """Move the recovery point because bytes are removed; those a flush is of may be gone.

        StorageError if the noted recovery point cannot be moved back on the disk.
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
        """Make everything below `end_offset` durable; the recovery point afterwards.

        `segments` were taken after `end_offset` was, so they hold at least that.
        """
        with self._running:
            truncations = self._truncations
            appended_ms = self._appended_ms
            if end_offset > self.recovery_point:
                # From the last record on that is durable: its segment may have been closed since.
                first = max(segment_index(segments, self.recovery_point - 1), 0)
                for segment in segments[first:]:
                    # The active segment's index grows still; a scan would rebuild it after a crash.
                    segment.sync(indexes=segment is not segments[-1])
            self._sync_names()
            with self._moving:
                if truncations == self._truncations and end_offset > self.recovery_point:
                    self.recovery_point = end_offset
                    self._dirty_since_ms = appended_ms
                    with suppress(StorageError):  # An older one is true as well.
                        self._note()
                return self.recovery_point

    def _note(self) -> None:
        """Write the recovery point beside the log; in one sector, so that it is whole or not."""
        self._noted = self.recovery_point
        file = self._open_files.get(f"{self._directory}/{FLUSHED_OFFSET}", create=True)
        file.write_at(0, encode_flushed_offset(self.recovery_point))

    def _sync_names(self) -> None:
        """Make the small files durable, and the names of those that are new."""
        self._snapshots.sync()
        changes = self._epochs.changes
        if changes != self._epoch_changes:
            self._files.sync_file(self._epochs.path)
            self.names_changed = True
        if self._is_new:
            self._files.sync_file(f"{self._directory}/{PARTITION_METADATA}")
            self._files.sync_directory(os.path.dirname(self._directory))
            self._is_new = False
        if self.names_changed:
            self.names_changed = False
            self._files.sync_directory(self._directory)
        self._epoch_changes = changes
