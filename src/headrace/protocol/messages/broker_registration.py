"""Tables of the BrokerRegistration API."""

from headrace.protocol.schema import (
    Message,
    Struct,
    array,
    boolean,
    int16,
    int32,
    int64,
    string,
    uint16,
    uuid,
)
from headrace.types import ZERO_UUID


class Listener(Struct):
    name: str = string(default="")
    host: str = string(default="")
    port: int = uint16(default=0)
    security_protocol: int = int16(default=0)


class Feature(Struct):
    name: str = string(default="")
    min_supported_version: int = int16(default=0)
    max_supported_version: int = int16(default=0)


class BrokerRegistrationRequest(Message, api_key=62, versions=(0, 4), flexible_from=0):
    broker_id: int = int32(default=0)
    cluster_id: str = string(default="")
    incarnation_id: bytes = uuid(default=ZERO_UUID)
    listeners: list[Listener] = array(Listener, default=...)
    features: list[Feature] = array(Feature, default=...)
    rack: str | None = string(nullable="0+", default="")
    is_migrating_zk_broker: bool = boolean("1+", default=False)
    log_dirs: list[bytes] = array(uuid, "2+", default=...)
    previous_broker_epoch: int = int64("3+", default=-1)


class BrokerRegistrationResponse(Message, api_key=62, versions=(0, 4), flexible_from=0):
    throttle_time_ms: int = int32(default=0)
    error_code: int = int16(default=0)
    broker_epoch: int = int64(default=-1)
