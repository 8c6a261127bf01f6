"""The records of `__consumer_offsets`: group metadata and committed offsets."""

from headrace.protocol.schema import (
    Message,
    Struct,
    array,
    int32,
    int64,
    raw,
    string,
    uuid,
)
from headrace.types import ZERO_UUID


class OffsetCommitKey(Message, api_key=1, versions=(0, 0)):
    group: str = string(default="")
    topic: str = string(default="")
    partition: int = int32(default=0)


class OffsetCommitValue(Message, api_key=1, versions=(0, 4), flexible_from=4):
    offset: int = int64(default=0)
    leader_epoch: int = int32("3+", default=-1)
    metadata: str = string(default="")
    commit_timestamp: int = int64(default=0)
    expire_timestamp: int = int64("1", default=-1)
    topic_id: bytes = uuid("4+", tag=0, default=ZERO_UUID)


class GroupMetadataKey(Message, api_key=2, versions=(0, 0)):
    group: str = string(default="")


class MemberMetadata(Struct):
    member_id: str = string(default="")
    group_instance_id: str | None = string("3+", nullable="3+", default=None)
    client_id: str = string(default="")
    client_host: str = string(default="")
    rebalance_timeout: int = int32("1+", default=-1)
    session_timeout: int = int32(default=0)
    subscription: bytes = raw(default=b"")
    assignment: bytes = raw(default=b"")


class GroupMetadataValue(Message, api_key=2, versions=(0, 4), flexible_from=4):
    protocol_type: str = string(default="")
    generation: int = int32(default=0)
    protocol: str | None = string(nullable="0+", default="")
    leader: str | None = string(nullable="0+", default="")
    current_state_timestamp: int = int64("2+", default=-1)
    members: list[MemberMetadata] = array(MemberMetadata, default=...)
