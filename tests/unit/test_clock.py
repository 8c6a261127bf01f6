"""The machine's clock, and the function that reads the time of day from a clock."""

import time

import pytest

from headrace.clock import SystemClock, wall_seconds
from tests.unit.client.fake_brokers import FakeClock


def test_the_machines_clock_gives_the_function_of_the_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert wall_seconds(SystemClock()) is time.time
    monkeypatch.setattr(time, "time", lambda: 5.0)
    assert wall_seconds(SystemClock())() == 5.0


def test_milliseconds_of_another_clock_survive_the_way_through_seconds() -> None:
    clock = FakeClock()
    wall = wall_seconds(clock)
    for _ in range(1000):
        clock.sleep(0.001)
        assert int(wall() * 1000.0) == clock.now_ms()
