"""What Spark's processes write to stderr: into a file, and only what matters to the terminal.

Spark's Java process and its Python workers have the stderr of whoever starts them. While the
session starts, that is a pipe; what comes out of it later is theirs alone.
"""

import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

_BYTES_MAX = 10_000_000
_LINE_MAX = 65_536
# What a source that may pass over lost records says of them.
_WARNING = re.compile(r"failOnDataLoss is false$|^headrace: ")
_REASON = re.compile(r"\bInvalid |Exception: |Error: ")
_THROWN = re.compile(r"^Exception in thread \S+ |(?:\w+\.)+\w+(?:Exception|Error): |^Error: ")
_REASON_S = 2.0


class SparkLog:
    """A file that takes all, kept to a size, with the one before it beside it.

    `on_line` is called in another thread: with the lines that matter, or with all if `verbose`.
    """

    def __init__(
        self, path: Path, on_line: Callable[[str], None], *, verbose: bool = False
    ) -> None:
        self._path = path
        self._on_line = on_line
        self._verbose = verbose
        self._thread: threading.Thread | None = None

    @contextmanager
    def capturing(self) -> Iterator[None]:
        """Processes that are started inside write to this log for as long as they live."""
        reading, writing = os.pipe()
        sys.stderr.flush()
        saved = os.dup(2)
        os.dup2(writing, 2)
        os.close(writing)
        source = os.fdopen(reading, "rb")
        self._thread = threading.Thread(
            target=self._copy, args=(source,), name="spark-log", daemon=True
        )
        self._thread.start()
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(saved, 2)
            os.close(saved)

    def reason(self) -> str:
        """Why processes that have ended did so, if a line of the log says it."""
        if self._thread is not None:
            self._thread.join(_REASON_S)
        lines = self._path.read_text(errors="replace").splitlines() if self._path.exists() else []
        found = next((line for line in lines if _REASON.search(line)), "")
        return _THROWN.sub("", found).strip()

    def _copy(self, source: BinaryIO) -> None:
        with source:
            file, size = self._open(), 0
            # Lines as long as they like would be kept in memory as a whole.
            while line := source.readline(_LINE_MAX):
                file.write(line)
                file.flush()
                size += len(line)
                if size > _BYTES_MAX:
                    file.close()
                    file, size = self._open(), 0
                text = line.decode(errors="replace").rstrip()
                if self._verbose or _WARNING.search(text):
                    self._on_line(text)
            file.close()

    def _open(self) -> BinaryIO:
        if self._path.exists():
            self._path.replace(self._path.with_name(f"{self._path.name}.1"))
        return self._path.open("wb")
