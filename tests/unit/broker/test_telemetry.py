"""Client telemetry (KIP-714): subscriptions, ids, intervals, and which pushes are taken."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.broker.telemetry import (
    CLIENT_METRICS,
    ClientAttributes,
    ClientSubscription,
    ClientTelemetry,
    TelemetryPush,
    TelemetryRequest,
    parse_subscription,
)
from headrace.errors import ErrorCode, KafkaError
from headrace.metadata.image import ConfigKey
from headrace.types import uuid_text

CLIENT = bytes(range(16))
ALICE = ClientAttributes("alice", "apache-kafka-java", "4.3.1", "10.0.0.7", "40000")
MAX_BYTES = 100


class Pushes:
    """Keeps every push."""

    def __init__(self) -> None:
        self.kept: list[TelemetryPush] = []

    def receive(self, push: TelemetryPush) -> None:
        self.kept.append(push)


class Clients:
    """One client instance of a broker, on one connection, with a clock of its own."""

    def __init__(self, *subscriptions: Mapping[str, str]) -> None:
        self.pushes = Pushes()
        self.telemetry = ClientTelemetry(self.pushes)
        self.now_ms = 50
        self.connection = SimpleNamespace(closed=False)
        self.subscribe_to(*subscriptions)

    def subscribe_to(self, *subscriptions: Mapping[str, str]) -> None:
        names = [ConfigKey(CLIENT_METRICS, str(n)) for n in range(len(subscriptions))]
        self.telemetry.update_subscriptions(dict(zip(names, subscriptions, strict=True)))

    def asking(self) -> TelemetryRequest:
        return TelemetryRequest(ALICE, self.connection, self.now_ms)

    def get(self) -> ClientSubscription:
        return self.telemetry.subscribe(CLIENT, self.asking())

    def push(self, subscription_id: int, **changes: Any) -> ErrorCode:
        push = TelemetryPush(CLIENT, ALICE, 0, False, 0, b"metrics")._replace(**changes)
        try:
            self.telemetry.push(subscription_id, push, self.asking(), MAX_BYTES)
        except KafkaError as error:
            return error.code
        return ErrorCode.NONE

    def kept(self) -> tuple[TelemetryPush, ...]:
        return tuple(self.pushes.kept)


def code_of(work: Any) -> ErrorCode:
    with pytest.raises(KafkaError) as raised:
        work()
    return raised.value.code


def test_without_a_subscription_nothing_is_wanted_every_five_minutes() -> None:
    wanted = Clients().get()
    assert (wanted.metrics, wanted.interval_ms) == ((), 300_000)


def test_subscriptions_that_match_are_joined_with_the_shortest_interval() -> None:
    clients = Clients(
        {"metrics": "org.apache.kafka.producer.,x", "interval.ms": "60000"},
        {"metrics": "x,y", "match": "client_id=al.*, client_source_port=40000"},
        {"metrics": "others", "interval.ms": "100", "match": "client_software_version=3"},
    )
    wanted = clients.get()
    assert wanted.metrics == ("org.apache.kafka.producer.", "x", "y")
    assert wanted.interval_ms == 60_000


def test_all_metrics_stand_for_every_other() -> None:
    assert Clients({"metrics": "a"}, {"metrics": "*"}).get().metrics == ("*",)


def test_a_client_is_found_by_its_instance_id() -> None:
    named = {"metrics": "a", "match": f"client_instance_id={uuid_text(CLIENT)}"}
    assert Clients(named).get().metrics == ("a",)
    assert Clients({**named, "match": "client_instance_id=other"}).get().metrics == ()


@pytest.mark.parametrize(
    "settings",
    [
        {"interval.ms": "99"},
        {"interval.ms": "soon"},
        {"match": "client_id"},
        {"match": "colour=blue"},
        {"match": "client_id=("},
    ],
)
def test_a_subscription_that_cannot_be_read_is_ignored(settings: dict[str, str]) -> None:
    with pytest.raises(ValueError):
        parse_subscription(settings)
    assert Clients({"metrics": "a", **settings}, {"metrics": "b"}).get().metrics == ("b",)


def test_the_subscription_is_told_once_per_interval() -> None:
    clients = Clients({"metrics": "a", "interval.ms": "1000"})
    first = clients.get()
    clients.now_ms += 999
    assert code_of(clients.get) == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    clients.now_ms += 1
    assert clients.get() == first


def test_a_push_right_after_the_subscription_is_taken_the_next_waits_for_the_interval() -> None:
    clients = Clients({"metrics": "a", "interval.ms": "1000"})
    wanted = clients.get()
    clients.now_ms += 1
    assert clients.push(wanted.subscription_id) == ErrorCode.NONE
    clients.now_ms += 999
    assert clients.push(wanted.subscription_id) == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    clients.now_ms += 1
    assert clients.push(wanted.subscription_id, metrics=b"later") == ErrorCode.NONE
    assert [(push.metrics, push.interval_ms) for push in clients.kept()] == [
        (b"metrics", 1000),
        (b"later", 1000),
    ]


def test_a_client_that_ends_may_push_early_and_never_again() -> None:
    clients = Clients({"metrics": "a"})
    wanted = clients.get()
    clients.push(wanted.subscription_id)
    assert clients.push(wanted.subscription_id, terminating=True) == ErrorCode.NONE
    clients.now_ms += 300_000
    assert clients.push(wanted.subscription_id) == ErrorCode.INVALID_REQUEST


def test_a_changed_subscription_has_another_id_and_is_told_at_once() -> None:
    clients = Clients({"metrics": "a"})
    before = clients.get()
    clients.subscribe_to({"metrics": "a,b"})
    assert clients.push(before.subscription_id) == ErrorCode.UNKNOWN_SUBSCRIPTION_ID
    after = clients.get()
    assert after.subscription_id != before.subscription_id
    assert after.metrics == ("a", "b")
    # The push that was refused counts: the next is due an interval later, as in Kafka.
    clients.now_ms += after.interval_ms
    assert clients.push(after.subscription_id) == ErrorCode.NONE


def test_configs_of_other_resources_change_nothing() -> None:
    clients = Clients({"metrics": "a"})
    wanted = clients.get()
    name = ConfigKey(CLIENT_METRICS, "0")
    clients.telemetry.update_subscriptions({name: {"metrics": "a"}, ConfigKey(2, "t"): {"x": "y"}})
    assert clients.push(wanted.subscription_id) == ErrorCode.NONE


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"compression": 5}, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        ({"metrics": bytes(MAX_BYTES + 1)}, ErrorCode.TELEMETRY_TOO_LARGE),
        ({"instance_id": bytes(16)}, ErrorCode.INVALID_REQUEST),
        ({"instance_id": bytes(15) + b"\x01"}, ErrorCode.INVALID_REQUEST),
    ],
)
def test_a_push_that_breaks_a_rule_is_refused(changes: dict[str, Any], code: ErrorCode) -> None:
    clients = Clients({"metrics": "a"})
    assert clients.push(clients.get().subscription_id, **changes) == code
    assert clients.kept() == ()


def test_after_an_unknown_compression_the_subscription_may_be_asked_for_again() -> None:
    clients = Clients({"metrics": "a"})
    clients.push(clients.get().subscription_id, compression=9)
    assert clients.get().metrics == ("a",)


def test_metrics_that_the_receiver_cannot_read_are_an_invalid_record() -> None:
    class Picky:
        def receive(self, push: TelemetryPush) -> None:
            raise ValueError("no protobuf")

    clients = Clients({"metrics": "a"})
    clients.telemetry.receiver = Picky()
    assert clients.push(clients.get().subscription_id) == ErrorCode.INVALID_RECORD


def test_a_client_begins_anew_on_a_new_connection() -> None:
    clients = Clients({"metrics": "a"})
    clients.get()
    clients.connection.closed = True
    clients.connection = SimpleNamespace(closed=False)
    assert clients.get().metrics == ("a",)


def test_a_silent_client_is_forgotten_after_three_intervals() -> None:
    clients = Clients({"metrics": "a", "interval.ms": "30000"})
    wanted = clients.get()
    clients.push(wanted.subscription_id, terminating=True)
    clients.now_ms += 89_999
    assert clients.push(wanted.subscription_id) == ErrorCode.INVALID_REQUEST
    clients.push(wanted.subscription_id, terminating=True)
    clients.now_ms += 90_000
    assert clients.push(wanted.subscription_id) == ErrorCode.NONE
