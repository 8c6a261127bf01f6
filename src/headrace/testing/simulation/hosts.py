"""Hosts that run programs, and a run of all of them: `Simulation(seed).run(driver)`."""

import asyncio
import gc
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any, TypeVar

from headrace.testing.simulation.guard import Guard
from headrace.testing.simulation.loop import VirtualLoop
from headrace.testing.simulation.machines import PROCESS, Machine, Process
from headrace.testing.simulation.simulated_disk import DiskFaults, SimulatedDisk, SimulatedFiles
from headrace.testing.simulation.simulated_network import LinkProfile

T = TypeVar("T")

_SKEW_S = 0.5
_DRIFT = 100e-6


class Host(Machine):
    """A simulated machine: address, clocks, disk, randomness, and the program it runs."""

    def __init__(self, simulation: "Simulation", name: str, address: str, main: "Main | None"):
        super().__init__(name, address)
        seed, loop = simulation.seed, simulation.loop
        self.simulation = simulation
        self.loop = loop
        self.boots = 0
        self.powered = False
        self.process: Process | None = None
        self.rng = Random(f"{seed}/{name}/0")
        self.disk = SimulatedDisk(Random(f"{seed}/{name}/disk"), loop.note, name)
        self.disk.lose_power = self.crash
        self.disk.wall = self.wall
        self.disk.take_time = self.take_time
        self._main = main
        self._paused_until = 0.0
        # Seconds by which the clocks are ahead, because the running callback takes so long.
        self._stalled_s = 0.0
        # The time when the last operation on slow disks ends.
        self.slow_until = 0.0

    # -- for the program on it; `now_ms` and `monotonic` make it a Clock

    @property
    def files(self) -> SimulatedFiles:
        """The disk, for the process that runs now."""
        return SimulatedFiles(self.disk)

    def wall(self) -> float:
        return self.wall_offset + self.loop.now * self.rate

    def now_ms(self) -> int:
        return int(self.wall() * 1000)

    def monotonic(self) -> float:
        return self.monotonic_offset + self.loop.now * self.rate

    # -- for the driver

    def start(self) -> None:
        """Power on, or restart, and run the program from its beginning."""
        if self.process is not None:
            raise RuntimeError(f"{self.name} is already running")
        self.boots, self.powered = self.boots + 1, True
        self.rng = Random(f"{self.simulation.seed}/{self.name}/{self.boots}")
        self.process = process = self.loop.new_process(self)
        self._paused_until = self.slow_until = 0.0
        self.loop.note("start", self.name, self.boots)
        self.loop.call_soon(self._boot, process, context=process.context())

    def crash(self, *, power_loss: bool = True) -> None:
        """Lose power: unflushed writes may vanish, and peers hear nothing until they ask.

        Without `power_loss` the process is killed: the page cache survives, and the kernel closes
        its connections.
        """
        process, self.process = self.process, None
        if process is not None:
            self.loop.note("crash", self.name, power_loss)
            self._catch_up(self._stalled_s)
            self.powered = not power_loss
            self.loop.kill(process)
            self.loop.network.process_died(process, silent=power_loss)
            self.disk.crash(power_loss=power_loss)

    def pause(self, seconds: float) -> None:
        """Run none of this host's callbacks for a while: SIGSTOP, a stalled machine.

        Of overlapping pauses the longer one counts.
        """
        process, loop = self.process, self.loop
        if process is not None:
            loop.note("pause", self.name, round(seconds, 6))
            loop.set_paused(process, True)
            self._paused_until = max(self._paused_until, loop.now + seconds)
            loop.schedule(loop.now + seconds, lambda: self._resume(process))

    def _resume(self, process: Process) -> None:
        if self.loop.now >= self._paused_until:
            self.loop.set_paused(process, False)

    def take_time(self, seconds: float) -> None:
        """Make the running code take this time: a job of a thread, or else the whole event loop."""
        process, loop = self.process, self.loop
        if loop.job_s is not None:
            loop.job_s += seconds
            self.slow_until = max(self.slow_until, loop.now + loop.job_s)
            return
        if process is None:
            return
        # The clocks advance at once, and other hosts afterwards, while this process is stalled.
        self._stalled_s += seconds
        self.monotonic_offset += seconds * self.rate
        self.wall_offset += seconds * self.rate
        self.pause(self._stalled_s)
        self.slow_until = max(self.slow_until, self._paused_until)
        boots = self.boots
        loop.schedule(
            loop.now + self._stalled_s,
            lambda: self._catch_up(seconds) if self.boots == boots else None,
        )

    def _catch_up(self, seconds: float) -> None:
        seconds = min(seconds, self._stalled_s)
        self._stalled_s -= seconds
        self.monotonic_offset -= seconds * self.rate
        self.wall_offset -= seconds * self.rate

    def suspend(self, seconds: float) -> None:
        """Stall like a laptop that is closed: only the wall clock goes on."""
        process, loop = self.process, self.loop
        if process is not None and not process.paused:
            self.pause(seconds)
            loop.postpone(process, seconds)
            self.monotonic_offset -= seconds * self.rate

    def jump_clock(self, seconds: float) -> None:
        """Step the time of day, as NTP might; the monotonic clock does not move."""
        self.loop.note("jump", self.name, round(seconds, 6))
        self.wall_offset += seconds

    def signal(self, number: int) -> None:
        """Run the handler that the program set for a signal."""
        if self.process is not None and number in self.process.signals:
            self.process.signals[number]()

    def _boot(self, process: Process) -> None:
        if self._main is not None:
            task = self.loop.create_task(self._main(self), name=f"{self.name}#{self.boots}")
            task.add_done_callback(lambda task: self._exited(process, task))

    def _exited(self, process: Process, task: asyncio.Task[Any]) -> None:
        """End the process when its program returns."""
        if process.alive:
            if not task.cancelled() and task.exception() is not None:
                self.loop.errors.append(f"{self.loop.now:.6f} {self.name}: {task.exception()!r}")
            self.crash(power_loss=False)


Main = Callable[[Host], Coroutine[Any, Any, object]]


def current_host() -> Host:
    """The host on which the calling code runs; the driver counts as one."""
    machine = PROCESS.get().machine
    assert isinstance(machine, Host)
    return machine


class Simulation:
    """One run: a seed, a loop, a network, hosts."""

    def __init__(
        self,
        seed: int | str,
        *,
        guard: Guard | None = None,
        shuffle: bool = True,
        trace: bool = False,
    ) -> None:
        self.seed = seed
        self.guard = guard if guard is not None else Guard()
        # For workloads and faults.
        self.rng = Random(f"{seed}/driver")
        # Some worlds have slow disks and some slow links: that finds more than an average world.
        world = Random(f"{seed}/world")
        self.loop = VirtualLoop(
            seed,
            shuffle=shuffle,
            executor_delay_s=10 ** world.uniform(-3.5, -1.5),
            trace=trace,
        )
        self.network = self.loop.network
        self.network.profile = LinkProfile(jitter_s=10 ** world.uniform(-4, -2))
        self.hosts: list[Host] = []
        self.driver = Host(self, "driver", "10.0.0.1", None)
        self.driver.powered, self.loop.driver.machine = True, self.driver
        self.network.add(self.driver)

    @property
    def now(self) -> float:
        """True virtual time, which no host's clock shows."""
        return self.loop.now

    def host(self, name: str, main: Main | None = None, faults: DiskFaults | None = None) -> Host:
        """Add a host, its clocks set wrong by the seed; start() runs its program."""
        host = Host(self, name, f"10.0.0.{len(self.hosts) + 2}", main)
        rng = Random(f"{self.seed}/{name}/clock")
        host.rate += rng.uniform(-_DRIFT, _DRIFT)
        host.wall_offset += rng.uniform(-_SKEW_S, _SKEW_S)
        # Monotonic clocks of two hosts are unrelated.
        host.monotonic_offset = rng.uniform(0, 1e5)
        host.disk.faults = faults or DiskFaults()
        self.hosts.append(host)
        self.network.add(host)
        return host

    def run(
        self, main: Coroutine[Any, Any, T], *, time_max: float = 3600.0, events_max: int = 10**8
    ) -> T:
        """Run the driver to its end; then dispose of the rest."""
        loop, collecting = self.loop, gc.isenabled()
        loop.time_max, loop.events_max = time_max, events_max
        gc.disable()  # Cycles are collected after the run, not at an arbitrary moment.
        try:
            with self.guard.active(self.seed, current_host):
                return loop.driver.context().run(loop.run_until_complete, main)
        finally:
            for host in self.hosts:
                if host.process is not None:
                    loop.kill(host.process)
            loop.trace.hash()
            loop.dispose()
            if collecting:
                gc.enable()
            self.guard.check()
