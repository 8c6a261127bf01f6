"""Metrics: rates over a window that slides, averages, maxima, totals, and what Prometheus gets."""

import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest

from headrace.client.metrics import (
    ADMIN_METRICS,
    CONSUMER_METRICS,
    PRODUCER_METRICS,
    WINDOW_S,
    AdminClientMetrics,
    ConsumerMetrics,
    ProducerMetrics,
    Sensor,
)
from headrace.client.prometheus import Collector
from headrace.errors import ConfigError
from headrace.types import TopicPartition

ORDERS_0, ORDERS_1 = TopicPartition("orders", 0), TopicPartition("orders", 1)


class FakeClock:
    """Time that passes when it is told to."""

    def __init__(self, start_s: float = 1000.0) -> None:
        self.now_s = start_s

    def now_ms(self) -> int:
        return int(self.now_s * 1000)

    def monotonic(self) -> float:
        return self.now_s


def test_rate_of_a_young_client_is_over_its_life() -> None:
    clock = FakeClock()
    sensor = Sensor(clock)
    clock.now_s += 4
    sensor.add(100)
    assert sensor.rate() == 25
    assert sensor.occurrence_rate() == 0.25


def test_rate_in_the_first_second_is_not_blown_up() -> None:
    sensor = Sensor(FakeClock())
    sensor.add(10)
    assert sensor.rate() == 10


def test_numbers_leave_the_window_and_stay_in_the_total() -> None:
    clock = FakeClock()
    sensor = Sensor(clock)
    sensor.add(60)
    clock.now_s += WINDOW_S - 1
    sensor.add(30)
    assert (sensor.recent_sum(), sensor.maximum(), sensor.average()) == (90, 60, 45)
    clock.now_s += 1
    assert (sensor.recent_sum(), sensor.maximum(), sensor.average()) == (30, 30, 30)
    clock.now_s += 10 * WINDOW_S
    assert (sensor.recent_sum(), sensor.maximum(), sensor.average()) == (0, 0, 0)
    assert (sensor.rate(), sensor.total, sensor.count) == (0, 90, 2)


@given(
    steps=st.lists(st.tuples(st.floats(0, 40), st.integers(0, 1000)), min_size=1, max_size=60),
    start_s=st.floats(0, 1e6),
)
def test_window_holds_what_was_reported_in_its_seconds(
    steps: list[tuple[float, int]], start_s: float
) -> None:
    clock = FakeClock(start_s)
    sensor = Sensor(clock)
    reported: list[tuple[int, int]] = []
    for pause_s, value in steps:
        clock.now_s += pause_s
        sensor.add(value)
        reported.append((int(clock.now_s), value))
        first_second = int(clock.now_s) - WINDOW_S + 1
        recent = [value for second, value in reported if second >= first_second]
        assert sensor.recent_count() == len(recent)
        assert sensor.recent_sum() == sum(recent)
        assert sensor.maximum() == max(recent)


def test_producer_metrics_add_up() -> None:
    clock = FakeClock()
    metrics = ProducerMetrics(clock)
    metrics.batch_done(records=100, batch_bytes=1000, raw_bytes=4000)
    metrics.batch_done(records=50, batch_bytes=3000, raw_bytes=4000)
    metrics.request_done(0.010)
    metrics.request_done(0.030)
    metrics.errors(5)
    metrics.retried(20)
    metrics.queued(123)
    clock.now_s += 10
    seen = metrics.snapshot()
    assert seen["record-send-rate"] == 15
    assert seen["record-send-total"] == 150
    assert seen["record-error-rate"] == 0.5
    assert seen["record-error-total"] == 5
    assert seen["record-retry-rate"] == 2
    assert seen["record-retry-total"] == 20
    assert seen["outgoing-byte-rate"] == 400
    assert seen["outgoing-byte-total"] == 4000
    assert seen["batch-size-avg"] == 2000
    assert seen["batch-size-max"] == 3000
    assert seen["records-per-batch-avg"] == 75
    assert seen["compression-rate-avg"] == 0.5
    assert seen["request-rate"] == 0.2
    assert seen["request-total"] == 2
    assert seen["request-latency-avg"] == pytest.approx(20)
    assert seen["request-latency-max"] == pytest.approx(30)
    assert seen["buffer-queued-bytes"] == 123


def test_consumer_metrics_add_up() -> None:
    clock = FakeClock()
    metrics = ConsumerMetrics(clock)
    metrics.fetch_done(0.5, 1000, 10)
    metrics.fetch_done(0.1, 3000, 30)
    metrics.consumed(40)
    metrics.lag(ORDERS_0, 7)
    metrics.lag(ORDERS_1, 3)
    metrics.commit_done(0.002)
    metrics.heartbeat_done(0.004)
    metrics.rebalance_done(2.0)
    clock.now_s += 20
    seen = metrics.snapshot()
    assert seen["fetch-rate"] == 0.1
    assert seen["fetch-total"] == 2
    assert seen["fetch-latency-avg"] == pytest.approx(300)
    assert seen["fetch-latency-max"] == pytest.approx(500)
    assert seen["fetch-size-avg"] == 2000
    assert seen["fetch-size-max"] == 3000
    assert seen["records-per-request-avg"] == 20
    assert seen["bytes-consumed-rate"] == 200
    assert seen["bytes-consumed-total"] == 4000
    assert seen["records-consumed-rate"] == 2
    assert seen["records-consumed-total"] == 40
    assert (seen["records-lag-max"], seen["records-lag-sum"]) == (7, 10)
    assert (seen["commit-rate"], seen["commit-total"]) == (0.05, 1)
    assert seen["commit-latency-avg"] == seen["commit-latency-max"] == pytest.approx(2)
    assert (seen["heartbeat-rate"], seen["heartbeat-total"]) == (0.05, 1)
    assert seen["heartbeat-response-time-max"] == pytest.approx(4)
    assert seen["last-heartbeat-seconds-ago"] == seen["last-rebalance-seconds-ago"] == 20
    assert seen["rebalance-latency-avg"] == seen["rebalance-latency-max"] == 2000
    metrics.forget(ORDERS_0)
    metrics.forget(ORDERS_0)
    assert metrics.lags() == {ORDERS_1: 3}
    assert metrics.snapshot()["records-lag-max"] == 3


def test_rebalances_are_counted_over_an_hour() -> None:
    clock = FakeClock()
    metrics = ConsumerMetrics(clock)
    metrics.rebalance_done(1.0)
    clock.now_s += 1800
    metrics.rebalance_done(1.0)
    assert metrics.snapshot()["rebalance-rate-per-hour"] == 2
    clock.now_s += 2000
    assert metrics.snapshot()["rebalance-rate-per-hour"] == 1
    assert metrics.snapshot()["rebalance-total"] == 2


def test_metrics_without_events_are_zero() -> None:
    ages = {"last-heartbeat-seconds-ago", "last-rebalance-seconds-ago"}
    assert set(ProducerMetrics(FakeClock()).snapshot().values()) == {0}
    seen = ConsumerMetrics(FakeClock()).snapshot()
    assert {value for name, value in seen.items() if name not in ages} == {0}
    assert {seen[name] for name in ages} == {-1}


@pytest.mark.parametrize(
    ("metrics", "documented"),
    [(ProducerMetrics(), PRODUCER_METRICS), (ConsumerMetrics(), CONSUMER_METRICS)],
)
def test_every_metric_is_documented(metrics: Any, documented: dict[str, str]) -> None:
    assert list(metrics.snapshot()) == list(documented)
    assert all(text.endswith(".") for text in documented.values())


class FakeProducer:
    """What a collector sees of a producer."""

    def __init__(self, client_id: str) -> None:
        self.client_id = client_id
        self.counted = ProducerMetrics(FakeClock())

    def metrics(self) -> dict[str, float]:
        return self.counted.snapshot()


class FakeConsumer:
    """What a collector sees of a consumer."""

    def __init__(self, client_id: str) -> None:
        self.client_id = client_id
        self.counted = ConsumerMetrics(FakeClock())

    def metrics(self) -> dict[str, float]:
        return self.counted.snapshot()

    def lag(self) -> dict[TopicPartition, int]:
        return self.counted.lags()


class FakeAdmin:
    """What a collector sees of an admin client."""

    def __init__(self, client_id: str) -> None:
        self.client_id = client_id
        self.counted = AdminClientMetrics(FakeClock())

    def metrics(self) -> dict[str, float]:
        return self.counted.snapshot(3)

    def list_topics(self) -> object:
        raise AssertionError("a scrape asks no broker")


def test_end_to_end_latency_is_from_the_timestamp_to_the_delivery() -> None:
    clock = FakeClock()
    metrics = ConsumerMetrics(clock)
    metrics.delivered(clock.now_ms() - 200)
    metrics.delivered(clock.now_ms() - 400)
    metrics.delivered(-1)
    found = metrics.snapshot()
    assert (found["record-e2e-latency-avg"], found["record-e2e-latency-max"]) == (300, 400)
    metrics = ConsumerMetrics(clock)
    metrics.delivered(clock.now_ms() + 10_000)
    assert metrics.snapshot()["record-e2e-latency-max"] == 0, "a clock that is ahead"


def test_requests_of_an_admin_client_are_counted() -> None:
    clock = FakeClock()
    metrics = AdminClientMetrics(clock)
    assert metrics.snapshot(0) == dict.fromkeys(ADMIN_METRICS, 0.0)
    metrics.connection_opened()
    metrics.request_done(0.2)
    metrics.request_done(0.4)
    metrics.request_failed()
    found = metrics.snapshot(1)
    assert (found["request-total"], found["request-rate"], found["request-error-total"]) == (
        2,
        2,
        1,
    )
    assert found["request-latency-avg"] == pytest.approx(300)
    assert (found["connection-count"], found["connection-creation-total"]) == (1, 1)


def scraped(collector: Collector) -> list[str]:
    registry = CollectorRegistry()
    registry.register(collector)
    return generate_latest(registry).decode().splitlines()


def test_prometheus_sees_every_client_by_its_id() -> None:
    producer = FakeProducer("web")
    producer.counted.batch_done(3, 100, 100)
    consumer = FakeConsumer("billing")
    consumer.counted.lag(ORDERS_1, 42)
    lines = scraped(Collector(producer, consumer, FakeAdmin("web")))
    assert 'headrace_admin_client_connection_count{client_id="web"} 3.0' in lines
    assert "# TYPE headrace_admin_client_request_total counter" in lines
    assert 'headrace_producer_record_send_total{client_id="web"} 3.0' in lines
    assert 'headrace_producer_batch_size_avg{client_id="web"} 100.0' in lines
    assert "# TYPE headrace_producer_record_send_total counter" in lines
    assert "# TYPE headrace_producer_batch_size_avg gauge" in lines
    assert 'headrace_consumer_records_lag_max{client_id="billing"} 42.0' in lines
    lag = 'headrace_consumer_records_lag{client_id="billing",partition="1",topic="orders"} 42.0'
    assert lag in lines


def test_collector_lets_clients_come_and_go() -> None:
    first, second = FakeProducer("one"), FakeProducer("two")
    collector = Collector(first)
    collector.add(second)
    collector.remove(first)
    lines = scraped(collector)
    assert not any('client_id="one"' in line for line in lines)
    assert any('client_id="two"' in line for line in lines)


def test_collector_refuses_two_clients_of_one_name() -> None:
    first, second = FakeProducer("web"), FakeProducer("web")
    collector = Collector(first, first, FakeConsumer("web"))
    with pytest.raises(ConfigError, match="two producers have the client_id 'web'"):
        collector.add(second)
    collector.remove(second)
    collector.remove(first)
    collector.add(second)


def test_collector_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client.core", None)
    with pytest.raises(ConfigError, match=r"pip install 'headrace\[metrics\]'"):
        Collector()
