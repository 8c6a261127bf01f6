"""Log lines of a process: text for people or JSON for programs, with a limit on repeated messages.

Every log record of a process passes one `LogOutput`. Records of one message, whatever their
arguments, share a limit per window of time; those above it are counted, and the count is logged
when the window is over. So no peer can fill a disk with lines by failing again and again.
"""

import json
import logging
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, TextIO

from headrace.metrics.catalog import LOG_LINES, LOG_LINES_SUPPRESSED
from headrace.metrics.registry import Registry

WINDOW_S = 10.0
# Messages with a window of their own; those that were silent for longest share none any more.
_MESSAGES_MAX = 1000
# A line holds text of peers, such as names of clients.
_LINE_CHARACTERS_MAX = 16_384
_LEVELS = {
    logging.DEBUG: "debug",
    logging.INFO: "info",
    logging.WARNING: "warning",
    logging.ERROR: "error",
    logging.CRITICAL: "critical",
}
_TEXT_FORMAT = "%(asctime)s %(levelname)s %(message)s"
# What a record has by itself; whatever else it has was given by `extra`.
_OWN_FIELDS = frozenset(
    (*logging.makeLogRecord({}).__dict__, "message", "asctime", "taskName", "suppressed_lines")
)


class MessageKey(NamedTuple):
    """What makes two log records lines of the same message: all but their arguments."""

    logger: str
    level: int
    template: str


class Suppressed(NamedTuple):
    """The number of lines of a message that were left out in a window."""

    key: MessageKey
    lines: int


@dataclass(slots=True)
class _Window:
    since_s: float
    lines: int = 0
    suppressed: int = 0


class MessageLimits:
    """Limits on the lines of each message per window: `lines_max`, or none if that is 0.

    Sans-I/O: the time is an argument. Invariant: at most `_MESSAGES_MAX` windows are kept.
    """

    def __init__(self, lines_max: int, window_s: float = WINDOW_S) -> None:
        self._lines_max = lines_max
        self._window_s = window_s
        # By the start of their windows, the earliest first.
        self._windows: OrderedDict[MessageKey, _Window] = OrderedDict()

    def admit(self, key: MessageKey, now_s: float) -> bool:
        """Whether a line may be written; if not, it is counted."""
        if self._lines_max <= 0:
            return True
        window = self._windows.get(key)
        if window is None:
            window = self._windows[key] = _Window(now_s)
        window.lines += 1
        if window.lines <= self._lines_max:
            return True
        window.suppressed += 1
        return False

    def ended(self, now_s: float) -> list[Suppressed]:
        """The messages with suppressed lines whose window is over, or whose place is needed."""
        found = []
        while self._windows:
            key, window = next(iter(self._windows.items()))
            is_over = now_s - window.since_s >= self._window_s
            if not is_over and len(self._windows) <= _MESSAGES_MAX:
                break
            del self._windows[key]
            if window.suppressed:
                found.append(Suppressed(key, window.suppressed))
        return found


class JsonFormatter(logging.Formatter):
    """A log record as one line of JSON: time, level, logger, node, message, and what `extra` has.

    Characters beyond ASCII and control characters are escaped, so that no text of a peer can begin
    a line of its own or talk to a terminal.
    """

    def __init__(self, fields: Mapping[str, Any]) -> None:
        super().__init__()
        self._fields = dict(fields)

    def format(self, record: logging.LogRecord) -> str:
        seconds, millis = int(record.created), int(record.msecs)
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
        line: dict[str, Any] = {
            "time": f"{stamp}.{millis:03d}Z",
            "level": _level_name(record.levelno),
            "logger": record.name,
            **self._fields,
            "message": _clipped(record.getMessage()),
        }
        for name, value in record.__dict__.items():
            if name not in _OWN_FIELDS:
                line.setdefault(name, value)
        if record.exc_info and record.exc_info[0] is not None:
            line["exception"] = _clipped(self.formatException(record.exc_info))
        return json.dumps(line, default=str)


class TextFormatter(logging.Formatter):
    """A log record as text: its message on one line, without what terminals take for commands."""

    def __init__(self) -> None:
        super().__init__(_TEXT_FORMAT)

    def formatMessage(self, record: logging.LogRecord) -> str:  # logging's name
        record.message = _printable(_clipped(record.message))
        return super().formatMessage(record)


class LogOutput(logging.Handler):
    """The handler of all log records of a process, on a stream."""

    def __init__(
        self,
        stream: TextIO,
        formatter: logging.Formatter,
        limits: MessageLimits,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self.setFormatter(formatter)
        self._stream = stream
        self._limits = limits
        self._now = now
        self.lines = dict.fromkeys(_LEVELS.values(), 0)
        self.suppressed = dict.fromkeys(_LEVELS.values(), 0)

    def emit(self, record: logging.LogRecord) -> None:
        # `handle` holds the handler's lock: worker threads log too.
        now_s = self._now()
        self._write_suppressed(self._limits.ended(now_s))
        level = _level_name(record.levelno)
        key = MessageKey(record.name, record.levelno, str(record.msg))
        # The last words of a process are never left out.
        if record.levelno < logging.CRITICAL and not self._limits.admit(key, now_s):
            self.suppressed[level] += 1
            return
        self.lines[level] += 1
        self._write(record)

    async def report_suppressed(self) -> None:
        """Log the counts of windows that are over; called now and then, when nothing is logged."""
        self.acquire()
        try:
            self._write_suppressed(self._limits.ended(self._now()))
        finally:
            self.release()

    def flush(self) -> None:
        # The stream may be gone, with whoever read it.
        with suppress(OSError, ValueError):
            self._stream.flush()

    def observe(self, registry: Registry) -> None:
        """Show the counts of lines as metrics."""
        registry.samples(LOG_LINES, lambda: [((name,), n) for name, n in self.lines.items()])
        registry.samples(
            LOG_LINES_SUPPRESSED, lambda: [((name,), n) for name, n in self.suppressed.items()]
        )

    def _write_suppressed(self, suppressed: Iterable[Suppressed]) -> None:
        for key, lines in suppressed:
            record = logging.makeLogRecord(
                {
                    "name": key.logger,
                    "levelno": key.level,
                    "levelname": logging.getLevelName(key.level),
                    "msg": "%d more lines like this were left out: %s",
                    "args": (lines, key.template),
                    "suppressed": lines,
                }
            )
            self.lines[_level_name(key.level)] += 1
            self._write(record)

    def _write(self, record: logging.LogRecord) -> None:
        # A broker does not stop because nobody reads what it logs.
        with suppress(OSError, ValueError):
            self._stream.write(f"{self.format(record)}\n")
            self._stream.flush()


def configure_logging(
    level: int,
    log_format: str,
    lines_max: int,
    fields: Mapping[str, Any],
    stream: TextIO | None = None,
) -> LogOutput:
    """Send the log records of this process to a stream, standard error by default.

    `log_format` is `text`, `json` or `auto`, which is text on a terminal and JSON elsewhere. The
    root logger loses the handlers that it has.
    """
    stream = sys.stderr if stream is None else stream
    as_text = log_format == "text" or (log_format == "auto" and stream.isatty())
    formatter = TextFormatter() if as_text else JsonFormatter(fields)
    output = LogOutput(stream, formatter, MessageLimits(lines_max))
    root = logging.getLogger()
    for handler in tuple(root.handlers):
        root.removeHandler(handler)
    root.addHandler(output)
    root.setLevel(level)
    return output


def _level_name(level: int) -> str:
    """The name of the highest known level that is not above one."""
    return _LEVELS[max((known for known in _LEVELS if known <= level), default=logging.DEBUG)]


def _clipped(text: str) -> str:
    if len(text) <= _LINE_CHARACTERS_MAX:
        return text
    return f"{text[:_LINE_CHARACTERS_MAX]}... ({len(text)} characters)"


def _printable(text: str) -> str:
    """A text with control and formatting characters escaped, those that reorder text included."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )
