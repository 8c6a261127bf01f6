"""`headrace pipeline`: init, check; run is in `pipeline_run`, the rest in `pipeline_state`."""

from pathlib import Path

import click

from headrace.cli.options import examples, json_option
from headrace.cli.output import counted, print_json
from headrace.cli.pipeline_files import (
    load_pipeline,
    name_option,
    pipeline_file,
)
from headrace.cli.pipeline_run import run
from headrace.cli.pipeline_state import reset, status, stop
from headrace.pipelines.spec.model import Pipeline
from headrace.pipelines.spec.order import unused
from headrace.pipelines.spec.templates import TEMPLATES, write


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
    """Write a pipeline to begin with to DIR, by default the current directory.

    No file that is there is changed.
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
    """Say what is wrong with the pipeline in FILE, without running it.

    Exits with 2 if anything is, and with a line for each thing that can be found without Spark.
    """
    found = load_pipeline(file, name)
    for part in unused(found):
        click.echo(f"headrace: {part.place}: no sink needs {part.name}; it is not run", err=True)
    if plan:
        # Spark takes a while to import, and ten times as long to start.
        from headrace.pipelines.run.planning import check_plan  # noqa: PLC0415

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
        "sources": [one.name for one in found.sources],
        "steps": [one.name for one in found.steps],
        "sinks": [one.name for one in found.sinks],
        "checkpoint": found.checkpoint,
    }


for command in (run, status, stop, reset):
    pipeline.add_command(command)
