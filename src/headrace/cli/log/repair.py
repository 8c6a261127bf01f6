"""`headrace log repair` and `repair-metadata`: the damage of a log, and the cost of each repair."""

import os
import shlex
from collections.abc import Iterator
from typing import Any

import click

from headrace.cli.options import examples
from headrace.cli.output import bytes_text, counted
from headrace.cli.terminal_text import printable
from headrace.errors import HeadraceError
from headrace.metadata.image import Image
from headrace.metadata.records import MetadataError, decode_control_batch, decode_record
from headrace.metadata.snapshot import SnapshotContent
from headrace.protocol.records import decode_rows
from headrace.raft.messages import HardState
from headrace.storage.data_directory import LOCK, METADATA_LOG, parse_log_name
from headrace.storage.files import Files
from headrace.storage.metadata_log import SUFFIX, QuorumStateFile
from headrace.storage.metadata_recovery import (
    Batch,
    Examination,
    SoundRemains,
    examine,
    remains_of,
    replace_log,
    set_aside_names,
)
from headrace.storage.repair import (
    DamagedExtent,
    RepairMethod,
    RepairPlan,
    apply_repair,
    plan_repair,
)


def run_repair(path: str, choice: str | None) -> tuple[RepairPlan, list[str] | None]:
    """Plan a repair, and carry it out if it is chosen and needed.

    Returns the plan as it was before, and the files with the removed bytes; None if nothing was
    done.
    """
    plan = plan_repair(path)
    if choice is None or not plan.damaged:
        return plan, None
    return plan, apply_repair(Files(), plan, RepairMethod(choice))


def repaired_lines(plan: RepairPlan, path: str, choice: str, removed: list[str]) -> list[str]:
    """The lines for the user about the effect of a repair."""
    lost = counted(plan.lost_by(RepairMethod(choice)), "offset")
    return [
        f"{path}: repaired; at most {lost} lost",
        *(f"  what was taken out is in {name}" for name in removed),
        "Start the broker: it scans the log and makes its indexes again.",
    ]


def plan_lines(plan: RepairPlan, path: str) -> list[str]:
    """The plan as lines for the user, with the commands that carry it out."""
    offsets = (
        f"offsets {plan.start_offset} to {plan.end_offset - 1}"
        if plan.end_offset > plan.start_offset
        else "no batch that can be read"
    )
    lines = [f"{path}: {offsets}, {bytes_text(plan.size_bytes)}"]
    lines += [f"  {extent_text(extent)}" for extent in plan.damaged]
    if not plan.damaged:
        return [*lines, "There is no damage."]
    first, quoted = plan.damaged[0].first_offset, shlex.quote(path)
    return [
        *lines,
        "Nothing was changed. If another replica has the log whole, stop the broker, move this"
        " directory away, and start it again: it fetches the log.",
        "Otherwise stop the broker, run one of these, and start it again:",
        f"  headrace log repair --skip {quoted}   # loses at most"
        f" {counted(plan.lost_by(RepairMethod.SKIP), 'offset')}, keeps all others",
        f"  headrace log repair --cut {quoted}   # ends the log at offset {first}, loses at most"
        f" {counted(plan.lost_by(RepairMethod.CUT), 'offset')}",
    ]


def extent_text(extent: DamagedExtent) -> str:
    """The text of a damaged extent: file, offsets, reason."""
    name = extent.path.rpartition("/")[2]
    offsets = (
        f"offsets {extent.first_offset} to {extent.end_offset - 1}"
        if extent.end_offset > extent.first_offset
        else f"from offset {extent.first_offset} on"
    )
    byte_count = extent.limit - extent.position
    if byte_count:
        offsets += f" ({byte_count} bytes)"
    elif extent.end_offset > extent.first_offset:
        offsets += " are missing"
    return f"{name} at position {extent.position}: {offsets}: {extent.reason}"


def plan_document(plan: RepairPlan, removed: list[str] | None) -> dict[str, Any]:
    """The plan as JSON; `removed` are the files that a repair has left, None if there was none."""
    return {
        "topic": plan.partition.topic,
        "partition": plan.partition.partition,
        "start_offset": plan.start_offset,
        "end_offset": plan.end_offset,
        "flushed_offset": plan.flushed_offset,
        "damaged": [
            {
                "file": extent.path,
                "position": extent.position,
                "bytes": extent.limit - extent.position,
                "first_offset": extent.first_offset,
                "end_offset": extent.end_offset,
                "reason": extent.reason,
            }
            for extent in plan.damaged
        ],
        "repaired": removed is not None,
        "removed": removed or [],
    }


# `headrace log repair-metadata`: cuts a damaged metadata log before the damage.
#
# Rule: nothing is changed without `--apply`, and nothing is ever deleted: the damaged log is kept
# beside the new one.


_LOST_SHOWN_MAX = 200
_TEXT_CHARACTERS_MAX = 160


class RepairRefused(HeadraceError):
    """A repair that is not possible; the text says why and what to do instead."""


@click.command(
    "repair-metadata",
    epilog=examples(
        "headrace log repair-metadata headrace-data",
        "headrace log repair-metadata headrace-data --apply",
    ),
)
@click.argument("data_directory", metavar="DIR", type=click.Path())
@click.option("--apply", is_flag=True, help="Do it; without this it is only shown.")
@click.option(
    "--from",
    "name",
    metavar="NAME",
    help="Use a metadata log that was set aside, by the name of its directory.",
)
@click.option(
    "--vote",
    is_flag=True,
    help="Have a controller vote again that lost its metadata log and has not fetched it again:"
    " for a cluster in which a majority of the controllers lost theirs.",
)
def repair_metadata(data_directory: str, apply: bool, name: str | None, vote: bool) -> int:
    """Cut the metadata log of a stopped broker before its damage.

    DIR is the first of the broker's data directories. The command shows the records that would be
    lost, and the logs of partitions whose topic would become unknown. With --apply the metadata log
    ends before the damage; the damaged one is kept beside it, and logs of partitions are not
    touched.

    This is for a broker that is the only controller. One of several controllers fetches its
    metadata log again by itself when it is started.
    """
    files = Files()
    path = os.path.abspath(data_directory)
    if name is not None and name not in set_aside_names(files, path):
        known = ", ".join(set_aside_names(files, path)) or "none"
        raise RepairRefused(f"{path} has no {name}; set aside are: {known}")
    lock = files.lock(f"{path}/{LOCK}")
    if lock is None:
        raise RepairRefused(f"the data directory {path} is in use: stop its broker first")
    try:
        return _repair(files, path, name, apply=apply, vote=vote)
    finally:
        lock.release()


def _repair(files: Files, path: str, name: str | None, *, apply: bool, vote: bool) -> int:
    found = examine(files, path, [path], name)
    if found.damage is None and name is None:
        return _repair_vote(files, found, apply=apply, vote=vote)
    remains = remains_of(found)
    if remains is None or not (remains.batches or remains.snapshots):
        raise RepairRefused(
            f"{found.damage or found.directory}: there is nothing left to go on with"
        )
    _show(files, found, remains)
    if not apply:
        click.echo("Nothing was changed; run it again with --apply to do it.")
        return 0
    hard = found.hard_state or HardState()
    if hard.epoch < remains.last_epoch:
        hard = HardState(remains.last_epoch)
    state = hard._replace(may_vote=True, recovering=False)
    aside = replace_log(files, found, os.urandom(8), state=state, remains=remains)
    click.echo(f"The metadata log ends at offset {remains.end_offset} now.")
    if aside is not None:
        click.echo(f"The log as it was is kept: {aside}")
    return 0


def _repair_vote(files: Files, found: Examination, *, apply: bool, vote: bool) -> int:
    state, scan = found.hard_state, found.scan
    click.echo(
        f"{found.directory}: the log is whole, offsets {scan.start_offset} to {scan.end_offset}."
    )
    if state is None or not state.recovering:
        return 0
    click.echo(
        "This controller lost its metadata log, has not fetched again what the others have"
        " committed, and does not vote."
    )
    if not vote:
        click.echo(
            "Start it together with a majority of the controllers. If a majority of them lost their"
            " logs: give --from, with what was set aside, or --vote where nothing better is left."
        )
        return 0
    if not apply:
        click.echo("It would vote again with what it has; run it again with --apply to do it.")
        return 0
    QuorumStateFile(files, found.directory).write(state._replace(may_vote=True, recovering=False))
    click.echo("It votes again with what it has.")
    return 0


def _show(files: Files, found: Examination, remains: SoundRemains) -> None:
    if found.damage is not None:
        click.echo(f"Damaged: {found.damage}")
    click.echo(f"The metadata log would end at offset {remains.end_offset}.")
    lost = [line for batch in remains.lost for line in _lines(batch)]
    if lost:
        click.echo(f"Lost would be {counted(len(lost), 'record')} after the damage:")
        for line in lost[:_LOST_SHOWN_MAX]:
            click.echo("  " + printable(line))
        if len(lost) > _LOST_SHOWN_MAX:
            click.echo(f"  and {len(lost) - _LOST_SHOWN_MAX} more")
    else:
        click.echo("No record that can be read would be lost.")
    topics = _topics(files, found, remains)
    click.echo(f"Topics that remain: {', '.join(sorted(topics)) or 'none'}")
    unknown = [
        name
        for name in files.list_directories(found.data_directory)
        if (partition := parse_log_name(name)) is not None
        and partition != METADATA_LOG
        and partition.topic not in topics
    ]
    if unknown:
        click.echo(f"Logs of partitions without a topic then, which are kept: {', '.join(unknown)}")


def _lines(batch: Batch) -> Iterator[str]:
    """A line for each record of a batch."""
    data, header = batch
    try:
        if header.is_control:
            texts = [repr(message) for message in decode_control_batch(data, header)]
        else:
            texts = [repr(decode_record(row.value or b"")) for row in decode_rows(data, header)]
    except HeadraceError as error:
        texts = [f"unreadable: {error}"]
    for number, text in enumerate(texts):
        shown = text if len(text) <= _TEXT_CHARACTERS_MAX else text[:_TEXT_CHARACTERS_MAX] + "..."
        yield f"{header.base_offset + number}  {shown}"


def _topics(files: Files, found: Examination, remains: SoundRemains) -> set[str]:
    """The topics in the log as it would be without its damage."""
    image = Image()
    try:
        offset = 0
        if remains.snapshots:
            newest = remains.snapshots[-1]
            content = files.read_bytes(f"{found.directory}/{newest}{SUFFIX}") or b""
            image = image.apply(SnapshotContent(content).records())
            offset = newest.end_offset
        for data, header in remains.batches:
            if header.base_offset >= offset and not header.is_control:
                rows = decode_rows(data, header)
                image = image.apply([decode_record(row.value) for row in rows if row.value])
    except MetadataError as error:
        raise RepairRefused(f"what remains of {found.directory} makes no sense: {error}") from error
    return set(image.topics)
