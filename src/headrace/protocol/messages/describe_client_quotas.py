"""Tables of the DescribeClientQuotas API."""

from headrace.protocol.schema import (
    Message,
    Struct,
    array,
    boolean,
    float64,
    int8,
    int16,
    int32,
    string,
)


class ComponentData(Struct):
    entity_type: str = string(default="")
    match_type: int = int8(default=0)
    match: str | None = string(nullable="0+", default="")


class DescribeClientQuotasRequest(Message, api_key=48, versions=(0, 1), flexible_from=1):
    components: list[ComponentData] = array(ComponentData, default=...)
    strict: bool = boolean(default=False)


class EntityData(Struct):
    entity_type: str = string(default="")
    entity_name: str | None = string(nullable="0+", default="")


class ValueData(Struct):
    key: str = string(default="")
    value: float = float64(default=0.0)


class EntryData(Struct):
    entity: list[EntityData] = array(EntityData, default=...)
    values: list[ValueData] = array(ValueData, default=...)


class DescribeClientQuotasResponse(Message, api_key=48, versions=(0, 1), flexible_from=1):
    throttle_time_ms: int = int32(default=0)
    error_code: int = int16(default=0)
    error_message: str | None = string(nullable="0+", default="")
    entries: list[EntryData] | None = array(EntryData, nullable="0+", default=...)
