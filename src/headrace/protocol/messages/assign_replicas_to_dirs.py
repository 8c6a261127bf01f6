"""Tables of the AssignReplicasToDirs API."""

from headrace.protocol.schema import (
    Message,
    Struct,
    array,
    int16,
    int32,
    int64,
    uuid,
)
from headrace.types import ZERO_UUID


class PartitionData(Struct):
    partition_index: int = int32(default=0)


class TopicData(Struct):
    topic_id: bytes = uuid(default=ZERO_UUID)
    partitions: list[PartitionData] = array(PartitionData, default=...)


class DirectoryData(Struct):
    id: bytes = uuid(default=ZERO_UUID)
    topics: list[TopicData] = array(TopicData, default=...)


class AssignReplicasToDirsRequest(Message, api_key=73, versions=(0, 0), flexible_from=0):
    broker_id: int = int32(default=0)
    broker_epoch: int = int64(default=-1)
    directories: list[DirectoryData] = array(DirectoryData, default=...)


class AssignReplicasToDirsResponsePartitionData(Struct):
    partition_index: int = int32(default=0)
    error_code: int = int16(default=0)


class AssignReplicasToDirsResponseTopicData(Struct):
    topic_id: bytes = uuid(default=ZERO_UUID)
    partitions: list[AssignReplicasToDirsResponsePartitionData] = array(
        AssignReplicasToDirsResponsePartitionData, default=...
    )


class AssignReplicasToDirsResponseDirectoryData(Struct):
    id: bytes = uuid(default=ZERO_UUID)
    topics: list[AssignReplicasToDirsResponseTopicData] = array(
        AssignReplicasToDirsResponseTopicData, default=...
    )


class AssignReplicasToDirsResponse(Message, api_key=73, versions=(0, 0), flexible_from=0):
    throttle_time_ms: int = int32(default=0)
    error_code: int = int16(default=0)
    directories: list[AssignReplicasToDirsResponseDirectoryData] = array(
        AssignReplicasToDirsResponseDirectoryData, default=...
    )
