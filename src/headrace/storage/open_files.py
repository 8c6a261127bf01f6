"""A bounded set of open files, shared by all logs of a broker.

Rule: a caller may use a `File` for as long as it holds the reference; a file that leaves the set is
closed when the last reference is dropped.
"""

from collections import OrderedDict
from threading import Lock

from headrace.storage.files import File, Files


class OpenFiles:
    """The `limit` most recently used files, opened on first use.

    Safe to use from any thread.
    """

    def __init__(self, files: Files, limit: int = 512) -> None:
        assert limit > 0, limit
        self.files = files
        self._limit = limit
        self._open: OrderedDict[str, File] = OrderedDict()
        self._forgotten = 0
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._open)

    def get(self, path: str, *, create: bool = False) -> File:
        """The open file at `path`."""
        with self._lock:
            file = self._open.get(path)
            if file is not None:
                self._open.move_to_end(path)
                return file
            forgotten = self._forgotten
        # Outside the lock: opening may wait for a cold disk, and the loop must not wait behind it.
        file = self.files.open(path, create=create)
        evicted: File | None = None
        with self._lock:
            # If a file was renamed or removed meanwhile it may be this file, and a new file may
            # have its name now: the caller may use it, but later callers must not get it.
            if forgotten == self._forgotten:
                file = self._open.setdefault(path, file)
                self._open.move_to_end(path)
                if len(self._open) > self._limit:
                    _, evicted = self._open.popitem(last=False)
        # Closes the descriptor, unless a reader still holds the file, with the lock free.
        del evicted
        return file

    def forget(self, path: str) -> None:
        """Drop a file that was renamed or removed."""
        with self._lock:
            self._forgotten += 1
            file = self._open.pop(path, None)
        del file

    def forget_under(self, directory: str) -> None:
        """Drop every file in a directory."""
        prefix = directory + "/"
        with self._lock:
            self._forgotten += 1
            gone = [self._open.pop(path) for path in list(self._open) if path.startswith(prefix)]
        gone.clear()
