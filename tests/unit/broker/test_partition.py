"""When a record counts as committed, and who is told."""

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import pytest

from headrace.broker.flusher import Flusher
from headrace.broker.partition import Partition
from headrace.config import TopicConfig
from headrace.errors import ErrorCode, KafkaError, StorageError
from headrace.metadata.image import PartitionImage
from headrace.protocol.records import encode_batch, scan_headers
from headrace.storage.files import Files
from headrace.storage.log import Log
from headrace.types import TopicPartition

NOW_MS = 1_700_000_000_000
NAME = TopicPartition("orders", 0)


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


def with_partition(
    directory: Path,
    config: TopicConfig,
    test: Callable[[Partition, ByHand], Coroutine[Any, Any, None]],
) -> None:
    async def run() -> None:
        executor = ByHand()
        log = Log.open(Files(), str(directory / str(NAME)), NAME, config, NOW_MS)
        partition = Partition(NAME, log, config, Flusher(executor))
        partition.lead(PartitionImage(replicas=(1,), isr=(1,), leader=1), NOW_MS)
        await test(partition, executor)

    asyncio.run(run())


def test_without_flush_settings_an_append_is_committed_at_once(tmp_path: Path) -> None:
    async def test(partition: Partition, executor: ByHand) -> None:
        appended = partition.append(batch(b"a", b"b"), NOW_MS)
        assert (appended.base_offset, appended.last_offset) == (0, 1)
        assert partition.high_watermark == 2
        assert partition.committed(1) is None
        assert executor.waiting == []

    with_partition(tmp_path, TopicConfig(), test)


def test_a_record_is_invisible_until_the_flush_it_asked_for_has_ended(tmp_path: Path) -> None:
    async def test(partition: Partition, executor: ByHand) -> None:
        partition.append(batch(b"a"), NOW_MS)
        committed = partition.committed(0)
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
        first = partition.committed(0)
        future, work = executor.waiting[0]
        offset = work()
        for value in (b"b", b"c", b"d"):
            partition.append(batch(value), NOW_MS)
        rest = [partition.committed(number) for number in (1, 2, 3)]
        executor.waiting.pop(0)
        future.set_result(offset)
        for _ in range(3):
            await asyncio.sleep(0)
        assert first is not None and first.done()
        assert partition.high_watermark == 1, "what the first flush did not cover is committed"
        assert len(executor.waiting) == 1
        await executor.run_one()
        assert all(one is not None and one.done() for one in rest)
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
        first = partition.committed(0)
        partition.append(batch(b"b"), NOW_MS)
        second = partition.committed(1)
        woken: list[int] = []
        partition.watch("reader", woken.append)
        monkeypatch.setattr(Log, "flush", fail)
        executor.waiting[0] = (executor.waiting[0][0], lambda: fail(partition.log))
        await executor.run_one()
        for waiting in (first, second):
            assert waiting is not None
            error = waiting.exception()
            assert isinstance(error, KafkaError)
            assert error.code is ErrorCode.KAFKA_STORAGE_ERROR
        assert partition.high_watermark == 0
        assert set(woken) == {-1}

    with_partition(tmp_path, TopicConfig(flush_messages=1), test)


def test_watchers_hear_how_many_bytes_were_committed(tmp_path: Path) -> None:
    async def test(partition: Partition, _: ByHand) -> None:
        heard: list[int] = []
        partition.watch("reader", heard.append)
        first = batch(b"a")
        partition.append(first, NOW_MS)
        partition.unwatch("reader")
        partition.append(batch(b"b"), NOW_MS)
        assert heard == [len(first)]

    with_partition(tmp_path, TopicConfig(), test)


def test_a_duplicate_waits_for_the_commit_of_the_first(tmp_path: Path) -> None:
    async def test(partition: Partition, executor: ByHand) -> None:
        settings = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
        partition.append(batch(b"a", **settings), NOW_MS)
        again = partition.append(batch(b"a", **settings), NOW_MS)
        assert again.duplicate and again.base_offset == 0
        assert partition.committed(again.last_offset) is not None
        await executor.run_one()
        assert partition.committed(again.last_offset) is None
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
