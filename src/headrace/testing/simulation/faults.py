"""Faults from a seed, against brokers and the network between them and their clients.

Each kind of fault is a coroutine that does harm, waits, and repairs it. As in swarm testing a run
has only some of the kinds, so that rare combinations get their turn.

TCP hides lost packets: a link that loses them delays what it carries (`clog`) or breaks connections
(`reset`). Duplicates and reordering are requests that come again later, see `replays`.
"""

import asyncio
import signal
from collections.abc import Callable, Coroutine, Sequence
from random import Random
from typing import Any

from headrace.testing.simulation.cluster import SimulatedCluster
from headrace.testing.simulation.disk import DiskFaults
from headrace.testing.simulation.hosts import Host
from headrace.testing.simulation.replays import Replays

KINDS = (
    "kill",
    "power_loss",
    "torn_write",
    "wipe",
    "restart",
    "cut",
    "one_way_cut",
    "split",
    "clog",
    "slow",
    "reset",
    "pause",
    "busy",
    "suspend",
    "clock",
    "wrong_clock",
    "replay",
    "kill_client",
)
_KIND_CHANCE = 0.5
_DOWN_S, _CUT_S, _PAUSE_S, _CLOG_S = 1.5, 3.0, 2.0, 1.0
_SUSPEND_S, _FAR_S, _WRONG_S, _CORRECTED_S = 4.0, 7_200.0, 10 * 86_400.0, 0.2
_STOP_POLLS = 100
# On a busy machine: for how long it is, and how long at most a broker, or all of them, do not run.
_BUSY_S, _STARVED_S, _STALL_S = 6.0, 0.4, 6.0
_STALL_GAP_S = 1.0


class Faults:
    """Does harm to a cluster for a while, and leaves all of it repaired.

    Rule: records that were acknowledged may be in the page caches of the in-sync replicas only. So
    power, or a disk, is lost by one machine at a time, and only while every replica is in sync; and
    until all are again, no broker is killed. Otherwise those that were killed leave the ISRs first,
    and who lacks records is the last in sync. If the cluster flushes before it acknowledges
    (`durable`), any machine may lose power at any time.
    """

    def __init__(
        self,
        cluster: SimulatedCluster,
        clients: Sequence[Host],
        *,
        kinds: Sequence[str] | None = None,
        mean_gap_s: float = 0.7,
        durable: bool = False,
        mortals: Sequence[Host] = (),
        transaction_version: int = 2,
    ) -> None:
        """`mortals` are those of the clients that can be killed, and do their work from anew."""
        simulation = cluster.simulation
        self._cluster = cluster
        self._clients = list(clients)
        self._mortals = list(mortals)
        self._network = simulation.network
        self._simulation = simulation
        self._rng = Random(f"{simulation.seed}/faults")
        self._mean_gap_s = mean_gap_s
        self._durable = durable
        self._replays = Replays(
            simulation, Random(f"{simulation.seed}/replays"), transaction_version
        )
        chosen = [kind for kind in KINDS if self._rng.random() < _KIND_CHANCE]
        self.kinds = tuple(kinds or chosen or KINDS)
        self.count = 0
        # How far clocks were set ahead, by host.
        self._jumped_s: dict[str, float] = {}
        self._has_lost = False
        self._is_busy = False

    async def run(self, seconds: float) -> None:
        """Begin faults at random moments for so long; returns when all are repaired."""
        until = self._simulation.now + seconds
        async with asyncio.TaskGroup() as group:
            while self._simulation.now < until:
                await self._wait(self._mean_gap_s)
                kind = self._rng.choice(self.kinds)
                harm: Callable[[], Coroutine[Any, Any, None]] = getattr(self, f"_{kind}")
                self._simulation.loop.note("fault", kind)
                self.count += 1
                group.create_task(harm())
        for host in self._cluster.hosts:
            host.disk.faults = DiskFaults()
            # A broker that is an hour behind its clients refuses their timestamps.
            self._jump(host, -self._jumped_s.get(host.name, 0.0))
            self._cluster.bring_up(host)

    async def _wait(self, mean_s: float) -> None:
        await asyncio.sleep(self._rng.expovariate(1 / mean_s))

    def _any_host(self) -> Host:
        return self._rng.choice(self._cluster.hosts)

    def _is_fragile(self) -> bool:
        """Whether something is lost that is not yet copied from others again."""
        self._has_lost = self._has_lost and not self._cluster.is_whole()
        return self._has_lost

    def _may_lose_power(self) -> bool:
        if self._durable:
            return not self._is_fragile()
        if self._is_fragile() or not self._cluster.is_whole():
            return False
        self._has_lost = True
        return True

    async def _kill(self) -> None:
        host = self._any_host()
        if self._is_fragile():
            return
        self._cluster.take_down(host, power_loss=False)
        await self._wait(_DOWN_S)
        self._cluster.bring_up(host)

    async def _power_loss(self) -> None:
        host = self._any_host()
        if self._may_lose_power():
            self._cluster.take_down(host, power_loss=True)
            await self._wait(_DOWN_S)
            self._cluster.bring_up(host)

    async def _torn_write(self) -> None:
        """Lose power in the middle of what a broker does on disk."""
        host = self._any_host()
        if not self._may_lose_power():
            return
        host.disk.faults = DiskFaults(power_loss=1.0)
        for _ in range(20):
            await asyncio.sleep(0.1)
            if not host.powered:
                break
        host.disk.faults = DiskFaults()
        await self._wait(_DOWN_S)
        self._cluster.bring_up(host)

    async def _wipe(self) -> None:
        """Lose a disk with all that is on it, while every other has its copy."""
        host = self._any_host()
        if self._cluster.is_whole():
            self._has_lost = True
            self._cluster.take_down(host, power_loss=False)
            host.disk.wipe()
            await self._wait(_DOWN_S)
            self._cluster.bring_up(host)

    async def _restart(self) -> None:
        """Ask a broker to stop, and start it again."""
        host = self._any_host()
        if self._is_fragile():
            return
        host.signal(signal.SIGTERM)
        for _ in range(_STOP_POLLS):
            if host.process is None:
                break
            await asyncio.sleep(0.1)
        self._cluster.take_down(host, power_loss=False)
        await self._wait(_DOWN_S)
        self._cluster.bring_up(host)

    async def _cut(self, *, one_way: bool = False) -> None:
        everyone = self._cluster.hosts + self._clients
        if self._rng.random() < 0.5:
            side = [self._any_host()]
        else:
            side = self._rng.sample(everyone, self._rng.randint(1, len(everyone) - 1))
        other = [host for host in everyone if host not in side]
        if one_way and self._rng.random() < 0.5:
            side, other = other, side
        heal = self._network.cut(side, other, one_way=one_way)
        await self._wait(_CUT_S)
        heal()

    async def _one_way_cut(self) -> None:
        await self._cut(one_way=True)

    async def _split(self) -> None:
        """Cut a broker off from the others, while clients still reach it."""
        host = self._any_host()
        heal = self._network.cut([host], self._cluster.hosts)
        await self._wait(_CUT_S)
        heal()

    async def _clog(self) -> None:
        source, target = self._rng.sample(self._cluster.hosts + self._clients, 2)
        seconds = self._rng.expovariate(1 / _CLOG_S)
        self._network.clog(source, target, seconds)
        await asyncio.sleep(seconds)

    async def _slow(self) -> None:
        source, target = self._rng.sample(self._cluster.hosts + self._clients, 2)
        self._network.degrade(source, target, base_s=self._rng.uniform(0.01, 0.3), bandwidth=2e5)
        await self._wait(_CUT_S)
        self._network.profiles.pop((source, target), None)

    async def _reset(self) -> None:
        self._network.reset(self._any_host())

    async def _pause(self) -> None:
        seconds = self._rng.expovariate(1 / _PAUSE_S)
        self._any_host().pause(seconds)
        await asyncio.sleep(seconds)

    async def _busy(self) -> None:
        """Have all brokers on one machine that is too small for them, and at times stands still."""
        if self._is_busy:
            return
        self._is_busy = True
        until = self._simulation.now + self._rng.uniform(0, 2 * _BUSY_S)
        async with asyncio.TaskGroup() as group:
            for host in self._cluster.hosts:
                group.create_task(self._starve(host, until))
            while self._simulation.now < until:
                await self._wait(_STALL_GAP_S)
                seconds = self._rng.uniform(0, _STALL_S)
                for host in self._cluster.hosts:
                    host.pause(seconds)
                await asyncio.sleep(seconds)
        self._is_busy = False

    async def _starve(self, host: Host, until: float) -> None:
        """Let a broker run for a moment only, again and again."""
        while self._simulation.now < until:
            seconds = self._rng.uniform(0, _STARVED_S)
            host.pause(seconds)
            await asyncio.sleep(seconds + self._rng.uniform(0.05, _STARVED_S))

    async def _suspend(self) -> None:
        seconds = self._rng.expovariate(1 / _SUSPEND_S)
        self._any_host().suspend(seconds)
        await asyncio.sleep(seconds)

    async def _clock(self) -> None:
        # Beyond a day the clock alone would be a reason to remove records and producers.
        scale_s = self._rng.choice((10, 10, _FAR_S))
        self._jump(self._any_host(), self._rng.uniform(-scale_s, scale_s))

    async def _wrong_clock(self) -> None:
        """Start a broker while its time of day is days behind, and set it right soon after."""
        host = self._any_host()
        if self._is_fragile():
            return
        self._cluster.take_down(host, power_loss=False)
        await self._wait(_DOWN_S)
        self._jump(host, -_WRONG_S)
        self._cluster.bring_up(host)
        await asyncio.sleep(_CORRECTED_S)
        self._jump(host, _WRONG_S)

    def _jump(self, host: Host, seconds: float) -> None:
        self._jumped_s[host.name] = self._jumped_s.get(host.name, 0.0) + seconds
        host.jump_clock(seconds)

    async def _replay(self) -> None:
        await self._replays.replay()

    async def _kill_client(self) -> None:
        if not self._mortals:
            return
        host = self._rng.choice(self._mortals)
        host.crash(power_loss=False)
        await self._wait(_DOWN_S)
        if host.process is None:
            host.start()
