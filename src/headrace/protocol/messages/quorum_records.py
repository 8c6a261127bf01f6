"""Control records of the metadata log, and the head and foot of its snapshots."""

from headrace.protocol.schema import (
    Message,
    Struct,
    array,
    int16,
    int32,
    int64,
    string,
    struct,
    uint16,
    uuid,
)
from headrace.types import ZERO_UUID


class KRaftVersionRecord(Message, versions=(0, 0), flexible_from=0):
    version: int = int16(default=0)
    k_raft_version: int = int16(default=0)


class Voter(Struct):
    voter_id: int = int32(default=0)
    voter_directory_id: bytes = uuid("1+", default=ZERO_UUID)


class LeaderChangeMessage(Message, versions=(0, 1), flexible_from=0):
    version: int = int16(default=0)
    leader_id: int = int32(default=0)
    voters: list[Voter] = array(Voter, default=...)
    granting_voters: list[Voter] = array(Voter, default=...)


class SnapshotFooterRecord(Message, versions=(0, 0), flexible_from=0):
    version: int = int16(default=0)


class SnapshotHeaderRecord(Message, versions=(0, 0), flexible_from=0):
    version: int = int16(default=0)
    last_contained_log_timestamp: int = int64(default=0)


class Endpoint(Struct):
    name: str = string(default="")
    host: str = string(default="")
    port: int = uint16(default=0)


class KRaftVersionFeature(Struct):
    min_supported_version: int = int16(default=0)
    max_supported_version: int = int16(default=0)


class VotersRecordVoter(Struct):
    voter_id: int = int32(default=0)
    voter_directory_id: bytes = uuid(default=ZERO_UUID)
    endpoints: list[Endpoint] = array(Endpoint, default=...)
    k_raft_version_feature: KRaftVersionFeature = struct(KRaftVersionFeature, default=...)


class VotersRecord(Message, versions=(0, 0), flexible_from=0):
    version: int = int16(default=0)
    voters: list[VotersRecordVoter] = array(VotersRecordVoter, default=...)
