"""`headrace groups`: list, describe, delete, delete-offsets; resets are in `reset_offsets`."""

from collections.abc import Collection, Sequence
from typing import Any

import click

from headrace.cli.clients import errors_of, open_admin, outcomes_of
from headrace.cli.errors import report
from headrace.cli.options import client_options, confirm_deletion, examples, yes_option
from headrace.cli.output import counted, print_json, print_table
from headrace.cli.partitions import ChosenPartitions, partitions_text, topic_option
from headrace.cli.reset_offsets import reset_offsets
from headrace.cli.terminal_text import printable
from headrace.client.admin.admin_requests import by_topic
from headrace.client.admin.groups import (
    GroupDescription,
    GroupListing,
    GroupProgress,
    MemberDescription,
)
from headrace.errors import HeadraceError, KafkaError
from headrace.types import TopicPartition

STATES = (
    "Empty",
    "PreparingRebalance",
    "CompletingRebalance",
    "Stable",
    "Assigning",
    "Reconciling",
    "NotReady",
    "Dead",
)
TYPES = ("classic", "consumer", "share", "streams")

_NO_GROUPS = "No groups; one comes to be when a consumer joins it or commits."


class NothingCommitted(HeadraceError):
    """A group has no committed offset to delete in a partition."""


@click.group(short_help="Watch and reset consumer groups.")
def groups() -> None:
    """List and describe consumer groups, reset their offsets, delete them."""


groups.add_command(reset_offsets)


@groups.command(
    "list",
    epilog=examples(
        "headrace groups list",
        "headrace groups list --state PreparingRebalance --state CompletingRebalance",
        "headrace groups list --type classic --json",
    ),
)
@click.option(
    "--state",
    "states",
    type=click.Choice(STATES, case_sensitive=False),
    multiple=True,
    metavar="STATE",
    help=f"Only groups in this state: {', '.join(STATES)}; may be repeated.",
)
@click.option(
    "--type",
    "types",
    type=click.Choice(TYPES, case_sensitive=False),
    multiple=True,
    metavar="TYPE",
    help=f"Only groups of this type: {', '.join(TYPES)}; may be repeated.",
)
@client_options
def list_groups(
    states: tuple[str, ...], types: tuple[str, ...], bootstrap: str, timeout_s: float, as_json: bool
) -> None:
    """List consumer groups."""
    with open_admin(bootstrap, timeout_s) as admin:
        listed = admin.list_groups(states, types)
        described = outcomes_of(lambda: admin.describe_groups(listed))
    documents = [_summary(listing, described[name]) for name, listing in listed.items()]
    # A group may have changed since it was listed, and old brokers ignore the filter of states.
    documents = [document for document in documents if not states or document["state"] in states]
    if as_json:
        print_json({"groups": documents})
    elif not documents:
        click.echo(_NO_GROUPS, err=True)
    else:
        columns = ("name", "type", "state", "protocol", "members", "coordinator")
        print_table(
            ["GROUP", "TYPE", "STATE", "PROTOCOL", "MEMBERS", "COORDINATOR"],
            [[document[column] for column in columns] for document in documents],
        )


def _summary(listed: GroupListing, described: GroupDescription | KafkaError) -> dict[str, Any]:
    """A line of the list. Members are unknown if the group's type cannot be described."""
    known = described if isinstance(described, GroupDescription) else None
    return {
        "name": listed.name,
        "type": listed.kind or None,
        "state": known.state if known else listed.state,
        "protocol_type": listed.protocol_type,
        "protocol": known.protocol if known else None,
        "members": len(known.members) if known else None,
        "coordinator": listed.coordinator,
    }


@groups.command(
    epilog=examples(
        "headrace groups describe billing",
        "headrace groups describe billing --members",
        "headrace groups describe --json",
    )
)
@click.argument("names", metavar="[GROUP]...", nargs=-1)
@click.option("--offsets", is_flag=True, help="Show committed offsets and lag; the default.")
@click.option("--members", is_flag=True, help="Show members and the partitions they own.")
@client_options
def describe(
    names: tuple[str, ...],
    offsets: bool,
    members: bool,
    bootstrap: str,
    timeout_s: float,
    as_json: bool,
) -> int:
    """Show state, committed offsets, lag and members of GROUPs.

    Without a name every group is shown. JSON always has both offsets and members.
    """
    with open_admin(bootstrap, timeout_s) as admin:
        wanted = names or tuple(admin.list_groups())
        described = outcomes_of(lambda: admin.describe_groups(wanted))
        found = [group for group in described.values() if isinstance(group, GroupDescription)]
        progress = admin.group_progress(found)
    if as_json:
        documents = [_description(group, progress[group.name]) for group in found]
        print_json({"groups": documents})
    elif not described:
        click.echo(_NO_GROUPS, err=True)
    else:
        for number, group in enumerate(found):
            if number:
                click.echo()
            _print_state(group)
            if offsets or not members:
                _print_offsets(progress[group.name])
            if members:
                _print_members(group)
    return report(error for error in described.values() if isinstance(error, KafkaError))


def _print_state(group: GroupDescription) -> None:
    name = "assignor" if group.kind == "consumer" else "protocol"
    protocol = f", {name} {group.protocol}" if group.protocol else ""
    members = counted(len(group.members), "member") if group.members else "no members"
    click.echo(
        printable(
            f"Group {group.name}: {group.state}, {members}{protocol},"
            f" coordinator {group.coordinator}"
        )
    )


def _print_offsets(progress: Sequence[GroupProgress]) -> None:
    if not progress:
        click.echo("No committed offsets, and no partitions assigned")
        return
    print_table(
        ["TOPIC", "PARTITION", "COMMITTED", "END", "LAG", "MEMBER", "CLIENT", "HOST"],
        [
            (
                *partition.tp,
                partition.committed_offset,
                partition.end_offset,
                partition.lag,
                partition.member and partition.member.member_id,
                partition.member and partition.member.client_id,
                partition.member and partition.member.host,
            )
            for partition in progress
        ],
    )
    unknown = sum(partition.lag is None for partition in progress)
    without = f", not counting {counted(unknown, 'partition')} of unknown lag" if unknown else ""
    click.echo(f"Total lag: {_total_lag(progress)}{without}")


def _print_members(group: GroupDescription) -> None:
    if not group.members:
        return
    print_table(
        ["MEMBER", "INSTANCE", "CLIENT", "HOST", "PARTITIONS", "ASSIGNMENT"],
        [
            (
                member.member_id,
                member.instance_id,
                member.client_id,
                member.host,
                None if member.assignment is None else len(member.assignment),
                partitions_text(member.assignment or ()),
            )
            for member in group.members
        ],
    )


def _total_lag(progress: Sequence[GroupProgress]) -> int:
    return sum(partition.lag or 0 for partition in progress)


def _description(group: GroupDescription, progress: Sequence[GroupProgress]) -> dict[str, Any]:
    return {
        "name": group.name,
        "type": group.kind,
        "state": group.state,
        "protocol_type": group.protocol_type,
        "protocol": group.protocol,
        "coordinator": group.coordinator,
        "total_lag": _total_lag(progress),
        "offsets": [
            {
                "topic": partition.tp.topic,
                "partition": partition.tp.partition,
                "committed_offset": partition.committed_offset,
                "end_offset": partition.end_offset,
                "lag": partition.lag,
                "member_id": partition.member and partition.member.member_id,
            }
            for partition in progress
        ],
        "members": [_member_document(member) for member in group.members],
    }


def _member_document(member: MemberDescription) -> dict[str, Any]:
    return {
        "member_id": member.member_id,
        "instance_id": member.instance_id,
        "client_id": member.client_id,
        "host": member.host,
        "subscription": None if member.subscription is None else list(member.subscription),
        "assignment": None if member.assignment is None else by_topic(member.assignment),
        "epoch": member.epoch,
        "pattern": member.pattern,
    }


@groups.command(
    epilog=examples("headrace groups delete billing", "headrace groups delete a b --yes --json")
)
@click.argument("names", metavar="GROUP...", nargs=-1, required=True)
@yes_option
@client_options
def delete(
    names: tuple[str, ...], yes: bool, bootstrap: str, timeout_s: float, as_json: bool
) -> int:
    """Delete GROUPs without members, with all their committed offsets."""
    wanted = list(dict.fromkeys(names))
    if not yes:
        confirm_deletion(f"{', '.join(wanted)} and all committed offsets")
    with open_admin(bootstrap, timeout_s) as admin:
        errors = errors_of(lambda: admin.delete_groups(wanted))
    deleted = [name for name in wanted if name not in errors]
    if as_json:
        print_json({"groups": [{"name": name, "deleted": True} for name in deleted]})
    else:
        for name in deleted:
            click.echo(printable(f"deleted group {name}"))
    return report(errors.values())


@groups.command(
    epilog=examples(
        "headrace groups delete-offsets billing --topic orders",
        "headrace groups delete-offsets billing --topic orders:0-3 --topic payments",
    )
)
@click.argument("name", metavar="GROUP")
@topic_option(
    help="The topic, or some of its partitions (orders:0,2-5); may be repeated.", required=True
)
@client_options
def delete_offsets(
    name: str, chosen: tuple[ChosenPartitions, ...], bootstrap: str, timeout_s: float, as_json: bool
) -> int:
    """Delete the committed offsets of GROUP in topics that none of its members subscribes to."""
    with open_admin(bootstrap, timeout_s) as admin:
        admin.describe_group(name)
        wanted = _committed_in(name, chosen, admin.group_offsets(name))
        errors = errors_of(lambda: admin.delete_group_offsets(name, wanted))
    deleted = [tp for tp in wanted if tp not in errors]
    if as_json:
        partitions = [{"topic": tp.topic, "partition": tp.partition} for tp in deleted]
        print_json({"group": name, "deleted": partitions})
    elif deleted:
        click.echo(f"deleted the offsets of group {name} in {partitions_text(deleted)}")
    return report(errors.values())


def _committed_in(
    group: str, chosen: Sequence[ChosenPartitions], committed: Collection[TopicPartition]
) -> list[TopicPartition]:
    """The chosen partitions, each of which must have a committed offset."""
    found: set[TopicPartition] = set()
    for choice in chosen:
        wanted = [TopicPartition(choice.topic, number) for number in choice.numbers]
        present = [tp for tp in wanted or committed if tp.topic == choice.topic and tp in committed]
        if len(present) < max(len(wanted), 1):
            where = f"{next((tp for tp in wanted if tp not in committed), choice.topic)}"
            raise NothingCommitted(
                f"group {group} has committed nothing in {where}; see what it has with"
                f" `headrace groups describe {group}`"
            )
        found.update(present)
    return sorted(found)
