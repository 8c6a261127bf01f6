"""Listening sockets and the bounds on what connects to them."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from headrace.net.connection import Connection, Respond
from headrace.protocol.framing import SCRATCH_BYTES, FrameBuffers

logger = logging.getLogger(__name__)

_BACKLOG = 1024


class ConnectionLimits(NamedTuple):
    """How many connections there may be, and how long one may be silent. -1 ms is for ever."""

    connections_max: int
    connections_per_ip_max: int
    idle_ms_max: int


class Server:
    """The connections of one process, over all its listeners.

    `limits` is asked at every accept and sweep, so that changed settings hold at once. `now` is a
    monotonic clock in seconds, which tells when requests arrive.
    """

    def __init__(
        self,
        limits: Callable[[], ConnectionLimits],
        *,
        frame_bytes_max: int,
        in_flight_max: int,
        queued_bytes_max: int,
        now: Callable[[], float],
    ) -> None:
        self._limits = limits
        self._frame_bytes_max = frame_bytes_max
        self._in_flight_max = in_flight_max
        self._now = now
        self._scratch = memoryview(bytearray(SCRATCH_BYTES))
        self._buffers = FrameBuffers(queued_bytes_max)
        # A dict in place of a set: connections are closed in the order in which they came.
        self._connections: dict[Connection, None] = {}
        self._by_host: Counter[str] = Counter()
        self._listeners: list[asyncio.Server] = []
        self._all_closed = asyncio.Event()

    async def listen(self, host: str, port: int, respond: Respond) -> int:
        """Bind an address whose requests `respond` answers; the port, which matters if it was 0."""
        loop = asyncio.get_running_loop()
        listener = await loop.create_server(
            lambda: self._accept(respond),
            host or None,
            port,
            backlog=_BACKLOG,
            reuse_address=True,
            start_serving=False,
        )
        self._listeners.append(listener)
        bound: int = listener.sockets[0].getsockname()[1]
        return bound

    async def start_serving(self) -> None:
        """Accept connections at every address that was bound."""
        for listener in self._listeners:
            await listener.start_serving()

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    def sweep(self) -> None:
        """Close connections that have been silent for too long."""
        idle_ms_max = self._limits().idle_ms_max
        if idle_ms_max < 0:
            return
        silent_since = asyncio.get_running_loop().time() - idle_ms_max / 1000
        for connection in tuple(self._connections):
            if connection.last_active < silent_since and connection.idle:
                connection.abort(f"silent for {idle_ms_max} ms (connections.max.idle.ms)")

    def stop_accepting(self) -> None:
        for listener in self._listeners:
            listener.close()

    async def close(self, grace_seconds: float) -> None:
        """Stop accepting, let requests under way finish, then drop what is left."""
        self.stop_accepting()
        # Set whenever the last one has gone, which may have been before these came.
        self._all_closed.clear()
        for connection in tuple(self._connections):
            connection.close()
        if self._connections:
            try:
                async with asyncio.timeout(grace_seconds):
                    await self._all_closed.wait()
            except TimeoutError:
                for connection in tuple(self._connections):
                    connection.abort("shutdown")
        for listener in self._listeners:
            await listener.wait_closed()

    def abort(self, reason: str) -> None:
        """Close every socket now, whatever is owed to its peer."""
        self.stop_accepting()
        for connection in tuple(self._connections):
            connection.abort(reason)

    def _accept(self, respond: Respond) -> Connection:
        return Connection(
            respond,
            scratch=self._scratch,
            buffers=self._buffers,
            frame_bytes_max=self._frame_bytes_max,
            in_flight_max=self._in_flight_max,
            now=self._now,
            on_open=self._admit,
            on_close=self._forget,
        )

    def _admit(self, connection: Connection) -> bool:
        limits = self._limits()
        host = connection.peer_host
        if len(self._connections) >= limits.connections_max:
            logger.warning("refused %s: max.connections is reached", connection.peer)
            return False
        if self._by_host[host] >= limits.connections_per_ip_max:
            logger.warning("refused %s: max.connections.per.ip is reached", connection.peer)
            return False
        self._connections[connection] = None
        self._by_host[host] += 1
        return True

    def _forget(self, connection: Connection) -> None:
        if connection not in self._connections:
            return  # It was refused.
        del self._connections[connection]
        self._by_host[connection.peer_host] -= 1
        if not self._by_host[connection.peer_host]:
            del self._by_host[connection.peer_host]
        if not self._connections:
            self._all_closed.set()
