"""DescribeClientQuotas and AlterClientQuotas on a broker that has no quotas for clients.

There are none to describe, and none can be set: an accepted limit that nothing enforces would be
worse than a refused limit. Requests are checked as Kafka checks them.
"""

from collections.abc import Sequence

from headrace.broker.request import RequestContext
from headrace.errors import ErrorCode, KafkaError
from headrace.metadata.records import repeated_names
from headrace.protocol.messages import alter_client_quotas as alter
from headrace.protocol.messages import describe_client_quotas as describe

_USER, _CLIENT_ID, _IP = "user", "client-id", "ip"
_ENTITY_TYPES = (_USER, _CLIENT_ID, _IP)
_CLIENT_KEYS = frozenset(
    {
        "producer_byte_rate",
        "consumer_byte_rate",
        "request_percentage",
        "controller_mutation_rate",
    }
)
_IP_KEYS = frozenset({"connection_creation_rate"})
_MATCH_EXACT, _MATCH_DEFAULT, _MATCH_SPECIFIED = range(3)


def describe_quotas(
    context: RequestContext, request: describe.DescribeClientQuotasRequest
) -> describe.DescribeClientQuotasResponse:
    try:
        _check_filter(request.components)
    except KafkaError as error:
        return describe.DescribeClientQuotasResponse(
            error_code=error.code, error_message=error.detail, entries=None
        )
    return describe.DescribeClientQuotasResponse(error_message=None)


def alter_quotas(
    context: RequestContext, request: alter.AlterClientQuotasRequest
) -> alter.AlterClientQuotasResponse:
    response = alter.AlterClientQuotasResponse()
    for entry in request.entries:
        code, text = ErrorCode.NONE, None
        try:
            _check_alteration(entry)
        except KafkaError as error:
            code, text = error.code, error.detail
        entity = [
            alter.AlterClientQuotasResponseEntityData(
                entity_type=part.entity_type, entity_name=part.entity_name
            )
            for part in entry.entity
        ]
        response.entries.append(
            alter.AlterClientQuotasResponseEntryData(
                error_code=code, error_message=text, entity=entity
            )
        )
    return response


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


def _check_alteration(entry: alter.EntryData) -> None:
    types = [part.entity_type for part in entry.entity]
    if not types:
        raise _invalid("the entity is empty; name a user, a client-id or an ip")
    for name in types:
        if name not in _ENTITY_TYPES:
            raise _invalid(_no_entity_type(name))
    _check_combination(types)
    twice = repeated_names(change.key for change in entry.ops)
    if twice:
        raise _invalid(f"{min(twice)} is given more than once")
    known = _IP_KEYS if _IP in types else _CLIENT_KEYS
    additions = [change for change in entry.ops if not change.remove]
    for change in additions:
        if change.key not in known:
            raise _invalid(f"{change.key!r} is no quota of this entity; use {sorted(known)}")
        if change.value <= 0:
            raise _invalid(f"{change.key} must be more than 0")
    if additions:
        # To remove what is not there succeeds, as in Kafka.
        raise KafkaError(
            ErrorCode.UNSUPPORTED_VERSION,
            "headrace does not enforce client quotas yet, so none can be set",
        )


def _no_entity_type(name: str) -> str:
    return f"{name!r} is no entity type; use one of {', '.join(_ENTITY_TYPES)}"


def _check_combination(types: Sequence[str]) -> None:
    if twice := repeated_names(types):
        raise _invalid(f"the entity type {min(twice)} is named more than once")
    if _IP in types and len(types) > 1:
        raise _invalid("an ip cannot be combined with a user or a client-id")


def _invalid(text: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, text)
