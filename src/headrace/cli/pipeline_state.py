"""`headrace pipeline` status, stop and reset: runs seen from outside. None of them needs Spark."""

import os
import signal
import socket
import time
from pathlib import Path

import click

from headrace.cli.options import confirm_deletion, examples, json_option, timeout_option, yes_option
from headrace.cli.output import print_json
from headrace.cli.pipeline_files import load_pipeline, name_option, pipeline_file
from headrace.cli.pipeline_tables import print_queries
from headrace.cli.start import parse_time_ms
from headrace.errors import HeadraceError
from headrace.pipelines.run.places import notes_directory
from headrace.pipelines.run.resets import Reset, do_resets, plan_resets
from headrace.pipelines.run.starts import EARLIEST, LATEST
from headrace.pipelines.run.state import Holder, RunState, holder, read_state, to_document


class StopFailed(HeadraceError):
    """A run that could not be stopped."""


@click.command(
    epilog=examples(
        "headrace pipeline status orders.yaml",
        "headrace pipeline status orders.yaml --json",
    )
)
@pipeline_file
@name_option
@json_option
def status(file: Path, name: str | None, as_json: bool) -> None:
    """Show whether the pipeline in FILE runs, and how far it is or came."""
    found = load_pipeline(file, name)
    state = read_state(notes_directory(found))
    if as_json:
        print_json(
            {"pipeline": found.name, "phase": None, "queries": []}
            if state is None
            else to_document(state)
        )
    elif state is None:
        click.echo(f"pipeline {found.name} has not been run here")
    else:
        click.echo(_headline(state))
        print_queries(state)


def _headline(state: RunState) -> str:
    if not state.phase.over:
        what = f"{state.phase} since {state.started}, process {state.pid} on {state.host}"
        return f"Pipeline {state.pipeline}: {what}, master {state.master}"
    ended = f"{state.phase} at {state.updated}, started at {state.started}"
    why = f"\n{state.error}" if state.error else ""
    return f"Pipeline {state.pipeline}: {ended}{why}"


@click.command(
    epilog=examples(
        "headrace pipeline stop orders.yaml",
        "headrace pipeline stop orders.yaml --timeout 120",
    )
)
@pipeline_file
@name_option
@timeout_option
def stop(file: Path, name: str | None, timeout_s: float) -> None:
    """Stop the pipeline in FILE after the batches that run, and wait for its end."""
    found = load_pipeline(file, name)
    notes = notes_directory(found)
    who = holder(notes)
    if who is None:
        click.echo(f"pipeline {found.name} does not run", err=True)
        return
    _ask_to_stop(found.name, who)
    until = time.monotonic() + timeout_s
    while holder(notes) == who:
        if time.monotonic() > until:
            raise StopFailed(
                f"pipeline {found.name} still runs after {timeout_s:g} s, as process {who.pid};"
                f" wait longer with --timeout, or end it with `kill -9 {who.pid}`: the next run"
                " does again what is not done"
            )
        time.sleep(0.05)
    click.echo(f"stopped pipeline {found.name}")


def _ask_to_stop(name: str, who: Holder) -> None:
    if who.host != socket.gethostname():
        raise StopFailed(f"pipeline {name} runs on {who.host}, as process {who.pid}; stop it there")
    try:
        os.kill(who.pid, signal.SIGTERM)
    except ProcessLookupError:
        # It has ended meanwhile.
        return
    except PermissionError:
        raise StopFailed(
            f"pipeline {name} is run by another user, as process {who.pid}; stop it as that user"
        ) from None


@click.command(
    epilog=examples(
        "headrace pipeline reset orders.yaml",
        "headrace pipeline reset orders.yaml --sink lake --to latest --yes",
        "headrace pipeline reset orders.yaml --to 2024-05-01T12:00:00Z",
    )
)
@pipeline_file
@click.option(
    "--to",
    "target",
    metavar="WHERE",
    help="Where to begin reading topics: earliest, latest, or a time (2024-05-01T12:00:00Z;"
    " without a zone it is local time). By default where the pipeline says.",
)
@click.option(
    "--sink",
    "sinks",
    multiple=True,
    metavar="NAME",
    help="Only this sink, or this query as `status` names it; may be repeated.",
)
@yes_option
@name_option
@json_option
def reset(
    file: Path,
    target: str | None,
    sinks: tuple[str, ...],
    yes: bool,
    name: str | None,
    as_json: bool,
) -> None:
    """Remove the checkpoints of the pipeline in FILE, so that its next run begins anew.

    What sinks have stays there, and comes a second time if it is read again. The pipeline must not
    be running.
    """
    start = None if target is None else _start(target)
    found = load_pipeline(file, name)
    resets = plan_resets(found, sinks)
    removed = [one.checkpoint for one in resets if one.checkpoint]
    if removed and not yes:
        confirm_deletion(f"{', '.join(removed)} and begin anew")
    do_resets(found, resets, start)
    if as_json:
        print_json(_reset_document(found.name, resets, target))
    else:
        for one in resets:
            click.echo(_reset_line(one, target))


def _start(target: str) -> str:
    if target in (EARLIEST, LATEST):
        return target
    time_ms = parse_time_ms(target)
    if time_ms is None:
        raise click.UsageError(
            f"--to {target!r} is not earliest, latest or a time as 2024-05-01T12:00:00Z."
        )
    return str(time_ms)


def _reset_line(one: Reset, target: str | None) -> str:
    done = f"removed {one.checkpoint}" if one.checkpoint else "no checkpoint to remove"
    where = "where the pipeline says" if target is None else f"at {target}"
    return f"{one.query}: {done}; begins {where}"


def _reset_document(name: str, resets: list[Reset], target: str | None) -> dict[str, object]:
    return {
        "pipeline": name,
        "to": target,
        "queries": [{"name": one.query, "removed": one.checkpoint} for one in resets],
    }
