"""Alerts, dashboard and runbook of deploy/ and docs/ agree with each other and with the code."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from headrace.metrics import catalog
from headrace.metrics.registry import Kind
from headrace.pipelines.run import run_metrics
from headrace.testing.time_limits import scaled
from tools import make_dashboard

ROOT = Path(__file__).resolve().parents[2]
PROMETHEUS = ROOT / "deploy" / "prometheus"
RUNBOOK = ROOT / "docs" / "operations.md"

FAMILIES = (
    *catalog.ALL,
    run_metrics.PHASE,
    run_metrics.DEAD_LETTERS,
    *run_metrics.QUERY_FAMILIES,
)
SERIES = {
    name
    for family in FAMILIES
    for name in (
        [f"{family.name}{suffix}" for suffix in ("_bucket", "_sum", "_count")]
        if family.kind is Kind.HISTOGRAM
        else [family.name]
    )
}
LABELS = {family.name: {*family.labels, "le"} for family in FAMILIES}


def alerts() -> list[dict[str, Any]]:
    rules = yaml.safe_load((PROMETHEUS / "headrace.rules.yml").read_text())
    return [rule for group in rules["groups"] for rule in group["rules"]]


def metrics_in(text: str) -> set[str]:
    return set(re.findall(r"\bheadrace_\w+", text))


def test_every_alert_has_an_entry_in_the_runbook_and_names_it() -> None:
    entries = re.findall(r"^## (\w+)$", RUNBOOK.read_text(), re.MULTILINE)
    assert entries == [alert["alert"] for alert in alerts()]
    for alert in alerts():
        anchor = alert["alert"].lower()
        assert alert["annotations"]["runbook"] == f"docs/operations.md#{anchor}"
        assert alert["labels"]["severity"] in ("critical", "warning")


@pytest.mark.parametrize(
    "text",
    [
        (PROMETHEUS / "headrace.rules.yml").read_text(),
        (PROMETHEUS / "headrace.rules.test.yml").read_text(),
        make_dashboard.render(),
        RUNBOOK.read_text(),
        (ROOT / "docs" / "monitoring.md").read_text(),
    ],
    ids=["alerts", "their tests", "dashboard", "runbook", "monitoring"],
)
def test_only_metrics_that_brokers_show_are_named(text: str) -> None:
    # The runbook names histograms as a whole, too.
    assert metrics_in(text) - SERIES - LABELS.keys() == set()


def test_alerts_and_dashboard_use_labels_that_the_metrics_have() -> None:
    queries = [alert["expr"] for alert in alerts()]
    for panel in json.loads(make_dashboard.render())["panels"]:
        queries += [target["expr"] for target in panel.get("targets", ())]
    for query in queries:
        for metric, matchers in re.findall(r"\b(headrace_\w+)\{([^}]*)\}", query):
            name = metric if metric in LABELS else re.sub(r"_(bucket|sum|count)$", "", metric)
            used = set(re.findall(r"(\w+)\s*=", matchers)) - {"instance", "job"}
            assert used <= LABELS[name], query


def test_every_alert_fires_and_stays_quiet_in_a_test_of_promtool() -> None:
    tests = yaml.safe_load((PROMETHEUS / "headrace.rules.test.yml").read_text())["tests"]
    names = [test["name"] for test in tests]
    wanted = [alert["alert"] for alert in alerts()]
    assert names == [f"{name} {does}" for name in wanted for does in ("fires", "does not fire")]
    for arguments in (
        ["test", "rules", "headrace.rules.test.yml"],
        ["check", "config", "prometheus.yml"],
    ):
        done = subprocess.run(
            ["promtool", *arguments],
            cwd=PROMETHEUS,
            capture_output=True,
            text=True,
            timeout=scaled(60),
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_dashboard_is_what_its_tool_writes() -> None:
    assert make_dashboard.PAGE.read_text() == make_dashboard.render(), "run tools/make_dashboard.py"
    panels = json.loads(make_dashboard.render())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = [tuple(panel["gridPos"].values()) for panel in panels]
    taken = [
        (x, y)
        for left, top, width, height in places
        for x in range(left, left + width)
        for y in range(top, top + height)
    ]
    assert len(taken) == len(set(taken)), "panels overlap"
