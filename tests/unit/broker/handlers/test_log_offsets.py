"""Offsets that leaders tell: where a log ends and for whom, and deleting its beginning."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace.broker.handlers.log_offsets import (
    EARLIEST,
    LATEST,
    delete_records,
    list_offsets,
    offset_for_leader_epoch,
)
from headrace.broker.replication.partition import Partition
from headrace.errors import ErrorCode, StorageError
from headrace.protocol.batch import scan_headers
from headrace.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from headrace.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from headrace.protocol.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from tests.unit.broker.handling import FOLLOWS, LEADS, TOPIC, OneNode, batch
from tests.unit.client.virtual_time import run

CONSUMER = -1
ANY_REPLICA = -2
FAR_AHEAD_MS = 2_000_000_000_000


def on_loop(directory: Path, test: Callable[[OneNode], Coroutine[Any, Any, None]]) -> None:
    node = OneNode(directory)
    run(node.clock, test(node))


async def offset_of(
    node: OneNode, timestamp: int, replica_id: int = CONSUMER, *, version: int = 8, epoch: int = -1
) -> ListOffsetsPartitionResponse:
    wanted = ListOffsetsPartition(timestamp=timestamp, current_leader_epoch=epoch)
    topics = [ListOffsetsTopic(name=TOPIC, partitions=[wanted])]
    request = ListOffsetsRequest(replica_id=replica_id, topics=topics)
    [topic] = (await list_offsets(node.context(version), request)).topics
    return topic.partitions[0]


def new_leader(node: OneNode) -> Partition:
    """One that was elected with 3 records of which it knows 1 to be committed."""
    partition = node.add(0, FOLLOWS)
    now_ms = node.clock.now_ms()
    data = bytearray()
    for offset in range(3):
        data += batch(b"a", now_ms=now_ms, base_offset=offset)
    partition.append_replicated(data, scan_headers(data), 1, 0, now_ms)
    partition.lead(replace(LEADS, leader_epoch=5, partition_epoch=10), now_ms)
    return partition


def test_consumers_are_told_the_high_watermark_and_replicas_the_end(tmp_path: Path) -> None:
    async def test(node: OneNode) -> None:
        partition = node.add()
        node.append(partition, b"a", b"b")
        assert (await offset_of(node, LATEST)).offset == 0
        assert (await offset_of(node, LATEST, replica_id=2)).offset == 2
        assert (await offset_of(node, EARLIEST, replica_id=2)).offset == 0

    on_loop(tmp_path, test)


@pytest.mark.parametrize(
    ("version", "code"),
    [(4, ErrorCode.LEADER_NOT_AVAILABLE), (5, ErrorCode.OFFSET_NOT_AVAILABLE)],
)
def test_a_new_leader_does_not_tell_an_end_that_may_be_too_low(
    tmp_path: Path, version: int, code: ErrorCode
) -> None:
    async def test(node: OneNode) -> None:
        partition = new_leader(node)
        for timestamp in (LATEST, FAR_AHEAD_MS):
            assert (await offset_of(node, timestamp, version=version)).error_code == code
        assert (await offset_of(node, EARLIEST)).error_code == 0
        for replica in (2, 3):
            partition.follower_fetched(replica, replica * 10, 3, 0)
        assert (await offset_of(node, LATEST, version=version)).offset == 3

    on_loop(tmp_path, test)


def test_only_the_leader_of_the_epoch_tells(tmp_path: Path) -> None:
    async def test(node: OneNode) -> None:
        partition = node.add()
        assert (await offset_of(node, LATEST, epoch=3)).error_code == ErrorCode.FENCED_LEADER_EPOCH
        partition.follow(FOLLOWS)
        answer = await offset_of(node, LATEST)
        assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER

    on_loop(tmp_path, test)


def test_any_replica_tells_who_compares_replicas_where_its_log_ends(tmp_path: Path) -> None:
    async def test(node: OneNode) -> None:
        partition = node.add(0, FOLLOWS)
        answer = await offset_of(node, LATEST, ANY_REPLICA)
        assert (answer.offset, answer.leader_epoch) == (0, -1)
        now_ms = node.clock.now_ms()
        data = bytearray(batch(b"a", now_ms=now_ms))
        partition.append_replicated(data, scan_headers(data), 1, 0, now_ms)
        written = await offset_of(node, LATEST, ANY_REPLICA)
        assert (written.offset, written.leader_epoch) == (1, scan_headers(data)[0].leader_epoch)
        # A leadership that has written nothing yet is no sign of a better log.
        partition.lead(replace(LEADS, leader_epoch=5, partition_epoch=10), now_ms)
        assert await offset_of(node, LATEST, ANY_REPLICA) == written
        newer = await offset_of(node, LATEST, ANY_REPLICA, epoch=6)
        assert newer.error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
        partition.log.take_offline(StorageError("a bad block"))
        failed = await offset_of(node, LATEST, ANY_REPLICA)
        assert failed.error_code == ErrorCode.KAFKA_STORAGE_ERROR

    on_loop(tmp_path, test)


def test_the_end_of_an_epoch_is_the_log_end_for_the_present_one(tmp_path: Path) -> None:
    def end_of(node: OneNode, epoch: int) -> EpochEndOffset:
        wanted = OffsetForLeaderPartition(leader_epoch=epoch, current_leader_epoch=5)
        request = OffsetForLeaderEpochRequest(
            replica_id=2, topics=[OffsetForLeaderTopic(topic=TOPIC, partitions=[wanted])]
        )
        [topic] = offset_for_leader_epoch(node.context(4), request).topics
        return topic.partitions[0]

    async def test(node: OneNode) -> None:
        partition = new_leader(node)
        node.append(partition, b"b")
        assert (end_of(node, 5).leader_epoch, end_of(node, 5).end_offset) == (5, 4)
        assert end_of(node, 4).end_offset == 3

    on_loop(tmp_path, test)


async def delete(node: OneNode, offset: int) -> DeleteRecordsPartitionResult:
    wanted = DeleteRecordsPartition(partition_index=0, offset=offset)
    topics = [DeleteRecordsTopic(name=TOPIC, partitions=[wanted])]
    request = DeleteRecordsRequest(topics=topics, timeout_ms=1000)
    [topic] = (await delete_records(node.context(2), request)).topics
    return topic.partitions[0]


def test_records_are_deleted_once_the_followers_have_done_so(tmp_path: Path) -> None:
    async def test(node: OneNode) -> None:
        partition = node.add()
        node.append(partition, b"a")
        node.append(partition, b"b")
        for replica in (2, 3):
            partition.follower_fetched(replica, replica * 10, 2, 0, 0)
        deleting = asyncio.ensure_future(delete(node, 1))
        await asyncio.sleep(0.1)
        assert partition.log.log_start_offset == 1
        partition.follower_fetched(2, 20, 2, 0, 1)
        await asyncio.sleep(0.1)
        assert not deleting.done()
        partition.follower_fetched(3, 30, 2, 0, 1)
        result = await deleting
        assert (result.error_code, result.low_watermark) == (0, 1)
        # Those of a follower that does not fetch are there still, and that is told.
        result = await delete(node, -1)
        assert (result.error_code, result.low_watermark) == (ErrorCode.REQUEST_TIMED_OUT, -1)

    on_loop(tmp_path, test)
