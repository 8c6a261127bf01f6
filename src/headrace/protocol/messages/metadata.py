"""Tables of the Metadata API."""

from headrace.protocol.schema import (
    Message,
    Struct,
    array,
    boolean,
    int16,
    int32,
    string,
    uuid,
)
from headrace.types import ZERO_UUID


class MetadataRequestTopic(Struct):
    topic_id: bytes = uuid("10+", default=ZERO_UUID)
    name: str | None = string(nullable="10+", default="")


class MetadataRequest(Message, api_key=3, versions=(0, 13), flexible_from=9):
    topics: list[MetadataRequestTopic] | None = array(
        MetadataRequestTopic, nullable="1+", default=...
    )
    allow_auto_topic_creation: bool = boolean("4+", default=True)
    include_cluster_authorized_operations: bool = boolean("8-10", default=False)
    include_topic_authorized_operations: bool = boolean("8+", default=False)


class MetadataResponseBroker(Struct):
    node_id: int = int32(default=0)
    host: str = string(default="")
    port: int = int32(default=0)
    rack: str | None = string("1+", nullable="1+", default=None)


class MetadataResponsePartition(Struct):
    error_code: int = int16(default=0)
    partition_index: int = int32(default=0)
    leader_id: int = int32(default=0)
    leader_epoch: int = int32("7+", default=-1)
    replica_nodes: list[int] = array(int32, default=...)
    isr_nodes: list[int] = array(int32, default=...)
    offline_replicas: list[int] = array(int32, "5+", default=...)


class MetadataResponseTopic(Struct):
    error_code: int = int16(default=0)
    name: str | None = string(nullable="12+", default="")
    topic_id: bytes = uuid("10+", default=ZERO_UUID)
    is_internal: bool = boolean("1+", default=False)
    partitions: list[MetadataResponsePartition] = array(MetadataResponsePartition, default=...)
    topic_authorized_operations: int = int32("8+", default=-2147483648)


class MetadataResponse(Message, api_key=3, versions=(0, 13), flexible_from=9):
    throttle_time_ms: int = int32("3+", default=0)
    brokers: list[MetadataResponseBroker] = array(MetadataResponseBroker, default=...)
    cluster_id: str | None = string("2+", nullable="2+", default=None)
    controller_id: int = int32("1+", default=-1)
    topics: list[MetadataResponseTopic] = array(MetadataResponseTopic, default=...)
    cluster_authorized_operations: int = int32("8-10", default=-2147483648)
    error_code: int = int16("13+", default=0)
