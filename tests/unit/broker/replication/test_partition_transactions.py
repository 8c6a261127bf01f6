"""Transactions in a partition: where readers of committed records stop, and who may write."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace.broker.replication.partition import Partition
from headrace.config import TopicConfig
from headrace.errors import ErrorCode, KafkaError
from headrace.protocol.batch import RefusedBatch, scan_headers
from headrace.protocol.markers import Marker, encode_marker
from tests.unit.broker.replication.test_partition import (
    ELSEWHERE,
    NOW_MS,
    THREE,
    ByHand,
    batch,
    with_partition,
    with_replica,
)


def transactional(producer_id: int, sequence: int, *, epoch: int = 0) -> memoryview:
    return batch(
        b"value",
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=True,
    )


def marker(producer_id: int, epoch: int = 0, *, committed: bool = True) -> Marker:
    return Marker(producer_id, epoch, 0, committed)


def code_of(write: Callable[[], Any]) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        write()
    return caught.value.code


def test_readers_of_committed_records_stop_at_an_open_transaction(tmp_path: Path) -> None:
    async def test(partition: Partition, _: ByHand) -> None:
        partition.append(batch(b"before"), NOW_MS)
        assert partition.last_stable_offset == 1
        partition.append(transactional(7, 0), NOW_MS)
        partition.append(batch(b"behind"), NOW_MS)
        assert (partition.high_watermark, partition.last_stable_offset) == (3, 1)
        partition.append_marker(marker(7), NOW_MS)
        assert (partition.high_watermark, partition.last_stable_offset) == (4, 4)

    with_partition(tmp_path, TopicConfig(), test)


def test_a_marker_counts_when_the_replicas_have_it(tmp_path: Path) -> None:
    async def test(partition: Partition, _: ByHand) -> None:
        partition.lead(THREE, NOW_MS)
        partition.append(transactional(7, 0), NOW_MS)
        partition.append_marker(marker(7, committed=False), NOW_MS)
        for follower in (2, 3):
            partition.follower_fetched(follower, -1, 1, NOW_MS)
        assert (partition.high_watermark, partition.last_stable_offset) == (1, 0)
        for follower in (2, 3):
            partition.follower_fetched(follower, -1, 2, NOW_MS)
        assert (partition.high_watermark, partition.last_stable_offset) == (2, 2)

    with_replica(tmp_path, TopicConfig(), test)


def test_a_follower_knows_where_they_stop_as_well(tmp_path: Path) -> None:
    async def test(partition: Partition, _: ByHand) -> None:
        partition.follow(ELSEWHERE)
        ending = encode_marker(marker(7, committed=False), NOW_MS)
        data = b"".join([transactional(7, 0), placed(ending, 1), placed(transactional(8, 0), 2)])
        partition.append_replicated(data, scan_headers(data), 1, 0, NOW_MS)
        assert partition.last_stable_offset == 0
        partition.append_replicated(b"", [], 3, 0, NOW_MS)
        assert partition.last_stable_offset == 2
        assert [transaction[:2] for transaction in partition.log.aborted_transactions(0, 2)] == [
            (7, 0)
        ]
        partition.truncate_to(1)
        assert partition.last_stable_offset == 0
        partition.lead(replace(THREE, leader_epoch=6), NOW_MS)
        assert partition.log.producers.has_open_transaction(7, 0)

    with_replica(tmp_path, TopicConfig(), test)


def placed(data: bytearray | memoryview, base_offset: int) -> bytes:
    return base_offset.to_bytes(8, "big") + bytes(data)[8:]


def test_markers_that_are_committed_are_forgotten(tmp_path: Path) -> None:
    async def test(partition: Partition, _: ByHand) -> None:
        for sequence in range(50):
            partition.append(transactional(7, sequence), NOW_MS)
            partition.append_marker(marker(7), NOW_MS)
        # Although nobody asked for the last stable offset.
        assert len(partition.log.producers.transactions._ended) <= 1

    with_partition(tmp_path, TopicConfig(), test)


def test_a_marker_of_the_past_is_refused(tmp_path: Path) -> None:
    async def test(partition: Partition, _: ByHand) -> None:
        partition.append(transactional(7, 0, epoch=3), NOW_MS)
        late = marker(7, 3)
        assert code_of(lambda: partition.append_marker(marker(7, 2), NOW_MS)) is (
            ErrorCode.INVALID_PRODUCER_EPOCH
        )
        assert code_of(lambda: partition.append_marker(late, NOW_MS, 2)) is (
            ErrorCode.INVALID_PRODUCER_EPOCH
        )
        assert partition.log.log_end_offset == 1
        partition.append_marker(late, NOW_MS, 1)
        partition.append_marker(late, NOW_MS, 2)  # Again, and there is nothing that it could end.

    with_partition(tmp_path, TopicConfig(), test)


def test_a_marker_needs_enough_replicas(tmp_path: Path) -> None:
    async def test(partition: Partition, _: ByHand) -> None:
        partition.lead(replace(THREE, isr=(1,)), NOW_MS)
        assert code_of(lambda: partition.append_marker(marker(7), NOW_MS)) is (
            ErrorCode.NOT_ENOUGH_REPLICAS
        )

    with_replica(tmp_path, TopicConfig(min_insync_replicas=2), test)


def test_a_client_may_not_write_markers_nor_transactions_without_a_producer(
    tmp_path: Path,
) -> None:
    async def test(partition: Partition, _: ByHand) -> None:
        control = memoryview(encode_marker(marker(7), NOW_MS))
        with pytest.raises(RefusedBatch, match="control"):
            partition.append(control, NOW_MS)
        with pytest.raises(RefusedBatch, match="sequence"):
            partition.append(transactional(7, -1), NOW_MS)
        nobody = batch(b"value", transactional=True)
        assert code_of(lambda: partition.append(nobody, NOW_MS)) is ErrorCode.INVALID_RECORD
        assert partition.log.log_end_offset == 0

    with_partition(tmp_path, TopicConfig(), test)
