"""Machines and processes: the clocks of callbacks, and the state that a crash destroys."""

import asyncio
from collections import deque
from collections.abc import Callable
from contextvars import Context, ContextVar
from typing import Any

# The true time of day at virtual time zero.
EPOCH_S = 1_700_000_000.0


class Machine:
    """An address and two clocks, each showing an offset plus virtual time times a rate."""

    def __init__(self, name: str, address: str) -> None:
        self.name = name
        self.address = address
        self.powered = True
        self.rate = 1.0
        self.monotonic_offset = 0.0
        self.wall_offset = EPOCH_S


class Process:
    """One run of a program on a machine: the state that a crash destroys.

    The process of a callback is in the context of its handle. Tasks, timers, futures and transports
    inherit that context without any help from the program.
    """

    def __init__(self, machine: Machine, index: int) -> None:
        self.machine = machine
        self.index = index
        self.alive = True
        self.paused = False
        self.lost_power = False
        self.ready: deque[asyncio.Handle] = deque()
        # A dict in place of a set: its order does not depend on addresses.
        self.transports: dict[Any, None] = {}
        # The time when each thread of an executor is free.
        self.threads: dict[object, list[float]] = {}
        self.signals: dict[int, Callable[[], object]] = {}
        # Called with each bug that is reported on the loop of this process.
        self.on_bug: Callable[[str, BaseException], object] | None = None

    def context(self) -> Context:
        """An otherwise empty context in which code belongs to this process."""
        context = Context()
        context.run(PROCESS.set, self)
        return context


PROCESS: ContextVar[Process] = ContextVar("process")
