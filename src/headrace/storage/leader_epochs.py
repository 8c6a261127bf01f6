"""Start offsets of the leader epochs of a log (KIP-101), in `leader-epoch-checkpoint`.

Rule: the file is replaced on every change but not flushed; `Log.flush` flushes it before the
recovery point moves past the change. Batch headers have the epoch too, so a scan after a crash
compares the two: where they disagree, `EpochScan` decides which of them is wrong.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import NamedTuple

from headrace.errors import CorruptBatch
from headrace.protocol.batch import BatchHeader
from headrace.storage.checkpoints import LEADER_EPOCHS, decode_epochs, encode_epochs
from headrace.storage.files import Files

NO_EPOCH = -1
NO_OFFSET = -1

_EPOCH = itemgetter(0)
_START_OFFSET = itemgetter(1)


def epoch_at(entries: Sequence[tuple[int, int]], offset: int) -> int:
    """The epoch that wrote `offset`, by (epoch, start offset) pairs; -1 if before the first."""
    index = bisect_right(entries, offset, key=_START_OFFSET)
    return entries[index - 1][0] if index else NO_EPOCH


class LeaderEpochs:
    """The start offset of every leader epoch in a log.

    Invariant: epochs rise strictly and start offsets never fall. Owned by one thread; `changes`
    counts the versions of the file, so that a flush in another thread knows which version it has
    made durable.
    """

    __slots__ = ("_entries", "_files", "changes", "latest", "path")

    def __init__(self, files: Files, directory: str) -> None:
        self.path = f"{directory}/{LEADER_EPOCHS}"
        self.changes = 0
        self.latest = NO_EPOCH
        self._files = files
        self._entries: list[tuple[int, int]] = []

    def load(self) -> None:
        """Read the file; ValueError if it is damaged, which leaves no epochs."""
        data = self._files.read_bytes(self.path)
        self._entries = []
        self.latest = NO_EPOCH
        if data is not None:
            self._entries = decode_epochs(data)
            self.latest = self._entries[-1][0] if self._entries else NO_EPOCH

    @property
    def entries(self) -> tuple[tuple[int, int], ...]:
        """All (epoch, start offset) pairs, oldest first."""
        return tuple(self._entries)

    def assign(self, epoch: int, start_offset: int) -> None:
        """Note that `epoch` writes from `start_offset` on, unless it is known already."""
        if epoch > self.latest:
            self._replace(_with(self._entries, epoch, start_offset))

    def assign_batches(self, headers: Iterable[BatchHeader]) -> None:
        """Note the epochs of batches at the end of the log: all of them, or none if that fails."""
        entries, latest = self._entries, self.latest
        for header in headers:
            if header.leader_epoch > latest:
                latest = header.leader_epoch
                entries = _with(entries, latest, header.base_offset)
        if latest > self.latest:
            self._replace(entries)

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """The largest known epoch not above `epoch`, and the offset where it ended.

        (-1, -1) when nothing is known: no epochs at all, or `epoch` is newer than the newest.
        """
        if not self._entries or epoch > self.latest or epoch < 0:
            return NO_EPOCH, NO_OFFSET
        if epoch == self.latest:
            return epoch, log_end_offset
        index = bisect_right(self._entries, epoch, key=_EPOCH)
        if index == 0:
            # Older than the oldest epoch kept: the peer's log and this one have nothing in common
            # before our start.
            return epoch, self._entries[0][1]
        return self._entries[index - 1][0], self._entries[index][1]

    def epoch_of(self, offset: int) -> int:
        """The epoch that wrote `offset`, or -1."""
        return epoch_at(self._entries, offset)

    def truncate_from_end(self, end_offset: int) -> None:
        """Forget the epochs that begin at or after `end_offset`."""
        keep = bisect_left(self._entries, end_offset, key=_START_OFFSET)
        if keep < len(self._entries):
            self._replace(self._entries[:keep])

    def truncate_from_start(self, start_offset: int) -> None:
        """Forget the epochs that end by `start_offset`, and let the next epoch begin there."""
        drop = bisect_right(self._entries, start_offset, key=_START_OFFSET)
        if drop == 0 or (drop == 1 and self._entries[0][1] == start_offset):
            return
        self._replace([(self._entries[drop - 1][0], start_offset), *self._entries[drop:]])

    def replace(self, entries: Iterable[tuple[int, int]]) -> None:
        """Replace all (epoch, start offset) pairs."""
        self._replace(list(entries))

    def relocate(self, directory: str) -> None:
        """Follow a rename of the log's directory."""
        self.path = f"{directory}/{LEADER_EPOCHS}"

    def clear(self) -> None:
        """Forget all epochs."""
        self._replace([])

    def save(self) -> None:
        """Write the file again."""
        self._replace(self._entries)

    def _replace(self, entries: list[tuple[int, int]]) -> None:
        # The file first: if that fails, memory still agrees with the file, and a retry writes it.
        self._files.write_atomically(self.path, encode_epochs(entries), sync=False)
        self.changes += 1
        self._entries = entries
        self.latest = entries[-1][0] if entries else NO_EPOCH


class StaleBatch(NamedTuple):
    """A batch of an epoch that has ended: `newer_epoch` begins at or before its offset."""

    offset: int
    epoch: int
    newer_epoch: int


class EpochScan:
    """A comparison of the epochs in batch headers, in log order, with those of the file.

    The file is wrong if it lacks an epoch that a batch has, or if a newer epoch that it has for the
    offset of a batch begins later in the log. Otherwise batches of an older epoch than the file has
    are `stale`: they were truncated, and a loss of power has undone the truncation.
    """

    __slots__ = ("_known", "_named", "_newest", "file_is_wrong", "found", "stale")

    def __init__(self, named: Sequence[tuple[int, int]]) -> None:
        self.found: list[tuple[int, int]] = []
        self.file_is_wrong = False
        self.stale: StaleBatch | None = None
        self._named = list(named)
        self._known = {epoch for epoch, _ in named}
        self._newest = named[-1][0] if named else NO_EPOCH

    def add(self, header: BatchHeader) -> None:
        """Add the next batch; CorruptBatch if its epoch is older than that of the batch before."""
        epoch, offset = header.leader_epoch, header.base_offset
        if epoch < 0:
            return
        latest = self.found[-1][0] if self.found else NO_EPOCH
        if epoch < latest:
            raise CorruptBatch(
                f"the batch at offset {offset} is of leader epoch {epoch}, those before it of"
                f" {latest}"
            )
        if epoch > latest:
            self.found.append((epoch, offset))
        index = bisect_right(self._named, offset, key=_START_OFFSET)
        named = self._named[index - 1][0] if index else NO_EPOCH
        if self.stale is not None and epoch >= self.stale.newer_epoch:
            self.file_is_wrong = True
        elif epoch > named >= 0:
            # An epoch that was not written to the file yet is newer than all epochs in it.
            self.file_is_wrong = self.file_is_wrong or epoch <= self._newest
        elif epoch < named:
            self.file_is_wrong = self.file_is_wrong or epoch not in self._known
            if self.stale is None:
                self.stale = StaleBatch(offset, epoch, named)
        if self.file_is_wrong:
            self.stale = None


def _with(entries: list[tuple[int, int]], epoch: int, start_offset: int) -> list[tuple[int, int]]:
    """The entries with an epoch added, which replaces epochs without records."""
    keep = bisect_left(entries, start_offset, key=_START_OFFSET)
    return [*entries[:keep], (epoch, start_offset)]
