"""Tables of the DescribeLogDirs API."""

from headrace.protocol.schema import (
    Message,
    Struct,
    array,
    boolean,
    int16,
    int32,
    int64,
    string,
)


class DescribableLogDirTopic(Struct):
    topic: str = string(default="")
    partitions: list[int] = array(int32, default=...)


class DescribeLogDirsRequest(Message, api_key=35, versions=(1, 5), flexible_from=2):
    topics: list[DescribableLogDirTopic] | None = array(
        DescribableLogDirTopic, nullable="1+", default=...
    )


class DescribeLogDirsPartition(Struct):
    partition_index: int = int32(default=0)
    partition_size: int = int64(default=0)
    offset_lag: int = int64(default=0)
    is_future_key: bool = boolean(default=False)


class DescribeLogDirsTopic(Struct):
    name: str = string(default="")
    partitions: list[DescribeLogDirsPartition] = array(DescribeLogDirsPartition, default=...)


class DescribeLogDirsResult(Struct):
    error_code: int = int16(default=0)
    log_dir: str = string(default="")
    topics: list[DescribeLogDirsTopic] = array(DescribeLogDirsTopic, default=...)
    total_bytes: int = int64("4+", default=-1)
    usable_bytes: int = int64("4+", default=-1)
    is_cordoned: bool = boolean("5+", default=False)


class DescribeLogDirsResponse(Message, api_key=35, versions=(1, 5), flexible_from=2):
    throttle_time_ms: int = int32(default=0)
    error_code: int = int16("3+", default=0)
    results: list[DescribeLogDirsResult] = array(DescribeLogDirsResult, default=...)
