"""Files and directories of the operating system: the only module that opens them.

Rule: every `OSError` but those of `make_private` becomes a `StorageError` that names the path and
the cause. `Files` and `File` are ordinary classes so that a simulator or a test can subclass them
and inject faults.
"""

import errno
import fcntl
import logging
import os
from contextlib import suppress

from headrace.errors import StorageError
from headrace.types import Buffer

logger = logging.getLogger(__name__)

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_NO_NOWAIT = frozenset({errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS})
_RWF_NOWAIT: int = getattr(os, "RWF_NOWAIT", 0)
# fdatasync flushes the size of a file too, but not its times, which need not be durable.
_sync_data = getattr(os, "fdatasync", os.fsync)


def _cannot_allocate(fd: int, offset: int, size: int) -> None:
    raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))


_allocate = getattr(os, "posix_fallocate", _cannot_allocate)


def _forget_pages(fd: int, position: int, size: int) -> None:
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(fd, position, size, os.POSIX_FADV_DONTNEED)


class ResourceShortage(StorageError):
    """A used-up resource. The disk is sound and the operation may succeed later."""


class DiskFull(ResourceShortage):
    """A write found no room: the disk, a quota or a file size limit is used up."""


class UnflushedWrites(DiskFull):
    """A flush found no room: bytes that were written before may be missing from the disk."""


class TooManyOpenFiles(ResourceShortage):
    """The process or the system has no descriptor left."""


class FileMissing(StorageError):
    """The file or directory does not exist."""


class AccessDenied(StorageError):
    """The process has no right to the file or directory."""


def storage_error(action: str, path: str, error: OSError) -> StorageError:
    """The StorageError for an OSError; its text names the action, the path and the cause."""
    cause = error.strerror or str(error)
    if error.errno in _FULL:
        kind = UnflushedWrites if action.startswith("flush") else DiskFull
        return kind(f"cannot {action} {path}: {cause}; free some space on that disk")
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return FileMissing(f"cannot {action} {path}: {cause}")
    if error.errno in (errno.EACCES, errno.EPERM):
        return AccessDenied(f"cannot {action} {path}: {cause}")
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return TooManyOpenFiles(f"cannot {action} {path}: {cause}; raise the limit (`ulimit -n`)")
    return StorageError(f"cannot {action} {path}: {cause}")


class Block(bytearray):
    """Bytes read from a file. Can be weakly referenced, to notice when they are released."""

    __slots__ = ("__weakref__",)


class File:
    """An open file, read and written by position.

    The descriptor is closed with the last reference to the object, so a worker thread in the middle
    of a read keeps it open although the owner has already dropped its reference.
    """

    __slots__ = ("__weakref__", "_fd", "_nowait", "path")

    def __init__(self, path: str, fd: int) -> None:
        self.path = path
        self._fd = fd
        self._nowait = _RWF_NOWAIT != 0

    def __del__(self) -> None:
        os.close(self._fd)

    def size(self) -> int:
        """The file's length in bytes."""
        try:
            return os.fstat(self._fd).st_size
        except OSError as error:
            raise storage_error("inspect", self.path, error) from error

    def status(self) -> os.stat_result:
        """The status of the open file, which need not be at its path any more."""
        return os.fstat(self._fd)

    def read_at(self, position: int, size: int) -> bytes:
        """Up to `size` bytes from `position`; fewer only at the end of the file."""
        try:
            data = os.pread(self._fd, size, position)
            while 0 < len(data) < size:  # A signal or a huge read may stop short of the end.
                more = os.pread(self._fd, size - len(data), position + len(data))
                if not more:
                    break
                data += more
        except OSError as error:
            raise storage_error("read", self.path, error) from error
        return data

    def read_into(self, position: int, memory: memoryview) -> int:
        """Fill `memory` from `position` on; return the bytes read, fewer only at the end."""
        count = 0
        try:
            while count < len(memory):
                more = os.preadv(self._fd, [memory[count:]], position + count)
                if not more:
                    break
                count += more
        except OSError as error:
            raise storage_error("read", self.path, error) from error
        return count

    def read_cached(self, position: int, size: int) -> Block | None:
        """Exactly `size` bytes if the page cache holds them all, else None.

        On a file system without such reads it may wait for the disk.
        """
        if not self._nowait:
            return Block(self.read_at(position, size))
        data = Block(size)
        try:
            count = os.preadv(self._fd, [data], position, _RWF_NOWAIT)
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno in _NO_NOWAIT:
                self._nowait = False
                return self.read_cached(position, size)
            raise storage_error("read", self.path, error) from error
        return data if count == size else None

    def read_without_caching(self, position: int, size: int) -> Buffer:
        """Read as `read_at`, but leave no pages in the page cache that were not there before."""
        if self._nowait:
            cached = self.read_cached(position, size)
            if cached is not None:
                return cached
        data = self.read_at(position, size)
        with suppress(OSError):  # Not every file system takes the advice.
            _forget_pages(self._fd, position, size)
        return data

    def write_at(self, position: int, data: Buffer) -> None:
        """Write all of `data` at `position`. On an error part of it may have been written."""
        try:
            written = os.pwrite(self._fd, data, position)
            if written != len(data):
                view = memoryview(data)
                while written < len(data):
                    written += os.pwrite(self._fd, view[written:], position + written)
        except OSError as error:
            raise storage_error("write", self.path, error) from error

    def truncate(self, size: int) -> None:
        """Cut the file to `size` bytes."""
        try:
            os.ftruncate(self._fd, size)
        except OSError as error:
            raise storage_error("truncate", self.path, error) from error

    def sync(self) -> None:
        """Return once everything written so far is on stable storage."""
        try:
            _sync_data(self._fd)
        except OSError as error:
            raise storage_error("flush", self.path, error) from error


class DirectoryLock:
    """An exclusive lock on a directory, held until `release` or the end of the process."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def release(self) -> None:
        """Let another process take the lock. Releasing twice is harmless."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class Files:
    """The operating system's files. Has no state, and may be used from any thread."""

    writable = True

    def open(self, path: str, *, create: bool = False) -> File:
        """Open a file for reading and writing; `create` makes it if it does not exist."""
        try:
            flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
            return File(path, os.open(path, flags, 0o644))
        except OSError as error:
            raise storage_error("open", path, error) from error

    def open_private(self, path: str) -> File:
        """Open a file that only its owner may read; it is made if it does not exist."""
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_CREAT, 0o600)
        except OSError as error:
            raise storage_error("open", path, error) from error
        file = File(path, fd)
        try:
            # The file may be there already, with another mode.
            os.fchmod(fd, 0o600)
        except OSError as error:
            raise storage_error("restrict", path, error) from error
        return file

    def is_moved(self, file: File) -> bool:
        """Whether the path of an open file leads to another file now, or to none."""
        try:
            return not os.path.samestat(file.status(), os.stat(file.path))
        except OSError:
            return True

    def exists(self, path: str) -> bool:
        """Whether a file or directory of that name exists."""
        try:
            os.stat(path)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise storage_error("inspect", path, error) from error
        return True

    def is_mount_point(self, path: str) -> bool:
        """Whether another disk, or a part of it, begins at a directory."""
        return os.path.ismount(path)

    def modified_ms(self, path: str) -> int:
        """The time of the last write to a file, in milliseconds since 1970."""
        try:
            return os.stat(path).st_mtime_ns // 1_000_000
        except OSError as error:
            raise storage_error("inspect", path, error) from error

    def list_directory(self, path: str) -> list[str]:
        """The names in a directory, sorted."""
        try:
            return sorted(os.listdir(path))
        except OSError as error:
            raise storage_error("list", path, error) from error

    def file_sizes(self, path: str) -> dict[str, int]:
        """The plain files of a directory, sorted by name, with their sizes."""
        try:
            with os.scandir(path) as entries:
                found = [(entry.name, entry.stat().st_size) for entry in entries if entry.is_file()]
        except OSError as error:
            raise storage_error("list", path, error) from error
        return dict(sorted(found))

    def list_directories(self, path: str) -> list[str]:
        """The names of the directories in a directory, sorted."""
        try:
            with os.scandir(path) as entries:
                return sorted(entry.name for entry in entries if entry.is_dir())
        except OSError as error:
            raise storage_error("list", path, error) from error

    def make_directory(self, path: str) -> None:
        """Make a directory and its parents, unless they exist."""
        try:
            os.makedirs(path, 0o755, exist_ok=True)
        except OSError as error:
            raise storage_error("create directory", path, error) from error

    def make_private(self, path: str) -> None:
        """Let only its owner, and the administrator, into a directory; log where that fails.

        It fails on file systems without modes, and in a directory of somebody else.
        """
        try:
            if os.stat(path).st_mode & 0o077:
                os.chmod(path, 0o700)
        except OSError as error:
            logger.warning("others may read %s: %s", path, error)

    def rename(self, old: str, new: str) -> None:
        """Rename a file or directory, replacing a file of the new name."""
        try:
            os.rename(old, new)
        except OSError as error:
            raise storage_error("rename", old, error) from error

    def remove(self, path: str) -> None:
        """Remove a file, if it exists."""
        try:
            os.unlink(path)
        except FileNotFoundError:
            pass  # It is removed already.
        except OSError as error:
            raise storage_error("remove", path, error) from error

    def remove_tree(self, path: str) -> None:
        """Remove a directory with everything in it, if it exists."""
        # Imported here: shutil imports all compression modules, which would slow down every start.
        import shutil  # noqa: PLC0415

        try:
            shutil.rmtree(path)
        except FileNotFoundError:
            pass  # It is removed already.
        except OSError as error:
            raise storage_error("remove", path, error) from error

    def sync_directory(self, path: str) -> None:
        """Make the names in a directory durable: files made, renamed and removed in it."""
        try:
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
        except OSError as error:
            raise storage_error("flush directory", path, error) from error

    def read_bytes(self, path: str) -> bytes | None:
        """The whole content of a small file, or None if it does not exist."""
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise storage_error("open", path, error) from error
        file = File(path, fd)
        return file.read_at(0, file.size())

    def write_atomically(self, path: str, data: Buffer, *, sync: bool = True) -> None:
        """Replace a file's content, so that a crash leaves the old or the new content.

        With `sync` it is durable on return; without, the caller has to flush the file and the
        directory if need be.
        """
        temporary = path + ".tmp"
        try:
            file = self.open(temporary, create=True)
            file.truncate(0)
            file.write_at(0, data)
            if sync:
                file.sync()
            self.rename(temporary, path)
            if sync:
                self.sync_directory(os.path.dirname(path))
        except StorageError:
            with suppress(StorageError):  # The caller gets the failure that came first.
                self.remove(temporary)
            raise

    def allocate(self, path: str, size: int) -> bool:
        """Make a file occupy `size` bytes on disk; False if the file system cannot."""
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                if os.fstat(fd).st_size > size:
                    os.ftruncate(fd, size)
                else:
                    _allocate(fd, 0, size)
            finally:
                os.close(fd)
        except OSError as error:
            if error.errno in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                return False
            raise storage_error("allocate", path, error) from error
        return True

    def sync_file(self, path: str) -> None:
        """Make a file's content durable, if the file exists."""
        with suppress(FileMissing):
            self.open(path).sync()

    def lock(self, path: str) -> DirectoryLock | None:
        """Lock the file at `path`; None if another process has the lock."""
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise storage_error("open", path, error) from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return None
        except OSError as error:
            os.close(fd)
            raise storage_error("lock", path, error) from error
        return DirectoryLock(fd)

    def boot_id(self) -> str:
        """The id of the machine's boot, new after every reboot; empty if the system has none."""
        try:
            with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
                return file.read().strip()
        except OSError:
            return ""

    def space(self, path: str) -> tuple[int, int]:
        """The total and the usable bytes of the disk that holds `path`."""
        try:
            status = os.statvfs(path)
        except OSError as error:
            raise storage_error("inspect", path, error) from error
        return status.f_frsize * status.f_blocks, status.f_frsize * status.f_bavail


class ReadOnlyFiles(Files):
    """Files opened for reading only: a broker may be using them."""

    writable = False

    def open(self, path: str, *, create: bool = False) -> File:
        """Open a file for reading."""
        assert not create, path
        try:
            return File(path, os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        except OSError as error:
            raise storage_error("open", path, error) from error
