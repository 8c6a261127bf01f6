"""The faulty network between brokers and clients: TCP proxies with delays and blocked links.

Each broker is reached through a port of the network's, and every connection is forwarded over the
links between its two ends: the source is known from the client id of the first request, in which a
broker has its node id.
"""

import asyncio
import re
import socket
from collections import defaultdict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any, TypeAlias

from headrace.client.blocking import LoopThread
from headrace.net.addresses import Address
from headrace.testing.ports import HOST, hold_port, listen, listen_on_unused_port


class Acceptor:
    """Serves each connection to a listener in its own task. It lives on an event loop.

    It accepts by itself: a task that is cancelled while it waits in `loop.sock_accept` may lose a
    connection that has just been accepted.
    """

    def __init__(
        self,
        listener: socket.socket,
        serve: Callable[[socket.socket], Coroutine[Any, Any, None]],
    ) -> None:
        self._listener = listener
        self._serve = serve
        self._tasks: set[asyncio.Task[None]] = set()
        listener.setblocking(False)
        asyncio.get_running_loop().add_reader(listener, self._accept)

    async def close(self) -> None:
        """Drop every connection, and refuse new ones."""
        asyncio.get_running_loop().remove_reader(self._listener)
        self._listener.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _accept(self) -> None:
        try:
            client, _ = self._listener.accept()
        except OSError:
            # The client has disconnected again.
            return
        client.setblocking(False)
        task = asyncio.create_task(self._serve(client))
        self._tasks.add(task)
        task.add_done_callback(partial(self._end, client))

    def _end(self, client: socket.socket, task: "asyncio.Task[None]") -> None:
        """Close a connection; its task cannot, if it is cancelled before it began."""
        client.close()
        self._tasks.discard(task)


# One direction between two sockets, which can be slow or blocked.
#
# Rule: while a connection lives its bytes are never changed, dropped or reordered. A fault is a
# delay or the end of a connection, as TCP shows them to a client.


_CHUNK_BYTES = 65_536
_CHUNKS_QUEUED_MAX = 64
# With a rate limit so many pieces are sent in a second: it flows rather than bursts.
_PIECES_PER_S = 50


class _StreamEnd(Enum):
    CLOSED = "its sender has said all"
    LOST = "its sender broke it off"


# A chunk and its time of arrival on the loop; or the end of the direction.
_Queue: TypeAlias = "asyncio.Queue[tuple[float, bytes] | _StreamEnd]"


@dataclass(frozen=True, slots=True)
class LinkConditions:
    """The delays of a link. A `blocked` link keeps its bytes, as if packets were lost."""

    latency_s: float = 0.0
    bytes_per_s: float | None = None
    blocked: bool = False

    @property
    def piece_bytes(self) -> int:
        """The most bytes that are sent at once."""
        if self.bytes_per_s is None:
            return _CHUNK_BYTES
        return min(max(int(self.bytes_per_s / _PIECES_PER_S), 1), _CHUNK_BYTES)

    def seconds_of(self, size: int) -> float:
        """The seconds that sending this number of bytes takes."""
        return 0.0 if self.bytes_per_s is None else size / self.bytes_per_s


class Pipe:
    """One direction of a link, shared by its connections. Used on one loop only."""

    def __init__(self) -> None:
        self.conditions = LinkConditions()
        self._changed = asyncio.Event()

    def set(self, conditions: LinkConditions) -> None:
        """Change the conditions, for open connections and new ones."""
        self.conditions = conditions
        self._changed.set()
        self._changed = asyncio.Event()

    async def open(self) -> None:
        """Return when the link is not blocked."""
        while self.conditions.blocked:
            await self._changed.wait()

    async def carry(self, source: socket.socket, sink: socket.socket, first: bytes = b"") -> None:
        """Forward the data of `source`, after the bytes in `first`; OSError if either socket is
        lost.
        """
        queue: _Queue = asyncio.Queue(_CHUNKS_QUEUED_MAX)
        if first:
            queue.put_nowait((asyncio.get_running_loop().time(), first))
        async with asyncio.TaskGroup() as group:
            group.create_task(_receive(source, queue))
            group.create_task(self._send(queue, sink))

    async def _send(self, queue: _Queue, sink: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while not isinstance(item := await queue.get(), _StreamEnd):
            came, chunk = item
            await self.open()
            while (delay := came + self.conditions.latency_s - loop.time()) > 0:
                await self._sleep(delay)
            rest = memoryview(chunk)
            while rest:
                piece = rest[: self.conditions.piece_bytes]
                rest = rest[len(piece) :]
                await self._pace(len(piece))
                await self.open()
                await loop.sock_sendall(sink, piece)
        # An end does not cross a blocked link.
        await self.open()
        if item is _StreamEnd.LOST:
            raise ConnectionResetError
        sink.shutdown(socket.SHUT_WR)

    async def _pace(self, size: int) -> None:
        """Wait for the time these bytes take; less if the link becomes faster meanwhile."""
        loop = asyncio.get_running_loop()
        begun = loop.time()
        while (delay := begun + self.conditions.seconds_of(size) - loop.time()) > 0:
            await self._sleep(delay)

    async def _sleep(self, delay_s: float) -> None:
        """Wait, at most until the conditions change."""
        try:
            async with asyncio.timeout(delay_s):
                await self._changed.wait()
        except TimeoutError:
            pass


async def _receive(source: socket.socket, queue: _Queue) -> None:
    loop = asyncio.get_running_loop()
    try:
        while chunk := await loop.sock_recv(source, _CHUNK_BYTES):
            await queue.put((loop.time(), chunk))
    except OSError:
        await queue.put(_StreamEnd.LOST)
    else:
        await queue.put(_StreamEnd.CLOSED)


class Proxy:
    """Listens on its own port and forwards every connection to `target`.

    It works on its own thread; its methods are for other threads and return when the change is
    done.
    """

    def __init__(self, target: Address, port: int = 0) -> None:
        # Held so that no other process gets the port while connections to it are refused.
        self._held_port = None if port else hold_port()
        self.address = Address(HOST, self._held_port.number if self._held_port else port)
        listener = listen(self.address.port)
        self.target = target
        self._acceptor: Acceptor | None = None
        self._requests = Pipe()
        self._answers = Pipe()
        self._thread = LoopThread("headrace-proxy")
        self._thread.run(self._open(listener))

    def slow(self, conditions: LinkConditions) -> None:
        """Make open and new connections slow.

        The rate applies to each direction, the latency to responses only: once per round trip.
        """
        self._thread.run(self._set(conditions))

    def cut(self) -> None:
        """Drop every connection, and refuse new ones."""
        self._thread.run(self._close())

    def heal(self) -> None:
        """Accept connections again, at full speed."""
        self._thread.run(self._set(LinkConditions()))
        if self._acceptor is None:
            self._thread.run(self._open(listen(self.address.port)))

    def close(self) -> None:
        """Drop every connection and end the thread."""
        if not self._thread.is_closed:
            self._thread.run(self._close())
            self._thread.close()
        if self._held_port is not None:
            self._held_port.release()

    async def _set(self, conditions: LinkConditions) -> None:
        self._requests.set(LinkConditions(bytes_per_s=conditions.bytes_per_s))
        self._answers.set(conditions)

    async def _open(self, listener: socket.socket) -> None:
        self._acceptor = Acceptor(listener, self._link)

    async def _close(self) -> None:
        if self._acceptor is not None:
            await self._acceptor.close()
            self._acceptor = None

    async def _link(self, client: socket.socket) -> None:
        await join(client, self.target, self._requests, self._answers)


async def join(
    client: socket.socket, target: Address, requests: Pipe, answers: Pipe, first: bytes = b""
) -> None:
    """Forward a client's connection to a broker until both have ended or either is lost.

    `first` is the data that the client has sent already.
    """
    loop = asyncio.get_running_loop()
    with socket.socket() as broker:
        for sock in (client, broker):
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            await loop.sock_connect(broker, target)
            async with asyncio.TaskGroup() as group:
                group.create_task(requests.carry(client, broker, first))
                group.create_task(answers.carry(broker, client))
        except* OSError:
            # The broker is away, or one side disconnected: closing both informs the other.
            pass


CLIENTS = 0
"""The node id of clients; those of brokers begin with 1."""

_NODE = re.compile(rb"node-(\d+)-")
# Length of the frame, API key, version, correlation id, length of the client id.
_HEADER_BYTES = 14
_CLIENT_ID_BYTES_MAX = 64


class Network:
    """A port for each node, and a link from every node to every other.

    It works on its own thread; its methods are for other threads and return when the change is
    done.
    """

    def __init__(self) -> None:
        self._ways: defaultdict[tuple[int, int], Pipe] = defaultdict(Pipe)
        self._acceptors: list[Acceptor] = []
        self._thread = LoopThread("headrace-network")

    def attach(self, node_id: int, target: Address) -> Address:
        """A new address for reaching a node, which listens on `target`."""
        listener = listen_on_unused_port()
        self._thread.run(self._attach(node_id, target, listener))
        return Address(HOST, listener.getsockname()[1])

    def set(self, ways: list[tuple[int, int]], conditions: LinkConditions) -> None:
        """Change links, each given as (source, target)."""
        self._thread.run(self._set(ways, conditions))

    def heal(self) -> None:
        """Make every link fast and open again."""
        self.set(list(self._ways), LinkConditions())

    def close(self) -> None:
        """Drop every connection and end the thread."""
        if not self._thread.is_closed:
            self._thread.run(self._close())
            self._thread.close()

    async def _attach(self, node_id: int, target: Address, listener: socket.socket) -> None:
        self._acceptors.append(Acceptor(listener, partial(self._link, node_id, target)))

    async def _set(self, ways: list[tuple[int, int]], conditions: LinkConditions) -> None:
        for way in ways:
            self._ways[way].set(conditions)

    async def _close(self) -> None:
        for acceptor in self._acceptors:
            await acceptor.close()

    async def _link(self, node_id: int, target: Address, client: socket.socket) -> None:
        first = await _first_bytes(client)
        source = node_of(first)
        there, back = self._ways[source, node_id], self._ways[node_id, source]
        # No connection is made while packets are lost, and a client that gave up is not noticed.
        await there.open()
        await back.open()
        if not _has_ended(client):
            await join(client, target, there, back, first)


def node_of(first: bytes) -> int:
    """The node that a connection with these first bytes is from; CLIENTS if it is no broker."""
    size = max(int.from_bytes(first[_HEADER_BYTES - 2 : _HEADER_BYTES], "big", signed=True), 0)
    found = _NODE.match(first[_HEADER_BYTES : _HEADER_BYTES + size])
    return int(found[1]) if found else CLIENTS


async def _first_bytes(client: socket.socket) -> bytes:
    """The first bytes of a client, up to the end of its client id or of its data."""
    loop = asyncio.get_running_loop()
    data = b""
    wanted = _HEADER_BYTES + _CLIENT_ID_BYTES_MAX
    while len(data) < wanted:
        try:
            chunk = await loop.sock_recv(client, _CHUNK_BYTES)
        except OSError:
            break
        if not chunk:
            break
        data += chunk
        if len(data) >= _HEADER_BYTES:
            size = int.from_bytes(data[_HEADER_BYTES - 2 : _HEADER_BYTES], "big", signed=True)
            wanted = _HEADER_BYTES + min(max(size, 0), _CLIENT_ID_BYTES_MAX)
    return data


def _has_ended(client: socket.socket) -> bool:
    try:
        return not client.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    except OSError:
        return True
