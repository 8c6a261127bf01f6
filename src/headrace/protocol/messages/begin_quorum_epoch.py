"""Tables of the BeginQuorumEpoch API."""

from headrace.protocol.schema import (
    Message,
    Struct,
    array,
    int16,
    int32,
    string,
    uint16,
    uuid,
)
from headrace.types import ZERO_UUID


class PartitionData(Struct):
    partition_index: int = int32(default=0)
    voter_directory_id: bytes = uuid("1+", default=ZERO_UUID)
    leader_id: int = int32(default=0)
    leader_epoch: int = int32(default=0)


class TopicData(Struct):
    topic_name: str = string(default="")
    partitions: list[PartitionData] = array(PartitionData, default=...)


class LeaderEndpoint(Struct):
    name: str = string("1+", default="")
    host: str = string("1+", default="")
    port: int = uint16("1+", default=0)


class BeginQuorumEpochRequest(Message, api_key=53, versions=(0, 1), flexible_from=1):
    cluster_id: str | None = string(nullable="0+", default=None)
    voter_id: int = int32("1+", default=-1)
    topics: list[TopicData] = array(TopicData, default=...)
    leader_endpoints: list[LeaderEndpoint] = array(LeaderEndpoint, "1+", default=...)


class BeginQuorumEpochResponsePartitionData(Struct):
    partition_index: int = int32(default=0)
    error_code: int = int16(default=0)
    leader_id: int = int32(default=0)
    leader_epoch: int = int32(default=0)


class BeginQuorumEpochResponseTopicData(Struct):
    topic_name: str = string(default="")
    partitions: list[BeginQuorumEpochResponsePartitionData] = array(
        BeginQuorumEpochResponsePartitionData, default=...
    )


class NodeEndpoint(Struct):
    node_id: int = int32("1+", default=0)
    host: str = string("1+", default="")
    port: int = uint16("1+", default=0)


class BeginQuorumEpochResponse(Message, api_key=53, versions=(0, 1), flexible_from=1):
    error_code: int = int16(default=0)
    topics: list[BeginQuorumEpochResponseTopicData] = array(
        BeginQuorumEpochResponseTopicData, default=...
    )
    node_endpoints: list[NodeEndpoint] = array(NodeEndpoint, "1+", tag=0, default=...)
