"""A coordinator that raises is dropped and loaded again; nothing half done is kept or sent."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

from headrace.broker.coordination.runtime import OFFSETS_TOPIC, CoordinatorRuntime, ShardDriver
from headrace.clock import SteadyClock, SystemClock
from headrace.config import TopicConfig
from headrace.coordinator.groups.classic_protocol import ClassicProtocol
from headrace.coordinator.groups.group_offsets import OffsetStore
from headrace.coordinator.groups.group_shard import GroupShard
from headrace.coordinator.shard import ShardEffects
from headrace.errors import ErrorCode, KafkaError
from headrace.tasks import stop_on_bugs
from tests.unit.broker.coordination.test_runtime import (
    CLIENT,
    SETTINGS,
    commit,
    committed,
    join,
    open_partition,
)
from tests.unit.broker.replication.test_partition import ByHand

Groups = CoordinatorRuntime[GroupShard]
Bugs = list[tuple[str, BaseException]]


def with_groups(directory: Path, test: Callable[[Groups, Bugs], Coroutine[Any, Any, None]]) -> None:
    """Run a test with the coordinator of one partition, and the bugs that would end the process."""

    async def run() -> None:
        bugs: Bugs = []
        stop_on_bugs(asyncio.get_running_loop(), lambda *bug: bugs.append(bug))
        partition = open_partition(directory, TopicConfig(), ByHand())
        groups = CoordinatorRuntime(
            OFFSETS_TOPIC, SteadyClock(SystemClock()), lambda _: GroupShard(SETTINGS, Random(1))
        )
        groups.lead(1, {0: partition})
        try:
            await test(groups, bugs)
        finally:
            groups.close()

    asyncio.run(run())


async def loaded(groups: Groups) -> ShardDriver[GroupShard]:
    """The driver of the group's partition once it answers."""
    while True:
        with suppress(KafkaError):
            return groups.driver_of("g")
        await asyncio.sleep(0.001)


def raise_planted(*_: object) -> None:
    raise AssertionError("planted")


def refused(driver: ShardDriver[GroupShard]) -> ErrorCode:
    """The code that a commit of offset 13 is refused with."""
    with pytest.raises(KafkaError) as caught:
        driver.handle(commit(13), 2, CLIENT)
    return caught.value.code


def test_a_request_that_raises_leaves_what_was_committed_and_nothing_of_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(groups: Groups, bugs: Bugs) -> None:
        driver = await loaded(groups)
        driver.handle(commit(7), 2, CLIENT)
        waiting = driver.handle(join("other"), 3, CLIENT)
        assert isinstance(waiting, asyncio.Future)
        end_offset = driver.partition.log.log_end_offset
        monkeypatch.setattr(OffsetStore, "commit", raise_planted)
        assert refused(driver) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        monkeypatch.undo()
        told = waiting.exception()
        assert isinstance(told, KafkaError) and told.code is ErrorCode.NOT_COORDINATOR
        assert driver.closed
        again = await loaded(groups)
        assert again is not driver
        assert again.partition.log.log_end_offset == end_offset
        assert committed(again) == [7]
        again.handle(commit(8), 2, CLIENT)
        assert committed(again) == [8]
        assert bugs == []

    with caplog.at_level(logging.CRITICAL):
        with_groups(tmp_path, test)
    [line] = caplog.records
    assert line.getMessage().startswith("bug in the coordinator of __consumer_offsets-0")
    assert line.exc_info is not None and str(line.exc_info[1]) == "planted"


def test_a_member_that_was_added_half_way_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(groups: Groups, _: Bugs) -> None:
        driver = await loaded(groups)
        driver.handle(commit(7), 2, CLIENT)
        monkeypatch.setattr(ClassicProtocol, "_prepare_or_complete", raise_planted)
        with pytest.raises(KafkaError):
            driver.handle(join(), 3, CLIENT)
        assert len(driver.shard.describe("g", 6).members) == 1
        monkeypatch.undo()
        again = await loaded(groups)
        assert again.shard.describe("g", 6).members == []
        assert committed(again) == [7]

    with_groups(tmp_path, test)


def test_a_timer_that_raises_drops_the_shard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(groups: Groups, bugs: Bugs) -> None:
        driver = await loaded(groups)
        monkeypatch.setattr(ClassicProtocol, "_on_join_timeout", raise_planted)
        waiting = driver.handle(join(), 3, CLIENT)
        assert isinstance(waiting, asyncio.Future)
        with pytest.raises(KafkaError) as told:
            await waiting
        assert told.value.code is ErrorCode.NOT_COORDINATOR
        assert await loaded(groups) is not driver
        assert bugs == []

    with_groups(tmp_path, test)


def test_a_commit_that_cannot_be_replayed_drops_the_shard_and_is_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(groups: Groups, _: Bugs) -> None:
        driver = await loaded(groups)
        monkeypatch.setattr(driver.shard, "commit", raise_planted)
        assert refused(driver) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        again = await loaded(groups)
        assert again is not driver
        assert committed(again) == [13]

    with_groups(tmp_path, test)


def test_effects_that_are_performed_by_others_drop_the_shard_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(groups: Groups, _: Bugs) -> None:
        driver = await loaded(groups)

        def remove(shard: GroupShard) -> ShardEffects:
            raise AssertionError("planted")

        with pytest.raises(KafkaError) as caught:
            driver.ask(remove)
        assert caught.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert await loaded(groups) is not driver

    with_groups(tmp_path, test)


def test_the_third_bug_within_a_minute_stops_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(groups: Groups, bugs: Bugs) -> None:
        monkeypatch.setattr(OffsetStore, "commit", raise_planted)
        for _ in range(2):
            refused(await loaded(groups))
        assert bugs == []
        refused(await loaded(groups))
        [(where, error)] = bugs
        assert where == "the coordinators of __consumer_offsets"
        assert str(error) == "planted"

    with_groups(tmp_path, test)


def test_a_load_that_raises_is_tried_again_and_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(groups: Groups, bugs: Bugs) -> None:
        driver = await loaded(groups)
        driver.handle(commit(7), 2, CLIENT)
        real, failures = GroupShard.replay, 0

        def replay(shard: GroupShard, *arguments: Any) -> None:
            nonlocal failures
            failures += 1
            if failures <= 5:
                raise AssertionError("planted")
            real(shard, *arguments)

        monkeypatch.setattr(GroupShard, "replay", replay)
        groups.lead(1, {})
        groups.lead(1, {0: driver.partition})
        assert committed(await loaded(groups)) == [7]
        assert failures == 6
        assert bugs == []

    monkeypatch.setattr("headrace.broker.coordination.runtime.RELOAD_SECONDS", 0.001)
    with_groups(tmp_path, test)
