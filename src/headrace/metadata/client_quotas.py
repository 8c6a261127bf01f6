"""Quotas of clients: their entities, their part of the image, the rate that applies to a client.

An entity is a user, a client id, a user's client id, or an ip; each of them may be the default,
which applies to every name without a quota of its own. Rule: errors of a change are per entity.
Either all changes to an entity are made or none.
"""

import ipaddress
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from headrace.errors import ErrorCode, KafkaError
from headrace.metadata.records import CommandResult, MetadataError, repeated_names
from headrace.options import INT_MAX, LONG_MAX
from headrace.protocol.messages import alter_client_quotas as alter
from headrace.protocol.messages import describe_client_quotas as describe
from headrace.protocol.messages.metadata_records import ClientQuotaRecord, EntityData

USER, CLIENT_ID, IP = "user", "client-id", "ip"
_ENTITY_TYPES = (USER, CLIENT_ID, IP)

PRODUCER_RATE = "producer_byte_rate"
CONSUMER_RATE = "consumer_byte_rate"
REQUEST_PERCENTAGE = "request_percentage"
MUTATION_RATE = "controller_mutation_rate"
CONNECTION_RATE = "connection_creation_rate"
CLIENT_RATES = frozenset({PRODUCER_RATE, CONSUMER_RATE, REQUEST_PERCENTAGE, MUTATION_RATE})
_IP_RATES = frozenset({CONNECTION_RATE})
# Kafka's types of values: these are whole numbers, up to a limit.
_WHOLE_MAX = {PRODUCER_RATE: LONG_MAX, CONSUMER_RATE: LONG_MAX, CONNECTION_RATE: INT_MAX}
_WHOLE_TOLERANCE = 1e-6

_NAME_CHARACTERS_MAX = 2**15 - 1
# Every request of a client without a quota of its own is looked up among them.
_ENTITIES_MAX = 100_000

_MATCH_EXACT, _MATCH_DEFAULT, _MATCH_SPECIFIED = range(3)

# The parts of an entity as (type, name), sorted; the name None is the default.
QuotaEntity: TypeAlias = tuple[tuple[str, str | None], ...]
Quotas: TypeAlias = Mapping[QuotaEntity, Mapping[str, float]]


def quota_entity(parts: Mapping[str, str | None]) -> QuotaEntity:
    """The entity with these names by type."""
    return tuple(sorted(parts.items()))


def replay_quota(quotas: dict[QuotaEntity, Mapping[str, float]], record: ClientQuotaRecord) -> None:
    """Change the quotas of an image by a record."""
    entity = quota_entity({part.entity_type: part.entity_name for part in record.entity})
    values = dict(quotas.get(entity, {}))
    if not record.remove:
        values[record.key] = record.value
    elif values.pop(record.key, None) is None:
        raise MetadataError(f"the quota {record.key} of {describe_entity(entity)} is not there")
    if values:
        quotas[entity] = values
    else:
        del quotas[entity]


def quota_records(quotas: Quotas) -> Iterator[ClientQuotaRecord]:
    """The records of a snapshot."""
    for entity, values in quotas.items():
        for key, value in values.items():
            yield _record(entity, key, value)


def describe_entity(entity: QuotaEntity) -> str:
    """An entity in words: `user 'alice', the default client-id`."""
    return ", ".join(
        f"the default {kind}" if name is None else f"{kind} {name!r}" for kind, name in entity
    )


class Rate(NamedTuple):
    """The quota that applies to a client, and the user and client id that share it.

    None in place of one of them: every user, or every client id, shares it.
    """

    value: float
    user: str | None
    client_id: str | None


def rate_of(quotas: Quotas, key: str, user: str, client_id: str) -> Rate | None:
    """The quota of a client, the most specific of Kafka's eight levels; None if there is none."""
    for names, shared in (
        (((CLIENT_ID, client_id), (USER, user)), (user, client_id)),
        (((CLIENT_ID, None), (USER, user)), (user, client_id)),
        (((USER, user),), (user, None)),
        (((CLIENT_ID, client_id), (USER, None)), (user, client_id)),
        (((CLIENT_ID, None), (USER, None)), (user, client_id)),
        (((USER, None),), (user, None)),
        (((CLIENT_ID, client_id),), (None, client_id)),
        (((CLIENT_ID, None),), (None, client_id)),
    ):
        value = quotas.get(names, {}).get(key)
        if value is not None:
            return Rate(value, *shared)
    return None


def connection_rate_of(quotas: Quotas, ip: str) -> float | None:
    """The connections a second that an address may open; None if that is not limited."""
    for name in (ip, None):
        value = quotas.get(((IP, name),), {}).get(CONNECTION_RATE)
        if value is not None:
            return value
    return None


# AlterClientQuotas.


def alter_client_quotas(
    quotas: Quotas, request: alter.AlterClientQuotasRequest
) -> CommandResult[alter.AlterClientQuotasResponse]:
    """Set and remove quotas. To remove a quota that is not there succeeds, as in Kafka."""
    draft = dict(quotas)
    records: list[ClientQuotaRecord] = []
    response = alter.AlterClientQuotasResponse()
    for entry in request.entries:
        code, text = ErrorCode.NONE, None
        try:
            changes = _changes(draft, entry)
        except KafkaError as error:
            code, text = error.code, error.detail
        else:
            for record in changes:
                replay_quota(draft, record)
            records += changes
        response.entries.append(answer_of(entry, code, text))
    return CommandResult(() if request.validate_only else tuple(records), response)


def answer_of(
    entry: alter.EntryData, code: int, text: str | None
) -> alter.AlterClientQuotasResponseEntryData:
    """The part of a response about one entity of the request."""
    return alter.AlterClientQuotasResponseEntryData(
        error_code=code,
        error_message=text,
        entity=[
            alter.AlterClientQuotasResponseEntityData(
                entity_type=part.entity_type, entity_name=part.entity_name
            )
            for part in entry.entity
        ],
    )


def _changes(quotas: Quotas, entry: alter.EntryData) -> list[ClientQuotaRecord]:
    """The records of the changes to one entity; KafkaError if a change is wrong."""
    _check_entity(entry)
    entity = quota_entity({part.entity_type: part.entity_name for part in entry.entity})
    if twice := repeated_names(change.key for change in entry.ops):
        raise _invalid(f"{min(twice)} is given more than once")
    known = _IP_RATES if entity[0][0] == IP else CLIENT_RATES
    current = quotas.get(entity, {})
    records = []
    for change in entry.ops:
        if change.key not in known:
            raise _invalid(f"{change.key!r} is no quota of this entity; use {sorted(known)}")
        if change.remove:
            if change.key in current:
                records.append(_record(entity, change.key))
            continue
        _check_value(change.key, change.value)
        if change.value != current.get(change.key):
            records.append(_record(entity, change.key, change.value))
    if records and entity not in quotas and len(quotas) >= _ENTITIES_MAX:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION,
            f"{_ENTITIES_MAX} users, clients and ips have quotas, and this would be more",
            advice="remove some, or use the default of their kind",
        )
    return records


def _check_entity(entry: alter.EntryData) -> None:
    types = [part.entity_type for part in entry.entity]
    if not types:
        raise _invalid("the entity is empty; name a user, a client-id or an ip")
    for part in entry.entity:
        if part.entity_type not in _ENTITY_TYPES:
            raise _invalid(_no_entity_type(part.entity_type))
        if part.entity_name == "":
            raise _invalid(f"the name of the {part.entity_type} is empty; leave it out for all")
        if part.entity_name is not None and len(part.entity_name) > _NAME_CHARACTERS_MAX:
            raise _invalid(f"the name of the {part.entity_type} is too long")
    _check_combination(types)
    if types == [IP] and entry.entity[0].entity_name is not None:
        _check_ip(entry.entity[0].entity_name)


def _check_ip(name: str) -> None:
    # Unlike Kafka: host names are not looked up, since each broker might find another address.
    try:
        ipaddress.ip_address(name)
    except ValueError:
        raise _invalid(f"{name!r} is no ip address") from None


def _check_value(key: str, value: float) -> None:
    # NaN compares as false.
    if not value > 0:
        raise _invalid(f"{key} must be more than 0")
    if key in _WHOLE_MAX:
        if value > _WHOLE_MAX[key]:
            raise _invalid(f"{key} must be at most {_WHOLE_MAX[key]}")
        if abs(value - round(value)) > _WHOLE_TOLERANCE:
            raise _invalid(f"{key} must be a whole number, and {value} is none")
    elif value == float("inf"):
        raise _invalid(f"{key} must be finite; remove the quota for no limit")


def _record(entity: QuotaEntity, key: str, value: float | None = None) -> ClientQuotaRecord:
    return ClientQuotaRecord(
        entity=[EntityData(entity_type=kind, entity_name=name) for kind, name in entity],
        key=key,
        value=0.0 if value is None else value,
        remove=value is None,
    )


# DescribeClientQuotas.


def describe_client_quotas(
    quotas: Quotas, request: describe.DescribeClientQuotasRequest
) -> describe.DescribeClientQuotasResponse:
    """The entities that a filter matches, with their quotas."""
    try:
        _check_filter(request.components)
    except KafkaError as error:
        return describe.DescribeClientQuotasResponse(
            error_code=error.code, error_message=error.detail, entries=None
        )
    return describe.DescribeClientQuotasResponse(
        error_message=None,
        entries=[
            describe.EntryData(
                entity=[
                    describe.EntityData(entity_type=kind, entity_name=name) for kind, name in entity
                ],
                values=[describe.ValueData(key=key, value=values[key]) for key in sorted(values)],
            )
            for entity, values in quotas.items()
            if _matches(dict(entity), request)
        ],
    )


def _matches(
    names: Mapping[str, str | None], request: describe.DescribeClientQuotasRequest
) -> bool:
    if request.strict and len(names) != len(request.components):
        return False
    for component in request.components:
        if component.entity_type not in names:
            return False
        name = names[component.entity_type]
        if component.match_type == _MATCH_EXACT and name != component.match:
            return False
        if component.match_type == _MATCH_DEFAULT and name is not None:
            return False
    return True


def _check_filter(components: Sequence[describe.ComponentData]) -> None:
    for component in components:
        if not component.entity_type:
            raise _invalid("the entity type is empty")
        if component.entity_type not in _ENTITY_TYPES:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, _no_entity_type(component.entity_type))
        if component.match_type not in (_MATCH_EXACT, _MATCH_DEFAULT, _MATCH_SPECIFIED):
            raise _invalid(f"there is no match type {component.match_type}")
        if component.match_type == _MATCH_EXACT and component.match is None:
            raise _invalid("an exact match needs a name")
        if component.match_type != _MATCH_EXACT and component.match is not None:
            raise _invalid("a name is only for an exact match")
    _check_combination([component.entity_type for component in components])


def _no_entity_type(name: str) -> str:
    return f"{name!r} is no entity type; use one of {', '.join(_ENTITY_TYPES)}"


def _check_combination(types: Iterable[str]) -> None:
    types = list(types)
    if twice := repeated_names(types):
        raise _invalid(f"the entity type {min(twice)} is named more than once")
    if IP in types and len(types) > 1:
        raise _invalid("an ip cannot be combined with a user or a client-id")


def _invalid(text: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, text)
