"""`headrace groups reset-offsets`: sets the committed offsets of an inactive group."""

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TextIO, TypeAlias

import click

from headrace.cli.clients import errors_of, now_ms, open_admin, outcomes_of
from headrace.cli.errors import report
from headrace.cli.options import client_options, examples
from headrace.cli.output import counted, print_json, print_table
from headrace.cli.partitions import (
    AtEdge,
    AtOffset,
    AtTime,
    ChosenPartitions,
    chosen_partitions,
    parse_duration_ms,
    parse_time_ms,
    topic_option,
)
from headrace.cli.terminal_text import printable
from headrace.client.admin.admin import Admin
from headrace.client.admin.admin_requests import by_topic
from headrace.client.admin.groups import EMPTY, GroupDescription
from headrace.client.admin.topics import EARLIEST, LATEST
from headrace.errors import ErrorCode, HeadraceError, KafkaError
from headrace.types import TopicPartition

# A line of a plan is some 30 bytes, or 150 as JSON.
_PLAN_CHARACTERS_MAX = 64 * 1_048_576
_OFFSET_MAX = 2**63 - 1


class OffsetResetRefused(HeadraceError):
    """A reset that is not possible; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class AtShift:
    """A number of records after the committed offset, or before it."""

    count: int


@dataclass(frozen=True, slots=True)
class AtCommitted:
    """The committed offset; the end of the log for a partition without one."""


@dataclass(frozen=True, slots=True)
class AtPlan:
    """An offset for each partition."""

    offsets: Mapping[TopicPartition, int]


Target: TypeAlias = AtEdge | AtOffset | AtTime | AtShift | AtCommitted | AtPlan


@dataclass(frozen=True, slots=True)
class PartitionReset:
    """The reset of one partition. `wanted_offset` may be outside the log, `new_offset` is not."""

    tp: TopicPartition
    old_offset: int | None
    wanted_offset: int
    earliest_offset: int
    latest_offset: int

    @property
    def new_offset(self) -> int:
        return min(max(self.wanted_offset, self.earliest_offset), self.latest_offset)

    @property
    def change(self) -> int | None:
        return None if self.old_offset is None else self.new_offset - self.old_offset


def find_resets(
    admin: Admin,
    partitions: Iterable[TopicPartition],
    committed: Mapping[TopicPartition, int],
    target: Target,
) -> list[PartitionReset]:
    """The resets of partitions to a target, in their order."""
    wanted = list(partitions)
    earliest = admin.offsets(dict.fromkeys(wanted, EARLIEST))
    latest = admin.offsets(dict.fromkeys(wanted, LATEST))
    timed = (
        admin.offsets(dict.fromkeys(wanted, target.timestamp_ms))
        if isinstance(target, AtTime)
        else {}
    )
    resets = []
    for tp in wanted:
        low, high, old = earliest[tp].offset, latest[tp].offset, committed.get(tp)
        found = timed[tp].offset if tp in timed else -1
        resets.append(
            PartitionReset(tp, old, _wanted(target, tp, old, low, high, found), low, high)
        )
    return resets


def _wanted(
    target: Target, tp: TopicPartition, committed: int | None, low: int, high: int, found: int
) -> int:
    match target:
        case AtEdge(edge):
            return low if edge == EARLIEST else high
        case AtOffset(offset):
            return offset
        case AtTime():
            return high if found < 0 else found
        case AtCommitted():
            return high if committed is None else committed
        case AtPlan(offsets):
            return offsets[tp]
        case AtShift(count):
            if committed is None:
                raise OffsetResetRefused(
                    f"{tp} has no committed offset to shift from",
                    advice=f"name the partitions that have one, as --topic {tp.topic}:0,1",
                )
            return committed + count


def read_plan(file: TextIO, name: str) -> AtPlan:
    """A plan from a file: lines of topic, partition, offset, or JSON of a reset or its dry run."""
    try:
        text = file.read(_PLAN_CHARACTERS_MAX + 1)
    except UnicodeDecodeError:
        raise OffsetResetRefused(
            f"{name} is no text", advice="write lines as orders,0,42"
        ) from None
    if len(text) > _PLAN_CHARACTERS_MAX:
        raise OffsetResetRefused(f"{name} is too long for a plan", advice="split it")
    offsets: dict[TopicPartition, int] = {}
    rows = _json_rows(text, name) if text.lstrip().startswith("{") else _csv_rows(text, name)
    for where, topic, partition, offset in rows:
        if not topic or partition not in range(2**31) or offset not in range(_OFFSET_MAX + 1):
            raise OffsetResetRefused(
                f"{where} of {name} has no topic, partition and offset",
                advice="write lines as orders,0,42",
            )
        tp = TopicPartition(topic, partition)
        if tp in offsets:
            raise OffsetResetRefused(
                f"{where} of {name} gives {tp} a second time", advice="leave one of them out"
            )
        offsets[tp] = offset
    if not offsets:
        raise OffsetResetRefused(f"{name} has no offsets", advice="write lines as orders,0,42")
    return AtPlan(offsets)


def _csv_rows(text: str, name: str) -> Iterable[tuple[str, str, int, int]]:
    reader = csv.reader(text.splitlines())
    try:
        for row in reader:
            if not row:
                continue
            match [cell.strip() for cell in row]:
                case [topic, partition, offset] if partition.isdecimal() and offset.isdecimal():
                    yield f"line {reader.line_num}", topic, int(partition), int(offset)
                case _:
                    yield f"line {reader.line_num}", "", -1, -1
    except csv.Error as error:
        raise OffsetResetRefused(
            f"{name} is no CSV: {error}", advice="write lines as orders,0,42"
        ) from None


def _json_rows(text: str, name: str) -> Iterable[tuple[str, str, int, int]]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise OffsetResetRefused(
            f"{name} is no JSON: {error}", advice="see what was written to it"
        ) from None
    entries = document.get("offsets")
    if not isinstance(entries, list):
        raise OffsetResetRefused(
            f'{name} has no list "offsets"',
            advice="take what `headrace groups reset-offsets --json` prints",
        )
    for number, entry in enumerate(entries, 1):
        fields = entry if isinstance(entry, dict) else {}
        topic = fields.get("topic")
        yield (
            f"offset {number}",
            topic if isinstance(topic, str) else "",
            _integer(fields.get("partition")),
            _integer(fields.get("new_offset")),
        )


def _integer(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else -1


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
@topic_option(help="A topic, or some of its partitions (orders:0,2-5); may be repeated.")
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
    chosen: tuple[ChosenPartitions, ...],
    all_topics: bool,
    execute: bool,
    bootstrap: str,
    timeout_s: float,
    as_json: bool,
    **targets: Any,
) -> int:
    """Show the new offsets of GROUP, and commit them with --execute.

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
        committed = {tp: found.offset for tp, found in admin.group_offsets(name).items()}
        partitions = _partitions(admin, name, chosen, target, committed)
        resets = find_resets(admin, partitions, committed, target)
        _warn_outside(resets)
        errors: Mapping[TopicPartition, KafkaError] = {}
        if execute:
            offsets = {reset.tp: reset.new_offset for reset in resets}
            errors = errors_of(lambda: admin.alter_group_offsets(name, offsets))
    shown = [reset for reset in resets if reset.tp not in errors]
    _print_resets(name, shown, execute, as_json)
    return report(errors.values())


def _only_target(targets: Mapping[str, Any]) -> str:
    # Not by truth value: to offset 0, and by 0, are targets too.
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
    """Refuse to reset an active group: its members would overwrite the offsets."""
    if isinstance(group, KafkaError):
        if group.code is not ErrorCode.GROUP_ID_NOT_FOUND:
            raise group
        click.echo(
            printable(f"headrace: group {name} does not exist yet; a reset makes it"), err=True
        )
    elif group.state != EMPTY:
        members = counted(len(group.members), "member")
        raise OffsetResetRefused(
            f"group {name} is {group.state} and has {members}",
            advice=(
                f"stop its consumers first, `headrace groups describe {name} --members` shows them"
            ),
        )


def _partitions(
    admin: Admin,
    group: str,
    chosen: Sequence[ChosenPartitions],
    target: Target,
    committed: Mapping[TopicPartition, int],
) -> list[TopicPartition]:
    """The partitions to reset: those in a plan, those chosen, or all with a committed offset."""
    if isinstance(target, AtPlan):
        return chosen_partitions(
            admin,
            [
                ChosenPartitions(topic, tuple(numbers))
                for topic, numbers in by_topic(target.offsets).items()
            ],
        )
    if chosen:
        return chosen_partitions(admin, chosen)
    existing = _existing(admin, committed)
    if not existing:
        raise OffsetResetRefused(
            f"group {group} has committed nothing in any topic there is",
            advice="choose some with --topic",
        )
    return existing


def _existing(admin: Admin, committed: Iterable[TopicPartition]) -> list[TopicPartition]:
    """The partitions that still exist; reports the others."""
    existing = {
        TopicPartition(topic.name, partition.index)
        for topic in admin.list_topics(internal=True).values()
        for partition in topic.partitions
    }
    for tp in committed:
        if tp not in existing:
            click.echo(f"headrace: {tp} does not exist any more; left as it is", err=True)
    return [tp for tp in committed if tp in existing]


def _warn_outside(resets: Iterable[PartitionReset]) -> None:
    for reset in resets:
        if reset.new_offset != reset.wanted_offset:
            click.echo(
                f"headrace: {reset.tp} has no offset {reset.wanted_offset}, only"
                f" {reset.earliest_offset} to {reset.latest_offset}; taking {reset.new_offset}",
                err=True,
            )


def _print_resets(
    name: str, resets: Sequence[PartitionReset], executed: bool, as_json: bool
) -> None:
    if as_json:
        print_json(
            {
                "group": name,
                "executed": executed,
                "offsets": [
                    {
                        "topic": reset.tp.topic,
                        "partition": reset.tp.partition,
                        "old_offset": reset.old_offset,
                        "new_offset": reset.new_offset,
                        "change": reset.change,
                        "clamped": reset.new_offset != reset.wanted_offset,
                    }
                    for reset in resets
                ],
            }
        )
    elif resets:
        print_table(
            ["TOPIC", "PARTITION", "OLD", "NEW", "CHANGE"],
            [
                (
                    *reset.tp,
                    reset.old_offset,
                    reset.new_offset,
                    None if reset.change is None else f"{reset.change:+}",
                )
                for reset in resets
            ],
        )
    if not executed:
        click.echo("Dry run, nothing is changed; add --execute to do it.", err=True)
    elif resets:
        click.echo(printable(f"Reset {counted(len(resets), 'offset')} of group {name}."), err=True)
