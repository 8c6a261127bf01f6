"""Real sockets against the server shell: order of replies, bounds, and closing."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest
import uvloop

from headrace.errors import ProtocolError
from headrace.metrics.registry import Histogram, Registry
from headrace.net.connection_limits import ConnectionLimits
from headrace.net.server import Reply, Server, ServerConnection
from headrace.testing.time_limits import Deadline, scaled
from headrace.types import Buffer

GENEROUS = ConnectionLimits(100, 100, -1)
Respond = Callable[[ServerConnection, memoryview], Reply | Awaitable[Reply]]


def frame(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


def echo(_: ServerConnection, body: memoryview) -> Reply:
    return [frame(bytes(body))]


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    size = int.from_bytes(await reader.readexactly(4), "big")
    return await reader.readexactly(size)


def serve(
    respond: Respond,
    client: Callable[[Server, int], Coroutine[Any, Any, None]],
    *,
    limits: ConnectionLimits = GENEROUS,
    in_flight_max: int = 100,
    metrics: Registry | None = None,
) -> None:
    async def run() -> None:
        server = Server(
            lambda: limits,
            frame_bytes_max=10_000_000,
            in_flight_max=in_flight_max,
            queued_bytes_max=-1,
            now=time.monotonic,
            metrics=metrics,
        )
        port = await server.listen("127.0.0.1", 0, respond)
        await server.start_serving()
        try:
            await asyncio.wait_for(client(server, port), scaled(30))
        finally:
            await server.close(1.0)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())


def test_replies_leave_in_the_order_of_their_requests() -> None:
    waiting: dict[bytes, asyncio.Future[Reply]] = {}

    def respond(_: ServerConnection, body: memoryview) -> Reply | Awaitable[Reply]:
        name = bytes(body)
        if name.startswith(b"later"):
            waiting[name] = asyncio.get_running_loop().create_future()
            return waiting[name]
        if name == b"silent":
            return None
        if name == b"go":
            # The second is ready before the first, and must wait for it all the same.
            waiting[b"later2"].set_result([frame(b"later2")])
            late: Reply = [frame(b"later1")]
            asyncio.get_running_loop().call_soon(lambda: waiting[b"later1"].set_result(late))
        return [frame(name)]

    async def client(_: Server, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        names = [b"now", b"later1", b"silent", b"later2", b"after", b"go"]
        writer.write(b"".join(frame(name) for name in names))
        got = [await read_frame(reader) for _ in range(5)]
        assert got == [b"now", b"later1", b"later2", b"after", b"go"]
        writer.close()

    serve(respond, client)


def test_a_connection_with_too_much_in_flight_is_not_read() -> None:
    waiting: list[asyncio.Future[Reply]] = []

    def respond(_: ServerConnection, body: memoryview) -> Awaitable[Reply]:
        waiting.append(asyncio.get_running_loop().create_future())
        return waiting[-1]

    async def client(_: Server, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"".join(frame(b"%d" % number) for number in range(10)))
        while len(waiting) < 3:
            await asyncio.sleep(0)
        other_reader, other = await asyncio.open_connection("127.0.0.1", port)
        other.write(frame(b"x"))
        while len(waiting) < 4:
            await asyncio.sleep(0)
        assert len(waiting) == 4, "the first connection was read past its bound"
        for number in range(11):
            while len(waiting) <= number:
                await asyncio.sleep(0)
            waiting[number].set_result([frame(b"ok")])
        assert [await read_frame(reader) for _ in range(10)] == [b"ok"] * 10
        assert await read_frame(other_reader) == b"ok"
        writer.close()
        other.close()

    serve(respond, client, in_flight_max=3)


def test_a_peer_that_does_not_read_stops_being_served_and_others_are_not_held_up() -> None:
    answered = 0
    large: Buffer = bytes(1_000_000)

    def respond(_: ServerConnection, body: memoryview) -> Reply:
        nonlocal answered
        if bytes(body) == b"small":
            return [frame(b"small")]
        answered += 1
        return [len(large).to_bytes(4, "big"), large]

    async def client(server: Server, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(frame(b"large") * 500)
        other_reader, other = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(200):
            other.write(frame(b"small"))
            assert await read_frame(other_reader) == b"small"
        assert answered < 100, "replies pile up in memory"
        for _ in range(500):
            assert len(await read_frame(reader)) == len(large)
        assert answered == 500
        writer.close()
        other.close()

    serve(respond, client)


def test_bad_frames_close_their_connection_with_one_line_and_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def respond(connection: ServerConnection, body: memoryview) -> Reply:
        if bytes(body) == b"bad":
            raise ProtocolError("nonsense")
        return echo(connection, body)

    async def client(_: Server, port: int) -> None:
        good_reader, good = await asyncio.open_connection("127.0.0.1", port)
        for poison in (frame(b"bad"), b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff"):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(poison)
            with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                await read_frame(reader)
            writer.close()
        good.write(frame(b"hello"))
        assert await read_frame(good_reader) == b"hello"
        good.close()

    with caplog.at_level(logging.INFO, "headrace"):
        serve(respond, client)
    lines = [
        record.getMessage()
        for record in caplog.records
        if "closed connection" in record.getMessage()
    ]
    assert len(lines) == 3
    assert any("nonsense" in line for line in lines)
    assert any("socket.request.max.bytes" in line for line in lines)


def test_connections_past_the_limits_are_refused_and_places_come_back() -> None:
    async def client(server: Server, port: int) -> None:
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        for reader, writer in held:
            writer.write(frame(b"x"))
            assert await read_frame(reader) == b"x"
        refused, refused_writer = await asyncio.open_connection("127.0.0.1", port)
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await read_frame(refused)
        refused_writer.close()
        held[0][1].close()
        while server.connection_count > 1:
            await asyncio.sleep(0)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(frame(b"y"))
        assert await read_frame(reader) == b"y"
        for _, held_writer in held:
            held_writer.close()
        writer.close()

    serve(echo, client, limits=ConnectionLimits(100, 2, -1))
    serve(echo, client, limits=ConnectionLimits(2, 100, -1))


def test_silent_connections_are_closed_and_waiting_ones_are_not() -> None:
    def respond(_: ServerConnection, body: memoryview) -> Reply | Awaitable[Reply]:
        if bytes(body) == b"wait":
            return asyncio.get_running_loop().create_future()
        return [frame(bytes(body))]

    async def client(server: Server, port: int) -> None:
        idle, idle_writer = await asyncio.open_connection("127.0.0.1", port)
        _, waiting = await asyncio.open_connection("127.0.0.1", port)
        waiting.write(frame(b"wait"))
        while server.connection_count < 2:
            await asyncio.sleep(0)
        while server.connection_count > 1:
            server.sweep()
            await asyncio.sleep(0.01)
        assert await idle.read() == b""
        idle_writer.close()
        for _ in range(5):
            server.sweep()
            await asyncio.sleep(0.01)
        assert server.connection_count == 1
        waiting.close()

    serve(respond, client, limits=ConnectionLimits(10, 10, 20))


def test_closing_lets_requests_under_way_finish() -> None:
    pending: list[asyncio.Future[Reply]] = []

    def respond(_: ServerConnection, body: memoryview) -> Awaitable[Reply]:
        pending.append(asyncio.get_running_loop().create_future())
        return pending[-1]

    async def client(server: Server, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(frame(b"x"))
        while not pending:
            await asyncio.sleep(0)
        closing = asyncio.create_task(server.close(20.0))
        await asyncio.sleep(0)
        pending[0].set_result([frame(b"done")])
        assert await read_frame(reader) == b"done"
        assert await reader.read() == b""
        await closing
        writer.close()

    serve(respond, client)


def metric(registry: Registry, name: str, label: str = "") -> float:
    """The value of a metric whose only label has this value."""
    for family in registry.collect():
        if family.family.name == name:
            for labels, found in family.metrics.items():
                if list(labels) == [label][: len(labels)]:
                    assert not isinstance(found, Histogram)
                    return found.value
    raise AssertionError(f"there is no {name} of {label!r}")


def test_a_muted_connection_is_not_read_and_its_replies_leave() -> None:
    handled: list[bytes] = []
    muted: list[ServerConnection] = []

    def respond(connection: ServerConnection, body: memoryview) -> Reply:
        handled.append(bytes(body))
        if bytes(body) == b"mute":
            connection.mute(3600)
            connection.mute(0.001)
            muted.append(connection)
        return [frame(bytes(body))]

    async def client(server: Server, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(frame(b"mute") + frame(b"later"))
        assert await read_frame(reader) == b"mute"
        other_reader, other = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(50):
            other.write(frame(b"other"))
            assert await read_frame(other_reader) == b"other"
        assert b"later" not in handled
        assert muted[0].is_muted
        assert not muted[0].idle
        # What is not read stays in the sockets, and the client notices that they are full.
        writer.write(bytes(64 * 1024 * 1024))
        await asyncio.sleep(0.05)
        assert writer.transport.get_write_buffer_size() > 32 * 1024 * 1024
        muted[0].unmute()
        assert await read_frame(reader) == b"later"
        writer.transport.abort()
        other.close()

    serve(respond, client)


def test_a_request_that_does_not_get_on_and_a_first_that_never_comes_end_their_connections() -> (
    None
):
    metrics = Registry()
    limits = GENEROUS._replace(first_request_ms_max=50, receive_ms_max=100)

    async def client(server: Server, port: int) -> None:
        silent, silent_writer = await asyncio.open_connection("127.0.0.1", port)
        half, half_writer = await asyncio.open_connection("127.0.0.1", port)
        half_writer.write(frame(b"whole") + (1000).to_bytes(4, "big") + b"a part")
        good, good_writer = await asyncio.open_connection("127.0.0.1", port)
        good_writer.write(frame(b"whole"))
        assert await read_frame(half) == await read_frame(good) == b"whole"
        deadline = Deadline(10)
        while server.connection_count > 1:
            server.sweep()
            # A byte now and then does not help.
            half_writer.write(b".")
            await asyncio.sleep(0.01)
            assert not deadline.has_passed
        assert await silent.read() == b""
        with contextlib.suppress(ConnectionResetError):
            assert await half.read() == b""
        good_writer.write(frame(b"again"))
        assert await read_frame(good) == b"again"
        assert metric(metrics, "headrace_connections_closed_total", "slow_request") == 2
        for connection in (silent_writer, half_writer, good_writer):
            connection.transport.abort()

    serve(echo, client, limits=limits, metrics=metrics)


def test_peers_that_do_not_read_are_bounded_all_together() -> None:
    metrics = Registry()
    large: Buffer = bytes(1_000_000)
    limits = GENEROUS._replace(unread_bytes_max=20_000_000)

    def respond(_: ServerConnection, body: memoryview) -> Reply:
        if bytes(body) == b"small":
            return [frame(b"small")]
        return [len(large).to_bytes(4, "big"), large]

    async def client(server: Server, port: int) -> None:
        held = []
        for _ in range(20):
            _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
            writer.write(frame(b"large") * 100)
            held.append(writer)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        deadline = Deadline(10)
        while metric(metrics, "headrace_connections_closed_total", "unread_responses") < 15:
            writer.write(frame(b"small"))
            assert await read_frame(reader) == b"small"
            assert metric(metrics, "headrace_unread_response_bytes") <= 26_000_000
            assert not deadline.has_passed
        assert server.connection_count <= 6
        for connection in (*held, writer):
            connection.transport.abort()

    serve(respond, client, limits=limits, metrics=metrics)
    assert metric(metrics, "headrace_unread_response_bytes") == 0


def test_replies_that_wait_for_an_earlier_one_fill_no_memory() -> None:
    waiting: list[asyncio.Future[Reply]] = []
    handled = 0

    def respond(_: ServerConnection, body: memoryview) -> Reply | Awaitable[Reply]:
        nonlocal handled
        handled += 1
        if bytes(body) == b"slow":
            waiting.append(asyncio.get_running_loop().create_future())
            return waiting[-1]
        return [frame(bytes(1_000_000))]

    async def client(server: Server, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**24)
        writer.write(frame(b"slow") + frame(b"quick") * 50)
        deadline = Deadline(10)
        while handled < 6:
            await asyncio.sleep(0)
            assert not deadline.has_passed
        for _ in range(20):
            await asyncio.sleep(0)
        assert handled == 6
        waiting[0].set_result([frame(b"at last")])
        assert await read_frame(reader) == b"at last"
        for _ in range(50):
            assert len(await read_frame(reader)) == 1_000_000
        writer.close()

    serve(respond, client)


def test_connections_above_a_limit_are_counted_and_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    metrics = Registry()

    async def client(server: Server, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(frame(b"first"))
        assert await read_frame(reader) == b"first"
        for _ in range(20):
            refused, refused_writer = await asyncio.open_connection("127.0.0.1", port)
            with contextlib.suppress(ConnectionResetError):
                assert await refused.read() == b""
            refused_writer.transport.abort()
        assert metric(metrics, "headrace_connections_refused_total", "max.connections") == 20
        writer.close()

    with caplog.at_level(logging.WARNING):
        serve(echo, client, limits=GENEROUS._replace(connections_max=1), metrics=metrics)
    assert len([r for r in caplog.records if "max.connections" in r.getMessage()]) == 1
