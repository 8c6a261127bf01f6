"""Tables of the AlterClientQuotas API."""

from headrace.protocol.schema import (
    Message,
    Struct,
    array,
    boolean,
    float64,
    int16,
    int32,
    string,
)


class EntityData(Struct):
    entity_type: str = string(default="")
    entity_name: str | None = string(nullable="0+", default="")


class OpData(Struct):
    key: str = string(default="")
    value: float = float64(default=0.0)
    remove: bool = boolean(default=False)


class EntryData(Struct):
    entity: list[EntityData] = array(EntityData, default=...)
    ops: list[OpData] = array(OpData, default=...)


class AlterClientQuotasRequest(Message, api_key=49, versions=(0, 1), flexible_from=1):
    entries: list[EntryData] = array(EntryData, default=...)
    validate_only: bool = boolean(default=False)


class AlterClientQuotasResponseEntityData(Struct):
    entity_type: str = string(default="")
    entity_name: str | None = string(nullable="0+", default="")


class AlterClientQuotasResponseEntryData(Struct):
    error_code: int = int16(default=0)
    error_message: str | None = string(nullable="0+", default="")
    entity: list[AlterClientQuotasResponseEntityData] = array(
        AlterClientQuotasResponseEntityData, default=...
    )


class AlterClientQuotasResponse(Message, api_key=49, versions=(0, 1), flexible_from=1):
    throttle_time_ms: int = int32(default=0)
    entries: list[AlterClientQuotasResponseEntryData] = array(
        AlterClientQuotasResponseEntryData, default=...
    )
