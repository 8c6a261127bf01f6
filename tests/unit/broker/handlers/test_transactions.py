"""What a leader tells of the transactions in its log: where it is stable, and who writes to it."""

from pathlib import Path
from typing import Any

import pytest

from headrace.broker.handlers.log_offsets import LATEST, MAX_TIMESTAMP, list_offsets
from headrace.broker.handlers.transactions import describe_producers
from headrace.errors import ErrorCode
from headrace.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    PartitionResponse,
    ProducerState,
    TopicRequest,
)
from headrace.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from tests.unit.broker.handlers.test_fetch import on_loop
from tests.unit.broker.handlers.test_fetch_committed import ALONE, READ_COMMITTED, end, write
from tests.unit.broker.handling import FOLLOWS, TOPIC, OneNode, batch

READ_UNCOMMITTED = 0


async def offset_of(
    node: OneNode, timestamp: int, isolation_level: int, **fields: Any
) -> ListOffsetsPartitionResponse:
    topics = [ListOffsetsTopic(name=TOPIC, partitions=[ListOffsetsPartition(timestamp=timestamp)])]
    request = ListOffsetsRequest(
        topics=topics, isolation_level=isolation_level, **{"replica_id": -1, **fields}
    )
    [topic] = (await list_offsets(node.context(8), request)).topics
    return topic.partitions[0]


def described(node: OneNode, index: int = 0) -> PartitionResponse:
    request = DescribeProducersRequest(topics=[TopicRequest(name=TOPIC, partition_indexes=[index])])
    [topic] = describe_producers(node.context(0), request).topics
    assert topic.name == TOPIC
    return topic.partitions[0]


def test_end_is_where_the_reader_stops(tmp_path: Path) -> None:
    async def test(node: OneNode) -> None:
        partition = node.add(0, ALONE)
        node.append(partition, b"a")
        write(node, partition, 7)
        assert (await offset_of(node, LATEST, READ_COMMITTED)).offset == 1
        assert (await offset_of(node, LATEST, READ_UNCOMMITTED)).offset == 2
        assert (await offset_of(node, LATEST, READ_COMMITTED, replica_id=2)).offset == 2
        end(node, partition, 7)
        assert (await offset_of(node, LATEST, READ_COMMITTED)).offset == 3

    on_loop(tmp_path, test)


@pytest.mark.parametrize("by", ["time", "largest time"])
def test_times_are_looked_up_among_what_can_be_read(tmp_path: Path, by: str) -> None:
    async def test(node: OneNode) -> None:
        partition = node.add(0, ALONE)
        now_ms = node.clock.now_ms()
        data = batch(
            b"x",
            now_ms=now_ms + 60_000,
            producer_id=7,
            producer_epoch=0,
            base_sequence=0,
            transactional=True,
        )
        partition.append(memoryview(data), now_ms)
        wanted = now_ms + 60_000 if by == "time" else MAX_TIMESTAMP
        assert (await offset_of(node, wanted, READ_UNCOMMITTED)).offset == 0
        hidden = await offset_of(node, wanted, READ_COMMITTED)
        assert (hidden.offset, hidden.error_code) == (-1, 0)
        end(node, partition, 7)
        assert (await offset_of(node, wanted, READ_COMMITTED)).offset == 0

    on_loop(tmp_path, test)


def test_producers_are_described_with_their_open_transactions(tmp_path: Path) -> None:
    async def test(node: OneNode) -> None:
        partition = node.add(0, ALONE)
        node.append(partition, b"nobody's")
        now_ms = node.clock.now_ms()
        write(node, partition, 7)
        write(node, partition, 7, sequence=1)
        write(node, partition, 8)
        end(node, partition, 8)
        plain = batch(b"a", b"b", now_ms=now_ms, producer_id=9, producer_epoch=3, base_sequence=0)
        partition.append(memoryview(plain), now_ms)
        found = described(node)
        assert (found.partition_index, found.error_code) == (0, 0)
        assert found.active_producers == [
            ProducerState(
                producer_id=7,
                producer_epoch=0,
                last_sequence=1,
                last_timestamp=now_ms,
                coordinator_epoch=-1,
                current_txn_start_offset=1,
            ),
            ProducerState(
                producer_id=8,
                producer_epoch=0,
                last_sequence=0,
                last_timestamp=now_ms,
                coordinator_epoch=0,
                current_txn_start_offset=-1,
            ),
            ProducerState(
                producer_id=9,
                producer_epoch=3,
                last_sequence=1,
                last_timestamp=now_ms,
                coordinator_epoch=-1,
                current_txn_start_offset=-1,
            ),
        ]

    on_loop(tmp_path, test)


def test_a_follower_describes_producers_too(tmp_path: Path) -> None:
    async def test(node: OneNode) -> None:
        partition = node.add(0, ALONE)
        write(node, partition, 7)
        partition.follow(FOLLOWS)
        found = described(node)
        assert found.error_code == 0
        assert [
            active_producer.current_txn_start_offset for active_producer in found.active_producers
        ] == [0]
        assert described(node, 5).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    on_loop(tmp_path, test)
