"""`headrace doctor`: finds problems of a cluster, with advice.

Rule: all facts come over the wire, with short timeouts; a broker that does not answer is a finding.
"""

from dataclasses import replace

import click

from headrace.cli.clients import SOON_S, controller_of, open_admin, outcomes_of
from headrace.cli.options import client_options, examples
from headrace.cli.output import counted, print_json
from headrace.cli.terminal_text import printable
from headrace.client.admin.admin import Admin
from headrace.client.admin.reassignments import Reassignment
from headrace.client.errors import TimedOut
from headrace.errors import KafkaError
from headrace.monitoring.problems import MIN_IN_SYNC, ClusterFacts, problems
from headrace.types import TopicPartition


@click.command(
    short_help="Tell what is wrong with a cluster.",
    epilog=examples("headrace doctor", "headrace doctor -b host-1:9092 --json"),
)
@client_options
def doctor(bootstrap: str, timeout_s: float, as_json: bool) -> int:
    """Check a cluster, and print each problem with advice.

    Brokers that are down or do not answer, partitions without a leader or without enough replicas
    in sync, replicas that are stopped, damaged, lost or offline, data directories that are full or
    do not work, and logs that were set aside. The exit status is 1 if there is any of these.
    """
    with open_admin(bootstrap, timeout_s) as admin:
        # No request here needs a controller: this must work when there is none.
        brokers = admin.describe_cluster(include_fenced=True).brokers
        topics = admin.list_topics(internal=True)
    facts = ClusterFacts({broker.node_id: broker for broker in brokers}, topics)
    alive = [broker.node_id for broker in brokers if not broker.is_fenced]
    with open_admin(bootstrap, min(timeout_s, SOON_S)) as admin:
        health = outcomes_of(lambda: admin.describe_health(alive))
        has_controller = controller_of(admin) is not None
        facts = replace(
            facts,
            has_controller=has_controller,
            moving=_moving(admin) if has_controller else {},
            health=health,
            min_in_sync={name: _min_in_sync(admin, name) for name in facts.lacking_topics()},
        )
    findings = problems(facts)
    if as_json:
        found = [
            {"check": finding.check, "subject": finding.subject, "detail": finding.detail}
            for finding in findings
        ]
        print_json({"findings": found})
    elif not findings:
        count = sum(len(topic.partitions) for topic in topics.values())
        sizes = [(len(brokers), "broker"), (len(topics), "topic"), (count, "partition")]
        click.echo(f"nothing is wrong: {', '.join(counted(*size) for size in sizes)}")
    for finding in () if as_json else findings:
        click.echo(printable(f"{finding.subject}: {finding.detail}"))
    return 1 if findings else 0


def _moving(admin: Admin) -> dict[TopicPartition, Reassignment]:
    """The reassignments under way, whose new replicas are not expected to be in sync."""
    try:
        return admin.list_partition_reassignments()
    except (KafkaError, TimedOut):
        return {}


def _min_in_sync(admin: Admin, topic: str) -> int:
    try:
        entry = admin.describe_configs(topic=topic).get(MIN_IN_SYNC)
    except (KafkaError, TimedOut):
        return 1  # The topic was deleted meanwhile, or no broker answers.
    return 1 if entry is None else int(entry.value or 1)
