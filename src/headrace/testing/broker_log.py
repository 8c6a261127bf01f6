"""The output of a test's broker, through all its restarts."""

import logging
from collections import deque

_LINES_MAX = 100_000
_FORMAT = logging.Formatter("%(asctime)s %(levelname)s %(message)s")


class BrokerLog:
    """The newest lines of a broker's output. One thread may add to it while others read it."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=_LINES_MAX)

    @property
    def text(self) -> str:
        return "".join(self._lines.copy())

    def add(self, line: str) -> None:
        """Add a line, which includes its newline."""
        self._lines.append(line)

    def clear(self) -> None:
        """Clear the recorded lines."""
        self._lines.clear()

    def tail(self, count: int) -> str:
        """The last lines."""
        return "".join(list(self._lines.copy())[-count:])


class LogHandler(logging.Handler):
    """Adds the log records of one thread of this process to a broker's log."""

    def __init__(self, log: BrokerLog, thread_id: int) -> None:
        super().__init__()
        self.setFormatter(_FORMAT)
        self._log = log
        self._thread_id = thread_id

    def emit(self, record: logging.LogRecord) -> None:
        # Another broker, or a client, may log in the same process.
        if record.thread == self._thread_id:
            self._log.add(f"{self.format(record)}\n")
