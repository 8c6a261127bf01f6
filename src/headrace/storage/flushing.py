"""What of a log is on stable storage, and how the rest gets there.

Rule: the recovery point moves only to an offset that was the log's end before the first fsync
began, and only when every fsync worked. After one that failed nothing is known of the pages (Linux
drops them), so there is no retry.
"""

import os
from collections.abc import Sequence
from threading import Lock

from headrace.storage.checkpoints import PARTITION_METADATA
from headrace.storage.epochs import LeaderEpochs
from headrace.storage.files import Files
from headrace.storage.reading import segment_index
from headrace.storage.segment import Segment
from headrace.storage.snapshots import Snapshots


class Flusher:
    """The recovery point of one log, and everything that has to be durable before it may move.

    `flush` may run in a worker thread; the rest belongs to the owner of the log.
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
        "_running",
        "_snapshots",
        "_truncations",
        "names_changed",
        "recovery_point",
    )

    def __init__(
        self,
        files: Files,
        directory: str,
        epochs: LeaderEpochs,
        snapshots: Snapshots,
        *,
        recovery_point: int,
        now_ms: int,
        is_new: bool = False,
    ) -> None:
        self.recovery_point = recovery_point
        # Files were made or renamed in the directory since it was last flushed.
        self.names_changed = is_new
        self._is_new = is_new
        self._files = files
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
        """Move the recovery point because bytes were removed; those a flush is of may be gone."""
        with self._moving:
            self._truncations += 1
            self.recovery_point = recovery_point

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
                return self.recovery_point

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
