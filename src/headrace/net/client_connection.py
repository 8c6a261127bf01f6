"""A client's connection to a broker, with pipelined requests.

Rule: a connection that failed is closed and stays closed. The broker may or may not have executed
the requests in flight; only the caller knows whether they can be sent again.
"""

import asyncio
import socket
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self, cast

from headrace import __version__
from headrace.errors import ErrorCode, HeadraceError, KafkaError, ProtocolError, error_code
from headrace.net.addresses import Address
from headrace.net.framing import FRAME_BYTES_MAX, FrameReader, TlsExpected
from headrace.net.tls import TlsLayer
from headrace.net.tls_failures import (
    ClosedInHandshake,
    TlsFailed,
    plain_text_listener,
    silent_in_handshake,
)
from headrace.protocol.apis import (
    APIS,
    Api,
    decode_response,
    encode_request,
    served_versions,
)
from headrace.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from headrace.protocol.schema import Message
from headrace.types import Buffer

if TYPE_CHECKING:
    from headrace.net.tls_contexts import ClientTls


class SaslLogin(Protocol):
    """A login by SASL, made anew on every connection."""

    async def authenticate(self, connection: "ClientConnection", deadline: float) -> None:
        """Log in by `deadline`, an instant of the loop's time; HeadraceError if that fails.

        It is called once versions are agreed, before any other request is sent.
        """


class ClientSecurity(NamedTuple):
    """TLS and the login of connections; neither is there where listeners are plain text."""

    tls: "ClientTls | None" = None
    login: SaslLogin | None = None


PLAINTEXT = ClientSecurity()

WRITE_BUFFER_BYTES = 4 * 1_048_576
# A broker that asks for a longer wait is asked again after this.
_THROTTLE_SECONDS_MAX = 3600.0

# After 15 silent seconds the kernel asks every 5 whether the other end is there, three times.
_KEEPALIVE = {
    getattr(socket, name): value
    for name, value in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))
    if hasattr(socket, name)
}

# How long to find out whether a listener that closed a handshake speaks plain text.
_PLAIN_TEXT_SECONDS_MAX = 2.0

_UNSUPPORTED = int(ErrorCode.UNSUPPORTED_VERSION)
_USE_TLS = "set security_protocol to SSL or SASL_SSL"
_PERHAPS_ANOTHER = "see whether this is the plaintext port of a Kafka broker"


class ConnectionFailed(HeadraceError):
    """A broker cannot be reached, or the connection to it broke; the text has advice."""

    def __init__(self, address: Address, what: str, advice: str) -> None:
        super().__init__(f"{address}: {what}; {advice}")
        self.address = address


class NoAnswer(ConnectionFailed):
    """A connect or a request timed out: the broker may be alive and slow."""


class SecurityRefused(ConnectionFailed):
    """The two ends do not agree about security; another attempt would fail the same way."""


class _PendingRequest(NamedTuple):
    """A request without its response yet. `due` is its deadline, by the loop's time."""

    future: "asyncio.Future[Any]"
    correlation_id: int
    api_key: int
    version: int
    due: float


class _HeldRequest(NamedTuple):
    """A request that is not sent yet, because a login is being renewed."""

    request: Message
    version: int
    future: "asyncio.Future[Any] | None"
    due: float


class ClientConnection(asyncio.BufferedProtocol):
    """A socket and the requests in flight on it; used on its event loop's thread only.

    Invariant: responses come in the order of the requests, and `_pending` holds the requests
    without a response, oldest first.
    """

    def __init__(
        self,
        address: Address,
        *,
        client_id: str = "headrace",
        frame_bytes_max: int = FRAME_BYTES_MAX,
    ) -> None:
        self.address = address
        self._client_id = client_id
        self._loop = asyncio.get_running_loop()
        self._reader = FrameReader(frame_bytes_max)
        self._transport: asyncio.Transport | None = None
        self._next_correlation_id = 0
        self._pending: deque[_PendingRequest] = deque()
        self._versions: dict[int, tuple[int, int]] = {}
        # The finalized feature levels of the cluster (KIP-584), by name.
        self.features: dict[str, int] = {}
        self._timer: asyncio.Handle | None = None
        self._timer_due = 0.0
        self._writable: asyncio.Future[None] | None = None
        # Requests that wait until a login is renewed; None while none is.
        self._held: list[_HeldRequest] | None = None
        # Bytes that wait until a throttle of the broker is over.
        self._throttled: list[Buffer] = []
        self._throttle: asyncio.TimerHandle | None = None
        self._throttled_until = 0.0
        self._buffer_full = False

    @classmethod
    async def open(
        cls,
        address: Address,
        timeout_s: float,
        *,
        client_id: str = "headrace",
        frame_bytes_max: int = FRAME_BYTES_MAX,
        security: ClientSecurity = PLAINTEXT,
    ) -> Self:
        """Connect, agree on versions, and log in where `security` has a login."""
        loop = asyncio.get_running_loop()
        due = loop.time() + timeout_s
        connection = cls(address, client_id=client_id, frame_bytes_max=frame_bytes_max)
        try:
            await connection._connect(due, security)
            await connection.agree_on_versions(max(due - loop.time(), 0.001))
            if security.login is not None:
                await security.login.authenticate(connection, due)
        except BaseException:
            connection.close()
            raise
        return connection

    @property
    def is_open(self) -> bool:
        return self._transport is not None

    @property
    def in_flight(self) -> int:
        """The number of requests without a response."""
        return len(self._pending) + len(self._held or ())

    def __repr__(self) -> str:
        state = f"{self.in_flight} in flight" if self.is_open else "closed"
        return f"<Connection to {self.address}, {state}>"

    # -- asyncio calls these

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclass of asyncio's, though they do the same.
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        sock: socket.socket | None = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # A machine that loses power closes no connection, and some requests wait for long.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in _KEEPALIVE.items():
                sock.setsockopt(socket.IPPROTO_TCP, option, value)

    def connection_lost(self, exc: Exception | None) -> None:
        if isinstance(exc, TlsFailed):
            self._fail(_tls_failed(self.address, exc))
        elif isinstance(exc, OSError) and not isinstance(exc, ConnectionError):
            what = exc.strerror or str(exc)
            self._fail(ConnectionFailed(self.address, what, "see whether the network works"))
        else:
            self._fail(
                ConnectionFailed(
                    self.address, "the broker closed the connection", "its log says why"
                )
            )

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        try:
            for frame in self._reader.received(nbytes):
                self._take(frame)
        except TlsExpected as error:
            self._fail(SecurityRefused(self.address, str(error), _USE_TLS))
        except ProtocolError as error:
            self._fail(ConnectionFailed(self.address, str(error), _PERHAPS_ANOTHER))

    def pause_writing(self) -> None:
        self._buffer_full = True
        self._update_writable()

    def resume_writing(self) -> None:
        self._buffer_full = False
        self._update_writable()

    # -- the cluster and its users call these

    async def agree_on_versions(self, timeout_s: float) -> None:
        """Send ApiVersions; repeat it in a lower version if the broker does not have ours."""
        version = served_versions(Api.API_VERSIONS)[1]
        answer = await self._request_versions(version, timeout_s)
        if answer.error_code == _UNSUPPORTED:
            theirs = [api for api in answer.api_keys if api.api_key == Api.API_VERSIONS]
            version = min(version - 1, theirs[0].max_version) if theirs else 0
            answer = await self._request_versions(version, timeout_s)
        if answer.error_code:
            raise KafkaError(error_code(answer.error_code), f"the broker at {self.address}")
        self._versions = {
            api.api_key: (api.min_version, api.max_version) for api in answer.api_keys
        }
        if answer.finalized_features_epoch >= 0:
            self.features = {
                feature.name: feature.max_version_level for feature in answer.finalized_features
            }

    def version_of(self, api_key: int, version_max: int | None = None) -> int:
        """The highest version of an API that both sides have; KafkaError if there is none."""
        first, last = served_versions(api_key)
        if version_max is not None:
            last = min(last, version_max)
        name = APIS[api_key].kafka_name
        if api_key not in self._versions:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION, f"the broker at {self.address} does not have {name}"
            )
        their_first, their_last = self._versions[api_key]
        version = min(last, their_last)
        if version < max(first, their_first):
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"the broker at {self.address} has versions {their_first} to {their_last} of"
                f" {name}, and this client {first} to {last}",
            )
        return version

    def ask(
        self, request: Message, timeout_s: float, *, version_max: int | None = None
    ) -> "asyncio.Future[Any]":
        """Send a request now; the future gets its response, or ConnectionFailed."""
        return self._send_or_hold(request, self.version_of(request.api_key, version_max), timeout_s)

    def ask_unheld(
        self, request: Message, timeout_s: float, *, version_max: int | None = None
    ) -> "asyncio.Future[Any]":
        """As `ask`, for the requests of a login, which go out while others are held."""
        held, self._held = self._held, None
        try:
            return self.ask(request, timeout_s, version_max=version_max)
        finally:
            self._held = held

    def hold_requests(self) -> None:
        """Keep requests here that are sent from now on, until `send_held_requests`."""
        if self._held is None:
            self._held = []

    def send_held_requests(self) -> None:
        """Send the requests that were held, in their order."""
        held, self._held = self._held, None
        for request, version, future, due in held or ():
            if future is None:
                self._write(request, version)
            elif not future.done():
                self._send(request, version, future, due)

    def tell(self, request: Message) -> None:
        """Send a request that has no response, such as Produce with acks=0."""
        version = self.version_of(request.api_key)
        if self._held is not None:
            self._held.append(_HeldRequest(request, version, None, 0.0))
        else:
            self._write(request, version)

    async def drained(self) -> None:
        """Return once the transport's write buffer is below its limit."""
        while self._writable is not None and self.is_open:
            # Shared by all callers: cancelling one caller must not cancel the others.
            await asyncio.shield(self._writable)

    def close(self) -> None:
        """Close the socket. Requests in flight end with ConnectionFailed."""
        self._fail(ConnectionFailed(self.address, "the client closed the connection", "ask again"))

    def fail(self, error: HeadraceError) -> None:
        """Close the socket. Requests in flight end with this error."""
        self._fail(error)

    async def _connect(self, due: float, security: ClientSecurity) -> None:
        """Connect, with TLS where `security` has it, by an instant of the loop's time."""
        tls, began = security.tls, self._loop.time()
        shaken: asyncio.Future[None] = self._loop.create_future()
        protocol: asyncio.BufferedProtocol = self
        try:
            async with asyncio.timeout_at(due):
                if tls is not None:
                    protocol = TlsLayer(
                        self,
                        await tls.context(),
                        server_side=False,
                        hostname=self.address.host,
                        scratch=tls.scratch,
                        handshake_s_max=max(due - self._loop.time(), 0.001),
                        on_open=lambda _: _settle(shaken, None),
                        on_failed=lambda failure: _settle(shaken, failure),
                    )
                await _connect(self.address, protocol)
                if tls is not None:
                    await shaken
        except ClosedInHandshake as closed:
            is_plain = await self._answers_in_plain_text(due)
            raise _tls_failed(self.address, plain_text_listener() if is_plain else closed) from None
        except TlsFailed as failure:
            raise _tls_failed(self.address, failure) from None
        except TimeoutError as error:
            if self._transport is not None:
                silence = silent_in_handshake(self._loop.time() - began, server_side=False)
                raise NoAnswer(self.address, silence.what, silence.advice) from None
            raise _connect_failed(self.address, error) from None
        except OSError as error:
            raise _connect_failed(self.address, error) from None

    async def _answers_in_plain_text(self, due: float) -> bool:
        """Whether the listener tells its versions without TLS.

        A listener in plain text closes a connection that begins with TLS, as a broker does that
        stops: only the second is worth another attempt. Nothing but the request goes out.
        """
        left_s = min(due - self._loop.time(), _PLAIN_TEXT_SECONDS_MAX)
        if left_s <= 0:
            return False
        try:
            plain = await ClientConnection.open(self.address, left_s, client_id=self._client_id)
        except HeadraceError:
            return False
        plain.close()
        return True

    def _send_or_hold(
        self, request: Message, version: int, timeout_s: float
    ) -> "asyncio.Future[Any]":
        # The broker reads nothing while it throttles this connection.
        due = max(self._loop.time(), self._throttled_until) + timeout_s
        if self._held is not None:
            future = self._loop.create_future()
            self._held.append(_HeldRequest(request, version, future, due))
            return future
        return self._send(request, version, None, due)

    def _send(
        self,
        request: Message,
        version: int,
        future: "asyncio.Future[Any] | None",
        due: float,
    ) -> "asyncio.Future[Any]":
        correlation_id = self._write(request, version)
        if future is None:
            future = self._loop.create_future()
        self._pending.append(_PendingRequest(future, correlation_id, request.api_key, version, due))
        if self._timer is None or self._timer_due > due:
            self._watch(due)
        return future

    def _write(self, request: Message, version: int) -> int:
        if self._transport is None:
            raise ConnectionFailed(self.address, "the connection is closed", "open another")
        correlation_id = self._next_correlation_id
        self._next_correlation_id = (correlation_id + 1) & 0x7FFF_FFFF
        buffers = encode_request(request, version, correlation_id, self._client_id)
        if self._throttle is not None:
            self._throttled += buffers
        else:
            self._write_now(buffers)
        return correlation_id

    def _write_now(self, buffers: list[Buffer]) -> None:
        assert self._transport is not None
        self._transport.writelines(buffers)
        if not self._buffer_full and self._transport.get_write_buffer_size() > WRITE_BUFFER_BYTES:
            # asyncio's writelines forgets to pause us before Python 3.12.9 and 3.13.2, and
            # setting the limits makes it check the size again.
            self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)

    def _take(self, frame: Buffer) -> None:
        """Complete the oldest request in flight with its response frame."""
        if not self._pending:
            raise ProtocolError("sent an answer to nothing")
        pending = self._pending.popleft()
        try:
            if pending.api_key == Api.API_VERSIONS and not self._versions:
                response: Any = frame  # Its version is not known yet: see `_request_versions`.
            else:
                correlation_id, response = decode_response(pending.api_key, pending.version, frame)
                if correlation_id != pending.correlation_id:
                    raise ProtocolError(
                        f"answered {correlation_id} instead of {pending.correlation_id}"
                    )
        except ProtocolError as error:
            self._pending.appendleft(pending)
            raise ProtocolError(f"sent an answer that cannot be read: {error}") from None
        throttle_ms = getattr(response, "throttle_time_ms", 0)
        if throttle_ms > 0:
            self._obey(throttle_ms / 1000)
        # The caller may have been cancelled since; its response had to be read all the same.
        if not pending.future.done():
            pending.future.set_result(response)

    def _obey(self, throttle_s: float) -> None:
        """Send nothing for the time that the broker asks for, as it reads nothing (KIP-219)."""
        until = self._loop.time() + min(throttle_s, _THROTTLE_SECONDS_MAX)
        added_s = until - max(self._throttled_until, self._loop.time())
        if added_s <= 0:
            return
        if self._throttle is not None:
            self._throttle.cancel()
        self._throttled_until = until
        self._throttle = self._loop.call_at(until, self._end_throttle)
        self._update_writable()
        # What is in flight is not read before that either.
        self._pending = deque(
            pending._replace(due=pending.due + added_s) for pending in self._pending
        )

    def _end_throttle(self) -> None:
        self._throttle = None
        throttled, self._throttled = self._throttled, []
        if self._transport is not None and throttled:
            self._write_now(throttled)
        self._update_writable()

    def _update_writable(self) -> None:
        """Have `drained` wait while the buffer is full, or the broker asked for a wait."""
        if self._buffer_full or self._throttle is not None:
            if self._writable is None:
                self._writable = self._loop.create_future()
        elif self._writable is not None:
            self._writable.set_result(None)
            self._writable = None

    async def _request_versions(self, version: int, timeout_s: float) -> ApiVersionsResponse:
        request = ApiVersionsRequest(
            client_software_name="headrace", client_software_version=__version__
        )
        frame: Buffer = await self._send_or_hold(request, version, timeout_s)
        refused = len(frame) >= 6 and int.from_bytes(frame[4:6], "big", signed=True) == _UNSUPPORTED
        try:
            # A broker that does not have our version answers in version 0 (KIP-511).
            _, response = decode_response(Api.API_VERSIONS, 0 if refused else version, frame)
        except ProtocolError:
            if refused:
                # Some brokers refuse in a form of their own. Version 0 remains to be tried.
                return ApiVersionsResponse(error_code=_UNSUPPORTED)
            raise ConnectionFailed(
                self.address, "did not answer as a Kafka broker does", _PERHAPS_ANOTHER
            ) from None
        assert isinstance(response, ApiVersionsResponse)
        return response

    def _watch(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(due, self._check_due)
        self._timer_due = due

    def _check_due(self) -> None:
        """Fail the connection if the deadline of a request has passed."""
        self._timer = None
        if not self._pending:
            return
        due = min(pending.due for pending in self._pending)
        if due > self._loop.time():
            self._watch(due)
            return
        advice = "see whether the broker is healthy" if self._versions else _PERHAPS_ANOTHER
        self._fail(NoAnswer(self.address, "no answer in time", advice))

    def _fail(self, error: HeadraceError) -> None:
        """Close the socket at once, and fail all requests in flight with `error`."""
        if self._transport is not None:
            transport, self._transport = self._transport, None
            transport.abort()
        for timer in (self._timer, self._throttle):
            if timer is not None:
                timer.cancel()
        self._timer = self._throttle = None
        self._throttled.clear()
        requests, self._pending = self._pending, deque()
        held, self._held = self._held, None
        for request in (*requests, *(held or ())):
            if request.future is not None and not request.future.done():
                request.future.set_exception(error)
        self.resume_writing()


def _settle(shaken: asyncio.Future[None], failure: TlsFailed | None) -> None:
    """Set the outcome of a TLS handshake in the future that is awaited, unless it is cancelled."""
    if shaken.done():
        return
    if failure is None:
        shaken.set_result(None)
    else:
        shaken.set_exception(failure)


def _tls_failed(address: Address, failure: TlsFailed) -> ConnectionFailed:
    kind = SecurityRefused if failure.lasting else ConnectionFailed
    return kind(address, failure.what, failure.advice)


async def _connect(address: Address, protocol: asyncio.BufferedProtocol) -> None:
    """Connect to the first address of the host that accepts; raise the last error if none does.

    The addresses are tried in turn here, because asyncio's own loop over them loses their errors.
    """
    loop = asyncio.get_running_loop()
    failed: OSError | None = None
    for _, _, _, _, place in await loop.getaddrinfo(
        address.host, address.port, type=socket.SOCK_STREAM
    ):
        try:
            await loop.create_connection(lambda: protocol, str(place[0]), address.port)
        except OSError as error:
            failed = error
        else:
            return
    raise failed or OSError("the host has no address")


def _connect_failed(address: Address, error: OSError) -> ConnectionFailed:
    if isinstance(error, socket.gaierror):
        return ConnectionFailed(address, "the host name has no address", "see whether it is right")
    if isinstance(error, ConnectionRefusedError):
        return ConnectionFailed(
            address, "nothing is listening there", "start a broker with `headrace up`"
        )
    if isinstance(error, TimeoutError):
        return NoAnswer(address, "no connection in time", "see whether a firewall is in the way")
    return ConnectionFailed(
        address, error.strerror or str(error), "see whether the network and the address are right"
    )
