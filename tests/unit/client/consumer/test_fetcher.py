"""Fetching on brokers in memory: leaders that move, offsets that are gone, who waits for whom."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from headrace.aio import Consumer
from headrace.client.errors import NoOffset, Unreachable
from headrace.errors import CorruptBatch, ErrorCode, KafkaError, UnknownTopic
from headrace.protocol.apis import Api
from headrace.protocol.messages.fetch import FetchRequest
from headrace.types import TopicPartition
from tests.unit.client.consumer.fakes import Fetchable, on_fakes
from tests.unit.client.fake_brokers import FakeLog

LEFT = TopicPartition("orders", 0)
RIGHT = TopicPartition("orders", 1)

Run = Callable[..., Any]


@pytest.fixture
def brokers() -> Fetchable:
    brokers = Fetchable(2)
    brokers.add_topic("orders", 2)
    return brokers


@pytest.fixture
def run(brokers: Fetchable, monkeypatch: pytest.MonkeyPatch) -> Run:
    def run(test: Callable[[Consumer], Awaitable[Any]], **options: Any) -> Any:
        return on_fakes(brokers, monkeypatch, test, **options)

    return run


async def values(consumer: Consumer, count: int) -> list[bytes]:
    found: list[bytes] = []
    for _ in range(100):
        found += [record.value for record in await consumer.poll(1000)]
        if len(found) >= count:
            break
    return found


def test_both_leaders_are_read(brokers: Fetchable, run: Run) -> None:
    brokers.write(LEFT, b"a", b"b")
    brokers.write(RIGHT, b"c")

    async def read(consumer: Consumer) -> list[bytes]:
        consumer.assign([LEFT, RIGHT])
        return await values(consumer, 3)

    assert sorted(run(read)) == [b"a", b"b", b"c"]


def test_brokers_of_long_ago_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    old = Fetchable(versions={Api.FETCH: 4, Api.LIST_OFFSETS: 1, Api.METADATA: 1})
    old.add_topic("orders", 1)
    old.write(LEFT, b"a", b"b")

    async def read(consumer: Consumer) -> list[bytes]:
        consumer.assign([LEFT])
        return await values(consumer, 2)

    assert on_fakes(old, monkeypatch, read) == [b"a", b"b"]


def test_the_next_chunk_is_fetched_before_the_last_is_read(brokers: Fetchable, run: Run) -> None:
    for number in range(5):
        brokers.write(LEFT, b"%d" % number)

    async def read(consumer: Consumer) -> list[list[dict[int, int]]]:
        consumer.assign([LEFT])
        seen = []
        for _ in range(2):
            await consumer.poll(1000, max_records=1)
            await consumer.position(LEFT)
            seen.append(brokers.fetched())
        return seen

    first, _ = run(read)
    assert [fetch[0] for fetch in first][:2] == [0, 1]
    # One batch an answer here: two chunks wait, and no third is asked for.
    assert len(first) <= 3


def test_a_leader_that_moved_is_found(brokers: Fetchable, run: Run) -> None:
    brokers.write(LEFT, b"before")

    async def read(consumer: Consumer) -> list[bytes]:
        consumer.assign([LEFT])
        found = await values(consumer, 1)
        brokers.logs[LEFT].leader = 2
        brokers.write(LEFT, b"after")
        return found + await values(consumer, 1)

    assert run(read) == [b"before", b"after"]


def test_a_broker_that_is_away_is_waited_for(brokers: Fetchable, run: Run) -> None:
    brokers.write(LEFT, b"before")

    async def read(consumer: Consumer) -> list[bytes]:
        consumer.assign([LEFT])
        found = await values(consumer, 1)
        brokers.down = {1, 2}
        begun = brokers.clock.monotonic()
        assert await consumer.poll(60_000) == []
        assert brokers.clock.monotonic() - begun == pytest.approx(60, abs=1)
        brokers.down = set()
        brokers.write(LEFT, b"after")
        return found + await values(consumer, 1)

    assert run(read) == [b"before", b"after"]
    # Nobody is asked in a hot loop meanwhile.
    assert len(brokers.requests) < 200


def test_a_leader_that_is_away_while_others_say_it_leads_is_left_alone_for_longer_each_time(
    brokers: Fetchable, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    brokers.write(LEFT, b"before")
    asked: list[float] = []
    opened = brokers.open

    async def counting(address: Any, timeout_s: float, *, client_id: str) -> Any:
        if address == brokers.nodes[1]:
            asked.append(brokers.clock.monotonic())
        return await opened(address, timeout_s, client_id=client_id)

    brokers.open = counting  # type: ignore[method-assign]

    async def read(consumer: Consumer) -> list[bytes]:
        consumer.assign([LEFT])
        found = await values(consumer, 1)
        brokers.down = {1}
        asked.clear()
        assert await consumer.poll(20_000) == []
        assert 5 < len(asked) < 80
        brokers.down = set()
        brokers.write(LEFT, b"after")
        return found + await values(consumer, 1)

    assert run(read) == [b"before", b"after"]
    assert len([record for record in caplog.records if record.levelname == "WARNING"]) == 1


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ],
)
def test_errors_that_pass_are_waited_out(brokers: Fetchable, run: Run, code: ErrorCode) -> None:
    brokers.write(LEFT, b"there")
    brokers.fetch_faults.extend([code] * 5)

    async def read(consumer: Consumer) -> tuple[list[bytes], float]:
        consumer.assign([LEFT])
        begun = brokers.clock.monotonic()
        return await values(consumer, 1), brokers.clock.monotonic() - begun

    found, took_s = run(read)
    assert found == [b"there"]
    assert took_s > 0.3, "every attempt is further from the last"


def test_an_error_that_does_not_pass_is_raised(brokers: Fetchable, run: Run) -> None:
    brokers.write(LEFT, b"there")
    brokers.fetch_faults.append(ErrorCode.TOPIC_AUTHORIZATION_FAILED)

    async def read(consumer: Consumer) -> list[bytes]:
        consumer.assign([LEFT])
        with pytest.raises(KafkaError, match="orders-0: fetch failed at offset 0") as raised:
            await consumer.poll(1000)
        assert raised.value.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED
        return await values(consumer, 1)

    assert run(read) == [b"there"], "whoever polls on tries again"


def test_a_corrupt_answer_names_its_place(brokers: Fetchable, run: Run) -> None:
    brokers.write(LEFT, b"good")
    brokers.write(LEFT, b"bad")
    brokers.logs[LEFT].batches[1][-2] ^= 0xFF

    async def read(consumer: Consumer) -> None:
        consumer.assign([LEFT])
        assert await values(consumer, 1) == [b"good"]
        with pytest.raises(CorruptBatch, match="orders-0: the batch at offset 1 is corrupt"):
            await consumer.poll(1000)
        assert await consumer.position(LEFT) == 1

    run(read)


@pytest.mark.parametrize(("policy", "first"), [("earliest", b"2"), ("latest", b"new")])
def test_records_deleted_before_they_were_read_are_skipped_as_the_policy_says(
    brokers: Fetchable, run: Run, policy: str, first: bytes
) -> None:
    for number in range(4):
        brokers.write(LEFT, b"%d" % number)
    brokers.cut(LEFT, 2)

    async def read(consumer: Consumer) -> bytes:
        consumer.assign([LEFT])
        consumer.seek(LEFT, 1)
        await consumer.poll(100, max_records=1) if policy == "latest" else None
        brokers.write(LEFT, b"new")
        return (await values(consumer, 1))[0]

    assert run(read, auto_offset_reset=policy) == first


def test_what_was_fetched_before_an_offset_vanished_is_still_read(
    brokers: Fetchable, run: Run
) -> None:
    brokers.write(LEFT, b"0")

    async def read(consumer: Consumer) -> list[bytes]:
        consumer.assign([LEFT])
        consumer.seek(LEFT, 0)
        while not consumer._engine.subscription.buffered_bytes:
            await asyncio.sleep(0.001)
        for number in range(1, 5):
            brokers.write(LEFT, b"%d" % number)
        brokers.cut(LEFT, 4)
        found = await values(consumer, 1)
        return found + await values(consumer, 1)

    found = run(read)
    assert found[0] == b"0"
    assert found[-1] == b"4"


def test_without_a_policy_a_vanished_offset_is_an_error(brokers: Fetchable, run: Run) -> None:
    for number in range(4):
        brokers.write(LEFT, b"%d" % number)
    brokers.cut(LEFT, 2)

    async def read(consumer: Consumer) -> None:
        consumer.assign([LEFT])
        consumer.seek(LEFT, 1)
        with pytest.raises(NoOffset, match="offset 1 of orders-0 does not exist"):
            await consumer.poll(1000)
        consumer.seek(LEFT, 2)
        assert await values(consumer, 2) == [b"2", b"3"]

    run(read, auto_offset_reset="none")


def test_one_partition_without_a_leader_does_not_hold_up_the_other(
    brokers: Fetchable, run: Run
) -> None:
    brokers.write(LEFT, b"left")
    brokers.write(RIGHT, b"right")
    brokers.logs[RIGHT].leader = -1

    async def read(consumer: Consumer) -> list[bytes]:
        consumer.assign([LEFT, RIGHT])
        begun = brokers.clock.monotonic()
        found = await values(consumer, 1)
        assert brokers.clock.monotonic() - begun < 2
        brokers.logs[RIGHT].leader = 2
        return found + await values(consumer, 1)

    assert run(read) == [b"left", b"right"]


def test_an_idle_partition_does_not_hold_up_one_that_was_resumed(
    brokers: Fetchable, run: Run
) -> None:
    brokers.logs[RIGHT].leader = 1
    brokers.write(RIGHT, b"right")

    async def read(consumer: Consumer) -> float:
        consumer.assign([LEFT, RIGHT])
        consumer.pause(RIGHT)
        assert await consumer.poll(100) == []
        consumer.resume(RIGHT)
        begun = brokers.clock.monotonic()
        assert await values(consumer, 1) == [b"right"]
        return brokers.clock.monotonic() - begun

    # The fetch of the idle one is still waiting at the broker for a minute.
    assert run(read, fetch_max_wait_ms=20_000) < 0.1


def test_data_fetched_before_a_seek_is_thrown_away(brokers: Fetchable, run: Run) -> None:
    for number in range(6):
        brokers.write(LEFT, b"%d" % number)

    async def read(consumer: Consumer) -> list[bytes]:
        consumer.assign([LEFT])
        found = [record.value for record in await consumer.poll(1000, max_records=1)]
        consumer.seek(LEFT, 4)
        return found + await values(consumer, 2)

    assert run(read) == [b"0", b"4", b"5"]


def test_fetches_ask_for_no_more_than_they_may(brokers: Fetchable, run: Run) -> None:
    brokers.write(LEFT, b"x" * 100)

    async def read(consumer: Consumer) -> None:
        consumer.assign([LEFT, RIGHT])
        await values(consumer, 1)
        await consumer.poll(2000)

    run(read, fetch_max_bytes=1000, max_partition_fetch_bytes=300, fetch_min_bytes=7)
    requests = brokers.sent(FetchRequest)
    assert {request.max_bytes for request in requests} <= {250, 300, 500}
    assert {request.min_bytes for request in requests} == {7}
    assert {
        part.partition_max_bytes
        for request in requests
        for topic in request.topics
        for part in topic.partitions
    } == {300}


def test_a_missing_partition_is_told_once_for_each_poll(brokers: Fetchable, run: Run) -> None:
    brokers.write(LEFT, b"left")

    async def read(consumer: Consumer) -> list[bytes]:
        missing = TopicPartition("orders", 7)
        consumer.assign([LEFT, missing])
        for _ in range(2):
            with pytest.raises(UnknownTopic, match="orders has no partition 7; it has 2"):
                await values(consumer, 2)
        consumer.assign([LEFT])
        consumer.seek_to_beginning()
        return await values(consumer, 1)

    assert run(read) == [b"left"]


def test_a_partition_that_was_added_is_found_though_others_are_known(
    brokers: Fetchable, run: Run
) -> None:
    async def read(consumer: Consumer) -> list[bytes]:
        consumer.assign([LEFT])
        assert await consumer.poll(100) == []
        added = TopicPartition("orders", 2)
        brokers.logs[added] = FakeLog(2)
        brokers.write(added, b"added")
        consumer.assign([LEFT, added])
        return await values(consumer, 1)

    assert run(read) == [b"added"]


def test_brokers_that_were_never_reached_are_named_again_and_again(
    brokers: Fetchable, run: Run
) -> None:
    brokers.down = {1, 2}

    async def read(consumer: Consumer) -> list[float]:
        consumer.subscribe("orders")
        told: list[float] = []
        begun = brokers.clock.monotonic()
        while len(told) < 2:
            with pytest.raises(Unreachable, match="no broker at localhost:9092 has answered"):
                await values(consumer, 1)
            told.append(brokers.clock.monotonic() - begun)
        return told

    first, second = run(read, request_timeout_ms=10_000)
    assert 10 <= first < 12
    assert 20 <= second < 24
