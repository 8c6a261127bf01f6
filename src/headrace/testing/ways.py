"""One direction between two sockets, which can be slow or lead nowhere.

Rule: while a connection lives its bytes are never changed, dropped or reordered. A fault is a delay
or the end of a connection, as TCP shows them to a client.
"""

import asyncio
import socket
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

_CHUNK_BYTES = 65_536
_CHUNKS_QUEUED_MAX = 64
# Where the rate is limited so many pieces are sent in a second: it flows rather than bursts.
_PIECES_PER_S = 50


class _End(Enum):
    CLOSED = "its sender has said all"
    LOST = "its sender broke it off"


# A chunk and when it came, by the loop's time; or how the direction has ended.
_Queue: TypeAlias = "asyncio.Queue[tuple[float, bytes] | _End]"


@dataclass(frozen=True, slots=True)
class Conditions:
    """How slow a way is. One that is `blocked` keeps what it is given, as if packets were lost."""

    latency_s: float = 0.0
    bytes_per_s: float | None = None
    blocked: bool = False

    @property
    def piece_bytes(self) -> int:
        """The most that is sent at once."""
        if self.bytes_per_s is None:
            return _CHUNK_BYTES
        return min(max(int(self.bytes_per_s / _PIECES_PER_S), 1), _CHUNK_BYTES)

    def seconds_of(self, size: int) -> float:
        """How long sending so many bytes takes."""
        return 0.0 if self.bytes_per_s is None else size / self.bytes_per_s


class Way:
    """A direction that connections share: what it does to their bytes. Used on one loop only."""

    def __init__(self) -> None:
        self.conditions = Conditions()
        self._changed = asyncio.Event()

    def set(self, conditions: Conditions) -> None:
        """Hold for open connections and new ones, from now on."""
        self.conditions = conditions
        self._changed.set()
        self._changed = asyncio.Event()

    async def open(self) -> None:
        """Return when nothing blocks it."""
        while self.conditions.blocked:
            await self._changed.wait()

    async def carry(self, source: socket.socket, sink: socket.socket, first: bytes = b"") -> None:
        """Pass on what `source` sends, after what it has sent before; OSError if either is lost."""
        queue: _Queue = asyncio.Queue(_CHUNKS_QUEUED_MAX)
        if first:
            queue.put_nowait((asyncio.get_running_loop().time(), first))
        async with asyncio.TaskGroup() as group:
            group.create_task(_receive(source, queue))
            group.create_task(self._send(queue, sink))

    async def _send(self, queue: _Queue, sink: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while not isinstance(item := await queue.get(), _End):
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
        # Nobody hears of an end across a way that is blocked.
        await self.open()
        if item is _End.LOST:
            raise ConnectionResetError
        sink.shutdown(socket.SHUT_WR)

    async def _pace(self, size: int) -> None:
        """Wait for as long as so many bytes take; less if the way becomes faster meanwhile."""
        loop = asyncio.get_running_loop()
        begun = loop.time()
        while (delay := begun + self.conditions.seconds_of(size) - loop.time()) > 0:
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
    try:
        while chunk := await loop.sock_recv(source, _CHUNK_BYTES):
            await queue.put((loop.time(), chunk))
    except OSError:
        await queue.put(_End.LOST)
    else:
        await queue.put(_End.CLOSED)
