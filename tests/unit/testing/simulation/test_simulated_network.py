"""The simulated network behaves as TCP does, also where it is cut, slow or reset."""

import asyncio
import errno
import random
import socket
from typing import Any

import pytest

from headrace.testing.simulation.hosts import Simulation
from tests.unit.testing.simulation.support import Buffered, Recorder, pair, run


@pytest.mark.parametrize("make", [Recorder, Buffered])
@pytest.mark.parametrize("seed", range(3))
def test_streams_are_in_order_and_in_pieces(make: Any, seed: int) -> None:
    async def main(simulation: Simulation) -> None:
        client, server, _, _ = await pair(simulation, make)
        assert client.transport.get_extra_info("peername") == ("10.0.0.2", 7000)
        peer = server.transport.get_extra_info("peername")
        assert peer == client.transport.get_extra_info("sockname")
        client.transport.get_extra_info("socket").setsockopt(6, 1, 1)
        blob = random.Random(seed).randbytes(100_000)
        for i in range(0, len(blob), 1000):
            client.transport.write(blob[i : i + 1000])
            if i % 7000 == 0:
                await asyncio.sleep(0.001)
        client.transport.writelines([b"a", bytearray(b"b"), memoryview(b"c")])
        client.transport.close()
        await asyncio.sleep(60)
        assert server.data == blob + b"abc"
        assert server.log[-2:] == ["eof", "lost"] and client.log[-1] == "lost"
        if make is Buffered:
            assert max(server.sizes) == 100 and len(set(server.sizes)) > 1

    run(main, seed)


def test_writer_is_held_back_while_nobody_reads() -> None:
    async def main(simulation: Simulation) -> None:
        simulation.network.windows = (65_536,) * 3
        client, server, _, _ = await pair(simulation)
        server.transport.pause_reading()
        client.transport.write(bytes(200_000))
        assert client.log == ["made", "pause"]
        await asyncio.sleep(5)
        assert client.transport.get_write_buffer_size() == 200_000 - 65_536
        assert len(server.data) == 0
        server.transport.resume_reading()
        await asyncio.sleep(5)
        assert client.log == ["made", "pause", "resume"] and len(server.data) == 200_000

    run(main)


def test_half_close_and_abort() -> None:
    async def main(simulation: Simulation) -> None:
        client, server, _, _ = await pair(simulation)
        server.eof_received = lambda: True
        client.transport.write(b"question")
        client.transport.write_eof()
        with pytest.raises(RuntimeError):
            client.transport.write(b"more")
        await asyncio.sleep(1)
        assert server.data == b"question" and not server.transport.is_closing()
        server.transport.write(b"answer")
        await asyncio.sleep(1)
        assert client.data == b"answer"
        server.transport.abort()  # Nothing is unread: the kernel says FIN, not RST.
        assert await client.lost is None and await server.lost is None

    run(main)


def test_writing_to_a_closed_connection_breaks_it_the_second_time() -> None:
    async def main(simulation: Simulation) -> None:
        client, server, _, _ = await pair(simulation)
        server.transport.pause_reading()  # So it does not notice the FIN.
        client.transport.close()
        await asyncio.sleep(1)
        server.transport.write(b"accepted")
        assert not server.transport.is_closing()
        await asyncio.sleep(1)
        server.transport.write(b"meets the RST")
        assert isinstance(await server.lost, BrokenPipeError)

    run(main)


def test_closing_with_unread_data_resets() -> None:
    async def main(simulation: Simulation) -> None:
        client, server, _, _ = await pair(simulation)
        server.transport.pause_reading()
        client.transport.write(b"never read")
        await asyncio.sleep(1)
        server.transport.close()
        assert isinstance(await client.lost, ConnectionResetError)

    run(main)


def test_connecting_is_refused_times_out_or_finds_no_host() -> None:
    async def main(simulation: Simulation) -> None:
        s = simulation.host("s", lambda host: asyncio.sleep(1e9))
        s.start()
        await asyncio.sleep(0.1)
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("s", 1)
        with pytest.raises(socket.gaierror):
            await asyncio.open_connection("nowhere", 1)
        s.crash()  # Without power nobody refuses.
        start = simulation.now
        with pytest.raises(TimeoutError):
            await asyncio.open_connection("s", 1)
        assert 9.9 < simulation.now - start < 10.5
        server = await asyncio.start_server(lambda r, w: None, port=5)
        with pytest.raises(OSError, match="EADDRINUSE"):
            await asyncio.start_server(lambda r, w: None, port=5)
        server.close()

    run(main)


def test_bound_server_refuses_until_it_serves() -> None:
    async def main(simulation: Simulation) -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(Recorder, None, 9, start_serving=False)
        assert server.sockets[0].getsockname()[1] == 9
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("driver", 9)
        await server.start_serving()
        _, writer = await asyncio.open_connection("driver", 9)
        server.close()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(server.wait_closed(), 5)  # A client is still there.
        writer.close()
        await asyncio.wait_for(server.wait_closed(), 5)

    run(main)


def test_cut_connection_goes_on_when_healed_or_times_out() -> None:
    async def main(simulation: Simulation) -> None:
        client, server, c, s = await pair(simulation)
        heal = simulation.network.cut([c], [s])
        client.transport.write(b"x")
        await asyncio.sleep(5)
        assert server.data == b""
        heal()
        heal()
        await asyncio.sleep(10)
        assert server.data == b"x" and client.log == ["made"]
        heal = simulation.network.cut([c], [s])
        client.transport.write(b"y")
        error = await client.lost
        assert isinstance(error, TimeoutError) and error.errno == errno.ETIMEDOUT
        assert server.log == ["made"]  # Half open: the other end cannot know.
        heal()
        server.transport.write(b"z")
        assert isinstance(await server.lost, ConnectionResetError)
        assert server.data == b"x"

    run(main)


def test_one_way_cut_lets_data_through_and_no_acknowledgement() -> None:
    async def main(simulation: Simulation) -> None:
        client, server, c, s = await pair(simulation)
        heal = simulation.network.cut([s], [c], one_way=True)
        client.transport.write(b"x")
        await asyncio.sleep(1)
        assert server.data == b"x"
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(client.lost), 10)
        assert isinstance(await client.lost, TimeoutError)
        heal()

    run(main)


def test_clogged_slow_and_reset_links() -> None:
    async def main(simulation: Simulation) -> None:
        client, server, c, s = await pair(simulation)
        simulation.network.clog(c, s, 3)
        client.transport.write(b"x")
        await asyncio.sleep(2.9)
        assert server.data == b""
        await asyncio.sleep(0.5)
        assert server.data == b"x"
        simulation.network.degrade(c, s, bandwidth=1000)
        client.transport.write(bytes(2000))
        await asyncio.sleep(1)
        assert len(server.data) < 1100
        await asyncio.sleep(2)
        assert len(server.data) == 2001
        assert simulation.network.reset(c) and not simulation.network.reset(c)
        assert isinstance(await client.lost, ConnectionResetError)
        assert isinstance(await server.lost, ConnectionResetError)

    run(main)


def test_keepalive_notices_a_peer_without_power() -> None:
    async def main(simulation: Simulation) -> None:
        client, _, _, s = await pair(simulation)
        sock = client.transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        await asyncio.sleep(100)
        assert client.log == ["made"]
        s.crash()
        await asyncio.sleep(31)
        assert isinstance(await client.lost, TimeoutError)

    run(main)


def test_protocol_that_raises_loses_its_connection() -> None:
    class Bad(Recorder):
        def data_received(self, data: bytes) -> None:
            raise ValueError("bad protocol")

    async def main() -> None:
        client, server, _, _ = await pair(simulation, Bad)
        client.transport.write(b"x")
        assert await client.lost is None
        assert isinstance(await server.lost, ValueError)

    simulation = Simulation(1)
    simulation.run(main())
    assert "bad protocol" in simulation.loop.errors[0]
