"""`headrace groups reset-offsets`: move a group that is not running to other offsets."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TextIO

import click

from headrace.cli.explain import report
from headrace.cli.options import client_options, examples
from headrace.cli.output import counted, print_json, print_table
from headrace.cli.partitions import (
    Chosen,
    chosen_partitions,
    parse_partitions,
)
from headrace.cli.resets import (
    AtCommitted,
    AtPlan,
    AtShift,
    Reset,
    ResetRefused,
    Target,
    find_resets,
    read_plan,
)
from headrace.cli.session import errors_of, now_ms, open_admin, outcomes_of
from headrace.cli.start import AtEdge, AtOffset, AtTime, parse_duration_ms, parse_time_ms
from headrace.client.administration.admin import Admin
from headrace.client.administration.commands import by_topic
from headrace.client.administration.groups import EMPTY, GroupDescription
from headrace.client.administration.offsets import EARLIEST, LATEST
from headrace.errors import ErrorCode, KafkaError
from headrace.types import TopicPartition

_TARGETS = {
    "to_earliest": "--to-earliest",
    "to_latest": "--to-latest",
    "to_offset": "--to-offset",
    "to_datetime": "--to-datetime",
    "by_duration": "--by-duration",
    "shift_by": "--shift-by",
    "to_current": "--to-current",
    "from_file": "--from-file",
}


@click.command(
    "reset-offsets",
    epilog=examples(
        "headrace groups reset-offsets billing --all-topics --to-earliest",
        "headrace groups reset-offsets billing --topic orders --by-duration 1h --execute",
        "headrace groups reset-offsets billing --topic orders:0,2-5 --shift-by -100",
        "headrace groups reset-offsets billing --all-topics --to-current --json | tee saved.json",
        "cat saved.json | headrace groups reset-offsets billing --from-file - --execute",
    ),
)
@click.argument("name", metavar="GROUP")
@click.option(
    "--topic",
    "chosen",
    type=parse_partitions,
    multiple=True,
    metavar="TOPIC[:N,...]",
    help="A topic, or some of its partitions (orders:0,2-5); may be repeated.",
)
@click.option("--all-topics", is_flag=True, help="Every partition the group has committed.")
@click.option("--to-earliest", is_flag=True, help="To the first record there is.")
@click.option("--to-latest", is_flag=True, help="To the next record to be written.")
@click.option("--to-offset", type=click.IntRange(min=0), metavar="N", help="To this offset.")
@click.option(
    "--to-datetime",
    metavar="TIME",
    help="To the first record not older than a time (2024-05-01T12:00:00Z); without a zone it is"
    " local time.",
)
@click.option(
    "--by-duration",
    metavar="AGE",
    help="To the first record not older than that: 90s, 15m, 1h, 7d.",
)
@click.option(
    "--shift-by",
    type=int,
    metavar="N",
    help="Forward by N records, or back if N is negative.",
)
@click.option(
    "--to-current",
    is_flag=True,
    help="To the committed offset itself, or to the end where there is none.",
)
@click.option(
    "--from-file",
    type=click.File(encoding="utf-8"),
    metavar="FILE",
    help="To offsets from a file, or from stdin with -: lines of topic,partition,offset, or the"
    " JSON this command prints.",
)
@click.option("--execute", is_flag=True, help="Do it. Without this it is only shown.")
@client_options
def reset_offsets(
    name: str,
    chosen: tuple[Chosen, ...],
    all_topics: bool,
    execute: bool,
    bootstrap: str,
    timeout_s: float,
    as_json: bool,
    **targets: Any,
) -> int:
    """Show where GROUP would go on reading, and move it there with --execute.

    The group must have no members. An offset outside the log is replaced by the nearest one in it.
    """
    option = _only_target(targets)
    if (option == "from_file") == bool(chosen or all_topics) or (chosen and all_topics):
        raise click.UsageError(
            "Say which partitions with --topic or --all-topics; with --from-file the file does."
        )
    with open_admin(bootstrap, timeout_s) as admin:
        target = _target(option, targets[option], now_ms())
        _check_stopped(name, outcomes_of(lambda: admin.describe_groups([name]))[name])
        committed = {tp: one.offset for tp, one in admin.group_offsets(name).items()}
        partitions = _partitions(admin, name, chosen, target, committed)
        resets = find_resets(admin, partitions, committed, target)
        _warn_outside(resets)
        errors: Mapping[TopicPartition, KafkaError] = {}
        if execute:
            offsets = {one.tp: one.new_offset for one in resets}
            errors = errors_of(lambda: admin.alter_group_offsets(name, offsets))
    shown = [one for one in resets if one.tp not in errors]
    _print_resets(name, shown, execute, as_json)
    return report(errors.values())


def _only_target(targets: Mapping[str, Any]) -> str:
    # Not by truth: to offset 0, and by 0, are targets too.
    given = [name for name in _TARGETS if targets[name] is not None and targets[name] is not False]
    if len(given) != 1:
        raise click.UsageError(f"Say where to go with one of {', '.join(_TARGETS.values())}.")
    return given[0]


def _target(option: str, value: Any, now_ms: int) -> Target:
    match option:
        case "to_earliest":
            return AtEdge(EARLIEST)
        case "to_latest":
            return AtEdge(LATEST)
        case "to_offset":
            return AtOffset(value)
        case "shift_by":
            return AtShift(value)
        case "to_current":
            return AtCommitted()
        case "from_file":
            file: TextIO = value
            return read_plan(file, file.name)
        case "to_datetime":
            time_ms = parse_time_ms(value)
        case "by_duration":
            age_ms = parse_duration_ms(value)
            time_ms = None if age_ms is None else max(now_ms - age_ms, 0)
    if time_ms is None:
        form = "a time as 2024-05-01T12:00:00Z" if option == "to_datetime" else "an age as 90s, 1h"
        raise click.UsageError(f"{_TARGETS[option]} {value!r} is not {form}.")
    return AtTime(time_ms)


def _check_stopped(name: str, group: GroupDescription | KafkaError) -> None:
    """Refuse to move a group that reads: its members would commit where they are."""
    if isinstance(group, KafkaError):
        if group.code is not ErrorCode.GROUP_ID_NOT_FOUND:
            raise group
        click.echo(f"headrace: group {name} does not exist yet; a reset makes it", err=True)
    elif group.state != EMPTY:
        members = counted(len(group.members), "member")
        raise ResetRefused(
            f"group {name} is {group.state} and has {members}; stop its consumers first,"
            f" `headrace groups describe {name} --members` shows them"
        )


def _partitions(
    admin: Admin,
    group: str,
    chosen: Sequence[Chosen],
    target: Target,
    committed: Mapping[TopicPartition, int],
) -> list[TopicPartition]:
    """The partitions to move: those a plan names, those chosen, or all that are committed."""
    if isinstance(target, AtPlan):
        return chosen_partitions(
            admin,
            [Chosen(topic, tuple(numbers)) for topic, numbers in by_topic(target.offsets).items()],
        )
    if chosen:
        return chosen_partitions(admin, chosen)
    existing = _existing(admin, committed)
    if not existing:
        raise ResetRefused(
            f"group {group} has committed nothing in any topic there is; choose some with --topic"
        )
    return existing


def _existing(admin: Admin, committed: Iterable[TopicPartition]) -> list[TopicPartition]:
    """The partitions that are still there; says which are not."""
    existing = {
        TopicPartition(topic.name, partition.index)
        for topic in admin.list_topics(internal=True).values()
        for partition in topic.partitions
    }
    for tp in committed:
        if tp not in existing:
            click.echo(f"headrace: {tp} does not exist any more; left as it is", err=True)
    return [tp for tp in committed if tp in existing]


def _warn_outside(resets: Iterable[Reset]) -> None:
    for one in resets:
        if one.new_offset != one.wanted_offset:
            click.echo(
                f"headrace: {one.tp} has no offset {one.wanted_offset}, only"
                f" {one.earliest_offset} to {one.latest_offset}; taking {one.new_offset}",
                err=True,
            )


def _print_resets(name: str, resets: Sequence[Reset], executed: bool, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "group": name,
                "executed": executed,
                "offsets": [
                    {
                        "topic": one.tp.topic,
                        "partition": one.tp.partition,
                        "old_offset": one.old_offset,
                        "new_offset": one.new_offset,
                        "change": one.change,
                        "clamped": one.new_offset != one.wanted_offset,
                    }
                    for one in resets
                ],
            }
        )
    elif resets:
        print_table(
            ["TOPIC", "PARTITION", "OLD", "NEW", "CHANGE"],
            [
                (
                    *one.tp,
                    one.old_offset,
                    one.new_offset,
                    None if one.change is None else f"{one.change:+}",
                )
                for one in resets
            ],
        )
    if not executed:
        click.echo("Dry run, nothing is changed; add --execute to do it.", err=True)
    elif resets:
        click.echo(f"Reset {counted(len(resets), 'offset')} of group {name}.", err=True)
