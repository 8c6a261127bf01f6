"""Tables of the DeleteRecords API."""

from headrace.protocol.schema import (
    Message,
    Struct,
    array,
    int16,
    int32,
    int64,
    string,
)


class DeleteRecordsPartition(Struct):
    partition_index: int = int32(default=0)
    offset: int = int64(default=0)


class DeleteRecordsTopic(Struct):
    name: str = string(default="")
    partitions: list[DeleteRecordsPartition] = array(DeleteRecordsPartition, default=...)


class DeleteRecordsRequest(Message, api_key=21, versions=(0, 2), flexible_from=2):
    topics: list[DeleteRecordsTopic] = array(DeleteRecordsTopic, default=...)
    timeout_ms: int = int32(default=0)


class DeleteRecordsPartitionResult(Struct):
    partition_index: int = int32(default=0)
    low_watermark: int = int64(default=0)
    error_code: int = int16(default=0)


class DeleteRecordsTopicResult(Struct):
    name: str = string(default="")
    partitions: list[DeleteRecordsPartitionResult] = array(
        DeleteRecordsPartitionResult, default=...
    )


class DeleteRecordsResponse(Message, api_key=21, versions=(0, 2), flexible_from=2):
    throttle_time_ms: int = int32(default=0)
    topics: list[DeleteRecordsTopicResult] = array(DeleteRecordsTopicResult, default=...)
