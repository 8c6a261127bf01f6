"""Damage that requests meet: answered per partition, remembered for who checks the log."""

import asyncio
import logging
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.broker.compactor import Compactor
from headrace.broker.coordination.runtime import CoordinatorRuntime
from headrace.broker.handlers.fetch import fetch
from headrace.broker.replication.partition import Partition
from headrace.clock import SystemClock
from headrace.coordinator.groups.group_shard import GroupShard
from headrace.errors import CorruptBatch, ErrorCode
from headrace.metrics.registry import Registry
from headrace.protocol.messages.fetch import FetchResponse
from tests.unit.broker.coordination.test_runtime import SETTINGS
from tests.unit.broker.handlers.test_fetch import ask, asking, end_of, on_loop, only
from tests.unit.broker.handlers.test_fetch_committed import ALONE, committed
from tests.unit.broker.handling import OneNode

LENGTH_AT, MAGIC_AT, RECORDS_AT = 10, 16, 70


def damage(partition: Partition, number: int, byte: int) -> None:
    """Turn over a bit of a batch in the only segment, which the broker has open."""
    path = Path(partition.log.active.log_path)
    content = bytearray(path.read_bytes())
    position = 0
    for _ in range(number):
        position += 12 + int.from_bytes(content[position + 8 : position + 12], "big")
    content[position + byte] ^= 1
    with path.open("r+b") as file:
        file.write(content)


@pytest.mark.parametrize("cold", [False, True])
@pytest.mark.parametrize("byte", [LENGTH_AT, MAGIC_AT])
def test_a_reader_of_committed_records_gets_those_before_the_damage(
    tmp_path: Path, byte: int, cold: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(node: OneNode) -> None:
        partition = node.add(0, ALONE)
        for number in range(6):
            node.append(partition, b"%d" % number * 100)
        damage(partition, 3, byte)
        log = partition.log
        if cold:
            monkeypatch.setattr(log, "read_cached", lambda *_, **__: None)

        async def answer(offset: int) -> Any:
            found = fetch(node.context(12), committed({0: offset}, max_wait_ms=0))
            return only(found if isinstance(found, FetchResponse) else await found)

        data = await answer(0)
        if byte == MAGIC_AT:
            assert (data.error_code, end_of(data)) == (ErrorCode.NONE, 3)
            assert log.suspected_offset == 3
            log.clear_suspicion()
            data = await answer(3)
            assert (data.error_code, bytes(data.records)) == (ErrorCode.CORRUPT_MESSAGE, b"")
            assert log.suspected_offset == 3

    on_loop(tmp_path, test)


def test_records_that_a_follower_asks_for_again_are_checked(tmp_path: Path) -> None:
    async def test(node: OneNode) -> None:
        partition = node.add()
        for number in range(4):
            node.append(partition, b"%d" % number * 100)
        request = asking({0: 1}, replica=2, max_wait_ms=0)
        ask(node, request)
        ask(node, request)
        assert partition.log.suspected_offset is None, "they are intact"
        damage(partition, 2, RECORDS_AT)
        ask(node, asking({0: 2}, replica=2, max_wait_ms=0))
        assert partition.log.suspected_offset is None, "it was not asked for before"
        ask(node, asking({0: 2}, replica=2, max_wait_ms=0))
        assert partition.log.suspected_offset == 2

    on_loop(tmp_path, test)


@pytest.mark.parametrize(("byte", "reason"), [(RECORDS_AT, "CRC is"), (MAGIC_AT, "message format")])
def test_a_coordinator_says_where_its_log_is_damaged_and_what_to_do_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, byte: int, reason: str
) -> None:
    async def test(node: OneNode) -> None:
        partition = node.add(0, ALONE)
        for number in range(4):
            node.append(partition, b"%d" % number * 100)
        damage(partition, 2, byte)
        coordinators = CoordinatorRuntime(
            "orders", SystemClock(), lambda _: SkippingShard(SETTINGS, Random(1))
        )
        coordinators.lead(1, {0: partition})
        for _ in range(3):
            await asyncio.sleep(0.01)
            coordinators._drive_again(partition)
        await asyncio.sleep(0.01)
        coordinators.close()
        assert partition.log.suspected_offset == 2
        [line] = [
            record.getMessage() for record in caplog.records if record.levelno == logging.ERROR
        ]
        assert f"{partition.log.directory} cannot be read at offset 2: {reason}" in line
        assert f"headrace log repair {partition.log.directory}" in line

    on_loop(tmp_path, test)


class SkippingShard(GroupShard):
    """A shard that takes any record."""

    def replay(self, *_: Any) -> None:
        pass


def test_compaction_that_meets_damage_has_the_log_checked(tmp_path: Path) -> None:
    async def test(node: OneNode) -> None:
        partition = node.add(0, ALONE)
        fake: Any = SimpleNamespace(rng=Random(1), replicas=[partition], metrics=Registry())
        Compactor(fake)._failed(partition, CorruptBatch("CRC is wrong"))
        assert partition.log.suspected_offset == 0

    on_loop(tmp_path, test)
