"""Tables of the DescribeQuorum API."""

from headrace.protocol.schema import (
    Message,
    Struct,
    array,
    int16,
    int32,
    int64,
    string,
    uint16,
    uuid,
)
from headrace.types import ZERO_UUID


class PartitionData(Struct):
    partition_index: int = int32(default=0)


class TopicData(Struct):
    topic_name: str = string(default="")
    partitions: list[PartitionData] = array(PartitionData, default=...)


class DescribeQuorumRequest(Message, api_key=55, versions=(0, 2), flexible_from=0):
    topics: list[TopicData] = array(TopicData, default=...)


class ReplicaState(Struct):
    replica_id: int = int32(default=0)
    replica_directory_id: bytes = uuid("2+", default=ZERO_UUID)
    log_end_offset: int = int64(default=0)
    last_fetch_timestamp: int = int64("1+", default=-1)
    last_caught_up_timestamp: int = int64("1+", default=-1)


class DescribeQuorumResponsePartitionData(Struct):
    partition_index: int = int32(default=0)
    error_code: int = int16(default=0)
    error_message: str | None = string("2+", nullable="2+", default="")
    leader_id: int = int32(default=0)
    leader_epoch: int = int32(default=0)
    high_watermark: int = int64(default=0)
    current_voters: list[ReplicaState] = array(ReplicaState, default=...)
    observers: list[ReplicaState] = array(ReplicaState, default=...)


class DescribeQuorumResponseTopicData(Struct):
    topic_name: str = string(default="")
    partitions: list[DescribeQuorumResponsePartitionData] = array(
        DescribeQuorumResponsePartitionData, default=...
    )


class Listener(Struct):
    name: str = string("2+", default="")
    host: str = string("2+", default="")
    port: int = uint16("2+", default=0)


class Node(Struct):
    node_id: int = int32("2+", default=0)
    listeners: list[Listener] = array(Listener, "2+", default=...)


class DescribeQuorumResponse(Message, api_key=55, versions=(0, 2), flexible_from=0):
    error_code: int = int16(default=0)
    error_message: str | None = string("2+", nullable="2+", default="")
    topics: list[DescribeQuorumResponseTopicData] = array(
        DescribeQuorumResponseTopicData, default=...
    )
    nodes: list[Node] = array(Node, "2+", default=...)
