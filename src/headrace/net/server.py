"""The server: listening sockets, connections of clients, and the limits on both."""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from typing import Any, TypeAlias, cast

from headrace.errors import ProtocolError
from headrace.metrics import catalog
from headrace.metrics.registry import Counter, Histogram, Registry
from headrace.net.connection_limits import (
    ConnectionCounts,
    ConnectionLimits,
    ListenerLimits,
    Refusal,
)
from headrace.net.framing import FRAME_LIMIT_NAME, SCRATCH_BYTES, FrameBuffers, Framer
from headrace.net.tls import TLS_SCRATCH_BYTES, TlsLayer
from headrace.net.tls_contexts import ServerTls
from headrace.net.tls_failures import TlsFailed
from headrace.security.authorization import ANONYMOUS, Principal
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

Welcome: TypeAlias = Callable[["ServerConnection"], None]

# One connection's pipelined requests must not keep the loop from the others.
_FRAMES_PER_TURN_MAX = 128
_WRITE_HIGH_WATER_BYTES = 4 * 1024 * 1024
_LARGE_REPLY_BYTES = 64 * 1024
# The longest wait that the protocol can tell a client, which has milliseconds in 32 bits.
_MUTE_SECONDS_MAX = 2**31 / 1000
# How long a connection goes on reading after its last reply, for its peer to close it.
_LINGER_SECONDS = 0.25


class _ReplySlot:
    """A slot in the queue of replies: a reply, or its future."""

    __slots__ = ("future", "ready_s", "reply", "sending")

    def __init__(
        self,
        reply: Reply,
        future: "asyncio.Future[Reply] | None",
        sending: Histogram | None,
        ready_s: float = 0.0,
    ) -> None:
        self.reply = reply
        self.future = future  # None once the reply is known
        # Where the time is counted for which a reply that is ready waits to be written.
        self.sending = sending
        self.ready_s = ready_s


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
        authenticated: bool = True,
        on_close: Callable[["ServerConnection"], None],
        on_unread: Callable[["ServerConnection", int], None] = lambda connection, size: None,
        listener: str = "",
    ) -> None:
        self.listener = listener
        self._respond = respond
        self._scratch = scratch
        self._framer = Framer(frame_bytes_max, scratch, buffers)
        self._buffers = buffers
        self._in_flight_max = in_flight_max
        self._now = now
        self._on_open = on_open
        self._on_close = on_close
        self._on_unread = on_unread
        self._waiting: deque[_ReplySlot] = deque()
        self._write_paused = False
        # Replies that wait behind an earlier one.
        self._queued_bytes = 0
        self._unmuting: asyncio.TimerHandle | None = None
        self._muted_until = 0.0
        # The peer does not read, replies fill the queue, or it is muted: one flag, since every
        # frame looks at it.
        self._held = False
        self._reading = True
        self._closing = False
        self._lingering: asyncio.TimerHandle | None = None
        self._continued = False
        self.opened_s = now()
        # Whether it was refused and held for a while before it was closed.
        self.was_held = False
        self._begun_seen = 0
        self._begun_seen_s = 0.0
        self._loop = asyncio.get_running_loop()
        self.transport: asyncio.Transport | None = None
        self.peer_host = "?"
        self.peer = "?"
        # Name and version of the client's software, as its ApiVersions request has them.
        self.peer_software = ("", "")
        # Who sends the requests, once that is known, and whether it is known enough to serve them.
        self.principal: Principal = ANONYMOUS
        self.authenticated = authenticated
        # The times of replies that cannot be sent at once, for the API of the latest request.
        self.sending: Histogram | None = None
        self._unread_since_s = 0.0
        # The state of its login, where its listener has one: see `headrace.broker.authentication`.
        # Its `closed()` is called when the socket is gone.
        self.login: Any = None
        self.last_active = self._loop.time()
        # The time, by `now`, of the last read: the arrival time of the frames it completed.
        self.received_s = float("-inf")

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
            if self._unmuting is None:
                transport.abort()
        if self._held:
            self._pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = True
        for slot in self._waiting:
            if slot.future is not None:
                # Not now: a task that is cancelled before it began would not await its argument.
                self._loop.call_soon(slot.future.cancel)
        self._waiting.clear()
        for timer in (self._lingering, self._unmuting):
            if timer is not None:
                timer.cancel()
        self._unmuting = None
        self._framer.close()
        self._on_close(self)
        if self.login is not None:
            self.login.closed()
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
        self._unread_since_s = self._now()
        self._update_held()

    def resume_writing(self) -> None:
        self._write_paused = False
        if self.sending is not None:
            # Of the API that was asked for last, which is nearly always that of the long replies.
            self.sending.observe(self._now() - self._unread_since_s)
        self._update_held()
        self._process()

    # -- the server calls these

    @property
    def idle(self) -> bool:
        """Whether no request waits for its reply, nor for the connection to be read again."""
        return not self._waiting and self._unmuting is None

    @property
    def closed(self) -> bool:
        """Whether the socket is gone, or is about to be."""
        return self._closing

    def limit_frames(self, frame_bytes_max: int, limit_name: str = FRAME_LIMIT_NAME) -> None:
        """Set the largest request that is accepted from now on."""
        self._framer.limit(frame_bytes_max, limit_name)

    @property
    def has_sent(self) -> bool:
        """Whether anything has been received."""
        return self.received_s >= self.opened_s

    @property
    def is_muted(self) -> bool:
        """Whether requests are left in the socket for a time."""
        return self._unmuting is not None

    def mute(self, seconds: float) -> None:
        """Handle no further request for a time, which a shorter one does not end earlier.

        The replies to earlier requests are sent meanwhile.
        """
        if self._closing:
            return
        due = self._loop.time() + min(seconds, _MUTE_SECONDS_MAX)
        if self._unmuting is not None:
            if due <= self._muted_until:
                return
            self._unmuting.cancel()
        self._muted_until = due
        self._unmuting = self._loop.call_at(due, self.unmute)
        self._held = True

    def unmute(self) -> None:
        """Handle requests again."""
        if self._unmuting is not None:
            self._unmuting.cancel()
            self._unmuting = None
            self._update_held()
            self._process()

    def close_later(self, seconds: float) -> None:
        """Read nothing, and close the socket after a time."""
        self._held = self.was_held = True
        self._unmuting = self._loop.call_later(seconds, self.abort, "")

    @property
    def unread_bytes(self) -> int:
        """The bytes of replies that the peer has not read, as far as they are held here."""
        size = 0 if self.transport is None else self.transport.get_write_buffer_size()
        return size + self._queued_bytes

    def stalled_s(self, now: float) -> tuple[float, int] | None:
        """Age of an incomplete request in seconds, and its bytes received; None if there is none.

        To be asked again and again: the first time that a request is seen it has been so for 0 s.
        What keeps this end from reading does not count.
        """
        size = self._framer.incomplete_bytes
        if not size or not self._reading:
            self._begun_seen = 0
            return None
        if self._framer.frames_begun != self._begun_seen:
            self._begun_seen, self._begun_seen_s = self._framer.frames_begun, now
        return now - self._begun_seen_s, size

    def close(self) -> None:
        """Read no more requests; close after the replies to all requests so far."""
        self._closing = True
        self._pause_reading()
        if not self._waiting:
            self._linger()

    def abort(self, reason: str) -> None:
        """Close the socket now, without the waiting replies, and log the reason."""
        if reason:
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
                    self._waiting.append(_ReplySlot(reply, None, self.sending, self._now()))
                    self._queue(reply)
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
        return self._held or len(self._waiting) >= self._in_flight_max

    def _await(self, reply: Awaitable[Reply]) -> None:
        future = asyncio.ensure_future(reply)
        slot = _ReplySlot(None, future, self.sending)
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
            slot.ready_s = self._now()
            self._queue(slot.reply or ())
            return
        out: list[Buffer] = list(slot.reply or ())
        self._waiting.popleft()
        while self._waiting and self._waiting[0].future is None:
            ready = self._waiting.popleft()
            reply = ready.reply or ()
            if ready.sending is not None:
                ready.sending.observe(self._now() - ready.ready_s)
            self._queued_bytes -= sum(map(len, reply))
            out += reply
        if self._held:
            self._update_held()
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
            if self._write_paused:
                self._on_unread(self, self.unread_bytes)

    # -- flow control

    def _queue(self, reply: Sequence[Buffer]) -> None:
        """Count a reply that has to wait for an earlier one."""
        self._queued_bytes += sum(map(len, reply))
        if self._queued_bytes > _WRITE_HIGH_WATER_BYTES:
            self._update_held()

    def _update_held(self) -> None:
        is_full = self._write_paused or self._queued_bytes > _WRITE_HIGH_WATER_BYTES
        self._held = is_full or self._unmuting is not None
        self._on_unread(self, self.unread_bytes if is_full else 0)

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
# More handshakes at once would not be quicker: OpenSSL lets go of the interpreter's lock, and the
# event loop needs a core, too.
_HANDSHAKE_THREADS = 2
# Failed handshakes that are logged in full, in so many seconds; of the others there is a count.
_LOGGED_FAILURES_MAX = 20
_LOGGED_FAILURES_S = 10.0

# Refused connections are logged so often at most, with their number.
_REFUSAL_LOG_SECONDS = 10.0
# Refused sockets that are held for a while; further ones are closed at once.
_HELD_REFUSED_MAX = 1000
# The rate at which a request has to arrive in the end. What came counts and not what is announced,
# which costs a client nothing.
_RECEIVE_BYTES_PER_S_MIN = 64 * 1024


class _FailureLog:
    """Log lines about failed TLS connections, with a bound on their rate."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._since_s = float("-inf")
        self._logged = 0
        self._left_out = 0

    def add(self, peer: str, failure: TlsFailed) -> None:
        """Log a failure, or count it."""
        now_s = self._now()
        if now_s - self._since_s > _LOGGED_FAILURES_S:
            if self._left_out:
                logger.warning("%d more TLS connections failed before that", self._left_out)
            self._since_s, self._logged, self._left_out = now_s, 0, 0
        if self._logged < _LOGGED_FAILURES_MAX:
            self._logged += 1
            logger.warning("TLS with %s failed: %s", peer, failure)
        else:
            self._left_out += 1


class Server:
    """The connections of a process, over all its listeners.

    `limits` is called at every accept and sweep, so that changed settings apply at once, and so are
    `listener_limits` and `host_rate`, the connections a second that an address may open. `now` is a
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
        listener_limits: Callable[[str], ListenerLimits] = lambda listener: ListenerLimits(),
        host_rate: Callable[[str], float | None] = lambda host: None,
        metrics: Registry | None = None,
    ) -> None:
        self._limits = limits
        self._listener_limits = listener_limits
        self._host_rate = host_rate
        self._counts = ConnectionCounts()
        self._held_refused = 0
        self._refusals: dict[Refusal, int] = {}
        self._refusals_logged_s = float("-inf")
        # Connections whose peers do not read, longest first, with the bytes that they do not read.
        self._unread: dict[ServerConnection, int] = {}
        self._unread_bytes = 0
        metrics = metrics or Registry()
        self._metrics = metrics
        self._refused = {
            refusal: metrics.counter(catalog.CONNECTIONS_REFUSED, {"limit": refusal.value})
            for refusal in Refusal
        }
        self._delayed = metrics.counter(catalog.CONNECTIONS_DELAYED)
        self._closed = {
            reason: metrics.counter(catalog.CONNECTIONS_CLOSED, {"reason": reason.value})
            for reason in _CloseReason
        }
        self._accepted: dict[str, Counter] = {}
        self._tls_failures: dict[str, Counter] = {}
        metrics.samples(
            catalog.CONNECTIONS,
            lambda: [((listener,), count) for listener, count in self._counts.by_listener()],
        )
        metrics.gauge(catalog.UNREAD_RESPONSE_BYTES, lambda: self._unread_bytes)
        metrics.gauge(catalog.QUEUED_REQUEST_BYTES, lambda: self._buffers.held_bytes)
        self._frame_bytes_max = frame_bytes_max
        self._in_flight_max = in_flight_max
        self._now = now
        self._scratch = memoryview(bytearray(SCRATCH_BYTES))
        self._buffers = FrameBuffers(queued_bytes_max)
        # A dict in place of a set: connections are closed in the order of their arrival.
        self._connections: dict[ServerConnection, None] = {}
        self._listeners: list[asyncio.Server] = []
        self._handshakes: ThreadPoolExecutor | None = None
        self._tls_scratch = memoryview(b"")
        self._failure_log = _FailureLog(now)
        self._all_closed = asyncio.Event()

    async def listen(
        self,
        host: str,
        port: int,
        respond: Respond,
        name: str = "",
        *,
        tls: ServerTls | None = None,
        authenticated: bool = True,
        welcome: Welcome | None = None,
    ) -> int:
        """Bind an address, whose requests go to `respond`; return the port, chosen if it was 0.

        With `tls` it speaks TLS. Connections are `authenticated` from the start, or not.
        `welcome` is called with every connection that is admitted. Limits go by the listener's
        name.
        """
        if tls is not None and self._handshakes is None:
            self._handshakes = ThreadPoolExecutor(_HANDSHAKE_THREADS, "tls-handshake")
            self._tls_scratch = memoryview(bytearray(TLS_SCRATCH_BYTES))
        if tls is not None:
            self._tls_failures[name] = self._metrics.counter(
                catalog.TLS_FAILURES, {"listener": name}
            )
        self._accepted[name] = self._metrics.counter(
            catalog.CONNECTIONS_ACCEPTED, {"listener": name}
        )
        loop = asyncio.get_running_loop()
        listener = await loop.create_server(
            lambda: self._accept(respond, name, tls, authenticated, welcome),
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
        """Close connections that are idle, send no first request, or do not finish a request."""
        limits, now = self._limits(), self._now()
        self._log_refusals()
        silent_since = asyncio.get_running_loop().time() - limits.idle_ms_max / 1000
        for connection in tuple(self._connections):
            if (
                limits.idle_ms_max >= 0
                and connection.last_active < silent_since
                and connection.idle
            ):
                connection.abort(f"silent for {limits.idle_ms_max} ms (connections.max.idle.ms)")
            elif self._is_slow(connection, limits, now):
                self._closed[_CloseReason.SLOW].value += 1

    def _is_slow(self, connection: ServerConnection, limits: ConnectionLimits, now: float) -> bool:
        """Close a connection whose first request does not come, or whose latest stays cut short."""
        open_ms = (now - connection.opened_s) * 1000
        if not connection.has_sent and 0 <= limits.first_request_ms_max < open_ms:
            connection.abort(
                f"no request in {limits.first_request_ms_max} ms"
                " (connections.first.request.timeout.ms)"
            )
            return True
        stalled = connection.stalled_s(now)
        if stalled is None or limits.receive_ms_max < 0:
            return False
        seconds, size = stalled
        if seconds <= limits.receive_ms_max / 1000 + size / _RECEIVE_BYTES_PER_S_MIN:
            return False
        connection.abort(
            f"a request of which {size} bytes came has been incomplete for {seconds:.0f} s"
            " (request.receive.timeout.ms)"
        )
        return True

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
        if self._handshakes is not None:
            self._handshakes.shutdown(wait=False, cancel_futures=True)

    def abort(self, reason: str) -> None:
        """Close every socket now, without the waiting replies."""
        self.stop_accepting()
        for connection in tuple(self._connections):
            connection.abort(reason)

    def _accept(
        self,
        respond: Respond,
        listener: str,
        tls: ServerTls | None,
        authenticated: bool,
        welcome: Welcome | None,
    ) -> asyncio.BufferedProtocol:
        connection = ServerConnection(
            respond,
            scratch=self._scratch,
            buffers=self._buffers,
            frame_bytes_max=self._frame_bytes_max,
            in_flight_max=self._in_flight_max,
            now=self._now,
            on_open=lambda connection: self._admit(connection, welcome),
            authenticated=authenticated,
            on_close=self._forget,
            on_unread=self._note_unread,
            listener=listener,
        )
        return connection if tls is None else self._with_tls(connection, tls)

    def _with_tls(self, connection: ServerConnection, tls: ServerTls) -> TlsLayer:
        def on_principal(principal: Principal) -> None:
            connection.principal = principal

        def on_failed(failure: TlsFailed) -> None:
            self._tls_failures[connection.listener].value += 1
            self._failure_log.add(connection.peer, failure)

        return tls.layer(connection, self._tls_scratch, self._handshakes, on_principal, on_failed)

    def _admit(self, connection: ServerConnection, welcome: Welcome | None) -> bool:
        host, listener = connection.peer_host, connection.listener
        limits = self._limits()
        refusal, wait_s, needs_room = self._counts.admit(
            host,
            listener,
            limits,
            self._listener_limits(listener),
            self._host_rate(host),
            self._now(),
        )
        if refusal is not None:
            self._refused[refusal].value += 1
            self._refusals[refusal] = self._refusals.get(refusal, 0) + 1
            self._log_refusals()
            if wait_s > 0 and self._held_refused < _HELD_REFUSED_MAX:
                self._held_refused += 1
                connection.close_later(wait_s)
            return False
        self._connections[connection] = None
        self._accepted[listener].value += 1
        if needs_room:
            self._make_room(listener)
        if wait_s > 0:
            self._delayed.value += 1
            connection.mute(wait_s)
        if welcome is not None:
            welcome(connection)
        return True

    def _make_room(self, listener: str) -> None:
        """Close the connection of another listener that has been silent for longest."""
        others = [found for found in self._connections if found.listener != listener]
        if others:
            self._closed[_CloseReason.ROOM].value += 1
            min(others, key=lambda found: found.last_active).abort(
                "max.connections is reached, and another broker needs a connection"
            )

    def _log_refusals(self) -> None:
        """Log how many connections were refused since the last time, now and then."""
        now = self._now()
        if self._refusals and now - self._refusals_logged_s >= _REFUSAL_LOG_SECONDS:
            self._refusals_logged_s = now
            for refusal, count in self._refusals.items():
                logger.warning("refused %d connections: %s is reached", count, refusal.value)
            self._refusals.clear()

    def _note_unread(self, connection: ServerConnection, size: int) -> None:
        """Note the bytes that a peer does not read, and bound those of all of them."""
        before = self._unread.get(connection, 0)
        self._unread_bytes += size - before
        if size:
            self._unread[connection] = size
        elif before:
            del self._unread[connection]
        bytes_max = self._limits().unread_bytes_max if size > before else -1
        while 0 <= bytes_max < self._unread_bytes and len(self._unread) > 1:
            slowest = next(iter(self._unread))
            self._unread_bytes -= self._unread.pop(slowest)
            self._closed[_CloseReason.UNREAD].value += 1
            slowest.abort(
                "its peer does not read, and the answers of all such connections exceed"
                f" {bytes_max} bytes (queued.max.response.bytes)"
            )

    def _forget(self, connection: ServerConnection) -> None:
        self._unread_bytes -= self._unread.pop(connection, 0)
        if connection not in self._connections:
            # It was refused.
            self._held_refused -= connection.was_held
            return
        del self._connections[connection]
        self._counts.forget(connection.peer_host, connection.listener)
        if not self._connections:
            self._all_closed.set()


class _CloseReason(Enum):
    """The reasons to close a connection that was served, beside idleness and errors."""

    SLOW = "slow_request"
    UNREAD = "unread_responses"
    ROOM = "needed_for_brokers"
