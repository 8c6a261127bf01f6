"""The server: what a client is owed when the broker goes."""

import asyncio
import socket
import struct
import time
from collections.abc import Awaitable

from headrace.net.connection_limits import ConnectionLimits
from headrace.net.framing import FrameBuffers
from headrace.net.server import Reply, Server, ServerConnection
from headrace.net.tls import TlsLayer
from headrace.net.tls_contexts import ServerTls
from headrace.security.authorization import ANONYMOUS
from headrace.security.principal_mapping import PrincipalMapping
from tests.unit.net.certificates import client_file, context, keys

FRAME = struct.pack(">i", 8) + bytes(8)


def test_a_client_may_go_on_asking_until_it_has_heard_that_the_server_closes() -> None:
    async def run() -> None:
        answering: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def respond_later() -> Reply:
            await answering
            return [b"answered"]

        taken = 0

        def respond(connection: ServerConnection, frame: memoryview) -> "asyncio.Future[Reply]":
            nonlocal taken
            taken += 1
            return asyncio.ensure_future(respond_later())

        limits = ConnectionLimits(10, 10, -1)
        server = Server(
            lambda: limits,
            frame_bytes_max=100,
            in_flight_max=2,
            queued_bytes_max=1 << 20,
            now=time.monotonic,
        )
        port = await server.listen("127.0.0.1", 0, respond)
        await server.start_serving()
        loop = asyncio.get_running_loop()
        with socket.socket() as client:
            client.setblocking(False)
            await loop.sock_connect(client, ("127.0.0.1", port))
            # Two are taken; the others stay where they arrive.
            await loop.sock_sendall(client, FRAME * 1000)
            while taken < 2:
                await asyncio.sleep(0)
            closing = asyncio.create_task(server.close(5.0))
            await asyncio.sleep(0)
            answering.set_result(None)
            while not (answers := client_reads(client)):
                await asyncio.sleep(0)
            # A client that may not write any more takes the connection for lost, and does not read.
            for _ in range(3):
                await loop.sock_sendall(client, FRAME)
                await asyncio.sleep(0.005)
            assert answers == b"answered" * 2
            assert await loop.sock_recv(client, 100) == b""
        await closing

    asyncio.run(run())


def client_reads(client: socket.socket) -> bytes:
    try:
        return client.recv(100)
    except BlockingIOError:
        return b""


def test_closing_waits_for_connections_that_came_after_others_had_gone() -> None:
    def respond(connection: ServerConnection, frame: memoryview) -> Reply:
        return [b"answered"]

    async def run() -> None:
        limits = ConnectionLimits(10, 10, -1)
        server = Server(
            lambda: limits,
            frame_bytes_max=100,
            in_flight_max=2,
            queued_bytes_max=1 << 20,
            now=time.monotonic,
        )
        port = await server.listen("127.0.0.1", 0, respond)
        await server.start_serving()
        _, first = await asyncio.open_connection("127.0.0.1", port)
        while not server.connection_count:
            await asyncio.sleep(0)
        first.close()
        while server.connection_count:
            await asyncio.sleep(0)
        _, second = await asyncio.open_connection("127.0.0.1", port)
        while not server.connection_count:
            await asyncio.sleep(0)
        await server.close(5.0)
        assert server.connection_count == 0
        second.close()

    asyncio.run(run())


def test_a_client_that_leaves_with_its_request_leaves_no_coroutine_behind() -> None:
    awaited: list[str] = []

    async def inner() -> None:
        awaited.append("inner")
        await asyncio.Event().wait()

    async def outer(answer: Awaitable[None]) -> Reply:
        await answer
        return None

    async def run() -> None:
        buffers = FrameBuffers()
        connection = ServerConnection(
            lambda connection, frame: outer(inner()),
            scratch=memoryview(bytearray(100)),
            buffers=buffers,
            frame_bytes_max=100,
            in_flight_max=2,
            now=time.monotonic,
            on_open=lambda connection: True,
            on_close=lambda connection: None,
        )
        connection.get_buffer(-1)[: len(FRAME)] = FRAME
        connection.buffer_updated(len(FRAME))
        assert not connection.idle
        connection.connection_lost(None)
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        assert len(tasks) == 1
        await asyncio.wait(tasks)
        assert all(task.cancelled() for task in tasks)

    asyncio.run(run())
    assert awaited == ["inner"]


def test_a_plain_listener_has_no_layer_and_no_threads_for_tls() -> None:
    async def run() -> None:
        accepted: list[ServerConnection] = []

        def respond(connection: ServerConnection, frame: memoryview) -> Reply:
            accepted.append(connection)
            return [b"answered"]

        server = Server(
            lambda: ConnectionLimits(10, 10, -1),
            frame_bytes_max=100,
            in_flight_max=2,
            queued_bytes_max=1 << 20,
            now=time.monotonic,
        )
        port = await server.listen("127.0.0.1", 0, respond)
        await server.start_serving()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(FRAME)
        assert await reader.read(8) == b"answered"
        [connection] = accepted
        assert not isinstance(connection.transport, TlsLayer)
        assert connection.transport is not None
        assert connection.transport.get_protocol() is connection
        assert server._handshakes is None
        assert (connection.principal, connection.authenticated) == (ANONYMOUS, True)
        writer.close()
        await server.close(5.0)

    asyncio.run(run())


def test_a_listener_with_tls_gives_its_connections_their_principals() -> None:
    async def run() -> None:
        principals: list[str] = []

        def respond(connection: ServerConnection, frame: memoryview) -> Reply:
            principals.append(str(connection.principal))
            return [b"answered"]

        server = Server(
            lambda: ConnectionLimits(10, 10, -1),
            frame_bytes_max=100,
            in_flight_max=2,
            queued_bytes_max=1 << 20,
            now=time.monotonic,
        )
        mapping = PrincipalMapping("DEFAULT")
        tls = ServerTls(context(True, client_auth="requested"), mapping.principal_of)
        port = await server.listen("127.0.0.1", 0, respond, tls=tls)
        await server.start_serving()
        for identity in (keys(client_file()), None):
            ssl_context = context(False, identity=identity).current
            reader, writer = await asyncio.open_connection("localhost", port, ssl=ssl_context)
            writer.write(FRAME)
            assert await reader.read(8) == b"answered"
            writer.close()
        assert principals == ["User:CN=alice", "User:ANONYMOUS"]
        await server.close(5.0)

    asyncio.run(run())
