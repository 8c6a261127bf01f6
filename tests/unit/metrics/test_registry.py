"""Metrics: what they count, and one of each name and labels."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.metrics.registry import SECONDS, Counter, Histogram, Registry

PRODUCE, FETCH = {"api": "Produce"}, {"api": "Fetch"}


def test_a_counter_grows() -> None:
    counter = Counter()
    counter.add()
    counter.add(41)
    assert counter.value == 42


def test_a_value_is_counted_under_the_first_bound_that_is_not_below_it() -> None:
    histogram = Histogram((1, 10))
    for value in (0, 1, 1.5, 10, 10.5, 99):
        histogram.observe(value)
    assert histogram.counts == [2, 2, 2]
    assert (histogram.count, histogram.sum) == (6, 122)


@given(st.lists(st.floats(0, 100)))
def test_no_value_is_lost(values: list[float]) -> None:
    histogram = Histogram(SECONDS)
    for value in values:
        histogram.observe(value)
    assert histogram.count == len(values)
    assert histogram.sum == pytest.approx(sum(values))
    for index, bound in enumerate(SECONDS):
        assert sum(histogram.counts[: index + 1]) == sum(value <= bound for value in values)


def test_a_gauge_is_read_when_it_is_asked_for() -> None:
    connections: list[str] = []
    gauge = Registry().gauge("connections", "Open ones.", lambda: len(connections))
    connections += ["a", "b"]
    assert gauge.value == 2


def test_a_name_with_labels_has_one_metric() -> None:
    registry = Registry()
    counter = registry.counter("requests", "All.", PRODUCE)
    assert registry.counter("requests", "All.", PRODUCE) is counter
    assert registry.counter("requests", "All.", FETCH) is not counter
    histogram = registry.histogram("seconds", "Time.", labels=PRODUCE)
    assert registry.histogram("seconds", "Time.", labels=PRODUCE) is histogram


def test_labels_are_the_same_in_any_order() -> None:
    registry = Registry()
    first = registry.counter("requests", "All.", {"api": "Produce", "listener": "A"})
    assert registry.counter("requests", "All.", {"listener": "A", "api": "Produce"}) is first


def test_metrics_of_one_name_are_alike() -> None:
    registry = Registry()
    registry.counter("requests", "All.", PRODUCE)
    for wrong in (
        lambda: registry.counter("requests", "All.", {"listener": "A"}),
        lambda: registry.counter("requests", "Some.", PRODUCE),
        lambda: registry.histogram("requests", "All.", labels=PRODUCE),
    ):
        with pytest.raises(AssertionError):
            wrong()


def test_all_metrics_are_collected_by_name() -> None:
    registry = Registry()
    registry.counter("requests", "All.", PRODUCE).add(3)
    registry.gauge("connections", "Open ones.", lambda: 7)
    registry.counter("requests", "All.", FETCH)
    requests, connections = registry.collect()
    assert (requests.name, requests.help) == ("requests", "All.")
    assert list(requests.metrics) == [(("api", "Produce"),), (("api", "Fetch"),)]
    assert [metric.value for metric in connections.metrics.values()] == [7]  # type: ignore[union-attr]
