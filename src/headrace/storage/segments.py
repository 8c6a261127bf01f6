"""The segments of a log in order: making new ones, dropping old ones.

Rule: the tuple of segments is replaced, never changed, so a reader in another thread keeps a list
that fits together.
"""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from headrace.errors import StorageError
from headrace.storage.descriptors import OpenFiles
from headrace.storage.reading import segment_index
from headrace.storage.retention import Expiry
from headrace.storage.segment import CLEANED_SUFFIX, SWAP_SUFFIX, Segment


class Retired(NamedTuple):
    """A segment whose files were renamed for deletion, when they may go, and why it expired.

    `expiry` is None for a segment that compaction replaced.
    """

    base_offset: int
    size: int
    delete_at_ms: int
    paths: list[str]
    expiry: Expiry | None = None


class Segments:
    """The segments of one log, oldest first. Owned by the thread that owns the log.

    Invariant: there is at least one, and base offsets rise. `delete_retired` may run in another
    thread.
    """

    __slots__ = ("_directory", "_open_files", "_retired", "active", "all")

    def __init__(self, open_files: OpenFiles, directory: str, found: Sequence[Segment]) -> None:
        self._open_files = open_files
        self._directory = directory
        self._retired: deque[Retired] = deque()
        self.all: tuple[Segment, ...] = tuple(found)
        self.active = self.all[-1]
        for segment in self.all[:-1]:
            segment.is_closed = True

    @property
    def size_bytes(self) -> int:
        """The bytes of batches in all segments."""
        return sum(segment.size for segment in self.all)

    def begin(self, base_offset: int, index_bytes_max: int, now_ms: int) -> None:
        """Make a new active segment. If that fails nothing has changed."""
        new = Segment(
            self._open_files,
            self._directory,
            base_offset,
            index_bytes_max=index_bytes_max,
            created_ms=now_ms,
        )
        try:
            new.create()
        except StorageError as error:
            # An empty segment left here would hide what the active one gets from now on.
            try:
                new.remove()
            except StorageError as second:
                raise StorageError(f"{error}; and then {second}") from second
            raise
        self.active.let_go()
        self.active.is_closed = True
        self.all = (*self.all, new)
        self.active = new

    def truncate(self, offset: int) -> int:
        """Remove every batch that reaches `offset` or beyond; the end offset afterwards."""
        keep = segment_index(self.all, offset) + 1
        assert keep > 0, offset
        for segment in reversed(self.all[keep:]):
            segment.remove()
        self.all = self.all[:keep]
        self.active = self.all[-1]
        return self.active.truncate(offset)

    def restart(self, base_offset: int, index_bytes_max: int, now_ms: int) -> None:
        """Remove every segment and begin again at `base_offset`.

        A log that was empty has at any moment either its old segment or its new one. One that was
        not may have both after a crash, until the directory is flushed.
        """
        if len(self.all) == 1 and not self.active.size:
            self.active = self.active.renamed(base_offset, index_bytes_max)
        else:
            for segment in reversed(self.all):
                segment.remove()
            self.begin(base_offset, index_bytes_max, now_ms)
        self.all = (self.active,)

    def has(self, run: Sequence[Segment]) -> bool:
        """Whether these are closed segments of the log, next to each other."""
        if run[0] not in self.all[:-1]:
            return False
        first = self.all.index(run[0])
        return self.all[first : min(first + len(run), len(self.all) - 1)] == tuple(run)

    def replace(self, old: Sequence[Segment], new: Segment, delete_at_ms: int) -> None:
        """Put `new`, which begins where they do, in the place of closed segments.

        From the first rename of its batches on a start finishes what this does.
        """
        first = self.all.index(old[0])
        new.rename_files(CLEANED_SUFFIX, SWAP_SUFFIX)
        retired = [
            Retired(segment.base_offset, segment.size, delete_at_ms, segment.mark_deleted())
            for segment in old
        ]
        new.rename_files(SWAP_SUFFIX, "")
        new.is_closed = True
        self.all = (*self.all[:first], new, *self.all[first + len(old) :])
        self._retired.extend(retired)

    def retire(self, expiries: Sequence[Expiry], delete_at_ms: int) -> list[Retired]:
        """Rename the files of the oldest segments, a reason for each; `delete_retired` removes."""
        oldest = self.all[: len(expiries)]
        # Out of the list before the files get other names, so that no new reader meets them.
        self.all = self.all[len(expiries) :]
        retired = [
            Retired(segment.base_offset, segment.size, delete_at_ms, segment.mark_deleted(), expiry)
            for segment, expiry in zip(oldest, expiries, strict=True)
        ]
        self._retired.extend(retired)
        return retired

    def relocate(self, directory: str) -> None:
        """Follow a rename of the log's directory; nothing is retired."""
        assert not self._retired, self._directory
        self._directory = directory
        for segment in self.all:
            segment.relocate(directory)

    def delete_retired(self, now_ms: int) -> int:
        """Remove the files whose delay is over; how many segments. Not from two threads at once."""
        count = 0
        while self._retired and self._retired[0].delete_at_ms <= now_ms:
            for path in self._retired[0].paths:
                self._open_files.files.remove(path)
            self._retired.popleft()
            count += 1
        return count
