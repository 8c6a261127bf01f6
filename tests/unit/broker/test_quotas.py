"""Client quotas of a broker: who shares a limit, what is charged, and how long a client waits."""

from typing import Any, cast

import pytest

from headrace.broker.quotas import (
    ClientLimits,
    ClientQuotas,
    MutationCharge,
    QuotaSettings,
    RequestCharge,
    is_of_the_cluster,
)
from headrace.errors import ErrorCode, KafkaError
from headrace.metadata.client_quotas import Quotas
from headrace.metrics.registry import Registry
from headrace.net.server import ServerConnection
from headrace.protocol.apis import Api
from headrace.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTransaction,
)
from headrace.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
    ReplicaState,
)
from headrace.protocol.messages.heartbeat import HeartbeatResponse
from headrace.protocol.messages.metadata import MetadataRequest
from headrace.protocol.messages.offset_for_leader_epoch import OffsetForLeaderEpochRequest
from headrace.rates import TokenBucket
from tests.unit.client.fake_brokers import FakeClock

SETTINGS = QuotaSettings(window_s=1, windows=10)
ETL: Quotas = {(("client-id", "etl"),): {"producer_byte_rate": 100.0, "consumer_byte_rate": 50.0}}


class FakeConnection:
    """A connection that notes for how long it was muted."""

    def __init__(self) -> None:
        self.muted: list[Any] = []
        self.is_muted = False

    def mute(self, seconds: float) -> None:
        self.muted.append(pytest.approx(seconds))
        self.is_muted = True

    def unmute(self) -> None:
        self.is_muted = False


class Quota:
    """The quotas of a broker, its clock, and one connection."""

    def __init__(self, quotas: Quotas, settings: QuotaSettings = SETTINGS) -> None:
        self.clock = FakeClock()
        self.registry = Registry()
        self.quotas = ClientQuotas(self.registry, self.clock.monotonic)
        self.quotas.change(quotas, settings)
        self.connection = FakeConnection()

    @property
    def now(self) -> float:
        return self.clock.monotonic()

    def limits(self, user: str = "alice", client_id: str | None = "etl") -> ClientLimits:
        found = self.quotas.limits_of(user, client_id)
        assert found is not None
        return found

    def charge(self, user: str = "alice", client_id: str | None = "etl") -> RequestCharge:
        connection = cast("ServerConnection", self.connection)
        return RequestCharge(self.quotas, self.limits(user, client_id), connection)

    def metric(self, name: str) -> dict[str, Any]:
        [family] = [family for family in self.registry.collect() if family.family.name == name]
        return {labels[0]: metric for labels, metric in family.metrics.items()}


def fetched(byte_count: int) -> FetchResponse:
    partitions = [PartitionData(records=bytes(byte_count)), PartitionData(records=None)]
    return FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=partitions)])


def test_without_quotas_nobody_is_limited() -> None:
    quota = Quota({})
    assert not quota.quotas.active
    quota.quotas.change({(("ip", None),): {"connection_creation_rate": 5.0}}, SETTINGS)
    assert not quota.quotas.active
    assert quota.quotas.connection_rate_of("10.0.0.1") == 5.0
    quota.quotas.change(ETL, SETTINGS)
    assert quota.quotas.active
    assert quota.quotas.limits_of("alice", "web") is None
    assert quota.quotas.limits_of("alice", None) is None


def test_those_who_share_a_quota_share_one_limit() -> None:
    quota = Quota({**ETL, (("user", "bob"),): {"producer_byte_rate": 7.0}})
    assert quota.limits("alice").produce is quota.limits("carol").produce
    assert quota.limits("bob", "a").produce is quota.limits("bob", "b").produce
    produce = quota.limits("bob", "a").produce
    assert produce is not None
    assert produce.rate == 7.0


def test_the_default_rates_of_the_broker_are_for_clients_without_a_quota() -> None:
    quota = Quota(ETL, SETTINGS._replace(producer_default=5, consumer_default=9))
    produce, fetch, request, mutation = quota.limits("alice", "web")
    assert (produce and produce.rate, fetch and fetch.rate) == (5, 9)
    assert (request, mutation) == (None, None)
    produce = quota.limits("alice", "etl").produce
    assert produce is not None
    assert produce.rate == 100


def test_produced_bytes_above_the_quota_mute_the_connection_and_are_told() -> None:
    quota = Quota(ETL)
    charge = quota.charge()
    charge.produced(100, quota.now)
    assert quota.connection.muted == []
    charge.produced(50, quota.now)
    assert quota.connection.muted == [0.5]
    response = HeartbeatResponse()
    quota.clock.sleep(0.2)
    charge.answer(response, quota.now)
    assert response.throttle_time_ms in (300, 301)
    assert quota.metric("headrace_quota_violations_total")["produce"].value == 1
    assert quota.metric("headrace_quota_throttle_seconds")["produce"].sum == pytest.approx(0.5)


def test_a_client_that_waits_as_told_is_never_above_its_quota() -> None:
    quota = Quota(ETL)
    sent, began_s = 0, quota.now
    for _ in range(200):
        quota.connection.muted.clear()
        quota.charge().produced(70, quota.now)
        sent += 70
        quota.clock.sleep(sum(wait.expected for wait in quota.connection.muted))
    elapsed_s = quota.now - began_s
    assert 100 * elapsed_s <= sent <= 100 * (elapsed_s + 1) + 1


def test_a_fetch_reads_within_the_quota_and_nothing_while_bytes_are_owed() -> None:
    quota = Quota(ETL)
    request = FetchRequest(max_bytes=10_000)
    charge = quota.charge()
    assert charge.may_fetch(request, quota.now)
    assert request.max_bytes == 50
    # A batch may be larger than what is allowed.
    response = fetched(150)
    charge.fetched(response, quota.now)
    charge.answer(response, quota.now)
    assert quota.connection.muted == [2.0]
    assert response.throttle_time_ms == 2000
    quota.clock.sleep(1)
    assert not quota.charge().may_fetch(request, quota.now)
    assert quota.connection.muted == [2.0, 1.0]
    quota.clock.sleep(1)
    assert quota.charge().may_fetch(request, quota.now)


def test_a_consumer_that_was_idle_may_read_what_it_saved_up() -> None:
    quota = Quota(ETL)
    quota.limits()
    quota.clock.sleep(100)
    request = FetchRequest(max_bytes=10_000)
    assert quota.charge().may_fetch(request, quota.now)
    assert request.max_bytes == 500
    small = FetchRequest(max_bytes=7)
    assert quota.charge().may_fetch(small, quota.now)
    assert small.max_bytes == 7


def test_time_is_charged_as_a_share_of_the_loop_and_waited_for_a_window_at_most() -> None:
    quota = Quota({(("user", None),): {"request_percentage": 10.0}})
    charge = quota.charge()
    charge.worked(0.1, quota.now)
    assert quota.connection.muted == []
    charge.worked(0.05, quota.now)
    assert quota.connection.muted == [0.5]
    charge.worked(60.0, quota.now)
    assert quota.connection.muted == [0.5, 1.0]


def test_waits_that_no_timer_is_worth_add_up() -> None:
    quota = Quota(ETL)
    charge = quota.charge()
    charge.produced(100, quota.now)
    for _ in range(3):
        charge.produced(0.03, quota.now)  # type: ignore[arg-type]
    assert quota.connection.muted == []
    charge.produced(0.03, quota.now)  # type: ignore[arg-type]
    assert quota.connection.muted == [0.0012]


def test_a_shorter_wait_does_not_end_a_longer() -> None:
    quota = Quota({**ETL, (("user", "alice"),): {"request_percentage": 10.0}})
    quota.quotas.change(
        {
            (("client-id", "etl"), ("user", "alice")): {
                "producer_byte_rate": 100.0,
                "request_percentage": 10.0,
            }
        },
        SETTINGS,
    )
    charge = quota.charge()
    charge.produced(200, quota.now)
    charge.worked(0.12, quota.now)
    assert quota.connection.muted == [1.0]


def test_requests_of_the_cluster_are_charged_to_nobody() -> None:
    quota = Quota(ETL)
    charge = quota.charge()
    charge.waive()
    charge.produced(10_000, quota.now)
    charge.fetched(fetched(10_000), quota.now)
    assert quota.connection.muted == []


def test_the_wait_that_the_controller_asks_for_is_taken_over() -> None:
    quota = Quota(ETL)
    response = HeartbeatResponse(throttle_time_ms=1500)
    quota.charge().answer(response, quota.now)
    assert quota.connection.muted == [1.5]
    assert response.throttle_time_ms == 1500


def test_a_change_lets_everybody_go_on_and_keeps_what_is_owed() -> None:
    quota = Quota(ETL)
    quota.charge().produced(100_100, quota.now)
    assert quota.connection.is_muted
    higher: Quotas = {(("client-id", "etl"),): {"producer_byte_rate": 100_000.0}}
    quota.quotas.change(higher, SETTINGS)
    assert not quota.connection.is_muted
    quota.connection.muted.clear()
    quota.charge().produced(0, quota.now)
    assert quota.connection.muted == [1.0]
    quota.quotas.change({}, SETTINGS)
    assert not quota.quotas.active
    assert quota.quotas.limits_of("alice", "etl") is None


def test_an_image_that_changes_no_quota_unmutes_nobody() -> None:
    quota = Quota(ETL)
    quota.charge().produced(1000, quota.now)
    quota.quotas.change(ETL, SETTINGS)
    assert quota.connection.is_muted


def test_the_clients_that_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.broker.quotas._CLIENTS_MAX", 10)
    monkeypatch.setattr("headrace.broker.quotas._LIMITS_MAX", 15)
    quota = Quota({(("client-id", None),): {"producer_byte_rate": 1.0}})
    for number in range(100):
        quota.limits("alice", f"client-{number}")
    assert len(quota.quotas._clients) == 10
    assert len(quota.quotas._limits) == 15


@pytest.mark.parametrize(
    ("api", "request_", "expected"),
    [
        (Api.FETCH, FetchRequest(), False),
        (Api.FETCH, FetchRequest(replica_id=2), True),
        (Api.FETCH, FetchRequest(replica_state=ReplicaState(replica_id=2)), True),
        (Api.ADD_PARTITIONS_TO_TXN, AddPartitionsToTxnRequest(), False),
        (
            Api.ADD_PARTITIONS_TO_TXN,
            AddPartitionsToTxnRequest(transactions=[AddPartitionsToTxnTransaction()]),
            True,
        ),
        (Api.OFFSET_FOR_LEADER_EPOCH, OffsetForLeaderEpochRequest(replica_id=-2), False),
        (Api.OFFSET_FOR_LEADER_EPOCH, OffsetForLeaderEpochRequest(replica_id=1), True),
        (Api.METADATA, MetadataRequest(), False),
    ],
)
def test_requests_of_brokers_are_told_from_those_of_clients(
    api: Api, request_: Any, expected: bool
) -> None:
    assert is_of_the_cluster(api, request_) is expected


def test_changes_of_topics_above_the_quota_are_refused_or_waited_for() -> None:
    clock = FakeClock()
    limit = TokenBucket(2.0, burst_s=5, now=clock.monotonic(), first_s=5)
    strict = MutationCharge(limit, clock.monotonic, strict=True)
    strict.charge(10)
    strict.charge(4)
    assert strict.throttle_time_ms == 0
    with pytest.raises(KafkaError, match=r"try again in 2\.0 s") as caught:
        strict.charge(1)
    assert caught.value.code is ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert strict.throttle_time_ms == 2000
    lenient = MutationCharge(limit, clock.monotonic, strict=False)
    lenient.charge(2)
    assert lenient.throttle_time_ms == 3000
    unlimited = MutationCharge(None, clock.monotonic, strict=True)
    unlimited.charge(10**9)
    assert unlimited.throttle_time_ms == 0
