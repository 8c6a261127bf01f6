"""Replicas whose log is lost or on a full disk: the controller is told, so that others lead."""

from collections.abc import Iterable, Iterator

from headrace.broker.node import Node
from headrace.errors import ErrorCode, KafkaError, error_code
from headrace.metadata.features import CORDONED_DIRECTORIES_SINCE
from headrace.metadata.image import LOST_DIRECTORY, UNASSIGNED_DIRECTORY
from headrace.protocol.messages.assign_replicas_to_dirs import (
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
    DirectoryData,
    PartitionData,
    TopicData,
)
from headrace.tasks import Duty
from headrace.types import TopicPartition

_CHECK_SECONDS = 1.0
_ASK_SECONDS = 5.0
_REPLICAS_MAX = 1000


class LostReplicas:
    """Tells the controller, again and again until the metadata says so too.

    Replicas that were begun anew and have caught up are told as found, so that they may be in sync
    again. This broker stays fenced until the losses that its start found are told. Of a broker with
    several data directories it is told which replicas are in one that is full, and where they are
    when they have moved.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self._told: set[tuple[bytes, int]] = set()
        self._duty = Duty("telling of lost replicas", _CHECK_SECONDS, self._tell)

    def start(self) -> None:
        self._duty.start()

    def stop(self) -> None:
        self._duty.stop()

    def are_told(self) -> bool:
        """Whether the controller knows of every log that this broker's start found lost."""
        return self._node.replicas.is_applied and all(
            place in self._told for place in self._untold()
        )

    async def _tell(self) -> None:
        node = self._node
        broker = node.store.image.brokers.get(node.node_id)
        if broker is None or not node.replicas.is_applied:
            return  # It is not registered yet.
        changes = [(LOST_DIRECTORY, *place) for place in self._untold()]
        changes += self._found()
        changes += self._placed()
        # What is more is for the next time.
        del changes[_REPLICAS_MAX:]
        if not changes:
            return
        request = AssignReplicasToDirsRequest(
            broker_id=node.node_id, broker_epoch=broker.epoch, directories=_directories(changes)
        )
        response: AssignReplicasToDirsResponse = await node.controllers.ask(request, _ASK_SECONDS)
        code = error_code(response.error_code)
        if code is not ErrorCode.NONE:
            raise KafkaError(code, "the controller did not take note")
        self._told.update(
            (topic_id, index)
            for directory_id, topic_id, index in changes
            if directory_id == LOST_DIRECTORY
        )

    def _untold(self) -> Iterator[tuple[bytes, int]]:
        for name in self._node.replicas.offline_partitions():
            place = self._place(name, is_lost=False)
            if place is not None:
                yield place

    def _found(self) -> Iterator[tuple[bytes, bytes, int]]:
        for name, directory_id in self._node.replicas.rebuilt_partitions():
            place = self._place(name, is_lost=True)
            if place is not None:
                yield (directory_id, *place)

    def _placed(self) -> Iterator[tuple[bytes, bytes, int]]:
        """Replicas of which the metadata should know the directory, and does not."""
        node = self._node
        if node.store.image.metadata_version < CORDONED_DIRECTORIES_SINCE:
            return
        for name, directory_id, is_full in node.replicas.placed_partitions():
            place = self._place(name, is_lost=False)
            if place is None:
                continue
            topic = node.store.image.topics_by_id[place[0]]
            known = topic.partitions[name.partition].directory_of(node.node_id)
            if known != directory_id and (is_full or known != UNASSIGNED_DIRECTORY):
                yield (directory_id, *place)

    def _place(self, name: TopicPartition, *, is_lost: bool) -> tuple[bytes, int] | None:
        """The topic's id and the partition's index, if the metadata has the replica so."""
        topic = self._node.store.image.topics.get(name.topic)
        if topic is None or name.partition >= len(topic.partitions):
            return None
        partition = topic.partitions[name.partition]
        node_id = self._node.node_id
        if node_id not in partition.replicas or (node_id in partition.lost_replicas) != is_lost:
            return None
        return topic.topic_id, name.partition


def _directories(changes: Iterable[tuple[bytes, bytes, int]]) -> list[DirectoryData]:
    """Replicas by directory and topic, as the request has them."""
    places: dict[bytes, dict[bytes, list[PartitionData]]] = {}
    for directory_id, topic_id, index in changes:
        topics = places.setdefault(directory_id, {})
        topics.setdefault(topic_id, []).append(PartitionData(partition_index=index))
    return [
        DirectoryData(
            id=directory_id,
            topics=[TopicData(topic_id=one, partitions=found) for one, found in topics.items()],
        )
        for directory_id, topics in places.items()
    ]
