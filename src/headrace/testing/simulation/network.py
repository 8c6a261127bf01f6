"""The simulated network: machines, the links between them, and what is wrong with those."""

import asyncio
import errno
import socket
from collections.abc import Callable, Iterable
from contextvars import copy_context
from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING, Any

from headrace.testing.simulation.machines import Machine, Process
from headrace.testing.simulation.servers import SimulatedServer
from headrace.testing.simulation.transports import SimulatedTransport, os_error

if TYPE_CHECKING:
    from headrace.testing.simulation.loop import VirtualLoop

_LOCAL_DELAY_S = 20e-6
_FIRST_PORT, _LAST_PORT = 32_768, 60_999
_HERE = (None, "", "0.0.0.0", "::", "localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class LinkProfile:
    """How one direction between two machines behaves."""

    base_s: float = 0.0002
    jitter_s: float = 0.0005  # The mean of an exponential.
    spike_chance: float = 0.005
    spike_s: float = 0.1  # A spike is uniform between nothing and this.
    bandwidth: float = 100e6  # Bytes per second, for each connection.


class Network:
    """Machines, listeners and connections.

    Packets that a cut swallows are sent again, as TCP does: a connection stalls until the cut is
    healed, or breaks after `tcp_timeout_s`.
    """

    def __init__(self, loop: "VirtualLoop", rng: Random) -> None:
        self.loop = loop
        self.rng = rng
        self.profile = LinkProfile()
        self.profiles: dict[tuple[Machine, Machine], LinkProfile] = {}
        # Bytes in flight or unread; drawn for each connection.
        self.windows = (2048, 65_536, 262_144)
        self.split_chance = 0.1
        self.tcp_timeout_s = 20.0
        self.connect_timeout_s = 10.0
        # The dialling ends of all connections.
        self.connections: dict[SimulatedTransport, None] = {}
        self.listeners: dict[tuple[Machine, int], SimulatedServer] = {}
        # Told what a dialling end writes.
        self.on_write: Callable[[SimulatedTransport, bytes], None] | None = None
        self._machines: dict[str, Machine] = {}
        self._cuts: dict[tuple[Machine, Machine], int] = {}
        self._clogged: dict[tuple[Machine, Machine], float] = {}
        self._port = _FIRST_PORT

    # -- topology

    def add(self, machine: Machine) -> None:
        self._machines[machine.name] = self._machines[machine.address] = machine

    def resolve(self, name: str | None) -> Machine:
        if name in _HERE:
            return self.loop.current_process().machine
        if name not in self._machines:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return self._machines[name]

    def getaddrinfo(self, host: str | None, port: int) -> list[tuple[Any, ...]]:
        address = (self.resolve(host).address, port)
        return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", address)]

    def delay(self, source: Machine, target: Machine) -> float:
        """How long a packet that leaves now is under way."""
        if source is target:
            return _LOCAL_DELAY_S
        profile = self.profiles.get((source, target), self.profile)
        delay = profile.base_s + self.rng.expovariate(1 / profile.jitter_s)
        if self.rng.random() < profile.spike_chance:
            delay += self.rng.uniform(0, profile.spike_s)
        return delay + max(0.0, self._clogged.get((source, target), 0.0) - self.loop.now)

    def new_port(self) -> int:
        self._port = self._port + 1 if self._port < _LAST_PORT else _FIRST_PORT
        return self._port

    # -- faults

    def passes(self, source: Machine, target: Machine) -> bool:
        return target.powered and (source, target) not in self._cuts

    def cut(
        self, side: Iterable[Machine], other: Iterable[Machine], *, one_way: bool = False
    ) -> Callable[[], None]:
        """Lose all packets from `side` to `other`, and back unless `one_way`; returns the healer.

        Cuts may overlap: a link works again once all of them are healed.
        """
        targets = list(other)
        pairs = [(a, b) for a in side for b in targets if a is not b]
        pairs += [] if one_way else [(b, a) for a, b in pairs]
        self.loop.note("cut", *(f"{a.name}>{b.name}" for a, b in pairs))
        for pair in pairs:
            self._cuts[pair] = self._cuts.get(pair, 0) + 1

        def heal() -> None:
            self.loop.note("heal", *(f"{a.name}>{b.name}" for a, b in pairs))
            for pair in pairs:
                self._cuts[pair] -= 1
                if not self._cuts[pair]:
                    del self._cuts[pair]
            pairs.clear()  # Healing twice is harmless.

        return heal

    def clog(self, source: Machine, target: Machine, seconds: float) -> None:
        """Hold back what leaves in one direction from now on, without losing any of it."""
        self.loop.note("clog", source.name, target.name, round(seconds, 6))
        self._clogged[source, target] = self.loop.now + seconds

    def degrade(self, source: Machine, target: Machine, **changes: float) -> None:
        """Change the profile of one direction: `degrade(a, b, base_s=0.2, bandwidth=1e4)`."""
        old = self.profiles.get((source, target), self.profile)
        self.profiles[source, target] = replace(old, **changes)

    def reset(self, machine: Machine | None = None) -> bool:
        """Reset one connection of a machine, chosen at random; False if it has none."""
        found = [c for c in self.connections if machine in (None, c.machine, c.peer.machine)]
        if found:
            victim = self.rng.choice(found)
            self.loop.note("reset", victim.name)
            for end in (victim, victim.peer):
                end.fail(os_error(errno.ECONNRESET))
        return bool(found)

    def process_died(self, process: Process, *, silent: bool) -> None:
        """Close what a process had; of a `silent` death, a loss of power, peers hear nothing."""
        process.lost_power = silent
        for key in [k for k, server in self.listeners.items() if server.process is process]:
            del self.listeners[key]
        for transport in list(process.transports):
            if silent:
                transport.fail(None)
            else:
                transport.abort()

    # -- the loop calls these

    def listen(
        self,
        factory: Any,
        host: Any = None,
        port: Any = None,
        start_serving: bool = True,
        **options: Any,
    ) -> SimulatedServer:
        _check_plain(options)
        process = self.loop.current_process()
        name = host if isinstance(host, str) or host is None else next(iter(host))
        if self.resolve(name) is not process.machine:
            raise os_error(errno.EADDRNOTAVAIL)
        server = SimulatedServer(self, process, factory, port or self.new_port())
        server.bind()
        if start_serving:
            server.open()
        return server

    async def connect(
        self, factory: Any, host: Any, port: Any, **options: Any
    ) -> tuple[SimulatedTransport, Any]:
        _check_plain(options)
        process, target = self.loop.current_process(), self.resolve(host)
        server = await self._reach(process.machine, target, port)
        address = (process.machine.address, self.new_port())
        transport = SimulatedTransport(self, process, address, dials=True)
        transport.peer = SimulatedTransport(self, server.process, (target.address, port))
        transport.peer.peer = transport
        self.connections[transport] = None
        server.accept(transport.peer)
        try:
            # Its SYN-ACK travels.
            await asyncio.sleep(self.delay(target, process.machine))
            protocol, ready = factory(), self.loop.create_future()
            transport.start(protocol, copy_context(), ready)
            await ready
        except BaseException:
            transport.abort()
            raise
        return transport, protocol

    async def _reach(self, source: Machine, target: Machine, port: int) -> SimulatedServer:
        """Our SYN travels, again and again if it is lost; the server that takes it."""
        loop = self.loop
        deadline, retry_s = loop.now + self.connect_timeout_s, 0.25
        await asyncio.sleep(self.delay(source, target))
        while not (self.passes(source, target) and self.passes(target, source)):
            if loop.now >= deadline:
                raise os_error(errno.ETIMEDOUT)
            await asyncio.sleep(min(retry_s, deadline - loop.now))
            retry_s *= 2
        server = self.listeners.get((target, port))
        listening = server is not None and server.is_serving()
        loop.note("syn", source.name, target.name, port, listening)
        if server is None or not listening:
            await asyncio.sleep(self.delay(target, source))
            raise os_error(errno.ECONNREFUSED)
        return server


def _check_plain(options: dict[str, Any]) -> None:
    if options.get("ssl") or options.get("sock"):
        raise NotImplementedError("the simulated network has neither TLS nor real sockets")
