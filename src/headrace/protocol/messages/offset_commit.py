"""Tables of the OffsetCommit API."""

from headrace.protocol.schema import (
    Message,
    Struct,
    array,
    int16,
    int32,
    int64,
    string,
    uuid,
)
from headrace.types import ZERO_UUID


class OffsetCommitRequestPartition(Struct):
    partition_index: int = int32(default=0)
    committed_offset: int = int64(default=0)
    committed_leader_epoch: int = int32("6+", default=-1)
    committed_metadata: str | None = string(nullable="2+", default="")


class OffsetCommitRequestTopic(Struct):
    name: str = string("2-9", default="")
    topic_id: bytes = uuid("10+", default=ZERO_UUID)
    partitions: list[OffsetCommitRequestPartition] = array(
        OffsetCommitRequestPartition, default=...
    )


class OffsetCommitRequest(Message, api_key=8, versions=(2, 10), flexible_from=8):
    group_id: str = string(default="")
    generation_id_or_member_epoch: int = int32(default=-1)
    member_id: str = string(default="")
    group_instance_id: str | None = string("7+", nullable="7+", default=None)
    retention_time_ms: int = int64("2-4", default=-1)
    topics: list[OffsetCommitRequestTopic] = array(OffsetCommitRequestTopic, default=...)


class OffsetCommitResponsePartition(Struct):
    partition_index: int = int32(default=0)
    error_code: int = int16(default=0)


class OffsetCommitResponseTopic(Struct):
    name: str = string("2-9", default="")
    topic_id: bytes = uuid("10+", default=ZERO_UUID)
    partitions: list[OffsetCommitResponsePartition] = array(
        OffsetCommitResponsePartition, default=...
    )


class OffsetCommitResponse(Message, api_key=8, versions=(2, 10), flexible_from=8):
    throttle_time_ms: int = int32("3+", default=0)
    topics: list[OffsetCommitResponseTopic] = array(OffsetCommitResponseTopic, default=...)
