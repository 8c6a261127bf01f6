"""The `.txnindex` of a segment: the aborted transactions whose markers it holds, in Kafka's layout.

Rule: unlike the other indexes this one must be complete, since records it does not account for
count as committed. So an entry can be seen as soon as its marker can, and after a crash the index
is made again with the producer state that the segment began with.
"""

from struct import Struct
from typing import NamedTuple

from headrace.storage.descriptors import OpenFiles
from headrace.storage.files import FileMissing
from headrace.storage.index import DamagedIndex, ReadAt, read_waiting

ABORTED_SUFFIX = ".txnindex"
# A version, the producer, its transaction's first and last offset, the last stable one.
ABORTED_ENTRY = Struct(">hqqqq")

_VERSION = 0
_SIZE = ABORTED_ENTRY.size
_PAGE_ENTRIES = 64


class AbortedTransaction(NamedTuple):
    """A transaction whose records nobody shall see. `last_offset` is that of its marker.

    Everything below `last_stable_offset` was decided when the marker was written.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class AbortedIndex:
    """The aborted transactions of one segment by the offset of their markers. There is no file
    before there is an entry.

    One thread appends and truncates; another may look up meanwhile, since it sees either the old
    or the new `_state`.
    """

    __slots__ = ("_open_files", "_state", "path")

    def __init__(self, open_files: OpenFiles, path: str, size: int) -> None:
        self.path = path
        self._open_files = open_files
        # Entries in the file, and those that follow them in memory.
        self._state: tuple[int, bytearray] = (size // _SIZE, bytearray())

    def __len__(self) -> int:
        return _count(self._state)

    @property
    def size(self) -> int:
        """The bytes of all entries."""
        return len(self) * _SIZE

    def append(self, entry: AbortedTransaction) -> None:
        """Add an entry, in memory only; its marker lies behind those of all others."""
        self._state[1].extend(ABORTED_ENTRY.pack(_VERSION, *entry))

    def write_pending(self) -> None:
        """Write the entries that wait. Not durable before `sync`."""
        written, pending = self._state
        if pending:
            file = self._open_files.get(self.path, create=True)
            file.write_at(written * _SIZE, pending)
            self._state = (written + len(pending) // _SIZE, bytearray())

    def sync(self) -> None:
        """Make the written entries durable. May run in a worker thread."""
        if self._state[0]:
            self._open_files.get(self.path).sync()

    def overlapping(
        self, start: int, end: int, read: ReadAt = read_waiting
    ) -> tuple[list[AbortedTransaction], bool]:
        """Those that have offsets in [start, end), and whether no later segment has another."""
        state = self._state
        found = []
        index = self._search(state, start, read)
        while index < _count(state):
            for entry in self._page(state, index, read):
                index += 1
                if entry.first_offset < end:
                    found.append(entry)
                if entry.last_stable_offset >= end:
                    return found, True
        return found, False

    def truncate(self, offset: int) -> None:
        """Drop the entries whose marker is at or above `offset`."""
        if not len(self):
            return
        keep = self._search(self._state, offset, read_waiting)
        written, pending = self._state
        if keep < written:
            self._open_files.get(self.path).truncate(keep * _SIZE)
            self._state = (keep, bytearray())
        else:
            self._state = (written, pending[: (keep - written) * _SIZE])

    def reset(self) -> None:
        """Drop every entry, and the file whatever it holds."""
        self._open_files.files.remove(self.path)
        self._open_files.forget(self.path)
        self._state = (0, bytearray())

    def check(self, base_offset: int) -> None:
        """Raise DamagedIndex if the entries cannot be those of a segment that begins there."""
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
        while low < high:
            middle = (low + high) // 2
            if self._page(state, middle, read, 1)[0].last_offset < offset:
                low = middle + 1
            else:
                high = middle
        return low

    def _page(
        self, state: tuple[int, bytearray], index: int, read: ReadAt, limit: int = _PAGE_ENTRIES
    ) -> list[AbortedTransaction]:
        """Some entries from `index` on."""
        written, pending = state
        if index >= written:
            at = (index - written) * _SIZE
            data: bytes | bytearray = bytes(pending[at : at + limit * _SIZE])
        else:
            wanted = min(limit, written - index) * _SIZE
            try:
                data = bytes(read(self._open_files.get(self.path), index * _SIZE, wanted))
            except FileMissing as error:
                raise DamagedIndex(str(error)) from error
            if len(data) < wanted:
                raise DamagedIndex(f"{self.path} ends before entry {index + wanted // _SIZE - 1}")
        return decode_aborted(data, self.path)


def decode_aborted(data: bytes | bytearray, path: str) -> list[AbortedTransaction]:
    """The whole entries in a part of an index; DamagedIndex if one is of another version."""
    found = []
    whole = len(data) - len(data) % _SIZE
    for version, *fields in ABORTED_ENTRY.iter_unpack(memoryview(data)[:whole]):
        if version != _VERSION:
            raise DamagedIndex(f"{path} has an entry of version {version}")
        found.append(AbortedTransaction(*fields))
    return found


def aborted_size_fits(size: int) -> bool:
    """Whether an index file of this size holds whole entries."""
    return size % _SIZE == 0


def _count(state: tuple[int, bytearray]) -> int:
    return state[0] + len(state[1]) // _SIZE
