"""Metrics: what they count, and one of each name and labels."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.metrics.registry import SECONDS, Counter, Family, Histogram, Kind, Registry

REQUESTS = Family("requests_total", Kind.COUNTER, "All.", ("api",))
CONNECTIONS = Family("connections", Kind.GAUGE, "Open ones.")
DURATION = Family("seconds", Kind.HISTOGRAM, "Time.", ("api",), SECONDS)
BY_TWO = Family("two_total", Kind.COUNTER, "By two labels.", ("api", "listener"))

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
    gauge = Registry().gauge(CONNECTIONS, lambda: len(connections))
    connections += ["a", "b"]
    assert gauge.value == 2


def test_a_family_with_labels_has_one_metric() -> None:
    registry = Registry()
    counter = registry.counter(REQUESTS, PRODUCE)
    assert registry.counter(REQUESTS, PRODUCE) is counter
    assert registry.counter(REQUESTS, FETCH) is not counter
    histogram = registry.histogram(DURATION, PRODUCE)
    assert registry.histogram(DURATION, PRODUCE) is histogram
    assert histogram.bounds == SECONDS


def test_labels_are_the_same_in_any_order() -> None:
    registry = Registry()
    first = registry.counter(BY_TWO, {"api": "Produce", "listener": "A"})
    assert registry.counter(BY_TWO, {"listener": "A", "api": "Produce"}) is first


def test_metrics_of_one_name_are_alike() -> None:
    registry = Registry()
    registry.counter(REQUESTS, PRODUCE)
    for wrong in (
        lambda: registry.counter(REQUESTS, {"listener": "A"}),
        lambda: registry.counter(REQUESTS),
        lambda: registry.counter(REQUESTS._replace(help="Some."), PRODUCE),
        lambda: registry.histogram(REQUESTS, PRODUCE),
    ):
        with pytest.raises(AssertionError):
            wrong()


def test_all_metrics_are_collected_by_family() -> None:
    registry = Registry()
    registry.counter(REQUESTS, PRODUCE).add(3)
    registry.gauge(CONNECTIONS, lambda: 7)
    registry.counter(REQUESTS, FETCH)
    requests, connections = registry.collect()
    assert requests.family is REQUESTS
    assert list(requests.metrics) == [("Produce",), ("Fetch",)]
    assert [metric.value for metric in connections.metrics.values()] == [7]  # type: ignore[union-attr]


def test_samples_are_read_when_metrics_are_collected() -> None:
    registry = Registry()
    counts = {"Produce": 1}
    registry.samples(REQUESTS, lambda: [((api,), n) for api, n in counts.items()])
    counts["Fetch"] = 2
    [requests] = registry.collect()
    [read] = requests.samplers
    assert list(read()) == [(("Produce",), 1), (("Fetch",), 2)]
