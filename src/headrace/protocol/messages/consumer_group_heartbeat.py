"""Tables of the ConsumerGroupHeartbeat API."""

from headrace.protocol.schema import (
    Message,
    Struct,
    array,
    int16,
    int32,
    string,
    struct,
    uuid,
)
from headrace.types import ZERO_UUID


class TopicPartitions(Struct):
    topic_id: bytes = uuid(default=ZERO_UUID)
    partitions: list[int] = array(int32, default=...)


class ConsumerGroupHeartbeatRequest(Message, api_key=68, versions=(0, 1), flexible_from=0):
    group_id: str = string(default="")
    member_id: str = string(default="")
    member_epoch: int = int32(default=0)
    instance_id: str | None = string(nullable="0+", default=None)
    rack_id: str | None = string(nullable="0+", default=None)
    rebalance_timeout_ms: int = int32(default=-1)
    subscribed_topic_names: list[str] | None = array(string, nullable="0+", default=None)
    subscribed_topic_regex: str | None = string("1+", nullable="1+", default=None)
    server_assignor: str | None = string(nullable="0+", default=None)
    topic_partitions: list[TopicPartitions] | None = array(
        TopicPartitions, nullable="0+", default=None
    )


class ConsumerGroupHeartbeatResponseTopicPartitions(Struct):
    topic_id: bytes = uuid(default=ZERO_UUID)
    partitions: list[int] = array(int32, default=...)


class Assignment(Struct):
    topic_partitions: list[ConsumerGroupHeartbeatResponseTopicPartitions] = array(
        ConsumerGroupHeartbeatResponseTopicPartitions, default=...
    )


class ConsumerGroupHeartbeatResponse(Message, api_key=68, versions=(0, 1), flexible_from=0):
    throttle_time_ms: int = int32(default=0)
    error_code: int = int16(default=0)
    error_message: str | None = string(nullable="0+", default=None)
    member_id: str | None = string(nullable="0+", default=None)
    member_epoch: int = int32(default=0)
    heartbeat_interval_ms: int = int32(default=0)
    assignment: Assignment | None = struct(Assignment, nullable="0+", default=None)
