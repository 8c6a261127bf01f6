"""In-sync replicas as leaders propose them, to a controller that may be slow, gone or unwilling."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headrace.broker.replication.isr_proposals import IsrProposer
from headrace.broker.replication.partition import Partition
from headrace.errors import ErrorCode, KafkaError
from headrace.metadata.image import PartitionImage
from headrace.protocol.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    AlterPartitionResponsePartitionData,
    AlterPartitionResponseTopicData,
)
from tests.unit.broker.handling import LEADS, OneNode, image_of
from tests.unit.client.virtual_time import run

LAG_SECONDS = 10.0
ALONE = PartitionImage((1, 2, 3), (1,), leader=1, leader_epoch=4, partition_epoch=9)


class FakeController:
    """Takes every proposal, unless `code` says otherwise; `silent` keeps its answers back."""

    def __init__(self) -> None:
        self.requests: list[AlterPartitionRequest] = []
        self.code = ErrorCode.NONE
        self.silent = 0

    async def ask(self, request: AlterPartitionRequest, timeout_s: float) -> AlterPartitionResponse:
        self.requests.append(request)
        await asyncio.sleep(0.001)
        if self.silent:
            self.silent -= 1
            await asyncio.sleep(timeout_s)
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT)
        return AlterPartitionResponse(
            topics=[
                AlterPartitionResponseTopicData(
                    topic_id=topic.topic_id,
                    partitions=[
                        AlterPartitionResponsePartitionData(
                            partition_index=partition.partition_index,
                            error_code=self.code,
                            leader_id=request.broker_id,
                            leader_epoch=partition.leader_epoch,
                            isr=[state.broker_id for state in partition.new_isr_with_epochs],
                            partition_epoch=partition.partition_epoch + 1,
                        )
                        for partition in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )

    @property
    def proposed(self) -> list[list[tuple[int, list[int]]]]:
        """What each request proposed: partitions and their ISRs."""
        return [
            [
                (
                    partition.partition_index,
                    [state.broker_id for state in partition.new_isr_with_epochs],
                )
                for topic in request.topics
                for partition in topic.partitions
            ]
            for request in self.requests
        ]


class Keeping:
    """A node whose partitions are kept by an IsrProposer."""

    def __init__(self, directory: Path) -> None:
        self.node = OneNode(directory)
        self.controller = FakeController()
        self.store = SimpleNamespace(image=image_of(LEADS))
        self.keeper = IsrProposer(
            self.node.node.config,
            cast("Any", self.store),
            cast("Any", self.controller),
            self.node.clock,
        )

    def add(self, index: int = 0, image: PartitionImage = LEADS) -> Partition:
        return self.node.add(index, image, isr=self.keeper)

    def fetched(self, partition: Partition, replica: int) -> None:
        """A follower has it all."""
        end_offset = partition.log.log_end_offset
        partition.follower_fetched(replica, replica * 10, end_offset, 0)


def keep(directory: Path, test: Callable[[Keeping], Coroutine[Any, Any, None]]) -> None:
    keeping = Keeping(directory)

    async def with_keeper() -> None:
        partitions = keeping.node.replicas.partitions
        keeping.keeper.start(lambda: list(partitions.values()), lambda: 10)
        await test(keeping)
        await keeping.keeper.stop()

    run(keeping.node.clock, with_keeper())


def test_who_has_caught_up_is_proposed_at_once(tmp_path: Path) -> None:
    async def test(keeping: Keeping) -> None:
        partition = keeping.add(0, ALONE)
        keeping.fetched(partition, 2)
        await asyncio.sleep(0.01)
        assert keeping.controller.proposed == [[(0, [1, 2])]]
        [request] = keeping.controller.requests
        assert (request.broker_id, request.broker_epoch) == (1, 10)
        [asked] = request.topics[0].partitions
        assert [broker_id.broker_epoch for broker_id in asked.new_isr_with_epochs] == [10, 20]
        assert (asked.leader_epoch, asked.partition_epoch) == (4, 9)
        assert (partition.isr, partition.partition_epoch) == ((1, 2), 10)

    keep(tmp_path, test)


def test_many_partitions_go_into_one_request(tmp_path: Path) -> None:
    async def test(keeping: Keeping) -> None:
        partitions = [keeping.add(index, ALONE) for index in range(20)]
        for partition in partitions:
            keeping.fetched(partition, 3)
        await asyncio.sleep(0.01)
        assert keeping.controller.proposed == [[(index, [1, 3]) for index in range(20)]]

    keep(tmp_path, test)


def test_who_lags_is_proposed_to_leave(tmp_path: Path) -> None:
    async def test(keeping: Keeping) -> None:
        partition = keeping.add()
        for replica in (2, 3):
            keeping.fetched(partition, replica)
        keeping.node.append(partition, b"a")
        keeping.fetched(partition, 2)
        await asyncio.sleep(LAG_SECONDS * 0.99)
        assert keeping.controller.requests == []
        await asyncio.sleep(LAG_SECONDS * 0.3)
        assert keeping.controller.proposed == [[(0, [1, 2])]]
        assert partition.high_watermark == 1

    keep(tmp_path, test)


def test_without_an_answer_the_same_is_asked_again(tmp_path: Path) -> None:
    async def test(keeping: Keeping) -> None:
        keeping.controller.silent = 1
        partition = keeping.add(0, ALONE)
        keeping.fetched(partition, 2)
        await asyncio.sleep(1)
        keeping.node.append(partition, b"a")
        assert partition.high_watermark == 0, "broker 2 may be in sync by now"
        await asyncio.sleep(4.5)
        assert keeping.controller.proposed == [[(0, [1, 2])], [(0, [1, 2])]]
        assert partition.isr == (1, 2)

    keep(tmp_path, test)


def test_the_image_may_be_first_to_tell(tmp_path: Path) -> None:
    async def test(keeping: Keeping) -> None:
        keeping.controller.code = ErrorCode.INVALID_UPDATE_VERSION
        partition = keeping.add(0, ALONE)
        keeping.fetched(partition, 2)
        await asyncio.sleep(0.01)
        assert partition.leadership is not None
        assert partition.leadership.pending is not None, "an earlier request may have been taken"
        partition.update(PartitionImage((1, 2, 3), (1, 2), 1, leader_epoch=4, partition_epoch=10))
        assert partition.leadership.pending is None
        count = len(keeping.controller.requests)
        await asyncio.sleep(1)
        assert len(keeping.controller.requests) == count

    keep(tmp_path, test)


def test_a_refusal_is_no_end_and_no_hot_loop(tmp_path: Path) -> None:
    async def test(keeping: Keeping) -> None:
        keeping.controller.code = ErrorCode.INELIGIBLE_REPLICA
        partition = keeping.add(0, ALONE)
        for _ in range(100):
            keeping.fetched(partition, 2)
            await asyncio.sleep(0.01)
        assert 2 <= len(keeping.controller.requests) <= 12
        keeping.controller.code = ErrorCode.NONE
        keeping.fetched(partition, 2)
        await asyncio.sleep(0.2)
        assert partition.isr == (1, 2)

    keep(tmp_path, test)


def test_the_fenced_and_the_replaced_are_not_proposed(tmp_path: Path) -> None:
    async def test(keeping: Keeping) -> None:
        keeping.store.image = image_of(ALONE, fenced=[2])
        partition = keeping.add(0, ALONE)
        keeping.fetched(partition, 2)
        partition.follower_fetched(3, 29, 0, 0)
        await asyncio.sleep(0.01)
        assert keeping.controller.requests == []
        # Once it is alive nothing more need be heard of it.
        keeping.store.image = image_of(ALONE)
        keeping.keeper.brokers_changed()
        await asyncio.sleep(0.01)
        assert keeping.controller.proposed == [[(0, [1, 2])]]

    keep(tmp_path, test)


def test_a_leadership_that_is_over_proposes_nothing(tmp_path: Path) -> None:
    async def test(keeping: Keeping) -> None:
        partition = keeping.add(0, ALONE)
        keeping.fetched(partition, 2)
        partition.stop(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
        await asyncio.sleep(LAG_SECONDS)
        assert keeping.controller.requests == []

    keep(tmp_path, test)


@pytest.mark.parametrize("turns", range(4))
def test_a_stop_is_heard_together_with_a_change(tmp_path: Path, turns: int) -> None:
    async def test(keeping: Keeping) -> None:
        await asyncio.sleep(0.01)
        keeping.keeper.brokers_changed()
        # However far the news has come when the stop follows.
        for _ in range(turns):
            await asyncio.sleep(0)
        async with asyncio.timeout(60):
            await keeping.keeper.stop()

    keep(tmp_path, test)


def test_a_follower_joins_where_its_directory_has_room(tmp_path: Path) -> None:
    full, roomy = bytes([7]) * 16, bytes([8]) * 16

    async def test(keeping: Keeping) -> None:
        image = keeping.store.image
        broker = replace(image.brokers[2], log_dirs=(full, roomy), cordoned_log_dirs=(full,))
        keeping.store.image = replace(image, brokers={**image.brokers, 2: broker})
        for index, directories in enumerate([((2, full),), ((2, roomy),), ()]):
            keeping.fetched(keeping.add(index, replace(ALONE, directories=directories)), 2)
        await asyncio.sleep(0.01)
        assert keeping.controller.proposed == [[(1, [1, 2]), (2, [1, 2])]]

    keep(tmp_path, test)
