"""The TLS layer between a transport and a connection: its bytes, limits and ends."""

import asyncio
import ssl
from collections.abc import Callable
from typing import Any, cast

import pytest

from headrace.net.tls import TLS_SCRATCH_BYTES, TlsLayer
from headrace.net.tls_failures import TlsFailed
from headrace.types import Buffer
from tests.unit.net.certificates import client_file, context, keys

MIB = 1_048_576
RECORD_HEADER_BYTES = 5


class FakeTransport:
    """A socket that takes everything, and is full while the test does not read from it."""

    def __init__(self) -> None:
        self.sent = bytearray()
        self.most_bytes = 0
        self.high = 0
        self.protocol: Any = None
        self.full = False
        self.reads = True
        self.closing = False
        self.aborted = False
        self.ended_writing = False

    def set_write_buffer_limits(self, high: int) -> None:
        self.high = high

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def get_write_buffer_size(self) -> int:
        return len(self.sent)

    def write(self, data: Buffer) -> None:
        assert not self.ended_writing
        self.sent += data
        self.most_bytes = max(self.most_bytes, len(self.sent))
        if len(self.sent) > self.high and not self.full:
            self.full = True
            self.protocol.pause_writing()

    def take(self) -> bytes:
        """What was sent since the last call; there is room again."""
        taken = bytes(self.sent)
        self.sent.clear()
        if self.full:
            self.full = False
            self.protocol.resume_writing()
        return taken

    def pause_reading(self) -> None:
        assert self.reads
        self.reads = False

    def resume_reading(self) -> None:
        assert not self.reads
        self.reads = True

    def is_closing(self) -> bool:
        return self.closing

    def write_eof(self) -> None:
        self.ended_writing = True

    def close(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.closing = self.aborted = True


class Above(asyncio.BufferedProtocol):
    """The protocol above: it keeps what comes."""

    def __init__(self, room: int = 64 * 1024) -> None:
        self.received = bytearray()
        self.lost: list[Exception | None] = []
        self.paused = False
        self.transport: Any = None
        self._buffer = memoryview(bytearray(room))
        self.on_received: Callable[[], None] = lambda: None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.transport.set_write_buffer_limits(high=4 * MIB)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.append(exc)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.received += self._buffer[:nbytes]
        self.on_received()

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False


class Peers:
    """A server's layer, and a client of the ssl module at the other end."""

    def __init__(self, *, room: int = 64 * 1024, handshake_s_max: float = 100.0, **client: Any):
        self.failures: list[TlsFailed] = []
        self.below, self.above = FakeTransport(), Above(room)
        scratch = memoryview(bytearray(TLS_SCRATCH_BYTES))
        self.layer = TlsLayer(
            self.above,
            context(True, client_auth="requested").current,
            server_side=True,
            hostname=None,
            scratch=scratch,
            handshake_s_max=handshake_s_max,
            on_open=lambda session: None,
            on_failed=self.failures.append,
        )
        self.below.protocol = self.layer
        self.layer.connection_made(cast("Any", self.below))
        self.to_client, self.from_client = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.client = context(False, **client).current.wrap_bio(
            self.to_client, self.from_client, server_hostname="localhost"
        )

    def feed(self, data: bytes, step: int | None = None) -> None:
        """Have the layer receive bytes, in pieces of a size."""
        step = step or TLS_SCRATCH_BYTES
        for start in range(0, len(data), step):
            piece = data[start : start + step]
            self.layer.get_buffer(-1)[: len(piece)] = piece
            self.layer.buffer_updated(len(piece))

    async def shake(self, step: int | None = None) -> None:
        """Make the handshake."""
        while True:
            try:
                self.client.do_handshake()
                done = True
            except ssl.SSLWantReadError:
                done = False
            self.feed(self.from_client.read(), step)
            self.to_client.write(self.below.take())
            if done:
                break
        await settle()

    def client_says(self, data: bytes, step: int | None = None) -> None:
        self.client.write(data)
        self.feed(self.from_client.read(), step)

    def client_hears(self) -> bytes:
        """All that the layer has sent by now, decrypted."""
        heard = bytearray()
        while True:
            self.to_client.write(self.below.take())
            try:
                while data := self.client.read(MIB):
                    heard += data
                return bytes(heard)
            except ssl.SSLWantReadError:
                if not self.below.sent:
                    return bytes(heard)


async def settle() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


def run(test: Callable[[], Any]) -> None:
    asyncio.run(test())


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
@pytest.mark.parametrize("step", [1, 7, None])
def test_input_may_be_cut_at_every_byte(version: str, step: int | None) -> None:
    async def test() -> None:
        peers = Peers(versions=(version,), identity=keys(client_file()))
        await peers.shake(step)
        assert peers.client.version() == version
        for message in (b"a", bytes(20_000), b"end"):
            peers.client_says(message, step)
        assert bytes(peers.above.received) == b"a" + bytes(20_000) + b"end"
        peers.layer.writelines([b"answer", memoryview(bytes(100_000))])
        assert peers.client_hears() == b"answer" + bytes(100_000)
        assert not peers.failures

    run(test)


GARBAGE = [
    bytes(100),
    b"GET / HTTP/1.1\r\n\r\n",
    b"\x16\x03\x01\x40\x00" + bytes(16384),
    b"\xff" * 70,
]


@pytest.mark.parametrize("garbage", GARBAGE)
@pytest.mark.parametrize("step", [1, None])
def test_garbage_in_the_handshake_ends_the_connection_once(
    garbage: bytes, step: int | None
) -> None:
    async def test() -> None:
        peers = Peers()
        peers.feed(garbage, step)
        peers.feed(garbage, step)  # What comes afterwards is ignored.
        assert len(peers.failures) == 1
        assert peers.below.closing or peers.below.ended_writing
        peers.layer.connection_lost(None)
        assert peers.above.lost == peers.failures
        assert not peers.above.received

    run(test)


def test_a_client_without_tls_gets_an_alert() -> None:
    async def test() -> None:
        peers = Peers()
        peers.feed(bytes([0, 0, 0, 20, 0, 18, 0, 4]) + bytes(16))
        assert peers.below.take() == b"\x15\x03\x03\x00\x02\x02\x46"
        assert "does not speak TLS" in str(peers.failures)

    run(test)


def test_garbage_after_the_handshake_ends_the_connection() -> None:
    async def test() -> None:
        peers = Peers()
        await peers.shake()
        peers.feed(b"\x17\x03\x03\x00\x20" + bytes(32))
        assert len(peers.failures) == 1
        peers.layer.connection_lost(None)
        assert peers.above.lost == peers.failures

    run(test)


def test_small_buffers_share_records() -> None:
    async def test() -> None:
        peers = Peers()
        await peers.shake()
        peers.below.take()
        peers.layer.writelines([bytes(1024)] * 32)
        assert records_in(peers.below.take()) == 2

    run(test)


def records_in(data: bytes) -> int:
    count = start = 0
    while start < len(data):
        start += RECORD_HEADER_BYTES + int.from_bytes(data[start + 3 : start + 5], "big")
        count += 1
    return count


def test_a_peer_that_stops_reading_amid_50_mb_holds_little_memory() -> None:
    async def test() -> None:
        peers = Peers()
        await peers.shake()
        heard = peers.client_hears()
        data = memoryview(bytes(50 * MIB))
        peers.layer.writelines([data])
        assert peers.above.paused
        # Ciphertext beyond what the socket takes is not made.
        assert peers.below.most_bytes < 512 * 1024 + 2 * 64 * 1024 + 4096
        assert peers.layer.get_write_buffer_size() > 49 * MIB
        while peers.below.sent:
            heard += peers.client_hears()
        assert len(heard) == 50 * MIB
        assert not peers.above.paused
        assert peers.layer.get_write_buffer_size() == 0

    run(test)


def test_records_that_came_while_the_connection_did_not_read_are_read_later() -> None:
    async def test() -> None:
        peers = Peers(room=16 * 1024)
        await peers.shake()
        peers.above.on_received = lambda: peers.layer.pause_reading()
        peers.client_says(bytes(100_000))
        assert len(peers.above.received) == 16 * 1024
        assert not peers.below.reads
        peers.above.on_received = lambda: None
        peers.layer.resume_reading()
        await settle()
        assert len(peers.above.received) == 100_000
        assert peers.below.reads

    run(test)


def test_a_connection_that_ends_writing_sends_all_and_ignores_what_comes() -> None:
    async def test() -> None:
        peers = Peers()
        await peers.shake()
        peers.layer.writelines([bytes(3 * MIB)])
        peers.layer.write_eof()
        assert not peers.below.ended_writing
        heard = bytearray()
        while peers.below.sent:
            heard += peers.client_hears()
        assert len(heard) == 3 * MIB
        assert peers.below.ended_writing
        assert peers.client.read(1) == b""
        peers.client.write(b"more")
        peers.feed(peers.from_client.read())
        assert not peers.above.received
        peers.layer.close()
        assert peers.below.closing
        assert not peers.failures

    run(test)


def test_closing_sends_what_is_written_first() -> None:
    async def test() -> None:
        peers = Peers()
        await peers.shake()
        peers.layer.writelines([bytes(2 * MIB)])
        peers.layer.close()
        assert peers.layer.is_closing()
        assert not peers.below.closing
        peers.layer.writelines([b"too late"])
        heard = bytearray()
        while peers.below.sent:
            heard += peers.client_hears()
        assert len(heard) == 2 * MIB
        assert peers.below.closing

    run(test)


def test_a_peer_that_says_goodbye_is_closed() -> None:
    async def test() -> None:
        peers = Peers()
        await peers.shake()
        with pytest.raises(ssl.SSLWantReadError):
            peers.client.unwrap()
        peers.feed(peers.from_client.read())
        assert peers.below.closing
        assert not peers.failures

    run(test)


def test_a_peer_that_is_silent_in_the_handshake_is_closed() -> None:
    async def test() -> None:
        peers = Peers(handshake_s_max=0.01)
        with pytest.raises(ssl.SSLWantReadError):
            peers.client.do_handshake()
        hello = peers.from_client.read()
        peers.feed(hello[:20])
        while not peers.failures:
            await asyncio.sleep(0.001)
        assert "was silent in the handshake for 0.01 s" in str(peers.failures[0])
        peers.layer.connection_lost(None)
        assert peers.above.lost == peers.failures

    run(test)


def test_a_connection_without_a_word_is_no_failure() -> None:
    async def test() -> None:
        peers = Peers()
        peers.layer.eof_received()
        peers.layer.connection_lost(None)
        assert not peers.failures
        assert len(peers.above.lost) == 1

    run(test)


def test_a_refused_connection_makes_no_handshake() -> None:
    class Refusing(Above):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            cast("asyncio.Transport", transport).abort()

    async def test() -> None:
        below, above = FakeTransport(), Refusing()
        layer = TlsLayer(
            above,
            context(False).current,
            server_side=False,
            hostname="localhost",
            scratch=memoryview(bytearray(TLS_SCRATCH_BYTES)),
            handshake_s_max=1.0,
            on_open=lambda session: None,
            on_failed=lambda failure: None,
        )
        layer.connection_made(cast("Any", below))
        assert below.aborted
        assert not below.sent

    run(test)
