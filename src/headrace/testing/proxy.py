"""A TCP proxy in front of a broker, which can be slow or not there at all.

Rule: while a connection lives its bytes are never changed, dropped or reordered. A fault is a delay
or the end of a connection, as TCP shows them to a client.
"""

import asyncio
import socket
from dataclasses import dataclass
from typing import TypeAlias

from headrace.client.transport.thread import LoopThread
from headrace.net.addresses import Address
from headrace.testing.ports import HOST, listen, listen_on_unused_port

_CHUNK_BYTES = 65_536
_CHUNKS_QUEUED_MAX = 64
# Where the rate is limited so many pieces are sent in a second: it flows rather than bursts.
_PIECES_PER_S = 50

# A chunk and when it came, by the loop's time; None is the end.
_Queue: TypeAlias = asyncio.Queue[tuple[float, bytes] | None]


@dataclass(frozen=True, slots=True)
class Conditions:
    """How slow the way to the broker is: `latency_s` for answers, the rate for each direction."""

    latency_s: float = 0.0
    bytes_per_s: float | None = None

    @property
    def piece_bytes(self) -> int:
        """The most that is sent at once."""
        if self.bytes_per_s is None:
            return _CHUNK_BYTES
        return min(max(int(self.bytes_per_s / _PIECES_PER_S), 1), _CHUNK_BYTES)

    def seconds_of(self, size: int) -> float:
        """How long sending so many bytes takes."""
        return 0.0 if self.bytes_per_s is None else size / self.bytes_per_s


class Proxy:
    """Listens on a port of its own and passes every connection on to `target`.

    It works on a thread of its own; its methods are for other threads and return when what they do
    is done.
    """

    def __init__(self, target: Address, port: int = 0) -> None:
        listener = listen(port) if port else listen_on_unused_port()
        listener.setblocking(False)
        self.target = target
        self.address = Address(HOST, listener.getsockname()[1])
        self._listener: socket.socket | None = listener
        self._accepting: asyncio.Task[None] | None = None
        self._links: set[asyncio.Task[None]] = set()
        self._conditions = Conditions()
        self._changed = asyncio.Event()
        self._thread = LoopThread("headrace-proxy")
        self._thread.run(self._open())

    def slow(self, conditions: Conditions) -> None:
        """Make connections slow, those that are open and those to come."""
        self._thread.run(self._set(conditions))

    def cut(self) -> None:
        """Drop every connection, and refuse new ones."""
        self._thread.run(self._close())

    def heal(self) -> None:
        """Take connections again, at full speed."""
        self._thread.run(self._set(Conditions()))
        if self._listener is None:
            self._thread.run(self._open())

    def close(self) -> None:
        """Drop everything and end the thread."""
        if not self._thread.is_closed:
            self._thread.run(self._close())
            self._thread.close()

    async def _set(self, conditions: Conditions) -> None:
        self._conditions = conditions
        self._changed.set()
        self._changed = asyncio.Event()

    async def _open(self) -> None:
        if self._listener is None:
            self._listener = listen(self.address.port)
            self._listener.setblocking(False)
        self._accepting = asyncio.create_task(self._accept(self._listener))

    async def _close(self) -> None:
        if self._accepting is None or self._listener is None:
            return
        await _cancel({self._accepting})
        self._listener.close()
        self._accepting = self._listener = None
        await _cancel(self._links)

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            client, _ = await loop.sock_accept(listener)
            link = asyncio.create_task(self._link(client))
            self._links.add(link)
            link.add_done_callback(self._links.discard)

    async def _link(self, client: socket.socket) -> None:
        """One connection, until both sides have ended theirs or either is lost."""
        loop = asyncio.get_running_loop()
        with client, socket.socket() as broker:
            for sock in (client, broker):
                sock.setblocking(False)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                await loop.sock_connect(broker, self.target)
                async with asyncio.TaskGroup() as group:
                    for source, sink, is_answer in (
                        (client, broker, False),
                        (broker, client, True),
                    ):
                        queue: _Queue = asyncio.Queue(_CHUNKS_QUEUED_MAX)
                        group.create_task(_receive(source, queue))
                        group.create_task(self._send(queue, sink, is_answer))
            except* OSError:
                # The broker is away, or one side broke off: closing both tells the other.
                pass

    async def _send(self, queue: _Queue, sink: socket.socket, is_answer: bool) -> None:
        loop = asyncio.get_running_loop()
        while (item := await queue.get()) is not None:
            came, chunk = item
            while is_answer and (delay := came + self._conditions.latency_s - loop.time()) > 0:
                await self._sleep(delay)
            rest = memoryview(chunk)
            while rest:
                piece = rest[: self._conditions.piece_bytes]
                rest = rest[len(piece) :]
                await self._pace(len(piece))
                await loop.sock_sendall(sink, piece)
        sink.shutdown(socket.SHUT_WR)

    async def _pace(self, size: int) -> None:
        """Wait for as long as so many bytes take; less if the way becomes faster meanwhile."""
        loop = asyncio.get_running_loop()
        begun = loop.time()
        while (delay := begun + self._conditions.seconds_of(size) - loop.time()) > 0:
            await self._sleep(delay)

    async def _sleep(self, delay_s: float) -> None:
        """Wait, but not beyond a change of the conditions."""
        try:
            async with asyncio.timeout(delay_s):
                await self._changed.wait()
        except TimeoutError:
            pass


async def _receive(source: socket.socket, queue: _Queue) -> None:
    loop = asyncio.get_running_loop()
    while chunk := await loop.sock_recv(source, _CHUNK_BYTES):
        await queue.put((loop.time(), chunk))
    await queue.put(None)


async def _cancel(tasks: set[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)
