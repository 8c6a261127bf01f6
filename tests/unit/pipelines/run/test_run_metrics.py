"""Metrics of a run: what Prometheus reads while a pipeline runs."""

import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from headrace.errors import ConfigError
from headrace.pipelines.run.progress import ProgressTally, QueryProgress
from headrace.pipelines.run.run_metrics import (
    DEAD_LETTERS,
    PHASE,
    QUERY_FAMILIES,
    RunMetrics,
)
from headrace.pipelines.run.run_state import RunPhase, new_state
from headrace.testing.time_limits import scaled
from tests.unit.pipelines.run.test_progress import report

QUERY = QueryProgress(
    "to-lake", batches=3, rows_in=40, rows_out=38, rows_per_second=12.5, batch_ms=800, lag=7
)


def samples(url: str) -> dict[str, float]:
    with urllib.request.urlopen(url, timeout=scaled(5)) as answer:
        text = answer.read().decode()
    return {
        " ".join((sample.name, *sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_the_published_state_of_a_run_is_served() -> None:
    metrics = RunMetrics()
    state = new_state("orders", master="local", available_now=False)
    with metrics.served("127.0.0.1:0") as url:
        assert samples(url) == {}
        waiting = QueryProgress("dead-letters-raw", rows_out=2, waiting_for="brokers", restarts=1)
        waiting = replace(waiting, reasons={"not JSON": 2}, reported="1970-01-01T00:01:00.500Z")
        metrics.show(replace(state, phase=RunPhase.RUNNING, queries=(QUERY, waiting)))
        found = samples(url)
        with pytest.raises(urllib.error.HTTPError):
            samples(url.removesuffix("metrics"))
    name = "headrace_pipeline_"
    assert found[f"{name}phase orders running"] == 1
    assert found[f"{name}phase orders failed"] == 0
    assert found[f"{name}rows_in_total orders to-lake"] == 40
    assert found[f"{name}rows_out_total orders dead-letters-raw"] == 2
    assert found[f"{name}rows_per_second orders to-lake"] == 12.5
    assert found[f"{name}batch_seconds orders to-lake"] == 0.8
    assert found[f"{name}lag_records orders to-lake"] == 7
    assert found[f"{name}waiting orders dead-letters-raw"] == 1
    assert found[f"{name}restarts_total orders dead-letters-raw"] == 1
    assert found[f"{name}dead_letters_total orders dead-letters-raw not JSON"] == 2
    assert found[f"{name}last_report_timestamp_seconds orders dead-letters-raw"] == 60.5
    assert f"{name}lag_records orders dead-letters-raw" not in found, "it is not known"


def test_an_address_that_cannot_be_used_is_refused() -> None:
    with RunMetrics().served("127.0.0.1:0") as url:
        taken = url.removeprefix("http://").removesuffix("/metrics")
        for address in (taken, "127.0.0.1", "127.0.0.1:port", "127.0.0.1:70000"):
            with pytest.raises(ConfigError), RunMetrics().served(address):
                pass


def test_rows_of_state_are_those_of_all_operators_and_restarts_are_counted() -> None:
    tally = ProgressTally("to-lake", bounded=False)
    tally.add(
        [{**report(0, None, None), "stateOperators": [{"numRowsTotal": 5}, {"numRowsTotal": 2}]}]
    )
    assert tally.progress.state_rows == 7
    tally.restarted()
    assert tally.progress.restarts == 1


def test_the_page_about_pipelines_has_every_metric() -> None:
    page = (Path(__file__).resolve().parents[4] / "docs" / "pipelines.md").read_text()
    for family in (PHASE, DEAD_LETTERS, *QUERY_FAMILIES):
        assert f"| `{family.name}` | {family.kind.value} | {family.help} |" in page
