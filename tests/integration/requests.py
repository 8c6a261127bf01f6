"""A plain request of every API, in every version, for tests that need them all."""

import time
from collections.abc import Callable

from headrace.protocol.apis import Api
from headrace.protocol.messages import alter_configs, incremental_alter_configs
from headrace.protocol.messages.api_versions import ApiVersionsRequest
from headrace.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from headrace.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from headrace.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from headrace.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from headrace.protocol.messages.describe_cluster import DescribeClusterRequest
from headrace.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from headrace.protocol.messages.describe_log_dirs import (
    DescribeLogDirsRequest,
)
from headrace.protocol.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    TopicRequest,
)
from headrace.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
)
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest
from headrace.protocol.messages.list_config_resources import ListConfigResourcesRequest
from headrace.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from headrace.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from headrace.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from headrace.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from headrace.protocol.records import encode_batch
from headrace.protocol.schema import Message
from tests.integration.cluster_requests import cluster_requests_of
from tests.integration.group_requests import group_requests_of
from tests.integration.security_requests import security_requests
from tests.integration.transaction_requests import transaction_requests_of

TOPIC_RESOURCE = 2


def batch(*values: bytes, timestamp: int | None = None, compression: int = 0) -> bytes:
    """A record batch as a producer sends it, its records a millisecond apart."""
    first = int(time.time() * 1000) if timestamp is None else timestamp
    rows = [(first + number, None, value, ()) for number, value in enumerate(values)]
    return bytes(encode_batch(rows, compression=compression))


def requests_of(topic: str, topic_id: bytes) -> dict[Api, Callable[[int], Message]]:
    """A plain request of every API, in any of its versions, about a topic that exists."""

    def wanted_topics(version: int) -> list[DeleteTopicState]:
        return [DeleteTopicState(name="none-such")] if version >= 6 else []

    return {
        Api.PRODUCE: lambda version: ProduceRequest(
            acks=1,
            timeout_ms=1000,
            topic_data=[
                TopicProduceData(
                    name=topic,
                    topic_id=topic_id,
                    partition_data=[PartitionProduceData(index=0, records=batch(b"v"))],
                )
            ],
        ),
        Api.FETCH: lambda version: FetchRequest(
            max_bytes=1 << 20,
            topics=[
                FetchTopic(
                    topic=topic,
                    topic_id=topic_id,
                    partitions=[FetchPartition(partition_max_bytes=1 << 20)],
                )
            ],
        ),
        Api.LIST_OFFSETS: lambda version: ListOffsetsRequest(
            replica_id=-1,
            topics=[ListOffsetsTopic(name=topic, partitions=[ListOffsetsPartition(timestamp=-2)])],
        ),
        Api.METADATA: lambda version: MetadataRequest(topics=[MetadataRequestTopic(name=topic)]),
        Api.API_VERSIONS: lambda version: ApiVersionsRequest(
            client_software_name="test", client_software_version="1.0"
        ),
        Api.CREATE_TOPICS: lambda version: CreateTopicsRequest(
            topics=[CreatableTopic(name=f"new-{version}", num_partitions=1, replication_factor=1)]
        ),
        Api.DELETE_TOPICS: lambda version: DeleteTopicsRequest(
            topics=wanted_topics(version), topic_names=["none-such"] if version < 6 else []
        ),
        Api.DELETE_RECORDS: lambda version: DeleteRecordsRequest(
            topics=[DeleteRecordsTopic(name=topic, partitions=[DeleteRecordsPartition(offset=0)])]
        ),
        Api.INIT_PRODUCER_ID: lambda version: InitProducerIdRequest(transactional_id=None),
        Api.OFFSET_FOR_LEADER_EPOCH: lambda version: OffsetForLeaderEpochRequest(
            topics=[OffsetForLeaderTopic(topic=topic, partitions=[OffsetForLeaderPartition()])]
        ),
        Api.LIST_CONFIG_RESOURCES: lambda version: ListConfigResourcesRequest(),
        Api.DESCRIBE_CONFIGS: lambda version: DescribeConfigsRequest(
            resources=[
                DescribeConfigsResource(
                    resource_type=TOPIC_RESOURCE, resource_name=topic, configuration_keys=None
                )
            ],
            include_synonyms=True,
            include_documentation=version >= 3,
        ),
        Api.ALTER_CONFIGS: lambda version: alter_configs.AlterConfigsRequest(
            resources=[
                alter_configs.AlterConfigsResource(
                    resource_type=TOPIC_RESOURCE,
                    resource_name=topic,
                    configs=[alter_configs.AlterableConfig(name="segment.ms", value="60000")],
                )
            ]
        ),
        Api.DESCRIBE_LOG_DIRS: lambda version: DescribeLogDirsRequest(topics=None),
        Api.CREATE_PARTITIONS: lambda version: CreatePartitionsRequest(
            topics=[CreatePartitionsTopic(name=topic, count=2 + version, assignments=None)]
        ),
        Api.INCREMENTAL_ALTER_CONFIGS: lambda version: (
            incremental_alter_configs.IncrementalAlterConfigsRequest(
                resources=[
                    incremental_alter_configs.AlterConfigsResource(
                        resource_type=TOPIC_RESOURCE,
                        resource_name=topic,
                        configs=[
                            incremental_alter_configs.AlterableConfig(
                                name="retention.ms", value=str(3_600_000 + version)
                            )
                        ],
                    )
                ]
            )
        ),
        Api.DESCRIBE_CLUSTER: lambda version: DescribeClusterRequest(
            include_cluster_authorized_operations=True
        ),
        Api.DESCRIBE_TOPIC_PARTITIONS: lambda version: DescribeTopicPartitionsRequest(
            topics=[TopicRequest(name=topic)]
        ),
        **group_requests_of(topic, topic_id),
        **cluster_requests_of(topic, topic_id),
        **security_requests(),
        **transaction_requests_of(topic),
    }
