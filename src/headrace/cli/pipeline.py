"""`headrace pipeline`: init, check, run, status, stop and reset."""

import os
import signal
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import click

from headrace.cli.interrupts import INTERRUPTED
from headrace.cli.options import (
    confirm_deletion,
    examples,
    json_option,
    key_value,
    timeout_option,
    unique,
    yes_option,
)
from headrace.cli.output import counted, print_json
from headrace.cli.partitions import parse_time_ms
from headrace.cli.pipeline_display import display, print_queries, print_run
from headrace.errors import ConfigError, HeadraceError
from headrace.pipelines.locations import notes_directory
from headrace.pipelines.run.checkpoints import (
    EARLIEST,
    LATEST,
    CheckpointReset,
    do_resets,
    plan_resets,
)
from headrace.pipelines.run.run_state import RunHolder, RunState, holder, read_state, to_document
from headrace.pipelines.spec.dependencies import unused
from headrace.pipelines.spec.model import Pipeline, SpecErrors
from headrace.pipelines.spec.templates import TEMPLATES, write

Command = TypeVar("Command", bound=Callable[..., Any])


def pipeline_file(command: Command) -> Command:
    """The argument FILE, which declares a pipeline."""
    return click.argument("file", metavar="FILE", type=click.Path(path_type=Path))(command)


def name_option(command: Command) -> Command:
    """The option `--name`, for a pipeline that runs more than once at a time."""
    return click.option(
        "--name",
        metavar="NAME",
        help="Give the pipeline another name, and with it groups and checkpoints of its own.",
    )(command)


def bootstrap_override(command: Command) -> Command:
    """The option that replaces the brokers of a pipeline file."""
    return click.option(
        "-b",
        "--bootstrap-server",
        "bootstrap",
        metavar="HOST:PORT[,...]",
        help="Brokers of the pipeline, instead of those in its file.",
    )(command)


def load_pipeline(file: Path, name: str | None = None, bootstrap: str | None = None) -> Pipeline:
    """The checked pipeline that a file declares, with the name and brokers of the command line.
    With another name it has another directory for its checkpoints.
    """
    # Imported here, because PyYAML is only needed for pipelines.
    from headrace.pipelines.spec import load  # noqa: PLC0415

    try:
        found = load(file)
    except SpecErrors as several:
        for error in several.errors[:-1]:
            click.echo(f"headrace: {error}", err=True)
        raise several.errors[-1] from None
    except ImportError as error:
        raise ConfigError(
            f"pipelines need the package {error.name}; pip install 'headrace[spark]'"
        ) from None
    if bootstrap is not None:
        found = replace(found, broker={**found.broker, "bootstrap.servers": bootstrap})
    if name is not None and name != found.name:
        found = _renamed(found, name)
    return found


def _renamed(found: Pipeline, name: str) -> Pipeline:
    from headrace.pipelines.spec.checks import check  # noqa: PLC0415

    head, _, last = found.checkpoint.rstrip("/").rpartition("/")
    place = f"{head}/{name}" if last == found.name else f"{found.checkpoint}-{name}"
    renamed = replace(found, name=name, checkpoint=place)
    check(renamed)
    return renamed


@click.command(
    epilog=examples(
        "headrace pipeline run orders.yaml",
        "headrace pipeline run orders.yaml --available-now",
        "headrace pipeline run orders.yaml --master 'local[4]' --conf spark.driver.memory=4g",
        "headrace pipeline run orders.yaml --master spark://spark:7077 -b broker:9092",
    )
)
@pipeline_file
@click.option(
    "--master",
    metavar="URL",
    help="Where Spark runs: local[*] (all cores of this machine), spark://HOST:PORT, yarn,"
    " k8s://URL. By default what the pipeline's spark.master says, or local[*].",
)
@click.option(
    "--available-now",
    is_flag=True,
    help="Read what is there now, then end. The next run goes on from there.",
)
@click.option(
    "--conf",
    "settings",
    type=key_value,
    multiple=True,
    metavar="KEY=VALUE",
    help="A setting of Spark's that wins over the pipeline's; may be repeated.",
)
@click.option(
    "--allow-changes",
    is_flag=True,
    help="Go on with a checkpoint though the query was another one when it was made.",
)
@click.option(
    "--metrics-listen",
    metavar="HOST:PORT",
    help="Serve the metrics of the run to Prometheus, at http://HOST:PORT/metrics.",
)
@click.option("--verbose", is_flag=True, help="Show what Spark logs.")
@click.option("-q", "--quiet", is_flag=True, help="No progress and no summary.")
@name_option
@bootstrap_override
@json_option
def run(
    file: Path,
    master: str | None,
    available_now: bool,
    settings: tuple[tuple[str, str], ...],
    allow_changes: bool,
    metrics_listen: str | None,
    verbose: bool,
    quiet: bool,
    name: str | None,
    bootstrap: str | None,
    as_json: bool,
) -> int:
    """Run the pipeline in FILE until Ctrl-C, `headrace pipeline stop`, or an error.

    Each sink continues from its checkpoint. A stop waits for the running batches; a second Ctrl-C
    does not.
    """
    config = unique(settings, "--conf")
    found = load_pipeline(file, name, bootstrap)
    from headrace.pipelines.run import runner  # noqa: PLC0415 - only with a pipeline to run
    from headrace.pipelines.run.queries import StopRequest  # noqa: PLC0415
    from headrace.pipelines.run.run_metrics import RunMetrics  # noqa: PLC0415

    stop, metrics = StopRequest(), RunMetrics()
    with ExitStack() as stack:
        if metrics_listen is not None:
            url = stack.enter_context(metrics.served(metrics_listen))
            if not quiet:
                click.echo(f"metrics: {url}", err=True)
        screen = stack.enter_context(display(found.name, shown=not quiet))

        def on_progress(progress: RunState) -> None:
            metrics.show(progress)
            screen.show(progress)

        state = runner.run(
            found,
            master=master,
            available_now=available_now,
            config=config,
            on_progress=on_progress,
            on_warning=screen.warn,
            stop=stop,
            allow_changes=allow_changes,
            verbose=verbose,
        )
    if as_json:
        from headrace.pipelines.run.run_state import to_document  # noqa: PLC0415

        print_json(to_document(state))
    elif not quiet:
        print_queries(state, err=True)
    return INTERRUPTED if stop.interrupted else 0


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
    """Show whether the pipeline in FILE is running, and its progress."""
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
        print_run(state)


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
    """Stop the pipeline in FILE after its running batches, and wait for its end."""
    found = load_pipeline(file, name)
    notes = notes_directory(found)
    running = holder(notes)
    if running is None:
        click.echo(f"pipeline {found.name} does not run", err=True)
        return
    _request_stop(found.name, running)
    until = time.monotonic() + timeout_s
    while holder(notes) == running:
        if time.monotonic() > until:
            raise StopFailed(
                f"pipeline {found.name} still runs after {timeout_s:g} s, as process {running.pid};"
                f" wait longer with --timeout, or end it with `kill -9 {running.pid}`: the next run"
                " does again what is not done"
            )
        time.sleep(0.05)
    click.echo(f"stopped pipeline {found.name}")


def _request_stop(name: str, running: RunHolder) -> None:
    if running.host != socket.gethostname():
        raise StopFailed(
            f"pipeline {name} runs on {running.host}, as process {running.pid}",
            advice="stop it there",
        )
    try:
        os.kill(running.pid, signal.SIGTERM)
    except ProcessLookupError:
        # The run has ended meanwhile.
        return
    except PermissionError:
        raise StopFailed(
            f"pipeline {name} is run by another user, as process {running.pid}",
            advice="stop it as that user",
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

    Output in the sinks stays there, and is written a second time if its input is read again. The
    pipeline must not be running.
    """
    start = None if target is None else _start(target)
    found = load_pipeline(file, name)
    resets = plan_resets(found, sinks)
    removed = [query.checkpoint for query in resets if query.checkpoint]
    if removed and not yes:
        confirm_deletion(f"{', '.join(removed)} and begin anew")
    do_resets(found, resets, start)
    if as_json:
        print_json(_reset_document(found.name, resets, target))
    else:
        for query in resets:
            click.echo(_reset_line(query, target))


def _start(target: str) -> str:
    if target in (EARLIEST, LATEST):
        return target
    time_ms = parse_time_ms(target)
    if time_ms is None:
        raise click.UsageError(
            f"--to {target!r} is not earliest, latest or a time as 2024-05-01T12:00:00Z."
        )
    return str(time_ms)


def _reset_line(reset: CheckpointReset, target: str | None) -> str:
    done = f"removed {reset.checkpoint}" if reset.checkpoint else "no checkpoint to remove"
    where = "where the pipeline says" if target is None else f"at {target}"
    return f"{reset.query}: {done}; begins {where}"


def _reset_document(
    name: str, resets: list[CheckpointReset], target: str | None
) -> dict[str, object]:
    return {
        "pipeline": name,
        "to": target,
        "queries": [{"name": query.query, "removed": query.checkpoint} for query in resets],
    }


@click.group(short_help="Run data pipelines on Spark.")
def pipeline() -> None:
    """Declare, check, run and watch data pipelines on Spark."""


@pipeline.command(
    epilog=examples(
        "headrace pipeline init",
        "headrace pipeline init shop --template lake",
    )
)
@click.argument(
    "directory",
    metavar="[DIR]",
    default=".",
    type=click.Path(file_okay=False, path_type=Path),
)
@click.option(
    "--template",
    type=click.Choice(sorted(TEMPLATES)),
    default="orders",
    show_default=True,
    help=f"What to begin with: {'; '.join(f'{name}, {text}' for name, text in TEMPLATES.items())}.",
)
def init(directory: Path, template: str) -> None:
    """Write a template of a pipeline to DIR, by default the current directory.

    Existing files are not changed.
    """
    paths = write(directory, template)
    for path in paths:
        click.echo(f"wrote {path}")
    main = paths[0]
    click.echo(
        f"Look at it, then `headrace pipeline check {main}` and `headrace pipeline run {main}`.",
        err=True,
    )


@pipeline.command(
    epilog=examples(
        "headrace pipeline check orders.yaml",
        "headrace pipeline check orders.yaml --plan",
    )
)
@pipeline_file
@click.option(
    "--plan",
    is_flag=True,
    help="Have Spark look at queries and functions too, without reading or writing anything; it"
    " takes some ten seconds.",
)
@name_option
@json_option
def check(file: Path, plan: bool, name: str | None, as_json: bool) -> None:
    """Check the pipeline in FILE without running it, and show all problems.

    The exit status is 2 if there are any, with a line for each one that can be found without Spark.
    """
    found = load_pipeline(file, name)
    for part in unused(found):
        click.echo(f"headrace: {part.place}: no sink needs {part.name}; it is not run", err=True)
    if plan:
        # Spark takes a while to import, and ten times as long to start.
        from headrace.pipelines.run.runner import check_plan  # noqa: PLC0415

        check_plan(found)
    if as_json:
        print_json(_document(found))
    else:
        numbers = ", ".join(
            counted(len(parts), noun)
            for noun, parts in (
                ("source", found.sources),
                ("step", found.steps),
                ("sink", found.sinks),
            )
        )
        click.echo(f"pipeline {found.name}: {numbers}; all right")


def _document(found: Pipeline) -> dict[str, object]:
    return {
        "pipeline": found.name,
        "sources": [source.name for source in found.sources],
        "steps": [step.name for step in found.steps],
        "sinks": [sink.name for sink in found.sinks],
        "checkpoint": found.checkpoint,
    }


for command in (run, status, stop, reset):
    pipeline.add_command(command)
