"""Subscriptions and assignments of consumers: the opaque bytes in JoinGroup and SyncGroup."""

from headrace.protocol.schema import (
    Message,
    Struct,
    array,
    int32,
    raw,
    string,
)


class TopicPartition(Struct):
    topic: str = string(default="")
    partitions: list[int] = array(int32, default=...)


class ConsumerProtocolAssignment(Message, versions=(0, 3)):
    assigned_partitions: list[TopicPartition] = array(TopicPartition, default=...)
    user_data: bytes | None = raw(nullable="0+", default=None)


class ConsumerProtocolSubscriptionTopicPartition(Struct):
    topic: str = string("1+", default="")
    partitions: list[int] = array(int32, "1+", default=...)


class ConsumerProtocolSubscription(Message, versions=(0, 3)):
    topics: list[str] = array(string, default=...)
    user_data: bytes | None = raw(nullable="0+", default=None)
    owned_partitions: list[ConsumerProtocolSubscriptionTopicPartition] = array(
        ConsumerProtocolSubscriptionTopicPartition, "1+", default=...
    )
    generation_id: int = int32("2+", default=-1)
    rack_id: str | None = string("3+", nullable="3+", default=None)
