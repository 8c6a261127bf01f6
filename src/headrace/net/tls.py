"""TLS between a transport and the connection above it, without I/O of its own.

`ssl.MemoryBIO` in place of the event loop's TLS: small frames share records, half-closing works,
a connection holds no more memory than its traffic needs, and the server's handshakes can be made on
a worker thread.
"""

import asyncio
import ssl
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from contextlib import suppress
from enum import Enum, auto
from typing import Any, cast

from headrace.net.tls_failures import (
    TlsFailed,
    closed_in_handshake,
    failure_of,
    silent_in_handshake,
)
from headrace.types import Buffer

# Ciphertext is received in pieces of this size; the incoming BIO grows to it, and keeps it.
TLS_SCRATCH_BYTES = 128 * 1024
# Buffers below the size of a record are joined, so that they share records.
_RECORD_BYTES = 16 * 1024
# Plaintext that is encrypted at once; the outgoing BIO grows to it, and keeps it.
_ENCRYPTED_BYTES = 64 * 1024
# Ciphertext that may wait in the transport below.
_CIPHERTEXT_BYTES_MAX = 512 * 1024
# What OpenSSL calls bytes that are no TLS, and the alert that says so: fatal, protocol version.
_NOT_TLS = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST")
_ALERT_PROTOCOL_VERSION = b"\x15\x03\x03\x00\x02\x02\x46"
# How long a connection goes on reading after a failed handshake: closing a socket with unread bytes
# resets the connection, and the peer would not read the alert that says why.
_LINGER_SECONDS = 0.25


class _Phase(Enum):
    HANDSHAKE = auto()
    OPEN = auto()
    SHUT = auto()  # We have said that nothing more comes from us, and read no more either.
    ENDED = auto()  # It failed or is aborted; nothing is done any more.


class TlsLayer(asyncio.BufferedProtocol, asyncio.Transport):
    """The protocol of a TCP transport, and the transport of the protocol above it.

    Used on the event loop's thread, except for a server's handshake. The protocol above is
    connected when the transport is, before the handshake; what it writes meanwhile waits.
    `scratch` may be shared by all connections of the loop. `on_open` gets the SSLObject after the
    handshake, and may refuse the peer by raising TlsFailed; `on_failed` is called at most once.

    Invariant: after every call into OpenSSL the outgoing BIO is emptied into the transport.
    Invariant: while a step of the handshake is on a worker thread, nothing else touches the
    SSLObject, and the transport is not read.
    """

    def __init__(
        self,
        above: asyncio.BufferedProtocol,
        context: ssl.SSLContext,
        *,
        server_side: bool,
        hostname: str | None,
        scratch: memoryview,
        handshake_s_max: float,
        on_open: Callable[[ssl.SSLObject], None],
        on_failed: Callable[[TlsFailed], None],
        worker: Executor | None = None,
    ) -> None:
        self._above = above
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server_side, server_hostname=hostname
        )
        self._server_side = server_side
        self._hostname = hostname
        self._scratch = scratch
        self._handshake_s_max = self._handshake_s_left = handshake_s_max
        self._waiting_since = 0.0
        self._on_open = on_open
        self._on_failed = on_failed
        self._worker = worker
        self._loop = asyncio.get_running_loop()
        self._phase = _Phase.HANDSHAKE
        self._failure: TlsFailed | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._on_worker = False
        self._eof_came = False
        self._heard = False
        # Plaintext that is not encrypted yet, and how much of the first of it is.
        self._backlog: deque[Buffer] = deque()
        self._backlog_bytes = 0
        self._encrypted = 0
        self._high_water_bytes = 64 * 1024
        self._below_full = False
        self._above_paused = False
        self._above_reads = True
        self._below_reads = True
        self._read_scheduled = False
        self._closes = False
        self._ends_writing = False
        self._transport: asyncio.Transport | None = None

    # -- the transport below calls these

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclass of asyncio's, though they do the same.
        self._transport = below = cast("asyncio.Transport", transport)
        below.set_write_buffer_limits(high=_CIPHERTEXT_BYTES_MAX)
        self._above.connection_made(self)
        if self._phase is not _Phase.HANDSHAKE:
            return  # The protocol above refused the connection.
        self._await_peer()
        if not self._server_side:
            self._step()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._scratch

    def buffer_updated(self, nbytes: int) -> None:
        if self._phase in (_Phase.SHUT, _Phase.ENDED):
            return
        self._heard = True
        self._incoming.write(self._scratch[:nbytes])
        if self._phase is _Phase.HANDSHAKE:
            self._step()
        else:
            self._read()

    def eof_received(self) -> bool:
        self._eof_came = True
        if self._phase is _Phase.HANDSHAKE and not self._on_worker:
            self._fail(closed_in_handshake(server_side=self._server_side))
        # The transport closes itself once it has sent what it has.
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        failed_now = self._phase is _Phase.HANDSHAKE and self._failure is None
        self._phase = _Phase.ENDED
        self._stop_timer()
        self._backlog.clear()
        self._backlog_bytes = 0
        if failed_now:
            self._failure = closed_in_handshake(server_side=self._server_side)
            self._report(self._failure)
        self._above.connection_lost(self._failure or exc)
        self._transport = None

    def pause_writing(self) -> None:
        self._below_full = True

    def resume_writing(self) -> None:
        self._below_full = False
        self._drain()

    # -- the protocol above calls these

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "ssl_object":
            return self._tls
        return default if self._transport is None else self._transport.get_extra_info(name, default)

    def is_closing(self) -> bool:
        below = self._transport
        return self._closes or self._phase is _Phase.ENDED or below is None or below.is_closing()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if high is not None:
            self._high_water_bytes = high

    def get_write_buffer_size(self) -> int:
        below = 0 if self._transport is None else self._transport.get_write_buffer_size()
        return self._backlog_bytes + below

    def write(self, data: Buffer) -> None:
        self.writelines((data,))

    def writelines(self, list_of_data: Iterable[Buffer]) -> None:
        """Encrypt buffers and send them; they must not be changed until they are sent."""
        if self._closes or self._ends_writing or self._phase is _Phase.ENDED:
            return
        small: list[Buffer] = []
        small_bytes = 0
        for data in list_of_data:
            size = len(data)
            self._backlog_bytes += size
            if size < _RECORD_BYTES:
                small.append(data)
                small_bytes += size
                if small_bytes < _ENCRYPTED_BYTES:
                    continue
            if small:
                self._backlog.append(small[0] if len(small) == 1 else b"".join(small))
                small, small_bytes = [], 0
            if size >= _RECORD_BYTES:
                self._backlog.append(data)
        if small:
            self._backlog.append(small[0] if len(small) == 1 else b"".join(small))
        self._drain()
        if self._backlog_bytes > self._high_water_bytes and not self._above_paused:
            self._above_paused = True
            self._above.pause_writing()

    def pause_reading(self) -> None:
        self._above_reads = False
        if self._phase is _Phase.OPEN:
            self._read_below(False)

    def resume_reading(self) -> None:
        self._above_reads = True
        if self._phase is _Phase.OPEN:
            # No event of the socket comes for what is received and not yet decrypted.
            self._schedule_read()

    def write_eof(self) -> None:
        """Send the end of the stream after all written bytes; ignore later bytes of the peer."""
        self._ends_writing = True
        self._drain()

    def can_write_eof(self) -> bool:
        return True

    def close(self) -> None:
        """Close after all that is written is sent; the peer's own close is not waited for."""
        if not self._closes:
            self._closes = True
            if self._phase is _Phase.HANDSHAKE:
                self.abort()
            elif self._phase is _Phase.SHUT and self._transport is not None:
                self._transport.close()
            else:
                self._drain()

    def abort(self) -> None:
        self._closes = True
        self._phase = _Phase.ENDED
        self._stop_timer()
        if self._transport is not None:
            self._transport.abort()

    # -- the handshake

    def _step(self) -> None:
        """Take the handshake one step on, with the received bytes."""
        self._stop_timer()
        if self._worker is None:
            self._end_step(self._try_handshake())
            return
        # It takes from half a millisecond to three: the loop's other work goes on meanwhile.
        self._on_worker = True
        self._read_below(False)
        done = self._loop.run_in_executor(self._worker, self._try_handshake)
        done.add_done_callback(self._end_worker_step)

    def _try_handshake(self) -> Exception | None:
        """The error of a step of the handshake, or None if the handshake is complete."""
        try:
            self._tls.do_handshake()
        except (ssl.SSLError, ValueError) as error:
            return error
        return None

    def _end_worker_step(self, done: "asyncio.Future[Exception | None]") -> None:
        self._on_worker = False
        if self._phase is _Phase.ENDED or done.cancelled():
            return
        self._end_step(done.result())

    def _end_step(self, error: Exception | None) -> None:
        self._flush()
        if self._phase is _Phase.ENDED:
            return
        if error is None:
            self._open()
        elif isinstance(error, ssl.SSLWantReadError):
            if self._eof_came:
                self._fail(closed_in_handshake(server_side=self._server_side))
            else:
                self._await_peer()
                self._read_below(True)
        elif isinstance(error, ssl.SSLEOFError):
            self._fail(closed_in_handshake(server_side=self._server_side))
        else:
            self._fail_by(error)

    def _open(self) -> None:
        try:
            self._on_open(self._tls)
        except TlsFailed as failure:
            self._fail(failure)
            return
        self._phase = _Phase.OPEN
        self._drain()
        # The first requests may have come along with the end of the handshake.
        self._schedule_read()

    def _await_peer(self) -> None:
        """Begin to wait for the peer: only its own time counts, not that in a worker's queue."""
        self._waiting_since = self._loop.time()
        self._timer = self._loop.call_later(self._handshake_s_left, self._give_up)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._handshake_s_left -= self._loop.time() - self._waiting_since

    def _give_up(self) -> None:
        self._timer = None
        self._fail(silent_in_handshake(self._handshake_s_max, server_side=self._server_side))

    def _fail_by(self, error: Exception) -> None:
        if self._server_side and getattr(error, "reason", "") in _NOT_TLS:
            # OpenSSL says nothing to a peer that does not speak TLS; some clients know the alert.
            assert self._transport is not None
            self._transport.write(_ALERT_PROTOCOL_VERSION)
        self._fail(failure_of(error, server_side=self._server_side, hostname=self._hostname))

    def _fail(self, failure: TlsFailed) -> None:
        """End the connection; the peer reads the alert if there is one."""
        if self._phase is _Phase.ENDED or self._transport is None:
            return
        self._phase = _Phase.ENDED
        self._failure = failure
        self._stop_timer()
        self._flush()
        self._report(failure)
        below = self._transport
        if below is None or below.is_closing():
            return
        if self._server_side and not self._eof_came:
            self._loop.call_later(_LINGER_SECONDS, below.close)
            below.write_eof()
            self._read_below(True)
        else:
            below.close()

    def _report(self, failure: TlsFailed) -> None:
        # A connection that is closed without a word is that of somebody who tries the port.
        if self._heard or not self._server_side or not self._eof_came:
            self._on_failed(failure)

    # -- records

    def _schedule_read(self) -> None:
        if not self._read_scheduled:
            self._read_scheduled = True
            self._loop.call_soon(self._read_on)

    def _read_on(self) -> None:
        self._read_scheduled = False
        if self._phase is not _Phase.OPEN:
            return
        self._read()
        if self._phase is _Phase.OPEN:
            self._read_below(self._above_reads and not self._unread)

    @property
    def _unread(self) -> int:
        return self._incoming.pending or self._tls.pending()

    def _read(self) -> None:
        """Decrypt the received bytes into the buffers of the protocol above, while it reads."""
        above, incoming, tls = self._above, self._incoming, self._tls
        ended = False
        try:
            while self._above_reads and self._phase is _Phase.OPEN and not ended:
                if not incoming.pending and not tls.pending():
                    break
                buffer = cast("memoryview", above.get_buffer(-1))
                room, filled = len(buffer), 0
                try:
                    # A whole number of records at once; asking for more than there is is dear.
                    while filled < room and (incoming.pending or tls.pending()):
                        count = tls.read(room - filled, buffer[filled:] if filled else buffer)
                        if not count:
                            ended = True
                            break
                        filled += count  # type: ignore[operator]  # bytes only without a buffer
                finally:
                    if filled:
                        above.buffer_updated(filled)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            ended = True
        except ssl.SSLError as error:
            self._fail_by(error)
            return
        self._flush()
        if ended:
            # The peer writes no more. As for plain sockets, what is written is sent, and no more.
            self.close()

    def _drain(self) -> None:
        """Encrypt the written bytes, as far as the transport takes them."""
        if self._phase is not _Phase.OPEN:
            return
        try:
            self._encrypt()
        except ssl.SSLError as error:
            self._fail_by(error)
            return
        if not self._backlog and (self._closes or self._ends_writing):
            self._shut()
        elif self._above_paused and self._backlog_bytes <= self._high_water_bytes // 4:
            self._above_paused = False
            self._above.resume_writing()

    def _encrypt(self) -> None:
        write, backlog = self._tls.write, self._backlog
        while backlog and not self._below_full:
            data = backlog[0]
            start, size = self._encrypted, len(data)
            if start or size > _ENCRYPTED_BYTES:
                end = min(start + _ENCRYPTED_BYTES, size)
                piece: Buffer = memoryview(data)[start:end]
                self._encrypted = end
            else:
                end, piece = size, data
            if end == size:
                backlog.popleft()
                self._encrypted = 0
            if piece:
                write(piece)
                self._backlog_bytes -= len(piece)
            if self._outgoing.pending >= _ENCRYPTED_BYTES or not backlog:
                self._flush()

    def _shut(self) -> None:
        """Tell the peer that nothing more comes, and close the socket if that is wanted."""
        self._phase = _Phase.SHUT
        # It is said all the same if the peer has not said so yet, or wrote meanwhile.
        with suppress(ssl.SSLError):
            self._tls.unwrap()
        self._flush()
        if self._transport is None:
            return
        if self._closes:
            self._transport.close()
        else:
            self._transport.write_eof()
            self._read_below(True)

    def _flush(self) -> None:
        if self._outgoing.pending and self._transport is not None:
            self._transport.write(self._outgoing.read())

    def _read_below(self, reads: bool) -> None:
        """Have the transport read, or not."""
        below = self._transport
        if reads is self._below_reads or below is None or below.is_closing():
            return
        self._below_reads = reads
        if reads:
            below.resume_reading()
        else:
            below.pause_reading()
