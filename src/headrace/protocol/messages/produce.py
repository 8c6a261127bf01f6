"""Tables of the Produce API."""

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
    uuid,
)
from headrace.types import ZERO_UUID, Buffer


class PartitionProduceData(Struct):
    index: int = int32(default=0)
    records: Buffer | None = records(nullable="3+", default=None)


class TopicProduceData(Struct):
    name: str = string("3-12", default="")
    topic_id: bytes = uuid("13+", default=ZERO_UUID)
    partition_data: list[PartitionProduceData] = array(PartitionProduceData, default=...)


class ProduceRequest(Message, api_key=0, versions=(3, 13), flexible_from=9):
    transactional_id: str | None = string(nullable="3+", default=None)
    acks: int = int16(default=0)
    timeout_ms: int = int32(default=0)
    topic_data: list[TopicProduceData] = array(TopicProduceData, default=...)


class BatchIndexAndErrorMessage(Struct):
    batch_index: int = int32("8+", default=0)
    batch_index_error_message: str | None = string("8+", nullable="8+", default=None)


class LeaderIdAndEpoch(Struct):
    leader_id: int = int32("10+", default=-1)
    leader_epoch: int = int32("10+", default=-1)


class PartitionProduceResponse(Struct):
    index: int = int32(default=0)
    error_code: int = int16(default=0)
    base_offset: int = int64(default=0)
    log_append_time_ms: int = int64(default=-1)
    log_start_offset: int = int64("5+", default=-1)
    record_errors: list[BatchIndexAndErrorMessage] = array(
        BatchIndexAndErrorMessage, "8+", default=...
    )
    error_message: str | None = string("8+", nullable="8+", default=None)
    current_leader: LeaderIdAndEpoch = struct(LeaderIdAndEpoch, "10+", tag=0, default=...)


class TopicProduceResponse(Struct):
    name: str = string("3-12", default="")
    topic_id: bytes = uuid("13+", default=ZERO_UUID)
    partition_responses: list[PartitionProduceResponse] = array(
        PartitionProduceResponse, default=...
    )


class NodeEndpoint(Struct):
    node_id: int = int32("10+", default=0)
    host: str = string("10+", default="")
    port: int = int32("10+", default=0)
    rack: str | None = string("10+", nullable="10+", default=None)


class ProduceResponse(Message, api_key=0, versions=(3, 13), flexible_from=9):
    responses: list[TopicProduceResponse] = array(TopicProduceResponse, default=...)
    throttle_time_ms: int = int32(default=0)
    node_endpoints: list[NodeEndpoint] = array(NodeEndpoint, "10+", tag=0, default=...)
