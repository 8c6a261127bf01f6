"""Tables of the AddOffsetsToTxn API."""

from headrace.protocol.schema import (
    Message,
    int16,
    int32,
    int64,
    string,
)


class AddOffsetsToTxnRequest(Message, api_key=25, versions=(0, 4), flexible_from=3):
    transactional_id: str = string(default="")
    producer_id: int = int64(default=0)
    producer_epoch: int = int16(default=0)
    group_id: str = string(default="")


class AddOffsetsToTxnResponse(Message, api_key=25, versions=(0, 4), flexible_from=3):
    throttle_time_ms: int = int32(default=0)
    error_code: int = int16(default=0)
