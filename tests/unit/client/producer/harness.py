"""A producer's engine on brokers in memory and virtual time."""

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any, TypeVar

from headrace.client.metrics import ProducerMetrics
from headrace.client.options import producer_options
from headrace.client.producer.accumulator import Accumulator
from headrace.client.producer.delivery import Future
from headrace.client.producer.sender import Sender
from headrace.client.producer.transaction_manager import TransactionManager
from headrace.client.producer_options import ProducerOptions
from headrace.clock import wall_seconds
from headrace.types import TopicPartition
from tests.unit.client.virtual_time import Brokers

Result = TypeVar("Result")


class Sending:
    """An accumulator and a sender. Made inside the loop; `topic` is known from the start."""

    def __init__(self, brokers: Brokers, options: ProducerOptions) -> None:
        loop = asyncio.get_running_loop()
        self.brokers = brokers
        self.options = options
        self.wakes = 0
        self.cluster = brokers.new_cluster(options.request_timeout_ms / 1000)
        self.metrics = ProducerMetrics(brokers.clock)
        self.accumulator = Accumulator(
            options,
            self._wake,
            choice=Random(1).choice,
            monotonic=brokers.clock.monotonic,
            wall=wall_seconds(brokers.clock),
        )
        self.sender = Sender(self.cluster, self.accumulator, options, self.metrics)
        self._loop = loop

    def _wake(self) -> None:
        self.wakes += 1
        self._loop.call_soon(self.sender.pump)

    def send(self, value: bytes | None, *, topic: str = "t", **record: Any) -> Future:
        arguments = dict.fromkeys(("key", "headers", "partition", "timestamp_ms", "on_delivery"))
        sent = self.accumulator.send(topic, value, *{**arguments, **record}.values())
        assert isinstance(sent, Future), sent
        return sent

    @property
    def transactor(self) -> TransactionManager:
        assert self.sender.transactor is not None
        return self.sender.transactor

    async def flush(self) -> None:
        for delivery in self.accumulator.close_open_batches():
            await delivery.waiter()


def sending(
    brokers: Brokers,
    scenario: Callable[[Sending], Coroutine[Any, Any, Result]],
    **options: Any,
) -> Result:
    """What a scenario returns that is given an engine; all memory must be given back after it."""

    async def run() -> Result:
        engine = Sending(brokers, producer_options(**options))
        await engine.sender.load_topic("t", 10)
        try:
            result = await scenario(engine)
            await engine.flush()
            return result
        finally:
            await engine.sender.stop(1)
            assert (engine.accumulator.records, engine.accumulator.used_bytes) == (0, 0)

    return brokers.run(run())


def brokers_with(partitions: int = 1, nodes: int = 1) -> Brokers:
    brokers = Brokers(nodes)
    brokers.add_topic("t", partitions)
    return brokers


def written(brokers: Brokers, partition: int = 0) -> list[bytes | None]:
    return brokers.logs[TopicPartition("t", partition)].values()
