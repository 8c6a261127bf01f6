"""Tables of the ApiVersions API."""

from headrace.protocol.schema import (
    Message,
    Struct,
    array,
    boolean,
    int16,
    int32,
    int64,
    string,
)


class ApiVersionsRequest(Message, api_key=18, versions=(0, 4), flexible_from=3):
    client_software_name: str = string("3+", default="")
    client_software_version: str = string("3+", default="")


class ApiVersion(Struct):
    api_key: int = int16(default=0)
    min_version: int = int16(default=0)
    max_version: int = int16(default=0)


class SupportedFeatureKey(Struct):
    name: str = string("3+", default="")
    min_version: int = int16("3+", default=0)
    max_version: int = int16("3+", default=0)


class FinalizedFeatureKey(Struct):
    name: str = string("3+", default="")
    max_version_level: int = int16("3+", default=0)
    min_version_level: int = int16("3+", default=0)


class ApiVersionsResponse(Message, api_key=18, versions=(0, 4), flexible_from=3):
    error_code: int = int16(default=0)
    api_keys: list[ApiVersion] = array(ApiVersion, default=...)
    throttle_time_ms: int = int32("1+", default=0)
    supported_features: list[SupportedFeatureKey] = array(
        SupportedFeatureKey, "3+", tag=0, default=...
    )
    finalized_features_epoch: int = int64("3+", tag=1, default=-1)
    finalized_features: list[FinalizedFeatureKey] = array(
        FinalizedFeatureKey, "3+", tag=2, default=...
    )
    zk_migration_ready: bool = boolean("3+", tag=3, default=False)
