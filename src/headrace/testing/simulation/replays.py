"""Requests that arrive twice, and late: duplication and reordering, as TCP lets them happen.

Inside one connection bytes are neither doubled nor swapped. But a request may be sent again over
another connection, and what a dead or cut-off process had sent may arrive after what others sent
since. So whole requests are kept, and some are delivered once more, a while later, by the test.
"""

import asyncio
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from random import Random

from headrace.protocol.apis import APIS, Api
from headrace.testing.simulation.hosts import Simulation
from headrace.testing.simulation.machines import Machine
from headrace.testing.simulation.transports import SimulatedTransport

_KEPT = 50  # Of each API: most requests are fetches, and would drive the others out.
_AGE_S_MAX = 5.0
_LINGER_S = 1.0
_SIZE_BYTES = 4
_ENDS = (Api.END_TXN, Api.WRITE_TXN_MARKERS)
_VERSION_WITH_BUMP = 2


@dataclass(frozen=True, slots=True)
class Request:
    """A whole frame that a machine sent to another."""

    source: Machine
    target: Machine
    port: int
    frame: bytes
    sent_at: float

    @property
    def api_key(self) -> int:
        return int.from_bytes(self.frame[_SIZE_BYTES : _SIZE_BYTES + 2], "big")

    @property
    def api(self) -> str:
        return APIS[self.api_key].name


class Replays:
    """Keeps requests that were sent lately, and delivers one again when asked to."""

    def __init__(self, simulation: Simulation, rng: Random, transaction_version: int) -> None:
        """Of clients that speak `transaction_version` 1 no end of a transaction comes again.

        Nobody can tell that it is not of the next one, since the epoch is the same (KIP-890).
        """
        self._left_out = _ENDS if transaction_version < _VERSION_WITH_BUMP else ()
        self._simulation = simulation
        self._rng = rng
        self._partial: dict[SimulatedTransport, bytearray] = {}
        self._kept: dict[int, deque[Request]] = {}
        simulation.network.on_write = self._wrote

    async def replay(self) -> None:
        """Deliver one request again: one of the recent ones of an API, chosen at random."""
        network, now = self._simulation.network, self._simulation.now
        recent = {
            api_key: found
            for api_key, kept in self._kept.items()
            if api_key not in self._left_out
            and (
                found := [
                    one
                    for one in kept
                    if now - one.sent_at < _AGE_S_MAX and network.passes(one.source, one.target)
                ]
            )
        }
        if not recent:
            return
        request = self._rng.choice(recent[self._rng.choice(list(recent))])
        self._simulation.loop.note("replay", request.source.name, request.target.name, request.api)
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(_LINGER_S):
                _, writer = await asyncio.open_connection(request.target.name, request.port)
                try:
                    writer.write(request.frame)
                    await asyncio.sleep(_LINGER_S)
                finally:
                    writer.close()

    def _wrote(self, transport: SimulatedTransport, data: bytes) -> None:
        buffer = self._partial.setdefault(transport, bytearray())
        buffer += data
        while len(buffer) >= _SIZE_BYTES:
            size = _SIZE_BYTES + int.from_bytes(buffer[:_SIZE_BYTES], "big")
            if len(buffer) < size:
                return
            target, port = transport.peer.machine, transport.peer.address[1]
            frame = bytes(buffer[:size])
            now = self._simulation.now
            request = Request(transport.machine, target, port, frame, now)
            self._kept.setdefault(request.api_key, deque(maxlen=_KEPT)).append(request)
            del buffer[:size]
