"""The `.snapshot` files of a log: producer state as it was at an offset.

Rule: a snapshot can always be had again by reading the log from an older one, so a damaged one is
dropped, and a new one need not be durable before the recovery point passes it.
"""

import logging
from collections import deque

from headrace.errors import StorageError
from headrace.storage.files import Files
from headrace.storage.producers import Producers

logger = logging.getLogger(__name__)

SUFFIX = ".snapshot"


class Snapshots:
    """The snapshots in a log's directory, by offset. Owned by the thread that owns the log."""

    __slots__ = ("_directory", "_files", "_offsets", "unsynced")

    def __init__(self, files: Files, directory: str, offsets: list[int]) -> None:
        self._files = files
        self._directory = directory
        self._offsets = sorted(offsets)
        # Paths whose content is not durable yet: appended to here, taken by a flush in any thread.
        self.unsynced: deque[str] = deque()

    @property
    def offsets(self) -> tuple[int, ...]:
        """The offsets there are snapshots of, in order."""
        return tuple(self._offsets)

    def path(self, offset: int) -> str:
        """The file of the snapshot at `offset`."""
        return f"{self._directory}/{offset:020d}{SUFFIX}"

    def take(self, producers: Producers, offset: int) -> None:
        """Write the state as of `offset`."""
        path = self.path(offset)
        self._files.write_atomically(path, producers.encode_snapshot(), sync=False)
        if offset not in self._offsets:
            self._offsets.append(offset)
            self._offsets.sort()
        self.unsynced.append(path)

    def load_newest(self, producers: Producers, offset: int) -> int | None:
        """Load the newest usable snapshot not after `offset`; its offset, or None and no state.

        Those after `offset`, and those that turn out to be damaged, are removed.
        """
        self.remove_after(offset)
        return self.load_as_of(producers, offset)

    def load_as_of(self, producers: Producers, offset: int) -> int | None:
        """As `load_newest`, leaving those after `offset` alone."""
        for newest in [one for one in reversed(self._offsets) if one <= offset]:
            try:
                producers.load_snapshot(self._files.read_bytes(self.path(newest)) or b"", newest)
                if producers.end_offset > newest:
                    raise ValueError(f"it knows of a batch at offset {producers.end_offset - 1}")
            except ValueError as error:
                path = self.path(newest)
                logger.warning("%s is damaged: %s; older state and the log tell it", path, error)
                self._remove(newest)
            else:
                return newest
        producers.clear()
        return None

    def remove_after(self, offset: int) -> None:
        """Remove the snapshots of offsets above `offset`."""
        for late in [one for one in self._offsets if one > offset]:
            self._remove(late)

    def remove_before(self, offset: int) -> None:
        """Remove the snapshots of offsets below `offset`."""
        for early in [one for one in self._offsets if one < offset]:
            self._remove(early)

    def keep_only(self, offsets: set[int]) -> None:
        """Remove all but those at `offsets` and the newest."""
        for stray in [one for one in self._offsets[:-1] if one not in offsets]:
            self._remove(stray)

    def relocate(self, directory: str) -> None:
        """Follow a rename of the log's directory."""
        self._directory = directory
        self.unsynced = deque(f"{directory}/{path.rpartition('/')[2]}" for path in self.unsynced)

    def sync(self) -> None:
        """Make what was written durable. May run in a worker thread."""
        while True:
            try:
                path = self.unsynced[0]
            except IndexError:
                return
            self._files.sync_file(path)
            # Only after it worked: a failure must be met again by the next to try.
            self.unsynced.popleft()

    def _remove(self, offset: int) -> None:
        self._offsets.remove(offset)
        try:
            self._files.remove(self.path(offset))
        except StorageError:
            self._offsets.append(offset)
            self._offsets.sort()
            raise
