"""The records of `__consumer_offsets` about groups whose coordinator assigns (KIP-848)."""

from headrace.protocol.schema import (
    Message,
    Struct,
    array,
    int8,
    int32,
    int64,
    raw,
    string,
    struct,
    uuid,
)
from headrace.types import ZERO_UUID


class ConsumerGroupMetadataKey(Message, api_key=3, versions=(0, 0)):
    group_id: str = string(default="")


class ConsumerGroupMetadataValue(Message, api_key=3, versions=(0, 0), flexible_from=0):
    epoch: int = int32(default=0)
    metadata_hash: int = int64(tag=0, default=0)


class ConsumerGroupPartitionMetadataKey(Message, api_key=4, versions=(0, 0)):
    group_id: str = string(default="")


class PartitionMetadata(Struct):
    partition: int = int32(default=0)
    racks: list[str] = array(string, default=...)


class TopicMetadata(Struct):
    topic_id: bytes = uuid(default=ZERO_UUID)
    topic_name: str = string(default="")
    num_partitions: int = int32(default=0)
    partition_metadata: list[PartitionMetadata] = array(PartitionMetadata, default=...)


class ConsumerGroupPartitionMetadataValue(Message, api_key=4, versions=(0, 0), flexible_from=0):
    topics: list[TopicMetadata] = array(TopicMetadata, default=...)


class ConsumerGroupMemberMetadataKey(Message, api_key=5, versions=(0, 0)):
    group_id: str = string(default="")
    member_id: str = string(default="")


class ClassicProtocol(Struct):
    name: str = string(default="")
    metadata: bytes = raw(default=b"")


class ClassicMemberMetadata(Struct):
    session_timeout_ms: int = int32(default=0)
    supported_protocols: list[ClassicProtocol] = array(ClassicProtocol, default=...)


class ConsumerGroupMemberMetadataValue(Message, api_key=5, versions=(0, 0), flexible_from=0):
    instance_id: str | None = string(nullable="0+", default="")
    rack_id: str | None = string(nullable="0+", default="")
    client_id: str = string(default="")
    client_host: str = string(default="")
    subscribed_topic_names: list[str] = array(string, default=...)
    subscribed_topic_regex: str | None = string(nullable="0+", default="")
    rebalance_timeout_ms: int = int32(default=-1)
    server_assignor: str | None = string(nullable="0+", default="")
    classic_member_metadata: ClassicMemberMetadata | None = struct(
        ClassicMemberMetadata, nullable="0+", tag=0, default=...
    )


class ConsumerGroupTargetAssignmentMetadataKey(Message, api_key=6, versions=(0, 0)):
    group_id: str = string(default="")


class ConsumerGroupTargetAssignmentMetadataValue(
    Message, api_key=6, versions=(0, 0), flexible_from=0
):
    assignment_epoch: int = int32(default=0)
    assignment_timestamp: int = int64(tag=0, default=0)


class ConsumerGroupTargetAssignmentMemberKey(Message, api_key=7, versions=(0, 0)):
    group_id: str = string(default="")
    member_id: str = string(default="")


class TopicPartition(Struct):
    topic_id: bytes = uuid(default=ZERO_UUID)
    partitions: list[int] = array(int32, default=...)


class ConsumerGroupTargetAssignmentMemberValue(
    Message, api_key=7, versions=(0, 0), flexible_from=0
):
    topic_partitions: list[TopicPartition] = array(TopicPartition, default=...)


class ConsumerGroupCurrentMemberAssignmentKey(Message, api_key=8, versions=(0, 0)):
    group_id: str = string(default="")
    member_id: str = string(default="")


class TopicPartitions(Struct):
    topic_id: bytes = uuid(default=ZERO_UUID)
    partitions: list[int] = array(int32, default=...)
    assignment_epochs: list[int] | None = array(int32, nullable="0+", tag=0, default=...)


class ConsumerGroupCurrentMemberAssignmentValue(
    Message, api_key=8, versions=(0, 0), flexible_from=0
):
    member_epoch: int = int32(default=0)
    previous_member_epoch: int = int32(default=0)
    state: int = int8(default=0)
    assigned_partitions: list[TopicPartitions] = array(TopicPartitions, default=...)
    partitions_pending_revocation: list[TopicPartitions] = array(TopicPartitions, default=...)


class ConsumerGroupRegularExpressionKey(Message, api_key=16, versions=(0, 0)):
    group_id: str = string(default="")
    regular_expression: str = string(default="")


class ConsumerGroupRegularExpressionValue(Message, api_key=16, versions=(0, 0), flexible_from=0):
    topics: list[str] = array(string, default=...)
    version: int = int64(default=0)
    timestamp: int = int64(default=0)
