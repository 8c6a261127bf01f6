"""Tables of the AlterPartition API."""

from headrace.protocol.schema import (
    Message,
    Struct,
    array,
    int8,
    int16,
    int32,
    int64,
    uuid,
)
from headrace.types import ZERO_UUID


class BrokerState(Struct):
    broker_id: int = int32("3+", default=0)
    broker_epoch: int = int64("3+", default=-1)


class PartitionData(Struct):
    partition_index: int = int32(default=0)
    leader_epoch: int = int32(default=0)
    new_isr: list[int] = array(int32, "2", default=...)
    new_isr_with_epochs: list[BrokerState] = array(BrokerState, "3+", default=...)
    leader_recovery_state: int = int8(default=0)
    partition_epoch: int = int32(default=0)


class TopicData(Struct):
    topic_id: bytes = uuid(default=ZERO_UUID)
    partitions: list[PartitionData] = array(PartitionData, default=...)


class AlterPartitionRequest(Message, api_key=56, versions=(2, 3), flexible_from=2):
    broker_id: int = int32(default=0)
    broker_epoch: int = int64(default=-1)
    topics: list[TopicData] = array(TopicData, default=...)


class AlterPartitionResponsePartitionData(Struct):
    partition_index: int = int32(default=0)
    error_code: int = int16(default=0)
    leader_id: int = int32(default=0)
    leader_epoch: int = int32(default=0)
    isr: list[int] = array(int32, default=...)
    leader_recovery_state: int = int8(default=0)
    partition_epoch: int = int32(default=0)


class AlterPartitionResponseTopicData(Struct):
    topic_id: bytes = uuid(default=ZERO_UUID)
    partitions: list[AlterPartitionResponsePartitionData] = array(
        AlterPartitionResponsePartitionData, default=...
    )


class AlterPartitionResponse(Message, api_key=56, versions=(2, 3), flexible_from=2):
    throttle_time_ms: int = int32(default=0)
    error_code: int = int16(default=0)
    topics: list[AlterPartitionResponseTopicData] = array(
        AlterPartitionResponseTopicData, default=...
    )
