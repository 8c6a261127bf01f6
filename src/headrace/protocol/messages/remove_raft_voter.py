"""Tables of the RemoveRaftVoter API."""

from headrace.protocol.schema import (
    Message,
    int16,
    int32,
    string,
    uuid,
)
from headrace.types import ZERO_UUID


class RemoveRaftVoterRequest(Message, api_key=81, versions=(0, 0), flexible_from=0):
    cluster_id: str | None = string(nullable="0+", default="")
    voter_id: int = int32(default=0)
    voter_directory_id: bytes = uuid(default=ZERO_UUID)


class RemoveRaftVoterResponse(Message, api_key=81, versions=(0, 0), flexible_from=0):
    throttle_time_ms: int = int32(default=0)
    error_code: int = int16(default=0)
    error_message: str | None = string(nullable="0+", default="")
