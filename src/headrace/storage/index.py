"""Sparse indexes beside a segment: offset -> position and timestamp -> offset, in Kafka's layouts.

Rule: an index only makes a search shorter. Entries may be missing, so a lookup is followed by a
walk over the batches; and an index can be dropped and rebuilt from its segment.
"""

from collections.abc import Callable
from struct import Struct

from headrace.errors import StorageError
from headrace.storage.files import File, FileMissing
from headrace.storage.open_files import OpenFiles
from headrace.types import Buffer

OFFSET_ENTRY = Struct(">ii")  # Offset of a batch's last record less the base offset; its position.
TIME_ENTRY = Struct(">qi")  # Largest timestamp so far; offset of its batch less the base offset.

PENDING_BYTES_MAX = 4096
_PAGE_ENTRIES = 256

ReadAt = Callable[[File, int, int], Buffer]


class DamagedIndex(StorageError):
    """An index file that is damaged and has to be rebuilt."""


class WouldBlock(Exception):
    """A read that must not wait found its data missing from the page cache."""


def read_waiting(file: File, position: int, size: int) -> Buffer:
    """Read from a file, waiting for the disk if need be."""
    return file.read_at(position, size)


class SparseIndex:
    """A sorted file of fixed-size entries (key, value), appended to in key order.

    New entries stay in memory until there are enough for a write, or until `write_pending`; lookups
    see both. One thread appends and truncates; other threads may look entries up at the same time,
    since they see either the old or the new `_state`.
    """

    __slots__ = ("_entry", "_open_files", "_shrunk", "_state", "entries_max", "path")

    def __init__(
        self, open_files: OpenFiles, path: str, entry: Struct, size: int, bytes_max: int
    ) -> None:
        self.path = path
        self.entries_max = bytes_max // entry.size
        self._open_files = open_files
        self._entry = entry
        # Whether entries were removed from the file, which a crash may bring back until a sync.
        self._shrunk = False
        # The number of entries in the file, and the bytes of those that follow them in memory.
        self._state: tuple[int, bytearray] = (size // entry.size, bytearray())

    def __len__(self) -> int:
        return self._count(self._state)

    @property
    def size(self) -> int:
        """The bytes of all entries."""
        return len(self) * self._entry.size

    @property
    def is_full(self) -> bool:
        """Whether no entry fits any more, so that the segment has to roll."""
        return len(self) >= self.entries_max

    def append(self, key: int, value: int) -> None:
        """Add an entry; its key and value must not be below those of the last entry."""
        self._state[1].extend(self._entry.pack(key, value))

    @property
    def wants_write(self) -> bool:
        """Whether enough entries are in memory to be worth a write."""
        return len(self._state[1]) >= PENDING_BYTES_MAX

    def write_pending(self) -> None:
        """Write the entries that are only in memory. Not durable before `sync`."""
        written, pending = self._state
        if pending:
            file = self._open_files.get(self.path, create=True)
            file.write_at(written * self._entry.size, pending)
            self._state = (written + len(pending) // self._entry.size, bytearray())

    def sync(self) -> None:
        """Make the written entries durable. May run in a worker thread."""
        if self._state[0] or self._shrunk:
            self._shrunk = False
            self._open_files.get(self.path).sync()

    def last(self, read: ReadAt = read_waiting) -> tuple[int, int] | None:
        """The newest entry."""
        state = self._state
        count = self._count(state)
        return self._get(state, count - 1, read) if count else None

    def floor(self, key: int, read: ReadAt = read_waiting) -> tuple[int, int] | None:
        """The last entry whose key is not above `key`."""
        state = self._state
        index = self._search(state, 0, key + 1, read) - 1
        return self._get(state, index, read) if index >= 0 else None

    def ceiling_of_value(self, value: int) -> tuple[int, int] | None:
        """The first entry whose value is not below `value`."""
        state = self._state
        index = self._search(state, 1, value, read_waiting)
        return self._get(state, index, read_waiting) if index < self._count(state) else None

    def truncate(self, field: int, limit: int) -> None:
        """Drop the entries whose key (`field` 0) or value (1) is at or above `limit`."""
        keep = self._search(self._state, field, limit, read_waiting)
        written, pending = self._state
        if keep < written:
            self._shrunk = True
            self._open_files.get(self.path).truncate(keep * self._entry.size)
            self._state = (keep, bytearray())
        else:
            self._state = (written, pending[: (keep - written) * self._entry.size])

    def reset(self) -> None:
        """Drop every entry, and empty the file."""
        self._shrunk = True
        self._open_files.get(self.path, create=True).truncate(0)
        self._state = (0, bytearray())

    def replace(self, entries: bytearray) -> None:
        """Replace all entries by packed entries; other threads see the old or the new entries.

        Entries that another thread appends meanwhile may be lost, which does no harm.
        """
        self._state = (0, entries)
        self._shrunk = True
        self._open_files.get(self.path, create=True).truncate(0)
        self.write_pending()

    def check(self, value_max: int) -> None:
        """Raise DamagedIndex if the first and the last entry are out of order or of range."""
        count = len(self)
        if not count:
            return
        try:
            first = self._get(self._state, 0, read_waiting)
            last = self._get(self._state, count - 1, read_waiting)
        except FileMissing as error:
            raise DamagedIndex(str(error)) from error
        ordered = first[0] >= 0 and (count == 1 or first[0] < last[0])
        if not ordered or not 0 <= first[1] <= last[1] <= value_max:
            raise DamagedIndex(f"{self.path}: entries run from {first} to {last}")

    def entries(self) -> list[tuple[int, int]]:
        """Every entry, for tools and tests."""
        state = self._state
        return [self._get(state, index, read_waiting) for index in range(self._count(state))]

    def _count(self, state: tuple[int, bytearray]) -> int:
        return state[0] + len(state[1]) // self._entry.size

    def _get(self, state: tuple[int, bytearray], index: int, read: ReadAt) -> tuple[int, int]:
        written, pending = state
        size = self._entry.size
        if index >= written:
            key, value = self._entry.unpack_from(pending, (index - written) * size)
        else:
            data = read(self._open_files.get(self.path), index * size, size)
            if len(data) < size:
                raise DamagedIndex(f"{self.path} ends before entry {index}")
            key, value = self._entry.unpack(data)
        return key, value

    def _search(self, state: tuple[int, bytearray], field: int, limit: int, read: ReadAt) -> int:
        """The number of entries whose `field` is below `limit`."""
        written, pending = state
        size = self._entry.size
        low, high = 0, self._count(state)
        if pending and self._get(state, written, read)[field] < limit:
            low = written + 1  # The usual case: readers look for recent entries.
        elif pending:
            high = written
        while low < high and low < written and high - low > _PAGE_ENTRIES:
            middle = (low + high) // 2
            if self._get(state, middle, read)[field] < limit:
                low = middle + 1
            else:
                high = middle
        if low >= high:
            return low
        if low >= written:
            page: Buffer = pending
            start = written
        else:
            page = read(self._open_files.get(self.path), low * size, (high - low) * size)
            start = low
        if len(page) < (high - start) * size:
            raise DamagedIndex(f"{self.path} ends before entry {high}")
        while low < high:
            middle = (low + high) // 2
            if self._entry.unpack_from(page, (middle - start) * size)[field] < limit:
                low = middle + 1
            else:
                high = middle
        return low


def offset_index(open_files: OpenFiles, path: str, size: int, bytes_max: int) -> SparseIndex:
    """The `.index` of a segment."""
    return SparseIndex(open_files, path, OFFSET_ENTRY, size, bytes_max)


def time_index(open_files: OpenFiles, path: str, size: int, bytes_max: int) -> SparseIndex:
    """The `.timeindex` of a segment."""
    return SparseIndex(open_files, path, TIME_ENTRY, size, bytes_max)
