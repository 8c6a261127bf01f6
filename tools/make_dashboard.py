"""Write deploy/grafana/headrace.json, a Grafana dashboard of a cluster, its clients and pipelines.

    python tools/make_dashboard.py

A test fails when the file is not what this would write, or names a metric that nothing declares.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

PAGE = Path(__file__).resolve().parent.parent / "deploy" / "grafana" / "headrace.json"

_COLUMNS, _PANEL_WIDTH, _PANEL_HEIGHT = 24, 8, 7
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_AT = 'instance=~"$instance"'


class Panel(NamedTuple):
    """A graph: queries with their legends, in a unit of Grafana's."""

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]


def _rate(metric: str, by: str, matcher: str = _AT) -> str:
    return f"sum by ({by}) (rate({metric}{{{matcher}}}[$__rate_interval]))"


def _pipeline_rate(metric: str, by: str = "query") -> str:
    # Pipelines are other targets than the brokers that the dashboard lets choose.
    return f"sum by (pipeline, {by}) (rate(headrace_pipeline_{metric}[$__rate_interval]))"


def _quantiles(metric: str, matcher: str) -> tuple[tuple[str, str], ...]:
    return tuple(
        (
            f"histogram_quantile({quantile},"
            f" sum by (le) (rate({metric}_bucket{{{matcher}}}[$__rate_interval])))",
            f"p{name}",
        )
        for quantile, name in ((0.5, "50"), (0.99, "99"), (0.999, "99.9"))
    )


def _sum(metric: str, by: str = "", legend: str = "") -> tuple[str, str]:
    return f"sum by ({by}) ({metric}{{{_AT}}})" if by else f"sum({metric})", legend


def _latency_parts(api: str) -> tuple[tuple[str, str], ...]:
    """The mean of each part of the latency of an API."""
    matcher = f'{_AT},api="{api}"'
    return tuple(
        (
            f"sum(rate(headrace_request_{part}_seconds_sum{{{matcher}}}[$__rate_interval])) /"
            f' sum(rate(headrace_request_seconds_count{{{_AT},api="{api}"}}[$__rate_interval]))',
            part,
        )
        for part in ("queue", "handler", "waiting", "sending")
    )


ROWS: tuple[tuple[str, tuple[Panel, ...]], ...] = (
    (
        "Health",
        (
            Panel("Brokers", "none", (("sum by (state) (headrace_cluster_brokers)", "{{state}}"),)),
            Panel(
                "Partitions in trouble",
                "none",
                (
                    _sum("headrace_offline_partitions", legend="offline"),
                    _sum("headrace_under_min_isr_partitions", legend="under min ISR"),
                    _sum("headrace_under_replicated_partitions", legend="under-replicated"),
                ),
            ),
            Panel(
                "ISR changes and elections",
                "ops",
                (
                    ("sum(rate(headrace_isr_shrinks_total[$__rate_interval]))", "shrinks"),
                    ("sum(rate(headrace_isr_expands_total[$__rate_interval]))", "expands"),
                    ("max(rate(headrace_leader_elections_total[$__rate_interval]))", "elections"),
                ),
            ),
        ),
    ),
    (
        "Traffic",
        (
            Panel(
                "Messages in",
                "cps",
                ((f"topk(20, {_rate('headrace_topic_messages_in_total', 'topic')})", "{{topic}}"),),
            ),
            Panel(
                "Bytes in and out",
                "Bps",
                (
                    (_rate("headrace_topic_bytes_in_total", "instance"), "in {{instance}}"),
                    (_rate("headrace_topic_bytes_out_total", "instance"), "out {{instance}}"),
                    (
                        _rate("headrace_topic_replication_bytes_in_total", "instance"),
                        "replicated {{instance}}",
                    ),
                ),
            ),
            Panel(
                "Refused",
                "cps",
                (
                    (_rate("headrace_topic_produce_errors_total", "topic"), "produce {{topic}}"),
                    (_rate("headrace_topic_fetch_errors_total", "topic"), "fetch {{topic}}"),
                    (_rate("headrace_request_errors_total", "api, error"), "{{api}} {{error}}"),
                    (_rate("headrace_quota_violations_total", "quota"), "quota {{quota}}"),
                ),
            ),
        ),
    ),
    (
        "Latency",
        (
            Panel("Produce", "s", _quantiles("headrace_request_seconds", f'{_AT},api="Produce"')),
            Panel("Parts of Produce (mean)", "s", _latency_parts("Produce")),
            Panel("Flush of a log", "s", _quantiles("headrace_log_flush_seconds", _AT)),
        ),
    ),
    (
        "Groups",
        (
            Panel(
                "Lag in records",
                "none",
                (
                    (
                        "topk(20, sum by (group, topic) (headrace_group_lag_records))",
                        "{{group}} {{topic}}",
                    ),
                ),
            ),
            Panel(
                "Lag in seconds",
                "s",
                (
                    (
                        "topk(20, max by (group, topic) (headrace_group_lag_seconds))",
                        "{{group}} {{topic}}",
                    ),
                ),
            ),
            Panel(
                "Rebalances and commits",
                "ops",
                (
                    (_rate("headrace_group_rebalances_total", "group"), "rebalances {{group}}"),
                    (_rate("headrace_group_commits_total", "group"), "commits {{group}}"),
                ),
            ),
        ),
    ),
    (
        "Brokers",
        (
            Panel(
                "CPU",
                "percentunit",
                ((_rate("headrace_process_cpu_seconds_total", "instance"), "{{instance}}"),),
            ),
            Panel(
                "Memory",
                "bytes",
                (_sum("headrace_process_resident_memory_bytes", "instance", "{{instance}}"),),
            ),
            Panel(
                "Longest lag of the event loop",
                "s",
                (_sum("headrace_event_loop_lag_max_seconds", "instance", "{{instance}}"),),
            ),
            Panel(
                "Free disk",
                "bytes",
                (
                    _sum(
                        "headrace_log_directory_free_bytes",
                        "instance, directory",
                        "{{instance}} {{directory}}",
                    ),
                ),
            ),
            Panel(
                "Connections",
                "none",
                (_sum("headrace_connections", "instance, listener", "{{instance}} {{listener}}"),),
            ),
            Panel(
                "Waiting",
                "none",
                (
                    _sum("headrace_worker_queue_length", "pool", "{{pool}} calls"),
                    _sum("headrace_fetches_waiting", "instance", "fetches {{instance}}"),
                    (_rate("headrace_cold_reads_total", "instance"), "cold reads/s {{instance}}"),
                ),
            ),
        ),
    ),
    (
        "Pipelines",
        (
            Panel(
                "Rows in",
                "cps",
                ((_pipeline_rate("rows_in_total"), "{{pipeline}} {{query}}"),),
            ),
            Panel(
                "Lag in records",
                "none",
                (("headrace_pipeline_lag_records", "{{pipeline}} {{query}}"),),
            ),
            Panel(
                "Time of the last batch",
                "s",
                (("headrace_pipeline_batch_seconds", "{{pipeline}} {{query}}"),),
            ),
            Panel(
                "Dead letters",
                "cps",
                ((_pipeline_rate("dead_letters_total", "reason"), "{{pipeline}} {{reason}}"),),
            ),
            Panel(
                "Rows of state",
                "none",
                (("headrace_pipeline_state_rows", "{{pipeline}} {{query}}"),),
            ),
            Panel(
                "Restarts and waiting",
                "none",
                (
                    (
                        "sum by (pipeline, query) (increase(headrace_pipeline_restarts_total[1h]))",
                        "restarts in an hour {{pipeline}} {{query}}",
                    ),
                    ("headrace_pipeline_waiting", "waiting {{pipeline}} {{query}}"),
                ),
            ),
        ),
    ),
)


def render() -> str:
    """The dashboard as JSON."""
    panels = list(_panels())
    variables: list[dict[str, Any]] = [
        {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"},
        {
            "name": "instance",
            "type": "query",
            "label": "Broker",
            "datasource": _SOURCE,
            "query": "label_values(headrace_node_info, instance)",
            "refresh": 2,
            "includeAll": True,
            "multi": True,
            "allValue": ".*",
            "current": {"text": "All", "value": "$__all"},
        },
    ]
    dashboard = {
        "uid": "headrace",
        "title": "headrace",
        "tags": ["headrace"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": variables},
        "panels": panels,
    }
    return json.dumps(dashboard, indent=1) + "\n"


def _panels() -> Iterator[dict[str, Any]]:
    top, number = 0, 1
    for title, panels in ROWS:
        place = {"x": 0, "y": top, "w": _COLUMNS, "h": 1}
        yield {"id": number, "type": "row", "title": title, "collapsed": False, "gridPos": place}
        number, top = number + 1, top + 1
        for index, panel in enumerate(panels):
            column = index * _PANEL_WIDTH % _COLUMNS
            place = {"x": column, "y": top, "w": _PANEL_WIDTH, "h": _PANEL_HEIGHT}
            yield {
                "id": number,
                "type": "timeseries",
                "title": panel.title,
                "datasource": _SOURCE,
                "gridPos": place,
                "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
                "targets": [
                    {
                        "refId": chr(ord("A") + position),
                        "datasource": _SOURCE,
                        "expr": query,
                        "legendFormat": legend,
                    }
                    for position, (query, legend) in enumerate(panel.queries)
                ],
            }
            number += 1
            if column + _PANEL_WIDTH >= _COLUMNS or index == len(panels) - 1:
                top += _PANEL_HEIGHT


if __name__ == "__main__":
    PAGE.write_text(render())
