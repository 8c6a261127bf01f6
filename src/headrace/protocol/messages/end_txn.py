"""Tables of the EndTxn API."""

from headrace.protocol.schema import (
    Message,
    boolean,
    int16,
    int32,
    int64,
    string,
)


class EndTxnRequest(Message, api_key=26, versions=(0, 5), flexible_from=3):
    transactional_id: str = string(default="")
    producer_id: int = int64(default=0)
    producer_epoch: int = int16(default=0)
    committed: bool = boolean(default=False)


class EndTxnResponse(Message, api_key=26, versions=(0, 5), flexible_from=3):
    throttle_time_ms: int = int32(default=0)
    error_code: int = int16(default=0)
    producer_id: int = int64("5+", default=-1)
    producer_epoch: int = int16("5+", default=-1)
