"""The text formats of metrics, read again by the parsers of Prometheus' own client."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics import parser as open_metrics_parser
from prometheus_client.parser import text_string_to_metric_families

from headrace.metrics import catalog
from headrace.metrics.exposition import ExpositionFormat, accepted_format, exposition, number
from headrace.metrics.registry import Family, Kind, Registry

REQUESTS = Family("requests_total", Kind.COUNTER, 'Those with "quotes" and \\.', ("api", "peer"))
CONNECTIONS = Family("connections", Kind.GAUGE, "Open ones.", ("listener",))
DURATION = Family("duration_seconds", Kind.HISTOGRAM, "Time.", ("api",), (0.1, 1.0))


def parsed(registry: Registry, text_format: ExpositionFormat) -> dict[str, Any]:
    """The values of all samples, by their name and the values of their labels."""
    page = "".join(exposition(registry, text_format))
    parse = (
        text_string_to_metric_families
        if text_format is ExpositionFormat.PROMETHEUS
        else open_metrics_parser.text_string_to_metric_families
    )
    return {
        " ".join((sample.name, *sample.labels.values())): sample.value
        for family in parse(page)
        for sample in family.samples
    }


@pytest.mark.parametrize("text_format", ExpositionFormat)
def test_each_kind_is_read_back(text_format: ExpositionFormat) -> None:
    registry = Registry()
    registry.counter(REQUESTS, {"api": "Produce", "peer": "a"}).add(3)
    registry.samples(CONNECTIONS, lambda: [(("PLAIN",), 2), (("TLS",), 0.5)])
    for value in (0.05, 0.5, 5.0):
        registry.histogram(DURATION, {"api": "Fetch"}).observe(value)
    assert parsed(registry, text_format) == {
        "requests_total Produce a": 3,
        "connections PLAIN": 2,
        "connections TLS": 0.5,
        "duration_seconds_bucket Fetch 0.1": 1,
        "duration_seconds_bucket Fetch 1.0": 2,
        "duration_seconds_bucket Fetch +Inf": 3,
        "duration_seconds_count Fetch": 3,
        "duration_seconds_sum Fetch": pytest.approx(5.55),
    }


@given(st.text(), st.sampled_from(ExpositionFormat))
def test_any_text_can_be_the_value_of_a_label(text: str, text_format: ExpositionFormat) -> None:
    text = text.encode("utf-8", "ignore").decode().replace("\r", "")
    registry = Registry()
    registry.counter(REQUESTS, {"api": "Produce", "peer": text}).add(3)
    assert parsed(registry, text_format) == {f"requests_total Produce {text}": 3}


def test_open_metrics_ends_with_its_mark_and_names_counters_without_the_suffix() -> None:
    registry = Registry()
    registry.counter(REQUESTS, {"api": "Produce", "peer": "a"})
    page = "".join(exposition(registry, ExpositionFormat.OPEN_METRICS))
    assert page.startswith("# HELP requests Those")
    assert page.endswith("# EOF\n")


@pytest.mark.parametrize(
    ("value", "text"),
    [(3, "3"), (0.25, "0.25"), (float("nan"), "NaN"), (float("inf"), "+Inf"), (-1e400, "-Inf")],
)
def test_numbers_are_written_as_both_formats_want_them(value: float, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("", ExpositionFormat.PROMETHEUS),
        ("*/*", ExpositionFormat.PROMETHEUS),
        ("text/plain;version=0.0.4", ExpositionFormat.PROMETHEUS),
        ("application/openmetrics-text", ExpositionFormat.OPEN_METRICS),
        (
            "application/openmetrics-text;version=1.0.0;q=0.6,text/plain;version=0.0.4;q=0.5",
            ExpositionFormat.OPEN_METRICS,
        ),
        ("text/plain;q=0.9,application/openmetrics-text;q=0.2", ExpositionFormat.PROMETHEUS),
        ("application/openmetrics-text;q=0", ExpositionFormat.PROMETHEUS),
        ("application/openmetrics-text;q=x", ExpositionFormat.PROMETHEUS),
    ],
)
def test_the_format_is_the_one_that_is_asked_for(accept: str, expected: ExpositionFormat) -> None:
    assert accepted_format(accept) is expected


def test_names_of_the_catalog_follow_the_rules_of_prometheus() -> None:
    for family in catalog.ALL:
        assert family.name.endswith("_total") == (family.kind is Kind.COUNTER), family.name
        assert family.help.endswith("."), family.name
        assert (family.bounds != ()) == (family.kind is Kind.HISTOGRAM), family.name
        assert not {"le", "quantile", "job", "instance"} & set(family.labels), family.name
