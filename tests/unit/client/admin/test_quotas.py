"""Quotas as the admin client sets and describes them."""

from typing import Any

import pytest

from headrace.client.admin.quotas import OwnerQuotas
from headrace.errors import ErrorCode, KafkaError
from headrace.metadata.client_quotas import (
    Quotas,
    alter_client_quotas,
    describe_client_quotas,
)
from headrace.metadata.image import Image
from headrace.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlterClientQuotasResponseEntryData,
)
from headrace.protocol.messages.describe_client_quotas import DescribeClientQuotasResponse
from tests.unit.client.admin.fakes import AdminBrokers


class QuotaBrokers(AdminBrokers):
    """Brokers that keep quotas as real brokers do; `refusals` are answered first."""

    def __init__(self) -> None:
        super().__init__()
        self.quotas: Quotas = {}
        self.refusals = list[ErrorCode]()

    def _DescribeClientQuotas(self, node: int, request: Any) -> DescribeClientQuotasResponse:
        return describe_client_quotas(self.quotas, request)

    def _AlterClientQuotas(self, node: int, request: Any) -> AlterClientQuotasResponse:
        if self.refusals:
            refused = AlterClientQuotasResponseEntryData(error_code=self.refusals.pop())
            return AlterClientQuotasResponse(entries=[refused])
        result = alter_client_quotas(self.quotas, request)
        self.quotas = Image(client_quotas=self.quotas).apply(result.records).client_quotas
        return result.response


def test_quotas_are_set_described_and_removed() -> None:
    brokers = QuotaBrokers()
    wanted = {"producer_byte_rate": 5, "request_percentage": 12.5}
    brokers.admin(lambda admin: admin.alter_client_quotas(wanted, user="alice", client_id=None))
    assert brokers.quotas == {(("client-id", None), ("user", "alice")): wanted}
    expected = OwnerQuotas({"user": "alice", "client_id": None}, wanted)
    assert str(expected) == "quotas of user alice, client-id (default)"
    assert brokers.admin(lambda admin: admin.describe_client_quotas()) == [expected]
    removal = {"producer_byte_rate": None, "request_percentage": None}
    brokers.admin(lambda admin: admin.alter_client_quotas(removal, user="alice", client_id=None))
    assert brokers.quotas == {}


def test_quotas_are_found_by_names_defaults_and_kinds() -> None:
    brokers = QuotaBrokers()
    brokers.quotas = {
        (("user", "alice"),): {"producer_byte_rate": 1.0},
        (("client-id", None), ("user", "alice")): {"producer_byte_rate": 2.0},
        (("user", None),): {"producer_byte_rate": 3.0},
        (("ip", "10.0.0.1"),): {"connection_creation_rate": 4.0},
    }

    def values(*kinds: str, **options: Any) -> list[float]:
        found = brokers.admin(lambda admin: admin.describe_client_quotas(kinds, **options))
        return sorted(value for entry in found for value in entry.quotas.values())

    assert values() == [1.0, 2.0, 3.0, 4.0]
    assert values(user="alice") == [1.0, 2.0]
    assert values(user="alice", exact=True) == [1.0]
    assert values(user=None) == [3.0]
    assert values("user") == [1.0, 2.0, 3.0]
    assert values("client_id", user="alice") == [2.0]
    assert values("ip") == [4.0]


def test_a_change_is_checked_without_being_made() -> None:
    brokers = QuotaBrokers()
    wanted = {"producer_byte_rate": 5}
    brokers.admin(lambda admin: admin.alter_client_quotas(wanted, user="a", validate_only=True))
    assert brokers.quotas == {}
    with pytest.raises(KafkaError, match=r"quotas of user a.*'bogus' is no quota") as caught:
        brokers.admin(lambda admin: admin.alter_client_quotas({"bogus": 5}, user="a"))
    assert caught.value.code is ErrorCode.INVALID_REQUEST


def test_a_change_is_sent_again_if_the_controller_moved() -> None:
    brokers = QuotaBrokers()
    brokers.refusals = [ErrorCode.NOT_CONTROLLER]
    brokers.admin(lambda admin: admin.alter_client_quotas({"producer_byte_rate": 5}, user="a"))
    first, second = brokers.sent(AlterClientQuotasRequest)
    assert first == second
    assert brokers.quotas


def test_wrong_arguments_are_refused_before_anything_is_sent() -> None:
    brokers = QuotaBrokers()
    for quotas, owner in (
        ({"producer_byte_rate": 5}, {}),
        ({"producer_byte_rate": 5}, {"client": "a"}),
        ({"producer_byte_rate": 5}, {"user": 7}),
        ({"producer_byte_rate": "5"}, {"user": "a"}),
        ({"producer_byte_rate": True}, {"user": "a"}),
    ):
        with pytest.raises(TypeError):
            brokers.admin(lambda admin, q=quotas, o=owner: admin.alter_client_quotas(q, **o))  # type: ignore[misc]
    with pytest.raises(ValueError, match="'group' is no kind of owner"):
        brokers.admin(lambda admin: admin.describe_client_quotas(["group"]))
    assert brokers.sent(AlterClientQuotasRequest) == []
