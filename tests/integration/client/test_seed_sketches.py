"""The classes that seed 004 sketches, run as they stand there over real parts of headrace.

What the sketches leave out is supplied by adapters: the bytes of a message by the record codec, the
sparse index by that of the storage, the coordinator by the asyncio consumer. Replication is none of
the client's business and comes with the cluster; its sketch runs over fakes.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO

import pytest

import headrace
from headrace import TopicPartition
from headrace.protocol.batch import LOG_OVERHEAD
from headrace.protocol.records import decode_rows, encode_batch
from headrace.storage.files import Files
from headrace.storage.index import offset_index
from headrace.storage.open_files import OpenFiles
from headrace.testing import Broker
from headrace.testing.time_limits import scaled
from tests.integration.client import seed_snippets as seeds

SECONDS = 60.0


def run(snippet: str, **names: Any) -> SimpleNamespace:
    scope = dict(names)
    exec(compile(snippet, "<seed>", "exec"), scope)  # noqa: S102
    return SimpleNamespace(**{name: scope[name] for name in scope if name.isidentifier()})


# -- Storage Implementation


class Index:
    """The storage's own sparse index, under the names of the sketch."""

    def __init__(self, path: Path) -> None:
        self._index = offset_index(OpenFiles(Files(), 10), str(path), 0, 1_000_000)

    def add(self, offset: int, position: int) -> None:
        self._index.append(offset, position)

    def find_position(self, offset: int) -> int:
        found = self._index.floor(offset)
        return 0 if found is None else found[1]


def serialize(_segment: Any, offset: int, message: dict[str, Any]) -> bytes:
    """A message as a batch of its own, in the format of Kafka's log."""
    record = (message["timestamp"], message["key"], message["value"], ())
    return bytes(encode_batch([record], base_offset=offset))


def read_message(_segment: Any, file: BinaryIO) -> dict[str, Any] | None:
    head = file.read(LOG_OVERHEAD)
    if not head:
        return None
    size = int.from_bytes(head[8:12], "big")
    [record] = decode_rows(head + file.read(size))
    return {"offset": record.offset, "key": record.key, "value": record.value}


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[SimpleNamespace]:
    """The classes of the sketch, and what they leave to others to define."""
    indexes = iter(range(1_000))
    found = run(seeds.STORAGE, SparseIndex=lambda: Index(tmp_path / f"index-{next(indexes)}"))
    opened: list[Any] = []

    def find_segment(partition: Any, offset: int) -> Any:
        # Written bytes are in a buffer of the file until now, and reading opens the file anew.
        if partition.active_segment is not None:
            partition.active_segment.log_file.flush()
        before = [segment for segment in partition.segments if segment.base_offset <= offset]
        return before[-1] if before and offset < partition.next_offset else None

    def close(segment: Any) -> None:
        segment.log_file.close()

    class Segment(found.Segment):  # type: ignore[name-defined]
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            opened.append(self)

    found.Segment._serialize = serialize
    found.Segment._read_message = read_message
    found.Segment.close = close
    found.Partition._find_segment = find_segment
    # `_roll_segment` looks the name up where it was defined.
    found.Partition._roll_segment.__globals__["Segment"] = Segment
    yield found
    for segment in opened:
        segment.close()


def messages(count: int) -> list[dict[str, Any]]:
    return [
        {"timestamp": 1_700_000_000_000 + index, "key": b"%d" % (index % 7), "value": b"%d" % index}
        for index in range(count)
    ]


def test_a_partition_gives_offsets_and_reads_from_any_of_them(
    storage: SimpleNamespace, tmp_path: Path
) -> None:
    partition = storage.Partition("orders", 0, str(tmp_path))
    assert partition.read(0) == []
    assert partition.append(messages(10)) == list(range(10))
    assert partition.append(messages(3)) == [10, 11, 12]
    read = partition.read(4, max_messages=5)
    assert [entry["offset"] for entry in read] == [4, 5, 6, 7, 8]
    assert [entry["value"] for entry in read] == [b"4", b"5", b"6", b"7", b"8"]
    assert len(partition.read(0)) == 13
    assert partition.read(13) == []


def test_a_partition_rolls_segments_that_are_read_like_any_log_of_kafka(
    storage: SimpleNamespace, tmp_path: Path
) -> None:
    partition = storage.Partition("orders", 0, str(tmp_path))
    # The gigabyte of the sketch, made small.
    partition.max_segment_size = 100_000
    for _ in range(20):
        partition.append(messages(500))
    bases = [segment.base_offset for segment in partition.segments]
    assert len(bases) > 3
    for start in (0, bases[1], bases[1] + 1, bases[2] - 1, 9_999):
        [first, *_] = partition.read(start, max_messages=10)
        assert first["offset"] == start
    partition.active_segment.log_file.flush()
    offsets: list[int] = []
    for base in bases:
        log = (tmp_path / f"{base}.log").read_bytes()
        offsets += [record.offset for record in decode_rows(log)]
    assert offsets == list(range(10_000))


# -- Replication Protocol


class Follower:
    """A fake: what one of the other brokers says to a replicated batch."""

    def __init__(self, answer: bool | Exception) -> None:
        self.answer = answer
        self.received: list[tuple[str, list[dict[str, Any]]]] = []

    async def send(self, partition: str, batch: list[dict[str, Any]]) -> bool:
        self.received.append((partition, batch))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def replication_manager(followers: list[Follower], min_isr: int) -> Any:
    manager = run(seeds.REPLICATION, asyncio=asyncio).ReplicationManager(broker_id=1)
    manager.min_isr = min_isr
    manager.get_followers = lambda _partition: followers
    manager.send_to_follower = lambda follower, partition, batch: follower.send(partition, batch)
    return manager


@pytest.mark.parametrize(
    ("answers", "is_replicated"),
    [
        ((True, True), True),
        ((True, False), False),
        # One that cannot be reached has not acknowledged, and does not keep the others from it.
        ((ConnectionError(), True), False),
        ((True, True, ConnectionError()), True),
    ],
)
def test_a_batch_is_replicated_when_enough_followers_acknowledged_it(
    answers: tuple[bool | Exception, ...], is_replicated: bool
) -> None:
    followers = [Follower(answer) for answer in answers]
    manager = replication_manager(followers, min_isr=2)
    batch = [{"offset": 0}]
    assert asyncio.run(manager.replicate_as_leader("orders-0", batch)) is is_replicated
    assert [follower.received for follower in followers] == [[("orders-0", batch)]] * len(answers)


def test_a_follower_appends_what_it_fetches_and_goes_on_behind_it() -> None:
    manager = replication_manager([], min_isr=1)
    log = [{"offset": offset} for offset in range(7)]
    local: list[dict[str, int]] = log[:2]
    asked: list[int] = []

    async def fetch_from_leader(leader: int, partition: str, offset: int) -> list[dict[str, int]]:
        assert (leader, partition) == (2, "orders-0")
        asked.append(offset)
        if offset == len(log):
            raise asyncio.CancelledError
        return log[offset : offset + 3]

    manager.get_leader = lambda _partition: 2
    manager.get_last_offset = lambda _partition: len(local)
    manager.fetch_from_leader = fetch_from_leader
    manager.append_local = lambda _partition, batch: local.extend(batch)

    async def follow() -> None:
        task = asyncio.create_task(manager.replicate_as_follower("orders-0"))
        async with asyncio.timeout(scaled(SECONDS)):
            await asyncio.wait([task])

    asyncio.run(follow())
    assert local == log
    assert asked == [2, 5, 7]


# -- Consumer Implementation


class Coordinator:
    """What the sketch asks of a coordinator, by headrace's consumer for asyncio."""

    def __init__(self, address: str) -> None:
        self._address = address
        self.consumer: Any = None

    async def join_group(self, group_id: str, topics: list[str]) -> None:
        self.consumer = headrace.aio.Consumer(
            bootstrap_servers=self._address,
            group_id=group_id,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
        )
        await self.consumer.subscribe(topics)

    async def get_assignment(self) -> list[TopicPartition]:
        async with asyncio.timeout(scaled(SECONDS)):
            while not self.consumer.assignment():
                # What it gives already is read again: `fetch` seeks.
                await self.consumer.poll(50)
        return sorted(self.consumer.assignment())

    async def get_offsets(
        self, group_id: str, partitions: list[TopicPartition]
    ) -> dict[TopicPartition, int]:
        found = await self.consumer.committed(*partitions)
        return {tp: entry.offset for tp, entry in found.items() if entry is not None}

    async def commit_offsets(self, group_id: str, offsets: dict[TopicPartition, int]) -> None:
        await self.consumer.commit(offsets)

    async def fetch(self, partition: TopicPartition, offset: int) -> list[dict[str, Any]]:
        await self.consumer.resume(partition)
        await self.consumer.seek(partition, offset)
        records = await self.consumer.poll(500)
        await self.consumer.pause(partition)
        return [{"offset": record.offset, "value": record.value} for record in records]


@asynccontextmanager
async def sketched_consumer(address: str, group_id: str, topic: str) -> AsyncIterator[Any]:
    consumer = run(seeds.CONSUMER).Consumer(group_id, [topic])
    coordinator = consumer.coordinator = Coordinator(address)
    consumer.fetch = coordinator.fetch
    try:
        await consumer.subscribe()
        await coordinator.consumer.pause(*consumer.assigned_partitions)
        yield consumer
    finally:
        await coordinator.consumer.close()


def test_the_sketched_consumer_reads_commits_and_goes_on() -> None:
    async def scenario(address: str, topic: str) -> None:
        async with headrace.aio.Producer(bootstrap_servers=address) as producer:
            for number in range(60):
                await producer.send(topic, f"{number}", partition=number % 3)
        async with sketched_consumer(address, "sketches", topic) as consumer:
            assert consumer.assigned_partitions == [
                TopicPartition(topic, index) for index in range(3)
            ]
            assert consumer.offsets == {}
            read: list[dict[str, Any]] = []
            async with asyncio.timeout(scaled(SECONDS)):
                while len(read) < 60:
                    read += await consumer.poll()
            assert sorted(int(entry["value"]) for entry in read) == list(range(60))
            assert consumer.offsets == {TopicPartition(topic, index): 20 for index in range(3)}
            await consumer.commit()
        async with headrace.aio.Producer(bootstrap_servers=address) as producer:
            await (await producer.send(topic, "new", partition=1))
        # Another one of the group begins where this one has committed.
        async with sketched_consumer(address, "sketches", topic) as consumer:
            assert consumer.offsets == {TopicPartition(topic, index): 20 for index in range(3)}
            async with asyncio.timeout(scaled(SECONDS)):
                while not (read := await consumer.poll()):
                    pass
            assert [entry["value"] for entry in read] == [b"new"]

    with Broker() as broker:
        topic = broker.create_topic(partitions=3)
        asyncio.run(scenario(broker.bootstrap_servers, topic))
