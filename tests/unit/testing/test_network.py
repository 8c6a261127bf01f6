"""A connection is closed whenever taking connections ends: before it is taken, served or begun."""

import asyncio
import gc
import socket
from contextlib import suppress

import pytest

from headrace.testing.network import Acceptor
from headrace.testing.ports import listen_on_unused_port
from headrace.testing.time_limits import scaled


@pytest.mark.parametrize("turns", range(4))
def test_no_connection_is_left_open(turns: int) -> None:
    async def wait(client: socket.socket) -> None:
        await asyncio.get_running_loop().sock_recv(client, 1)

    async def take_for_a_while(listener: socket.socket) -> None:
        acceptor = Acceptor(listener, wait)
        for _ in range(turns):
            await asyncio.sleep(0)
        await acceptor.close()

    listener = listen_on_unused_port()
    with socket.create_connection(listener.getsockname(), timeout=scaled(10)) as client:
        asyncio.run(take_for_a_while(listener))
        gc.collect()
        # One that was not taken yet is reset.
        with suppress(ConnectionResetError):
            assert client.recv(1) == b""


def test_connections_are_served_and_then_closed() -> None:
    async def greet(client: socket.socket) -> None:
        await asyncio.get_running_loop().sock_sendall(client, b"hello")

    async def run() -> bytes:
        listener = listen_on_unused_port()
        acceptor = Acceptor(listener, greet)
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        greeting = await reader.read()
        writer.close()
        await writer.wait_closed()
        await acceptor.close()
        return greeting

    assert asyncio.run(run()) == b"hello"
