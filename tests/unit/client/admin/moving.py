"""Brokers in memory with replicas that move, by the rules of the controller itself."""

from collections.abc import Mapping, Sequence
from typing import Any

from headrace.errors import ErrorCode
from headrace.metadata.image import Image, PartitionImage
from headrace.metadata.reassignments import (
    alter_partition_reassignments,
    finished_reassignment,
    list_partition_reassignments,
)
from headrace.protocol.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterResponse,
)
from headrace.protocol.messages.describe_configs import (
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from headrace.protocol.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from headrace.protocol.messages.describe_quorum import (
    DescribeQuorumResponse,
    DescribeQuorumResponsePartitionData,
    DescribeQuorumResponseTopicData,
)
from headrace.protocol.messages.elect_leaders import (
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)
from headrace.protocol.messages.incremental_alter_configs import (
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsResponse,
)
from headrace.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from headrace.protocol.messages.metadata_records import PartitionChangeRecord
from headrace.protocol.messages.unregister_broker import UnregisterBrokerResponse
from tests.unit.client.admin.fakes import AdminBrokers
from tests.unit.metadata.clusters import broker_records, topic_records

SIZE = 1000


class MovingBrokers(AdminBrokers):
    """Brokers whose partitions arrive as soon as somebody looks how far they are, if `is_quick`."""

    def __init__(
        self,
        nodes: int,
        topics: Mapping[str, Sequence[Sequence[int]]],
        racks: Mapping[int, str] | None = None,
    ) -> None:
        super().__init__(nodes)
        records = broker_records(*self.nodes, racks=racks)
        for name, replicas in topics.items():
            records += topic_records(name, *replicas)
        self.image = Image().apply(records)
        self.fenced: set[int] = set()
        self.is_quick = True
        self.quorum_error = ErrorCode.NONE
        self.settings: dict[tuple[int, str], dict[str, str]] = {}
        self.settings_seen: list[dict[str, str]] = []

    def partition(self, topic: str, index: int) -> PartitionImage:
        return self.image.topics[topic].partitions[index]

    def replicas(self, topic: str) -> list[tuple[int, ...]]:
        return [partition.replicas for partition in self.image.topics[topic].partitions]

    def leaders(self, topic: str) -> list[int]:
        return [partition.leader for partition in self.image.topics[topic].partitions]

    def arrive(self) -> None:
        """Let every replica catch up."""
        for topic in list(self.image.topics.values()):
            for index, partition in enumerate(topic.partitions):
                end = finished_reassignment(partition, partition.replicas)
                if end is not None:
                    stays = partition.leader in end.isr
                    record = PartitionChangeRecord(
                        topic_id=topic.topic_id,
                        partition_id=index,
                        replicas=list(end.replicas),
                        isr=list(end.isr),
                        leader=partition.leader if stays else end.replicas[0],
                        adding_replicas=[],
                        removing_replicas=[],
                    )
                    self.image = self.image.apply([record])

    def _Metadata(self, node: int, request: Any) -> MetadataResponse:
        names = sorted(self.image.topics)
        if request.topics is not None:
            names = [topic.name for topic in request.topics]
        return MetadataResponse(
            brokers=[
                MetadataResponseBroker(
                    node_id=node_id,
                    host=address.host,
                    port=address.port,
                    rack=self.image.brokers[node_id].rack,
                )
                for node_id, address in self.nodes.items()
                if node_id not in self.fenced
            ],
            cluster_id="fake",
            controller_id=1,
            topics=[self._describe(name) for name in names],
        )

    def _describe(self, name: str) -> MetadataResponseTopic:
        topic = self.image.topics.get(name)
        if topic is None:
            return MetadataResponseTopic(error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name=name)
        return MetadataResponseTopic(
            name=name,
            topic_id=topic.topic_id,
            partitions=[
                MetadataResponsePartition(
                    partition_index=index,
                    leader_id=partition.leader,
                    leader_epoch=partition.leader_epoch,
                    replica_nodes=list(partition.replicas),
                    isr_nodes=list(partition.isr),
                )
                for index, partition in enumerate(topic.partitions)
            ],
        )

    def _DescribeCluster(self, node: int, request: Any) -> DescribeClusterResponse:
        return DescribeClusterResponse(
            cluster_id="fake",
            controller_id=1,
            brokers=[
                DescribeClusterBroker(
                    broker_id=node,
                    host=address.host,
                    port=address.port,
                    rack=self.image.brokers[node].rack,
                    is_fenced=node in self.fenced,
                )
                for node, address in self.nodes.items()
                if request.include_fenced_brokers or node not in self.fenced
            ],
        )

    def _DescribeQuorum(self, node: int, request: Any) -> DescribeQuorumResponse:
        partition = DescribeQuorumResponsePartitionData(
            error_code=self.quorum_error, error_message=None, leader_id=2
        )
        topic = DescribeQuorumResponseTopicData(partitions=[partition])
        return DescribeQuorumResponse(error_message=None, topics=[topic])

    def _AlterPartitionReassignments(self, node: int, request: Any) -> Any:
        result = alter_partition_reassignments(self.image, request)
        self.image = self.image.apply(result.records)
        self.settings_seen = [dict(value) for value in self.settings.values()]
        return result.response

    def _ListPartitionReassignments(self, node: int, request: Any) -> Any:
        answer = list_partition_reassignments(self.image, request)
        if self.is_quick:
            self.arrive()
        return answer

    def _ElectLeaders(self, node: int, request: Any) -> ElectLeadersResponse:
        wanted = request.topic_partitions
        if wanted is None:
            found = [
                (name, index)
                for name, topic in sorted(self.image.topics.items())
                for index in range(len(topic.partitions))
            ]
        else:
            found = [(topic.topic, index) for topic in wanted for index in topic.partitions]
        results: dict[str, list[PartitionResult]] = {}
        for name, index in found:
            code = self._elect(name, index)
            if wanted is not None or code != ErrorCode.ELECTION_NOT_NEEDED:
                result = PartitionResult(partition_id=index, error_code=code, error_message=None)
                results.setdefault(name, []).append(result)
        return ElectLeadersResponse(
            replica_election_results=[
                ReplicaElectionResult(topic=name, partition_result=result)
                for name, result in results.items()
            ]
        )

    def _elect(self, name: str, index: int) -> int:
        topic = self.image.topics.get(name)
        if topic is None or index >= len(topic.partitions):
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        partition = topic.partitions[index]
        preferred = partition.replicas[0]
        if partition.leader == preferred:
            return ErrorCode.ELECTION_NOT_NEEDED
        if preferred not in partition.isr or preferred in self.fenced:
            return ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
        record = PartitionChangeRecord(
            topic_id=topic.topic_id, partition_id=index, leader=preferred
        )
        self.image = self.image.apply([record])
        return ErrorCode.NONE

    def _DescribeLogDirs(self, node: int, request: Any) -> DescribeLogDirsResponse:
        topics = []
        for name, topic in sorted(self.image.topics.items()):
            held = [
                DescribeLogDirsPartition(partition_index=index, partition_size=SIZE)
                for index, partition in enumerate(topic.partitions)
                if node in partition.replicas and node not in partition.adding_replicas
            ]
            topics.append(DescribeLogDirsTopic(name=name, partitions=held))
        return DescribeLogDirsResponse(
            results=[DescribeLogDirsResult(log_dir="/data", topics=topics)]
        )

    def _DescribeConfigs(self, node: int, request: Any) -> DescribeConfigsResponse:
        [wanted] = request.resources
        source = 1 if wanted.resource_type == 2 else 2
        own = self.settings.get((wanted.resource_type, wanted.resource_name), {})
        entries = [
            DescribeConfigsResourceResult(name=name, value=value, config_source=source)
            for name, value in own.items()
        ]
        return DescribeConfigsResponse(results=[DescribeConfigsResult(configs=entries)])

    def _IncrementalAlterConfigs(self, node: int, request: Any) -> IncrementalAlterConfigsResponse:
        [wanted] = request.resources
        own = self.settings.setdefault((wanted.resource_type, wanted.resource_name), {})
        for config in wanted.configs:
            if config.config_operation:
                own.pop(config.name, None)
            else:
                own[config.name] = config.value
        if not own:
            del self.settings[wanted.resource_type, wanted.resource_name]
        return IncrementalAlterConfigsResponse(responses=[AlterConfigsResourceResponse()])

    def _UnregisterBroker(self, node: int, request: Any) -> UnregisterBrokerResponse:
        if request.broker_id not in self.nodes:
            return UnregisterBrokerResponse(
                error_code=ErrorCode.BROKER_ID_NOT_REGISTERED, error_message=None
            )
        del self.nodes[request.broker_id]
        return UnregisterBrokerResponse(error_message=None)
