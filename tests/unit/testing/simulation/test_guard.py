"""Nothing real gets into a simulation unseen."""

import asyncio
import contextlib
import logging
import os
import random
import socket
import threading
import time
import uuid
from typing import Any

import pytest

from headrace.testing.simulation.guard import Guard, NondeterminismError
from headrace.testing.simulation.hosts import Simulation
from tests.unit.testing.simulation.support import run

ACTIONS: dict[str, Any] = {
    "time": lambda: time.time(),
    "monotonic": lambda: time.monotonic(),
    "perf_counter_ns": lambda: time.perf_counter_ns(),
    "uuid1": lambda: uuid.uuid1(),
    "uuid4": lambda: uuid.uuid4(),
    "urandom": lambda: os.urandom(4),
    "SystemRandom": lambda: random.SystemRandom().random(),
    "unseeded": lambda: random.Random(),
    "socket": lambda: socket.socket(),
    "thread": lambda: threading.Thread(target=print).start(),
    "sleep": lambda: time.sleep(0),
    "process": lambda: os.system("true"),
    "file": lambda: os.open("/nonexistent/guard", os.O_RDWR | os.O_CREAT),
    "resolver": lambda: socket.getaddrinfo("localhost", 1),
    "pid": lambda: os.getpid(),
}


@pytest.mark.parametrize("name", sorted(ACTIONS))
def test_guard_raises_even_if_that_is_caught(name: str) -> None:
    async def main() -> None:
        with contextlib.suppress(BaseException):
            ACTIONS[name]()

    with pytest.raises(NondeterminismError):
        Simulation(1).run(main())
    assert time.time() > 1.7e9  # All is as it was.


def test_logging_gets_the_time_of_its_host(caplog: pytest.LogCaptureFixture) -> None:
    async def main(simulation: Simulation) -> float:
        await asyncio.sleep(5)
        logging.getLogger("x").warning("hello")
        return caplog.records[-1].created

    assert 1_700_000_004 < run(main) < 1_700_000_007


def test_allowed_modules_get_what_their_host_has() -> None:
    async def main(simulation: Simulation) -> Any:
        return time.time(), os.urandom(8), random.Random().random()

    def guard() -> Guard:
        return Guard(allowed=(__name__, "logging"))

    first = run(main, guard=guard())
    assert first == run(main, guard=guard())
    assert first != run(main, 2, guard=guard())
