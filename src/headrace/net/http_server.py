"""A small HTTP/1.1 server for an admin listener: GET and HEAD, bounded in all that a peer can use.

h11 is the protocol, without I/O; this is its shell on the event loop. Rule: the number of
connections, the size of a request, the time for a request, for an answer and between requests have
limits, and a body is written no faster than the peer reads. A connection answers one request at a
time.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import NamedTuple, TypeAlias, cast
from urllib.parse import unquote, urlsplit

import h11

from headrace.net.tls import TLS_SCRATCH_BYTES, TlsLayer
from headrace.net.tls_contexts import ServerTls
from headrace.net.tls_failures import TlsFailed
from headrace.security.authorization import ANONYMOUS, Principal
from headrace.tasks import TaskScope, is_operating_error, report_bug

logger = logging.getLogger(__name__)

_HEADER_BYTES_MAX = 16 * 1024
_SCRATCH_BYTES = 16 * 1024
_BODY_BYTES_MAX = 64 * 1024
_WRITE_HIGH_WATER_BYTES = 256 * 1024
_LINGER_SECONDS = 0.25
_PEER = "?"
_NO_HEADERS: Mapping[str, str] = MappingProxyType({})


class HttpRequest(NamedTuple):
    """A request; its body is dropped, for no resource takes one. Header names are lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    peer_host: str
    is_encrypted: bool
    principal: Principal


class HttpResponse(NamedTuple):
    """A status, and a body at once or in parts, which are made as the peer reads them."""

    status: int
    body: "bytes | AsyncIterator[bytes]"
    content_type: str = "text/plain; charset=utf-8"
    headers: tuple[tuple[str, str], ...] = ()


Handle: TypeAlias = Callable[[HttpRequest], Awaitable[HttpResponse]]


class HttpLimits(NamedTuple):
    """Limits on peers: connections, and the seconds of a request, an answer and a pause."""

    connections_max: int = 64
    request_s_max: float = 10.0
    response_s_max: float = 60.0
    idle_s_max: float = 120.0


def text_response(status: int, text: str, headers: Mapping[str, str] = _NO_HEADERS) -> HttpResponse:
    """A response of plain text."""
    return HttpResponse(status, text.encode(), headers=tuple(headers.items()))


class HttpConnection(asyncio.BufferedProtocol):
    """One accepted connection. Used on the event loop's thread only."""

    def __init__(self, server: "HttpServer", *, is_encrypted: bool) -> None:
        self._server = server
        self._is_encrypted = is_encrypted
        self._loop = asyncio.get_running_loop()
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=_HEADER_BYTES_MAX)
        self._scratch = memoryview(bytearray(_SCRATCH_BYTES))
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._request: h11.Request | None = None
        self._body_bytes = 0
        self._has_begun = False
        self._refused = False
        self._can_write = asyncio.Event()
        self._can_write.set()
        self._task: asyncio.Task[None] | None = None
        self.principal: Principal = ANONYMOUS
        self.peer_host = self.peer = _PEER

    @property
    def is_answering(self) -> bool:
        """Whether a request is being answered."""
        return self._task is not None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclass of asyncio's, though they do the same.
        self._transport = transport = cast("asyncio.Transport", transport)
        address = transport.get_extra_info("peername")
        if isinstance(address, tuple):
            self.peer_host, self.peer = address[0], f"{address[0]}:{address[1]}"
        transport.set_write_buffer_limits(high=_WRITE_HIGH_WATER_BYTES)
        if not self._server.admit(self):
            transport.abort()
            return
        self._wait_for_request()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._can_write.set()
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
        self._server.forget(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._scratch

    def buffer_updated(self, nbytes: int) -> None:
        if self._transport is None or self._refused:
            return
        if not self._has_begun and self._task is None:
            self._has_begun = True
            self._limit_time(self._server.limits.request_s_max, "a request that does not end")
        self._http.receive_data(bytes(self._scratch[:nbytes]))
        self._read_events()

    def eof_received(self) -> bool:
        if self._refused:
            return False
        self._http.receive_data(b"")
        self._read_events()
        # Who has said all may still wait for the answer.
        return self._task is not None

    def pause_writing(self) -> None:
        self._can_write.clear()

    def resume_writing(self) -> None:
        self._can_write.set()

    def abort(self) -> None:
        """Close the socket now."""
        if self._transport is not None:
            self._transport.abort()

    def close_if_idle(self) -> None:
        """Close the socket unless a request is being answered."""
        if self._transport is not None and self._task is None:
            self._transport.close()

    def _read_events(self) -> None:
        """Handle the events that h11 made of the bytes, up to the end of a request."""
        while self._task is None and self._transport is not None:
            try:
                event = self._http.next_event()
            except h11.RemoteProtocolError as error:
                logger.debug("HTTP from %s: %s", self.peer, error)
                self._refuse(error.error_status_hint, "the request cannot be read\n")
                return
            if event is h11.NEED_DATA or event is h11.PAUSED:
                return
            if isinstance(event, h11.Request):
                self._request = event
                self._body_bytes = 0
            elif isinstance(event, h11.Data):
                self._body_bytes += len(event.data)
                if self._body_bytes > _BODY_BYTES_MAX:
                    self._refuse(413, "no request here has a body\n")
                    return
            elif isinstance(event, h11.EndOfMessage):
                self._answer()
            else:
                self._transport.close()
                return

    def _answer(self) -> None:
        assert self._request is not None
        assert self._transport is not None
        request, self._request = self._request, None
        # One request at a time: the next stays in the socket.
        self._transport.pause_reading()
        self._limit_time(self._server.limits.response_s_max, "an answer that is not read")
        self._task = self._server.tasks.start_awaited(self._respond(request), "request")
        self._task.add_done_callback(self._answered)

    async def _respond(self, request: h11.Request) -> None:
        response = await self._server.respond(self, request, is_encrypted=self._is_encrypted)
        await self._send(response, without_body=request.method == b"HEAD")

    async def _send(self, response: HttpResponse, *, without_body: bool) -> None:
        body = response.body
        headers = [
            ("Content-Type", response.content_type),
            # What a broker says is nobody's to frame, sniff or keep.
            ("X-Content-Type-Options", "nosniff"),
            ("Cache-Control", "no-store"),
            *response.headers,
        ]
        if isinstance(body, bytes):
            headers.append(("Content-Length", str(len(body))))
        head = h11.Response(status_code=response.status, headers=headers, reason=_reason(response))
        self._write(self._http.send(head))
        if isinstance(body, bytes):
            if not without_body:
                self._write(self._http.send(h11.Data(data=body)))
        elif not without_body:
            async for part in body:
                self._write(self._http.send(h11.Data(data=part)))
                await self._can_write.wait()
                if self._transport is None:
                    return
        self._write(self._http.send(h11.EndOfMessage()))

    def _answered(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if self._transport is None:
            return
        if task.cancelled() or task.exception() is not None:
            self._transport.abort()
            return
        if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
            self._transport.close()
            return
        self._http.start_next_cycle()
        self._wait_for_request()
        self._transport.resume_reading()
        self._read_events()

    def _refuse(self, status: int, text: str) -> None:
        """Answer a request that cannot be served, and close."""
        assert self._transport is not None
        if self._http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = text.encode()
            head = h11.Response(
                status_code=status,
                headers=[("Content-Length", str(len(body))), ("Connection", "close")],
            )
            for event in (head, h11.Data(data=body), h11.EndOfMessage()):
                self._write(self._http.send(event))
        # What the peer still sends is read and dropped for a moment: closing a socket with unread
        # bytes resets the connection, and the peer's system would drop the answer.
        self._refused = True
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(_LINGER_SECONDS, self._transport.close)
        self._transport.write_eof()

    def _write(self, data: bytes | None) -> None:
        if data and self._transport is not None:
            self._transport.write(data)

    def _wait_for_request(self) -> None:
        self._has_begun = False
        self._limit_time(self._server.limits.idle_s_max, "")

    def _limit_time(self, seconds: float, reason: str) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(seconds, self._time_out, seconds, reason)

    def _time_out(self, seconds: float, reason: str) -> None:
        if reason:
            logger.info("closed HTTP connection from %s: %s in %g s", self.peer, reason, seconds)
        self.abort()


class HttpServer:
    """The connections of one HTTP listener.

    At the limit of connections the one that has been silent for longest makes room: a load balancer
    that asks for health must not be kept out by peers that say nothing.
    """

    def __init__(self, handle: Handle, limits: HttpLimits | None = None) -> None:
        self.limits = limits or HttpLimits()
        self.tasks = TaskScope("admin listener")
        self._handle = handle
        # In the order in which they came, or were last answered.
        self._connections: dict[HttpConnection, None] = {}
        self._listener: asyncio.Server | None = None
        self._handshakes: ThreadPoolExecutor | None = None
        self._tls_scratch = memoryview(b"")

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    async def listen(self, host: str, port: int, tls: ServerTls | None = None) -> int:
        """Bind an address and serve there; returns the port, chosen if it was 0."""
        if tls is not None:
            self._handshakes = ThreadPoolExecutor(1, "admin-tls-handshake")
            self._tls_scratch = memoryview(bytearray(TLS_SCRATCH_BYTES))
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(
            lambda: self._accept(tls), host or None, port, reuse_address=True
        )
        bound: int = self._listener.sockets[0].getsockname()[1]
        return bound

    async def close(self) -> None:
        """Stop listening and close all connections, after a moment for answers under way."""
        if self._listener is not None:
            self._listener.close()
        for connection in tuple(self._connections):
            connection.close_if_idle()
        await self.tasks.close(grace_s=1.0)
        self.abort()
        if self._handshakes is not None:
            self._handshakes.shutdown(wait=False, cancel_futures=True)

    def abort(self) -> None:
        """Close every socket now."""
        if self._listener is not None:
            self._listener.close()
        for connection in tuple(self._connections):
            connection.abort()

    # -- connections call these

    def admit(self, connection: HttpConnection) -> bool:
        """Take a connection in; False if there is no room for it."""
        if len(self._connections) >= self.limits.connections_max:
            idle = next((each for each in self._connections if not each.is_answering), None)
            if idle is None:
                return False
            del self._connections[idle]
            idle.abort()
        self._connections[connection] = None
        return True

    def forget(self, connection: HttpConnection) -> None:
        self._connections.pop(connection, None)

    async def respond(
        self, connection: HttpConnection, request: h11.Request, *, is_encrypted: bool
    ) -> HttpResponse:
        """The response to a request; one that fails by a bug is reported and gets status 500."""
        if connection in self._connections:
            self._connections.pop(connection)
            self._connections[connection] = None
        method = request.method.decode("ascii", "replace")
        if method not in ("GET", "HEAD"):
            return text_response(405, "only GET and HEAD are served\n", {"Allow": "GET, HEAD"})
        try:
            path = unquote(urlsplit(request.target.decode("latin-1")).path)
        except ValueError:
            return text_response(400, "the target of the request is not one\n")
        headers = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in request.headers
        }
        parsed = HttpRequest(
            method, path, headers, connection.peer_host, is_encrypted, connection.principal
        )
        try:
            return await self._handle(parsed)
        except Exception as error:
            if is_operating_error(error):
                logger.warning("HTTP request %s failed: %s", path, error)
            else:
                report_bug(f"the answer to {path}", error)
            return text_response(500, "the request failed; see the broker's log\n")

    def _accept(self, tls: ServerTls | None) -> asyncio.BufferedProtocol:
        connection = HttpConnection(self, is_encrypted=tls is not None)
        return connection if tls is None else self._with_tls(connection, tls)

    def _with_tls(self, connection: HttpConnection, tls: ServerTls) -> TlsLayer:
        def on_principal(principal: Principal) -> None:
            connection.principal = principal

        def on_failed(failure: TlsFailed) -> None:
            logger.warning("TLS with %s at the admin listener failed: %s", connection.peer, failure)

        return tls.layer(connection, self._tls_scratch, self._handshakes, on_principal, on_failed)


_REASONS = {
    200: b"OK",
    400: b"Bad Request",
    401: b"Unauthorized",
    403: b"Forbidden",
    404: b"Not Found",
    405: b"Method Not Allowed",
    413: b"Content Too Large",
    429: b"Too Many Requests",
    500: b"Internal Server Error",
    503: b"Service Unavailable",
}


def _reason(response: HttpResponse) -> bytes:
    return _REASONS.get(response.status, b"")
