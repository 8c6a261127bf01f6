"""`storage.files` on a simulated disk: what a broker's storage opens, reads, writes and flushes."""

import errno

from headrace.errors import StorageError
from headrace.storage.files import Block, File, Files, Lock, storage_error
from headrace.testing.simulation.disk import DirectoryNode, Disk, FileNode, HostCrashed, Node
from headrace.types import Buffer

_DISK_BYTES = 1 << 40


class SimulatedFile(File):
    """An open file; it is closed when its process dies."""

    __slots__ = ("_disk", "_generation", "_node")

    def __init__(self, path: str, disk: Disk, node: FileNode) -> None:
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
        self._check()
        if position < 0:
            raise _error("read", self.path, errno.EINVAL)
        if self._disk.chance(self._disk.faults.read_error):
            raise _error("read", self.path, errno.EIO)
        return bytes(self._node.cache[position : position + size])

    def read_into(self, position: int, memory: memoryview) -> int:
        data = self.read_at(position, len(memory))
        memory[: len(data)] = data
        return len(data)

    def read_cached(self, position: int, size: int) -> Block | None:
        data = self.read_at(position, size)
        return Block(data) if len(data) == size else None

    def read_unkept(self, position: int, size: int) -> Buffer:
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
            # The pages count as clean now: whoever tries again is told that all is well.
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


class SimulatedLock(Lock):
    """A lock on a directory; a crash releases it."""

    __slots__ = ("_disk", "_path")

    def __init__(self, disk: Disk, path: str) -> None:
        super().__init__(-1)
        self._disk = disk
        self._path = path

    def release(self) -> None:
        self._disk.locked.discard(self._path)


class SimulatedFiles(Files):
    """A machine's disk as one of its processes sees it, until that process dies."""

    def __init__(self, disk: Disk) -> None:
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

    def modified_ms(self, path: str) -> int:
        node = self._look("inspect", path)
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

    def rename(self, old: str, new: str) -> None:
        node = self._look("rename", old)
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

    def lock(self, path: str) -> Lock | None:
        self.open(path, create=True)
        if path in self._disk.locked:
            return None
        self._disk.locked.add(path)
        return SimulatedLock(self._disk, path)

    def space(self, path: str) -> tuple[int, int]:
        self._look("inspect", path)
        limit = self._disk.limit_bytes
        if limit is None:
            return _DISK_BYTES, _DISK_BYTES
        return limit, max(0, limit - self._disk.used_bytes())

    def allocate(self, path: str, size: int) -> bool:
        """Say that it cannot: zeros that nobody reads need no memory here."""
        return False

    def _check(self) -> None:
        if self._generation != self._disk.generation:
            raise HostCrashed("the process that used this disk is dead")

    def _look(self, action: str, path: str) -> Node:
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
