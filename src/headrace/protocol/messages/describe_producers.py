"""Tables of the DescribeProducers API."""

from headrace.protocol.schema import (
    Message,
    Struct,
    array,
    int16,
    int32,
    int64,
    string,
)


class TopicRequest(Struct):
    name: str = string(default="")
    partition_indexes: list[int] = array(int32, default=...)


class DescribeProducersRequest(Message, api_key=61, versions=(0, 0), flexible_from=0):
    topics: list[TopicRequest] = array(TopicRequest, default=...)


class ProducerState(Struct):
    producer_id: int = int64(default=0)
    producer_epoch: int = int32(default=0)
    last_sequence: int = int32(default=-1)
    last_timestamp: int = int64(default=-1)
    coordinator_epoch: int = int32(default=0)
    current_txn_start_offset: int = int64(default=-1)


class PartitionResponse(Struct):
    partition_index: int = int32(default=0)
    error_code: int = int16(default=0)
    error_message: str | None = string(nullable="0+", default=None)
    active_producers: list[ProducerState] = array(ProducerState, default=...)


class TopicResponse(Struct):
    name: str = string(default="")
    partitions: list[PartitionResponse] = array(PartitionResponse, default=...)


class DescribeProducersResponse(Message, api_key=61, versions=(0, 0), flexible_from=0):
    throttle_time_ms: int = int32(default=0)
    topics: list[TopicResponse] = array(TopicResponse, default=...)
