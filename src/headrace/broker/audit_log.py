"""The audit log: the authorizer's decisions, one JSON object in a line of a file of their own.

Rule: a request never waits for it. Lines are queued, and written by a worker thread; what comes
faster than the configured rate, or than the disk takes it, is counted and not written. The number
of lines that are missing stands in the log before the next one.
"""

import json
import logging
import threading
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.broker.thread_pools import ThreadPools
from headrace.clock import Clock
from headrace.errors import StorageError
from headrace.metrics import catalog
from headrace.metrics.registry import Registry
from headrace.security.authorization import Decision, Right
from headrace.storage.files import File, Files
from headrace.tasks import TaskScope

if TYPE_CHECKING:
    from headrace.broker.request import RequestContext

logger = logging.getLogger(__name__)

# Names come from clients and may be 32 kB long.
_TEXT_MAX = 512
_QUEUE_MAX = 10_000
_ROTATED = ".1"


class AuditSettings(NamedTuple):
    """The file of the audit log, the decisions it takes, and their greatest rate."""

    path: str
    all_decisions: bool
    max_per_second: int
    max_bytes: int


class AuditRate:
    """The number of lines in each second, and of those that were dropped."""

    def __init__(self, max_per_second: int) -> None:
        self._max = max_per_second
        self._second = -1
        self._count = 0
        self.dropped = 0

    def admit(self, now_s: float) -> bool:
        """Whether a line may be written now; one that may not is counted."""
        second = int(now_s)
        if second != self._second:
            self._second, self._count = second, 0
        if self._count >= self._max:
            self.dropped += 1
            return False
        self._count += 1
        return True

    def drop(self, lines: int = 1) -> None:
        """Count lines that were admitted and could not be kept."""
        self.dropped += lines

    def take_dropped(self) -> int:
        dropped, self.dropped = self.dropped, 0
        return dropped


def decision_entry(
    context: "RequestContext", right: Right, decision: Decision, now_ms: int
) -> dict[str, Any]:
    """The fields of a line about a decision."""
    principal = context.principal
    entry: dict[str, Any] = {
        "time": _time_text(now_ms),
        "decision": "allowed" if decision.allowed else "denied",
        "principal": _cut(str(principal)),
        "host": context.host,
        "operation": right.operation.name,
        "resource_type": right.resource_type.name,
        "resource": _cut(right.name),
        "api": context.node.apis[context.header.api_key].api.kafka_name,
        "client_id": _cut(context.client_id or ""),
        "listener": context.listener,
        "rule": _cut(decision.rule),
    }
    if principal.groups:
        entry["groups"] = [_cut(group) for group in principal.groups[:32]]
    return entry


def _time_text(now_ms: int) -> str:
    time = datetime.fromtimestamp(now_ms / 1000, UTC)
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _cut(text: str) -> str:
    return text if len(text) <= _TEXT_MAX else text[:_TEXT_MAX] + "…"


class AuditLog:
    """The file of decisions and the queue before it. For the loop's thread only."""

    def __init__(
        self,
        settings: AuditSettings,
        files: Files,
        clock: Clock,
        workers: ThreadPools,
        metrics: Registry,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._workers = workers
        self._file = AuditFile(files, settings.path, settings.max_bytes)
        self._rate = AuditRate(settings.max_per_second)
        self._queue: list[dict[str, Any]] = []
        self._is_writing = False
        self._has_failed = False
        self._tasks = TaskScope("audit log")
        self._dropped_total = metrics.counter(catalog.AUDIT_DROPPED)
        # Now, so that a path that cannot be written ends the start and not the evidence.
        self._file.append(b"")

    def note(self, context: "RequestContext", right: Right, decision: Decision) -> None:
        """Note a decision, if it is of the kind that is logged."""
        if decision.allowed and not self._settings.all_decisions:
            return
        if not self._rate.admit(self._clock.monotonic()):
            self._dropped_total.add()
            return
        if len(self._queue) >= _QUEUE_MAX:
            self._drop(1)
            return
        self._queue.append(decision_entry(context, right, decision, self._clock.now_ms()))
        if not self._is_writing:
            self._is_writing = True
            self._tasks.start(self._write_queue(), "write")

    def close(self) -> None:
        """Write the queued lines, and stop writing in the background."""
        self._tasks.cancel()
        self._write(self._take_lines())

    def _drop(self, lines: int) -> None:
        self._rate.drop(lines)
        self._dropped_total.add(lines)

    def _take_lines(self) -> bytes:
        queue, self._queue = self._queue, []
        dropped = self._rate.take_dropped()
        if dropped:
            queue.insert(0, {"time": _time_text(self._clock.now_ms()), "dropped": dropped})
        return b"".join(json.dumps(entry).encode() + b"\n" for entry in queue)

    async def _write_queue(self) -> None:
        try:
            while self._queue:
                lost_before, queued = self._rate.dropped, len(self._queue)
                if not await self._workers.flush(self._write, self._take_lines()):
                    # The line with the number of those before is missing as well.
                    self._rate.drop(lost_before)
                    self._drop(queued)
        finally:
            self._is_writing = False

    def _write(self, lines: bytes) -> bool:
        """Append to the file; False if a disk fails, which stops no request and is logged once."""
        try:
            self._file.append(lines)
        except StorageError as error:
            if not self._has_failed:
                logger.error("decisions are missing in the audit log: %s", error)
            self._has_failed = True
            return False
        self._has_failed = False
        return True


class AuditFile:
    """A file that is appended to, opened again when it was moved, and moved when it is full.

    Any thread may append.
    """

    def __init__(self, files: Files, path: str, max_bytes: int) -> None:
        self._files = files
        self._path = path
        self._max_bytes = max_bytes
        self._file: File | None = None
        self._size = 0
        # The last lines are written at a stop, when a worker may still write those before.
        self._lock = threading.Lock()

    def append(self, lines: bytes) -> None:
        """Append whole lines; StorageError if they cannot be written."""
        with self._lock:
            self._append(lines)

    def _append(self, lines: bytes) -> None:
        if self._file is None or self._files.is_moved(self._file):
            self._open()
        elif self._size + len(lines) > self._max_bytes and self._size:
            self._files.rename(self._path, self._path + _ROTATED)
            self._open()
        if lines:
            assert self._file is not None
            self._file.write_at(self._size, lines)
            self._size += len(lines)

    def _open(self) -> None:
        self._file = self._files.open_private(self._path)
        self._size = self._file.size()
