"""Tables of the DescribeLogDirs API.

Unlike Kafka: a request may ask for the health of the broker's replicas and directories, in tagged
fields that Kafka does not have.
"""

from headrace.protocol.schema import (
    Message,
    Struct,
    array,
    boolean,
    int16,
    int32,
    int64,
    string,
    struct,
)


class DescribableLogDirTopic(Struct):
    topic: str = string(default="")
    partitions: list[int] = array(int32, default=...)


class DescribeLogDirsRequest(Message, api_key=35, versions=(1, 5), flexible_from=2):
    topics: list[DescribableLogDirTopic] | None = array(
        DescribableLogDirTopic, nullable="1+", default=...
    )
    include_health: bool = boolean("2+", tag=10_000, default=False)


class DescribeLogDirsPartition(Struct):
    partition_index: int = int32(default=0)
    partition_size: int = int64(default=0)
    offset_lag: int = int64(default=0)
    is_future_key: bool = boolean(default=False)


class DescribeLogDirsTopic(Struct):
    name: str = string(default="")
    partitions: list[DescribeLogDirsPartition] = array(DescribeLogDirsPartition, default=...)


class DescribeLogDirsSetAside(Struct):
    name: str = string(default="")
    reason: str = string(default="")


class DescribeLogDirsHealth(Struct):
    scrub_started_ms: int = int64(default=-1)
    scrub_finished_ms: int = int64(default=-1)
    scrubbed_segments: int = int64(default=0)
    scrubbed_bytes: int = int64(default=0)
    closed_bytes: int = int64(default=0)
    damaged_segments: int = int32(default=0)
    set_aside: list[DescribeLogDirsSetAside] = array(DescribeLogDirsSetAside, default=...)


class DescribeLogDirsResult(Struct):
    error_code: int = int16(default=0)
    log_dir: str = string(default="")
    topics: list[DescribeLogDirsTopic] = array(DescribeLogDirsTopic, default=...)
    total_bytes: int = int64("4+", default=-1)
    usable_bytes: int = int64("4+", default=-1)
    is_cordoned: bool = boolean("5+", default=False)
    health: DescribeLogDirsHealth | None = struct(
        DescribeLogDirsHealth, "2+", nullable="2+", tag=10_000, default=None
    )


class DescribeLogDirsReplicaProblem(Struct):
    topic: str = string(default="")
    partition_index: int = int32(default=0)
    state: str = string(default="")
    reason: str = string(default="")


class DescribeLogDirsResponse(Message, api_key=35, versions=(1, 5), flexible_from=2):
    throttle_time_ms: int = int32(default=0)
    error_code: int = int16("3+", default=0)
    results: list[DescribeLogDirsResult] = array(DescribeLogDirsResult, default=...)
    replica_problems: list[DescribeLogDirsReplicaProblem] = array(
        DescribeLogDirsReplicaProblem, "2+", tag=10_000, default=...
    )
