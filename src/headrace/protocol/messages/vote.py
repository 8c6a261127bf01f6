"""Tables of the Vote API."""

from headrace.protocol.schema import (
    Message,
    Struct,
    array,
    boolean,
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
    replica_epoch: int = int32(default=0)
    replica_id: int = int32(default=0)
    replica_directory_id: bytes = uuid("1+", default=ZERO_UUID)
    voter_directory_id: bytes = uuid("1+", default=ZERO_UUID)
    last_offset_epoch: int = int32(default=0)
    last_offset: int = int64(default=0)
    pre_vote: bool = boolean("2+", default=False)


class TopicData(Struct):
    topic_name: str = string(default="")
    partitions: list[PartitionData] = array(PartitionData, default=...)


class VoteRequest(Message, api_key=52, versions=(0, 2), flexible_from=0):
    cluster_id: str | None = string(nullable="0+", default=None)
    voter_id: int = int32("1+", default=-1)
    topics: list[TopicData] = array(TopicData, default=...)


class VoteResponsePartitionData(Struct):
    partition_index: int = int32(default=0)
    error_code: int = int16(default=0)
    leader_id: int = int32(default=0)
    leader_epoch: int = int32(default=0)
    vote_granted: bool = boolean(default=False)


class VoteResponseTopicData(Struct):
    topic_name: str = string(default="")
    partitions: list[VoteResponsePartitionData] = array(VoteResponsePartitionData, default=...)


class NodeEndpoint(Struct):
    node_id: int = int32("1+", default=0)
    host: str = string("1+", default="")
    port: int = uint16("1+", default=0)


class VoteResponse(Message, api_key=52, versions=(0, 2), flexible_from=0):
    error_code: int = int16(default=0)
    topics: list[VoteResponseTopicData] = array(VoteResponseTopicData, default=...)
    node_endpoints: list[NodeEndpoint] = array(NodeEndpoint, "1+", tag=0, default=...)
