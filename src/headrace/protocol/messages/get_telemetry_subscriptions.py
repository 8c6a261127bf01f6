"""Tables of the GetTelemetrySubscriptions API."""

from headrace.protocol.schema import (
    Message,
    array,
    boolean,
    int8,
    int16,
    int32,
    string,
    uuid,
)
from headrace.types import ZERO_UUID


class GetTelemetrySubscriptionsRequest(Message, api_key=71, versions=(0, 0), flexible_from=0):
    client_instance_id: bytes = uuid(default=ZERO_UUID)


class GetTelemetrySubscriptionsResponse(Message, api_key=71, versions=(0, 0), flexible_from=0):
    throttle_time_ms: int = int32(default=0)
    error_code: int = int16(default=0)
    client_instance_id: bytes = uuid(default=ZERO_UUID)
    subscription_id: int = int32(default=0)
    accepted_compression_types: list[int] = array(int8, default=...)
    push_interval_ms: int = int32(default=0)
    telemetry_max_bytes: int = int32(default=0)
    delta_temporality: bool = boolean(default=False)
    requested_metrics: list[str] = array(string, default=...)
