"""Tables of the AlterPartitionReassignments API."""

from headrace.protocol.schema import (
    Message,
    Struct,
    array,
    boolean,
    int16,
    int32,
    string,
)


class ReassignablePartition(Struct):
    partition_index: int = int32(default=0)
    replicas: list[int] | None = array(int32, nullable="0+", default=None)


class ReassignableTopic(Struct):
    name: str = string(default="")
    partitions: list[ReassignablePartition] = array(ReassignablePartition, default=...)


class AlterPartitionReassignmentsRequest(Message, api_key=45, versions=(0, 1), flexible_from=0):
    timeout_ms: int = int32(default=60000)
    allow_replication_factor_change: bool = boolean("1+", default=True)
    topics: list[ReassignableTopic] = array(ReassignableTopic, default=...)


class ReassignablePartitionResponse(Struct):
    partition_index: int = int32(default=0)
    error_code: int = int16(default=0)
    error_message: str | None = string(nullable="0+", default="")


class ReassignableTopicResponse(Struct):
    name: str = string(default="")
    partitions: list[ReassignablePartitionResponse] = array(
        ReassignablePartitionResponse, default=...
    )


class AlterPartitionReassignmentsResponse(Message, api_key=45, versions=(0, 1), flexible_from=0):
    throttle_time_ms: int = int32(default=0)
    allow_replication_factor_change: bool = boolean("1+", default=True)
    error_code: int = int16(default=0)
    error_message: str | None = string(nullable="0+", default="")
    responses: list[ReassignableTopicResponse] = array(ReassignableTopicResponse, default=...)
