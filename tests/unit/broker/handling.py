"""A node of which handlers see as much as they need: partitions with real logs, no sockets."""

from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast

from headrace.broker.fetch_purgatory import FetchMemory, FetchPurgatory
from headrace.broker.fetch_sessions import FetchSessions
from headrace.broker.node import Node
from headrace.broker.replication.flush_queue import FlushQueue
from headrace.broker.replication.partition import Partition
from headrace.broker.request import RequestContext
from headrace.broker.topic_traffic import BrokerTraffic
from headrace.config import TopicConfig, broker_config
from headrace.errors import ErrorCode, KafkaError
from headrace.metadata.image import BrokerImage, EndpointImage, Image, PartitionImage, TopicImage
from headrace.metrics.registry import Registry
from headrace.options import LONG_MAX
from headrace.protocol.apis import RequestHeader
from headrace.protocol.records import encode_batch
from headrace.replication.throttle import Throttle
from headrace.storage.files import Files
from headrace.storage.log import Log
from headrace.types import TopicPartition
from tests.unit.client.fake_brokers import FakeClock

TOPIC = "orders"
TOPIC_ID = b"orders-topic-id-"
LEADS = PartitionImage((1, 2, 3), (1, 2, 3), leader=1, leader_epoch=4, partition_epoch=9)
FOLLOWS = PartitionImage((1, 2, 3), (1, 2, 3), leader=2, leader_epoch=4, partition_epoch=9)


def batch(*values: bytes, now_ms: int, **settings: Any) -> bytearray:
    return bytearray(encode_batch([(now_ms, None, value, ()) for value in values], **settings))


class FakeReplicas:
    """Partitions by number; `looked_at` counts how often one was asked for."""

    def __init__(self) -> None:
        self.partitions: dict[int, Partition] = {}
        self.looked_at = 0

    def name_of(self, topic_id: bytes) -> str | None:
        return TOPIC if topic_id == TOPIC_ID else None

    def replica_of(self, topic: str, index: int) -> Partition:
        self.looked_at += 1
        if topic != TOPIC or index not in self.partitions:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return self.partitions[index]

    def is_lost(self, topic: str, index: int) -> bool:
        return False

    def leader_of(self, topic: str, index: int) -> Partition:
        partition = self.replica_of(topic, index)
        if not partition.is_leader:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return partition


class OneNode:
    """Broker 1 of a cluster of three, each in a rack of its own."""

    def __init__(self, directory: Path, **settings: str) -> None:
        self.directory = directory
        self.clock = FakeClock()
        self.replicas = FakeReplicas()
        self.membership = SimpleNamespace(may_write=True, broker_epoch=10)
        self.listener = "PLAINTEXT"
        names = {name.replace("_", "."): value for name, value in settings.items()}
        self.node = SimpleNamespace(
            node_id=1,
            config=broker_config({"node.id": "1", **names}),
            clock=self.clock,
            replicas=self.replicas,
            fetch_purgatory=(purgatory := FetchPurgatory()),
            fetch_sessions=FetchSessions(10, Random(1), purgatory),
            outgoing=FetchMemory(),
            store=SimpleNamespace(image=image_of(LEADS)),
            membership=self.membership,
            closing=False,
            uncommitted_markers={},
            leader_throttle=Throttle(LONG_MAX),
            metrics=(registry := Registry()),
            traffic=BrokerTraffic(registry, lambda: 10, lambda topic: topic == TOPIC),
            logs=SimpleNamespace(checkpoint=lambda: None),
            workers=SimpleNamespace(flush=_at_once, read=_at_once),
        )

    def context(self, version: int) -> RequestContext:
        header = RequestHeader(0, version, 0, "test", 0)
        return RequestContext(cast("Node", self.node), header, "127.0.0.1", self.listener)

    def add(
        self,
        index: int = 0,
        image: PartitionImage = LEADS,
        *,
        isr: Any = None,
        config: TopicConfig | None = None,
    ) -> Partition:
        """A partition in the role that `image` gives broker 1."""
        name = TopicPartition(TOPIC, index)
        config = config or TopicConfig()
        now_ms = self.clock.now_ms()
        log = Log.open(
            Files(), str(self.directory / str(name)), name, config, now_ms, topic_id=TOPIC_ID
        )
        partition = Partition(name, log, config, FlushQueue(cast("Any", None)), isr=isr)
        if image.leader == 1:
            partition.lead(image, now_ms)
        else:
            partition.follow(image)
        self.replicas.partitions[index] = partition
        return partition

    def append(self, partition: Partition, *values: bytes) -> int:
        """Produce to a partition as its leader; the log end offset after that."""
        now_ms = self.clock.now_ms()
        partition.append(memoryview(batch(*values, now_ms=now_ms)), now_ms)
        return partition.log.log_end_offset


async def _at_once(work: Callable[..., Any], *args: Any) -> Any:
    return work(*args)


def image_of(*partitions: PartitionImage, fenced: Sequence[int] = ()) -> Image:
    topic = TopicImage(TOPIC, TOPIC_ID, partitions)
    return Image(
        brokers={
            number: BrokerImage(
                broker_id=number,
                epoch=number * 10,
                incarnation_id=bytes(16),
                endpoints=(EndpointImage("PLAINTEXT", f"10.0.0.{number}", 9092, 0),),
                rack=f"rack-{number}",
                fenced=number in fenced,
            )
            for number in (1, 2, 3)
        },
        topics={TOPIC: topic},
        topics_by_id={TOPIC_ID: topic},
    )
