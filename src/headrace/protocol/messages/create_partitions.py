"""Tables of the CreatePartitions API."""

from headrace.protocol.schema import (
    Message,
    Struct,
    array,
    boolean,
    int16,
    int32,
    string,
)


class CreatePartitionsAssignment(Struct):
    broker_ids: list[int] = array(int32, default=...)


class CreatePartitionsTopic(Struct):
    name: str = string(default="")
    count: int = int32(default=0)
    assignments: list[CreatePartitionsAssignment] | None = array(
        CreatePartitionsAssignment, nullable="0+", default=...
    )


class CreatePartitionsRequest(Message, api_key=37, versions=(0, 3), flexible_from=2):
    topics: list[CreatePartitionsTopic] = array(CreatePartitionsTopic, default=...)
    timeout_ms: int = int32(default=0)
    validate_only: bool = boolean(default=False)


class CreatePartitionsTopicResult(Struct):
    name: str = string(default="")
    error_code: int = int16(default=0)
    error_message: str | None = string(nullable="0+", default=None)


class CreatePartitionsResponse(Message, api_key=37, versions=(0, 3), flexible_from=2):
    throttle_time_ms: int = int32(default=0)
    results: list[CreatePartitionsTopicResult] = array(CreatePartitionsTopicResult, default=...)
