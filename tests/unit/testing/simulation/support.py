"""Runs of small programs on the virtual loop."""

import asyncio
from typing import Any

from headrace.testing.simulation.hosts import Host, Simulation


def run(main: Any, seed: int = 1, **options: Any) -> Any:
    """The result of `main(simulation)`; an unhandled exception fails the test."""
    simulation = Simulation(seed, **options)
    result = simulation.run(main(simulation))
    assert simulation.loop.errors == []
    return result


class Recorder(asyncio.Protocol):
    """Logs the calls of a transport."""

    def __init__(self) -> None:
        self.log: list[Any] = []
        self.data = bytearray()
        self.transport: Any = None
        self.lost: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.log.append("made")

    def data_received(self, data: bytes) -> None:
        self.data += data

    def eof_received(self) -> bool | None:
        self.log.append("eof")
        return None

    def connection_lost(self, exc: BaseException | None) -> None:
        self.log.append("lost")
        self.lost.set_result(exc)

    def pause_writing(self) -> None:
        self.log.append("pause")

    def resume_writing(self) -> None:
        self.log.append("resume")


class Buffered(asyncio.BufferedProtocol):
    """Reads through one small buffer, as the broker does."""

    def __init__(self) -> None:
        self.buffer = bytearray(100)
        self.data = bytearray()
        self.sizes: list[int] = []
        self.log: list[str] = []

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self.buffer)

    def buffer_updated(self, nbytes: int) -> None:
        self.sizes.append(nbytes)
        self.data += self.buffer[:nbytes]

    def eof_received(self) -> None:
        self.log.append("eof")

    def connection_lost(self, exc: BaseException | None) -> None:
        self.log.append("lost")


async def pair(simulation: Simulation, make: Any = Recorder) -> tuple[Any, Any, Host, Host]:
    """A connection from host c to host s: the client's protocol, the server's, c, s."""
    made: list[Any] = []
    connected: list[Any] = []

    async def serve(host: Host) -> None:
        def factory() -> Any:
            made.append(make())
            return made[-1]

        server = await asyncio.get_running_loop().create_server(factory, "0.0.0.0", 7000)
        await server.serve_forever()

    async def dial(host: Host) -> None:
        _, protocol = await asyncio.get_running_loop().create_connection(Recorder, "s", 7000)
        connected.append(protocol)
        await asyncio.Event().wait()

    s, c = simulation.host("s", serve), simulation.host("c", dial)
    s.start()
    await asyncio.sleep(0.1)
    c.start()
    await asyncio.sleep(1)
    return connected[0], made[0], c, s
