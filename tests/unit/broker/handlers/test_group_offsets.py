"""TxnOffsetCommit as its handler answers it: what is asked before anything is written."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headrace.broker.coordination.runtime import OFFSETS_TOPIC, CoordinatorRuntime
from headrace.broker.handlers.group_offsets import offset_fetch, txn_offset_commit
from headrace.broker.node import Node
from headrace.broker.replication.flush_queue import FlushQueue
from headrace.broker.replication.partition import Partition
from headrace.broker.request import RequestContext
from headrace.config import TopicConfig
from headrace.coordinator.groups.group_shard import GroupShard
from headrace.coordinator.shard import GroupSettings, ShardEffects
from headrace.errors import ErrorCode, error_code
from headrace.metadata.image import PartitionImage
from headrace.protocol.apis import RequestHeader
from headrace.protocol.batch import scan_headers
from headrace.protocol.markers import Marker
from headrace.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from headrace.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from headrace.storage.files import Files
from headrace.storage.log import Log
from headrace.types import TopicPartition
from tests.unit.broker.handling import TOPIC, image_of
from tests.unit.client.fake_brokers import FakeClock
from tests.unit.client.virtual_time import run

NAME = TopicPartition(OFFSETS_TOPIC, 0)
ALONE = PartitionImage((1,), (1,), leader=1, leader_epoch=4, partition_epoch=9)
NONE = ErrorCode.NONE
LOADING = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


class FakeVerifier:
    """Says what it is told to say, after what it is told to do."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int, int, list[TopicPartition], bool]] = []
        self.verdict = NONE
        self.meanwhile: Callable[[], None] = lambda: None

    async def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[TopicPartition],
        *,
        add: bool,
    ) -> dict[TopicPartition, ErrorCode]:
        self.asked.append((transactional_id, producer_id, producer_epoch, list(partitions), add))
        await asyncio.sleep(0)
        self.meanwhile()
        return dict.fromkeys(partitions, self.verdict)


class GroupNode:
    """A node that leads the one partition of `__consumer_offsets`."""

    def __init__(self, directory: Path) -> None:
        self.clock = FakeClock()
        self.verifier = FakeVerifier()
        log = Log.open(Files(), str(directory / str(NAME)), NAME, TopicConfig(), 0)
        self.partition = Partition(NAME, log, TopicConfig(), FlushQueue(cast("Any", None)))
        self.partition.lead(ALONE, 0)
        self.groups = CoordinatorRuntime(
            OFFSETS_TOPIC,
            self.clock,
            lambda _: GroupShard(GroupSettings(), Random(1)),
        )
        self.config = SimpleNamespace(transaction_partition_verification_enable=True)
        self.node = SimpleNamespace(
            groups=self.groups,
            verifier=self.verifier,
            config=self.config,
            store=SimpleNamespace(image=image_of(ALONE, ALONE)),
        )

    def context(self, version: int) -> RequestContext:
        header = RequestHeader(28, version, 0, "test", 0)
        return RequestContext(cast("Node", self.node), header, "127.0.0.1")

    async def commit(
        self,
        offset: int = 5,
        *,
        partitions: Sequence[int] = (0,),
        topic: str = TOPIC,
        version: int = 5,
        producer: tuple[int, int] = (7, 0),
    ) -> dict[int, ErrorCode]:
        wanted = [
            TxnOffsetCommitRequestPartition(partition_index=partition, committed_offset=offset)
            for partition in partitions
        ]
        request = TxnOffsetCommitRequest(
            transactional_id="copier",
            group_id="g",
            producer_id=producer[0],
            producer_epoch=producer[1],
            topics=[TxnOffsetCommitRequestTopic(name=topic, partitions=wanted)],
        )
        [answered] = (await txn_offset_commit(self.context(version), request)).topics
        assert answered.name == topic
        return {
            partition.partition_index: error_code(partition.error_code)
            for partition in answered.partitions
        }

    async def end(
        self, producer: tuple[int, int] = (7, 0), *, commits: bool = True, coordinator: int = 0
    ) -> None:
        marker = Marker(*producer, coordinator, commits)
        await self.groups.driver_of("g").perform_and_wait(ShardEffects(marker=marker))

    def fetch(self, version: int = 9, *, stable: bool = False) -> tuple[int, ErrorCode]:
        """The offset of partition 0, and its error."""
        if version >= 8:
            wanted = OffsetFetchRequestTopics(name=TOPIC, partition_indexes=[0])
            group = OffsetFetchRequestGroup(group_id="g", topics=[wanted])
            request = OffsetFetchRequest(groups=[group], require_stable=stable)
            [answer] = offset_fetch(self.context(version), request).groups
            one: Any = answer.topics[0].partitions[0]
        else:
            topic = OffsetFetchRequestTopic(name=TOPIC, partition_indexes=[0])
            request = OffsetFetchRequest(group_id="g", topics=[topic], require_stable=stable)
            one = offset_fetch(self.context(version), request).topics[0].partitions[0]
        return one.committed_offset, error_code(one.error_code)


def on_loop(
    directory: Path,
    test: Callable[[GroupNode], Coroutine[Any, Any, None]],
    *,
    leads: bool = True,
) -> None:
    node = GroupNode(directory)

    async def tested() -> None:
        node.groups.lead(1, {0: node.partition} if leads else {})
        try:
            await test(node)
        finally:
            node.groups.close()

    run(node.clock, tested())


def test_offset_is_written_as_part_of_the_transaction_and_holds_after_it(tmp_path: Path) -> None:
    async def test(node: GroupNode) -> None:
        assert await node.commit(5) == {0: NONE}
        log = node.partition.log
        [header] = scan_headers(log.read(0, 10_000, log.log_end_offset).records)
        assert header.is_transactional and not header.is_control
        assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 0, -1)
        assert node.partition.last_stable_offset == 0
        assert node.fetch() == (-1, NONE)
        await node.end()
        assert node.partition.last_stable_offset == 2
        assert node.fetch() == (5, NONE)

    on_loop(tmp_path, test)


@pytest.mark.parametrize("version", [7, 9])
def test_stable_fetch_says_that_a_transaction_is_open(tmp_path: Path, version: int) -> None:
    async def test(node: GroupNode) -> None:
        await node.commit(5)
        assert node.fetch(version, stable=True) == (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)
        assert node.fetch(version) == (-1, NONE)
        await node.end(commits=False)
        assert node.fetch(version, stable=True) == (-1, NONE)

    on_loop(tmp_path, test)


def test_what_is_pending_is_known_after_loading(tmp_path: Path) -> None:
    async def test(node: GroupNode) -> None:
        await node.commit(5)
        await node.commit(6, producer=(8, 0), partitions=[1])
        await node.end((8, 0))
        node.groups.lead(1, {})
        node.groups.lead(1, {0: node.partition})
        while next(iter(node.groups)).loading:
            await asyncio.sleep(0)
        assert node.fetch(stable=True) == (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)
        await node.end()
        assert node.fetch(stable=True) == (5, NONE)

    on_loop(tmp_path, test)


@pytest.mark.parametrize(("version", "add"), [(0, False), (4, False), (5, True)])
def test_coordinator_is_asked_once_for_a_transaction(
    tmp_path: Path, version: int, add: bool
) -> None:
    async def test(node: GroupNode) -> None:
        for _ in range(2):
            assert await node.commit(version=version) == {0: NONE}
        assert node.verifier.asked == [("copier", 7, 0, [NAME], add)]
        await node.end()
        await node.commit(version=version)
        assert len(node.verifier.asked) == 2

    on_loop(tmp_path, test)


def test_verification_that_is_switched_off_leaves_adding(tmp_path: Path) -> None:
    async def test(node: GroupNode) -> None:
        node.config.transaction_partition_verification_enable = False
        await node.commit(version=4, producer=(7, 0))
        assert node.verifier.asked == []
        await node.commit(version=5, producer=(8, 0))
        assert len(node.verifier.asked) == 1

    on_loop(tmp_path, test)


@pytest.mark.parametrize(
    ("verdict", "version", "told"),
    [
        (ErrorCode.NETWORK_EXCEPTION, 5, LOADING),
        (ErrorCode.NETWORK_EXCEPTION, 1, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.COORDINATOR_NOT_AVAILABLE, 5, LOADING),
        (ErrorCode.NOT_COORDINATOR, 3, LOADING),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, 5, LOADING),
        (ErrorCode.CONCURRENT_TRANSACTIONS, 4, LOADING),
        (ErrorCode.CONCURRENT_TRANSACTIONS, 5, ErrorCode.CONCURRENT_TRANSACTIONS),
        (ErrorCode.TRANSACTION_ABORTABLE, 3, ErrorCode.INVALID_TXN_STATE),
        (ErrorCode.TRANSACTION_ABORTABLE, 4, ErrorCode.TRANSACTION_ABORTABLE),
        (ErrorCode.INVALID_PRODUCER_EPOCH, 5, ErrorCode.INVALID_PRODUCER_EPOCH),
        (ErrorCode.INVALID_PRODUCER_ID_MAPPING, 5, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
    ],
)
def test_refusals_of_the_coordinator_are_told_as_clients_know_them(
    tmp_path: Path, verdict: ErrorCode, version: int, told: ErrorCode
) -> None:
    async def test(node: GroupNode) -> None:
        node.verifier.verdict = verdict
        assert await node.commit(version=version) == {0: told}
        assert node.partition.log.log_end_offset == 0

    on_loop(tmp_path, test)


def test_producer_that_was_fenced_is_refused_and_the_shard_stays(tmp_path: Path) -> None:
    async def test(node: GroupNode) -> None:
        await node.commit(5, producer=(7, 3))
        await node.end((7, 4))
        driver = node.groups.driver_of("g")
        assert await node.commit(6, producer=(7, 3)) == {0: ErrorCode.INVALID_PRODUCER_EPOCH}
        assert await node.commit(6, producer=(7, -1)) == {0: ErrorCode.INVALID_PRODUCER_EPOCH}
        assert len(node.verifier.asked) == 1
        assert await node.commit(6, producer=(9, -1)) == {0: ErrorCode.INVALID_PRODUCER_EPOCH}
        assert await node.commit(6, producer=(-1, -1)) == {0: ErrorCode.INVALID_PRODUCER_ID_MAPPING}
        assert await node.commit(6, producer=(7, 4)) == {0: NONE}
        assert node.groups.driver_of("g") is driver

    on_loop(tmp_path, test)


@pytest.mark.parametrize(
    ("version", "marker_epoch", "told"),
    [
        (4, 0, ErrorCode.INVALID_TXN_STATE),
        (4, 1, ErrorCode.INVALID_PRODUCER_EPOCH),
        (5, 1, ErrorCode.INVALID_PRODUCER_EPOCH),
    ],
)
def test_transaction_that_ends_while_it_is_looked_up_gets_nothing(
    tmp_path: Path, version: int, marker_epoch: int, told: ErrorCode
) -> None:
    async def test(node: GroupNode) -> None:
        marker = ShardEffects(marker=Marker(7, marker_epoch, 0, True))
        node.verifier.meanwhile = lambda: node.groups.driver_of("g").perform(marker)
        assert await node.commit(version=version) == {0: told}
        assert node.partition.last_stable_offset == node.partition.log.log_end_offset == 1

    on_loop(tmp_path, test)


def test_marker_of_the_transaction_before_comes_twice(tmp_path: Path) -> None:
    async def test(node: GroupNode) -> None:
        await node.commit(5)
        await node.end((7, 1))
        # From a new coordinator, which does not know that it was written.
        again = ShardEffects(marker=Marker(7, 1, 1, True))
        node.verifier.meanwhile = lambda: node.groups.driver_of("g").perform(again)
        assert await node.commit(6, producer=(7, 1)) == {0: NONE}
        assert node.fetch(stable=True) == (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)
        await node.end((7, 2), coordinator=1)
        assert node.fetch() == (6, NONE)

    on_loop(tmp_path, test)


@pytest.mark.parametrize("comes_back", [False, True])
def test_coordinator_that_is_lost_while_it_is_looked_up_writes_nothing(
    tmp_path: Path, comes_back: bool
) -> None:
    async def test(node: GroupNode) -> None:
        def lose() -> None:
            node.groups.lead(1, {})
            if comes_back:
                node.groups.lead(1, {0: node.partition})

        node.verifier.meanwhile = lose
        assert await node.commit() == {0: ErrorCode.NOT_COORDINATOR}
        assert node.partition.log.log_end_offset == 0

    on_loop(tmp_path, test)


def test_group_that_is_kept_elsewhere_is_not_committed_here(tmp_path: Path) -> None:
    async def test(node: GroupNode) -> None:
        assert await node.commit() == {0: ErrorCode.NOT_COORDINATOR}

    on_loop(tmp_path, test, leads=False)


def test_partitions_that_do_not_exist_fail_alone(tmp_path: Path) -> None:
    async def test(node: GroupNode) -> None:
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await node.commit(partitions=[1, 2]) == {1: NONE, 2: unknown}
        assert await node.commit(topic="nothing", partitions=[0]) == {0: unknown}
        assert node.partition.log.log_end_offset == 1

    on_loop(tmp_path, test)
