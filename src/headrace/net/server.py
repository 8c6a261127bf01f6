"""The server: listening sockets, connections of clients, and the limits on both."""

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, TypeAlias, cast

from headrace.errors import ProtocolError
from headrace.net.framing import SCRATCH_BYTES, FrameBuffers, Framer
from headrace.types import Buffer

# A client's connection: frames in, replies out in the order of their requests.
#
# A request is answered inside the read callback if possible. A request that must wait takes a slot
# in the queue of replies; later requests are handled meanwhile, and their replies wait behind it.
# Past `in_flight_max` waiting replies, or while the peer does not read, the socket is not read
# either.


logger = logging.getLogger(__name__)

Reply: TypeAlias = list[Buffer] | None
Respond: TypeAlias = Callable[["ServerConnection", memoryview], "Reply | Awaitable[Reply]"]

# One connection's pipelined requests must not keep the loop from the others.
_FRAMES_PER_TURN_MAX = 128
_WRITE_HIGH_WATER_BYTES = 4 * 1024 * 1024
_LARGE_REPLY_BYTES = 64 * 1024
# How long a connection goes on reading after its last reply, for its peer to close it.
_LINGER_SECONDS = 0.25


class _ReplySlot:
    """A slot in the queue of replies: a reply, or its future."""

    __slots__ = ("future", "reply")

    def __init__(self, reply: Reply, future: "asyncio.Future[Reply] | None") -> None:
        self.reply = reply
        self.future = future  # None once the reply is known


class ServerConnection(asyncio.BufferedProtocol):
    """The asyncio protocol of an accepted socket. Used on the event loop's thread only."""

    def __init__(
        self,
        respond: Respond,
        *,
        scratch: memoryview,
        buffers: FrameBuffers,
        frame_bytes_max: int,
        in_flight_max: int,
        now: Callable[[], float],
        on_open: Callable[["ServerConnection"], bool],
        on_close: Callable[["ServerConnection"], None],
    ) -> None:
        self._respond = respond
        self._scratch = scratch
        self._framer = Framer(frame_bytes_max, scratch, buffers)
        self._buffers = buffers
        self._in_flight_max = in_flight_max
        self._now = now
        self._on_open = on_open
        self._on_close = on_close
        self._waiting: deque[_ReplySlot] = deque()
        self._write_paused = False
        self._reading = True
        self._closing = False
        self._lingering: asyncio.TimerHandle | None = None
        self._continued = False
        self._loop = asyncio.get_running_loop()
        self.transport: asyncio.Transport | None = None
        self.peer_host = "?"
        self.peer = "?"
        # Name and version of the client's software, as its ApiVersions request has them.
        self.peer_software = ("", "")
        self.last_active = self._loop.time()
        # The time, by `now`, of the last read: the arrival time of the frames it completed.
        self.received_s = now()

    # -- asyncio calls these

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclass of asyncio's, though they do the same.
        self.transport = transport = cast("asyncio.Transport", transport)
        address = transport.get_extra_info("peername")
        if isinstance(address, tuple):
            self.peer_host, self.peer = address[0], f"{address[0]}:{address[1]}"
        transport.set_write_buffer_limits(high=_WRITE_HIGH_WATER_BYTES)
        if not self._on_open(self):
            self._closing = True
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = True
        for slot in self._waiting:
            if slot.future is not None:
                # Not now: a task that is cancelled before it began would not await its argument.
                self._loop.call_soon(slot.future.cancel)
        self._waiting.clear()
        if self._lingering is not None:
            self._lingering.cancel()
        self._framer.close()
        self._on_close(self)
        self.transport = None

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._framer.get_buffer() if self._lingering is None else self._scratch

    def buffer_updated(self, nbytes: int) -> None:
        if self._lingering is not None:
            return
        self.last_active = self._loop.time()
        self.received_s = self._now()
        self._framer.received(nbytes)
        self._process()

    def pause_writing(self) -> None:
        self._write_paused = True

    def resume_writing(self) -> None:
        self._write_paused = False
        self._process()

    # -- the server calls these

    @property
    def idle(self) -> bool:
        """Whether no request waits for its reply."""
        return not self._waiting

    @property
    def closed(self) -> bool:
        """Whether the socket is gone, or is about to be."""
        return self._closing

    def close(self) -> None:
        """Read no more requests; close after the replies to all requests so far."""
        self._closing = True
        self._pause_reading()
        if not self._waiting:
            self._linger()

    def abort(self, reason: str) -> None:
        """Close the socket now, without the waiting replies, and log the reason."""
        logger.info("closed connection from %s: %s", self.peer, reason)
        self._closing = True
        if self.transport is not None:
            self.transport.abort()

    # -- requests and replies

    def _process(self) -> None:
        """Handle the received frames, as far as the limits allow."""
        if self._closing:
            return
        out: list[Buffer] = []
        try:
            turn_over = self._take_frames(out)
        except ProtocolError as error:
            self._write(out)
            self.abort(str(error))
            return
        except Exception:
            logger.exception("a request from %s failed", self.peer)
            self._write(out)
            self.abort("internal error")
            return
        self._write(out)
        if not self._framer.keep_rest():
            self._pause_reading()
            self._buffers.wait(self._schedule)
        elif turn_over:
            self._pause_reading()
            self._schedule()
        elif self._blocked():
            self._pause_reading()
        else:
            self._resume_reading()

    def _take_frames(self, out: list[Buffer]) -> bool:
        """Answer frames into `out`; True if it stopped at the limit of frames per turn."""
        for _ in range(_FRAMES_PER_TURN_MAX):
            if self._blocked():
                return False
            frame = self._framer.next_frame()
            if frame is None:
                return False
            reply = self._respond(self, frame)
            if isinstance(reply, list):
                if self._waiting:
                    self._waiting.append(_ReplySlot(reply, None))
                else:
                    out += reply
                    if len(reply) > 1 or len(reply[0]) > _LARGE_REPLY_BYTES:
                        # Written now, so that a peer that does not read is noticed.
                        self._write(out)
                        out.clear()
            elif reply is not None:
                self._await(reply)
        return True

    def _blocked(self) -> bool:
        return self._write_paused or len(self._waiting) >= self._in_flight_max

    def _await(self, reply: Awaitable[Reply]) -> None:
        future = asyncio.ensure_future(reply)
        slot = _ReplySlot(None, future)
        self._waiting.append(slot)
        future.add_done_callback(lambda done: self._complete_slot(slot, done))

    def _complete_slot(self, slot: _ReplySlot, future: asyncio.Future[Reply]) -> None:
        slot.future = None
        if future.cancelled():
            return  # By connection_lost: the peer is gone.
        error = future.exception()
        if error is not None:
            if isinstance(error, ProtocolError):
                self.abort(str(error))
            else:
                logger.error("a request from %s failed", self.peer, exc_info=error)
                self.abort("internal error")
            return
        slot.reply = future.result()
        if not self._waiting or self._waiting[0] is not slot:
            return
        out: list[Buffer] = []
        while self._waiting and self._waiting[0].future is None:
            out += self._waiting.popleft().reply or ()
        self._write(out)
        if self._closing:
            if not self._waiting:
                self._linger()
        elif not self._reading:
            self._process()

    def _linger(self) -> None:
        """Shut down the sending side, and close the socket a moment later.

        Closing a socket with unread requests resets the connection, and the peer's system then
        drops the replies it has not read yet. So requests are read meanwhile, and ignored.
        """
        transport = self.transport
        if transport is None or transport.is_closing() or self._lingering is not None:
            return
        self._lingering = self._loop.call_later(_LINGER_SECONDS, transport.close)
        transport.write_eof()
        self._resume_reading()

    def _write(self, out: Sequence[Buffer]) -> None:
        if out and self.transport is not None and not self.transport.is_closing():
            self.last_active = self._loop.time()
            self.transport.writelines(out)

    # -- flow control

    def _schedule(self) -> None:
        if not self._continued:
            self._continued = True
            self._loop.call_soon(self._continue)

    def _continue(self) -> None:
        self._continued = False
        self._process()

    def _pause_reading(self) -> None:
        if self._reading and self.transport is not None and not self.transport.is_closing():
            self._reading = False
            self.transport.pause_reading()

    def _resume_reading(self) -> None:
        if not self._reading and self.transport is not None and not self.transport.is_closing():
            self._reading = True
            self.transport.resume_reading()


_BACKLOG = 1024


class ConnectionLimits(NamedTuple):
    """Limits on the number of connections and on their idle time; -1 ms is no limit."""

    connections_max: int
    connections_per_ip_max: int
    idle_ms_max: int


class Server:
    """The connections of a process, over all its listeners.

    `limits` is called at every accept and sweep, so that changed settings apply at once. `now` is a
    monotonic clock in seconds, for the arrival times of requests.
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
        # A dict in place of a set: connections are closed in the order of their arrival.
        self._connections: dict[ServerConnection, None] = {}
        self._by_host: Counter[str] = Counter()
        self._listeners: list[asyncio.Server] = []
        self._all_closed = asyncio.Event()

    async def listen(self, host: str, port: int, respond: Respond) -> int:
        """Bind an address, whose requests go to `respond`; return the port, chosen if it was 0."""
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
        """Accept connections at every bound address."""
        for listener in self._listeners:
            await listener.start_serving()

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    def sweep(self) -> None:
        """Close connections that are idle for longer than `idle_ms_max`."""
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
        """Stop accepting, let requests in progress finish, then abort the other connections."""
        self.stop_accepting()
        # It is set whenever the last connection has closed, also before the present ones came.
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
        """Close every socket now, without the waiting replies."""
        self.stop_accepting()
        for connection in tuple(self._connections):
            connection.abort(reason)

    def _accept(self, respond: Respond) -> ServerConnection:
        return ServerConnection(
            respond,
            scratch=self._scratch,
            buffers=self._buffers,
            frame_bytes_max=self._frame_bytes_max,
            in_flight_max=self._in_flight_max,
            now=self._now,
            on_open=self._admit,
            on_close=self._forget,
        )

    def _admit(self, connection: ServerConnection) -> bool:
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

    def _forget(self, connection: ServerConnection) -> None:
        if connection not in self._connections:
            return  # It was refused.
        del self._connections[connection]
        self._by_host[connection.peer_host] -= 1
        if not self._by_host[connection.peer_host]:
            del self._by_host[connection.peer_host]
        if not self._connections:
            self._all_closed.set()
