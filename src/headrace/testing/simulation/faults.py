"""Faults from a seed, against brokers, disks, the network, and by duplicated requests.

Each kind of fault is a coroutine that does harm, waits, and repairs it. As in swarm testing a run
has only some of the kinds, so that rare combinations get their turn.

TCP hides lost packets: a link that loses them delays its data (`clog`) or breaks connections
(`reset`). Duplicates and reordering are requests that are delivered again later, see
`RequestReplays`.
"""

import asyncio
import signal
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from math import inf
from random import Random
from typing import Any, NamedTuple

from headrace.protocol.apis import APIS, Api
from headrace.testing.simulation.committed_records import Copies
from headrace.testing.simulation.damage import (
    DIRECTORY,
    HARMS_LOG,
    METADATA,
    SEGMENT,
    choose,
    damaged,
)
from headrace.testing.simulation.hosts import Host, Simulation
from headrace.testing.simulation.machines import Machine
from headrace.testing.simulation.simulated_cluster import DATA, SimulatedCluster
from headrace.testing.simulation.simulated_disk import DiskFaults
from headrace.testing.simulation.simulated_network import SimulatedTransport

# Requests that arrive twice, and late: duplication and reordering, as TCP lets them happen.
#
# Inside one connection bytes are neither doubled nor swapped. But a request may be sent again over
# another connection, and requests of a dead or cut-off process may arrive after later requests of
# others. So whole requests are kept, and some are delivered once more, a while later, by the test.


_KEPT = 50  # Of each API: most requests are fetches, and would drive the others out.
_AGE_S_MAX = 5.0
_LINGER_S = 1.0
_SIZE_BYTES = 4
_ENDS = (Api.END_TXN, Api.WRITE_TXN_MARKERS)
_VERSION_WITH_BUMP = 2


class SentRequest(NamedTuple):
    """A whole request frame, from one machine to another."""

    source: Machine
    target: Machine
    port: int
    frame: bytes
    sent_at: float

    @property
    def api_key(self) -> int:
        return int.from_bytes(self.frame[_SIZE_BYTES : _SIZE_BYTES + 2], "big")

    @property
    def api(self) -> str:
        return APIS[self.api_key].name


class RequestReplays:
    """Keeps recent requests, and delivers one again on demand."""

    def __init__(self, simulation: Simulation, rng: Random, transaction_version: int) -> None:
        """With `transaction_version` 1, requests that end a transaction are not delivered again.

        They cannot be told from those of the next transaction, since the epoch is the same
        (KIP-890).
        """
        self._left_out = _ENDS if transaction_version < _VERSION_WITH_BUMP else ()
        self._simulation = simulation
        self._rng = rng
        self._partial: dict[SimulatedTransport, bytes] = {}
        self._kept: dict[int, deque[SentRequest]] = {}
        # By API: who is told of each of its requests, those that come again included.
        self.watchers: dict[int, Callable[[SentRequest], None]] = {}
        simulation.network.on_write = self._wrote

    async def replay(self) -> None:
        """Deliver a recent request again: of a random API, a random one."""
        network, now = self._simulation.network, self._simulation.now
        recent = {
            api_key: found
            for api_key, kept in self._kept.items()
            if api_key not in self._left_out
            and (
                found := [
                    request
                    for request in kept
                    if now - request.sent_at < _AGE_S_MAX
                    and network.passes(request.source, request.target)
                ]
            )
        }
        if not recent:
            return
        request = self._rng.choice(recent[self._rng.choice(list(recent))])
        self._simulation.loop.note("replay", request.source.name, request.target.name, request.api)
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(_LINGER_S):
                _, writer = await asyncio.open_connection(request.target.name, request.port)
                try:
                    writer.write(request.frame)
                    await asyncio.sleep(_LINGER_S)
                finally:
                    writer.close()

    def _wrote(self, transport: SimulatedTransport, data: bytes) -> None:
        data = self._partial.pop(transport, b"") + data
        while len(data) >= _SIZE_BYTES:
            size = _SIZE_BYTES + int.from_bytes(data[:_SIZE_BYTES], "big")
            if len(data) < size:
                break
            self._keep(transport, data[:size])
            data = data[size:]
        if data:
            self._partial[transport] = data

    def _keep(self, transport: SimulatedTransport, frame: bytes) -> None:
        peer = transport.peer
        now = self._simulation.loop.now
        request = SentRequest(transport.machine, peer.machine, peer.address[1], frame, now)
        api_key = request.api_key
        kept = self._kept.get(api_key)
        if kept is None:
            kept = self._kept[api_key] = deque(maxlen=_KEPT)
        kept.append(request)
        watcher = self.watchers.get(api_key)
        if watcher is not None:
            watcher(request)


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
    "impostor",
)
# Only with an account of the content of every disk (`copies`).
DAMAGE_KINDS = ("blackout", "damage", "full_disk", "failing_disk", "slow_disk", "late")
_KIND_CHANCE = 0.5
_DOWN_S, _CUT_S, _PAUSE_S, _CLOG_S = 1.5, 3.0, 2.0, 1.0
_SUSPEND_S, _FAR_S, _WRONG_S, _CORRECTED_S = 4.0, 7_200.0, 10 * 86_400.0, 0.2
_STOP_POLLS = 100
_FULL_S = 4.0
_LONE_S = 8.0
_ERRORS = ("read_error", "write_error", "fsync_error")
# On a busy machine: its duration, and the longest time that a broker, or all of them, do not run.
_BUSY_S, _STARVED_S, _STALL_S = 6.0, 0.4, 6.0
_STALL_GAP_S = 1.0
# The longest duration of a fault after the last one has begun.
_TAIL_S = 3.0


class Faults:
    """Does harm to a cluster for a while, and leaves all of it repaired.

    Rule: records that were acknowledged may be in the page caches of the in-sync replicas only. So
    power, or a disk, is lost by one machine at a time, and only while every replica is in sync; and
    until all are again, no broker is killed. Otherwise the killed brokers would leave the ISRs
    first, and the last broker in sync would lack records. If the cluster flushes before it
    acknowledges (`durable`), any machine may lose power at any time.

    With `copies`, an account of which disks hold what, there are faults that take more: power is
    lost by any number of machines at any time, files are damaged, disks are full, fail or are slow.
    Files are damaged on one machine at a time, until the cluster is whole again, so that it always
    can become whole.
    """

    def __init__(
        self,
        cluster: SimulatedCluster,
        clients: Sequence[Host],
        *,
        kinds: Sequence[str] | None = None,
        mean_gap_s: float = 0.7,
        durable: bool = False,
        killable_clients: Sequence[Host] = (),
        transaction_version: int = 2,
        copies: Copies | None = None,
        damage_kinds: Sequence[str] | None = None,
    ) -> None:
        """`killable_clients` are clients that may be killed, and restart their work."""
        simulation = cluster.simulation
        self._cluster = cluster
        self._clients = list(clients)
        self._mortals = list(killable_clients)
        self._network = simulation.network
        self._simulation = simulation
        self._rng = Random(f"{simulation.seed}/faults")
        self._mean_gap_s = mean_gap_s
        self._durable = durable
        self._replays = RequestReplays(
            simulation, Random(f"{simulation.seed}/replays"), transaction_version
        )
        self._copies = copies
        self._damage_kinds = damage_kinds
        known = KINDS if copies is None else (*KINDS, *DAMAGE_KINDS)
        chosen = [kind for kind in known if self._rng.random() < _KIND_CHANCE]
        self.kinds = tuple(kinds or chosen or known)
        # Descriptions of all damage, for a report.
        self.damage: list[str] = []
        self._has_damaged = False
        if copies is not None:
            for host in cluster.hosts:
                host.disk.on_harm = partial(copies.harmed, host.name, host.disk, DATA)
        self.count = 0
        # The seconds that clocks were set ahead, by host.
        self._jumped_s: dict[str, float] = {}
        self._has_lost = False
        self._is_busy = False
        # The time by which the faults should be over.
        self._repaired_by = inf

    def watch_requests(self, api: Api, watcher: Callable[[SentRequest], None]) -> None:
        """Tell `watcher` of each request of an API that is sent, or delivered again."""
        self._replays.watchers[api] = watcher

    async def run(self, seconds: float, on_last: Callable[[], None] = lambda: None) -> None:
        """Begin faults at random moments for this time; returns when all are repaired.

        `on_last` is called when no more of them begin.
        """
        until = self._simulation.now + seconds
        self._repaired_by = until + _TAIL_S
        async with asyncio.TaskGroup() as group:
            while self._simulation.now < until:
                await self._wait(self._mean_gap_s)
                kind = self._rng.choice(self.kinds)
                harm: Callable[[], Coroutine[Any, Any, None]] = getattr(self, f"_{kind}")
                self._simulation.loop.note("fault", kind)
                self.count += 1
                group.create_task(harm())
            on_last()
        for host in self._cluster.hosts:
            host.disk.faults = DiskFaults()
            host.disk.limit_bytes = None
            # A broker that is an hour behind its clients refuses their timestamps.
            self._jump(host, -self._jumped_s.get(host.name, 0.0))
            self._cluster.bring_up(host)
        # Operations begun on a slow disk take their time, though the disk is fast again.
        slow_until = max(host.slow_until for host in self._cluster.hosts)
        await asyncio.sleep(max(0.0, slow_until - self._simulation.now))

    async def _wait(self, mean_s: float) -> None:
        await asyncio.sleep(self._duration(mean_s))

    def _duration(self, mean_s: float) -> float:
        """A random duration that ends soon after the last fault has begun."""
        return min(self._rng.expovariate(1 / mean_s), self._left_s())

    def _left_s(self) -> float:
        return max(0.0, self._repaired_by - self._simulation.now)

    def _any_host(self) -> Host:
        return self._rng.choice(self._cluster.hosts)

    def _is_fragile(self) -> bool:
        """Whether a disk has lost data that are not yet replicated again."""
        self._has_lost = self._has_lost and not self._cluster.is_whole()
        return self._has_lost

    def _may_lose_power(self) -> bool:
        if self._durable or self._copies is not None:
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

    async def _blackout(self) -> None:
        """Lose the power of any number of machines at once."""
        if not self._may_lose_power():
            return
        everyone = self._cluster.hosts
        hosts = self._rng.sample(everyone, self._rng.randint(1, len(everyone)))
        for host in hosts:
            self._cluster.take_down(host, power_loss=True)
        for host in hosts:
            await self._wait(_DOWN_S)
            self._cluster.bring_up(host)

    async def _damage(self) -> None:
        """Stop a broker, perhaps others too, and damage one of its files before the restart."""
        if self._has_damaged and not self._cluster.is_whole():
            return
        self._has_damaged = True
        victim, everyone = self._any_host(), self._cluster.hosts
        if len(everyone) == 1:
            await self._damage_lone(victim)
            return
        hosts = self._rng.sample(everyone, self._rng.randint(0, len(everyone) - 1))
        hosts = [victim] + [host for host in hosts if host is not victim]
        for host in hosts:
            await self._stop(host)
        # Another fault may have started the broker.
        self._cluster.take_down(victim, power_loss=False)
        self._damage_file(victim)
        self._rng.shuffle(hosts)
        for host in hosts:
            await self._wait(_DOWN_S / 2)
            self._cluster.bring_up(host)

    async def _damage_lone(self, host: Host) -> None:
        """Damage a file of a broker without replicas; if it does not recover, restore the file.

        It may refuse to start, or keep a log offline, and must not lose the rest of the file.
        """
        await self._stop(host)
        contents = {path: bytes(node.cache) for path, node in host.disk.files(DATA)}
        path = self._damage_file(host)
        self._cluster.bring_up(host)
        if path and not await self._cluster.whole(_LONE_S):
            self._cluster.take_down(host, power_loss=False)
            self._restore(host, path, contents)
            self._cluster.bring_up(host)

    def _restore(self, host: Host, path: str, contents: dict[str, bytes]) -> None:
        """Restore a file, or the files of a directory, as from a backup."""
        for name, content in contents.items():
            if name == path or name.startswith(f"{path}/"):
                host.files.make_directory(f"{DATA}/{name}".rpartition("/")[0])
                host.files.open(f"{DATA}/{name}", create=True)
                host.disk.put(f"{DATA}/{name}", content)
                host.files.sync_directory(f"{DATA}/{name}".rpartition("/")[0])
        host.files.sync_directory(DATA)

    async def _stop(self, host: Host) -> None:
        """Stop a broker cleanly, or kill it; it stays down."""
        if self._rng.random() < 0.5:
            host.signal(signal.SIGTERM)
            for _ in range(_STOP_POLLS):
                if host.process is None:
                    break
                await asyncio.sleep(0.1)
        self._cluster.take_down(host, power_loss=False)

    def _damage_file(self, host: Host) -> str:
        """Damage a file of a stopped broker; returns its path, empty if there was none."""
        assert self._copies is not None
        contents = {path: bytes(node.cache) for path, node in host.disk.files(DATA)}
        target = choose(contents, self._rng, self._damage_kinds)
        if target is None:
            return ""
        if target.is_metadata:
            # A voter that forgets its vote may vote twice: until it is back, no other may be
            # missing.
            if not self._others_are_whole(host):
                return ""
            self._has_lost = True
        if target.kind == DIRECTORY:
            way, content = "removed", None
        else:
            way, content = damaged(contents[target.path], self._rng)
        host.disk.put(f"{DATA}/{target.path}", content)
        self.damage.append(
            f"{self._simulation.now:.3f} {host.name}: {target.kind} {target.path} {way}"
        )
        if len(self._cluster.hosts) > 1:
            if target.kind in HARMS_LOG or target.kind == f"{METADATA} {SEGMENT}":
                self._copies.damaged(host.name, target.directory)
            host.disk.on_harm()
        return target.path

    def _others_are_whole(self, host: Host) -> bool:
        """Whether all other nodes run and have the whole metadata log."""
        nodes = [node for other, node in self._cluster.nodes() if other is not host]
        ends = {node.quorum.log.log.log_end_offset for node in nodes}
        return len(nodes) == len(self._cluster.hosts) - 1 and len(ends) <= 1

    def _some_hosts(self) -> list[Host]:
        """One host, or all of them."""
        return [self._any_host()] if self._rng.random() < 0.7 else list(self._cluster.hosts)

    async def _full_disk(self) -> None:
        hosts = self._some_hosts()
        for host in hosts:
            room = self._rng.choice((0, 1_000, 30_000))
            host.disk.limit_bytes = host.disk.used_bytes() + room
        await self._wait(_FULL_S)
        for host in hosts:
            host.disk.limit_bytes = None

    async def _failing_disk(self) -> None:
        """Make disk operations fail for a while; then a restart brings offline logs back."""
        host = self._any_host()
        if self._is_fragile():
            return
        chance = self._rng.choice((0.01, 0.1, 1.0))
        names = self._rng.choice((("read_error",), ("write_error",), ("fsync_error",), _ERRORS))
        self._set_faults(host, **dict.fromkeys(names, chance))
        await self._wait(_CUT_S)
        self._set_faults(host, **dict.fromkeys(names, 0.0))
        self._cluster.take_down(host, power_loss=False)
        await self._wait(_DOWN_S)
        self._cluster.bring_up(host)

    async def _slow_disk(self) -> None:
        host = self._any_host()
        self._set_faults(host, sync_s=self._rng.uniform(0.05, 2))
        await self._wait(_FULL_S)
        self._set_faults(host, sync_s=0.0)

    async def _late(self) -> None:
        """Make a broker's event loop late by seconds, repeatedly."""
        host = self._any_host()
        self._set_faults(host, stall=0.02)
        await self._wait(_FULL_S)
        self._set_faults(host, stall=0.0)

    @staticmethod
    def _set_faults(host: Host, **changes: float) -> None:
        host.disk.faults = replace(host.disk.faults, **changes)

    async def _torn_write(self) -> None:
        """Lose power in the middle of a broker's disk operation."""
        host = self._any_host()
        if not self._may_lose_power():
            return
        self._set_faults(host, power_loss=1.0)
        for _ in range(20):
            await asyncio.sleep(0.1)
            if not host.powered:
                break
        self._set_faults(host, power_loss=0.0)
        await self._wait(_DOWN_S)
        self._cluster.bring_up(host)

    async def _wipe(self) -> None:
        """Lose a disk with all its data, while every other broker has a copy."""
        host = self._any_host()
        if self._cluster.is_whole():
            self._has_lost = True
            self._cluster.take_down(host, power_loss=False)
            host.disk.wipe()
            await self._wait(_DOWN_S)
            self._cluster.bring_up(host)

    async def _impostor(self) -> None:
        """Run a second process with the id of a broker, which has an empty disk."""
        if not self._cluster.is_whole() or not self._cluster.start_impostor(self._any_host()):
            return
        # If the broker is away for longer than its session, the impostor takes its place.
        self._has_lost = True
        await self._wait(_CUT_S)
        self._cluster.stop_impostor()

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
        seconds = self._duration(_CLOG_S)
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
        seconds = self._duration(_PAUSE_S)
        self._any_host().pause(seconds)
        await asyncio.sleep(seconds)

    async def _busy(self) -> None:
        """Put all brokers on one machine that is too small for them, and stalls at times."""
        if self._is_busy:
            return
        self._is_busy = True
        until = self._simulation.now + min(self._rng.uniform(0, 2 * _BUSY_S), self._left_s())
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
        """Let a broker run for a moment only, repeatedly."""
        while self._simulation.now < until:
            seconds = self._rng.uniform(0, _STARVED_S)
            host.pause(seconds)
            await asyncio.sleep(seconds + self._rng.uniform(0.05, _STARVED_S))

    async def _suspend(self) -> None:
        seconds = self._duration(_SUSPEND_S)
        self._any_host().suspend(seconds)
        await asyncio.sleep(seconds)

    async def _clock(self) -> None:
        # Beyond a day the clock alone would be a reason to delete records and producers.
        scale_s = self._rng.choice((10, 10, _FAR_S))
        self._jump(self._any_host(), self._rng.uniform(-scale_s, scale_s))

    async def _wrong_clock(self) -> None:
        """Start a broker while its wall clock is days behind, and set it right soon after."""
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
