"""Tables of the PushTelemetry API."""

from headrace.protocol.schema import (
    Message,
    boolean,
    int8,
    int16,
    int32,
    raw,
    uuid,
)
from headrace.types import ZERO_UUID


class PushTelemetryRequest(Message, api_key=72, versions=(0, 0), flexible_from=0):
    client_instance_id: bytes = uuid(default=ZERO_UUID)
    subscription_id: int = int32(default=0)
    terminating: bool = boolean(default=False)
    compression_type: int = int8(default=0)
    metrics: bytes = raw(default=b"")


class PushTelemetryResponse(Message, api_key=72, versions=(0, 0), flexible_from=0):
    throttle_time_ms: int = int32(default=0)
    error_code: int = int16(default=0)
