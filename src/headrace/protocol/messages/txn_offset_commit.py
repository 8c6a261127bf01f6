"""Tables of the TxnOffsetCommit API."""

from headrace.protocol.schema import (
    Message,
    Struct,
    array,
    int16,
    int32,
    int64,
    string,
)


class TxnOffsetCommitRequestPartition(Struct):
    partition_index: int = int32(default=0)
    committed_offset: int = int64(default=0)
    committed_leader_epoch: int = int32("2+", default=-1)
    committed_metadata: str | None = string(nullable="0+", default="")


class TxnOffsetCommitRequestTopic(Struct):
    name: str = string(default="")
    partitions: list[TxnOffsetCommitRequestPartition] = array(
        TxnOffsetCommitRequestPartition, default=...
    )


class TxnOffsetCommitRequest(Message, api_key=28, versions=(0, 5), flexible_from=3):
    transactional_id: str = string(default="")
    group_id: str = string(default="")
    producer_id: int = int64(default=0)
    producer_epoch: int = int16(default=0)
    generation_id: int = int32("3+", default=-1)
    member_id: str = string("3+", default="")
    group_instance_id: str | None = string("3+", nullable="3+", default=None)
    topics: list[TxnOffsetCommitRequestTopic] = array(TxnOffsetCommitRequestTopic, default=...)


class TxnOffsetCommitResponsePartition(Struct):
    partition_index: int = int32(default=0)
    error_code: int = int16(default=0)


class TxnOffsetCommitResponseTopic(Struct):
    name: str = string(default="")
    partitions: list[TxnOffsetCommitResponsePartition] = array(
        TxnOffsetCommitResponsePartition, default=...
    )


class TxnOffsetCommitResponse(Message, api_key=28, versions=(0, 5), flexible_from=3):
    throttle_time_ms: int = int32(default=0)
    topics: list[TxnOffsetCommitResponseTopic] = array(TxnOffsetCommitResponseTopic, default=...)
