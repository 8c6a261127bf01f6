"""The shell around a group shard: what is written before what is answered."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

from headrace.broker.coordination.runtime import OFFSETS_TOPIC, CoordinatorRuntime, ShardDriver
from headrace.broker.replication.flush_queue import FlushQueue
from headrace.broker.replication.partition import Partition
from headrace.clock import SteadyClock, SystemClock
from headrace.config import TopicConfig
from headrace.coordinator.groups.group_shard import GroupShard
from headrace.coordinator.records import decode_offset
from headrace.coordinator.shard import GroupSettings, RequestClient, ShardEffects
from headrace.errors import ErrorCode, KafkaError
from headrace.metadata.image import PartitionImage
from headrace.protocol.markers import Marker
from headrace.protocol.messages.heartbeat import HeartbeatRequest
from headrace.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from headrace.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from headrace.protocol.messages.offset_fetch import OffsetFetchRequestGroup
from headrace.protocol.records import decode_rows
from headrace.protocol.schema import Message
from headrace.storage.disk_space import DiskSpace
from headrace.storage.files import Files
from headrace.storage.log import Log
from headrace.types import TopicPartition
from tests.unit.broker.replication.test_partition import ByHand

NAME = TopicPartition("__consumer_offsets", 0)
CLIENT = RequestClient("test", "127.0.0.1")
SETTINGS = GroupSettings(initial_rebalance_delay_ms=0)


class Clockwork:
    """A clock that the test winds."""

    def __init__(self) -> None:
        self.wall_ms = 1_700_000_000_000
        self.seconds = 50.0

    def now_ms(self) -> int:
        return self.wall_ms

    def monotonic(self) -> float:
        return self.seconds


def commit(offset: int, group: str = "g") -> OffsetCommitRequest:
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    topic = OffsetCommitRequestTopic(name="t", partitions=[partition])
    return OffsetCommitRequest(group_id=group, topics=[topic])


def join(group: str = "g") -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id=group,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
    )


def committed(driver: ShardDriver[GroupShard], group: str = "g") -> list[int]:
    fetched = driver.shard.fetch_offsets(OffsetFetchRequestGroup(group_id=group, topics=None))
    return [
        partition.committed_offset for topic in fetched.topics for partition in topic.partitions
    ]


def open_partition(
    directory: Path, config: TopicConfig, executor: ByHand, room: DiskSpace | None = None
) -> Partition:
    now_ms = SystemClock().now_ms()
    log = Log.open(Files(), str(directory / str(NAME)), NAME, config, now_ms, room=room)
    partition = Partition(NAME, log, config, FlushQueue(executor))
    partition.lead(PartitionImage(replicas=(1,), isr=(1,), leader=1), 0)
    return partition


def with_driver(
    directory: Path,
    config: TopicConfig,
    test: Callable[[ShardDriver[GroupShard], ByHand], Coroutine[Any, Any, None]],
    room: DiskSpace | None = None,
) -> None:
    async def run() -> None:
        executor = ByHand()
        partition = open_partition(directory, config, executor, room)
        shard = GroupShard(SETTINGS, Random(1))
        driver = ShardDriver(partition, shard, SteadyClock(SystemClock()), lambda _: None)
        await driver.load()
        try:
            await test(driver, executor)
        finally:
            driver.close()

    asyncio.run(run())


def test_a_commit_is_answered_at_once_when_it_is_written(tmp_path: Path) -> None:
    async def test(driver: ShardDriver[GroupShard], _: ByHand) -> None:
        answer = driver.handle(commit(7), 2, CLIENT)
        assert isinstance(answer, Message)
        assert committed(driver) == [7]
        assert driver.partition.log.log_end_offset == 1

    with_driver(tmp_path, TopicConfig(), test)


def test_on_a_full_disk_commits_are_refused_and_the_group_lives_on(tmp_path: Path) -> None:
    room = DiskSpace(Files(), str(tmp_path))
    room.open()

    async def test(driver: ShardDriver[GroupShard], _: ByHand) -> None:
        driver.handle(commit(7), 2, CLIENT)
        room.is_full = True
        with pytest.raises(
            KafkaError, match=r"COORDINATOR_NOT_AVAILABLE.* data directory .* is full"
        ):
            driver.handle(commit(8), 2, CLIENT)
        assert not driver.closed
        assert committed(driver) == [7]
        assert isinstance(driver.handle(HeartbeatRequest(group_id="g"), 4, CLIENT), Message)
        room.is_full = False
        driver.handle(commit(9), 2, CLIENT)
        assert committed(driver) == [9]

    with_driver(tmp_path, TopicConfig(), test, room)


def test_neither_answered_nor_seen_before_it_is_committed(tmp_path: Path) -> None:
    async def test(driver: ShardDriver[GroupShard], executor: ByHand) -> None:
        first = driver.handle(commit(7), 2, CLIENT)
        second = driver.handle(commit(8), 2, CLIENT)
        assert isinstance(first, asyncio.Future) and isinstance(second, asyncio.Future)
        await asyncio.sleep(0)
        assert not first.done() and committed(driver) == []
        while executor.waiting:
            await executor.run_one()
        assert first.done() and second.done()
        assert committed(driver) == [8]

    with_driver(tmp_path, TopicConfig(flush_messages=1), test)


def test_a_reply_without_records_waits_behind_those_with_some(tmp_path: Path) -> None:
    async def test(driver: ShardDriver[GroupShard], executor: ByHand) -> None:
        written = driver.handle(commit(7), 2, CLIENT)
        beat = HeartbeatRequest(group_id="g", generation_id=1, member_id="nobody")
        refused = driver.handle(beat, 4, CLIENT)
        assert isinstance(written, asyncio.Future) and isinstance(refused, asyncio.Future)
        await asyncio.sleep(0)
        assert not refused.done()
        while executor.waiting:
            await executor.run_one()
        assert written.done() and refused.done()

    with_driver(tmp_path, TopicConfig(flush_messages=1), test)


def test_a_failed_write_gives_the_shard_up_until_it_can_be_loaded_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        partition = open_partition(tmp_path, TopicConfig(), ByHand())
        coordinators = CoordinatorRuntime(
            OFFSETS_TOPIC,
            SteadyClock(SystemClock()),
            lambda _: GroupShard(GroupSettings(initial_rebalance_delay_ms=60_000), Random(1)),
        )
        coordinators.lead(1, {0: partition})
        driver = coordinators.driver_of("g")
        joining = driver.handle(join(), 0, CLIENT)
        assert isinstance(joining, asyncio.Future)

        def refuse(*_: object) -> None:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "no disk")

        monkeypatch.setattr(partition, "append_own", refuse)
        with pytest.raises(KafkaError) as failed:
            driver.handle(commit(7, "other"), 2, CLIENT)
        assert failed.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
        error = joining.exception()
        assert isinstance(error, KafkaError) and error.code is ErrorCode.NOT_COORDINATOR
        with pytest.raises(KafkaError) as gone:
            coordinators.driver_of("g")
        assert gone.value.code is ErrorCode.NOT_COORDINATOR
        monkeypatch.undo()
        while True:
            with suppress(KafkaError):
                again = coordinators.driver_of("g")
                break
            await asyncio.sleep(0.001)
        assert again is not driver
        again.handle(commit(8, "other"), 2, CLIENT)
        assert committed(again, "other") == [8]
        coordinators.close()

    monkeypatch.setattr("headrace.broker.coordination.runtime.RELOAD_SECONDS", 0.01)
    asyncio.run(run())


def test_a_shard_is_back_after_a_restart(tmp_path: Path) -> None:
    async def write(driver: ShardDriver[GroupShard], _: ByHand) -> None:
        for number in range(50):
            driver.handle(commit(number, f"group-{number % 5}"), 2, CLIENT)
        driver.partition.log.close()

    async def read(driver: ShardDriver[GroupShard], _: ByHand) -> None:
        assert [committed(driver, f"group-{number}") for number in range(5)] == [
            [45],
            [46],
            [47],
            [48],
            [49],
        ]

    with_driver(tmp_path, TopicConfig(), write)
    with_driver(tmp_path, TopicConfig(), read)


def test_until_it_is_loaded_a_shard_answers_nothing(tmp_path: Path) -> None:
    async def write(driver: ShardDriver[GroupShard], _: ByHand) -> None:
        driver.handle(commit(7), 2, CLIENT)
        driver.partition.log.close()

    async def load() -> None:
        partition = open_partition(tmp_path, TopicConfig(), ByHand())
        coordinators = CoordinatorRuntime(
            OFFSETS_TOPIC, SteadyClock(SystemClock()), lambda _: GroupShard(SETTINGS, Random(1))
        )
        with pytest.raises(KafkaError) as nowhere:
            coordinators.driver_of("g")
        assert nowhere.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
        coordinators.lead(1, {0: partition})
        with pytest.raises(KafkaError) as loading:
            coordinators.driver_of("g")
        assert loading.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        for _ in range(5):
            await asyncio.sleep(0)
        assert committed(coordinators.driver_of("g")) == [7]
        coordinators.lead(1, {})
        with pytest.raises(KafkaError) as moved:
            coordinators.driver_of("g")
        assert moved.value.code is ErrorCode.NOT_COORDINATOR

    with_driver(tmp_path, TopicConfig(), write)
    asyncio.run(load())


def test_a_jump_of_the_clock_does_not_reach_a_steady_one() -> None:
    clock = Clockwork()
    steady = SteadyClock(clock)
    assert steady.now_ms() == 1_700_000_000_000
    clock.wall_ms += 86_400_000
    clock.seconds += 1.5
    assert steady.now_ms() == 1_700_000_001_500


def test_what_is_written_has_the_time_of_day_and_deadlines_do_not(tmp_path: Path) -> None:
    async def run() -> None:
        clock = Clockwork()
        partition = open_partition(tmp_path, TopicConfig(), ByHand())
        driver = ShardDriver(partition, GroupShard(SETTINGS, Random(1)), clock, lambda _: None)
        await driver.load()
        # Set right since the start, by a day.
        clock.wall_ms += 86_400_000
        driver.handle(commit(7), 2, CLIENT)
        assert driver.now_ms() == 1_700_000_000_000
        [row] = decode_rows(partition.log.read(0, 10_000, 1).records)
        # The time that counts for the retention of offsets, after a restart too.
        assert decode_offset(row.value or b"").commit_timestamp == clock.wall_ms
        assert row.timestamp == clock.wall_ms
        driver.close()

    asyncio.run(run())


def test_a_marker_that_is_refused_leaves_the_shard_as_it_is(tmp_path: Path) -> None:
    async def test(driver: ShardDriver[GroupShard], _: ByHand) -> None:
        await driver.perform_and_wait(ShardEffects(marker=Marker(7, 3, 5, committed=True)))
        with pytest.raises(KafkaError) as caught:
            driver.perform_with_future(ShardEffects(marker=Marker(7, 2, 5, committed=True)))
        assert caught.value.code is ErrorCode.INVALID_PRODUCER_EPOCH
        assert not driver.closed
        assert isinstance(driver.handle(commit(7), 2, CLIENT), Message)

    with_driver(tmp_path, TopicConfig(), test)


def test_a_marker_is_waited_for_until_it_is_committed(tmp_path: Path) -> None:
    async def test(driver: ShardDriver[GroupShard], executor: ByHand) -> None:
        done = driver.perform_with_future(ShardEffects(marker=Marker(7, 3, 5, committed=True)))
        await asyncio.sleep(0)
        assert not done.done()
        while executor.waiting:
            await executor.run_one()
        await done
        forsaken = driver.perform_with_future(ShardEffects(marker=Marker(7, 3, 5, committed=True)))
        driver.close()
        with pytest.raises(KafkaError):
            await forsaken

    with_driver(tmp_path, TopicConfig(flush_messages=1), test)
