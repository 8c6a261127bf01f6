"""Tables of the Fetch API."""

from headrace.protocol.schema import (
    Message,
    Struct,
    array,
    int8,
    int16,
    int32,
    int64,
    records,
    string,
    struct,
    uuid,
)
from headrace.types import ZERO_UUID, Buffer


class ReplicaState(Struct):
    replica_id: int = int32("15+", default=-1)
    replica_epoch: int = int64("15+", default=-1)


class FetchPartition(Struct):
    partition: int = int32(default=0)
    current_leader_epoch: int = int32("9+", default=-1)
    fetch_offset: int = int64(default=0)
    last_fetched_epoch: int = int32("12+", default=-1)
    log_start_offset: int = int64("5+", default=-1)
    partition_max_bytes: int = int32(default=0)
    replica_directory_id: bytes = uuid("17+", tag=0, default=ZERO_UUID)
    high_watermark: int = int64("18+", tag=1, default=9223372036854775807)


class FetchTopic(Struct):
    topic: str = string("4-12", default="")
    topic_id: bytes = uuid("13+", default=ZERO_UUID)
    partitions: list[FetchPartition] = array(FetchPartition, default=...)


class ForgottenTopic(Struct):
    topic: str = string("7-12", default="")
    topic_id: bytes = uuid("13+", default=ZERO_UUID)
    partitions: list[int] = array(int32, "7+", default=...)


class FetchRequest(Message, api_key=1, versions=(4, 18), flexible_from=12):
    cluster_id: str | None = string("12+", nullable="12+", tag=0, default=None)
    replica_id: int = int32("4-14", default=-1)
    replica_state: ReplicaState = struct(ReplicaState, "15+", tag=1, default=...)
    max_wait_ms: int = int32(default=0)
    min_bytes: int = int32(default=0)
    max_bytes: int = int32(default=2147483647)
    isolation_level: int = int8(default=0)
    session_id: int = int32("7+", default=0)
    session_epoch: int = int32("7+", default=-1)
    topics: list[FetchTopic] = array(FetchTopic, default=...)
    forgotten_topics_data: list[ForgottenTopic] = array(ForgottenTopic, "7+", default=...)
    rack_id: str = string("11+", default="")


class EpochEndOffset(Struct):
    epoch: int = int32("12+", default=-1)
    end_offset: int = int64("12+", default=-1)


class LeaderIdAndEpoch(Struct):
    leader_id: int = int32("12+", default=-1)
    leader_epoch: int = int32("12+", default=-1)


class SnapshotId(Struct):
    end_offset: int = int64("12+", default=-1)
    epoch: int = int32("12+", default=-1)


class AbortedTransaction(Struct):
    producer_id: int = int64(default=0)
    first_offset: int = int64(default=0)


class PartitionData(Struct):
    partition_index: int = int32(default=0)
    error_code: int = int16(default=0)
    high_watermark: int = int64(default=0)
    last_stable_offset: int = int64(default=-1)
    log_start_offset: int = int64("5+", default=-1)
    diverging_epoch: EpochEndOffset = struct(EpochEndOffset, "12+", tag=0, default=...)
    current_leader: LeaderIdAndEpoch = struct(LeaderIdAndEpoch, "12+", tag=1, default=...)
    snapshot_id: SnapshotId = struct(SnapshotId, "12+", tag=2, default=...)
    aborted_transactions: list[AbortedTransaction] | None = array(
        AbortedTransaction, nullable="4+", default=...
    )
    preferred_read_replica: int = int32("11+", default=-1)
    records: Buffer | None = records(nullable="4+", default=None)


class FetchableTopicResponse(Struct):
    topic: str = string("4-12", default="")
    topic_id: bytes = uuid("13+", default=ZERO_UUID)
    partitions: list[PartitionData] = array(PartitionData, default=...)


class NodeEndpoint(Struct):
    node_id: int = int32("16+", default=0)
    host: str = string("16+", default="")
    port: int = int32("16+", default=0)
    rack: str | None = string("16+", nullable="16+", default=None)


class FetchResponse(Message, api_key=1, versions=(4, 18), flexible_from=12):
    throttle_time_ms: int = int32(default=0)
    error_code: int = int16("7+", default=0)
    session_id: int = int32("7+", default=0)
    responses: list[FetchableTopicResponse] = array(FetchableTopicResponse, default=...)
    node_endpoints: list[NodeEndpoint] = array(NodeEndpoint, "16+", tag=0, default=...)
