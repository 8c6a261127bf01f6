"""Time limits of tests, scaled by the present slowness of this machine.

Rule: a limit ends a hang. A machine that is merely busy must never reach one, so a limit is
computed again when it has run out: the load may have begun meanwhile.
"""

import os
import time
from collections.abc import Callable, Sized
from functools import cache
from pathlib import Path
from typing import TypeVar

SLOWNESS_VARIABLE = "HEADRACE_TEST_SLOWNESS"
"""An environment variable: the least slowness to reckon with, as a number."""

Found = TypeVar("Found")

# The time of the fixed piece of work on a core of 2024.
_WORK_STEPS = 100_000
_WORK_CPU_S = 0.010
# Loads change within seconds; reading them takes microseconds, and the work milliseconds.
_MEASURED_EVERY_S = 2.0
_PAUSE_S = 0.02
_LOAD = Path("/proc/loadavg")
# Tests replace time.monotonic by other clocks.
_now = time.monotonic

_measured_at = -_MEASURED_EVERY_S
_measured = 1.0
_observers: list[Callable[[float, float], None]] = []


def slowness() -> float:
    """The factor by which this machine is slower now than a quiet one; at least 1.

    It is the time that a core takes for a fixed piece of work, times the processes per core.
    """
    global _measured_at, _measured  # noqa: PLW0603 - one machine, one measurement
    now = _now()
    if now - _measured_at >= _MEASURED_EVERY_S:
        _measured_at = now
        _measured = max(_core_slowness() * _processes_per_core(), _least_slowness(), 1.0)
    return _measured


def scaled(seconds: float) -> float:
    """A limit for a quiet machine, scaled for this one now."""
    return seconds * slowness()


def observe(observer: Callable[[float, float], None]) -> None:
    """Register `observer(taken_s, limit_s)`, called when an operation with a limit has ended."""
    _observers.append(observer)


class Deadline:
    """A limit that begins now. It grows with the slowness of the machine while it runs."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._begun = _now()

    @property
    def taken_s(self) -> float:
        return _now() - self._begun

    @property
    def left_s(self) -> float:
        """The seconds left now, or 0. Later there may be more."""
        taken_s = self.taken_s
        left_s = self._seconds - taken_s
        return left_s if left_s > 0 else max(scaled(self._seconds) - taken_s, 0.0)

    @property
    def has_passed(self) -> bool:
        return self.left_s <= 0

    def end(self) -> None:
        """Report to observers an operation that ended in time."""
        for observer in _observers:
            observer(self.taken_s, scaled(self._seconds))


def wait_in_parts(wait: Callable[[float], bool], seconds: float) -> bool:
    """Call `wait(timeout_s)` until it returns True, which is returned, or the limit has passed."""
    deadline = Deadline(seconds)
    done = False
    # At least once: the condition may hold already.
    while not (done := wait(deadline.left_s)) and not deadline.has_passed:
        pass
    if done:
        deadline.end()
    return done


def wait_until(
    found: Callable[[], Found | None], seconds: float, problem: Callable[[], str] | str
) -> Found:
    """The result of `found` once it is neither None, False nor empty; AssertionError if never."""
    deadline = Deadline(seconds)
    while (result := found()) is None or result is False or _is_empty(result):
        if deadline.has_passed:
            description = problem if isinstance(problem, str) else problem()
            raise AssertionError(f"not within {deadline.taken_s:.3g} s: {description}")
        time.sleep(_PAUSE_S)
    deadline.end()
    return result


def _is_empty(result: object) -> bool:
    """Whether it is a container without items: a list of lines that is still to get one."""
    return isinstance(result, Sized) and not len(result)


@cache
def _core_slowness() -> float:
    return max(min(_cpu_s_of_work() for _ in range(3)) / _WORK_CPU_S, 1.0)


def _cpu_s_of_work() -> float:
    begun, number = time.process_time(), 0
    for step in range(_WORK_STEPS):
        number = (number * 31 + step) & 0xFFFFFFFF
    return time.process_time() - begun


def _processes_per_core() -> float:
    """By the load of the last minute, or by the number of runnable processes if that is higher."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    try:
        load, _, _, running, _ = _LOAD.read_text().split()
        wanted = max(float(load), float(running.partition("/")[0]))
    except (OSError, ValueError):
        wanted = os.getloadavg()[0]  # Not Linux.
    return max(wanted / (cores or 1), 1.0)


def _least_slowness() -> float:
    try:
        return float(os.environ.get(SLOWNESS_VARIABLE, "1"))
    except ValueError:
        return 1.0
