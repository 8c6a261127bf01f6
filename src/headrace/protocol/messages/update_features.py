"""Tables of the UpdateFeatures API."""

from headrace.protocol.schema import (
    Message,
    Struct,
    array,
    boolean,
    int8,
    int16,
    int32,
    string,
)


class FeatureUpdateKey(Struct):
    feature: str = string(default="")
    max_version_level: int = int16(default=0)
    allow_downgrade: bool = boolean("0", default=False)
    upgrade_type: int = int8("1+", default=1)


class UpdateFeaturesRequest(Message, api_key=57, versions=(0, 2), flexible_from=0):
    timeout_ms: int = int32(default=60000)
    feature_updates: list[FeatureUpdateKey] = array(FeatureUpdateKey, default=...)
    validate_only: bool = boolean("1+", default=False)


class UpdatableFeatureResult(Struct):
    feature: str = string("0-1", default="")
    error_code: int = int16("0-1", default=0)
    error_message: str | None = string("0-1", nullable="0-1", default="")


class UpdateFeaturesResponse(Message, api_key=57, versions=(0, 2), flexible_from=0):
    throttle_time_ms: int = int32(default=0)
    error_code: int = int16(default=0)
    error_message: str | None = string(nullable="0+", default="")
    results: list[UpdatableFeatureResult] = array(UpdatableFeatureResult, "0-1", default=...)
