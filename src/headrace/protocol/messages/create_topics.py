"""Tables of the CreateTopics API."""

from headrace.protocol.schema import (
    Message,
    Struct,
    array,
    boolean,
    int8,
    int16,
    int32,
    string,
    uuid,
)
from headrace.types import ZERO_UUID


class CreatableReplicaAssignment(Struct):
    partition_index: int = int32(default=0)
    broker_ids: list[int] = array(int32, default=...)


class CreatableTopicConfig(Struct):
    name: str = string(default="")
    value: str | None = string(nullable="2+", default="")


class CreatableTopic(Struct):
    name: str = string(default="")
    num_partitions: int = int32(default=0)
    replication_factor: int = int16(default=0)
    assignments: list[CreatableReplicaAssignment] = array(CreatableReplicaAssignment, default=...)
    configs: list[CreatableTopicConfig] = array(CreatableTopicConfig, default=...)


class CreateTopicsRequest(Message, api_key=19, versions=(2, 7), flexible_from=5):
    topics: list[CreatableTopic] = array(CreatableTopic, default=...)
    timeout_ms: int = int32(default=60000)
    validate_only: bool = boolean(default=False)


class CreatableTopicConfigs(Struct):
    name: str = string("5+", default="")
    value: str | None = string("5+", nullable="5+", default="")
    read_only: bool = boolean("5+", default=False)
    config_source: int = int8("5+", default=-1)
    is_sensitive: bool = boolean("5+", default=False)


class CreatableTopicResult(Struct):
    name: str = string(default="")
    topic_id: bytes = uuid("7+", default=ZERO_UUID)
    error_code: int = int16(default=0)
    error_message: str | None = string(nullable="2+", default="")
    topic_config_error_code: int = int16("5+", tag=0, default=0)
    num_partitions: int = int32("5+", default=-1)
    replication_factor: int = int16("5+", default=-1)
    configs: list[CreatableTopicConfigs] | None = array(
        CreatableTopicConfigs, "5+", nullable="5+", default=...
    )


class CreateTopicsResponse(Message, api_key=19, versions=(2, 7), flexible_from=5):
    throttle_time_ms: int = int32(default=0)
    topics: list[CreatableTopicResult] = array(CreatableTopicResult, default=...)
