"""Replicas whose disk failed: the controller is told, so that others lead in their place."""

from collections.abc import Iterator

from headrace.broker.cluster.duty import Duty
from headrace.broker.node import Node
from headrace.errors import ErrorCode, KafkaError, error_code
from headrace.metadata.image import LOST_DIRECTORY
from headrace.protocol.messages.assign_replicas_to_dirs import (
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
    DirectoryData,
    PartitionData,
    TopicData,
)
from headrace.types import TopicPartition

_CHECK_SECONDS = 1.0
_ASK_SECONDS = 5.0
_REPLICAS_MAX = 1000


class LostReplicas:
    """Tells the controller, again and again until the metadata says so too."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._duty = Duty("telling of lost replicas", _CHECK_SECONDS, self._tell)

    def start(self) -> None:
        self._duty.start()

    def stop(self) -> None:
        self._duty.stop()

    async def _tell(self) -> None:
        topics: dict[bytes, TopicData] = {}
        for number, (topic_id, index) in enumerate(self._untold()):
            if number == _REPLICAS_MAX:
                break  # The rest is for the next time.
            topic = topics.setdefault(topic_id, TopicData(topic_id=topic_id))
            topic.partitions.append(PartitionData(partition_index=index))
        if not topics:
            return
        node = self._node
        request = AssignReplicasToDirsRequest(
            broker_id=node.node_id,
            broker_epoch=node.membership.broker_epoch,
            directories=[DirectoryData(id=LOST_DIRECTORY, topics=list(topics.values()))],
        )
        response: AssignReplicasToDirsResponse = await node.controllers.ask(request, _ASK_SECONDS)
        code = error_code(response.error_code)
        if code is not ErrorCode.NONE:
            raise KafkaError(code, "the controller did not take note")

    def _untold(self) -> Iterator[tuple[bytes, int]]:
        for name in self._node.replicas.offline_partitions():
            place = self._place(name)
            if place is not None:
                yield place

    def _place(self, name: TopicPartition) -> tuple[bytes, int] | None:
        """The topic's id and the partition's index, if the metadata does not know of the loss."""
        topic = self._node.store.image.topics.get(name.topic)
        if topic is None or name.partition >= len(topic.partitions):
            return None
        partition = topic.partitions[name.partition]
        node_id = self._node.node_id
        if node_id not in partition.replicas or node_id in partition.lost_replicas:
            return None
        return topic.topic_id, name.partition
