"""When a record counts as committed, and who is told."""

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, Future
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock, call

import pytest

from headrace.broker.fetch_purgatory import FetchPurgatory
from headrace.broker.fetch_sessions import FetchIsolation, SessionPartition
from headrace.broker.replication.flush_queue import FlushQueue
from headrace.broker.replication.partition import Partition
from headrace.config import TopicConfig
from headrace.errors import ErrorCode, KafkaError, StorageError
from headrace.metadata.image import PartitionImage
from headrace.protocol.batch import scan_headers
from headrace.protocol.records import encode_batch
from headrace.storage.files import Files
from headrace.storage.log import Log
from headrace.types import TopicPartition

NOW_MS = 1_700_000_000_000
NAME = TopicPartition("orders", 0)
THREE = PartitionImage((1, 2, 3), (1, 2, 3), leader=1, leader_epoch=4, partition_epoch=9)
ELSEWHERE = PartitionImage((1, 2, 3), (1, 2, 3), leader=2, leader_epoch=5, partition_epoch=10)


class ByHand(Executor):
    """Runs what is submitted when the test says so."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Future[Any], Callable[[], Any]]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.waiting.append((future, lambda: fn(*args, **kwargs)))
        return future

    async def run_one(self) -> None:
        future, work = self.waiting.pop(0)
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)
        for _ in range(3):
            await asyncio.sleep(0)


def batch(*values: bytes, **settings: Any) -> memoryview:
    records = [(NOW_MS, None, value, ()) for value in values]
    return memoryview(bytearray(encode_batch(records, **settings)))


def read(limit: FetchIsolation = FetchIsolation.HIGH_WATERMARK) -> SessionPartition:
    """What a fetch without a session wants."""
    return SessionPartition(NAME.topic, b"", NAME.partition, 0, 1_000_000, -1, -1, limit=limit)


def with_partition(
    directory: Path,
    config: TopicConfig,
    test: Callable[[Partition, ByHand], Coroutine[Any, Any, None]],
) -> None:
    async def run() -> None:
        executor = ByHand()
        log = Log.open(Files(), str(directory / str(NAME)), NAME, config, NOW_MS)
        partition = Partition(NAME, log, config, FlushQueue(executor))
        partition.lead(PartitionImage(replicas=(1,), isr=(1,), leader=1), NOW_MS)
        await test(partition, executor)

    asyncio.run(run())


def test_without_flush_settings_an_append_is_committed_at_once(tmp_path: Path) -> None:
    async def test(partition: Partition, executor: ByHand) -> None:
        appended = partition.append(batch(b"a", b"b"), NOW_MS)
        assert (appended.base_offset, appended.last_offset) == (0, 1)
        assert partition.high_watermark == 2
        assert partition.when_committed(1) is None
        assert executor.waiting == []

    with_partition(tmp_path, TopicConfig(), test)


def test_a_record_is_invisible_until_the_flush_it_asked_for_has_ended(tmp_path: Path) -> None:
    async def test(partition: Partition, executor: ByHand) -> None:
        partition.append(batch(b"a"), NOW_MS)
        committed = partition.when_committed(0)
        assert committed is not None
        assert partition.high_watermark == 0
        await executor.run_one()
        assert committed.done()
        assert partition.high_watermark == 1
        assert partition.log.recovery_point == 1

    with_partition(tmp_path, TopicConfig(flush_messages=1), test)


def test_appends_during_a_flush_share_the_next_one(tmp_path: Path) -> None:
    async def test(partition: Partition, executor: ByHand) -> None:
        partition.append(batch(b"a"), NOW_MS)
        first = partition.when_committed(0)
        future, work = executor.waiting[0]
        offset = work()
        for value in (b"b", b"c", b"d"):
            partition.append(batch(value), NOW_MS)
        rest = [partition.when_committed(number) for number in (1, 2, 3)]
        executor.waiting.pop(0)
        future.set_result(offset)
        for _ in range(3):
            await asyncio.sleep(0)
        assert first is not None and first.done()
        assert partition.high_watermark == 1, "what the first flush did not cover is committed"
        assert len(executor.waiting) == 1
        await executor.run_one()
        assert all(entry is not None and entry.done() for entry in rest)
        assert partition.high_watermark == 4
        assert executor.waiting == []

    with_partition(tmp_path, TopicConfig(flush_messages=1), test)


def test_a_failed_flush_fails_who_waits_and_what_comes_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Log) -> int:
        raise StorageError("cannot flush: Input/output error")

    async def test(partition: Partition, executor: ByHand) -> None:
        partition.append(batch(b"a"), NOW_MS)
        first = partition.when_committed(0)
        partition.append(batch(b"b"), NOW_MS)
        second = partition.when_committed(1)
        purgatory = FetchPurgatory()
        reader = purgatory.park([(read(), partition)], 1, 60)
        monkeypatch.setattr(Log, "flush", fail)
        executor.waiting[0] = (executor.waiting[0][0], lambda: fail(partition.log))
        await executor.run_one()
        for waiting in (first, second):
            assert waiting is not None
            error = waiting.exception()
            assert isinstance(error, KafkaError)
            assert error.code is ErrorCode.KAFKA_STORAGE_ERROR
        assert partition.high_watermark == 0
        assert reader.ready.done()

    with_partition(tmp_path, TopicConfig(flush_messages=1), test)


def test_watchers_hear_how_many_bytes_were_committed(tmp_path: Path) -> None:
    async def test(partition: Partition, _: ByHand) -> None:
        heard: list[int] = []
        purgatory = Mock(committed=lambda _, byte_count: heard.append(byte_count))
        partition.waiting_fetches = purgatory
        first = batch(b"a")
        partition.append(first, NOW_MS)
        partition.waiting_fetches = None
        partition.append(batch(b"b"), NOW_MS)
        assert heard == [len(first)]
        assert purgatory.appended.call_args_list == [call(partition, len(first))]

    with_partition(tmp_path, TopicConfig(), test)


def test_a_duplicate_waits_for_the_commit_of_the_first(tmp_path: Path) -> None:
    async def test(partition: Partition, executor: ByHand) -> None:
        settings = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
        partition.append(batch(b"a", **settings), NOW_MS)
        again = partition.append(batch(b"a", **settings), NOW_MS)
        assert again.duplicate and again.base_offset == 0
        assert partition.when_committed(again.last_offset) is not None
        await executor.run_one()
        assert partition.when_committed(again.last_offset) is None
        assert partition.log.log_end_offset == 1

    with_partition(tmp_path, TopicConfig(flush_messages=1), test)


@pytest.mark.parametrize(
    ("epoch", "code"),
    [(0, ErrorCode.FENCED_LEADER_EPOCH), (2, ErrorCode.UNKNOWN_LEADER_EPOCH)],
)
def test_another_leadership_is_refused(tmp_path: Path, epoch: int, code: ErrorCode) -> None:
    async def test(partition: Partition, _: ByHand) -> None:
        partition.leader_epoch = 1
        partition.check_epoch(1)
        partition.check_epoch(-1)
        with pytest.raises(KafkaError) as refused:
            partition.check_epoch(epoch)
        assert refused.value.code is code

    with_partition(tmp_path, TopicConfig(), test)


def test_a_batch_is_stored_under_the_codec_its_topic_asks_for(tmp_path: Path) -> None:
    async def test(partition: Partition, _: ByHand) -> None:
        partition.append(batch(b"a" * 1000), NOW_MS)
        stored = partition.log.read(0, 1_000_000, 1, at_least_one=True).records
        (header,) = scan_headers(stored)
        assert header.compression == 4
        assert len(stored) < 500

    with_partition(tmp_path, TopicConfig(compression_type="zstd"), test)


def test_times_outside_the_topics_bounds_are_refused(tmp_path: Path) -> None:
    async def test(partition: Partition, _: ByHand) -> None:
        partition.append(batch(b"now"), NOW_MS)
        for clock_ms in (NOW_MS - 1001, NOW_MS + 1001):
            with pytest.raises(KafkaError) as refused:
                partition.append(batch(b"off"), clock_ms)
            assert refused.value.code is ErrorCode.INVALID_TIMESTAMP
        assert partition.log.log_end_offset == 1

    config = TopicConfig(message_timestamp_before_max_ms=1000, message_timestamp_after_max_ms=1000)
    with_partition(tmp_path, config, test)


def with_replica(
    directory: Path,
    config: TopicConfig,
    test: Callable[[Partition, ByHand], Coroutine[Any, Any, None]],
    high_watermark: int = 0,
) -> None:
    """A partition that has no role yet, with what an earlier run left in its log."""

    async def run() -> None:
        executor = ByHand()
        log = Log.open(Files(), str(directory / str(NAME)), NAME, config, NOW_MS)
        await test(Partition(NAME, log, config, FlushQueue(executor), high_watermark), executor)

    asyncio.run(run())


def replicate(partition: Partition, *values: bytes, high_watermark: int = 0) -> Any:
    """Take batches of a leader as its follower."""
    data = bytearray()
    for number, value in enumerate(values, partition.log.log_end_offset):
        data += batch(value, base_offset=number)
    return partition.append_replicated(data, scan_headers(data), high_watermark, 0, NOW_MS)


def code_of(future: asyncio.Future[None] | None) -> ErrorCode:
    assert future is not None
    error = future.exception()
    assert isinstance(error, KafkaError)
    return error.code


def test_a_new_leader_begins_with_the_high_watermark_it_knew(tmp_path: Path) -> None:
    async def test(partition: Partition, _: ByHand) -> None:
        partition.follow(ELSEWHERE)
        replicate(partition, b"a", b"b", b"c", high_watermark=2)
        assert partition.high_watermark == 2
        partition.lead(replace(THREE, leader_epoch=6), NOW_MS)
        assert partition.is_leader
        assert partition.high_watermark == 2
        assert partition.log.latest_epoch == 6
        partition.follower_fetched(2, 20, 3, NOW_MS)
        partition.follower_fetched(3, 30, 3, NOW_MS)
        assert partition.high_watermark == 3

    with_replica(tmp_path, TopicConfig(), test)


@pytest.mark.parametrize("is_leader", [True, False], ids=["leader", "follower"])
def test_who_waits_in_a_new_role_hears_of_the_commit_of_older_records(
    tmp_path: Path, is_leader: bool
) -> None:
    """Nothing is appended in that role, so only what was there before can be counted."""

    async def test(partition: Partition, _: ByHand) -> None:
        partition.follow(ELSEWHERE)
        replicate(partition, b"a", b"b", b"c", high_watermark=2)
        if is_leader:
            partition.lead(replace(THREE, leader_epoch=6), NOW_MS)
        else:
            partition.follow(replace(ELSEWHERE, leader=3, leader_epoch=6))
        waiting = FetchPurgatory().park([(read(), partition)], bytes_needed=1, timeout_s=60)
        assert not waiting.ready.done()
        if is_leader:
            partition.follower_fetched(2, 20, 3, NOW_MS)
            partition.follower_fetched(3, 30, 3, NOW_MS)
        else:
            partition.set_high_watermark(3)
        assert partition.high_watermark == 3
        assert waiting.ready.done()

    with_replica(tmp_path, TopicConfig(), test)


@pytest.mark.parametrize("hints", ["remembered", "forgotten"])
def test_a_consumer_that_waits_is_woken_by_each_commit_of_a_burst(
    tmp_path: Path, hints: str
) -> None:
    """Followers fetch a part of the appended batches, and the rest when nothing is appended."""

    async def test(partition: Partition, _: ByHand) -> None:
        def append_three() -> None:
            for _ in range(3):
                partition.append(batch(b"a"), NOW_MS)

        partition.lead(replace(THREE, isr=(1, 2)), NOW_MS)
        data = batch(b"a")
        append_three()
        if hints == "forgotten":
            partition.log._state.hints.clear()
        counted: list[int] = []
        for end_offset in (1, 3):
            waiting = FetchPurgatory().park([(read(), partition)], bytes_needed=1, timeout_s=60)
            partition.follower_fetched(2, 20, end_offset, NOW_MS)
            assert partition.high_watermark == end_offset
            assert waiting.ready.done()
        partition.waiting_fetches = Mock(committed=lambda _, size: counted.append(size))
        append_three()
        for end_offset in (5, 6):
            partition.follower_fetched(2, 20, end_offset, NOW_MS)
        assert counted == [2 * len(data), len(data)]

    with_replica(tmp_path, TopicConfig(), test)


def test_a_follower_takes_a_high_watermark_only_as_far_as_it_has_records(tmp_path: Path) -> None:
    async def test(partition: Partition, _: ByHand) -> None:
        partition.follow(ELSEWHERE)
        consumer = FetchPurgatory().park([(read(), partition)], 1, 60)
        replicate(partition, b"a", high_watermark=9)
        assert partition.high_watermark == 1
        assert consumer.ready.done(), "who reads from this follower is woken"
        replicate(partition, b"b", high_watermark=0)
        assert partition.high_watermark == 1, "it does not go back"

    with_replica(tmp_path, TopicConfig(), test)


def test_a_checkpoint_that_is_ahead_of_the_log_is_not_believed(tmp_path: Path) -> None:
    async def test(partition: Partition, _: ByHand) -> None:
        assert partition.high_watermark == 0

    with_replica(tmp_path, TopicConfig(), test, high_watermark=7)


def test_the_end_of_a_leadership_fails_who_waits(tmp_path: Path) -> None:
    async def test(partition: Partition, executor: ByHand) -> None:
        partition.lead(THREE, NOW_MS)
        partition.append(batch(b"a"), NOW_MS)
        waiting = [partition.when_committed(0), partition.when_persisted(0)]
        purgatory = FetchPurgatory()
        consumer = purgatory.park([(read(), partition)], 1, 60)
        follower = purgatory.park([(read(FetchIsolation.LOG_END), partition)], 1, 60)
        partition.follow(ELSEWHERE)
        assert [code_of(entry) for entry in waiting] == [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 2
        assert (consumer.ready.done(), follower.ready.done()) == (True, True)
        assert not partition.is_leader
        with pytest.raises(KafkaError) as refused:
            partition.append(batch(b"b"), NOW_MS)
        assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        await executor.run_one()
        assert partition.high_watermark == 0, "the flush of the old leadership commits nothing"

    with_replica(tmp_path, TopicConfig(flush_messages=1), test)


def test_a_flush_of_an_earlier_leadership_commits_nothing_in_a_later_one(tmp_path: Path) -> None:
    async def test(partition: Partition, executor: ByHand) -> None:
        partition.lead(THREE, NOW_MS)
        partition.append(batch(b"a", b"b", b"c"), NOW_MS)
        old, work = executor.waiting.pop(0)
        flushed = work()
        partition.follow(ELSEWHERE)
        partition.truncate_to(0)
        partition.lead(replace(THREE, isr=(1,), leader_epoch=6, partition_epoch=11), NOW_MS)
        partition.append(batch(b"d"), NOW_MS)
        old.set_result(flushed)
        for _ in range(3):
            await asyncio.sleep(0)
        assert partition.high_watermark == 0
        await executor.run_one()
        assert partition.high_watermark == 1

    with_replica(tmp_path, TopicConfig(flush_messages=1), test)


def test_acks_1_waits_for_the_flush_and_acks_all_for_the_followers_too(tmp_path: Path) -> None:
    async def test(partition: Partition, executor: ByHand) -> None:
        partition.lead(THREE, NOW_MS)
        partition.append(batch(b"a"), NOW_MS)
        committed, persisted = partition.when_committed(0), partition.when_persisted(0)
        assert committed is not None and persisted is not None
        for replica in (2, 3):
            partition.follower_fetched(replica, replica * 10, 1, NOW_MS)
        assert partition.high_watermark == 0, "the leader's own copy is not flushed"
        await executor.run_one()
        assert committed.done() and persisted.done()

    with_replica(tmp_path, TopicConfig(flush_messages=1), test)


def test_acks_1_waits_for_nobody_without_flush_settings(tmp_path: Path) -> None:
    async def test(partition: Partition, _: ByHand) -> None:
        partition.lead(THREE, NOW_MS)
        partition.append(batch(b"a"), NOW_MS)
        assert partition.when_persisted(0) is None
        assert partition.when_committed(0) is not None
        assert partition.high_watermark == 0

    with_replica(tmp_path, TopicConfig(), test)


def test_a_follower_flushes_before_it_tells_of_records(tmp_path: Path) -> None:
    async def test(partition: Partition, executor: ByHand) -> None:
        partition.follow(ELSEWHERE)
        flushed = replicate(partition, b"a")
        assert flushed is not None and not flushed.done()
        await executor.run_one()
        assert flushed.done()
        assert partition.log.recovery_point == 1
        assert replicate(partition) is None, "nothing came, so nothing is to be flushed"

    with_replica(tmp_path, TopicConfig(flush_messages=1), test)


@pytest.mark.parametrize(("isr", "enough"), [((1, 2, 3), True), ((1, 2), True), ((1,), False)])
def test_what_asks_for_all_needs_enough_of_them(
    tmp_path: Path, isr: tuple[int, ...], enough: bool
) -> None:
    async def test(partition: Partition, _: ByHand) -> None:
        partition.lead(replace(THREE, isr=isr), NOW_MS)
        if enough:
            partition.check_in_sync()
            return
        for write in (partition.check_in_sync, lambda: partition.append_own(bytearray(), NOW_MS)):
            with pytest.raises(KafkaError) as refused:
                write()
            assert refused.value.code is ErrorCode.NOT_ENOUGH_REPLICAS

    with_replica(tmp_path, TopicConfig(min_insync_replicas=2), test)


def test_one_replica_is_enough_for_a_topic_of_one(tmp_path: Path) -> None:
    async def test(partition: Partition, _: ByHand) -> None:
        partition.check_in_sync()

    with_partition(tmp_path, TopicConfig(min_insync_replicas=2), test)


@pytest.mark.parametrize("how", ["another replica comes", "fewer are asked for"])
def test_what_was_appended_to_too_few_is_committed_when_enough_have_it(
    tmp_path: Path, how: str
) -> None:
    async def test(partition: Partition, _: ByHand) -> None:
        partition.lead(replace(THREE, isr=(1, 2)), NOW_MS)
        partition.append(batch(b"a"), NOW_MS)
        waiting = partition.when_committed(0)
        assert waiting is not None
        partition.update(replace(THREE, isr=(1,), partition_epoch=10))
        assert (partition.high_watermark, waiting.done()) == (0, False)
        if how == "another replica comes":
            partition.follower_fetched(2, 20, 1, NOW_MS)
            assert partition.high_watermark == 0
            partition.update(replace(THREE, isr=(1, 2), partition_epoch=11))
        else:
            partition.reconfigure(TopicConfig(min_insync_replicas=1))
        assert partition.high_watermark == 1
        assert waiting.exception() is None

    with_replica(tmp_path, TopicConfig(min_insync_replicas=2), test)


def test_a_lone_replica_is_joined_by_others(tmp_path: Path) -> None:
    async def test(partition: Partition, _: ByHand) -> None:
        partition.append(batch(b"a"), NOW_MS)
        moving = PartitionImage((1, 2), (1,), leader=1, partition_epoch=1, adding_replicas=(2,))
        partition.update(moving)
        partition.append(batch(b"b"), NOW_MS)
        assert partition.high_watermark == 2, "nobody else counts yet"
        partition.follower_fetched(2, 20, 0, NOW_MS)
        partition.follower_fetched(2, 20, 2, NOW_MS)
        partition.append(batch(b"c"), NOW_MS)
        assert partition.high_watermark == 2, "broker 2 is about to join, and is waited for"
        partition.update(replace(moving, isr=(1, 2), partition_epoch=2))
        partition.follower_fetched(2, 20, 3, NOW_MS)
        assert partition.high_watermark == 3

    with_partition(tmp_path, TopicConfig(), test)


def test_an_image_older_than_an_answer_changes_nothing(tmp_path: Path) -> None:
    async def test(partition: Partition, _: ByHand) -> None:
        partition.lead(THREE, NOW_MS)
        assert partition.leadership is not None
        partition.leadership.proposal_accepted((1, 2), 12)
        partition.update(replace(THREE, partition_epoch=11))
        assert partition.isr == (1, 2)
        partition.lead(replace(THREE, isr=(1, 3), partition_epoch=13), NOW_MS)
        assert partition.isr == (1, 3)

    with_replica(tmp_path, TopicConfig(), test)


def test_what_was_replicated_is_known_as_a_duplicate_by_the_next_leader(tmp_path: Path) -> None:
    async def test(partition: Partition, _: ByHand) -> None:
        partition.follow(ELSEWHERE)
        settings = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
        data = batch(b"a", **settings)
        partition.append_replicated(data, scan_headers(data), 0, 0, NOW_MS)
        partition.lead(replace(THREE, leader_epoch=6), NOW_MS)
        again = partition.append(batch(b"a", **settings), NOW_MS)
        assert again.duplicate and again.base_offset == 0
        waiting = partition.when_committed(again.last_offset)
        assert waiting is not None, "it is not committed only because it was sent twice"

    with_replica(tmp_path, TopicConfig(), test)


def test_committed_records_are_not_removed_silently(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(partition: Partition, _: ByHand) -> None:
        partition.follow(ELSEWHERE)
        replicate(partition, b"a", b"b", b"c", high_watermark=2)
        partition.truncate_to(2)
        assert (partition.high_watermark, caplog.records) == (2, [])
        partition.truncate_to(1)
        assert partition.high_watermark == 1
        assert "committed records from offset 1 to 2 were removed" in caplog.text

    with_replica(tmp_path, TopicConfig(), test)


def test_a_log_can_begin_anew_where_the_leaders_does(tmp_path: Path) -> None:
    async def test(partition: Partition, _: ByHand) -> None:
        partition.follow(ELSEWHERE)
        replicate(partition, b"a", high_watermark=1)
        partition.restart_at(50)
        assert partition.high_watermark == partition.log.log_end_offset == 50

    with_replica(tmp_path, TopicConfig(), test)
