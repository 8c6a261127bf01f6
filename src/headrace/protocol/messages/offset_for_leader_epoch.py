"""Tables of the OffsetForLeaderEpoch API."""

from headrace.protocol.schema import (
    Message,
    Struct,
    array,
    int16,
    int32,
    int64,
    string,
)


class OffsetForLeaderPartition(Struct):
    partition: int = int32(default=0)
    current_leader_epoch: int = int32(default=-1)
    leader_epoch: int = int32(default=0)


class OffsetForLeaderTopic(Struct):
    topic: str = string(default="")
    partitions: list[OffsetForLeaderPartition] = array(OffsetForLeaderPartition, default=...)


class OffsetForLeaderEpochRequest(Message, api_key=23, versions=(2, 4), flexible_from=4):
    replica_id: int = int32("3+", default=-2)
    topics: list[OffsetForLeaderTopic] = array(OffsetForLeaderTopic, default=...)


class EpochEndOffset(Struct):
    error_code: int = int16(default=0)
    partition: int = int32(default=0)
    leader_epoch: int = int32(default=-1)
    end_offset: int = int64(default=-1)


class OffsetForLeaderTopicResult(Struct):
    topic: str = string(default="")
    partitions: list[EpochEndOffset] = array(EpochEndOffset, default=...)


class OffsetForLeaderEpochResponse(Message, api_key=23, versions=(2, 4), flexible_from=4):
    throttle_time_ms: int = int32(default=0)
    topics: list[OffsetForLeaderTopicResult] = array(OffsetForLeaderTopicResult, default=...)
