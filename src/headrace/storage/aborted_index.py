"""The `.txnindex` of a segment: the aborted transactions of its markers, in Kafka's layout.

Rule: unlike the other indexes this index must be complete: a transaction without an entry counts as
committed. So an entry is visible as soon as its marker is, and after a crash the index is rebuilt
with the producer state at the segment's base offset.
"""

from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple

from headrace.protocol.batch import crc32c
from headrace.storage.files import FileMissing
from headrace.storage.index import DamagedIndex, ReadAt, read_waiting
from headrace.storage.open_files import OpenFiles
from headrace.types import Buffer

ABORTED_SUFFIX = ".txnindex"
# A version, the producer id, the transaction's first and last offset, the last stable offset.
ABORTED_ENTRY = Struct(">hqqqq")

_VERSION = 0
_SIZE = ABORTED_ENTRY.size
_LAST_OFFSET = Struct(">q")
_LAST_OFFSET_AT = 18
_FIRST_PAGE_ENTRIES = 4
_PAGE_ENTRIES = 64
_KEPT_BYTES = _PAGE_ENTRIES * _SIZE


class AbortedTransaction(NamedTuple):
    """An aborted transaction, hidden from read_committed. `last_offset` is that of its marker.

    All transactions below `last_stable_offset` had ended when the marker was written.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class AbortedIndex:
    """The aborted transactions of one segment by the offset of their markers.

    There is no file before the first entry. One thread appends and truncates; other threads may
    look entries up at the same time, since they see either the old or the new `_state`.
    """

    __slots__ = ("_checksum", "_open_files", "_shrunk", "_state", "_unwritten", "path")

    def __init__(self, open_files: OpenFiles, path: str, size: int) -> None:
        self.path = path
        self._open_files = open_files
        # The number of entries that are only in the file, and the bytes of the entries that follow
        # them, kept in memory because most readers look for recent entries.
        self._state: tuple[int, bytearray] = (size // _SIZE, bytearray())
        self._unwritten = 0
        # Whether entries were removed from the file, which a crash may bring back until a sync.
        self._shrunk = False
        # The number of entries at the last call of `checksum`, and its result.
        self._checksum = (0, 0)

    def __len__(self) -> int:
        return _count(self._state)

    @property
    def size(self) -> int:
        """The bytes of all entries."""
        return len(self) * _SIZE

    def checksum(self) -> int:
        """The CRC of all entries, 0 if there are none; may read the file."""
        state = self._state
        count = _count(state)
        if self._checksum[0] != count:
            before, kept = state
            data = bytes(self._bytes(state, 0, before * _SIZE, read_waiting)) if before else b""
            self._checksum = (count, crc32c(data + kept))
        return self._checksum[1]

    def append(self, entry: AbortedTransaction) -> None:
        """Add an entry, in memory only; its marker is behind those of all other entries."""
        self._state[1].extend(ABORTED_ENTRY.pack(_VERSION, *entry))
        self._unwritten += 1

    def write_pending(self) -> None:
        """Write the entries that are only in memory. Not durable before `sync`."""
        if not self._unwritten:
            return
        before, kept = self._state
        file = self._open_files.get(self.path, create=True)
        data = kept[-self._unwritten * _SIZE :]
        file.write_at((len(self) - self._unwritten) * _SIZE, data)
        self._unwritten = 0
        if len(kept) >= 2 * _KEPT_BYTES:
            dropped = len(kept) - _KEPT_BYTES
            self._state = (before + dropped // _SIZE, kept[dropped:])

    def sync(self) -> None:
        """Make the written entries durable. May run in a worker thread."""
        if len(self) > self._unwritten or self._shrunk:
            self._shrunk = False
            self._open_files.get(self.path).sync()

    def overlapping(
        self, start: int, end: int, read: ReadAt = read_waiting
    ) -> tuple[list[AbortedTransaction], bool]:
        """Entries with offsets in [start, end), and whether no later segment has such entries."""
        state = self._state
        found = []
        index = self._search(state, start, read)
        entries = _FIRST_PAGE_ENTRIES
        while index < _count(state):
            for entry in self._page(state, index, read, entries):
                index += 1
                if entry.first_offset < end:
                    found.append(entry)
                if entry.last_stable_offset >= end:
                    return found, True
            entries = _PAGE_ENTRIES
        return found, False

    def truncate(self, offset: int) -> None:
        """Drop the entries whose marker is at or above `offset`."""
        if not len(self):
            return
        self._checksum = (0, 0)
        keep = self._search(self._state, offset, read_waiting)
        before, kept = self._state
        written = len(self) - self._unwritten
        if keep < written:
            self._shrunk = True
            self._open_files.get(self.path).truncate(keep * _SIZE)
        self._unwritten = max(keep - written, 0)
        self._state = (min(before, keep), kept[: max(keep - before, 0) * _SIZE])

    def reset(self) -> None:
        """Drop every entry and the file."""
        self._open_files.files.remove(self.path)
        self._open_files.forget(self.path)
        self._shrunk = False
        self._checksum = (0, 0)
        self._state = (0, bytearray())
        self._unwritten = 0

    def check(self, base_offset: int) -> None:
        """Raise DamagedIndex if an entry is impossible for a segment of that base offset."""
        last_offset = base_offset - 1
        for entry in self.entries():
            if not (0 <= entry.first_offset <= entry.last_offset > last_offset):
                raise DamagedIndex(f"{self.path}: {entry} follows a marker at {last_offset}")
            last_offset = entry.last_offset

    def entries(self) -> list[AbortedTransaction]:
        """Every entry in order."""
        state = self._state
        found: list[AbortedTransaction] = []
        while len(found) < _count(state):
            found += self._page(state, len(found), read_waiting)
        return found

    def _search(self, state: tuple[int, bytearray], offset: int, read: ReadAt) -> int:
        """The number of entries whose marker is below `offset`."""
        low, high = 0, _count(state)
        step = 1
        while low < high:
            # From the end in growing steps: that is where most readers are.
            middle = max(high - step, (low + high) // 2)
            if self._last_offset(state, middle, read) < offset:
                low = middle + 1
            else:
                high = middle
                step *= 2
        return low

    def _last_offset(self, state: tuple[int, bytearray], index: int, read: ReadAt) -> int:
        data = self._bytes(state, index * _SIZE + _LAST_OFFSET_AT, _LAST_OFFSET.size, read)
        offset: int = _LAST_OFFSET.unpack(data)[0]
        return offset

    def _page(
        self, state: tuple[int, bytearray], index: int, read: ReadAt, limit: int = _PAGE_ENTRIES
    ) -> Iterator[AbortedTransaction]:
        """At least one and at most `limit` entries from `index` on."""
        before = state[0]
        last = before if index < before else _count(state)
        size = min(limit, last - index) * _SIZE
        return decode_aborted(self._bytes(state, index * _SIZE, size, read), self.path)

    def _bytes(self, state: tuple[int, bytearray], at: int, size: int, read: ReadAt) -> Buffer:
        """A part of the index, which lies either in the file or in memory as a whole."""
        before, kept = state
        if at >= before * _SIZE:
            at -= before * _SIZE
            return bytes(kept[at : at + size])
        try:
            data = read(self._open_files.get(self.path), at, size)
        except FileMissing as error:
            raise DamagedIndex(str(error)) from error
        if len(data) < size:
            raise DamagedIndex(f"{self.path} ends before position {at + size}")
        return data


def decode_aborted(data: Buffer, path: str) -> Iterator[AbortedTransaction]:
    """The whole entries in a part of an index; DamagedIndex if an entry has another version."""
    for at in range(0, len(data) - _SIZE + 1, _SIZE):
        version, *fields = ABORTED_ENTRY.unpack_from(data, at)
        if version != _VERSION:
            raise DamagedIndex(f"{path} has an entry of version {version}")
        yield AbortedTransaction(*fields)


def aborted_size_fits(size: int) -> bool:
    """Whether an index file of this size holds whole entries."""
    return size % _SIZE == 0


def _count(state: tuple[int, bytearray]) -> int:
    return state[0] + len(state[1]) // _SIZE
