"""Write docs/metrics.md from the families of metrics that the code declares.

    python tools/make_metrics_docs.py

A test fails when the page is not what this would write.
"""

from pathlib import Path

from headrace.metrics import catalog
from headrace.metrics.registry import Family

PAGE = Path(__file__).resolve().parent.parent / "docs" / "metrics.md"

INTRODUCTION = """\
# Metrics of a broker

This page is made from the code by `tools/make_metrics_docs.py`; change the text of a metric where
it is declared, in `src/headrace/metrics/catalog.py`. [Monitoring](monitoring.md) says where metrics
are read and what to look at first.

A counter only grows, from 0 at the start of the process: look at its `rate()`. A gauge is a value
of now. A histogram has the series `NAME_bucket` with the label `le`, `NAME_sum` and `NAME_count`;
`histogram_quantile(0.99, sum by (le) (rate(NAME_bucket[5m])))` is its 99th percentile. *Kafka* is
the MBean, or the metric of a client, by which Apache Kafka shows the same or the nearest to it.
"""

_SECTIONS = (
    ("node_info", "The node"),
    ("connections", "Connections"),
    ("request_received_bytes_total", "Requests"),
    ("topic_messages_in_total", "Topics"),
    ("partition_log_end_offset", "Partitions"),
    ("partitions", "Replication"),
    ("active_controller", "The cluster"),
    ("log_directory_free_bytes", "Disks"),
    ("groups", "Groups and transactions"),
    ("telemetry_clients", "Telemetry of clients"),
    ("scrapes_total", "The admin listener"),
)
_NOTES = {
    "Topics": "Of each topic up to `metrics.topics.max`; the others are counted under the name"
    " `(other)`.",
    "Partitions": "Of the topics up to `metrics.topics.max`, and of `metrics.partitions.max`"
    " partitions at most.",
    "The cluster": "Shown by the active controller: what other nodes know may be older.",
    "Groups and transactions": "Shown by the coordinator of each group, for up to"
    " `metrics.groups.max` groups and `metrics.partitions.max` of their partitions.",
}


def render() -> str:
    """The whole page."""
    begins = {f"headrace_{name}": title for name, title in _SECTIONS}
    lines = [INTRODUCTION]
    for family in catalog.ALL:
        title = begins.pop(family.name, None)
        if title is not None:
            note = f"{_NOTES[title]}\n\n" if title in _NOTES else ""
            lines.append(
                f"\n## {title}\n\n{note}| Name | Kind | Labels | Meaning | Kafka |\n"
                "|---|---|---|---|---|\n"
            )
        lines.append(_row(family))
    assert not begins, begins
    return "".join(lines)


def _row(family: Family) -> str:
    labels = ", ".join(f"`{label}`" for label in family.labels)
    kafka = f"`{family.kafka}`" if family.kafka else ""
    return f"| `{family.name}` | {family.kind.value} | {labels} | {family.help} | {kafka} |\n"


if __name__ == "__main__":
    PAGE.write_text(render())
