"""A consumer on brokers in memory, with time that passes only when everybody waits."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

import pytest

from headrace.aio import Consumer
from headrace.net.addresses import Address
from headrace.net.client_connection import ConnectionFailed
from headrace.protocol.messages.fetch import FetchRequest, PartitionData
from headrace.protocol.records import encode_batch
from headrace.protocol.schema import Message
from headrace.types import TopicPartition
from tests.unit.client.virtual_time import Brokers, Channel

Result = TypeVar("Result")


class WaitingChannel(Channel):
    """A connection on which a fetch that finds nothing waits, and all behind it too."""

    def ask(
        self, request: Message, timeout_s: float, *, version_max: int | None = None
    ) -> "asyncio.Future[Any]":
        if not isinstance(request, FetchRequest):
            return super().ask(request, timeout_s, version_max=version_max)
        brokers = self._brokers
        assert isinstance(brokers, Fetchable)
        answer = self._do(request, self.version_of(request.api_key))
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        self._waiting.append((future, answer))
        has_some = any(
            part.records or part.error_code
            for topic in getattr(answer, "responses", ())
            for part in topic.partitions
        )
        if has_some or answer is None:
            loop.call_later(0.001, self.release)
        else:
            loop.call_later(request.max_wait_ms / 1000, self._wake, request)
        return future

    def _wake(self, request: FetchRequest) -> None:
        """Answer with what there is by now."""
        if self._waiting and self._node not in self._brokers.down:
            self._waiting[0] = (self._waiting[0][0], self._brokers.answer(self._node, request))
        self.release()


class Fetchable(Brokers):
    """Brokers whose answers to fetches respect the limits of the request."""

    def open_channel(self, node: int) -> WaitingChannel:
        self.connections += 1
        return WaitingChannel(self, node)

    async def open(self, address: Address, timeout_s: float, *, client_id: str) -> Channel:
        await asyncio.sleep(0)
        for node, known in self.nodes.items():
            if known == address and node not in self.down:
                return self.open_channel(node)
        raise ConnectionFailed(address, "nothing is listening there", "start a broker")

    def write(self, tp: TopicPartition, *values: bytes) -> None:
        """Append a batch."""
        rows = [(1000, None, value, ()) for value in values]
        self.logs[tp].append(bytes(encode_batch(rows)))

    def fetched(self) -> list[dict[int, int]]:
        """The partitions and offsets of every fetch so far."""
        return [
            {
                part.partition: part.fetch_offset
                for topic in request.topics
                for part in topic.partitions
            }
            for request in self.sent(FetchRequest)
        ]

    def cut(self, tp: TopicPartition, start_offset: int) -> None:
        """Delete the records before an offset, as retention does."""
        self.logs[tp].start_offset = start_offset


def on_fakes(
    brokers: Fetchable,
    monkeypatch: pytest.MonkeyPatch,
    test: Callable[[Consumer], Awaitable[Result]],
    **options: Any,
) -> Result:
    """What a coroutine returns that uses a consumer of these brokers."""

    def cluster(bootstrap: Iterable[Address], **given: Any) -> Any:
        return brokers.new_cluster(given["request_timeout_s"], metadata_max_age_s=300.0)

    monkeypatch.setattr("headrace.client.consumer.consumer_engine.ClusterClient", cluster)

    async def run() -> Result:
        async with Consumer(**({"auto_offset_reset": "earliest"} | options)) as consumer:
            return await test(consumer)

    return brokers.run(run())


__all__ = ["Fetchable", "PartitionData", "on_fakes"]
