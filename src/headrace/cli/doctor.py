"""`headrace doctor`: finds problems of a cluster, with advice.

Rule: all facts come over the wire, with short timeouts; a broker that does not answer is a finding.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace

import click

from headrace.cli.clients import SOON_S, controller_of, open_admin, outcomes_of
from headrace.cli.options import client_options, examples
from headrace.cli.output import counted, print_json, printable
from headrace.cli.partitions import partitions_text
from headrace.cli.reassignment_moves import ReplicaPlacement
from headrace.client.admin.admin import Admin
from headrace.client.admin.cluster import BrokerHealth
from headrace.client.admin.reassignments import Reassignment
from headrace.client.errors import TimedOut
from headrace.errors import KafkaError
from headrace.types import TopicPartition

MIN_IN_SYNC = "min.insync.replicas"
_SET_ASIDE_SHOWN_MAX = 3
_METADATA_LOG = "__cluster_metadata-0."


@dataclass(frozen=True, slots=True)
class Finding:
    """A finding: the check, its subject, the problem, and the advice."""

    check: str
    subject: str
    detail: str


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
    situation = ReplicaPlacement({broker.node_id: broker for broker in brokers}, topics, {})
    with open_admin(bootstrap, min(timeout_s, SOON_S)) as admin:
        findings = list(_check_controller(admin))
        if not findings:
            situation = replace(situation, moving=_moving(admin))
        answers = outcomes_of(lambda: admin.describe_health(situation.alive))
        findings += _check_brokers(situation, answers)
        findings += _check_partitions(admin, situation)
    if as_json:
        print_json({"findings": [asdict(finding) for finding in findings]})
    elif not findings:
        count = sum(len(topic.partitions) for topic in topics.values())
        sizes = [(len(brokers), "broker"), (len(topics), "topic"), (count, "partition")]
        click.echo(f"nothing is wrong: {', '.join(counted(*size) for size in sizes)}")
    for finding in () if as_json else findings:
        click.echo(printable(f"{finding.subject}: {finding.detail}"))
    return 1 if findings else 0


def _check_controller(admin: Admin) -> Iterator[Finding]:
    if controller_of(admin) is None:
        yield Finding(
            "controller",
            "controller",
            "none answers: see that a majority of the controllers runs; until then nothing of the"
            " cluster can change, and what is told here may be out of date",
        )


def _moving(admin: Admin) -> dict[TopicPartition, Reassignment]:
    """The reassignments under way, whose new replicas are not expected to be in sync."""
    try:
        return admin.list_partition_reassignments()
    except (KafkaError, TimedOut):
        return {}


def _check_brokers(
    situation: ReplicaPlacement, answers: Mapping[int, BrokerHealth | KafkaError]
) -> Iterator[Finding]:
    for broker in situation.brokers.values():
        answer = answers.get(broker.node_id)
        subject = f"broker {broker.node_id}"
        if broker.is_fenced:
            yield Finding(
                "broker",
                subject,
                "it is down, or was not let in yet: start it, or see its log; if it does not come"
                f" back, move its replicas away with `headrace brokers drain {broker.node_id}`",
            )
        elif isinstance(answer, KafkaError):
            yield Finding("broker", subject, f"it does not answer, see its log: {answer}")
        elif answer is not None:
            yield from _check_broker(subject, answer)


def _check_broker(subject: str, answer: BrokerHealth) -> Iterator[Finding]:
    for directory in answer.directories:
        where = f"{subject}, {directory.path}"
        if directory.error is not None:
            yield Finding(
                "directory",
                where,
                "the data directory does not work: repair or replace the disk, then restart the"
                " broker",
            )
        elif directory.is_cordoned:
            yield Finding(
                "directory",
                where,
                "the data directory is full and takes no records: delete topics or shorten their"
                " retention, move replicas away, or add space",
            )
        health = answer.health.get(directory.path)
        names = [] if health is None else [log.name for log in health.set_aside]
        strays = [name for name in names if not name.startswith(_METADATA_LOG)]
        if strays:
            yield Finding(
                "set-aside",
                where,
                f"{_names(strays, 'log')} set aside: see why with `headrace log strays list"
                f" {directory.path}`, then restore or discard",
            )
        damaged = [name for name in names if name.startswith(_METADATA_LOG)]
        if damaged:
            yield Finding(
                "set-aside",
                where,
                f"{_names(damaged, 'damaged metadata log')} set aside: check the disk, and delete"
                " it when nobody is going to look at it any more",
            )
    for problem in answer.problems:
        text = f"the replica is {problem.state}: {problem.reason}"
        yield Finding("replica", f"{problem.partition} on {subject}", text)


def _names(names: list[str], noun: str) -> str:
    """The count of names, and the first of them."""
    shown = ", ".join(names[:_SET_ASIDE_SHOWN_MAX])
    more = "..." if len(names) > _SET_ASIDE_SHOWN_MAX else ""
    verb = "was" if len(names) == 1 else "were"
    return f"{counted(len(names), noun)} ({shown}{more}) {verb}"


def _check_partitions(admin: Admin, situation: ReplicaPlacement) -> Iterator[Finding]:
    """Partitions that lack a leader or replicas, grouped by what they lack."""
    found: dict[tuple[str, str, str], list[TopicPartition]] = {}
    for name, topic in situation.topics.items():
        lacking: dict[TopicPartition, list[int]] = {}
        for partition in topic.partitions:
            tp = TopicPartition(name, partition.index)
            adding = situation.moving[tp].adding if tp in situation.moving else ()
            if partition.leader < 0:
                detail = (
                    f"no replica leads; in sync were {_list(partition.isr)}: start their brokers."
                    " `headrace topics describe` shows who else could lead, `headrace brokers elect"
                    " --unclean` takes any replica and may lose records"
                )
                found.setdefault(("offline-partition", name, detail), []).append(tp)
            else:
                missing = [
                    replica
                    for replica in partition.replicas
                    if replica not in partition.isr and replica not in adding
                ]
                if missing:
                    lacking[tp] = missing
        least = _least_in_sync(admin, name) if lacking else 1
        for tp, missing in lacking.items():
            partition = topic.partitions[tp.partition]
            detail = f"replicas on {_list(missing)} are not in sync"
            check = "under-replicated"
            if len(partition.isr) < least:
                check = "under-min-isr"
                detail += (
                    f", and {MIN_IN_SYNC} is {least}: writes with acks=all are refused; see to"
                    " those brokers"
                )
            else:
                detail += ": they catch up by themselves when nothing is wrong with their brokers"
            found.setdefault((check, name, detail), []).append(tp)
    for (check, _, detail), partitions in found.items():
        yield Finding(check, partitions_text(partitions), detail)


def _least_in_sync(admin: Admin, topic: str) -> int:
    try:
        entry = admin.describe_configs(topic=topic).get(MIN_IN_SYNC)
    except (KafkaError, TimedOut):
        return 1  # The topic was deleted meanwhile, or no broker answers.
    return 1 if entry is None else int(entry.value or 1)


def _list(broker_ids: Iterable[int]) -> str:
    ids = [str(broker_id) for broker_id in broker_ids]
    if not ids:
        return "no brokers"
    return f"{'broker' if len(ids) == 1 else 'brokers'} {', '.join(ids)}"
