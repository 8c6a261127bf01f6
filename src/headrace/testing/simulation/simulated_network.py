"""The simulated network: machines, links between them, servers and the ends of connections."""

import asyncio
import enum
import errno
import socket
from collections import deque
from collections.abc import Callable, Iterable
from contextvars import Context, copy_context
from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING, Any, TypeAlias

from headrace.testing.simulation.machines import Machine, Process
from headrace.types import Buffer

if TYPE_CHECKING:
    from headrace.testing.simulation.loop import VirtualLoop

# The ends of connections on the simulated network.
#
# Each direction of a connection is a queue of segments in flight, in the hands of the network and
# not of either machine: a paused or dead process does not stop what is already on its way. Segments
# never overtake each other, but writes are split and merged at random.


class StreamSignal(enum.Enum):
    """Signals that travel besides data: the end of a stream, and the loss of a connection."""

    FIN = enum.auto()
    RST = enum.auto()


Segment: TypeAlias = bytes | StreamSignal

# As asyncio's own transports read.
_READ_BYTES_MAX = 256 * 1024
_FIRST_RETRY_S = 0.2
_ACK_RETRY_S = 0.5
_KEEP_ALIVE_S = 30.0


def os_error(number: int) -> OSError:
    """The OSError subclass that the kernel would raise: ConnectionResetError and so on."""
    return OSError(number, errno.errorcode[number])


class SimulatedSocket:
    """The socket of a transport: its addresses. Only the option for keepalive has an effect."""

    family, type, proto = socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP

    def __init__(
        self,
        name: tuple[str, int],
        peer: tuple[str, int] | None = None,
        keep_alive: Callable[[], None] | None = None,
    ) -> None:
        self._name = name
        self._peer = peer
        self._keep_alive = keep_alive

    def getsockname(self) -> tuple[str, int]:
        return self._name

    def getpeername(self) -> tuple[str, int] | None:
        return self._peer

    def setsockopt(self, level: int, option: int, value: object) -> None:
        if (level, option) == (socket.SOL_SOCKET, socket.SO_KEEPALIVE) and self._keep_alive:
            self._keep_alive()


class SimulatedTransport(asyncio.Transport):
    """One end of a connection, and the stream of segments that it sends."""

    peer: "SimulatedTransport"
    server: "SimulatedServer | None" = None

    def __init__(
        self,
        net: "SimulatedNetwork",
        process: Process,
        address: tuple[str, int],
        *,
        dials: bool = False,
    ) -> None:
        super().__init__()
        self.net = net
        self.process = process
        self.machine = process.machine
        self.address = address
        self.name = f"{process.machine.name}:{address[1]}"
        self._dials = dials
        self._protocol: Any = None
        self._context: Context | None = None
        self._dead = self._closing = False  # Dead: the socket is closed.
        # Receiving. `_taken` bytes of the first segment were read.
        self._inbox: deque[Segment] = deque()
        self._taken = 0
        self._reading = self._read_queued = self._at_eof = self._fin_arrived = False
        # Sending. `_out` waits for room in the window; in flight are (arrival, segment).
        self._out = bytearray()
        self._flight: deque[tuple[float, Segment]] = deque()
        self._credit = net.rng.choice(net.windows)
        self._eof = self._fin_sent = self._unacked = False
        self._wire_free, self._stuck_since, self._retry_s = 0.0, -1.0, _FIRST_RETRY_S
        self._low, self._high, self._writing_paused = 16_384, 65_536, False
        process.transports[self] = None

    def start(self, protocol: Any, context: Context, ready: Any) -> None:
        """Attach the protocol, in the steps and the order of asyncio."""
        self._protocol, self._context, loop = protocol, context, self.net.loop
        loop.call_soon(protocol.connection_made, self, context=context)
        loop.call_soon(self.resume_reading, context=context)
        if ready is not None:
            loop.call_soon(lambda: ready.done() or ready.set_result(None), context=context)
        if self._dead:  # It was reset before it was accepted.
            loop.call_soon(self._lost, os_error(errno.ECONNRESET), context=context)

    # -- what asyncio.Transport has

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "socket":
            return SimulatedSocket(self.address, self.peer.address, self._keep_alive)
        return {"peername": self.peer.address, "sockname": self.address}.get(name, default)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> Any:
        return self._protocol

    def is_closing(self) -> bool:
        return self._closing

    def is_reading(self) -> bool:
        return self._reading

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = not self._closing and not self._at_eof
        self._wake_reader()

    def get_write_buffer_size(self) -> int:
        return len(self._out)

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = high if high is not None else 65_536 if low is None else 4 * low
        self._low = low if low is not None else self._high // 4

    def write(self, data: Buffer) -> None:
        if self._closing or not data:
            return
        if self._eof:
            raise RuntimeError("Cannot call write() after write_eof()")
        if StreamSignal.RST in self._inbox:  # A send detects it, even if nothing reads.
            self.fail(os_error(errno.EPIPE if self._fin_arrived else errno.ECONNRESET))
            return
        data = bytes(data)
        if self._dials and self.net.on_write is not None:
            self.net.on_write(self, data)
        if not self._out and len(data) <= self._credit:
            size = self._segment_size(len(data))
            self._credit -= size
            self._launch(data[:size])
            data = data[size:]
        if data:
            self._out += data
            self._pump()
        if len(self._out) > self._high and not self._writing_paused:
            self._writing_paused = True
            self._protocol.pause_writing()

    def writelines(self, list_of_data: Iterable[Buffer]) -> None:
        self.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        if not self._closing:
            self._eof = True
            self._pump()

    def close(self) -> None:
        if not self._closing:
            self._closing, self._eof, self._reading = True, True, False
            self._pump()

    def abort(self, error: BaseException | None = None) -> None:
        """Close the socket at once.

        As any kernel does, send RST if data was received but never read, else FIN.
        """
        if not self._dead:
            if any(isinstance(segment, bytes) for segment in self._inbox):
                self._launch(StreamSignal.RST)
            elif not self._fin_sent:
                self._launch(StreamSignal.FIN)
            self.fail(error)

    # -- sending

    def _pump(self) -> None:
        """Send the data that the window admits."""
        out = self._out
        while out and self._credit:
            size = self._segment_size(min(len(out), self._credit))
            self._credit -= size
            self._launch(bytes(out[:size]))
            del out[:size]
        if self._closing and not self._out:
            self.abort()
        elif self._eof and not self._out and not self._fin_sent:
            self._fin_sent = True
            self._launch(StreamSignal.FIN)

    def _segment_size(self, size: int) -> int:
        """The number of bytes in the next segment: all of them, or a random part."""
        rng = self.net.rng
        if size > 1 and rng.random() < self.net.split_chance:
            return rng.randint(1, size)
        return size

    def _launch(self, segment: Segment) -> None:
        net, source, target = self.net, self.machine, self.peer.machine
        self._wire_free = max(self._wire_free, net.loop.now)
        if isinstance(segment, bytes):
            profile = (
                net.profiles.get((source, target), net.profile) if net.profiles else net.profile
            )
            self._wire_free += len(segment) / profile.bandwidth
        arrival = self._wire_free + net.delay(source, target)
        if self._flight:
            arrival = max(arrival, self._flight[-1][0])  # Never overtake.
        else:
            net.loop.schedule(arrival, self._transmit)
        self._flight.append((arrival, segment))

    def _transmit(self) -> None:
        """Deliver the first segments in flight to the other end, or lose them to be sent again."""
        net, peer, flight, now = self.net, self.peer, self._flight, self.net.loop.now
        if not net.passes(self.machine, peer.machine):
            self._retransmit()
            return
        self._stuck_since = -1.0
        while flight and flight[0][0] <= now:
            peer._arrive(flight.popleft()[1])
        if flight:
            net.loop.schedule(flight[0][0], self._transmit)
        if not net.passes(peer.machine, self.machine) and not self._unacked:
            self._unacked = True
            net.loop.schedule(now + net.tcp_timeout_s, self._expect_ack)

    def _retransmit(self) -> None:
        """Retry a blocked transmission later, or give the connection up."""
        net, now = self.net, self.net.loop.now
        if self._stuck_since < 0:
            self._stuck_since, self._retry_s = now, _FIRST_RETRY_S
        give_up = self._stuck_since + net.tcp_timeout_s
        if self.process.lost_power or not self.machine.powered:
            self._flight.clear()  # No process is left to send it again.
        elif now >= give_up:
            self._flight.clear()
            self.fail(os_error(errno.ETIMEDOUT))
        else:
            net.loop.schedule(min(now + self._retry_s, give_up), self._transmit)
            self._retry_s *= 2

    def _expect_ack(self) -> None:
        self._unacked = False
        if not self.net.passes(self.peer.machine, self.machine):
            self.fail(os_error(errno.ETIMEDOUT))

    def _credited(self, size: int) -> None:
        """The peer has read `size` bytes, and its acknowledgement returns to this end."""
        net = self.net
        if not net.passes(self.peer.machine, self.machine):
            net.loop.schedule(net.loop.now + _ACK_RETRY_S, lambda: self._credited(size))
            return
        self._credit += size
        if self._out:
            self._pump()
        if self._writing_paused and len(self._out) <= self._low and not self._dead:
            self._writing_paused = False
            net.loop.call_soon(self._protocol.resume_writing, context=self._context)

    # -- receiving

    def _arrive(self, segment: Segment) -> None:
        self.net.loop.note("rx", self.name, segment)
        if self._dead:
            if isinstance(segment, bytes):
                self._launch(StreamSignal.RST)
            return
        self._inbox.append(segment)
        self._fin_arrived |= segment is StreamSignal.FIN
        if segment is StreamSignal.RST and self._out:
            self.fail(os_error(errno.ECONNRESET))
        self._wake_reader()

    def _wake_reader(self) -> None:
        if self._inbox and self._reading and not self._read_queued:
            self._read_queued = True
            self.net.loop.call_soon(self._read, context=self._context)

    def _read(self) -> None:
        self._read_queued = False
        if not self._reading:
            return
        try:
            if self._inbox[0] is StreamSignal.RST:
                self.fail(os_error(errno.ECONNRESET))
            elif self._inbox[0] is StreamSignal.FIN:
                self._inbox.popleft()
                self._at_eof, self._reading = True, False
                if not self._protocol.eof_received():
                    self.close()
            else:
                self._hand_over()
        except Exception as error:  # As asyncio does.
            message = "Fatal error: protocol callback failed."
            self.net.loop.call_exception_handler({"message": message, "exception": error})
            self.abort(error)
        self._wake_reader()

    def _hand_over(self) -> None:
        """Pass received data to the protocol."""
        if not isinstance(self._protocol, asyncio.BufferedProtocol):
            self._protocol.data_received(self._take(_READ_BYTES_MAX))
            return
        buffer = memoryview(self._protocol.get_buffer(-1)).cast("B")
        if not buffer:
            raise RuntimeError("get_buffer() returned an empty buffer")
        data = self._take(len(buffer))
        buffer[: len(data)] = data
        buffer.release()
        self._protocol.buffer_updated(len(data))

    def _take(self, limit: int) -> bytes:
        """Read up to `limit` bytes, which opens the window of the peer."""
        parts: list[bytes] = []
        size = 0
        while size < limit and self._inbox and isinstance(first := self._inbox[0], bytes):
            parts.append(first[self._taken : self._taken + limit - size])
            size += len(parts[-1])
            self._taken += len(parts[-1])
            if self._taken == len(first):
                self._inbox.popleft()
                self._taken = 0
        if self.peer._out:  # The peer waits for the acknowledgement.
            back = self.net.loop.now + self.net.delay(self.machine, self.peer.machine)
            self.net.loop.schedule(back, lambda: self.peer._credited(size))
        else:
            self.peer._credited(size)
        return b"".join(parts)

    # -- the end

    def _keep_alive(self) -> None:
        """Detect that the other end vanished silently, by keepalive."""
        net = self.net

        def check() -> None:
            if self._dead:
                return
            if self.peer._dead or not net.passes(self.peer.machine, self.machine):
                self.fail(os_error(errno.ETIMEDOUT))
            else:
                net.loop.schedule(net.loop.now + _KEEP_ALIVE_S, check)

        net.loop.schedule(net.loop.now + _KEEP_ALIVE_S, check)

    def fail(self, error: BaseException | None) -> None:
        """Close this end: the connection is lost."""
        if not self._dead:
            self._dead, self._closing, self._reading = True, True, False
            self._out.clear()
            self._inbox.clear()
            self.process.transports.pop(self, None)
            self.net.connections.pop(self, None)
            if self._protocol is not None:
                self.net.loop.call_soon(self._lost, error, context=self._context)

    def _lost(self, error: BaseException | None) -> None:
        self._protocol.connection_lost(error)
        if self.server is not None:
            self.server.detach(self)


class SimulatedServer(asyncio.AbstractServer):
    """A bound address; it accepts connections once it is open."""

    def __init__(self, net: "SimulatedNetwork", process: Process, factory: Any, port: int) -> None:
        self.net = net
        self.process = process
        self.key = (process.machine, port)
        self._factory = factory
        self._clients: dict[SimulatedTransport, None] = {}
        self._context = copy_context()
        self._serving = False
        self._closed = False
        self._waiters: list[asyncio.Future[None]] = []
        self._forever: asyncio.Future[None] | None = None

    def bind(self) -> None:
        if self.net.listeners.setdefault(self.key, self) is not self:
            raise os_error(errno.EADDRINUSE)

    def open(self) -> None:
        self._serving = True

    def accept(self, transport: SimulatedTransport) -> None:
        context = self._context.copy()
        self._clients[transport] = None
        transport.server = self
        self.net.loop.call_soon(
            lambda: transport.start(self._factory(), context, None), context=context
        )

    def detach(self, transport: SimulatedTransport | None) -> None:
        """Remove a closed connection."""
        if transport is not None:
            self._clients.pop(transport, None)
        if self._closed and not self._clients:
            for waiter in self._waiters:
                if not waiter.done():
                    waiter.set_result(None)

    def get_loop(self) -> "VirtualLoop":
        return self.net.loop

    def is_serving(self) -> bool:
        return self._serving and self.net.listeners.get(self.key) is self

    @property
    def sockets(self) -> tuple[SimulatedSocket, ...]:
        return () if self._closed else (SimulatedSocket((self.key[0].address, self.key[1])),)

    def close(self) -> None:
        if self.net.listeners.get(self.key) is self:
            del self.net.listeners[self.key]
        self._closed = True
        if self._forever is not None:
            self._forever.cancel()
        self.detach(None)

    def close_clients(self) -> None:
        for client in list(self._clients):
            client.close()

    def abort_clients(self) -> None:
        for client in list(self._clients):
            client.abort()

    async def start_serving(self) -> None:
        self.open()

    async def serve_forever(self) -> None:
        self.open()
        self._forever = self.net.loop.create_future()
        try:
            await self._forever
        except asyncio.CancelledError:
            self._forever = None
            self.close()
            await self.wait_closed()
            raise

    async def wait_closed(self) -> None:
        if not self._closed or self._clients:
            self._waiters.append(self.net.loop.create_future())
            await self._waiters[-1]


_LOCAL_DELAY_S = 20e-6
_FIRST_PORT, _LAST_PORT = 32_768, 60_999
_HERE = (None, "", "0.0.0.0", "::", "localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class LinkProfile:
    """The delays and bandwidth of one direction between two machines."""

    base_s: float = 0.0002
    jitter_s: float = 0.0005  # The mean of an exponential.
    spike_chance: float = 0.005
    spike_s: float = 0.1  # A spike is uniform between nothing and this.
    bandwidth: float = 100e6  # Bytes per second, for each connection.


class SimulatedNetwork:
    """Machines, listeners and connections.

    Packets lost by a cut are sent again, as by TCP: a connection stalls until the cut is healed, or
    breaks after `tcp_timeout_s`.
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
        # The client ends of all connections.
        self.connections: dict[SimulatedTransport, None] = {}
        self.listeners: dict[tuple[Machine, int], SimulatedServer] = {}
        # Called with the data that a client end writes.
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
        """The delay of a packet that is sent now."""
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
        """Delay data sent in one direction from now on, without losing any."""
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
        """Close a process's sockets; after a `silent` death (a loss of power) without a packet."""
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
            # The time of its SYN-ACK.
            await asyncio.sleep(self.delay(target, process.machine))
            protocol, ready = factory(), self.loop.create_future()
            transport.start(protocol, copy_context(), ready)
            await ready
        except BaseException:
            transport.abort()
            raise
        return transport, protocol

    async def _reach(self, source: Machine, target: Machine, port: int) -> SimulatedServer:
        """Send a SYN, repeatedly if it is lost; returns the server that accepts."""
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
