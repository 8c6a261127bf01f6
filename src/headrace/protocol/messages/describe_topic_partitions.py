"""Tables of the DescribeTopicPartitions API."""

from headrace.protocol.schema import (
    Message,
    Struct,
    array,
    boolean,
    int16,
    int32,
    string,
    struct,
    uuid,
)
from headrace.types import ZERO_UUID


class TopicRequest(Struct):
    name: str = string(default="")


class Cursor(Struct):
    topic_name: str = string(default="")
    partition_index: int = int32(default=0)


class DescribeTopicPartitionsRequest(Message, api_key=75, versions=(0, 0), flexible_from=0):
    topics: list[TopicRequest] = array(TopicRequest, default=...)
    response_partition_limit: int = int32(default=2000)
    cursor: Cursor | None = struct(Cursor, nullable="0+", default=None)


class DescribeTopicPartitionsResponsePartition(Struct):
    error_code: int = int16(default=0)
    partition_index: int = int32(default=0)
    leader_id: int = int32(default=0)
    leader_epoch: int = int32(default=-1)
    replica_nodes: list[int] = array(int32, default=...)
    isr_nodes: list[int] = array(int32, default=...)
    eligible_leader_replicas: list[int] | None = array(int32, nullable="0+", default=None)
    last_known_elr: list[int] | None = array(int32, nullable="0+", default=None)
    offline_replicas: list[int] = array(int32, default=...)


class DescribeTopicPartitionsResponseTopic(Struct):
    error_code: int = int16(default=0)
    name: str | None = string(nullable="0+", default="")
    topic_id: bytes = uuid(default=ZERO_UUID)
    is_internal: bool = boolean(default=False)
    partitions: list[DescribeTopicPartitionsResponsePartition] = array(
        DescribeTopicPartitionsResponsePartition, default=...
    )
    topic_authorized_operations: int = int32(default=-2147483648)


class DescribeTopicPartitionsResponseCursor(Struct):
    topic_name: str = string(default="")
    partition_index: int = int32(default=0)


class DescribeTopicPartitionsResponse(Message, api_key=75, versions=(0, 0), flexible_from=0):
    throttle_time_ms: int = int32(default=0)
    topics: list[DescribeTopicPartitionsResponseTopic] = array(
        DescribeTopicPartitionsResponseTopic, default=...
    )
    next_cursor: DescribeTopicPartitionsResponseCursor | None = struct(
        DescribeTopicPartitionsResponseCursor, nullable="0+", default=None
    )
