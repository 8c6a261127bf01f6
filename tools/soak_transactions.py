"""The part of the long run that copies in transactions while processes are killed at random.

librdkafka, kafka-python and headrace's own client each copy a topic, two copiers for each. All the
while copiers are killed, or replaced while they are frozen, and so are the brokers that coordinate
their transactions and groups or lead their topics.
"""

from headrace.testing.cluster import Cluster
from tests.integration.transactions.chaos import CONFIG, Chaos, Plan, Report, require_exact


def copy_under_fire(records: int, seed: int) -> None:
    """Copy under faults; AssertionError if a copy is not exact, or aborted records were read."""
    plan = Plan(records=records, partitions=4, copiers=2, records_max=200, pause_s=0.03, gap_s=1.0)
    print(f"copying {records:,} records in transactions by each client, seed {seed}")
    with Cluster(brokers=3, config=CONFIG) as cluster:
        chaos = Chaos(cluster, plan, f"soak-{seed}")
        try:
            report = chaos.run(on_strike=_progress)
        except AssertionError:
            print(chaos.outputs)
            raise
    _print(report)
    require_exact(report, plan.records)


def _progress(report: Report, seen: dict[str, int]) -> None:
    if (strikes := report.strikes.total()) % 10 == 0:
        copied = ", ".join(f"{client} {count:,}" for client, count in seen.items())
        print(f"  {strikes} faults; copied: {copied}")


def _print(report: Report) -> None:
    for name, times in sorted(report.strikes.items()):
        print(f"  {name}: {times} times")
    for client, findings in report.findings.items():
        print(
            f"{client}: {findings.copied:,} records copied, {findings.missing} missing,"
            f" {findings.duplicated} duplicated, {findings.reordered} reordered,"
            f" {findings.aborted} aborted ones read; {report.runs[client]} runs of copiers,"
            f" {report.fenced[client]} fenced, {report.ousted[client]} of them in duty,"
            f" {report.failed[client]} ended by an error, {report.hung[client]} hung"
        )
    print(
        f"{report.strikes.total()} faults in {report.seconds:.0f} s;"
        f" {report.doomed:,} records were aborted, and nobody read them"
    )
