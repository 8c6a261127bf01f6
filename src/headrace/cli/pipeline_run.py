"""`headrace pipeline run`: the queries in the foreground, and how far they are."""

from pathlib import Path

import click

from headrace.cli.interrupts import INTERRUPTED
from headrace.cli.options import examples, json_option, key_value, unique
from headrace.cli.output import print_json
from headrace.cli.pipeline_display import display
from headrace.cli.pipeline_files import (
    bootstrap_override,
    load_pipeline,
    name_option,
    pipeline_file,
)
from headrace.cli.pipeline_tables import print_queries


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
    verbose: bool,
    quiet: bool,
    name: str | None,
    bootstrap: str | None,
    as_json: bool,
) -> int:
    """Run the pipeline in FILE until Ctrl-C, `headrace pipeline stop`, or an error.

    Each sink goes on from its checkpoint. A stop waits for the batches that run; a second Ctrl-C
    does not.
    """
    config = unique(settings, "--conf")
    found = load_pipeline(file, name, bootstrap)
    from headrace.pipelines.run import runner  # noqa: PLC0415 - only with a pipeline to run
    from headrace.pipelines.run.stopping import StopRequest  # noqa: PLC0415

    stop = StopRequest()
    with display(found.name, shown=not quiet) as screen:
        state = runner.run(
            found,
            master=master,
            available_now=available_now,
            config=config,
            on_progress=screen.show,
            on_warning=screen.warn,
            stop=stop,
            allow_changes=allow_changes,
            verbose=verbose,
        )
    if as_json:
        from headrace.pipelines.run.state import to_document  # noqa: PLC0415

        print_json(to_document(state))
    elif not quiet:
        print_queries(state, err=True)
    return INTERRUPTED if stop.interrupted else 0
