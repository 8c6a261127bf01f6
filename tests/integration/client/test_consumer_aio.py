"""The asyncio consumer on a real broker: the same, on the application's loop."""

import asyncio
import time
from collections.abc import Callable, Collection, Coroutine
from functools import wraps
from typing import Any

import pytest

from headrace.aio import Consumer
from headrace.client.consumer.rebalance_listener import RebalanceListener
from headrace.client.errors import Closed, IllegalState, Unreachable
from headrace.client.types import OffsetAndMetadata
from headrace.errors import UnknownTopic
from headrace.testing.time_limits import scaled
from headrace.types import TopicPartition
from tests.integration.client.feeding import create_topic, feed
from tests.support import BrokerProcess, unused_port

WAIT_MS = 30_000


def in_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test as the one task of a new event loop."""

    @wraps(test)
    def run(**fixtures: Any) -> None:
        asyncio.run(test(**fixtures))

    return run


@pytest.fixture
def address(shared_broker: BrokerProcess) -> str:
    return shared_broker.address


@pytest.fixture
def tp(address: str, topic: str) -> TopicPartition:
    create_topic(address, topic, 1)
    return TopicPartition(topic, 0)


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


@in_a_loop
async def test_records_are_polled_and_committed(address: str, tp: TopicPartition) -> None:
    feed(address, tp.topic, numbers(1000))
    async with Consumer(
        tp.topic, bootstrap_servers=address, group_id=tp.topic, auto_offset_reset="earliest"
    ) as consumer:
        assert len(await consumer.poll(WAIT_MS)) == 500
        await consumer.commit()
        assert await consumer.committed(tp) == OffsetAndMetadata(500, leader_epoch=0)
        batch = await consumer.poll_arrow(WAIT_MS)
        assert batch.column("offset").to_pylist() == list(range(500, 1000))
        assert await consumer.position(tp) == 1000
        assert await consumer.end_offsets(tp) == {tp: 1000}
        assert await consumer.beginning_offsets([tp]) == {tp: 0}
        assert await consumer.partitions_for(tp.topic) == [0]
        assert tp.topic in await consumer.topics()
        assert consumer.assignment() == {tp}
        consumer.seek(tp, 7)
        assert (await consumer.poll(WAIT_MS, max_records=1))[0].offset == 7
        await consumer.seek(tp, 9)
        async for record in consumer:
            assert record.offset == 9
            break
        await consumer.seek_to_end()
        assert await consumer.poll(0) == []
        consumer.pause(tp)
        assert consumer.paused() == {tp}
        await consumer.resume(tp)
        done: list[Any] = []
        consumer.commit_async({tp: 3}, lambda *told: done.append(told))
        while not done:
            await consumer.poll(50)
        assert done == [({tp: OffsetAndMetadata(3)}, None)]
        await consumer.unsubscribe()
        assert consumer.assignment() == set()


@in_a_loop
async def test_a_loop_ends_when_nothing_came(address: str, tp: TopicPartition) -> None:
    feed(address, tp.topic, numbers(700))
    async with Consumer(
        tp.topic,
        bootstrap_servers=address,
        auto_offset_reset="earliest",
        consumer_timeout_ms=int(scaled(500)),
    ) as consumer:
        assert [record.offset async for record in consumer] == list(range(700))


def test_a_consumer_may_be_made_before_there_is_a_loop(address: str, tp: TopicPartition) -> None:
    feed(address, tp.topic, numbers(3))
    consumer = Consumer(tp.topic, bootstrap_servers=address, auto_offset_reset="earliest")

    async def read() -> list[bytes]:
        async with consumer:
            return [record.value for record in await consumer.poll(WAIT_MS)]

    assert asyncio.run(read()) == numbers(3)

    async def again() -> None:
        with pytest.raises(Closed):
            await consumer.poll()

    asyncio.run(again())


@in_a_loop
async def test_listeners_may_be_coroutines(address: str, tp: TopicPartition) -> None:
    feed(address, tp.topic, numbers(10))
    told: list[str] = []

    class Stored(RebalanceListener):
        async def on_partitions_assigned(self, assigned: Collection[TopicPartition], /) -> None:
            for entry in assigned:
                await consumer.seek(entry, 4)
            told.append("assigned")

        async def on_partitions_revoked(self, revoked: Collection[TopicPartition], /) -> None:
            await consumer.commit()
            told.append("revoked")

    async with Consumer(
        bootstrap_servers=address, group_id=tp.topic, enable_auto_commit=False
    ) as consumer:
        await consumer.subscribe([tp.topic], listener=Stored())
        assert (await consumer.poll(WAIT_MS))[0].offset == 4
    assert told == ["assigned", "revoked"]
    async with Consumer(bootstrap_servers=address, group_id=tp.topic) as consumer:
        assert await consumer.committed(tp) == OffsetAndMetadata(10, leader_epoch=0)


@in_a_loop
async def test_other_tasks_run_while_a_poll_waits_and_while_it_does_not(
    address: str, tp: TopicPartition
) -> None:
    feed(address, tp.topic, numbers(20_000))
    turns = 0

    async def tick() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    ticking = asyncio.create_task(tick())
    async with Consumer(
        tp.topic, bootstrap_servers=address, auto_offset_reset="earliest", max_poll_records=100
    ) as consumer:
        count = 0
        while count < 20_000:
            before = turns
            count += len(await consumer.poll(WAIT_MS))
            assert turns > before
    ticking.cancel()


@in_a_loop
async def test_a_poll_can_be_cancelled_and_polled_again(address: str, tp: TopicPartition) -> None:
    async with Consumer(
        tp.topic, bootstrap_servers=address, auto_offset_reset="earliest"
    ) as consumer:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(consumer.poll(None), 0.2)
        polling = asyncio.create_task(consumer.poll(WAIT_MS))
        await asyncio.sleep(0)
        with pytest.raises(IllegalState, match="for one task at a time"):
            await consumer.poll()
        await asyncio.to_thread(feed, address, tp.topic, [b"late"])
        assert [record.value for record in await polling] == [b"late"]


@in_a_loop
async def test_errors_are_raised_by_poll(address: str, tp: TopicPartition) -> None:
    async with Consumer(bootstrap_servers=address) as consumer:
        consumer.assign([TopicPartition(tp.topic, 9)])
        with pytest.raises(UnknownTopic, match="has no partition 9"):
            await consumer.poll(WAIT_MS)
    nowhere = f"127.0.0.1:{unused_port()}"
    async with Consumer("any", bootstrap_servers=nowhere, request_timeout_ms=500) as consumer:
        begun = time.monotonic()
        with pytest.raises(Unreachable, match=nowhere):
            await consumer.poll(WAIT_MS)
        assert time.monotonic() - begun < scaled(10)


def test_a_consumer_belongs_to_one_loop(address: str, tp: TopicPartition) -> None:
    consumer = Consumer(tp.topic, bootstrap_servers=address)

    async def use() -> None:
        await consumer.poll(0)

    with asyncio.Runner() as first:
        first.run(use())
        with asyncio.Runner() as second, pytest.raises(IllegalState, match="another event loop"):
            second.run(use())
        first.run(consumer.close())
