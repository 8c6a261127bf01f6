"""Quotas of clients: Kafka's checks, filters and eight levels, and their records."""

from collections.abc import Mapping

import pytest

from headrace.errors import ErrorCode
from headrace.metadata.client_quotas import (
    CLIENT_RATES,
    MUTATION_RATE,
    PRODUCER_RATE,
    Quotas,
    Rate,
    alter_client_quotas,
    connection_rate_of,
    describe_client_quotas,
    describe_entity,
    quota_entity,
    rate_of,
)
from headrace.metadata.image import Image
from headrace.metadata.records import MetadataError
from headrace.protocol.messages import alter_client_quotas as alter
from headrace.protocol.messages import describe_client_quotas as describe
from headrace.protocol.messages.metadata_records import ClientQuotaRecord, EntityData

Entity = dict[str, str | None]
ALICE, ANY_USER = ("user", "alice"), ("user", None)
ETL, ANY_CLIENT = ("client-id", "etl"), ("client-id", None)


def alteration(
    *entries: tuple[Entity, Mapping[str, float | None]], validate_only: bool = False
) -> alter.AlterClientQuotasRequest:
    return alter.AlterClientQuotasRequest(
        entries=[
            alter.EntryData(
                entity=[
                    alter.EntityData(entity_type=kind, entity_name=name)
                    for kind, name in entity.items()
                ],
                ops=[
                    alter.OpData(key=key, value=value or 0.0, remove=value is None)
                    for key, value in changes.items()
                ],
            )
            for entity, changes in entries
        ],
        validate_only=validate_only,
    )


def changed(quotas: Quotas, *entries: tuple[Entity, Mapping[str, float | None]]) -> Quotas:
    result = alter_client_quotas(quotas, alteration(*entries))
    assert [entry.error_code for entry in result.response.entries] == [0] * len(entries)
    return Image(client_quotas=quotas).apply(result.records).client_quotas


def code_of(entity: Entity, changes: Mapping[str, float | None]) -> int:
    result = alter_client_quotas({}, alteration((entity, changes)))
    [answer] = result.response.entries
    assert {part.entity_type: part.entity_name for part in answer.entity} == entity
    assert (answer.error_message is None) == (answer.error_code == 0)
    assert not (result.records and answer.error_code)
    return answer.error_code


def test_quotas_are_set_changed_and_removed() -> None:
    alice: Entity = {"user": "alice"}
    quotas = changed({}, (alice, {"producer_byte_rate": 5.0, "request_percentage": 12.5}))
    assert quotas == {(ALICE,): {"producer_byte_rate": 5.0, "request_percentage": 12.5}}
    quotas = changed(quotas, (alice, {"producer_byte_rate": 6.0, "request_percentage": None}))
    assert quotas == {(ALICE,): {"producer_byte_rate": 6.0}}
    assert changed(quotas, (alice, {"producer_byte_rate": None})) == {}


def test_a_change_that_changes_nothing_makes_no_record() -> None:
    quotas = changed({}, ({"user": None}, {"producer_byte_rate": 5.0}))
    same = alteration(({"user": None}, {"producer_byte_rate": 5.0, "consumer_byte_rate": None}))
    assert alter_client_quotas(quotas, same).records == ()


def test_an_entity_that_comes_twice_is_changed_twice() -> None:
    alice: Entity = {"user": "alice"}
    quotas = changed(
        {}, (alice, {"producer_byte_rate": 5.0}), (alice, {"producer_byte_rate": None})
    )
    assert quotas == {}


def test_a_check_alone_makes_no_record() -> None:
    request = alteration(({"user": "alice"}, {"producer_byte_rate": 5.0}), validate_only=True)
    assert alter_client_quotas({}, request).records == ()


@pytest.mark.parametrize(
    ("entity", "changes"),
    [
        ({"user": "a"}, {"producer_byte_rate": 1.0}),
        ({"user": "a", "client-id": None}, {"controller_mutation_rate": 0.5}),
        ({"ip": "10.0.0.1"}, {"connection_creation_rate": 1.0}),
        ({"ip": "2001:db8::1"}, {"connection_creation_rate": 1.0}),
        ({"ip": None}, {"connection_creation_rate": None}),
        ({"client-id": "a"}, {"consumer_byte_rate": None}),
    ],
)
def test_what_kafka_takes_is_taken(entity: Entity, changes: dict[str, float | None]) -> None:
    assert code_of(entity, changes) == ErrorCode.NONE


@pytest.mark.parametrize(
    ("entity", "changes"),
    [
        ({}, {}),
        ({"bogus": "a"}, {}),
        ({"user": "a", "ip": "10.0.0.1"}, {}),
        ({"user": ""}, {}),
        ({"user": "a" * 40_000}, {}),
        ({"ip": "not an address"}, {}),
        ({"ip": "10.0.0.1"}, {"producer_byte_rate": 1.0}),
        ({"user": "a"}, {"connection_creation_rate": 1.0}),
        ({"user": "a"}, {"bogus": 1.0}),
        ({"user": "a"}, {"bogus": None}),
        ({"user": "a"}, {"producer_byte_rate": -1.0}),
        ({"user": "a"}, {"producer_byte_rate": 1.5}),
        ({"user": "a"}, {"producer_byte_rate": 1e300}),
        ({"user": "a"}, {"request_percentage": float("nan")}),
        ({"user": "a"}, {"request_percentage": float("inf")}),
        ({"ip": None}, {"connection_creation_rate": 2.0**31}),
    ],
)
def test_what_makes_no_sense_is_refused(entity: Entity, changes: dict[str, float | None]) -> None:
    assert code_of(entity, changes) == ErrorCode.INVALID_REQUEST


def test_one_wrong_entity_does_not_spoil_the_others() -> None:
    request = alteration(
        ({"user": "a"}, {"producer_byte_rate": 1.0, "bogus": 1.0}),
        ({"user": "b"}, {"producer_byte_rate": 1.0}),
    )
    result = alter_client_quotas({}, request)
    codes = [answer.error_code for answer in result.response.entries]
    assert codes == [ErrorCode.INVALID_REQUEST, ErrorCode.NONE]
    assert [record.entity[0].entity_name for record in result.records] == ["b"]  # type: ignore[attr-defined]


def test_a_key_or_a_type_that_comes_twice_is_refused() -> None:
    request = alteration(({"user": "a"}, {"producer_byte_rate": 1.0}))
    request.entries[0].ops *= 2
    [answer] = alter_client_quotas({}, request).response.entries
    assert answer.error_code == ErrorCode.INVALID_REQUEST
    request = alteration(({"user": "a"}, {"producer_byte_rate": 1.0}))
    request.entries[0].entity *= 2
    [answer] = alter_client_quotas({}, request).response.entries
    assert answer.error_code == ErrorCode.INVALID_REQUEST


def test_a_record_that_removes_nothing_contradicts_the_image() -> None:
    record = ClientQuotaRecord(
        entity=[EntityData(entity_type="user", entity_name="a")], key="k", remove=True
    )
    with pytest.raises(MetadataError, match="k of user 'a' is not there"):
        Image().apply([record])


# The eight levels, most specific first, and by whom each is shared.
LEVELS = [
    ((ETL, ALICE), Rate(1.0, "alice", "etl")),
    ((ANY_CLIENT, ALICE), Rate(2.0, "alice", "etl")),
    ((ALICE,), Rate(3.0, "alice", None)),
    ((ETL, ANY_USER), Rate(4.0, "alice", "etl")),
    ((ANY_CLIENT, ANY_USER), Rate(5.0, "alice", "etl")),
    ((ANY_USER,), Rate(6.0, "alice", None)),
    ((ETL,), Rate(7.0, None, "etl")),
    ((ANY_CLIENT,), Rate(8.0, None, "etl")),
]


@pytest.mark.parametrize("first", range(8))
def test_the_most_specific_quota_applies(first: int) -> None:
    quotas = {entity: {PRODUCER_RATE: rate.value} for entity, rate in LEVELS[first:]}
    # Each kind of quota for itself: an entity that has another one is passed over.
    quotas |= {entity: {MUTATION_RATE: 9.0} for entity, _ in LEVELS[:first]}
    assert rate_of(quotas, PRODUCER_RATE, "alice", "etl") == LEVELS[first][1]


def test_a_client_that_nothing_matches_has_no_quota() -> None:
    quotas: Quotas = {(ALICE,): {PRODUCER_RATE: 1.0}, (ETL,): {PRODUCER_RATE: 1.0}}
    assert rate_of(quotas, PRODUCER_RATE, "bob", "web") is None


def test_an_address_has_its_own_rate_or_the_default() -> None:
    quotas = changed(
        {},
        ({"ip": None}, {"connection_creation_rate": 5.0}),
        ({"ip": "10.0.0.1"}, {"connection_creation_rate": 1.0}),
    )
    assert connection_rate_of(quotas, "10.0.0.1") == 1.0
    assert connection_rate_of(quotas, "10.0.0.2") == 5.0
    assert connection_rate_of({}, "10.0.0.2") is None


def described(
    quotas: Quotas, *components: tuple[str, int, str | None], strict: bool = False
) -> list[str] | int:
    request = describe.DescribeClientQuotasRequest(
        components=[
            describe.ComponentData(entity_type=kind, match_type=how, match=name)
            for kind, how, name in components
        ],
        strict=strict,
    )
    response = describe_client_quotas(quotas, request)
    if response.error_code:
        assert response.entries is None
        return response.error_code
    assert response.entries is not None
    return [
        describe_entity(quota_entity({part.entity_type: part.entity_name for part in entry.entity}))
        for entry in response.entries
    ]


def test_filters_match_names_defaults_and_any_name() -> None:
    quotas: Quotas = {entity: dict.fromkeys(CLIENT_RATES, 1.0) for entity, _ in LEVELS}
    assert described(quotas, ("user", 0, "alice"), strict=True) == ["user 'alice'"]
    assert described(quotas, ("user", 1, None), strict=True) == ["the default user"]
    assert described(quotas, ("client-id", 2, None), strict=True) == [
        "client-id 'etl'",
        "the default client-id",
    ]
    assert described(quotas, ("user", 0, "alice"), ("client-id", 1, None)) == [
        "the default client-id, user 'alice'"
    ]
    everything = described(quotas)
    assert isinstance(everything, list)
    assert len(everything) == 8
    assert described(quotas, strict=True) == []
    assert described(quotas, ("user", 0, "bob")) == []


@pytest.mark.parametrize(
    ("components", "code"),
    [
        ([("bogus", 2, None)], ErrorCode.UNSUPPORTED_VERSION),
        ([("", 2, None)], ErrorCode.INVALID_REQUEST),
        ([("user", 9, None)], ErrorCode.INVALID_REQUEST),
        ([("user", 2, "name")], ErrorCode.INVALID_REQUEST),
        ([("user", 0, None)], ErrorCode.INVALID_REQUEST),
        ([("user", 2, None), ("user", 2, None)], ErrorCode.INVALID_REQUEST),
        ([("user", 2, None), ("ip", 2, None)], ErrorCode.INVALID_REQUEST),
    ],
)
def test_a_wrong_filter_is_refused(
    components: list[tuple[str, int, str | None]], code: ErrorCode
) -> None:
    assert described({}, *components) == code
