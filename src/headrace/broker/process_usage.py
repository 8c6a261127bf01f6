"""Usage of the machine by this process, CPU time to open files, and the lag of its event loop.

Rule: nothing is read that takes longer the more the process uses, except by `open_files` on a
kernel that does not count them, which is why it is called on a worker thread.
"""

import asyncio
import os
import resource
import threading
from collections import deque

from headrace.metrics import catalog
from headrace.metrics.registry import Registry

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_STATM = "/proc/self/statm"
_DESCRIPTORS = "/proc/self/fd"
_KIB = 1024


def cpu_seconds() -> float:
    """User and system time of this process since its start."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def resident_bytes() -> int:
    """The memory of this process that is in RAM; where that is unknown, the most that ever was."""
    try:
        with open(_STATM, "rb") as file:
            return int(file.read().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError, ValueError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _KIB


def open_files() -> int:
    """The open files and sockets of this process; -1 where that is not known."""
    try:
        # Linux counts them here since 6.2; the directory has no size in earlier versions.
        return os.stat(_DESCRIPTORS).st_size or len(os.listdir(_DESCRIPTORS))
    except OSError:
        return -1


def open_files_max() -> int:
    """The most files that this process may have open; -1 for no limit."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def threads() -> int:
    """The threads of this process that Python knows."""
    return threading.active_count()


_PERIOD_SECONDS = 0.1
# The longest lag is that of the last minute, forgotten in slots of this length.
_SLOT_SECONDS = 5.0
_SLOTS = 12


class LoopLag:
    """Measures the lag of the running event loop ten times a second, until it is stopped."""

    def __init__(self, registry: Registry) -> None:
        self._lags = registry.histogram(catalog.LOOP_LAG)
        self._maxima: deque[float] = deque([0.0], maxlen=_SLOTS)
        self._slot_ends_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        registry.gauge(catalog.LOOP_LAG_MAX, lambda: max(self._maxima))

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._slot_ends_s = loop.time() + _SLOT_SECONDS
        self._schedule(loop)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        due_s = loop.time() + _PERIOD_SECONDS
        self._timer = loop.call_at(due_s, self._fired, loop, due_s)

    def _fired(self, loop: asyncio.AbstractEventLoop, due_s: float) -> None:
        now_s = loop.time()
        lag_s = max(now_s - due_s, 0.0)
        self._lags.observe(lag_s)
        if now_s >= self._slot_ends_s:
            # A loop that stood still for long has no other maxima to keep.
            self._maxima.append(0.0)
            self._slot_ends_s = now_s + _SLOT_SECONDS
        self._maxima[-1] = max(self._maxima[-1], lag_s)
        self._schedule(loop)
