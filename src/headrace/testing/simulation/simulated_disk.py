"""A disk in memory, behind `storage.files`, that loses unflushed data with the power."""

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import TypeAlias

from headrace.errors import StorageError
from headrace.storage.files import Block, DirectoryLock, File, Files, storage_error
from headrace.types import Buffer

# A disk in memory with the losses of a real one: unflushed data are lost with the power.
#
# Data become durable with an fsync of their file, names with one of their directory. A loss of
# power keeps some of what is not durable yet, and tears writes apart; a process that dies loses
# nothing.


_SECTOR_BYTES, _SMALL_SECTOR_BYTES = 512, 64
_STALL_S = 4.0


class HostCrashed(BaseException):
    """Unwinds code that was running on a host at the moment the host crashed."""


@dataclass
class DiskFaults:
    """The probabilities of disk faults, for each operation."""

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
    """A file's content for reads, its content after a loss of power, and the unflushed writes."""

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
        """Keep a prefix of the unflushed writes, or any of them; tear some."""
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
        """Keep only some sectors of a write."""
        step = _SECTOR_BYTES if rng.random() < 0.8 else _SMALL_SECTOR_BYTES
        for at in range(-(offset % step), len(data), step):
            start = max(at, 0)
            if rng.random() < 0.5:
                _apply(self.durable, offset + start, data[start : at + step])


@dataclass(eq=False)
class DirectoryNode:
    """A directory's names: the present ones, and those after a loss of power."""

    names: dict[str, "Node"] = field(default_factory=dict)
    durable: dict[str, "Node"] = field(default_factory=dict)


Node: TypeAlias = FileNode | DirectoryNode
# Changes of names that happen together: a rename has two. None: the name is removed.
Change: TypeAlias = tuple[tuple[DirectoryNode, str, Node | None], ...]


class SimulatedDisk:
    """One machine's disk. Paths are absolute."""

    def __init__(self, rng: Random, note: Callable[..., None], owner: str) -> None:
        self.rng = rng
        self.faults = DiskFaults()
        # Incremented by every crash: files that were open before are closed by it.
        self.generation = 0
        # Incremented by every loss of power.
        self.boots = 0
        self.locked: set[str] = set()
        self.is_inspected = False
        # Set by the machine's owner: the effect of a loss of power, and the time.
        self.lose_power: Callable[[], None] = lambda: None
        self.wall: Callable[[], float] = lambda: 0.0
        self.take_time: Callable[[float], None] = lambda seconds: None
        # Called after data were lost or damaged, and for every rename.
        self.on_harm: Callable[[], None] = lambda: None
        self.on_rename: Callable[[str, str], None] = lambda old, new: None
        # The capacity of the disk, if it is nearly full.
        self.limit_bytes: int | None = None
        self._note = note
        self._owner = owner
        self._root = DirectoryNode()
        # Changes of names that are not durable yet, oldest first.
        self._journal: list[Change] = []

    def crash(self, *, power_loss: bool) -> None:
        """Close all files; on a loss of power lose a random part of the unflushed data."""
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
        """Replace the disk by an empty one."""
        self._note("wipe", self._owner)
        self.crash(power_loss=False)
        self._root = DirectoryNode()
        self._journal.clear()
        self.on_harm()

    def used_bytes(self) -> int:
        """The total size of all files."""
        return sum(len(node.cache) for _, node in self.files("/"))

    def files(self, path: str) -> list[tuple[str, FileNode]]:
        """Every file below a directory, with its path relative to that, sorted."""
        found: list[tuple[str, FileNode]] = []
        node = self.find(path)
        if isinstance(node, DirectoryNode):
            _collect(node, "", found)
        return found

    def durable_files(self, path: str) -> dict[str, bytes]:
        """The files below a directory as they surely survive a loss of power, by path."""
        node = self._find_durable(path)
        found: dict[str, bytes] = {}
        if isinstance(node, DirectoryNode):
            _collect_durable(node, "", found)
        return found

    def has_durable_name(self, path: str) -> bool:
        """Whether a file, or its absence, under a name survives a loss of power."""
        return self.find(path) is self._find_durable(path)

    def _find_durable(self, path: str) -> Node | None:
        node: Node | None = self._root
        for name in _parts(path):
            node = node.durable.get(name) if isinstance(node, DirectoryNode) else None
        return node

    def names(self, path: str) -> list[str]:
        """The names in a directory; none if it does not exist."""
        node = self.find(path)
        return list(node.names) if isinstance(node, DirectoryNode) else []

    def put(self, path: str, content: bytes | None) -> None:
        """Damage a file from outside, durably: replace its content, or with None delete it or its
        tree.
        """
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
        """Disable faults while the simulator itself reads."""
        self.is_inspected = True
        try:
            yield
        finally:
            self.is_inspected = False

    def begin(self, risk: float, number: int, what: str, path: str, *details: object) -> None:
        """Before every change: trace it; perhaps lose the power, perhaps fail."""
        self._note("disk", self._owner, what, path, *details)
        faults = self.faults
        if faults.stall and self.chance(faults.stall):
            self.take_time(self.rng.uniform(0, _STALL_S))
        if faults.power_loss and self.chance(faults.power_loss):
            self.lose_power()
            raise HostCrashed(self._owner)
        if risk and self.chance(risk):
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
        """The directory of a path's last name, and that name."""
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
        """Make the changes in a directory durable."""
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


_DISK_BYTES = 1 << 40


class SimulatedFile(File):
    """An open file; it is closed when its process dies."""

    __slots__ = ("_disk", "_generation", "_node")

    def __init__(self, path: str, disk: SimulatedDisk, node: FileNode) -> None:
        super().__init__(path, -1)
        self._disk = disk
        self._node = node
        self._generation = disk.generation

    def __del__(self) -> None:
        """There is no descriptor to close."""

    def size(self) -> int:
        self._check()
        return len(self._node.cache)

    def read_at(self, position: int, size: int) -> bytes:
        disk = self._disk
        if self._generation != disk.generation:
            raise HostCrashed(self.path)
        if position < 0:
            raise _error("read", self.path, errno.EINVAL)
        if disk.faults.read_error and disk.chance(disk.faults.read_error):
            raise _error("read", self.path, errno.EIO)
        with memoryview(self._node.cache) as cache:
            return bytes(cache[position : position + size])

    def read_into(self, position: int, memory: memoryview) -> int:
        data = self.read_at(position, len(memory))
        memory[: len(data)] = data
        return len(data)

    def read_cached(self, position: int, size: int) -> Block | None:
        data = self.read_at(position, size)
        return Block(data) if len(data) == size else None

    def read_without_caching(self, position: int, size: int) -> Buffer:
        return self.read_at(position, size)

    def write_at(self, position: int, data: Buffer) -> None:
        self._write("write", position, bytes(data))

    def truncate(self, size: int) -> None:
        self._write("truncate", size, None)

    def sync(self) -> None:
        self._check()
        disk = self._disk
        disk.begin(0.0, errno.EIO, "fsync", self.path)
        if disk.faults.sync_s:
            disk.take_time(disk.rng.expovariate(1 / disk.faults.sync_s))
        if disk.chance(disk.faults.fsync_lie):
            return
        if disk.chance(disk.faults.fsync_error):
            # The pages count as clean now: another flush succeeds.
            self._node.dirty.clear()
            raise _error("flush", self.path, errno.EIO)
        self._node.flush()

    def _write(self, action: str, position: int, data: bytes | None) -> None:
        self._check()
        disk = self._disk
        if disk.chance(disk.faults.write_error):
            raise _error(action, self.path, errno.EIO)
        risk = 0.0 if data is None else disk.faults.no_space
        if data is not None and disk.limit_bytes is not None:
            growth = position + len(data) - len(self._node.cache)
            if growth > 0 and disk.used_bytes() + growth > disk.limit_bytes:
                risk = 1.0
        try:
            disk.begin(risk, errno.ENOSPC, action, self.path, position, data)
        except OSError as error:
            raise storage_error(action, self.path, error) from error
        self._node.write(position, data)
        self._node.modified_s = disk.wall()

    def _check(self) -> None:
        if self._generation != self._disk.generation:
            raise HostCrashed(self.path)


class SimulatedLock(DirectoryLock):
    """A lock on a directory; a crash releases it."""

    __slots__ = ("_disk", "_path")

    def __init__(self, disk: SimulatedDisk, path: str) -> None:
        super().__init__(-1)
        self._disk = disk
        self._path = path

    def release(self) -> None:
        self._disk.locked.discard(self._path)


class SimulatedFiles(Files):
    """The file interface of a process to its machine's disk, until that process dies."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self._disk = disk
        self._generation = disk.generation

    def open(self, path: str, *, create: bool = False) -> File:
        self._check()
        try:
            directory, name = self._disk.parent(path)
            if create and name not in directory.names:
                made = FileNode(modified_s=self._disk.wall())
                self._disk.change("create", path, (directory, name, made))
            node = self._disk.node(path)
        except OSError as error:
            raise storage_error("open", path, error) from error
        if isinstance(node, DirectoryNode):
            raise _error("open", path, errno.EISDIR)
        return SimulatedFile(path, self._disk, node)

    def boot_id(self) -> str:
        return str(self._disk.boots)

    def exists(self, path: str) -> bool:
        self._check()
        return self._disk.find(path) is not None

    def is_mount_point(self, path: str) -> bool:
        return False

    def modified_ms(self, path: str) -> int:
        node = self._node("inspect", path)
        return int(node.modified_s * 1000) if isinstance(node, FileNode) else 0

    def list_directory(self, path: str) -> list[str]:
        return sorted(self._directory("list", path).names)

    def file_sizes(self, path: str) -> dict[str, int]:
        names = self._directory("list", path).names
        return {
            name: len(node.cache)
            for name, node in sorted(names.items())
            if isinstance(node, FileNode)
        }

    def list_directories(self, path: str) -> list[str]:
        names = self._directory("list", path).names
        return sorted(name for name, node in names.items() if isinstance(node, DirectoryNode))

    def make_directory(self, path: str) -> None:
        self._check()
        made = ""
        try:
            for part in path.strip("/").split("/"):
                made += f"/{part}"
                directory, name = self._disk.parent(made)
                if name not in directory.names:
                    self._disk.change("mkdir", made, (directory, name, DirectoryNode()))
                self._disk.directory(made)
        except OSError as error:
            raise storage_error("create directory", path, error) from error

    def make_private(self, path: str) -> None:
        """Do nothing: a simulated disk has no users."""

    def rename(self, old: str, new: str) -> None:
        node = self._node("rename", old)
        try:
            source, old_name = self._disk.parent(old)
            target, new_name = self._disk.parent(new)
            there = target.names.get(new_name)
            if isinstance(there, DirectoryNode) and there.names:
                raise OSError(errno.ENOTEMPTY, errno.errorcode[errno.ENOTEMPTY])
            self._disk.change(
                "rename", f"{old} {new}", (source, old_name, None), (target, new_name, node)
            )
            self._disk.on_rename(old, new)
        except OSError as error:
            raise storage_error("rename", old, error) from error

    def remove(self, path: str) -> None:
        self._check()
        if self._disk.find(path) is not None:
            directory, name = self._disk.parent(path)
            self._disk.change("remove", path, (directory, name, None))

    def remove_tree(self, path: str) -> None:
        self._check()
        node = self._disk.find(path)
        if isinstance(node, DirectoryNode):
            for name in sorted(node.names):
                self.remove_tree(f"{path}/{name}")
        self.remove(path)

    def sync_directory(self, path: str) -> None:
        directory = self._directory("flush directory", path)
        disk = self._disk
        try:
            disk.begin(disk.faults.fsync_error, errno.EIO, "fsync", path)
        except OSError as error:
            raise storage_error("flush directory", path, error) from error
        disk.sync_directory(directory)

    def read_bytes(self, path: str) -> bytes | None:
        self._check()
        if self._disk.find(path) is None:
            return None
        file = self.open(path)
        return file.read_at(0, file.size())

    def lock(self, path: str) -> DirectoryLock | None:
        self.open(path, create=True)
        if path in self._disk.locked:
            return None
        self._disk.locked.add(path)
        return SimulatedLock(self._disk, path)

    def space(self, path: str) -> tuple[int, int]:
        self._node("inspect", path)
        limit = self._disk.limit_bytes
        if limit is None:
            return _DISK_BYTES, _DISK_BYTES
        return limit, max(0, limit - self._disk.used_bytes())

    def allocate(self, path: str, size: int) -> bool:
        """Refuse to allocate: zeros that are never read need no memory here."""
        return False

    def _check(self) -> None:
        if self._generation != self._disk.generation:
            raise HostCrashed("the process that used this disk is dead")

    def _node(self, action: str, path: str) -> Node:
        self._check()
        try:
            return self._disk.node(path)
        except OSError as error:
            raise storage_error(action, path, error) from error

    def _directory(self, action: str, path: str) -> DirectoryNode:
        self._check()
        try:
            return self._disk.directory(path)
        except OSError as error:
            raise storage_error(action, path, error) from error


def _error(action: str, path: str, number: int) -> StorageError:
    return storage_error(action, path, OSError(number, errno.errorcode[number]))
