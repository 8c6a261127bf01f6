"""Tables of the OffsetDelete API."""

from headrace.protocol.schema import (
    Message,
    Struct,
    array,
    int16,
    int32,
    string,
)


class OffsetDeleteRequestPartition(Struct):
    partition_index: int = int32(default=0)


class OffsetDeleteRequestTopic(Struct):
    name: str = string(default="")
    partitions: list[OffsetDeleteRequestPartition] = array(
        OffsetDeleteRequestPartition, default=...
    )


class OffsetDeleteRequest(Message, api_key=47, versions=(0, 0)):
    group_id: str = string(default="")
    topics: list[OffsetDeleteRequestTopic] = array(OffsetDeleteRequestTopic, default=...)


class OffsetDeleteResponsePartition(Struct):
    partition_index: int = int32(default=0)
    error_code: int = int16(default=0)


class OffsetDeleteResponseTopic(Struct):
    name: str = string(default="")
    partitions: list[OffsetDeleteResponsePartition] = array(
        OffsetDeleteResponsePartition, default=...
    )


class OffsetDeleteResponse(Message, api_key=47, versions=(0, 0)):
    error_code: int = int16(default=0)
    throttle_time_ms: int = int32(default=0)
    topics: list[OffsetDeleteResponseTopic] = array(OffsetDeleteResponseTopic, default=...)
