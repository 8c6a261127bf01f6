"""An event loop whose time passes only when everybody waits, and brokers in memory behind it."""

import asyncio
import selectors
from collections import deque
from collections.abc import Coroutine, Iterable
from random import Random
from typing import Any, TypeVar

from headrace.client.cluster import ClusterClient
from headrace.errors import ErrorCode
from headrace.net.addresses import Address
from headrace.net.client_connection import ConnectionFailed
from headrace.protocol.apis import APIS
from headrace.protocol.schema import Message, decode_message, encode_message
from tests.unit.client.fake_brokers import LOSE, LOSE_ANSWER, FakeBrokers, FakeClock

Result = TypeVar("Result")


class _Jumping(selectors.SelectSelector):
    """Waits by moving the clock."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> list[Any]:
        assert timeout is not None, "everybody waits for something that nobody will do"
        if timeout > 0:
            self._clock.sleep(timeout)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop on a `FakeClock`."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(_Jumping(clock))
        self._clock = clock

    def time(self) -> float:
        return self._clock.seconds


def run(clock: FakeClock, coroutine: Coroutine[Any, Any, Result]) -> Result:
    """What a coroutine returns on a virtual loop."""
    with asyncio.Runner(loop_factory=lambda: VirtualLoop(clock)) as runner:
        return runner.run(coroutine)


class Brokers(FakeBrokers):
    """`FakeBrokers` for the asyncio client: `brokers.run(coroutine)` uses their clock."""

    def run(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        return run(self.clock, coroutine)

    def new_cluster(
        self, timeout_s: float = 30.0, bootstrap: Iterable[int] = (1,), **options: Any
    ) -> ClusterClient:
        return ClusterClient(
            [Address(f"10.0.0.{node}", 9092) for node in bootstrap],
            request_timeout_s=timeout_s,
            clock=self.clock,
            rng=Random(1),
            connect=self.open,  # type: ignore[arg-type]
            **options,
        )

    async def open(self, address: Address, timeout_s: float, *, client_id: str) -> "Channel":
        await asyncio.sleep(0)
        for node, known in self.nodes.items():
            if known == address and node not in self.down:
                self.connections += 1
                return Channel(self, node)
        raise ConnectionFailed(address, "nothing is listening there", "start a broker")


class Channel:
    """A connection whose requests are done at once, and answered a turn of the loop later.

    With `brokers.is_slow` answers wait for `release()`.
    """

    def __init__(self, brokers: Brokers, node: int) -> None:
        self.address = brokers.nodes[node]
        self.is_open = True
        self._brokers = brokers
        self._node = node
        self._waiting: deque[tuple[asyncio.Future[Any], Message | None]] = deque()

    @property
    def in_flight(self) -> int:
        return len(self._waiting)

    @property
    def features(self) -> dict[str, int]:
        return self._brokers.features

    def version_of(self, api_key: int, version_max: int | None = None) -> int:
        version = self._brokers.version(api_key)
        return version if version_max is None else min(version, version_max)

    def ask(
        self, request: Message, timeout_s: float, *, version_max: int | None = None
    ) -> "asyncio.Future[Any]":
        answer = self._do(request, self.version_of(request.api_key, version_max))
        future = asyncio.get_running_loop().create_future()
        self._waiting.append((future, answer))
        self._brokers.most_in_flight = max(self._brokers.most_in_flight, self.in_flight)
        if not self._brokers.is_slow:
            asyncio.get_running_loop().call_soon(self.release)
        return future

    def tell(self, request: Message) -> None:
        self._do(request, self.version_of(request.api_key))

    async def drained(self) -> None:
        pass

    def release(self, count: int = 1) -> None:
        """Let answers out that are held back."""
        for _ in range(min(count, len(self._waiting))):
            future, answer = self._waiting.popleft()
            if self._node in self._brokers.down or answer is None:
                self._waiting.appendleft((future, answer))
                self.close()
            elif not future.done():
                future.set_result(answer)

    def close(self) -> None:
        self.is_open = False
        waiting, self._waiting = self._waiting, deque()
        for future, _ in waiting:
            if not future.done():
                future.set_exception(self._broken())

    def _do(self, request: Message, version: int) -> Message | None:
        """Carry a request out; None if its answer is lost."""
        if not self.is_open or self._node in self._brokers.down:
            self.is_open = False
            raise self._broken()
        received = decode_message(type(request), version, encode_message(request, version))
        self._brokers.requests.append((self._node, received))
        name = type(request).__name__.removesuffix("Request")
        faults = self._brokers.losses.get(name, self._brokers.faults if name == "Produce" else None)
        fault = faults.popleft() if faults else None
        if fault == LOSE:
            return None
        answer = self._brokers.answer(self._node, received)
        if fault == LOSE_ANSWER:
            return None
        assert not isinstance(fault, ErrorCode)
        encoded = encode_message(answer, version)
        return decode_message(APIS[request.api_key].response, version, encoded)

    def _broken(self) -> ConnectionFailed:
        return ConnectionFailed(self.address, "the broker closed the connection", "its log knows")
