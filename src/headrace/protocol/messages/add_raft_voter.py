"""Tables of the AddRaftVoter API."""

from headrace.protocol.schema import (
    Message,
    Struct,
    array,
    boolean,
    int16,
    int32,
    string,
    uint16,
    uuid,
)
from headrace.types import ZERO_UUID


class Listener(Struct):
    name: str = string(default="")
    host: str = string(default="")
    port: int = uint16(default=0)


class AddRaftVoterRequest(Message, api_key=80, versions=(0, 1), flexible_from=0):
    cluster_id: str | None = string(nullable="0+", default="")
    timeout_ms: int = int32(default=0)
    voter_id: int = int32(default=0)
    voter_directory_id: bytes = uuid(default=ZERO_UUID)
    listeners: list[Listener] = array(Listener, default=...)
    ack_when_committed: bool = boolean("1+", default=True)


class AddRaftVoterResponse(Message, api_key=80, versions=(0, 1), flexible_from=0):
    throttle_time_ms: int = int32(default=0)
    error_code: int = int16(default=0)
    error_message: str | None = string(nullable="0+", default="")
