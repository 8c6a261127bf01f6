"""The client's view of a cluster: immutable, made from one Metadata answer."""

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.errors import ErrorCode, error_code
from headrace.net.addresses import Address
from headrace.protocol.messages.metadata import MetadataResponse, MetadataResponseTopic


@dataclass(frozen=True, slots=True)
class BrokerInfo:
    """A broker's advertised address. A fenced broker serves no requests for now."""

    node_id: int
    address: Address
    rack: str | None
    is_fenced: bool = False


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """The leader and replicas of one partition. `leader` is -1 if the partition has none."""

    index: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic and its partitions, in order of their numbers."""

    name: str
    topic_id: bytes
    is_internal: bool
    partitions: tuple[PartitionInfo, ...]

    def partition(self, index: int) -> PartitionInfo | None:
        """The partition with this number, or None."""
        # Numbers have no gaps, so index and number agree; yet a broker may leave a partition out.
        if 0 <= index < len(self.partitions) and self.partitions[index].index == index:
            return self.partitions[index]
        return next((partition for partition in self.partitions if partition.index == index), None)


@dataclass(frozen=True, slots=True)
class ClusterView:
    """Brokers and topics at one moment. `errors` has the topics the broker could not describe."""

    cluster_id: str | None
    controller_id: int
    brokers: Mapping[int, BrokerInfo]
    topics: Mapping[str, TopicInfo]
    errors: Mapping[str, ErrorCode]


def view_of(response: MetadataResponse) -> ClusterView:
    """The view from a Metadata response."""
    brokers = {
        broker.node_id: BrokerInfo(broker.node_id, Address(broker.host, broker.port), broker.rack)
        for broker in response.brokers
    }
    topics: dict[str, TopicInfo] = {}
    errors: dict[str, ErrorCode] = {}
    for topic in response.topics:
        name = topic.name or ""
        if topic.error_code:
            errors[name] = error_code(topic.error_code)
        else:
            topics[name] = _topic(name, topic)
    return ClusterView(response.cluster_id, response.controller_id, brokers, topics, errors)


def _topic(name: str, topic: MetadataResponseTopic) -> TopicInfo:
    partitions = sorted(topic.partitions, key=lambda partition: partition.partition_index)
    return TopicInfo(
        name,
        topic.topic_id,
        topic.is_internal,
        tuple(
            PartitionInfo(
                partition.partition_index,
                partition.leader_id,
                partition.leader_epoch,
                tuple(partition.replica_nodes),
                tuple(partition.isr_nodes),
                tuple(partition.offline_replicas),
            )
            for partition in partitions
        ),
    )
