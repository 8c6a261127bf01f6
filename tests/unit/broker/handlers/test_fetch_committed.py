"""Fetch at READ_COMMITTED: how far it reads, what it is told of aborted ones, when it waits."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace.broker.handlers.fetch import fetch
from headrace.broker.replication.partition import Partition
from headrace.metadata.image import PartitionImage
from headrace.protocol.batch import scan_headers
from headrace.protocol.markers import Marker
from headrace.protocol.messages.fetch import FetchRequest, FetchResponse, PartitionData
from tests.unit.broker.handlers.test_fetch import ask, asking, end_of, later, on_loop, only
from tests.unit.broker.handling import FOLLOWS, OneNode, batch

ALONE = PartitionImage((1,), (1,), leader=1, leader_epoch=4, partition_epoch=9)
READ_COMMITTED = 1


def committed(offsets: dict[int, int] | None = None, **fields: Any) -> FetchRequest:
    return asking(offsets, isolation_level=READ_COMMITTED, **fields)


def write(node: OneNode, partition: Partition, producer_id: int, *, sequence: int = 0) -> int:
    """One record of a transaction: its offset."""
    now_ms = node.clock.now_ms()
    data = batch(
        b"x",
        now_ms=now_ms,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=sequence,
        transactional=True,
    )
    return partition.append(memoryview(data), now_ms).base_offset


def end(node: OneNode, partition: Partition, producer_id: int, *, commits: bool = True) -> int:
    """The marker of a transaction: its offset."""
    marker = Marker(producer_id, 0, 0, commits)
    return partition.append_marker(marker, node.clock.now_ms()).base_offset


def aborted(data: PartitionData) -> list[tuple[int, int]]:
    assert data.aborted_transactions is not None
    return [
        (aborted_transaction.producer_id, aborted_transaction.first_offset)
        for aborted_transaction in data.aborted_transactions
    ]


def test_reader_stops_before_the_first_transaction_that_is_open(tmp_path: Path) -> None:
    async def test(node: OneNode) -> None:
        partition = node.add(0, ALONE)
        node.append(partition, b"a")
        first = write(node, partition, 7)
        node.append(partition, b"b")
        data = only(ask(node, committed({0: 0})))
        assert (end_of(data), aborted(data)) == (first, [])
        assert (data.last_stable_offset, data.high_watermark) == (first, 3)
        assert only(ask(node, committed({0: first}))).records == b""
        # Who does not ask for that reads on, and is told as well how far others get.
        data = only(ask(node, asking({0: 0})))
        assert (end_of(data), data.aborted_transactions) == (3, None)
        assert (data.last_stable_offset, data.high_watermark) == (first, 3)
        end(node, partition, 7)
        data = only(ask(node, committed({0: 0})))
        assert (end_of(data), aborted(data), data.last_stable_offset) == (4, [], 4)

    on_loop(tmp_path, test)


def test_aborted_transactions_are_named_with_what_is_read_of_them(tmp_path: Path) -> None:
    async def test(node: OneNode) -> None:
        partition = node.add(0, ALONE)
        first = write(node, partition, 7)
        second = write(node, partition, 8)
        end(node, partition, 7, commits=False)
        end(node, partition, 8)
        third = write(node, partition, 9)
        end(node, partition, 9, commits=False)
        data = only(ask(node, committed({0: 0})))
        assert (end_of(data), aborted(data)) == (6, [(7, first), (9, third)])
        assert aborted(only(ask(node, committed({0: second})))) == [(7, first), (9, third)]
        assert aborted(only(ask(node, committed({0: third})))) == [(9, third)]
        # One batch of it: what lies behind is told with the next.
        assert aborted(only(ask(node, committed({0: 0}, max_bytes=1)))) == [(7, first)]
        assert only(ask(node, asking({0: 0}))).aborted_transactions is None

    on_loop(tmp_path, test)


def test_transaction_is_undecided_until_its_marker_is_committed(tmp_path: Path) -> None:
    async def test(node: OneNode) -> None:
        partition = node.add()
        write(node, partition, 7)
        end(node, partition, 7, commits=False)
        for replica in (2, 3):
            ask(node, asking({0: 1}, replica=replica, max_wait_ms=0))
        data = only(ask(node, committed({0: 0})))
        assert (data.high_watermark, data.last_stable_offset, data.records) == (1, 0, b"")
        waiting = later(node, committed({0: 0}, max_wait_ms=500))
        for replica in (2, 3):
            ask(node, asking({0: 2}, replica=replica, max_wait_ms=0))
        data = only(await waiting)
        assert (end_of(data), aborted(data)) == (2, [(7, 0)])

    on_loop(tmp_path, test)


def test_follower_serves_readers_of_committed_transactions(tmp_path: Path) -> None:
    async def test(node: OneNode) -> None:
        leader = node.add(1, ALONE)
        write(node, leader, 7)
        end(node, leader, 7, commits=False)
        open_at = write(node, leader, 8)
        data = bytes(leader.log.read(0, 1_000_000, leader.log.log_end_offset).records)
        partition = node.add(0, FOLLOWS)
        partition.append_replicated(data, scan_headers(data), 3, 0, node.clock.now_ms())
        found = only(ask(node, committed({0: 0})))
        assert (end_of(found), aborted(found)) == (open_at, [(7, 0)])
        assert found.last_stable_offset == open_at
        # Between what is stable and what is committed there is nothing for it, and no mistake.
        found = only(ask(node, committed({0: 3})))
        assert (found.error_code, found.records) == (0, b"")

    on_loop(tmp_path, test)


@pytest.mark.parametrize("cold", ["read_cached", "aborted_transactions_cached"])
def test_what_waits_for_the_disk_is_found_by_a_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cold: str
) -> None:
    async def test(node: OneNode) -> None:
        partition = node.add(0, ALONE)
        write(node, partition, 7)
        end(node, partition, 7, commits=False)
        write(node, partition, 8)
        monkeypatch.setattr(type(partition.log), cold, lambda *_, **__: None)
        data = only(await later(node, committed({0: 0})))
        assert (end_of(data), aborted(data)) == (2, [(7, 0)])

    on_loop(tmp_path, test)


def with_and_without_a_session(
    directory: Path,
    test: Callable[[OneNode, Partition, "Waits"], Coroutine[Any, Any, None]],
) -> None:
    for number, is_session in enumerate((False, True)):

        async def both(node: OneNode, is_session: bool = is_session) -> None:
            partition = node.add(0, ALONE)
            await test(node, partition, Waits(node, is_session))

        on_loop(directory / str(number), both)


class Waits:
    """Fetches that wait for what is behind an offset."""

    def __init__(self, node: OneNode, is_session: bool) -> None:
        self._node = node
        self._is_session = is_session

    async def wait(self, offset: int, **fields: Any) -> asyncio.Future[FetchResponse]:
        session = (0, -1)
        if self._is_session:
            opened = ask(self._node, committed({0: offset}, session=(0, 0), max_wait_ms=0))
            session = (opened.session_id, 1)
        fields = {"max_wait_ms": 500, **fields}
        waiting = later(self._node, committed({0: offset}, session=session, **fields))
        await asyncio.sleep(0)
        return waiting


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_reader_that_waits_for_a_transaction_is_woken_by_its_end_alone(tmp_path: Path) -> None:
    async def test(node: OneNode, partition: Partition, waits: Waits) -> None:
        first = write(node, partition, 7)
        waiting = await waits.wait(first)
        for sequence in range(1, 4):
            node.append(partition, b"other")
            write(node, partition, 7, sequence=sequence)
        await turns()
        assert not waiting.done(), "there is nothing for it, however much is appended"
        end(node, partition, 7)
        await turns()
        assert waiting.done()
        assert end_of(only(await waiting)) == partition.log.log_end_offset

    with_and_without_a_session(tmp_path, test)


def test_transaction_that_begins_and_ends_during_the_wait_is_read(tmp_path: Path) -> None:
    async def test(node: OneNode, partition: Partition, waits: Waits) -> None:
        waiting = await waits.wait(0)
        write(node, partition, 7)
        await turns()
        assert not waiting.done()
        end(node, partition, 7, commits=False)
        await turns()
        assert waiting.done()
        assert aborted(only(await waiting)) == [(7, 0)]

    with_and_without_a_session(tmp_path, test)


def test_end_of_a_transaction_sets_free_what_was_written_before_the_wait(tmp_path: Path) -> None:
    async def test(node: OneNode, partition: Partition, waits: Waits) -> None:
        write(node, partition, 7)
        node.append(partition, b"x" * 10_000)
        # The marker alone would be too little to answer with.
        waiting = await waits.wait(0, min_bytes=5_000)
        end(node, partition, 7)
        await turns()
        assert waiting.done()

    with_and_without_a_session(tmp_path, test)


def test_without_transactions_bytes_are_counted(tmp_path: Path) -> None:
    async def test(node: OneNode, partition: Partition, waits: Waits) -> None:
        waiting = await waits.wait(0, min_bytes=5_000)
        node.append(partition, b"x" * 3_000)
        await turns()
        assert not waiting.done()
        node.append(partition, b"x" * 3_000)
        await turns()
        assert waiting.done()

    with_and_without_a_session(tmp_path, test)


def test_transactions_that_end_one_by_one_are_read_one_by_one(tmp_path: Path) -> None:
    async def test(node: OneNode, partition: Partition, waits: Waits) -> None:
        write(node, partition, 7)
        second = write(node, partition, 8)
        waiting = await waits.wait(0)
        end(node, partition, 7)
        await turns()
        assert end_of(only(await waiting)) == second
        waiting = await waits.wait(second)
        node.append(partition, b"other")
        await turns()
        assert not waiting.done()
        end(node, partition, 8)
        assert end_of(only(await waiting)) == partition.log.log_end_offset

    with_and_without_a_session(tmp_path, test)


def test_session_at_rest_does_not_miss_the_end_of_a_transaction(tmp_path: Path) -> None:
    async def test(node: OneNode) -> None:
        for index in range(20):
            write(node, node.add(index, ALONE), 7)
        offsets = dict.fromkeys(range(20), 0)
        session_id = ask(node, committed(offsets, session=(0, 0), max_wait_ms=0)).session_id
        response = await later(node, committed(session=(session_id, 1), max_wait_ms=500))
        assert response.responses == []
        node.replicas.looked_at = 0
        response = await later(node, committed(session=(session_id, 2), max_wait_ms=500))
        assert (response.responses, node.replicas.looked_at) == ([], 0)
        # Between two fetches.
        end(node, node.replicas.partitions[17], 7)
        data = only(ask(node, committed(session=(session_id, 3), max_wait_ms=500)))
        assert (data.partition_index, end_of(data), data.last_stable_offset) == (17, 2, 2)
        # During one, and what does not end it is told with the next.
        waiting = later(node, committed({17: 2}, session=(session_id, 4), max_wait_ms=500))
        node.append(node.replicas.partitions[4], b"other")
        await turns()
        assert not waiting.done()
        end(node, node.replicas.partitions[3], 7)
        [topic] = (await waiting).responses
        told = {
            partition.partition_index: partition.high_watermark for partition in topic.partitions
        }
        assert told == {4: 2, 3: 2}

    on_loop(tmp_path, test)


def test_leadership_that_ends_ends_the_wait(tmp_path: Path) -> None:
    async def test(node: OneNode, partition: Partition, waits: Waits) -> None:
        write(node, partition, 7)
        waiting = await waits.wait(0)
        partition.follow(replace(FOLLOWS, leader_epoch=5))
        await turns()
        assert waiting.done()

    with_and_without_a_session(tmp_path, test)


def test_followers_are_not_bound_by_transactions(tmp_path: Path) -> None:
    async def test(node: OneNode) -> None:
        partition = node.add()
        write(node, partition, 7)
        response = fetch(node.context(17), committed({0: 0}, replica=2))
        assert isinstance(response, FetchResponse)
        assert end_of(only(response)) == 1

    on_loop(tmp_path, test)
