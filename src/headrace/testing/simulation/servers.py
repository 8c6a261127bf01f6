"""Listening sockets of the simulated network, with the semantics of asyncio.Server."""

import asyncio
import errno
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

from headrace.testing.simulation.machines import Process
from headrace.testing.simulation.transports import SimulatedSocket, SimulatedTransport, os_error

if TYPE_CHECKING:
    from headrace.testing.simulation.loop import VirtualLoop
    from headrace.testing.simulation.network import Network


class SimulatedServer(asyncio.AbstractServer):
    """A bound address; it accepts connections once it is open."""

    def __init__(self, net: "Network", process: Process, factory: Any, port: int) -> None:
        self.net = net
        self.process = process
        self.key = (process.machine, port)
        self._factory = factory
        self._clients: dict[SimulatedTransport, None] = {}
        self._context = copy_context()
        self._serving = False
        self._closed = False
        self._waiters: list[asyncio.Future[None]] = []
        self._forever: asyncio.Future[None] | None = None

    def bind(self) -> None:
        if self.net.listeners.setdefault(self.key, self) is not self:
            raise os_error(errno.EADDRINUSE)

    def open(self) -> None:
        self._serving = True

    def accept(self, transport: SimulatedTransport) -> None:
        context = self._context.copy()
        self._clients[transport] = None
        transport.server = self
        self.net.loop.call_soon(
            lambda: transport.start(self._factory(), context, None), context=context
        )

    def detach(self, transport: SimulatedTransport | None) -> None:
        """A connection is gone."""
        if transport is not None:
            self._clients.pop(transport, None)
        if self._closed and not self._clients:
            for waiter in self._waiters:
                if not waiter.done():
                    waiter.set_result(None)

    def get_loop(self) -> "VirtualLoop":
        return self.net.loop

    def is_serving(self) -> bool:
        return self._serving and self.net.listeners.get(self.key) is self

    @property
    def sockets(self) -> tuple[SimulatedSocket, ...]:
        return () if self._closed else (SimulatedSocket((self.key[0].address, self.key[1])),)

    def close(self) -> None:
        if self.net.listeners.get(self.key) is self:
            del self.net.listeners[self.key]
        self._closed = True
        if self._forever is not None:
            self._forever.cancel()
        self.detach(None)

    def close_clients(self) -> None:
        for client in list(self._clients):
            client.close()

    def abort_clients(self) -> None:
        for client in list(self._clients):
            client.abort()

    async def start_serving(self) -> None:
        self.open()

    async def serve_forever(self) -> None:
        self.open()
        self._forever = self.net.loop.create_future()
        try:
            await self._forever
        except asyncio.CancelledError:
            self._forever = None
            self.close()
            await self.wait_closed()
            raise

    async def wait_closed(self) -> None:
        if not self._closed or self._clients:
            self._waiters.append(self.net.loop.create_future())
            await self._waiters[-1]
