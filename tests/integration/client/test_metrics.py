"""What real clients count, and what Prometheus sees of it."""

import asyncio
import os
import signal
import time
from collections.abc import Callable

import pytest
from prometheus_client import CollectorRegistry

import headrace
from headrace.client.prometheus import Collector
from headrace.testing.time_limits import scaled
from tests.support import BrokerProcess

RECORDS = 300


def _send(producer: headrace.Producer, topic: str) -> None:
    for number in range(RECORDS):
        producer.send(topic, f'{{"number": {number}, "padding": "{"x" * 100}"}}')
    producer.flush()


def _sample(registry: CollectorRegistry, name: str, **labels: str) -> float:
    value = registry.get_sample_value(f"headrace_{name}", labels)
    assert value is not None, (name, labels)
    return value


def test_prometheus_sees_what_was_sent_and_read(shared_broker: BrokerProcess, topic: str) -> None:
    servers = shared_broker.address
    with (
        headrace.Producer(
            bootstrap_servers=servers, client_id="sender", compression_type="gzip"
        ) as producer,
        headrace.Consumer(
            topic,
            bootstrap_servers=servers,
            client_id="reader",
            group_id=f"{topic}-readers",
            auto_offset_reset="earliest",
            max_poll_records=100,
        ) as consumer,
    ):
        registry = CollectorRegistry()
        registry.register(Collector(producer, consumer))
        _send(producer, topic)
        first: list[headrace.ConsumerRecord] = []
        while not first:
            first = consumer.poll(timeout_ms=10_000)
        consumer.commit()

        assert _sample(registry, "producer_record_send_total", client_id="sender") == RECORDS
        assert _sample(registry, "producer_record_error_total", client_id="sender") == 0
        assert 0 < _sample(registry, "producer_compression_rate_avg", client_id="sender") < 0.5
        assert _sample(registry, "producer_request_latency_avg", client_id="sender") > 0
        assert _sample(registry, "producer_buffer_queued_bytes", client_id="sender") == 0
        assert _sample(registry, "consumer_records_consumed_total", client_id="reader") == len(
            first
        )
        assert _sample(registry, "consumer_fetch_total", client_id="reader") > 0
        # This test is not older than a day.
        longest = _sample(registry, "consumer_record_e2e_latency_max", client_id="reader")
        assert 0 < longest < 86_400_000
        assert _sample(registry, "consumer_commit_total", client_id="reader") >= 1
        assert _sample(registry, "consumer_rebalance_total", client_id="reader") >= 1
        assert _sample(
            registry, "consumer_records_lag", client_id="reader", topic=topic, partition="0"
        ) == RECORDS - len(first)
        assert _sample(registry, "consumer_records_lag_max", client_id="reader") == (
            RECORDS - len(first)
        )


def test_latency_is_measured_however_records_are_taken(
    shared_broker: BrokerProcess, topic: str
) -> None:
    servers, hour_ms = shared_broker.address, 3_600_000
    with headrace.Producer(bootstrap_servers=servers) as producer:
        sent_ms = int(time.time() * 1000) - hour_ms
        producer.send(topic, "late", timestamp_ms=sent_ms).result()

    def columns(consumer: headrace.Consumer) -> bool:
        return bool(consumer.poll_arrow(timeout_ms=10_000))

    def iteration(consumer: headrace.Consumer) -> bool:
        return bool(next(iter(consumer)))

    for take in (columns, iteration):
        with headrace.Consumer(
            topic, bootstrap_servers=servers, auto_offset_reset="earliest"
        ) as consumer:
            while not take(consumer):
                pass
            longest = consumer.metrics()["record-e2e-latency-max"]
        assert hour_ms <= longest < 2 * hour_ms


def test_asyncio_clients_are_measured_too(shared_broker: BrokerProcess, topic: str) -> None:
    async def scenario() -> tuple[dict[str, float], dict[str, float]]:
        servers = shared_broker.address
        async with headrace.aio.Producer(bootstrap_servers=servers) as producer:
            await (await producer.send(topic, "hello"))
            async with headrace.aio.Consumer(
                topic, bootstrap_servers=servers, auto_offset_reset="earliest"
            ) as consumer:
                records: list[headrace.ConsumerRecord] = []
                while not records:
                    records = await consumer.poll(timeout_ms=10_000)
                Collector(producer, consumer)
                return producer.metrics(), consumer.metrics()

    sent, read = asyncio.run(scenario())
    assert sent["record-send-total"] == 1
    assert read["records-consumed-total"] == 1
    assert read["records-lag-max"] == 0


def test_an_admin_client_counts_its_requests_and_those_without_an_answer(
    start_broker: Callable[..., BrokerProcess],
) -> None:
    broker = start_broker()
    registry = CollectorRegistry()
    with headrace.Admin(
        bootstrap_servers=broker.address, client_id="ops", request_timeout_ms=int(scaled(1) * 1000)
    ) as admin:
        registry.register(Collector(admin))
        assert _sample(registry, "admin_client_request_total", client_id="ops") == 0
        admin.create_topic("measured")
        with pytest.raises(headrace.KafkaError):
            admin.create_topic("measured")
        answered = _sample(registry, "admin_client_request_total", client_id="ops")
        assert answered >= 3, "metadata, and two requests to create, the refused one too"
        assert _sample(registry, "admin_client_request_latency_max", client_id="ops") > 0
        assert _sample(registry, "admin_client_request_error_total", client_id="ops") == 0
        assert _sample(registry, "admin_client_connection_count", client_id="ops") >= 1
        os.kill(broker.pid, signal.SIGSTOP)
        try:
            with pytest.raises(headrace.HeadraceError):
                admin.list_topics()
        finally:
            os.kill(broker.pid, signal.SIGCONT)
        assert _sample(registry, "admin_client_request_error_total", client_id="ops") >= 1
        assert _sample(registry, "admin_client_request_total", client_id="ops") == answered
    assert admin.metrics()["connection-count"] == 0
