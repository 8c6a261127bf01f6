"""The HTTP server of an admin listener, by sockets on loopback."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeAlias

import pytest

from headrace.errors import StorageError
from headrace.net.http_server import (
    Handle,
    HttpLimits,
    HttpRequest,
    HttpResponse,
    HttpServer,
    text_response,
)
from headrace.testing.time_limits import scaled

GET = b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n"

opened: "list[Peer]" = []

Talk: TypeAlias = Callable[[HttpServer, int], Awaitable[None]]


async def echo(request: HttpRequest) -> HttpResponse:
    return text_response(200, f"{request.method} {request.path} {request.headers.get('accept')}\n")


def serve(talk: Talk, handle: Handle = echo, limits: HttpLimits | None = None) -> None:
    """Run a server and talk to it."""

    async def main() -> None:
        server = HttpServer(handle, limits)
        port = await server.listen("127.0.0.1", 0)
        try:
            async with asyncio.timeout(scaled(20)):
                await talk(server, port)
        finally:
            while opened:
                opened.pop().writer.close()
            await server.close()

    asyncio.run(main())


class Peer:
    """A connection to the server, which `serve` closes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        opened.append(self)

    @classmethod
    async def connect(cls, port: int) -> "Peer":
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def ask(self, request: bytes) -> tuple[int, bytes]:
        """Send a request and read its response, whose length is known."""
        self.writer.write(request)
        head = await self.reader.readuntil(b"\r\n\r\n")
        headers = dict(
            line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:] if b": " in line
        )
        body = await self.reader.readexactly(int(headers.get(b"content-length", b"0")))
        return int(head.split()[1]), body

    async def rest(self) -> bytes:
        """All that comes until the server closes the connection."""
        try:
            return await self.reader.read()
        except ConnectionError:
            return b""


def test_requests_of_one_connection_are_answered_in_order() -> None:
    async def talk(server: HttpServer, port: int) -> None:
        peer = await Peer.connect(port)
        accept = b"GET /a%20b?x=1 HTTP/1.1\r\nHost: here\r\nAccept: text/plain\r\n\r\n"
        assert await peer.ask(accept) == (200, b"GET /a b text/plain\n")
        peer.writer.write(GET + GET)
        for _ in range(2):
            assert await peer.ask(b"") == (200, b"GET /metrics None\n")
        assert server.connection_count == 1

    serve(talk)


def test_head_has_no_body() -> None:
    async def talk(_: HttpServer, port: int) -> None:
        peer = await Peer.connect(port)
        peer.writer.write(b"HEAD / HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n")
        said = await peer.rest()
        assert b"Content-Length: 12\r\n" in said
        assert said.endswith(b"\r\n\r\n")

    serve(talk)


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"POST / HTTP/1.1\r\nHost: here\r\nContent-Length: 0\r\n\r\n", b"405"),
        (b"nonsense\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nHost: here\r\nX: " + bytes(60_000), b"431"),
        (b"GET / HTTP/1.1\r\nHost: here\r\nX: " + b"y" * 60_000 + b"\r\n\r\n", b"431"),
        (
            b"GET / HTTP/1.1\r\nHost: here\r\nContent-Length: 200000\r\n\r\n" + b"x" * 200_000,
            b"413",
        ),
        (b"GET http://[ HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n", b"400"),
    ],
)
def test_what_is_no_request_is_refused(request_bytes: bytes, status: bytes) -> None:
    async def talk(_: HttpServer, port: int) -> None:
        peer = await Peer.connect(port)
        peer.writer.write(request_bytes)
        peer.writer.write_eof()
        said = await peer.rest()
        assert said.split(b" ")[1:2] == [status]

    serve(talk)


def test_a_body_in_parts_is_made_as_the_peer_reads_it() -> None:
    made = 0

    async def parts() -> AsyncIterator[bytes]:
        nonlocal made
        for _ in range(400):
            made += 1
            yield bytes(64 * 1024)
            await asyncio.sleep(0)

    async def handle(_: HttpRequest) -> HttpResponse:
        return HttpResponse(200, parts())

    async def talk(_: HttpServer, port: int) -> None:
        peer = await Peer.connect(port)
        peer.writer.write(b"GET / HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n")
        await peer.reader.readuntil(b"\r\n\r\n")
        before = -1
        while made > before:  # Until the sockets are full.
            before = made
            await asyncio.sleep(0.05)
        assert made < 300
        body = await peer.rest()
        assert made == 400
        assert len(body) > 400 * 64 * 1024
        assert body.endswith(b"\r\n0\r\n\r\n")

    serve(talk, handle)


@pytest.mark.parametrize("begun", [b"", b"GET / HT", GET], ids=["silent", "slow", "unread"])
def test_no_peer_keeps_a_connection_for_ever(begun: bytes) -> None:
    async def parts() -> AsyncIterator[bytes]:
        while True:
            yield bytes(64 * 1024)

    async def handle(_: HttpRequest) -> HttpResponse:
        return HttpResponse(200, parts())

    async def talk(server: HttpServer, port: int) -> None:
        peer = await Peer.connect(port)
        peer.writer.write(begun)
        while server.connection_count == 0:
            await asyncio.sleep(0.01)
        while server.connection_count:
            await asyncio.sleep(0.01)

    serve(talk, handle, HttpLimits(4, 0.05, 0.05, 0.05))


def test_the_connection_that_is_silent_for_longest_makes_room() -> None:
    async def talk(server: HttpServer, port: int) -> None:
        silent = [await Peer.connect(port) for _ in range(4)]
        assert (await silent[0].ask(GET))[0] == 200  # It has spoken last.
        newcomer = await Peer.connect(port)
        assert (await newcomer.ask(GET))[0] == 200
        assert await silent[1].rest() == b""
        assert (await silent[0].ask(GET))[0] == 200
        assert server.connection_count == 4

    serve(talk, limits=HttpLimits(connections_max=4))


def test_an_operating_error_is_an_answer() -> None:
    async def handle(_: HttpRequest) -> HttpResponse:
        raise StorageError("no such disk")

    async def talk(_: HttpServer, port: int) -> None:
        status, body = await (await Peer.connect(port)).ask(GET)
        assert (status, b"disk" in body) == (500, False)

    serve(talk, handle)


def test_a_bug_is_reported() -> None:
    bugs: list[object] = []

    async def handle(_: HttpRequest) -> HttpResponse:
        raise AssertionError("planted")

    async def talk(_: HttpServer, port: int) -> None:
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: bugs.append(context["exception"])
        )
        assert (await (await Peer.connect(port)).ask(GET))[0] == 500

    serve(talk, handle)
    assert list(map(str, bugs)) == ["planted"]


def test_closing_waits_a_moment_for_answers() -> None:
    begun = asyncio.Event()

    async def handle(request: HttpRequest) -> HttpResponse:
        begun.set()
        await asyncio.sleep(0.05)
        return await echo(request)

    async def talk(server: HttpServer, port: int) -> None:
        peer = await Peer.connect(port)
        asked = asyncio.ensure_future(peer.ask(GET))
        await begun.wait()
        await server.close()
        assert (await asked)[0] == 200

    serve(talk, handle)
