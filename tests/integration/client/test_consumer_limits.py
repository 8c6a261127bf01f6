"""How much a consumer holds, and records larger than any limit."""

from collections.abc import Callable

import pytest

from headrace.client.consumer.consumer import Consumer
from headrace.types import TopicPartition
from tests.integration.client.feeding import create_topic, feed
from tests.support import BrokerProcess

WAIT_MS = 30_000


@pytest.fixture
def address(start_broker: Callable[..., BrokerProcess]) -> str:
    return start_broker(**{"message.max.bytes": "10000000"}).address


def held_bytes(consumer: Consumer) -> int:
    return consumer._engine.subscription.buffered_bytes


@pytest.mark.parametrize("poll", ["poll", "poll_arrow"])
def test_what_waits_is_bounded(address: str, poll: str) -> None:
    create_topic(address, "orders", 4)
    for partition in range(4):
        feed(address, "orders", [b"x" * 1000] * 4000, partition=partition, batch_size=30_000)
    limit = 500_000
    seen = 0
    most = 0
    with Consumer(
        "orders",
        bootstrap_servers=address,
        auto_offset_reset="earliest",
        fetch_max_bytes=limit,
        max_partition_fetch_bytes=100_000,
    ) as consumer:
        while seen < 16_000:
            found = getattr(consumer, poll)(WAIT_MS, max_records=100)
            seen += len(found)
            most = max(most, held_bytes(consumer))
        assert held_bytes(consumer) == 0
    assert 100_000 < most <= limit


def test_a_partition_is_fetched_ahead_by_two_chunks(address: str) -> None:
    create_topic(address, "orders", 1)
    feed(address, "orders", [b"x" * 1000] * 4000, batch_size=30_000)
    with Consumer(
        "orders",
        bootstrap_servers=address,
        auto_offset_reset="earliest",
        max_partition_fetch_bytes=100_000,
    ) as consumer:
        seen, most = 0, 0
        while seen < 4000:
            seen += len(consumer.poll(WAIT_MS, max_records=10))
            most = max(most, held_bytes(consumer))
        assert most <= 200_000


def test_a_batch_larger_than_every_limit_comes_through(address: str) -> None:
    create_topic(address, "orders", 2)
    values = [b"small", b"x" * 3_000_000, b"y" * 50, b"z" * 2_000_000, b"last"]
    for partition in range(2):
        for value in values:
            feed(address, "orders", [value], partition=partition, batch_size=5_000_000)
    with Consumer(
        "orders",
        bootstrap_servers=address,
        auto_offset_reset="earliest",
        fetch_max_bytes=1000,
        max_partition_fetch_bytes=100,
    ) as consumer:
        seen: dict[int, list[bytes]] = {0: [], 1: []}
        while sum(map(len, seen.values())) < 10:
            records = consumer.poll(WAIT_MS)
            assert records, "it did not get past the large ones"
            for record in records:
                seen[record.partition].append(record.value)
    assert seen == {0: values, 1: values}


def test_a_paused_partition_does_not_stop_the_others(address: str) -> None:
    create_topic(address, "orders", 2)
    left, right = TopicPartition("orders", 0), TopicPartition("orders", 1)
    for partition in range(2):
        feed(address, "orders", [b"x" * 1000] * 2000, partition=partition, batch_size=30_000)
    with Consumer(
        bootstrap_servers=address,
        auto_offset_reset="earliest",
        fetch_max_bytes=400_000,
        max_partition_fetch_bytes=100_000,
    ) as consumer:
        consumer.assign([left, right])
        assert consumer.poll(WAIT_MS, max_records=1)
        consumer.pause(left)
        seen = 0
        while consumer.position(right) < 2000:
            records = consumer.poll(WAIT_MS)
            assert records
            seen += len(records)
        consumer.resume(left)
        while consumer.position(left) < 2000:
            assert consumer.poll(WAIT_MS)
