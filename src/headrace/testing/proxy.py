"""A TCP proxy in front of a broker, which can be slow or not there at all."""

import asyncio
import socket

from headrace.client.transport.thread import LoopThread
from headrace.net.addresses import Address
from headrace.testing.acceptor import Acceptor
from headrace.testing.ports import HOST, hold_port, listen
from headrace.testing.ways import Conditions, Way


class Proxy:
    """Listens on a port of its own and passes every connection on to `target`.

    It works on a thread of its own; its methods are for other threads and return when what they do
    is done.
    """

    def __init__(self, target: Address, port: int = 0) -> None:
        # Nobody else is to get the port while connections to it are refused.
        self._held_port = None if port else hold_port()
        self.address = Address(HOST, self._held_port.number if self._held_port else port)
        listener = listen(self.address.port)
        self.target = target
        self._acceptor: Acceptor | None = None
        self._requests = Way()
        self._answers = Way()
        self._thread = LoopThread("headrace-proxy")
        self._thread.run(self._open(listener))

    def slow(self, conditions: Conditions) -> None:
        """Make connections slow, those that are open and those to come.

        The rate holds for each direction, the latency for answers alone: once for a round trip.
        """
        self._thread.run(self._set(conditions))

    def cut(self) -> None:
        """Drop every connection, and refuse new ones."""
        self._thread.run(self._close())

    def heal(self) -> None:
        """Take connections again, at full speed."""
        self._thread.run(self._set(Conditions()))
        if self._acceptor is None:
            self._thread.run(self._open(listen(self.address.port)))

    def close(self) -> None:
        """Drop everything and end the thread."""
        if not self._thread.is_closed:
            self._thread.run(self._close())
            self._thread.close()
        if self._held_port is not None:
            self._held_port.release()

    async def _set(self, conditions: Conditions) -> None:
        self._requests.set(Conditions(bytes_per_s=conditions.bytes_per_s))
        self._answers.set(conditions)

    async def _open(self, listener: socket.socket) -> None:
        self._acceptor = Acceptor(listener, self._link)

    async def _close(self) -> None:
        if self._acceptor is not None:
            await self._acceptor.close()
            self._acceptor = None

    async def _link(self, client: socket.socket) -> None:
        await join(client, self.target, self._requests, self._answers)


async def join(
    client: socket.socket, target: Address, requests: Way, answers: Way, first: bytes = b""
) -> None:
    """Connect a client with a broker until both have ended or either is lost.

    `first` is what the client has sent already.
    """
    loop = asyncio.get_running_loop()
    with socket.socket() as broker:
        for sock in (client, broker):
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            await loop.sock_connect(broker, target)
            async with asyncio.TaskGroup() as group:
                group.create_task(requests.carry(client, broker, first))
                group.create_task(answers.carry(broker, client))
        except* OSError:
            # The broker is away, or one side broke off: closing both tells the other.
            pass
