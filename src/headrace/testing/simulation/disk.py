"""A disk in memory that loses what a real one loses: what was not flushed when the power went.

Data become durable with an fsync of their file, names with one of their directory. A loss of power
keeps some of what is not durable yet, and tears writes apart; a process that dies loses nothing.
"""

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import TypeAlias

_SECTOR_BYTES, _SMALL_SECTOR_BYTES = 512, 64
_STALL_S = 4.0


class HostCrashed(BaseException):
    """Unwinds code that was running on a host at the moment the host crashed."""


@dataclass
class DiskFaults:
    """How likely what goes wrong is, for each operation."""

    read_error: float = 0.0
    write_error: float = 0.0
    no_space: float = 0.0
    fsync_error: float = 0.0  # The dirty pages are dropped, as on Linux.
    fsync_lie: float = 0.0  # fsync returns, but nothing became durable.
    power_loss: float = 0.0  # Just before a change or an fsync.
    stall: float = 0.0  # A change or an fsync takes seconds.
    sync_s: float = 0.0  # How long an fsync takes, on average.


@dataclass(eq=False)
class FileNode:
    """A file's content: as reads see it, as a loss of power leaves it, and what lies between."""

    cache: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    dirty: list[tuple[int, bytes | None]] = field(default_factory=list)  # None: truncate there.
    modified_s: float = 0.0

    def write(self, offset: int, data: bytes | None) -> None:
        _apply(self.cache, offset, data)
        self.dirty.append((offset, data))

    def flush(self) -> None:
        for offset, data in self.dirty:
            _apply(self.durable, offset, data)
        self.dirty.clear()

    def lose_writes(self, rng: Random) -> None:
        """Of the unflushed writes a prefix survives, or any of them; some are torn."""
        prefix, any_subset = rng.randint(0, len(self.dirty)), rng.random() < 0.5
        for number, (offset, data) in enumerate(self.dirty):
            if (rng.random() < 0.5) if any_subset else (number >= prefix):
                continue
            if data is None or rng.random() < 0.7:
                _apply(self.durable, offset, data)
            else:
                self._tear(rng, offset, data)
        self.dirty.clear()
        self.cache = bytearray(self.durable)

    def _tear(self, rng: Random, offset: int, data: bytes) -> None:
        """Some sectors of a write are there and some are not."""
        step = _SECTOR_BYTES if rng.random() < 0.8 else _SMALL_SECTOR_BYTES
        for at in range(-(offset % step), len(data), step):
            start = max(at, 0)
            if rng.random() < 0.5:
                _apply(self.durable, offset + start, data[start : at + step])


@dataclass(eq=False)
class DirectoryNode:
    """A directory's names: as they are, and as a loss of power leaves them."""

    names: dict[str, "Node"] = field(default_factory=dict)
    durable: dict[str, "Node"] = field(default_factory=dict)


Node: TypeAlias = FileNode | DirectoryNode
# Changes of names that happen together: a rename is two. None: the name goes.
Change: TypeAlias = tuple[tuple[DirectoryNode, str, Node | None], ...]


class Disk:
    """One machine's disk. Paths are absolute."""

    def __init__(self, rng: Random, note: Callable[..., None], owner: str) -> None:
        self.rng = rng
        self.faults = DiskFaults()
        # Grows with every crash: files that were open before are closed by it.
        self.generation = 0
        # Grows with every loss of power.
        self.boots = 0
        self.locked: set[str] = set()
        self.is_inspected = False
        # The machine's owner says what a loss of power does, and what time it is.
        self.lose_power: Callable[[], None] = lambda: None
        self.wall: Callable[[], float] = lambda: 0.0
        self.take_time: Callable[[float], None] = lambda seconds: None
        # Told after something was lost or damaged, and of every rename.
        self.on_harm: Callable[[], None] = lambda: None
        self.on_rename: Callable[[str, str], None] = lambda old, new: None
        # What fits on the disk, if it is nearly full.
        self.limit_bytes: int | None = None
        self._note = note
        self._owner = owner
        self._root = DirectoryNode()
        # Changes of names that are not durable yet, oldest first.
        self._journal: list[Change] = []

    def crash(self, *, power_loss: bool) -> None:
        """Close all files; on a loss of power forget a random part of what is not durable."""
        self.generation += 1
        self.locked.clear()
        if not power_loss:
            return
        self.boots += 1
        # A prefix survives, since a journal keeps the order.
        for change in self._journal[: self.rng.randint(0, len(self._journal))]:
            _commit(change)
        self._journal.clear()
        for node in list(_durable_nodes(self._root)):
            if isinstance(node, DirectoryNode):
                node.names = dict(node.durable)
            else:
                node.lose_writes(self.rng)
        self.on_harm()

    def wipe(self) -> None:
        """An empty disk in the place of this one."""
        self._note("wipe", self._owner)
        self.crash(power_loss=False)
        self._root = DirectoryNode()
        self._journal.clear()
        self.on_harm()

    def used_bytes(self) -> int:
        """What all files hold."""
        return sum(len(node.cache) for _, node in self.files("/"))

    def files(self, path: str) -> list[tuple[str, FileNode]]:
        """Every file below a directory, with its path relative to that, sorted."""
        found: list[tuple[str, FileNode]] = []
        node = self.find(path)
        if isinstance(node, DirectoryNode):
            _collect(node, "", found)
        return found

    def durable_files(self, path: str) -> dict[str, bytes]:
        """What a loss of power would leave for sure of the files below a directory, by path."""
        node = self._find_durable(path)
        found: dict[str, bytes] = {}
        if isinstance(node, DirectoryNode):
            _collect_durable(node, "", found)
        return found

    def has_durable_name(self, path: str) -> bool:
        """Whether a loss of power leaves a file, or its absence, under a name."""
        return self.find(path) is self._find_durable(path)

    def _find_durable(self, path: str) -> Node | None:
        node: Node | None = self._root
        for name in _parts(path):
            node = node.durable.get(name) if isinstance(node, DirectoryNode) else None
        return node

    def names(self, path: str) -> list[str]:
        """The names in a directory; none if it is not there."""
        node = self.find(path)
        return list(node.names) if isinstance(node, DirectoryNode) else []

    def put(self, path: str, content: bytes | None) -> None:
        """Damage a file from outside, durably: other content, or None to remove it or its tree."""
        self._note("damage", self._owner, path, content)
        if content is None:
            directory, name = self.parent(path)
            directory.names.pop(name, None)
            self._journal.append(((directory, name, None),))
            self.sync_directory(directory)
        else:
            node = self.node(path)
            assert isinstance(node, FileNode), path
            node.flush()
            node.cache, node.durable = bytearray(content), bytearray(content)

    def chance(self, probability: float) -> bool:
        return probability > 0 and not self.is_inspected and self.rng.random() < probability

    @contextmanager
    def inspected(self) -> Iterator[None]:
        """While the simulator itself reads, nothing fails."""
        self.is_inspected = True
        try:
            yield
        finally:
            self.is_inspected = False

    def begin(self, risk: float, number: int, what: str, path: str, *details: object) -> None:
        """Before every change: trace it; perhaps lose the power, perhaps fail."""
        self._note("disk", self._owner, what, path, *details)
        if self.chance(self.faults.stall):
            self.take_time(self.rng.uniform(0, _STALL_S))
        if self.chance(self.faults.power_loss):
            self.lose_power()
            raise HostCrashed(self._owner)
        if self.chance(risk):
            raise OSError(number, errno.errorcode[number])

    # -- names

    def find(self, path: str) -> Node | None:
        node: Node = self._root
        for name in _parts(path):
            if not isinstance(node, DirectoryNode) or name not in node.names:
                return None
            node = node.names[name]
        return node

    def node(self, path: str) -> Node:
        node = self.find(path)
        if node is None:
            raise OSError(errno.ENOENT, errno.errorcode[errno.ENOENT])
        return node

    def directory(self, path: str) -> DirectoryNode:
        node = self.node(path)
        if not isinstance(node, DirectoryNode):
            raise OSError(errno.ENOTDIR, errno.errorcode[errno.ENOTDIR])
        return node

    def parent(self, path: str) -> tuple[DirectoryNode, str]:
        """The directory that has a path's last name, and that name."""
        above, _, name = path.rstrip("/").rpartition("/")
        return self.directory(above or "/"), name

    def change(
        self, what: str, path: str, *changes: tuple[DirectoryNode, str, Node | None]
    ) -> None:
        """Change names, all of them together."""
        self.begin(self.faults.no_space if changes[-1][2] else 0.0, errno.ENOSPC, what, path)
        for directory, name, node in changes:
            if node is None:
                directory.names.pop(name, None)
            else:
                directory.names[name] = node
        self._journal.append(changes)

    def sync_directory(self, directory: DirectoryNode) -> None:
        """Make durable what was changed in a directory."""
        kept: list[Change] = []
        for change in self._journal:
            if any(changed is directory for changed, _, _ in change):
                _commit(change)
            else:
                kept.append(change)
        self._journal = kept


def _collect(directory: DirectoryNode, above: str, found: list[tuple[str, FileNode]]) -> None:
    for name, node in sorted(directory.names.items()):
        if isinstance(node, DirectoryNode):
            _collect(node, f"{above}{name}/", found)
        else:
            found.append((f"{above}{name}", node))


def _collect_durable(directory: DirectoryNode, above: str, found: dict[str, bytes]) -> None:
    for name, node in sorted(directory.durable.items()):
        if isinstance(node, DirectoryNode):
            _collect_durable(node, f"{above}{name}/", found)
        else:
            found[f"{above}{name}"] = bytes(node.durable)


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part]


def _apply(content: bytearray, offset: int, data: bytes | None) -> None:
    content.extend(bytes(max(0, offset - len(content))))  # A hole reads as zeros.
    content[offset : None if data is None else offset + len(data)] = data or b""


def _commit(change: Change) -> None:
    for directory, name, node in change:
        if node is None:
            directory.durable.pop(name, None)
        else:
            directory.durable[name] = node


def _durable_nodes(directory: DirectoryNode) -> Iterator[Node]:
    yield directory
    for node in directory.durable.values():
        if isinstance(node, DirectoryNode):
            yield from _durable_nodes(node)
        else:
            yield node
