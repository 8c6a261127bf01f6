"""Reports to the controller of replicas with a lost log or on a full disk."""

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
from headrace.tasks import PeriodicTask
from headrace.types import TopicPartition

_CHECK_SECONDS = 1.0
_REQUEST_S_MAX = 5.0
_REPLICAS_MAX = 1000


class OfflineReplicaReporter:
    """Reports lost replicas to the controller until the metadata has them, so that others lead.

    Replicas that were created again and have caught up are reported as found, so that they may be
    in sync again. This broker stays fenced until the losses that its start found are reported. A
    broker with several data directories also reports which replicas are in a full directory, and
    the directory of replicas that have moved.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self._reported: set[tuple[bytes, int]] = set()
        self._duty = PeriodicTask("reporting lost replicas", _CHECK_SECONDS, self._report)

    def start(self) -> None:
        self._duty.start()

    def stop(self) -> None:
        self._duty.stop()

    def all_reported(self) -> bool:
        """Whether the controller knows of every log that this broker's start found lost."""
        return self._node.replicas.is_applied and all(
            replica in self._reported for replica in self._unreported()
        )

    async def _report(self) -> None:
        node = self._node
        broker = node.store.image.brokers.get(node.node_id)
        if broker is None or not node.replicas.is_applied:
            return  # It is not registered yet.
        changes = [(LOST_DIRECTORY, *replica) for replica in self._unreported()]
        changes += self._rebuilt()
        changes += self._relocated()
        # The rest is for the next time.
        del changes[_REPLICAS_MAX:]
        if not changes:
            return
        request = AssignReplicasToDirsRequest(
            broker_id=node.node_id, broker_epoch=broker.epoch, directories=_directories(changes)
        )
        response: AssignReplicasToDirsResponse = await node.controllers.ask(request, _REQUEST_S_MAX)
        code = error_code(response.error_code)
        if code is not ErrorCode.NONE:
            raise KafkaError(code, "the controller did not take note")
        self._reported.update(
            (topic_id, index)
            for directory_id, topic_id, index in changes
            if directory_id == LOST_DIRECTORY
        )

    def _unreported(self) -> Iterator[tuple[bytes, int]]:
        for name in self._node.replicas.offline_partitions():
            replica = self._replica_in_metadata(name, is_lost=False)
            if replica is not None:
                yield replica

    def _rebuilt(self) -> Iterator[tuple[bytes, bytes, int]]:
        for name, directory_id in self._node.replicas.rebuilt_partitions():
            replica = self._replica_in_metadata(name, is_lost=True)
            if replica is not None:
                yield (directory_id, *replica)

    def _relocated(self) -> Iterator[tuple[bytes, bytes, int]]:
        """The replicas whose directory is missing or outdated in the metadata."""
        node = self._node
        if node.store.image.metadata_version < CORDONED_DIRECTORIES_SINCE:
            return
        for name, directory_id, is_full in node.replicas.placed_partitions():
            replica = self._replica_in_metadata(name, is_lost=False)
            if replica is None:
                continue
            topic = node.store.image.topics_by_id[replica[0]]
            known = topic.partitions[name.partition].directory_of(node.node_id)
            if known != directory_id and (is_full or known != UNASSIGNED_DIRECTORY):
                yield (directory_id, *replica)

    def _replica_in_metadata(
        self, name: TopicPartition, *, is_lost: bool
    ) -> tuple[bytes, int] | None:
        """The topic id and the index of a replica, if it `is_lost` or not in the metadata."""
        topic = self._node.store.image.topics.get(name.topic)
        if topic is None or name.partition >= len(topic.partitions):
            return None
        partition = topic.partitions[name.partition]
        node_id = self._node.node_id
        if node_id not in partition.replicas or (node_id in partition.lost_replicas) != is_lost:
            return None
        if self._node.replicas.awaits_truncation(name, partition):
            return None  # It leads as soon as the image is applied.
        return topic.topic_id, name.partition


def _directories(changes: Iterable[tuple[bytes, bytes, int]]) -> list[DirectoryData]:
    """Replicas by directory and topic, in the form of the request."""
    places: dict[bytes, dict[bytes, list[PartitionData]]] = {}
    for directory_id, topic_id, index in changes:
        topics = places.setdefault(directory_id, {})
        topics.setdefault(topic_id, []).append(PartitionData(partition_index=index))
    return [
        DirectoryData(
            id=directory_id,
            topics=[
                TopicData(topic_id=topic_id, partitions=found) for topic_id, found in topics.items()
            ],
        )
        for directory_id, topics in places.items()
    ]
