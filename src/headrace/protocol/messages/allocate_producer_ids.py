"""Tables of the AllocateProducerIds API."""

from headrace.protocol.schema import (
    Message,
    int16,
    int32,
    int64,
)


class AllocateProducerIdsRequest(Message, api_key=67, versions=(0, 0), flexible_from=0):
    broker_id: int = int32(default=0)
    broker_epoch: int = int64(default=-1)


class AllocateProducerIdsResponse(Message, api_key=67, versions=(0, 0), flexible_from=0):
    throttle_time_ms: int = int32(default=0)
    error_code: int = int16(default=0)
    producer_id_start: int = int64(default=0)
    producer_id_len: int = int32(default=0)
