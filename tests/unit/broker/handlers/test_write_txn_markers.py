"""WriteTxnMarkers as its handler answers it: when, and what it does not write."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.broker.coordination.runtime import OFFSETS_TOPIC
from headrace.broker.handlers.transactions import write_txn_markers
from headrace.broker.replication.partition import Partition
from headrace.coordinator.shard import ShardEffects
from headrace.errors import ErrorCode, KafkaError, StorageError
from headrace.protocol.batch import scan_headers
from headrace.protocol.markers import Marker, decode_marker
from headrace.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from tests.unit.broker.handling import FOLLOWS, LEADS, TOPIC, OneNode, batch
from tests.unit.client.virtual_time import run

PRODUCER_ID = 7


class Groups:
    """The coordinator of groups: notes the markers that its shards are to write."""

    def __init__(self) -> None:
        self.markers: list[Marker | None] = []
        self.error: Exception | None = None
        self.at_once = False

    def driver_at(self, index: int) -> Any:
        return SimpleNamespace(perform_with_future=self._perform_with_future)

    def _perform_with_future(self, effects: ShardEffects) -> asyncio.Future[None]:
        done = asyncio.get_running_loop().create_future()
        if self.error is not None and self.at_once:
            raise self.error
        if self.error is not None:
            done.set_exception(self.error)
        else:
            self.markers.append(effects.marker)
            done.set_result(None)
        return done


def asking(
    *indexes: int, topic: str = TOPIC, epoch: int = 0, coordinator_epoch: int = 1, version: int = 0
) -> WriteTxnMarkersRequest:
    return WriteTxnMarkersRequest(
        markers=[
            WritableTxnMarker(
                producer_id=PRODUCER_ID,
                producer_epoch=epoch,
                transaction_result=True,
                coordinator_epoch=coordinator_epoch,
                transaction_version=version,
                topics=[WritableTxnMarkerTopic(name=topic, partition_indexes=list(indexes))],
            )
        ]
    )


def at_once(node: OneNode, request: WriteTxnMarkersRequest) -> list[int]:
    answer = write_txn_markers(node.context(2), request)
    assert isinstance(answer, WriteTxnMarkersResponse), "it waits"
    return codes(answer)


def later(
    node: OneNode, request: WriteTxnMarkersRequest
) -> "asyncio.Future[WriteTxnMarkersResponse]":
    answer = write_txn_markers(node.context(2), request)
    assert isinstance(answer, Awaitable), "it does not wait"
    return asyncio.ensure_future(answer)


def codes(response: WriteTxnMarkersResponse) -> list[int]:
    [marker] = response.markers
    assert marker.producer_id == PRODUCER_ID
    return [partition.error_code for topic in marker.topics for partition in topic.partitions]


def markers(partition: Partition) -> list[Marker | None]:
    data = partition.log.read(0, 1 << 20, partition.log.log_end_offset).records
    return [decode_marker(data, header) for header in scan_headers(data) if header.is_control]


def produce(node: OneNode, partition: Partition, epoch: int) -> None:
    now_ms = node.clock.now_ms()
    records = batch(
        b"a",
        now_ms=now_ms,
        producer_id=PRODUCER_ID,
        producer_epoch=epoch,
        base_sequence=0,
        transactional=True,
    )
    partition.append(memoryview(records), now_ms)


def replicate(partition: Partition) -> None:
    for replica in (2, 3):
        partition.follower_fetched(replica, replica * 10, partition.log.log_end_offset, 0)


def on_loop(directory: Path, test: Callable[[OneNode, Groups], Coroutine[Any, Any, None]]) -> None:
    node, groups = OneNode(directory), Groups()
    node.node.groups = groups
    run(node.clock, test(node, groups))


def test_markers_are_answered_when_every_replica_has_them(tmp_path: Path) -> None:
    async def test(node: OneNode, _: Groups) -> None:
        partitions = [node.add(index) for index in (0, 1)]
        waiting = later(node, asking(0, 1))
        replicate(partitions[0])
        await asyncio.sleep(0.1)
        assert not waiting.done()
        replicate(partitions[1])
        assert codes(await waiting) == [0, 0]
        for partition in partitions:
            assert markers(partition) == [Marker(PRODUCER_ID, 0, 1, True)]

    on_loop(tmp_path, test)


def test_a_partition_whose_followers_are_slow_is_told_of_and_others_are_written(
    tmp_path: Path,
) -> None:
    async def test(node: OneNode, _: Groups) -> None:
        partitions = [node.add(index) for index in (0, 1)]
        waiting = later(node, asking(0, 1))
        replicate(partitions[1])
        assert codes(await waiting) == [ErrorCode.REQUEST_TIMED_OUT, 0]

    on_loop(tmp_path, test)


def test_a_marker_that_is_asked_for_again_before_it_is_committed_is_written_once(
    tmp_path: Path,
) -> None:
    async def test(node: OneNode, _: Groups) -> None:
        partition = node.add()
        for _attempt in range(3):
            assert codes(await later(node, asking(0))) == [ErrorCode.REQUEST_TIMED_OUT]
        waiting = later(node, asking(0))
        replicate(partition)
        assert codes(await waiting) == [0]
        assert len(markers(partition)) == 1
        await asyncio.sleep(0.01)
        assert node.node.uncommitted_markers == {}

    on_loop(tmp_path, test)


def test_what_is_led_elsewhere_is_refused(tmp_path: Path) -> None:
    async def test(node: OneNode, _: Groups) -> None:
        node.add(0, FOLLOWS)
        told = at_once(node, asking(0, 9))
        assert told == [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]

    on_loop(tmp_path, test)


def test_a_broker_that_may_not_write_writes_no_markers(tmp_path: Path) -> None:
    async def test(node: OneNode, _: Groups) -> None:
        partition = node.add()
        node.membership.may_write = False
        assert at_once(node, asking(0)) == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
        assert markers(partition) == []

    on_loop(tmp_path, test)


def test_a_leader_that_is_replaced_meanwhile_says_so(tmp_path: Path) -> None:
    async def test(node: OneNode, _: Groups) -> None:
        partition = node.add(0, LEADS)
        waiting = later(node, asking(0))
        partition.follow(FOLLOWS)
        assert codes(await waiting) == [ErrorCode.NOT_LEADER_OR_FOLLOWER]

    on_loop(tmp_path, test)


def test_the_log_refuses_markers_of_the_past(tmp_path: Path) -> None:
    async def test(node: OneNode, _: Groups) -> None:
        partition = node.add()
        produce(node, partition, epoch=3)
        waiting = later(node, asking(0, epoch=3, coordinator_epoch=5))
        replicate(partition)
        await waiting
        fenced = ErrorCode.TRANSACTION_COORDINATOR_FENCED
        assert at_once(node, asking(0, epoch=3, coordinator_epoch=4)) == [fenced]
        assert at_once(node, asking(0, epoch=2)) == [ErrorCode.INVALID_PRODUCER_EPOCH]
        assert len(markers(partition)) == 1

    on_loop(tmp_path, test)


def test_a_late_marker_of_version_2_does_not_end_the_next_transaction(tmp_path: Path) -> None:
    async def test(node: OneNode, _: Groups) -> None:
        partition = node.add()
        produce(node, partition, epoch=3)
        for _attempt in range(2):  # Whoever did not hear of it asks again.
            waiting = later(node, asking(0, epoch=4, version=2))
            replicate(partition)
            assert codes(await waiting) == [0]
        produce(node, partition, epoch=4)
        late = at_once(node, asking(0, epoch=4, version=2))
        assert late == [ErrorCode.INVALID_PRODUCER_EPOCH]
        assert partition.log.producers.has_open_transaction(PRODUCER_ID, 4)

    on_loop(tmp_path, test)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (None, ErrorCode.NONE),
        (KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS), ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (KafkaError(ErrorCode.NOT_COORDINATOR), ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (KafkaError(ErrorCode.INVALID_PRODUCER_EPOCH), ErrorCode.INVALID_PRODUCER_EPOCH),
        (StorageError("the disk is full"), ErrorCode.KAFKA_STORAGE_ERROR),
    ],
)
def test_the_offsets_of_a_transaction_are_ended_by_their_coordinator(
    tmp_path: Path, error: Exception | None, code: ErrorCode
) -> None:
    async def test(node: OneNode, groups: Groups) -> None:
        groups.error = error
        partition = node.add()
        node.replicas.leader_of = lambda topic, index: partition  # type: ignore[method-assign]
        assert codes(await later(node, asking(3, topic=OFFSETS_TOPIC))) == [code]
        if error is not None:
            groups.at_once = True
            assert at_once(node, asking(3, topic=OFFSETS_TOPIC)) == [code]
        if error is None:
            assert groups.markers == [Marker(PRODUCER_ID, 0, 1, True)]
        assert markers(partition) == []

    on_loop(tmp_path, test)
