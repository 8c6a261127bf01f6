"""A bounded set of open files, shared by all logs of a broker.

Rule: whoever got a `File` may use it for as long as it holds the reference; leaving the set only
drops one.
"""

from collections import OrderedDict
from threading import Lock

from headrace.storage.files import File, Files


class OpenFiles:
    """The files used most recently, opened when first wanted and at most `limit` of them.

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
            # If a file was removed meanwhile it may be this one, and another may have its name by
            # now: whoever asked may have it, but nobody after.
            if forgotten == self._forgotten:
                file = self._open.setdefault(path, file)
                self._open.move_to_end(path)
                if len(self._open) > self._limit:
                    _, evicted = self._open.popitem(last=False)
        # Closes the descriptor, unless a reader still holds the file, with the lock free.
        del evicted
        return file

    def forget(self, path: str) -> None:
        """Let go of a file that was renamed or removed."""
        with self._lock:
            self._forgotten += 1
            file = self._open.pop(path, None)
        del file

    def forget_under(self, directory: str) -> None:
        """Let go of every file in a directory."""
        prefix = directory + "/"
        with self._lock:
            self._forgotten += 1
            gone = [self._open.pop(path) for path in list(self._open) if path.startswith(prefix)]
        gone.clear()
