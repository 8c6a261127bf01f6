"""Limits grow with the load of the machine, also while something waits."""

import os
import time
from pathlib import Path

import pytest

from headrace.testing import time_limits
from headrace.testing.time_limits import Deadline, scaled, slowness, wait_in_parts, wait_until


class Machine:
    """A machine with two cores whose load and clock a test sets."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seconds = time.monotonic()
        self._load = directory / "loadavg"
        self.set_load(0.1, 1)
        monkeypatch.delenv(time_limits.SLOWNESS_VARIABLE, raising=False)
        monkeypatch.setattr(time_limits, "_LOAD", self._load)
        monkeypatch.setattr(time_limits, "_measured_at", -1e9)
        monkeypatch.setattr(time_limits, "_measured", 1.0)
        monkeypatch.setattr(time_limits, "_observers", [])
        monkeypatch.setattr(time_limits, "_core_slowness", lambda: 1.0)
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
        monkeypatch.setattr(time_limits, "_now", lambda: self.seconds)
        monkeypatch.setattr(time, "sleep", self.sleep)

    def set_load(self, minute: float, running: int) -> None:
        self._load.write_text(f"{minute} 0.2 0.1 {running}/300 12345\n")

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def test_a_quiet_machine_keeps_its_limits(machine: Machine) -> None:
    assert scaled(30) == 30


@pytest.mark.parametrize(("minute", "running"), [(8.0, 1), (0.5, 8)])
def test_limits_grow_with_the_processes_for_a_core(
    machine: Machine, minute: float, running: int
) -> None:
    machine.set_load(minute, running)
    assert scaled(30) == 120
    machine.set_load(0.1, 1)
    assert scaled(30) == 120, "it is not measured every time"
    machine.sleep(2)
    assert scaled(30) == 30


def test_a_least_slowness_is_taken_from_the_environment(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(time_limits.SLOWNESS_VARIABLE, "7")
    assert slowness() == 7
    machine.sleep(2)
    monkeypatch.setenv(time_limits.SLOWNESS_VARIABLE, "much")
    assert slowness() == 1


def test_a_slow_core_counts(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.set_load(4, 1)
    monkeypatch.setattr(time_limits, "_core_slowness", lambda: 3.0)
    assert slowness() == 6


def test_a_deadline_grows_when_the_machine_gets_busy(machine: Machine) -> None:
    deadline = Deadline(10)
    machine.sleep(9)
    assert deadline.left_s == pytest.approx(1)
    machine.set_load(4, 1)
    machine.sleep(2)
    assert deadline.left_s == pytest.approx(9)
    machine.sleep(10)
    assert deadline.has_passed


def test_waiting_says_what_did_not_happen(machine: Machine) -> None:
    begun = machine.seconds
    assert wait_until(lambda: machine.seconds if machine.seconds > begun + 5 else None, 10, "")
    with pytest.raises(AssertionError, match=r"not within 10 s: a leader"):
        wait_until(lambda: False, 10, lambda: "a leader")


def test_waiting_for_lines_does_not_end_with_none_of_them(machine: Machine) -> None:
    lines: list[str] = []

    def found() -> list[str]:
        if machine.seconds > begun + 5:
            lines.append("has room again")
        return lines

    begun = machine.seconds
    assert wait_until(found, 10, "") == ["has room again"]
    with pytest.raises(AssertionError, match=r"not within 10 s: a line"):
        wait_until(list, 10, "a line")


def test_waiting_in_parts_goes_on_while_the_limit_grows(machine: Machine) -> None:
    used: list[tuple[float, float]] = []
    time_limits.observe(lambda taken_s, limit_s: used.append((taken_s, limit_s)))
    asked: list[float] = []

    def wait(timeout_s: float) -> bool:
        asked.append(timeout_s)
        machine.sleep(timeout_s)
        machine.set_load(8, 1)
        return len(asked) == 2

    assert wait_in_parts(wait, 10)
    assert asked == pytest.approx([10, 30])
    assert used == [pytest.approx((40, 40))]


def test_waiting_in_parts_ends(machine: Machine) -> None:
    def wait(timeout_s: float) -> bool:
        machine.sleep(timeout_s)
        return False

    assert not wait_in_parts(wait, 10)
