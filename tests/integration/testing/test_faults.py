"""Every fault of headrace.testing as real clients meet it."""

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from typing import Any, Protocol

import confluent_kafka
import pytest

import headrace
from headrace.testing import Broker, BrokerError
from headrace.testing.time_limits import scaled

# Long enough for a client that could deliver to have done so.
A_WHILE_S = 0.3
LONG_S = 60.0


class Client(Protocol):
    """Sends records; `flush` says how many are not delivered after so long."""

    def send(self, topic: str, value: bytes) -> None: ...
    def flush(self, timeout_s: float) -> int: ...
    def close(self) -> None: ...


class Librdkafka:
    """confluent-kafka's producer."""

    def __init__(self, bootstrap_servers: str) -> None:
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap_servers,
                "linger.ms": 0,
                "reconnect.backoff.ms": 10,
                "reconnect.backoff.max.ms": 50,
                "retry.backoff.ms": 10,
                "log_level": 0,
            }
        )

    def send(self, topic: str, value: bytes) -> None:
        self._producer.produce(topic, value)

    def flush(self, timeout_s: float) -> int:
        return int(self._producer.flush(timeout_s))

    def close(self) -> None:
        self._producer.flush(scaled(LONG_S))


class Headrace:
    """headrace's own producer."""

    def __init__(self, bootstrap_servers: str) -> None:
        self._producer = headrace.Producer(
            bootstrap_servers=bootstrap_servers, linger_ms=0, retry_backoff_ms=10
        )
        self._futures: list[Any] = []

    def send(self, topic: str, value: bytes) -> None:
        self._futures.append(self._producer.send(topic, value))

    def flush(self, timeout_s: float) -> int:
        with suppress(headrace.TimedOut):
            self._producer.flush(timeout_ms=int(timeout_s * 1000))
        return sum(not future.done() or future.exception() is not None for future in self._futures)

    def close(self) -> None:
        self._producer.close()


CLIENTS: list[Callable[[str], Client]] = [Librdkafka, Headrace]


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(proxied=True) as broker:
        yield broker


@pytest.fixture(params=CLIENTS)
def client(broker: Broker, request: pytest.FixtureRequest) -> Iterator[Client]:
    """A client that has delivered a record already, so that its connections are open."""
    broker.create_topic("orders")
    with closing(request.param(broker.bootstrap_servers)) as client:
        client.send("orders", b"first")
        assert client.flush(scaled(LONG_S)) == 0
        yield client


def timed_send(client: Client, value: bytes) -> float:
    begun = time.monotonic()
    client.send("orders", value)
    assert client.flush(scaled(LONG_S)) == 0
    return time.monotonic() - begun


def test_a_killed_broker_comes_back_to_its_clients(broker: Broker, client: Client) -> None:
    address, pid = broker.bootstrap_servers, broker.pid
    broker.kill()
    assert not broker.is_running
    client.send("orders", b"second")
    assert client.flush(A_WHILE_S) == 1
    broker.start()
    assert client.flush(scaled(LONG_S)) == 0
    assert broker.bootstrap_servers == address
    assert broker.pid != pid


@pytest.mark.parametrize("kind", CLIENTS)
def test_without_a_proxy_a_kill_is_the_same(kind: Callable[[str], Client]) -> None:
    with Broker() as broker, closing(kind(broker.bootstrap_servers)) as client:
        broker.create_topic("orders")
        assert timed_send(client, b"first") < scaled(LONG_S)
        broker.kill()
        client.send("orders", b"second")
        assert client.flush(A_WHILE_S) == 1
        broker.restart()
        assert client.flush(scaled(LONG_S)) == 0


def test_a_clean_restart_is_only_a_moment_to_clients(broker: Broker, client: Client) -> None:
    client.send("orders", b"second")
    broker.restart()
    client.send("orders", b"third")
    assert client.flush(scaled(LONG_S)) == 0


def test_a_paused_broker_answers_when_it_goes_on(broker: Broker, client: Client) -> None:
    with broker.paused():
        assert broker.is_running
        client.send("orders", b"second")
        assert client.flush(A_WHILE_S) == 1
    assert client.flush(scaled(LONG_S)) == 0


def test_a_paused_broker_can_be_stopped_or_killed(broker: Broker) -> None:
    broker.pause()
    broker.stop()
    assert not broker.is_running
    broker.start()
    with broker.paused():
        broker.kill()
    assert not broker.is_running
    with pytest.raises(BrokerError, match="not running"):
        broker.resume()


def test_answers_come_later_from_a_slow_broker(broker: Broker, client: Client) -> None:
    with broker.slowed(latency_ms=250):
        assert timed_send(client, b"second") >= 0.25
    broker.slow(latency_ms=600_000)
    client.send("orders", b"third")
    assert client.flush(A_WHILE_S) == 1
    # What is on its way is not held back any longer than the fault.
    broker.heal()
    assert client.flush(scaled(LONG_S)) == 0


def test_many_answers_are_late_together(broker: Broker, client: Client) -> None:
    broker.slow(latency_ms=100)
    begun = time.monotonic()
    for _ in range(100):
        client.send("orders", b"x")
    assert client.flush(scaled(LONG_S)) == 0
    # Latency delays a stream; it does not stand in line behind itself.
    assert 0.1 <= time.monotonic() - begun < scaled(100 * 0.1)


def test_a_narrow_way_takes_its_time(broker: Broker, client: Client) -> None:
    with broker.slowed(bytes_per_s=400_000):
        assert timed_send(client, bytes(200_000)) >= 0.45
    assert timed_send(client, bytes(200_000)) < scaled(LONG_S)


def test_a_way_becomes_wide_in_the_middle_of_a_record(broker: Broker, client: Client) -> None:
    broker.slow(bytes_per_s=10)
    client.send("orders", bytes(500_000))
    assert client.flush(A_WHILE_S) == 1
    broker.heal()
    assert client.flush(scaled(LONG_S)) == 0


def test_a_broker_that_is_cut_off_drops_and_refuses(broker: Broker, client: Client) -> None:
    with socket.create_connection((broker.host, broker.port)) as held:
        with broker.cut_off():
            held.settimeout(scaled(LONG_S))
            assert held.recv(1) == b""
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection((broker.host, broker.port))
            client.send("orders", b"second")
            assert client.flush(A_WHILE_S) == 1
            assert broker.is_running
            # The test itself still reaches it.
            broker.create_topic("payments")
    assert client.flush(scaled(LONG_S)) == 0


def test_faults_hold_through_a_restart(broker: Broker, client: Client) -> None:
    broker.cut()
    broker.cut()
    broker.restart()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((broker.host, broker.port))
    broker.heal()
    broker.heal()
    assert timed_send(client, b"second") < scaled(LONG_S)


@pytest.mark.parametrize("kind", CLIENTS)
def test_a_proxied_broker_can_be_in_process(kind: Callable[[str], Client]) -> None:
    with (
        Broker(in_process=True, proxied=True) as broker,
        closing(kind(broker.bootstrap_servers)) as client,
    ):
        broker.create_topic("orders")
        assert timed_send(client, b"first") < scaled(LONG_S)
        with broker.cut_off():
            client.send("orders", b"second")
            assert client.flush(A_WHILE_S) == 1
        assert client.flush(scaled(LONG_S)) == 0
