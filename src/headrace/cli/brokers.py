"""`headrace brokers`: list, describe, drain and remove brokers, elect leaders."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click

from headrace.cli.clients import SOON_S, controller_of, open_admin, outcomes_of
from headrace.cli.errors import report
from headrace.cli.options import client_options, confirm, examples
from headrace.cli.output import (
    bytes_text,
    counted,
    print_json,
    print_table,
    timestamp_text,
)
from headrace.cli.partitions import (
    ChosenPartitions,
    chosen_partitions,
    partitions_text,
    topic_option,
)
from headrace.cli.reassign import throttle_option
from headrace.cli.reassignment_moves import (
    MoveMonitor,
    ReplicaPlacement,
    begin,
    elect_preferred,
    largest,
    plan_document,
    read_placement,
    remove_throttle,
    sizes_in,
    sizes_on,
    summary,
)
from headrace.cli.terminal_text import printable
from headrace.client.admin.cluster import BrokerHealth
from headrace.client.admin.reassignment_plan import make_plan
from headrace.errors import ErrorCode, HeadraceError, KafkaError


class BrokerNotReady(HeadraceError):
    """A broker is not in the state that a command needs."""


@click.group(short_help="Watch, drain and remove brokers; elect leaders.")
def brokers() -> None:
    """List and describe brokers, drain and remove them, and elect leaders."""


@brokers.command("list", epilog=examples("headrace brokers list", "headrace brokers list --json"))
@client_options
def list_brokers(bootstrap: str, timeout_s: float, as_json: bool) -> None:
    """List brokers and their replicas and sizes, including brokers that are down."""
    with open_admin(bootstrap, timeout_s) as admin:
        # No request here needs a controller: this must work when there is none.
        cluster = admin.describe_cluster(include_fenced=True)
        known = {broker.node_id: broker for broker in cluster.brokers}
        situation = ReplicaPlacement(known, admin.list_topics(internal=True), {})
    with open_admin(bootstrap, min(timeout_s, SOON_S)) as admin:
        answers = outcomes_of(lambda: admin.describe_log_dirs(situation.alive))
        controller = controller_of(admin)
    documents = _documents(situation, controller)
    sizes = sizes_in(answers)
    for document in documents:
        held = sizes.get(document["id"])
        document["bytes"] = None if held is None else sum(held.values())
        answer = answers.get(document["id"])
        if isinstance(answer, KafkaError) and answer.code is ErrorCode.BROKER_NOT_AVAILABLE:
            document["state"] = "no answer"
    if as_json:
        print_json({"cluster_id": cluster.cluster_id, "brokers": documents})
        return
    click.echo(printable(f"Cluster {cluster.cluster_id}"))
    print_table(
        ["BROKER", "ADDRESS", "RACK", "STATE", "LEADS", "REPLICAS", "BEHIND", "SIZE"],
        [
            (
                document["id"],
                document["address"],
                document["rack"],
                f"{document['state']}, controller" if document["controller"] else document["state"],
                document["leads"],
                document["replicas"],
                document["behind"],
                None if document["bytes"] is None else bytes_text(document["bytes"]),
            )
            for document in documents
        ],
    )
    if controller is None:
        click.echo("no controller answers, so this may be out of date", err=True)


@brokers.command(
    epilog=examples("headrace brokers describe", "headrace brokers describe 1 2 --json")
)
@click.argument("ids", metavar="[BROKER]...", nargs=-1, type=click.IntRange(min=0))
@client_options
def describe(ids: tuple[int, ...], bootstrap: str, timeout_s: float, as_json: bool) -> int:
    """Show the data directories of brokers, and the progress of scrubbing them.

    By default all brokers are shown that are up. Each reads its segments again by itself to find
    damage early, see `log.scrub.interval.ms`.
    """
    with open_admin(bootstrap, timeout_s) as admin:
        answers = outcomes_of(lambda: admin.describe_health(ids or None))
    documents = {
        broker_id: _health_document(broker_id, answer)
        for broker_id, answer in answers.items()
        if not isinstance(answer, KafkaError)
    }
    if as_json:
        print_json({"brokers": list(documents.values())})
    elif documents:
        _print_directories(documents.values())
    return report(answer for answer in answers.values() if isinstance(answer, KafkaError))


def _health_document(broker_id: int, answer: BrokerHealth) -> dict[str, Any]:
    directories = []
    for directory in answer.directories:
        health = answer.health.get(directory.path)
        works = "full" if directory.is_cordoned else "online"
        directories.append(
            {
                "path": directory.path,
                "state": works if directory.error is None else "offline",
                "replicas": len(directory.replicas),
                "bytes": sum(directory.replicas.values()),
                "usable_bytes": directory.usable_bytes,
                "scrub": None
                if health is None
                else {
                    "started_ms": health.scrub_started_ms,
                    "finished_ms": health.scrub_finished_ms,
                    "segments": health.scrubbed_segments,
                    "bytes": health.scrubbed_bytes,
                    "bytes_of": health.closed_bytes,
                    "damaged_segments": health.damaged_segments,
                },
                "set_aside": []
                if health is None
                else [{"name": log.name, "reason": log.reason} for log in health.set_aside],
            }
        )
    return {
        "id": broker_id,
        "directories": directories,
        "problems": [
            {
                "topic": problem.partition.topic,
                "partition": problem.partition.partition,
                "state": problem.state,
                "reason": problem.reason,
            }
            for problem in answer.problems
        ],
    }


def _print_directories(documents: Iterable[Mapping[str, Any]]) -> None:
    print_table(
        [
            *("BROKER", "DIRECTORY", "STATE", "REPLICAS", "SIZE", "FREE"),
            *("SCRUBBED", "DAMAGED", "SET ASIDE"),
        ],
        [
            (
                document["id"],
                directory["path"],
                directory["state"],
                directory["replicas"],
                bytes_text(directory["bytes"]),
                None
                if directory["usable_bytes"] is None
                else bytes_text(directory["usable_bytes"]),
                None if directory["scrub"] is None else _scrub_text(directory["scrub"]),
                None if directory["scrub"] is None else directory["scrub"]["damaged_segments"],
                len(directory["set_aside"]),
            )
            for document in documents
            for directory in document["directories"]
        ],
    )
    for document in documents:
        for problem in document["problems"]:
            click.echo(
                printable(
                    f"{problem['topic']}-{problem['partition']} on broker {document['id']} is"
                    f" {problem['state']}: {problem['reason']}"
                )
            )


def _scrub_text(scrub: Mapping[str, Any]) -> str:
    """The text about the progress of a directory's pass, or the end of the last pass."""
    if scrub["started_ms"] is None:
        return "not yet"
    if scrub["finished_ms"] is not None:
        return f"all until {timestamp_text(scrub['finished_ms'])}"
    # Retention may have deleted some segments that were read.
    share = min(scrub["bytes"] / max(scrub["bytes_of"], 1), 1)
    return f"{share:.0%} since {timestamp_text(scrub['started_ms'])}"


def _documents(situation: ReplicaPlacement, controller: int | None) -> list[dict[str, Any]]:
    leads: Counter[int] = Counter()
    replicas: Counter[int] = Counter()
    behind: Counter[int] = Counter()
    for topic in situation.topics.values():
        for partition in topic.partitions:
            leads[partition.leader] += 1
            replicas.update(partition.replicas)
            behind.update(set(partition.replicas) - set(partition.isr))
    return [
        {
            "id": broker.node_id,
            "address": str(broker.address),
            "rack": broker.rack,
            "state": "down" if broker.is_fenced else "up",
            "controller": broker.node_id == controller,
            "leads": leads[broker.node_id],
            "replicas": replicas[broker.node_id],
            "behind": behind[broker.node_id],
        }
        for broker in situation.brokers.values()
    ]


@brokers.command(
    epilog=examples(
        "headrace brokers drain 3",
        "headrace brokers drain 3 --throttle 50000000",
        "headrace brokers drain 3 4 --dry-run --json",
    )
)
@click.argument("ids", metavar="BROKER...", nargs=-1, required=True, type=click.IntRange(min=0))
@throttle_option
@click.option("--dry-run", is_flag=True, help="Only tell what would move.")
@click.option("--no-wait", is_flag=True, help="Begin, and let the cluster go on by itself.")
@client_options
def drain(
    ids: tuple[int, ...],
    throttle: int | None,
    dry_run: bool,
    no_wait: bool,
    bootstrap: str,
    timeout_s: float,
    as_json: bool,
) -> int:
    """Move all replicas off BROKERs, to the others, and wait until that is done.

    No other replica moves. A broker may be down: its replicas are copied from the others that are
    in sync. Afterwards it can be stopped for good, and removed with `headrace brokers remove`.
    """
    with open_admin(bootstrap, timeout_s) as admin:
        situation = read_placement(admin)
        left = _left(situation, ids)
        sizes = largest(sizes_on(admin, situation.alive))
        everything = situation.assignment
        plan = make_plan(situation.racks(left), everything, sizes=sizes, balance=False)
        moved = {tp: replicas for tp, replicas in plan.after.items() if not dry_run}
        if not as_json and (dry_run or moved):
            click.echo(summary(plan, sizes), err=True)
        failures = begin(admin, situation, moved, throttle) if moved else {}
        begun = {tp: target for tp, target in moved.items() if tp not in failures}
        status = report(failures.values())
        if begun and not no_wait:
            MoveMonitor(admin, "draining", begun, shown=not as_json).wait()
            status |= elect_preferred(admin, sorted(begun))
            remove_throttle(admin, situation, {tp.topic for tp in begun})
        held = _held(read_placement(admin), ids)
    if as_json:
        print_json(
            {
                "brokers": list(ids),
                "executed": not dry_run,
                "plan": plan_document(plan.after),
                "bytes": plan.moved_bytes(sizes),
                "replicas_left": held,
            }
        )
    elif dry_run:
        click.echo("Dry run, nothing is changed; leave --dry-run out to do it.")
    elif held:
        click.echo(f"{counted(held, 'replica')} left on {_names(ids)}")
        click.echo("see how far with `headrace reassign verify`", err=True)
    else:
        click.echo(f"nothing is left on {_names(ids)}")
    return status


def _left(situation: ReplicaPlacement, ids: Sequence[int]) -> list[int]:
    """The remaining brokers, which take the replicas."""
    for broker_id in ids:
        # A broker that was removed too early may still be named in replicas.
        if broker_id not in situation.brokers and not _held(situation, [broker_id]):
            known = _list(list(situation.brokers))
            raise BrokerNotReady(
                f"there is no broker {broker_id}", advice=f"the cluster has {known}"
            )
    down = [
        broker
        for broker in situation.brokers
        if broker not in situation.alive and broker not in ids
    ]
    waiting = [broker for broker in down if _held(situation, [broker])]
    if waiting:
        raise BrokerNotReady(
            f"broker {waiting[0]} is down, and moves would wait for its replicas",
            advice="start it, or drain it too",
        )
    return [broker for broker in situation.alive if broker not in ids]


def _held(situation: ReplicaPlacement, ids: Sequence[int]) -> int:
    return sum(
        broker in ids
        for topic in situation.topics.values()
        for partition in topic.partitions
        for broker in partition.replicas
    )


def _names(ids: Sequence[int]) -> str:
    return f"{'broker' if len(ids) == 1 else 'brokers'} {_list(ids)}"


def _list(ids: Sequence[int]) -> str:
    return ", ".join(map(str, ids))


@brokers.command(epilog=examples("headrace brokers remove 3", "headrace brokers remove 3 --yes"))
@click.argument("broker_id", metavar="BROKER", type=click.IntRange(min=0))
@click.option("--yes", is_flag=True, help="Do not ask before removing.")
@client_options
def remove(broker_id: int, yes: bool, bootstrap: str, timeout_s: float, as_json: bool) -> None:
    """Remove BROKER from the cluster's metadata, after it was drained and stopped for good.

    If it starts again, it registers again.
    """
    with open_admin(bootstrap, timeout_s) as admin:
        situation = read_placement(admin)
        broker = situation.brokers.get(broker_id)
        held = _held(situation, [broker_id])
        if broker is None:
            known = _list(list(situation.brokers))
            raise BrokerNotReady(
                f"there is no broker {broker_id}", advice=f"the cluster has {known}"
            )
        if held:
            raise BrokerNotReady(
                f"broker {broker_id} has {counted(held, 'replica')}",
                advice=f"move them away with `headrace brokers drain {broker_id}`",
            )
        if not broker.is_fenced:
            raise BrokerNotReady(
                f"broker {broker_id} is up and would come back at once", advice="stop it first"
            )
        if not yes:
            confirm(f"Remove broker {broker_id} from the cluster?", "Removing")
        admin.unregister_broker(broker_id)
    if as_json:
        print_json({"broker": broker_id, "removed": True})
    else:
        click.echo(f"removed broker {broker_id}")


@brokers.command(
    epilog=examples(
        "headrace brokers elect",
        "headrace brokers elect --topic orders --topic payments:0-3",
        "headrace brokers elect --topic orders:2 --unclean --yes",
    )
)
@topic_option(
    help="A topic, or some of its partitions (orders:0,2-5); may be repeated. Without it all."
)
@click.option(
    "--unclean",
    is_flag=True,
    help="Where no replica in sync is left, take another one: records may be lost.",
)
@click.option("--yes", is_flag=True, help="Do not ask before an unclean election.")
@client_options
def elect(
    chosen: tuple[ChosenPartitions, ...],
    unclean: bool,
    yes: bool,
    bootstrap: str,
    timeout_s: float,
    as_json: bool,
) -> int:
    """Elect the preferred replica, the first in the list, as leader of each partition."""
    if unclean and not chosen:
        raise click.UsageError("--unclean needs --topic: say which records may be lost.")
    if unclean and not yes:
        confirm("Elect leaders that may lack records?", "An unclean election")
    with open_admin(bootstrap, timeout_s) as admin:
        wanted = chosen_partitions(admin, chosen) if chosen else None
        outcomes = outcomes_of(lambda: admin.elect_leaders(wanted, unclean=unclean))
    elected = [tp for tp, outcome in outcomes.items() if outcome is True]
    if as_json:
        print_json({"elected": [{"topic": tp.topic, "partition": tp.partition} for tp in elected]})
    elif elected:
        click.echo(f"elected leaders of {partitions_text(elected)}")
    else:
        click.echo("no leader changed")
    return report(outcome for outcome in outcomes.values() if isinstance(outcome, KafkaError))
