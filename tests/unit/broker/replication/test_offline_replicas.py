"""Telling the controller of replicas whose disk failed, on virtual time."""

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headrace.broker.node import Node
from headrace.broker.replication.offline_replicas import OfflineReplicaReporter
from headrace.errors import ErrorCode
from headrace.metadata.image import LOST_DIRECTORY, Image
from headrace.metadata.isr import assign_replicas_to_dirs
from headrace.protocol.messages.assign_replicas_to_dirs import (
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
)
from headrace.protocol.messages.metadata_records import (
    BrokerRegistrationChangeRecord,
    FeatureLevelRecord,
)
from headrace.types import TopicPartition
from tests.unit.client.fake_brokers import FakeClock
from tests.unit.client.virtual_time import run
from tests.unit.metadata.clusters import cluster, id_of, standing


class Broker:
    """Broker 1 and a controller that is asked by it; `offline` are its lost replicas."""

    def __init__(self, image: Image) -> None:
        self.offline: list[TopicPartition] = []
        self.rebuilt: list[tuple[TopicPartition, bytes]] = []
        self.placed: list[tuple[TopicPartition, bytes, bool]] = []
        self.elected: list[TopicPartition] = []
        self.store = SimpleNamespace(image=image)
        self.requests: list[AssignReplicasToDirsRequest] = []
        self.codes: list[ErrorCode] = []
        node = SimpleNamespace(
            node_id=1,
            membership=SimpleNamespace(broker_epoch=image.brokers[1].epoch),
            replicas=SimpleNamespace(
                offline_partitions=lambda: self.offline,
                rebuilt_partitions=lambda: self.rebuilt,
                placed_partitions=lambda: self.placed,
                awaits_truncation=lambda name, partition: name in self.elected,
                is_applied=True,
            ),
            store=self.store,
            controllers=self,
        )
        self.lost_replicas = OfflineReplicaReporter(cast("Node", node))

    async def ask(self, request: AssignReplicasToDirsRequest, timeout_s: float) -> Any:
        await asyncio.sleep(0)
        self.requests.append(request)
        if self.codes:
            return AssignReplicasToDirsResponse(error_code=self.codes.pop())
        result = assign_replicas_to_dirs(self.store.image, request, unclean_by_default=False)
        self.store.image = self.store.image.apply(result.records)
        return result.response


def try_broker(image: Image, scenario: Callable[[Broker], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        broker = Broker(image)
        broker.lost_replicas.start()
        await scenario(broker)
        broker.lost_replicas.stop()

    run(FakeClock(), main())


def test_a_damaged_replica_that_was_elected_is_not_reported_again() -> None:
    async def scenario(broker: Broker) -> None:
        broker.offline = broker.elected = [TopicPartition("a", 0)]
        await asyncio.sleep(10)
        assert broker.requests == []
        broker.elected = []
        await asyncio.sleep(10)
        assert len(broker.requests) == 1

    try_broker(cluster(1, 2, 3, topics={"a": [(1, 2, 3)]}), scenario)


def test_lost_replicas_are_told_once() -> None:
    async def scenario(broker: Broker) -> None:
        await asyncio.sleep(10)
        assert broker.requests == []
        broker.offline = [TopicPartition("a", 1), TopicPartition("a", 0), TopicPartition("gone", 0)]
        await asyncio.sleep(10)
        [request] = broker.requests
        [directory] = request.directories
        [topic] = directory.topics
        assert (directory.id, topic.topic_id) == (LOST_DIRECTORY, id_of("a"))
        assert [partition.partition_index for partition in topic.partitions] == [1, 0]
        assert [entry[0] for entry in standing(broker.store.image, "a")] == [2, 2, 1]

    try_broker(cluster(1, 2, topics={"a": [[1, 2], [2, 1], [1, 2]]}), scenario)


def test_they_are_told_again_until_the_controller_has_taken_note(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(broker: Broker) -> None:
        broker.codes = [ErrorCode.REQUEST_TIMED_OUT, ErrorCode.REQUEST_TIMED_OUT]
        broker.offline = [TopicPartition("a", 0)]
        await asyncio.sleep(10)
        assert len(broker.requests) == 3
        assert standing(broker.store.image, "a")[0][0] == 2

    try_broker(cluster(1, 2, topics={"a": [[1, 2]]}), scenario)
    assert len(caplog.records) == 2


def test_a_broker_may_be_unfenced_when_its_losses_are_told() -> None:
    async def scenario(broker: Broker) -> None:
        node = cast("Any", broker.lost_replicas)._node
        node.replicas.is_applied = False
        assert not broker.lost_replicas.all_reported()
        node.replicas.is_applied = True
        assert broker.lost_replicas.all_reported()
        broker.offline = [TopicPartition("a", 0)]
        assert not broker.lost_replicas.all_reported()
        await asyncio.sleep(2)
        assert broker.lost_replicas.all_reported()

    try_broker(cluster(1, 2, topics={"a": [[1, 2]]}), scenario)


def test_a_replica_that_was_begun_anew_is_told_as_found() -> None:
    async def scenario(broker: Broker) -> None:
        broker.offline = [TopicPartition("a", 0)]
        await asyncio.sleep(2)
        assert broker.store.image.topics["a"].partitions[0].lost_replicas == (1,)
        broker.offline = []
        await asyncio.sleep(5)
        assert len(broker.requests) == 1
        [directory_id] = broker.store.image.brokers[1].log_dirs
        broker.rebuilt = [(TopicPartition("a", 0), directory_id)]
        await asyncio.sleep(5)
        assert len(broker.requests) == 2
        partition = broker.store.image.topics["a"].partitions[0]
        # In sync it is only when its leader says so.
        assert (partition.lost_replicas, partition.isr) == ((), (2,))

    try_broker(cluster(1, 2, topics={"a": [[1, 2]]}), scenario)


def test_replicas_in_a_full_directory_are_told_with_it_and_again_when_they_move() -> None:
    other = bytes([77]) * 16

    async def scenario(broker: Broker) -> None:
        image = broker.store.image
        [first] = image.brokers[1].log_dirs
        change = BrokerRegistrationChangeRecord(
            broker_id=1, broker_epoch=image.brokers[1].epoch, log_dirs=[first, other]
        )
        level = FeatureLevelRecord(name="metadata.version", feature_level=30)
        broker.store.image = image.apply([change, level])
        names = [TopicPartition("a", number) for number in range(3)]
        broker.placed = [(names[0], first, False), (names[1], other, False)]
        await asyncio.sleep(5)
        assert broker.requests == [], "nobody needs to know"
        broker.placed = [(names[0], first, False), (names[1], other, True)]
        await asyncio.sleep(5)
        [request] = broker.requests
        [directory] = request.directories
        assert directory.id == other
        known = [partition.directories for partition in broker.store.image.topics["a"].partitions]
        assert known == [(), ((1, other),), ()]
        broker.placed = [(names[0], first, False), (names[1], first, False)]
        await asyncio.sleep(5)
        assert len(broker.requests) == 2
        assert broker.store.image.topics["a"].partitions[1].directory_of(1) == first

    try_broker(cluster(1, 2, topics={"a": [[1, 2], [2, 1], [1, 2]]}), scenario)
