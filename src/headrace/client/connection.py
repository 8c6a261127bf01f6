"""One blocking connection to one broker: frames out, frames in, versions agreed on at the start.

Rule: a connection that failed is closed and stays closed. What was in flight on it may or may not
have been done; only the caller knows whether it can be sent again.
"""

import socket
from collections import deque
from collections.abc import Sequence
from struct import Struct as Layout
from typing import Any, NamedTuple, Self

from headrace import __version__
from headrace.client.addresses import Address
from headrace.client.failures import ConnectionFailed
from headrace.client.outcomes import check
from headrace.clock import Clock, SystemClock
from headrace.errors import ErrorCode, KafkaError, ProtocolError
from headrace.protocol.api import (
    REQUESTS,
    ApiKey,
    decode_response,
    encode_request,
    served_versions,
)
from headrace.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from headrace.protocol.schema import Message
from headrace.types import Buffer

# Above what one answer of a broker with default settings can be: fetch.max.bytes is 55 MiB, and
# one batch may exceed it.
FRAME_BYTES_MAX = 160 * 1_048_576

_LENGTH = Layout(">i")
_ERROR_CODE = Layout(">h")
_UNSUPPORTED = int(ErrorCode.UNSUPPORTED_VERSION)
_BUFFERS_PER_CALL = 512
_PERHAPS_ANOTHER = "see whether this is the plaintext port of a Kafka broker"


class _Pending(NamedTuple):
    correlation_id: int
    api_key: int
    version: int


class Connection:
    """A socket and the requests in flight on it. Not thread-safe.

    Invariant: answers come in the order of the requests, and `_pending` holds those not answered
    yet, oldest first.
    """

    def __init__(
        self,
        sock: socket.socket,
        address: Address,
        *,
        client_id: str = "headrace",
        clock: Clock | None = None,
        frame_bytes_max: int = FRAME_BYTES_MAX,
    ) -> None:
        self.address = address
        self._socket: socket.socket | None = sock
        self._client_id = client_id
        self._clock = clock or SystemClock()
        self._frame_bytes_max = frame_bytes_max
        self._next_correlation_id = 0
        self._pending: deque[_Pending] = deque()
        self._versions: dict[int, tuple[int, int]] = {}

    @classmethod
    def open(
        cls, address: Address, deadline: float, *, client_id: str = "headrace", clock: Clock
    ) -> Self:
        """Connect and agree on versions before `deadline`, an instant of `clock.monotonic()`."""
        try:
            timeout_s = max(deadline - clock.monotonic(), 0.001)
            sock = socket.create_connection(address, timeout_s)
        except OSError as error:
            raise _connect_failed(address, error) from None
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = cls(sock, address, client_id=client_id, clock=clock)
        connection.agree_on_versions(deadline)
        return connection

    @property
    def is_open(self) -> bool:
        return self._socket is not None

    @property
    def in_flight(self) -> int:
        """How many requests wait for their answers."""
        return len(self._pending)

    def agree_on_versions(self, deadline: float) -> None:
        """Ask which versions the broker has, stepping down if it cannot read our question."""
        version = served_versions(ApiKey.API_VERSIONS)[1]
        answer = self._ask_versions(version, deadline)
        if answer.error_code == _UNSUPPORTED:
            theirs = [api for api in answer.api_keys if api.api_key == ApiKey.API_VERSIONS]
            version = min(version - 1, theirs[0].max_version) if theirs else 0
            answer = self._ask_versions(version, deadline)
        if answer.error_code:
            self.close()
            check(answer.error_code, subject=f"the broker at {self.address}")
        self._versions = {
            api.api_key: (api.min_version, api.max_version) for api in answer.api_keys
        }

    def version_of(self, api_key: int) -> int:
        """The highest version both sides have; KafkaError if there is none."""
        first, last = served_versions(api_key)
        name = REQUESTS[api_key].__name__.removesuffix("Request")
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

    def call(self, request: Message, deadline: float) -> Any:
        """Send a request and wait for its answer. Only for a connection with nothing in flight."""
        assert not self._pending, "an answer to another request would come first"
        self.send(request, deadline)
        return self.receive(deadline)

    def send(self, request: Message, deadline: float, *, answered: bool = True) -> None:
        """Send a request; its answer comes from a later `receive`, unless none is `answered`."""
        self._send(request, self.version_of(request.api_key), deadline, answered)

    def is_answered(self) -> bool:
        """Whether `receive` need not wait: an answer has begun to arrive, or the end has come."""
        if self._socket is None:
            return True
        self._socket.settimeout(0)
        try:
            self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True  # `receive` will meet the same error, and say what it is.
        return True

    def receive(self, deadline: float) -> Any:
        """The answer to the oldest request in flight."""
        assert self._pending or not self.is_open, "no request is in flight"
        frame = self._read_frame(deadline)
        pending = self._pending.popleft()
        try:
            correlation_id, response = decode_response(pending.api_key, pending.version, frame)
        except ProtocolError as error:
            raise self._failed(f"sent an answer that cannot be read: {error}") from None
        if correlation_id != pending.correlation_id:
            raise self._failed(f"answered {correlation_id} instead of {pending.correlation_id}")
        return response

    def close(self) -> None:
        """Close the socket. Requests in flight are forgotten."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self._pending.clear()

    def _ask_versions(self, version: int, deadline: float) -> ApiVersionsResponse:
        request = ApiVersionsRequest(
            client_software_name="headrace", client_software_version=__version__
        )
        self._send(request, version, deadline, True)
        frame = self._read_frame(deadline)
        self._pending.clear()
        refused = len(frame) >= 6 and _ERROR_CODE.unpack_from(frame, 4)[0] == _UNSUPPORTED
        try:
            # A broker that does not have our version answers in version 0 (KIP-511).
            _, response = decode_response(ApiKey.API_VERSIONS, 0 if refused else version, frame)
        except ProtocolError:
            if refused:
                # Some say no in a form of their own. Version 0 is left to be asked.
                return ApiVersionsResponse(error_code=_UNSUPPORTED)
            raise self._failed("did not answer as a Kafka broker does") from None
        assert isinstance(response, ApiVersionsResponse)
        return response

    def _send(self, request: Message, version: int, deadline: float, answered: bool) -> None:
        correlation_id = self._next_correlation_id
        self._next_correlation_id = (correlation_id + 1) & 0x7FFF_FFFF
        self._write(encode_request(request, version, correlation_id, self._client_id), deadline)
        if answered:
            self._pending.append(_Pending(correlation_id, request.api_key, version))

    def _write(self, buffers: Sequence[Buffer], deadline: float) -> None:
        waiting = deque(memoryview(buffer) for buffer in buffers)
        try:
            while waiting:
                sock = self._ready_socket(deadline)
                sent = sock.sendmsg(list(waiting)[:_BUFFERS_PER_CALL])
                while waiting and sent >= len(waiting[0]):
                    sent -= len(waiting.popleft())
                if sent:
                    waiting[0] = waiting[0][sent:]
        except OSError as error:
            raise self._broken(error) from None

    def _read_frame(self, deadline: float) -> bytearray:
        (size,) = _LENGTH.unpack(self._read_exactly(_LENGTH.size, deadline))
        if not 4 <= size <= self._frame_bytes_max:
            raise self._failed(f"announced an answer of {size} bytes")
        # A new buffer each time: the records of a fetch are views of it.
        return self._read_exactly(size, deadline)

    def _read_exactly(self, size: int, deadline: float) -> bytearray:
        data = bytearray(size)
        missing = memoryview(data)
        try:
            while missing:
                received = self._ready_socket(deadline).recv_into(missing)
                if not received:
                    raise ConnectionResetError
                missing = missing[received:]
        except OSError as error:
            raise self._broken(error) from None
        return data

    def _ready_socket(self, deadline: float) -> socket.socket:
        """The socket, with what is left of the time as its timeout."""
        if self._socket is None:
            raise ConnectionResetError
        left = deadline - self._clock.monotonic()
        if left <= 0:
            raise TimeoutError
        self._socket.settimeout(left)
        return self._socket

    def _broken(self, error: OSError) -> ConnectionFailed:
        self.close()
        if isinstance(error, TimeoutError):
            what = "no answer in time"
            advice = "see whether the broker is healthy" if self._versions else _PERHAPS_ANOTHER
        elif isinstance(error, ConnectionError):
            what, advice = "the broker closed the connection", "its log says why"
        else:
            what, advice = error.strerror or str(error), "see whether the network works"
        return ConnectionFailed(self.address, what, advice)

    def _failed(self, what: str) -> ConnectionFailed:
        """The peer broke the protocol, which is what a server of another kind does."""
        self.close()
        return ConnectionFailed(self.address, what, _PERHAPS_ANOTHER)


def _connect_failed(address: Address, error: OSError) -> ConnectionFailed:
    if isinstance(error, socket.gaierror):
        return ConnectionFailed(address, "the host name has no address", "see whether it is right")
    if isinstance(error, ConnectionRefusedError):
        return ConnectionFailed(
            address, "nothing is listening there", "start a broker with `headrace up`"
        )
    if isinstance(error, TimeoutError):
        return ConnectionFailed(
            address, "no connection in time", "see whether a firewall is in the way"
        )
    return ConnectionFailed(
        address, error.strerror or str(error), "see whether the network and the address are right"
    )
