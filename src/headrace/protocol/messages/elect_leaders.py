"""Tables of the ElectLeaders API."""

from headrace.protocol.schema import (
    Message,
    Struct,
    array,
    int8,
    int16,
    int32,
    string,
)


class TopicPartitions(Struct):
    topic: str = string(default="")
    partitions: list[int] = array(int32, default=...)


class ElectLeadersRequest(Message, api_key=43, versions=(0, 2), flexible_from=2):
    election_type: int = int8("1+", default=0)
    topic_partitions: list[TopicPartitions] | None = array(
        TopicPartitions, nullable="0+", default=...
    )
    timeout_ms: int = int32(default=60000)


class PartitionResult(Struct):
    partition_id: int = int32(default=0)
    error_code: int = int16(default=0)
    error_message: str | None = string(nullable="0+", default="")


class ReplicaElectionResult(Struct):
    topic: str = string(default="")
    partition_result: list[PartitionResult] = array(PartitionResult, default=...)


class ElectLeadersResponse(Message, api_key=43, versions=(0, 2), flexible_from=2):
    throttle_time_ms: int = int32(default=0)
    error_code: int = int16("1+", default=0)
    replica_election_results: list[ReplicaElectionResult] = array(
        ReplicaElectionResult, default=...
    )
