"""Tables of the FetchSnapshot API."""

from headrace.protocol.schema import (
    Message,
    Struct,
    array,
    int16,
    int32,
    int64,
    records,
    string,
    struct,
    uint16,
    uuid,
)
from headrace.types import ZERO_UUID, Buffer


class SnapshotId(Struct):
    end_offset: int = int64(default=0)
    epoch: int = int32(default=0)


class PartitionSnapshot(Struct):
    partition: int = int32(default=0)
    current_leader_epoch: int = int32(default=0)
    snapshot_id: SnapshotId = struct(SnapshotId, default=...)
    position: int = int64(default=0)
    replica_directory_id: bytes = uuid("1+", tag=0, default=ZERO_UUID)


class TopicSnapshot(Struct):
    name: str = string(default="")
    partitions: list[PartitionSnapshot] = array(PartitionSnapshot, default=...)


class FetchSnapshotRequest(Message, api_key=59, versions=(0, 1), flexible_from=0):
    cluster_id: str | None = string(nullable="0+", tag=0, default=None)
    replica_id: int = int32(default=-1)
    max_bytes: int = int32(default=2147483647)
    topics: list[TopicSnapshot] = array(TopicSnapshot, default=...)


class FetchSnapshotResponseSnapshotId(Struct):
    end_offset: int = int64(default=0)
    epoch: int = int32(default=0)


class LeaderIdAndEpoch(Struct):
    leader_id: int = int32(default=0)
    leader_epoch: int = int32(default=0)


class FetchSnapshotResponsePartitionSnapshot(Struct):
    index: int = int32(default=0)
    error_code: int = int16(default=0)
    snapshot_id: FetchSnapshotResponseSnapshotId = struct(
        FetchSnapshotResponseSnapshotId, default=...
    )
    current_leader: LeaderIdAndEpoch = struct(LeaderIdAndEpoch, tag=0, default=...)
    size: int = int64(default=0)
    position: int = int64(default=0)
    unaligned_records: Buffer = records(default=None)


class FetchSnapshotResponseTopicSnapshot(Struct):
    name: str = string(default="")
    partitions: list[FetchSnapshotResponsePartitionSnapshot] = array(
        FetchSnapshotResponsePartitionSnapshot, default=...
    )


class NodeEndpoint(Struct):
    node_id: int = int32("1+", default=0)
    host: str = string("1+", default="")
    port: int = uint16("1+", default=0)


class FetchSnapshotResponse(Message, api_key=59, versions=(0, 1), flexible_from=0):
    throttle_time_ms: int = int32(default=0)
    error_code: int = int16(default=0)
    topics: list[FetchSnapshotResponseTopicSnapshot] = array(
        FetchSnapshotResponseTopicSnapshot, default=...
    )
    node_endpoints: list[NodeEndpoint] = array(NodeEndpoint, "1+", tag=0, default=...)
