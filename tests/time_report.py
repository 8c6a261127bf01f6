"""A pytest plugin: time limits that adapt to the load of the machine, and a report of times.

A test has the limit of its `timeout` mark, or that of pyproject.toml, for its own function; the
time of its fixtures has a separate limit. When a limit runs out the machine is measured again: only
a test that hangs fails.
"""

import os
import resource
import signal
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import PurePosixPath
from typing import Any, NamedTuple

import pytest
import pytest_timeout

from headrace.testing.time_limits import Deadline, observe, slowness

FIXTURES_S_MAX = 600.0
# The share of a limit that counts as near to it.
NEAR = 0.5
_PROPERTY = "headrace.time"
_DIRECTORIES_DEEP = 3


class Used(NamedTuple):
    """The time of a phase of a test. `share` is the largest used share of any limit."""

    cpu_s: float
    share: float
    limit_s: float


# -- where tests run


class _Process:
    """The CPU time of this process so far, and the limits used since the last report."""

    def __init__(self) -> None:
        self._cpu_s = _cpu_s()
        self._used: list[tuple[float, float]] = []

    def note(self, taken_s: float, limit_s: float) -> None:
        self._used.append((taken_s / limit_s, limit_s))

    def take(self) -> Used:
        """The time used since the last call."""
        cpu_s, before = _cpu_s(), self._cpu_s
        used, self._cpu_s = max(self._used, default=(0.0, 0.0)), cpu_s
        self._used.clear()
        return Used(cpu_s - before, *used)


def _cpu_s() -> float:
    """The CPU time of this process, and of those it has started once they have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(entry.ru_utime + entry.ru_stime for entry in used)


_process = _Process()
observe(_process.note)
# A forked worker begins with none.
os.register_at_fork(after_in_child=_process.take)


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> bool | None:
    """Take the place of pytest-timeout's timer, except where there are no signals."""
    if threading.current_thread() is not threading.main_thread() or settings.method != "signal":
        return None
    deadline = Deadline(settings.timeout)

    def on_alarm(number: int, frame: object) -> None:
        if deadline.has_passed:
            taken = settings._replace(timeout=round(deadline.taken_s, 1))
            pytest_timeout.timeout_sigalrm(item, taken)
        else:
            signal.setitimer(signal.ITIMER_REAL, deadline.left_s)

    def cancel() -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        deadline.end()

    item.cancel_timeout = cancel  # type: ignore[attr-defined]
    signal.signal(signal.SIGALRM, on_alarm)
    signal.setitimer(signal.ITIMER_REAL, settings.timeout)
    return True


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    yield from _limited(item)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    yield from _limited(item)


def _limited(item: pytest.Item) -> Iterator[None]:
    hooks = item.config.pluginmanager.hook
    settings = pytest_timeout._get_item_settings(item)
    hooks.pytest_timeout_set_timer(item=item, settings=settings._replace(timeout=FIXTURES_S_MAX))
    try:
        yield
    finally:
        hooks.pytest_timeout_cancel_timer(item=item)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report: Any = yield
    report.user_properties.append((_PROPERTY, tuple(_process.take())))
    return report


# -- where reports arrive


class _Total:
    """The time of a directory, or of a run."""

    def __init__(self) -> None:
        self.tests = 0
        self.wall_s = 0.0
        self.cpu_s = 0.0


_totals: dict[str, _Total] = defaultdict(_Total)
_shares: dict[str, tuple[float, float]] = {}


def directory_of(nodeid: str) -> str:
    """The directory that the time of a test is added to."""
    folder = PurePosixPath(nodeid.partition("::")[0]).parent
    return str(PurePosixPath(*folder.parts[:_DIRECTORIES_DEEP]))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    used: list[Any] = [value for name, value in report.user_properties if name == _PROPERTY]
    total = _totals[directory_of(report.nodeid)]
    total.tests += report.when == "call"
    total.wall_s += report.duration
    for entry in map(Used._make, used[-1:]):
        total.cpu_s += entry.cpu_s
        _shares[report.nodeid] = max(
            _shares.get(report.nodeid, (0.0, 0.0)), (entry.share, entry.limit_s)
        )


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not any(total.tests for total in _totals.values()):
        return
    terminalreporter.section("time by directory")
    lines(_totals, terminalreporter.line)
    near = sorted(((*share, name) for name, share in _shares.items()), reverse=True)
    too_near = [entry for entry in near if entry[0] > NEAR]
    terminalreporter.section(f"{len(too_near)} tests came near a limit")
    terminalreporter.line(f"this machine is {slowness():.1f} times as slow as a quiet one now")
    for share, limit_s, name in too_near or near[:1]:
        said = "" if too_near else "the nearest: "
        terminalreporter.line(f"{said}{share:.0%} of {limit_s:.0f} s  {name}")


def lines(totals: dict[str, _Total], say: Callable[[str], object]) -> None:
    """A table of directories, the longest first."""
    say("    wall s     CPU s    tests")
    whole = _Total()
    for name, total in sorted(totals.items(), key=lambda row: -row[1].wall_s):
        say(f"{total.wall_s:10.1f}{total.cpu_s:10.1f}{total.tests:9}  {name}")
        whole.tests += total.tests
        whole.wall_s += total.wall_s
        whole.cpu_s += total.cpu_s
    say(f"{whole.wall_s:10.1f}{whole.cpu_s:10.1f}{whole.tests:9}  in all")
