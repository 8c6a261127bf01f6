"""Followers that fetch from a leader, cut their logs and catch up."""

import asyncio
import errno
import logging
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from headrace.broker.metadata_store import MetadataStore
from headrace.broker.replication.flush_queue import FlushQueue
from headrace.broker.replication.replica_fetchers import ReplicaFetchers
from headrace.config import BrokerConfig, TopicConfig
from headrace.errors import ErrorCode, StorageError
from headrace.metadata.image import PartitionImage
from headrace.protocol.messages.fetch import EpochEndOffset, FetchRequest
from headrace.storage.log import Log
from headrace.testing.simulation.loop import VirtualLoop
from tests.unit.broker.leaders import (
    TOPIC_ID,
    FakeClock,
    FakeStore,
    Leader,
    brokers,
    content,
    follower_of,
    name_of,
    open_log,
    until,
    write,
)
from tests.unit.storage.logs import FaultyFiles

CONFIG = BrokerConfig(node_id=2, replica_fetch_wait_max_ms=30_000, replica_fetch_backoff_ms=20)


class Setting:
    """A leader, the fetchers of a follower, and where both have their logs. Time is virtual."""

    def __init__(self, directory: Path, config: BrokerConfig) -> None:
        self.leaders_logs = directory / "leader"
        self.own_logs = directory / "follower"
        self.leader = Leader()
        self.store = FakeStore(image=brokers((1, 5), (2, 7)))
        self.checkpoints = 0
        self.fetchers = ReplicaFetchers(
            config,
            cast(MetadataStore, self.store),
            FakeClock(),
            self.checkpoint,
            self.leader.link,
        )

    async def checkpoint(self) -> None:
        await asyncio.sleep(1)
        self.checkpoints += 1


def run(
    directory: Path,
    test: Callable[[Setting], Coroutine[Any, Any, None]],
    config: BrokerConfig = CONFIG,
) -> None:
    for name in ("leader", "follower"):
        (directory / name).mkdir()

    async def main() -> None:
        setting = Setting(directory, config)
        try:
            await test(setting)
        finally:
            await setting.fetchers.stop()
        assert len(asyncio.all_tasks()) == 1

    with asyncio.Runner(loop_factory=lambda: VirtualLoop(1)) as runner:
        runner.run(main())


def test_a_new_replica_gets_every_byte_and_what_comes_later(tmp_path: Path) -> None:
    async def test(setting: Setting) -> None:
        theirs, ours = open_log(setting.leaders_logs), open_log(setting.own_logs)
        setting.leader.lead(0, theirs, 1)
        for number in range(20):
            write(theirs, 1, b"early %d" % number, b"second")
        setting.leader.high_watermarks[0] = 10
        partition = follower_of(ours)
        setting.fetchers.follow(partition, TOPIC_ID)
        await until(lambda: ours.log_end_offset == 40)
        assert partition.high_watermark == 10
        write(theirs, 1, b"late")
        setting.leader.high_watermarks[0] = 41
        setting.leader.changes()
        await until(lambda: ours.log_end_offset == 41)
        assert partition.high_watermark == 41
        assert content(ours) == content(theirs)
        assert ours.epochs.entries == theirs.epochs.entries

    run(tmp_path, test)


def test_a_new_leader_is_asked_only_when_the_log_is_as_durable_as_it_says(tmp_path: Path) -> None:
    """A fetch acknowledges all before its offset; a flush of the last leader's records may run."""

    class HeldFlushes(FlushQueue):
        def __init__(self) -> None:
            self.held: list[Callable[[int], None]] = []

        def flush(self, log: Log, on_flushed: Callable[[int], None]) -> None:
            self.held.append(on_flushed)

    async def test(setting: Setting) -> None:
        config, flusher = TopicConfig(flush_messages=1), HeldFlushes()
        theirs, ours = open_log(setting.leaders_logs), open_log(setting.own_logs, config=config)
        setting.leader.lead(0, theirs, 2)
        for log in (theirs, ours):
            write(log, 1, b"a")
        partition = follower_of(ours, epoch=2, config=config, flusher=flusher)
        setting.fetchers.follow(partition, TOPIC_ID)
        await asyncio.sleep(1)
        assert setting.leader.fetches == []
        ours.flush()
        flusher.held.pop()(1)
        await until(lambda: len(setting.leader.fetches) > 0)
        (asked,) = setting.leader.fetches[0].topics[0].partitions
        assert asked.fetch_offset == 1

    run(tmp_path, test)


def test_requests_tell_who_asks_and_what_it_has(tmp_path: Path) -> None:
    async def test(setting: Setting) -> None:
        theirs, ours = open_log(setting.leaders_logs), open_log(setting.own_logs)
        setting.leader.lead(0, theirs, 3)
        write(theirs, 3, b"one")
        setting.fetchers.follow(follower_of(ours, epoch=3), TOPIC_ID)
        await until(lambda: len(setting.leader.fetches) == 2)
        first, second = setting.leader.fetches
        assert (first.replica_state.replica_id, first.replica_state.replica_epoch) == (2, 7)
        (one,) = second.topics[0].partitions
        assert second.session_epoch == 1
        assert second.topics[0].topic_id == TOPIC_ID
        assert (one.fetch_offset, one.last_fetched_epoch, one.current_leader_epoch) == (1, 3, 3)

    run(tmp_path, test)


def test_producers_are_known_to_the_replica(tmp_path: Path) -> None:
    async def test(setting: Setting) -> None:
        theirs, ours = open_log(setting.leaders_logs), open_log(setting.own_logs)
        setting.leader.lead(0, theirs, 1)
        write(theirs, 1, b"a", b"b", producer_id=9, sequence=0)
        write(theirs, 1, b"c", producer_id=9, sequence=2)
        setting.fetchers.follow(follower_of(ours), TOPIC_ID)
        await until(lambda: ours.log_end_offset == 3)
        producer = ours.producers.get(9)
        assert producer is not None
        assert producer.last_sequence == 2

    run(tmp_path, test)


def test_a_log_that_parted_is_cut_by_epoch_and_not_at_the_high_watermark(tmp_path: Path) -> None:
    async def test(setting: Setting) -> None:
        theirs, ours = open_log(setting.leaders_logs), open_log(setting.own_logs)
        # Both have ten records of epoch 1; ours led on and wrote five more that nobody got.
        for log in (theirs, ours):
            log.start_epoch(1)
            write(log, 1, *[b"common"] * 10)
        write(ours, 1, *[b"lost"] * 5)
        setting.leader.lead(0, theirs, 2)
        write(theirs, 2, *[b"new"] * 3)
        partition = follower_of(ours, epoch=2, high_watermark=4)
        setting.fetchers.follow(partition, TOPIC_ID)
        await until(lambda: content(ours) == content(theirs))
        assert partition.high_watermark == 13
        assert ours.epochs.entries == ((1, 0), (2, 10))

    run(tmp_path, test)


def test_what_both_have_above_the_high_watermark_stays(tmp_path: Path) -> None:
    async def test(setting: Setting) -> None:
        theirs, ours = open_log(setting.leaders_logs), open_log(setting.own_logs)
        for log in (theirs, ours):
            log.start_epoch(1)
            write(log, 1, b"one")
            write(log, 1, b"two")
        setting.leader.lead(0, theirs, 2)
        partition = follower_of(ours, epoch=2)
        ends = []
        truncate = ours.truncate_to
        ours.truncate_to = lambda offset: (ends.append(offset), truncate(offset))  # type: ignore
        setting.fetchers.follow(partition, TOPIC_ID)
        await until(lambda: len(setting.leader.fetches) == 1)
        setting.leader.changes()
        await until(lambda: partition.high_watermark == 2)
        assert not ends

    run(tmp_path, test)


def test_an_epoch_without_records_holds_nobody_up(tmp_path: Path) -> None:
    async def test(setting: Setting) -> None:
        theirs, ours = open_log(setting.leaders_logs), open_log(setting.own_logs)
        for log in (theirs, ours):
            log.start_epoch(1)
            write(log, 1, b"common")
        write(theirs, 1, b"more")
        ours.start_epoch(2)  # It led for a moment.
        setting.leader.lead(0, theirs, 3)
        setting.fetchers.follow(follower_of(ours, epoch=3), TOPIC_ID)
        await until(lambda: ours.log_end_offset == 2)
        write(theirs, 3, b"last")
        setting.leader.changes()
        await until(lambda: content(ours) == content(theirs))
        assert ours.epochs.entries == theirs.epochs.entries == ((1, 0), (3, 2))

    run(tmp_path, test)


def test_a_leader_that_asks_for_a_cut_in_vain_is_not_asked_all_the_time(tmp_path: Path) -> None:
    async def test(setting: Setting) -> None:
        theirs, ours = open_log(setting.leaders_logs), open_log(setting.own_logs)
        for log in (theirs, ours):
            log.start_epoch(1)
            write(log, 1, b"common")
        setting.leader.lead(0, theirs, 2)
        setting.leader.says_diverging = EpochEndOffset(epoch=1, end_offset=5)
        setting.fetchers.follow(follower_of(ours, epoch=2), TOPIC_ID)
        await asyncio.sleep(1)
        assert 10 < len(setting.leader.fetches) <= 50
        assert ours.log_end_offset == 1

    run(tmp_path, test)


def diverge(setting: Setting, config: TopicConfig) -> tuple[Log, Log]:
    """The logs of a leader and of a follower that has two committed records where it has one."""
    theirs, ours = open_log(setting.leaders_logs), open_log(setting.own_logs, config=config)
    for log in (theirs, ours):
        log.start_epoch(1)
        write(log, 1, b"one")
    write(ours, 1, b"two")
    setting.leader.lead(0, theirs, 2)
    write(theirs, 2, b"other")
    return theirs, ours


@pytest.mark.parametrize("how", ["the election is known", "any election may"])
def test_records_that_were_committed_go_only_with_an_outcry(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    async def test(setting: Setting) -> None:
        is_known = how == "the election is known"
        config = TopicConfig(unclean_leader_election_enable=not is_known)
        theirs, ours = diverge(setting, config)
        partition = follower_of(ours, epoch=1, high_watermark=2)
        assert partition.high_watermark == 2
        image = PartitionImage((1, 2), (1,), 1, 2, 2, leader_recovery_state=1 if is_known else 0)
        partition.follow(image)
        # The metadata may say that it is recovered before this replica has come to fetch.
        partition.update(replace(image, isr=(1, 3), partition_epoch=3, leader_recovery_state=0))
        partition.reconfigure(config)
        setting.fetchers.follow(partition, TOPIC_ID)
        await until(lambda: content(ours) == content(theirs))
        assert not partition.may_lose_committed or not is_known

    run(tmp_path, test)
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert "committed records from offset 1 to 2 were removed" in record.message


def test_committed_records_are_kept_from_a_leader_that_lacks_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(setting: Setting) -> None:
        theirs, ours = diverge(setting, TopicConfig())
        before = content(ours)
        partition = follower_of(ours, epoch=2, high_watermark=2)
        setting.fetchers.follow(partition, TOPIC_ID)
        await until(lambda: partition.diverged is not None)
        await asyncio.sleep(10)
        assert len(setting.leader.fetches) == 1
        assert content(ours) == before
        # One that has them is followed again.
        theirs.truncate_to(1)
        write(theirs, 1, b"two")
        setting.leader.lead(0, theirs, 3)
        write(theirs, 3, b"three")
        partition.follow(PartitionImage((1, 2), (1,), 1, 3, 3))
        setting.fetchers.follow(partition, TOPIC_ID)
        await until(lambda: content(ours) == content(theirs))
        assert partition.diverged is None

    run(tmp_path, test)
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert "records from offset 1 to 2 are committed, and broker 1" in record.message
    assert "headrace log strays set-aside" in record.message


def test_an_empty_leader_takes_nothing_away(tmp_path: Path) -> None:
    async def test(setting: Setting) -> None:
        theirs, ours = open_log(setting.leaders_logs), open_log(setting.own_logs)
        ours.start_epoch(1)
        write(ours, 1, b"one", b"two")
        before = content(ours)
        setting.leader.lead(0, theirs, 2)
        partition = follower_of(ours, epoch=2, high_watermark=2)
        setting.fetchers.follow(partition, TOPIC_ID)
        await until(lambda: partition.diverged is not None)
        assert content(ours) == before

    run(tmp_path, test)


@pytest.mark.parametrize("has_old_records", [False, True])
def test_a_replica_behind_the_leaders_log_start_begins_there(
    tmp_path: Path, has_old_records: bool
) -> None:
    async def test(setting: Setting) -> None:
        theirs, ours = open_log(setting.leaders_logs), open_log(setting.own_logs)
        theirs.start_epoch(1)
        for number in range(10):
            write(theirs, 1, b"%d" % number)
        if has_old_records:
            ours.start_epoch(1)
            write(ours, 1, b"0")
        theirs.roll(0)
        theirs.truncate_fully_and_start_at(50)
        setting.leader.lead(0, theirs, 2)
        write(theirs, 2, b"fifty")
        partition = follower_of(ours, epoch=2)
        setting.fetchers.follow(partition, TOPIC_ID)
        await until(lambda: ours.log_end_offset == 51)
        assert ours.log_start_offset == 50
        assert partition.high_watermark == 51
        assert content(ours) == content(theirs)

    run(tmp_path, test)


def test_a_leaders_log_may_start_in_the_middle_of_a_batch(tmp_path: Path) -> None:
    async def test(setting: Setting) -> None:
        theirs, ours = open_log(setting.leaders_logs), open_log(setting.own_logs)
        setting.leader.lead(0, theirs, 1)
        write(theirs, 1, *[b"five"] * 5)
        write(theirs, 1, *[b"more"] * 5)
        theirs.advance_log_start(7)
        setting.fetchers.follow(follower_of(ours), TOPIC_ID)
        await until(lambda: ours.log_end_offset == 10)
        assert ours.log_start_offset == 7
        assert content(theirs).endswith(content(ours))

    run(tmp_path, test)


def test_the_log_start_follows_the_leaders(tmp_path: Path) -> None:
    async def test(setting: Setting) -> None:
        theirs, ours = open_log(setting.leaders_logs), open_log(setting.own_logs)
        setting.leader.lead(0, theirs, 1)
        for number in range(4):
            write(theirs, 1, b"%d" % number)
        setting.fetchers.follow(follower_of(ours), TOPIC_ID)
        await until(lambda: ours.log_end_offset == 4)
        count = len(setting.leader.fetches)
        theirs.advance_log_start(3)
        setting.leader.changes()
        await until(lambda: ours.log_start_offset == 3)
        # What it asks next says so, when a crash cannot bring the records back any more.
        assert setting.checkpoints == 0
        await until(lambda: len(setting.leader.fetches) > count)
        assert setting.leader.fetches[-1].topics[0].partitions[0].log_start_offset == 3
        assert setting.checkpoints == 1

    run(tmp_path, test)


def test_damaged_records_are_not_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def test(setting: Setting) -> None:
        theirs, ours = open_log(setting.leaders_logs), open_log(setting.own_logs)
        setting.leader.lead(0, theirs, 1)
        write(theirs, 1, b"precious")
        setting.leader.spoil = lambda data: data[:-1] + b"?"
        setting.fetchers.follow(follower_of(ours), TOPIC_ID)
        await until(lambda: len(setting.leader.fetches) == 2)
        assert ours.log_end_offset == 0
        setting.leader.spoil = lambda data: data
        await until(lambda: ours.log_end_offset == 1)
        assert content(ours) == content(theirs)

    run(tmp_path, test)
    assert any("orders-0 cannot follow broker 1" in record.message for record in caplog.records)


def test_a_batch_that_is_cut_off_is_left_for_the_next_fetch(tmp_path: Path) -> None:
    async def test(setting: Setting) -> None:
        theirs, ours = open_log(setting.leaders_logs), open_log(setting.own_logs)
        setting.leader.lead(0, theirs, 1)
        write(theirs, 1, b"whole")
        write(theirs, 1, b"half")
        whole = len(content(theirs))
        cut = [True]
        setting.leader.spoil = lambda data: data[:-3] if cut and len(data) == whole else data
        setting.fetchers.follow(follower_of(ours), TOPIC_ID)
        await until(lambda: ours.log_end_offset == 2)
        assert content(ours) == content(theirs)

    run(tmp_path, test)


def test_a_leader_that_does_not_know_it_yet_is_asked_again(tmp_path: Path) -> None:
    async def test(setting: Setting) -> None:
        theirs, ours = open_log(setting.leaders_logs), open_log(setting.own_logs)
        write(theirs, 1, b"one")
        setting.fetchers.follow(follower_of(ours), TOPIC_ID)
        await until(lambda: len(setting.leader.fetches) == 2)
        setting.leader.lead(0, theirs, 1)
        await until(lambda: ours.log_end_offset == 1)

    run(tmp_path, test)


def test_a_lone_partition_that_was_refused_once_is_fetched_in_a_session_again(
    tmp_path: Path,
) -> None:
    async def test(setting: Setting) -> None:
        theirs, ours = open_log(setting.leaders_logs), open_log(setting.own_logs)
        write(theirs, 1, b"one")
        setting.fetchers.follow(follower_of(ours), TOPIC_ID)
        await until(lambda: len(setting.leader.fetches) == 2)
        setting.leader.lead(0, theirs, 1)
        await until(lambda: ours.log_end_offset == 1)
        await asyncio.sleep(0.2)
        count = len(setting.leader.fetches)
        await asyncio.sleep(10)
        # The leader keeps a fetch of the session for half a minute.
        assert len(setting.leader.fetches) == count
        assert setting.leader.fetches[-1].session_epoch > 0

    run(tmp_path, test)


def test_one_partition_in_trouble_holds_up_no_other(tmp_path: Path) -> None:
    async def test(setting: Setting) -> None:
        for index in range(2):
            log = open_log(setting.leaders_logs, index)
            setting.leader.lead(index, log, 1)
            write(log, 1, b"one")
        setting.leader.errors[0] = ErrorCode.KAFKA_STORAGE_ERROR
        ours = [open_log(setting.own_logs, index) for index in range(2)]
        for log in ours:
            setting.fetchers.follow(follower_of(log), TOPIC_ID)
        await until(lambda: ours[1].log_end_offset == 1)
        assert ours[0].log_end_offset == 0
        del setting.leader.errors[0]
        await until(lambda: ours[0].log_end_offset == 1)

    run(tmp_path, test)


def test_a_fenced_epoch_is_given_up_until_the_next(tmp_path: Path) -> None:
    async def test(setting: Setting) -> None:
        theirs, ours = open_log(setting.leaders_logs), open_log(setting.own_logs)
        write(theirs, 1, b"one")
        setting.leader.lead(0, theirs, 4)
        partition = follower_of(ours, epoch=3)
        setting.fetchers.follow(partition, TOPIC_ID)
        await until(lambda: len(setting.leader.fetches) == 1)
        await asyncio.sleep(0.05)
        assert len(setting.leader.fetches) == 1
        partition.follow(PartitionImage((1, 2), (1, 2), 1, 4, 0))
        setting.fetchers.follow(partition, TOPIC_ID)
        await until(lambda: ours.log_end_offset == 1)

    run(tmp_path, test)


def test_a_leader_that_comes_back_is_fetched_from_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(setting: Setting) -> None:
        theirs, ours = open_log(setting.leaders_logs), open_log(setting.own_logs)
        setting.leader.lead(0, theirs, 1)
        write(theirs, 1, b"one")
        setting.leader.is_down = True
        setting.fetchers.follow(follower_of(ours), TOPIC_ID)
        await until(lambda: len(setting.leader.fetches) == 3)
        setting.leader.is_down = False
        await until(lambda: ours.log_end_offset == 1)

    run(tmp_path, test)
    failures = [record for record in caplog.records if "nothing can be fetched" in record.message]
    assert len(failures) == 1


def test_a_lost_session_costs_one_round(tmp_path: Path) -> None:
    async def test(setting: Setting) -> None:
        theirs, ours = open_log(setting.leaders_logs), open_log(setting.own_logs)
        setting.leader.lead(0, theirs, 1)
        write(theirs, 1, b"one")
        setting.fetchers.follow(follower_of(ours), TOPIC_ID)
        await until(lambda: len(setting.leader.fetches) == 2)
        setting.leader.forget_sessions()
        setting.leader.changes()
        await until(lambda: len(setting.leader.fetches) == 4)
        write(theirs, 1, b"two")
        setting.leader.changes()
        await until(lambda: ours.log_end_offset == 2)

    run(tmp_path, test)


def test_a_newcomer_does_not_wait_for_a_fetch_that_the_leader_keeps(tmp_path: Path) -> None:
    async def test(setting: Setting) -> None:
        logs = [open_log(setting.leaders_logs, index) for index in range(2)]
        ours = [open_log(setting.own_logs, index) for index in range(2)]
        for index, log in enumerate(logs):
            setting.leader.lead(index, log, 1)
            write(log, 1, b"one")
        setting.fetchers.follow(follower_of(ours[0]), TOPIC_ID)
        await until(lambda: len(setting.leader.fetches) == 2)
        # The leader keeps the second fetch for half a minute.
        setting.fetchers.follow(follower_of(ours[1]), TOPIC_ID)
        await until(lambda: ours[1].log_end_offset == 1)
        assert setting.leader.fetches[-1].session_epoch == -1
        # With its next request the steady stream takes it over.
        write(logs[0], 1, b"two")
        setting.leader.changes()
        await until(lambda: ours[0].log_end_offset == 2)
        await asyncio.sleep(0.1)
        count = len(setting.leader.fetches)
        write(logs[1], 1, b"two")
        setting.leader.changes()
        await until(lambda: ours[1].log_end_offset == 2)
        assert all(fetch.session_epoch > 0 for fetch in setting.leader.fetches[count:])

    run(tmp_path, test)


def test_nothing_is_written_to_a_partition_that_was_forgotten(tmp_path: Path) -> None:
    async def test(setting: Setting) -> None:
        theirs, ours = open_log(setting.leaders_logs), open_log(setting.own_logs)
        setting.leader.lead(0, theirs, 1)
        setting.fetchers.follow(follower_of(ours), TOPIC_ID)
        await until(lambda: len(setting.leader.fetches) == 1)
        setting.fetchers.forget(name_of(0))
        write(theirs, 1, b"one")
        setting.leader.changes()
        await asyncio.sleep(0.02)
        assert ours.log_end_offset == 0
        # Nobody is followed there any more, so nothing is left of it.
        assert all(link.closed for link in setting.leader.links)
        assert len(setting.leader.fetches) == 1

    run(tmp_path, test)


def test_a_partition_moves_to_another_leader(tmp_path: Path) -> None:
    async def test(setting: Setting) -> None:
        theirs, ours = open_log(setting.leaders_logs), open_log(setting.own_logs)
        setting.leader.lead(0, theirs, 1)
        write(theirs, 1, b"one")
        partition = follower_of(ours)
        setting.fetchers.follow(partition, TOPIC_ID)
        await until(lambda: ours.log_end_offset == 1)
        theirs.start_epoch(2)
        setting.leader.epochs[0] = 2
        write(theirs, 2, b"two")
        partition.follow(PartitionImage((1, 2, 3), (1, 2, 3), 3, 2, 1))
        setting.fetchers.follow(partition, TOPIC_ID)
        await until(lambda: ours.log_end_offset == 2)
        assert len(setting.leader.links) == 4
        partition.follow(PartitionImage((1, 2, 3), (1, 2, 3), -1, 3, 2))
        setting.fetchers.follow(partition, TOPIC_ID)
        assert all(link.closed for link in setting.leader.links)

    run(tmp_path, test)


def test_a_broker_that_was_started_again_is_asked_on_a_new_connection(tmp_path: Path) -> None:
    async def test(setting: Setting) -> None:
        theirs, ours = open_log(setting.leaders_logs), open_log(setting.own_logs)
        setting.leader.lead(0, theirs, 1)
        write(theirs, 1, b"one")
        setting.fetchers.follow(follower_of(ours), TOPIC_ID)
        await until(lambda: len(setting.leader.fetches) == 2)
        setting.fetchers.brokers_changed()
        assert not any(link.closed for link in setting.leader.links)
        setting.store.image = brokers((1, 99), (2, 7))
        setting.fetchers.brokers_changed()
        await until(lambda: len(setting.leader.fetches) == 3)
        assert setting.leader.fetches[-1].session_epoch == 0

    run(tmp_path, test)


class SlowFlusher:
    """Flushes when the test says so."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Log, Callable[[int], None]]] = []

    def flush(self, log: Log, on_flushed: Callable[[int], None]) -> None:
        self.waiting.append((log, on_flushed))

    def finish(self, *, well: bool = True) -> None:
        for log, on_flushed in self.waiting:
            on_flushed(log.flush() if well else -1)
        self.waiting.clear()


def test_the_leader_hears_of_records_when_they_are_as_durable_as_asked(tmp_path: Path) -> None:
    async def test(setting: Setting) -> None:
        config = TopicConfig(flush_messages=1)
        theirs, ours = open_log(setting.leaders_logs), open_log(setting.own_logs, config=config)
        setting.leader.lead(0, theirs, 1)
        write(theirs, 1, b"one")
        disk = SlowFlusher()
        partition = follower_of(ours, config=config, flusher=cast(FlushQueue, disk))
        setting.fetchers.follow(partition, TOPIC_ID)
        await until(lambda: bool(disk.waiting))
        await asyncio.sleep(0.01)
        assert ours.log_end_offset == 1
        assert len(setting.leader.fetches) == 1
        disk.finish()
        await until(lambda: len(setting.leader.fetches) == 2)
        assert ours.recovery_point == 1

    run(tmp_path, test)


def test_the_leader_never_hears_of_records_that_could_not_be_flushed(tmp_path: Path) -> None:
    async def test(setting: Setting) -> None:
        config = TopicConfig(flush_messages=1)
        theirs, ours = open_log(setting.leaders_logs), open_log(setting.own_logs, config=config)
        setting.leader.lead(0, theirs, 1)
        write(theirs, 1, b"one")
        disk = SlowFlusher()
        partition = follower_of(ours, config=config, flusher=cast(FlushQueue, disk))
        setting.fetchers.follow(partition, TOPIC_ID)
        await until(lambda: bool(disk.waiting))
        disk.finish(well=False)
        await asyncio.sleep(1)
        assert len(setting.leader.fetches) == 1

    run(tmp_path, test)


def test_a_log_that_fails_is_given_up_alone(tmp_path: Path) -> None:
    async def test(setting: Setting) -> None:
        ours = []
        for index in range(2):
            log = open_log(setting.leaders_logs, index)
            setting.leader.lead(index, log, 1)
            write(log, 1, b"one")
            ours.append(open_log(setting.own_logs, index))
            setting.fetchers.follow(follower_of(ours[index]), TOPIC_ID)
        ours[0].take_offline(StorageError("the disk is gone"))
        await until(lambda: ours[1].log_end_offset == 1)
        await until(lambda: len(setting.leader.fetches) == 2)
        assert [entry.partitions for entry in setting.leader.fetches[1].forgotten_topics_data] == [
            [0]
        ]

    run(tmp_path, test)


def test_a_full_disk_is_waited_for(tmp_path: Path) -> None:
    async def test(setting: Setting) -> None:
        disk = FaultyFiles()
        theirs, ours = open_log(setting.leaders_logs), open_log(setting.own_logs, files=disk)
        setting.leader.lead(0, theirs, 1)
        write(theirs, 1, b"one")
        disk.fail("write", ".log", errno.ENOSPC)
        setting.fetchers.follow(follower_of(ours), TOPIC_ID)
        await asyncio.sleep(3.5)
        assert len(setting.leader.fetches) == 4
        disk.heal()
        await until(lambda: ours.log_end_offset == 1)
        assert content(ours) == content(theirs)

    run(tmp_path, test)


def bytes_asked(request: FetchRequest) -> list[int]:
    return [
        partition.partition_max_bytes for topic in request.topics for partition in topic.partitions
    ]


def test_replicas_that_are_moved_keep_to_their_rate(tmp_path: Path) -> None:
    async def test(setting: Setting) -> None:
        config = TopicConfig(follower_replication_throttled_replicas=("0:2",))
        theirs, ours = open_log(setting.leaders_logs), open_log(setting.own_logs)
        setting.leader.lead(0, theirs, 1)
        for _ in range(30):
            write(theirs, 1, bytes(900))
        loop = asyncio.get_running_loop()
        began = loop.time()
        partition = follower_of(ours, config=config)
        setting.fetchers.follow(partition, TOPIC_ID)
        await until(lambda: ours.log_end_offset == 30)
        seconds = loop.time() - began
        # Some 29 kB: a second's worth at once, and as much again before it waits for the average.
        assert 0.1 <= seconds <= 5.0
        assert bytes_asked(setting.leader.fetches[0]) == [10_000]
        # Once in sync it is held back no more.
        write(theirs, 1, b"one")
        setting.leader.changes()
        await until(lambda: ours.log_end_offset == 31)

    run(tmp_path, test, replace(CONFIG, follower_replication_throttled_rate=10_000))
