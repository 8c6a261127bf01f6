"""Tables of the OffsetFetch API."""

from headrace.protocol.schema import (
    Message,
    Struct,
    array,
    boolean,
    int16,
    int32,
    int64,
    string,
    uuid,
)
from headrace.types import ZERO_UUID


class OffsetFetchRequestTopic(Struct):
    name: str = string("1-7", default="")
    partition_indexes: list[int] = array(int32, "1-7", default=...)


class OffsetFetchRequestTopics(Struct):
    name: str = string("8-9", default="")
    topic_id: bytes = uuid("10+", default=ZERO_UUID)
    partition_indexes: list[int] = array(int32, "8+", default=...)


class OffsetFetchRequestGroup(Struct):
    group_id: str = string("8+", default="")
    member_id: str | None = string("9+", nullable="9+", default=None)
    member_epoch: int = int32("9+", default=-1)
    topics: list[OffsetFetchRequestTopics] | None = array(
        OffsetFetchRequestTopics, "8+", nullable="8+", default=...
    )


class OffsetFetchRequest(Message, api_key=9, versions=(1, 10), flexible_from=6):
    group_id: str = string("1-7", default="")
    topics: list[OffsetFetchRequestTopic] | None = array(
        OffsetFetchRequestTopic, "1-7", nullable="2-7", default=...
    )
    groups: list[OffsetFetchRequestGroup] = array(OffsetFetchRequestGroup, "8+", default=...)
    require_stable: bool = boolean("7+", default=False)


class OffsetFetchResponsePartition(Struct):
    partition_index: int = int32("1-7", default=0)
    committed_offset: int = int64("1-7", default=0)
    committed_leader_epoch: int = int32("5-7", default=-1)
    metadata: str | None = string("1-7", nullable="1-7", default="")
    error_code: int = int16("1-7", default=0)


class OffsetFetchResponseTopic(Struct):
    name: str = string("1-7", default="")
    partitions: list[OffsetFetchResponsePartition] = array(
        OffsetFetchResponsePartition, "1-7", default=...
    )


class OffsetFetchResponsePartitions(Struct):
    partition_index: int = int32("8+", default=0)
    committed_offset: int = int64("8+", default=0)
    committed_leader_epoch: int = int32("8+", default=-1)
    metadata: str | None = string("8+", nullable="8+", default="")
    error_code: int = int16("8+", default=0)


class OffsetFetchResponseTopics(Struct):
    name: str = string("8-9", default="")
    topic_id: bytes = uuid("10+", default=ZERO_UUID)
    partitions: list[OffsetFetchResponsePartitions] = array(
        OffsetFetchResponsePartitions, "8+", default=...
    )


class OffsetFetchResponseGroup(Struct):
    group_id: str = string("8+", default="")
    topics: list[OffsetFetchResponseTopics] = array(OffsetFetchResponseTopics, "8+", default=...)
    error_code: int = int16("8+", default=0)


class OffsetFetchResponse(Message, api_key=9, versions=(1, 10), flexible_from=6):
    throttle_time_ms: int = int32("3+", default=0)
    topics: list[OffsetFetchResponseTopic] = array(OffsetFetchResponseTopic, "1-7", default=...)
    error_code: int = int16("2-7", default=0)
    groups: list[OffsetFetchResponseGroup] = array(OffsetFetchResponseGroup, "8+", default=...)
