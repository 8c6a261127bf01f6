"""A log in memory, which forgets on a crash what was not flushed."""

from typing import Any, NamedTuple

from headrace.raft.messages import OffsetAndEpoch, Voters


class Entry(NamedTuple):
    epoch: int
    value: Any


class MemoryLog:
    """The part of the log that the core reads, and the shell's part of it.

    `state` is what a snapshot is made of here: the entries before `start_offset`.
    """

    def __init__(self, *epochs: int) -> None:
        self.entries = [Entry(epoch, None) for epoch in epochs]
        self.state: list[Entry] = []
        self.snapshot: OffsetAndEpoch | None = None
        self.snapshot_voters: Voters | None = None
        self.flushed_offset = self.end_offset

    @property
    def start_offset(self) -> int:
        return len(self.state)

    @property
    def end_offset(self) -> int:
        return len(self.state) + len(self.entries)

    @property
    def last_epoch(self) -> int:
        if self.entries:
            return self.entries[-1].epoch
        return 0 if self.snapshot is None else self.snapshot.epoch

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        found = (0, self.start_offset)
        for offset, entry in enumerate(self.entries, self.start_offset):
            if entry.epoch > epoch:
                break
            found = (entry.epoch, offset + 1)
        return found

    def at(self, offset: int) -> Entry:
        return (
            self.state[offset]
            if offset < self.start_offset
            else self.entries[offset - self.start_offset]
        )

    def epoch_before(self, offset: int) -> int:
        return self.at(offset - 1).epoch if offset > 0 else 0

    def read(self, offset: int, limit: int) -> list[Entry]:
        position = offset - self.start_offset
        return self.entries[position : position + limit]

    def append(self, *entries: Entry) -> None:
        self.entries += entries

    def truncate_to(self, end_offset: int) -> None:
        del self.entries[end_offset - self.start_offset :]
        self.flushed_offset = min(self.flushed_offset, end_offset)

    def take_snapshot(self, offset: int, voters: Voters | None) -> None:
        """Make a snapshot of all before `offset`, and forget the entries before it."""
        self.snapshot = OffsetAndEpoch(offset, self.epoch_before(offset))
        self.snapshot_voters = voters
        keep = offset - self.start_offset
        self.state = self.state + self.entries[:keep]
        self.entries = self.entries[keep:]

    def install(self, other: "MemoryLog") -> None:
        """Begin again after the snapshot of another log."""
        assert other.snapshot is not None
        self.state = other.state[: other.snapshot.offset]
        self.entries = []
        self.snapshot = other.snapshot
        self.snapshot_voters = other.snapshot_voters
        self.flushed_offset = self.end_offset

    def crash(self, keep: int) -> None:
        """Lose what was not flushed, but for what happened to reach the disk: up to `keep`."""
        assert keep >= self.flushed_offset
        self.truncate_to(keep)
        self.flushed_offset = self.end_offset
