"""`headrace topics`: create, list, describe, alter, delete."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.clients import SOON_S, errors_of, open_admin, outcomes_of
from headrace.cli.errors import report
from headrace.cli.options import (
    client_options,
    confirm_deletion,
    examples,
    key_value,
    unique,
    yes_option,
)
from headrace.cli.output import counted, print_json, print_table
from headrace.cli.terminal_text import printable
from headrace.client.admin.admin import Admin
from headrace.client.admin.cluster import ReplicaProblem
from headrace.client.admin.topics import EARLIEST, LATEST, NewTopic
from headrace.client.cluster_metadata import PartitionInfo, TopicInfo
from headrace.client.types import OffsetAndTimestamp
from headrace.errors import ErrorCode, KafkaError
from headrace.types import TopicPartition, uuid_text

if TYPE_CHECKING:
    from headrace.client.admin.configs import ConfigEntry
    from headrace.client.admin.topics import EligibleReplicas

# The notes about replicas below the table.
_NOTES = {
    "eligible": "out of sync with every committed record",
    "last_known_eligible": "restarted uncleanly, may lack records",
}


@click.group(short_help="Create, list, change, delete topics.")
def topics() -> None:
    """Create, list, describe, change and delete topics."""


@topics.command(
    epilog=examples(
        "headrace topics create orders --partitions 6",
        "headrace topics create a b c --config retention.ms=3600000",
        "headrace topics create orders --if-not-exists --json",
    )
)
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@click.option(
    "--partitions",
    type=click.IntRange(min=1),
    metavar="N",
    help="Number of partitions; without it the broker's num.partitions.",
)
@click.option(
    "--replication-factor",
    type=click.IntRange(min=1, max=2**15 - 1),
    metavar="N",
    help="Replicas of each partition; without it the broker's default.replication.factor.",
)
@click.option(
    "--config",
    "configs",
    type=key_value,
    multiple=True,
    metavar="KEY=VALUE",
    help="A setting of the topic; may be repeated.",
)
@click.option("--if-not-exists", is_flag=True, help="Leave a topic that exists as it is.")
@client_options
def create(
    names: tuple[str, ...],
    partitions: int | None,
    replication_factor: int | None,
    configs: tuple[tuple[str, str], ...],
    if_not_exists: bool,
    bootstrap: str,
    timeout_s: float,
    as_json: bool,
) -> int:
    """Create topics."""
    settings = unique(configs, "--config")
    wanted = [
        NewTopic(name, partitions or -1, replication_factor or -1, settings)
        for name in dict.fromkeys(names)
    ]
    with open_admin(bootstrap, timeout_s) as admin:
        outcomes = outcomes_of(lambda: admin.create_topics(wanted))
    documents: list[dict[str, Any]] = []
    failures: list[KafkaError] = []
    for name, outcome in outcomes.items():
        if not isinstance(outcome, KafkaError):
            documents.append(
                {
                    "name": name,
                    "created": True,
                    "topic_id": uuid_text(outcome.topic_id),
                    "partitions": outcome.partitions,
                    "replication_factor": outcome.replication_factor,
                }
            )
        elif if_not_exists and outcome.code is ErrorCode.TOPIC_ALREADY_EXISTS:
            documents.append({"name": name, "created": False})
        else:
            failures.append(outcome)
    _print_outcomes(documents, as_json, _created_text)
    return report(failures)


def _created_text(document: Mapping[str, Any]) -> str:
    if not document["created"]:
        return f"topic {document['name']} exists already"
    return (
        f"created topic {document['name']} with {counted(document['partitions'], 'partition')},"
        f" replication factor {document['replication_factor']}"
    )


@topics.command(
    "list", epilog=examples("headrace topics list", "headrace topics list --internal --json")
)
@click.option("--internal", is_flag=True, help="Show the topics that the cluster itself uses too.")
@client_options
def list_topics(internal: bool, bootstrap: str, timeout_s: float, as_json: bool) -> None:
    """List topics."""
    with open_admin(bootstrap, timeout_s) as admin:
        found = list(admin.list_topics(internal=internal).values())
    if as_json:
        print_json({"topics": [_summary(topic) for topic in found]})
    elif not found:
        click.echo("No topics; create one with `headrace topics create NAME`.", err=True)
    else:
        print_table(
            ["TOPIC", "PARTITIONS", "REPLICAS"],
            [(topic.name, len(topic.partitions), _replicas(topic)) for topic in found],
        )


def _replicas(topic: TopicInfo) -> int:
    return max((len(partition.replicas) for partition in topic.partitions), default=0)


def _summary(topic: TopicInfo) -> dict[str, Any]:
    return {
        "name": topic.name,
        "topic_id": uuid_text(topic.topic_id),
        "internal": topic.is_internal,
        "partitions": len(topic.partitions),
        "replication_factor": _replicas(topic),
    }


@topics.command(
    epilog=examples("headrace topics describe", "headrace topics describe orders --json")
)
@click.argument("names", metavar="[NAME]...", nargs=-1)
@client_options
def describe(names: tuple[str, ...], bootstrap: str, timeout_s: float, as_json: bool) -> None:
    """Show partitions, leaders, replicas, offsets, and settings that are not the defaults.

    Without a name all topics are shown except internal ones.
    """
    with open_admin(bootstrap, timeout_s) as admin:
        topics = admin.describe_topics(names) if names else admin.list_topics()
        found = list(topics.values())
        earliest, latest = _offsets(admin, found)
        changed = {
            topic.name: [
                entry
                for entry in admin.describe_configs(topic=topic.name).values()
                if not entry.is_default
            ]
            for topic in found
        }
        eligible = admin.describe_eligible_replicas([topic.name for topic in found])
        alive = {broker.node_id for broker in admin.describe_cluster().brokers}
    problems = _problems(bootstrap, timeout_s, found, alive)
    documents = [
        _description(topic, earliest, latest, eligible, problems, changed[topic.name])
        for topic in found
    ]
    if as_json:
        print_json({"topics": documents})
        return
    for number, document in enumerate(documents):
        if number:
            click.echo()
        _print_description(document)


def _offsets(
    admin: Admin, found: Sequence[TopicInfo]
) -> tuple[dict[TopicPartition, OffsetAndTimestamp], dict[TopicPartition, OffsetAndTimestamp]]:
    """The start and end offsets of every partition with a leader."""
    led = [
        TopicPartition(topic.name, partition.index)
        for topic in found
        for partition in topic.partitions
        if partition.leader >= 0
    ]
    return admin.offsets(dict.fromkeys(led, EARLIEST)), admin.offsets(dict.fromkeys(led, LATEST))


def _problems(
    bootstrap: str, timeout_s: float, found: Sequence[TopicInfo], alive: set[int]
) -> dict[tuple[TopicPartition, int], ReplicaProblem]:
    """The problems of replicas, by partition and broker, as their brokers report them."""
    held = {
        (TopicPartition(topic.name, partition.index), broker): broker in partition.offline
        for topic in found
        for partition in topic.partitions
        for broker in partition.replicas
    }
    asked = sorted(alive & {broker for _, broker in held})
    with open_admin(bootstrap, min(timeout_s, SOON_S)) as admin:
        answers = outcomes_of(lambda: admin.describe_health(asked))
    told = {
        (problem.partition, broker): problem
        for broker, answer in answers.items()
        if not isinstance(answer, KafkaError)
        for problem in answer.problems
    }
    for (tp, broker), is_offline in held.items():
        if broker not in alive and is_offline:
            told[tp, broker] = ReplicaProblem(tp, "offline", f"broker {broker} is down")
        elif is_offline and (tp, broker) not in told:
            reason = f"the cluster takes its log for lost until broker {broker} has all of it again"
            told[tp, broker] = ReplicaProblem(tp, "lost", reason)
    return {place: problem for place, problem in told.items() if place in held}


def _description(
    topic: TopicInfo,
    earliest: Mapping[TopicPartition, OffsetAndTimestamp],
    latest: Mapping[TopicPartition, OffsetAndTimestamp],
    eligible: "Mapping[TopicPartition, EligibleReplicas]",
    problems: Mapping[tuple[TopicPartition, int], ReplicaProblem],
    changed: "Sequence[ConfigEntry]",
) -> dict[str, Any]:
    def partition_document(partition: PartitionInfo) -> dict[str, Any]:
        tp = TopicPartition(topic.name, partition.index)
        known = eligible.get(tp)
        return {
            "partition": partition.index,
            "leader": partition.leader if partition.leader >= 0 else None,
            "leader_epoch": partition.leader_epoch,
            "replicas": list(partition.replicas),
            "isr": list(partition.isr),
            "offline": list(partition.offline),
            "eligible": list(known.eligible) if known else [],
            "last_known_eligible": list(known.last_known) if known else [],
            "problems": [
                {"broker": broker, "state": problem.state, "reason": problem.reason}
                for broker in partition.replicas
                if (problem := problems.get((tp, broker))) is not None
            ],
            "earliest_offset": earliest[tp].offset if tp in earliest else None,
            "latest_offset": latest[tp].offset if tp in latest else None,
        }

    return {
        **_summary(topic),
        "partitions": [partition_document(partition) for partition in topic.partitions],
        "configs": {entry.name: entry.value for entry in changed},
    }


def _print_description(document: Mapping[str, Any]) -> None:
    click.echo(f"Topic {document['name']}, id {document['topic_id']}")
    settings = ", ".join(f"{name}={value}" for name, value in document["configs"].items())
    click.echo(f"Settings: {settings or 'all at their defaults'}")
    print_table(
        ["PARTITION", "LEADER", "REPLICAS", "IN SYNC", "EARLIEST", "LATEST"],
        [
            (
                partition["partition"],
                "none" if partition["leader"] is None else partition["leader"],
                ",".join(map(str, partition["replicas"])),
                ",".join(map(str, partition["isr"])),
                partition["earliest_offset"],
                partition["latest_offset"],
            )
            for partition in document["partitions"]
        ],
    )
    for partition in document["partitions"]:
        notes = [
            f"{words} {', '.join(map(str, partition[name]))}"
            for name, words in _NOTES.items()
            if partition[name]
        ]
        if notes:
            click.echo(f"partition {partition['partition']}: {'; '.join(notes)}")
        for problem in partition["problems"]:
            click.echo(
                printable(
                    f"partition {partition['partition']}: the replica on broker"
                    f" {problem['broker']} is {problem['state']}: {problem['reason']}"
                )
            )


@topics.command(epilog=examples("headrace topics alter orders --partitions 12"))
@click.argument("name")
@click.option(
    "--partitions",
    type=click.IntRange(min=1),
    required=True,
    metavar="N",
    help="The new number of partitions; it can only grow.",
)
@client_options
def alter(name: str, partitions: int, bootstrap: str, timeout_s: float, as_json: bool) -> None:
    """Add partitions to a topic.

    Records stay where they are, so keys that are written later may go to other partitions than
    before. Settings are changed with `headrace configs alter`.
    """
    with open_admin(bootstrap, timeout_s) as admin:
        admin.create_partitions({name: partitions})
    if as_json:
        print_json({"name": name, "partitions": partitions})
    else:
        click.echo(f"topic {name} has {counted(partitions, 'partition')}")


@topics.command(
    epilog=examples("headrace topics delete orders", "headrace topics delete a b --yes --if-exists")
)
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@yes_option
@click.option("--if-exists", is_flag=True, help="Accept that a topic does not exist.")
@client_options
def delete(
    names: tuple[str, ...],
    yes: bool,
    if_exists: bool,
    bootstrap: str,
    timeout_s: float,
    as_json: bool,
) -> int:
    """Delete topics with all their records."""
    wanted = list(dict.fromkeys(names))
    if not yes:
        confirm_deletion(f"{', '.join(wanted)} and all records")
    with open_admin(bootstrap, timeout_s) as admin:
        errors = errors_of(lambda: admin.delete_topics(wanted))
    documents: list[dict[str, Any]] = []
    failures: list[KafkaError] = []
    for name in wanted:
        error = errors.get(name)
        if error is None:
            documents.append({"name": name, "deleted": True})
        elif if_exists and error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            documents.append({"name": name, "deleted": False})
        else:
            failures.append(error)
    _print_outcomes(documents, as_json, _deleted_text)
    return report(failures)


def _deleted_text(document: Mapping[str, Any]) -> str:
    name = document["name"]
    return f"deleted topic {name}" if document["deleted"] else f"topic {name} does not exist"


def _print_outcomes(documents: Sequence[Mapping[str, Any]], as_json: bool, text: Any) -> None:
    if as_json:
        print_json({"topics": list(documents)})
    else:
        for document in documents:
            click.echo(text(document))
