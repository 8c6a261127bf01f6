"""Limits on connections: their number by address, listener and broker, and their rates."""

import pytest

from headrace.net.connection_limits import (
    Admission,
    ConnectionCounts,
    ConnectionLimits,
    ListenerLimits,
    Refusal,
)

NONE = ConnectionLimits(1000, 1000, -1)
OPEN = ListenerLimits()


def admit(
    counts: ConnectionCounts,
    *,
    host: str = "10.0.0.1",
    listener: str = "A",
    limits: ConnectionLimits = NONE,
    own: ListenerLimits = OPEN,
    host_rate: float | None = None,
    now: float = 0.0,
) -> Admission:
    return counts.admit(host, listener, limits, own, host_rate, now)


def test_an_address_has_its_limit_or_an_override() -> None:
    counts = ConnectionCounts()
    limits = NONE._replace(connections_per_ip_max=1, per_ip_overrides={"10.0.0.2": 2})
    assert admit(counts, limits=limits) == Admission()
    assert admit(counts, limits=limits).refusal is Refusal.ADDRESS_COUNT
    for expected in (None, None, Refusal.ADDRESS_COUNT):
        assert admit(counts, host="10.0.0.2", limits=limits).refusal is expected
    counts.forget("10.0.0.1", "A")
    assert admit(counts, limits=limits) == Admission()


def test_a_listener_has_a_limit_of_its_own() -> None:
    counts = ConnectionCounts()
    own = ListenerLimits(connections_max=1)
    assert admit(counts, own=own) == Admission()
    assert admit(counts, own=own).refusal is Refusal.LISTENER_COUNT
    assert admit(counts, listener="B", own=own) == Admission()


def test_a_full_broker_refuses_clients_and_makes_room_for_brokers() -> None:
    counts = ConnectionCounts()
    limits = NONE._replace(connections_max=1)
    assert admit(counts, limits=limits) == Admission()
    assert admit(counts, limits=limits).refusal is Refusal.BROKER_COUNT
    protected = ListenerLimits(protected=True)
    assert admit(counts, listener="BROKERS", limits=limits, own=protected).needs_room
    assert counts.total == 2


def test_an_address_above_its_rate_is_closed_after_a_while() -> None:
    counts = ConnectionCounts()
    assert [admit(counts, host_rate=2.0).refusal for _ in range(3)] == [None] * 3
    refused = admit(counts, host_rate=2.0)
    assert refused.refusal is Refusal.ADDRESS_RATE
    assert refused.wait_s == pytest.approx(0.5)
    assert admit(counts, host="10.0.0.2", host_rate=2.0).refusal is None
    assert admit(counts, host_rate=2.0, now=0.5).refusal is None
    # Those that were refused do not count.
    assert counts.total == 5


def test_connections_above_the_rate_of_a_broker_wait_in_turn() -> None:
    counts = ConnectionCounts()
    limits = NONE._replace(creation_rate=10)
    waits = [admit(counts, limits=limits).wait_s for _ in range(14)]
    assert waits[:11] == [0.0] * 11
    assert waits[11:] == pytest.approx([0.1, 0.2, 0.3])
    assert admit(counts, limits=limits, now=10.0).wait_s == 0.0


def test_connections_that_would_wait_too_long_are_closed() -> None:
    counts = ConnectionCounts()
    own = ListenerLimits(creation_rate=1)
    admissions = [admit(counts, own=own) for _ in range(10)]
    assert [admission.refusal for admission in admissions[-2:]] == [Refusal.RATE] * 2
    assert max(admission.wait_s for admission in admissions) <= 5.0
    # The broker's rate is no concern of a protected listener's.
    limits = NONE._replace(creation_rate=1)
    protected = ListenerLimits(protected=True)
    assert {admit(counts, limits=limits, own=protected).wait_s for _ in range(10)} == {0.0}


def test_a_rate_that_is_changed_or_lifted_applies_at_once() -> None:
    counts = ConnectionCounts()
    for _ in range(5):
        admit(counts, own=ListenerLimits(creation_rate=1))
    slow = admit(counts, own=ListenerLimits(creation_rate=1)).wait_s
    assert admit(counts, own=ListenerLimits(creation_rate=1000)).wait_s < slow / 100
    assert admit(counts).wait_s == 0.0


def test_addresses_are_forgotten_past_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.net.connection_limits._ADDRESSES_MAX", 2)
    counts = ConnectionCounts()
    for number in range(5):
        admit(counts, host=f"10.0.0.{number}", host_rate=1.0)
    assert len(counts._host_rates) == 2
