"""Every fault of headrace.testing as real clients meet it."""

import socket
import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from headrace.testing import Broker, BrokerError

# Long enough for a client that could deliver to have done so.
A_WHILE_S = 0.3
LONG_S = 30.0


class Librdkafka:
    """Sends records and says how many are not delivered yet."""

    def __init__(self, bootstrap_servers: str) -> None:
        self._producer = Producer(
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


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(proxied=True) as broker:
        yield broker


@pytest.fixture
def client(broker: Broker) -> Librdkafka:
    """A client that has delivered a record already, so that its connections are open."""
    client = Librdkafka(broker.bootstrap_servers)
    broker.create_topic("orders")
    client.send("orders", b"first")
    assert client.flush(LONG_S) == 0
    return client


def timed_send(client: Librdkafka, value: bytes) -> float:
    begun = time.monotonic()
    client.send("orders", value)
    assert client.flush(LONG_S) == 0
    return time.monotonic() - begun


def test_a_killed_broker_comes_back_to_its_clients(broker: Broker, client: Librdkafka) -> None:
    address, pid = broker.bootstrap_servers, broker.pid
    broker.kill()
    assert not broker.is_running
    client.send("orders", b"second")
    assert client.flush(A_WHILE_S) == 1
    broker.start()
    assert client.flush(LONG_S) == 0
    assert broker.bootstrap_servers == address
    assert broker.pid != pid


def test_without_a_proxy_a_kill_is_the_same() -> None:
    with Broker() as broker:
        client = Librdkafka(broker.bootstrap_servers)
        broker.create_topic("orders")
        assert timed_send(client, b"first") < LONG_S
        broker.kill()
        client.send("orders", b"second")
        assert client.flush(A_WHILE_S) == 1
        broker.restart()
        assert client.flush(LONG_S) == 0
        broker.kill()


def test_a_clean_restart_is_only_a_moment_to_clients(broker: Broker, client: Librdkafka) -> None:
    client.send("orders", b"second")
    broker.restart()
    client.send("orders", b"third")
    assert client.flush(LONG_S) == 0


def test_a_paused_broker_answers_when_it_goes_on(broker: Broker, client: Librdkafka) -> None:
    with broker.paused():
        assert broker.is_running
        client.send("orders", b"second")
        assert client.flush(A_WHILE_S) == 1
    assert client.flush(LONG_S) == 0


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


def test_answers_come_later_from_a_slow_broker(broker: Broker, client: Librdkafka) -> None:
    with broker.slowed(latency_ms=250):
        assert timed_send(client, b"second") >= 0.25
    broker.slow(latency_ms=600_000)
    client.send("orders", b"third")
    assert client.flush(A_WHILE_S) == 1
    # What is on its way is not held back any longer than the fault.
    broker.heal()
    assert client.flush(LONG_S) == 0


def test_many_answers_are_late_together(broker: Broker, client: Librdkafka) -> None:
    broker.slow(latency_ms=100)
    begun = time.monotonic()
    for _ in range(50):
        client.send("orders", b"x")
    assert client.flush(LONG_S) == 0
    # Latency delays a stream; it does not stand in line behind itself.
    assert 0.1 <= time.monotonic() - begun < 5.0


def test_a_narrow_way_takes_its_time(broker: Broker, client: Librdkafka) -> None:
    with broker.slowed(bytes_per_s=400_000):
        assert timed_send(client, bytes(200_000)) >= 0.45
    assert timed_send(client, bytes(200_000)) < LONG_S


def test_a_way_becomes_wide_in_the_middle_of_a_record(broker: Broker, client: Librdkafka) -> None:
    broker.slow(bytes_per_s=10)
    client.send("orders", bytes(500_000))
    assert client.flush(A_WHILE_S) == 1
    broker.heal()
    assert client.flush(LONG_S) == 0


def test_a_broker_that_is_cut_off_drops_and_refuses(broker: Broker, client: Librdkafka) -> None:
    with socket.create_connection((broker.host, broker.port)) as held:
        with broker.cut_off():
            held.settimeout(LONG_S)
            assert held.recv(1) == b""
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection((broker.host, broker.port))
            client.send("orders", b"second")
            assert client.flush(A_WHILE_S) == 1
            assert broker.is_running
            # The test itself still reaches it.
            broker.create_topic("payments")
    assert client.flush(LONG_S) == 0


def test_faults_hold_through_a_restart(broker: Broker, client: Librdkafka) -> None:
    broker.cut()
    broker.cut()
    broker.restart()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((broker.host, broker.port))
    broker.heal()
    broker.heal()
    assert timed_send(client, b"second") < LONG_S


def test_a_proxied_broker_can_be_in_process() -> None:
    with Broker(in_process=True, proxied=True) as broker:
        client = Librdkafka(broker.bootstrap_servers)
        broker.create_topic("orders")
        assert timed_send(client, b"first") < LONG_S
        with broker.cut_off():
            client.send("orders", b"second")
            assert client.flush(A_WHILE_S) == 1
        assert client.flush(LONG_S) == 0
