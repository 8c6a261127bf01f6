"""What ends the wait of a fetch, and what is kept of it afterwards."""

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any, cast

import pytest
import uvloop

from headrace.broker.fetch_purgatory import DelayedFetch, FetchPurgatory
from headrace.broker.fetch_sessions import FetchIsolation, FetchSession, SessionPartition
from headrace.broker.replication.partition import Partition

LONG_S = 3600.0
FOLLOWER, CONSUMER, STABLE = (
    FetchIsolation.LOG_END,
    FetchIsolation.HIGH_WATERMARK,
    FetchIsolation.LAST_STABLE,
)


def read(index: int = 0, limit: FetchIsolation = CONSUMER) -> SessionPartition:
    return SessionPartition("t", b"", index, 0, 1000, -1, -1, limit=limit)


class FakePartition:
    """What a purgatory knows of a partition."""

    def __init__(self) -> None:
        self.high_watermark = self.last_stable_offset = 5
        self.waiting_fetches: FetchPurgatory | None = None


def make_partition() -> Partition:
    return cast("Partition", FakePartition())


def move_offsets(partition: Partition, high_watermark: int, last_stable_offset: int) -> None:
    fake = cast("Any", partition)
    fake.high_watermark, fake.last_stable_offset = high_watermark, last_stable_offset


def on_loop(test: Callable[[FetchPurgatory], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        purgatory = FetchPurgatory()
        await test(purgatory)
        held = (purgatory._session_fetches, purgatory._sessionless_fetches)
        assert held == ({}, {}), "a fetch that waits no more is forgotten"

    asyncio.run(run())


async def end(*fetches: DelayedFetch) -> None:
    """Have the client go away, as a closed connection does."""
    for fetch in fetches:
        fetch.ready.cancel()
    await asyncio.sleep(0)


@pytest.mark.parametrize("limit", [FOLLOWER, CONSUMER])
def test_a_fetch_waits_for_the_bytes_that_its_reader_can_get(limit: FetchIsolation) -> None:
    async def test(purgatory: FetchPurgatory) -> None:
        first, second = make_partition(), make_partition()
        fetch = purgatory.park([(read(0, limit), first), (read(1, limit), second)], 100, LONG_S)
        others = purgatory.committed if limit is FOLLOWER else purgatory.appended
        others(first, 1000)
        count = purgatory.appended if limit is FOLLOWER else purgatory.committed
        count(first, 60)
        assert not fetch.ready.done()
        count(second, 40)
        assert fetch.ready.done()
        assert first.waiting_fetches is second.waiting_fetches is None

    on_loop(test)


def test_a_fetch_ends_in_time_without_bytes() -> None:
    async def test(purgatory: FetchPurgatory) -> None:
        partition = make_partition()
        fetch = purgatory.park([(read(), partition)], 100, 0.001)
        await fetch.ready
        assert partition.waiting_fetches is None

    on_loop(test)


def test_a_fetch_that_waits_for_a_moment_only_ends_on_uvloop_too() -> None:
    """There a timer that is due within half a millisecond is no timer."""

    async def test() -> None:
        purgatory = FetchPurgatory()
        partition = make_partition()
        fetch = purgatory.park([(read(), partition)], 100, 0.0001)
        await fetch.ready

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(test())


def test_a_client_that_goes_away_leaves_nothing() -> None:
    async def test(purgatory: FetchPurgatory) -> None:
        partition = make_partition()
        fetch = purgatory.park([(read(), partition)], 100, LONG_S)
        staying = purgatory.park([(read(), partition)], 1, LONG_S)
        await end(fetch)
        assert partition.waiting_fetches is purgatory, "another one waits"
        purgatory.committed(partition, 1)
        assert staying.ready.done()
        assert partition.waiting_fetches is None

    on_loop(test)


def test_a_partition_that_changed_is_looked_at_now_and_not_for_its_start() -> None:
    async def test(purgatory: FetchPurgatory) -> None:
        partition = make_partition()
        fetch = purgatory.park([(read(), partition)], 100, LONG_S)
        purgatory.log_start_moved(partition)
        assert not fetch.ready.done()
        purgatory.changed(partition)
        assert fetch.ready.done()

    on_loop(test)


def test_a_reader_of_transactions_waits_until_the_last_stable_offset_moves() -> None:
    async def test(purgatory: FetchPurgatory) -> None:
        partition = make_partition()
        wanted = read(limit=STABLE)
        wanted.note_stable_offset(5, 5)
        fetch = purgatory.park([(wanted, partition)], 100, LONG_S)
        move_offsets(partition, 9, 5)
        purgatory.committed(partition, 1000)
        assert not fetch.ready.done(), "a transaction is open"
        move_offsets(partition, 10, 10)
        purgatory.committed(partition, 1)
        assert fetch.ready.done(), "what was held back was not counted"

    on_loop(test)


def make_session(replica_id: int, *reads: SessionPartition) -> FetchSession:
    session = FetchSession(Random(1).randrange(100), reads, replica_id, 0)
    session.changed.clear()
    return session


def test_a_session_is_told_of_partitions_that_it_did_not_read_this_time() -> None:
    async def test(purgatory: FetchPurgatory) -> None:
        first, second = make_partition(), make_partition()
        reads = [read(0), read(1)]
        session = make_session(-1, *reads)
        purgatory.watch(second, reads[1])
        fetch = purgatory.park_session(session, [(reads[0], first)], 100, LONG_S)
        purgatory.committed(second, 100)
        assert fetch.ready.done()
        assert list(session.changed.values()) == [reads[1]]
        assert first.waiting_fetches is second.waiting_fetches is purgatory
        purgatory.forget(session)
        assert first.waiting_fetches is second.waiting_fetches is None

    on_loop(test)


def test_a_follower_hears_of_commits_soon_and_of_bytes_at_once() -> None:
    async def test(purgatory: FetchPurgatory) -> None:
        partition, wanted = make_partition(), read(limit=FOLLOWER)
        session = make_session(2, wanted)
        fetch = purgatory.park_session(session, [(wanted, partition)], 1, LONG_S)
        purgatory.committed(partition, 1000)
        assert not fetch.ready.done()
        await fetch.ready
        fetch = purgatory.park_session(session, [(wanted, partition)], 1, LONG_S)
        purgatory.log_start_moved(partition)
        await fetch.ready
        fetch = purgatory.park_session(session, [(wanted, partition)], 1, LONG_S)
        purgatory.appended(partition, 1)
        assert fetch.ready.done()

    on_loop(test)


def test_a_partition_that_was_opened_again_is_watched_in_its_new_place() -> None:
    async def test(purgatory: FetchPurgatory) -> None:
        old, new, wanted = make_partition(), make_partition(), read()
        session = make_session(-1, wanted)
        purgatory.watch(old, wanted)
        fetch = purgatory.park_session(session, [(wanted, new)], 1, LONG_S)
        assert (old.waiting_fetches, new.waiting_fetches) == (None, purgatory)
        purgatory.committed(new, 1)
        assert fetch.ready.done()

    on_loop(test)
