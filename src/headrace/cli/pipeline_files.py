"""What all commands about a pipeline have in common: its file, and what is said instead of it."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import click

from headrace.errors import ConfigError
from headrace.pipelines.spec.model import Pipeline, SpecErrors

Command = TypeVar("Command", bound=Callable[..., Any])


def pipeline_file(command: Command) -> Command:
    """The file that declares a pipeline."""
    return click.argument("file", metavar="FILE", type=click.Path(path_type=Path))(command)


def name_option(command: Command) -> Command:
    """For a pipeline that is run more than once."""
    return click.option(
        "--name",
        metavar="NAME",
        help="Give the pipeline another name, and with it groups and checkpoints of its own.",
    )(command)


def bootstrap_override(command: Command) -> Command:
    """Where the cluster is, if not where the file says."""
    return click.option(
        "-b",
        "--bootstrap-server",
        "bootstrap",
        metavar="HOST:PORT[,...]",
        help="Brokers of the pipeline, instead of those in its file.",
    )(command)


def load_pipeline(file: Path, name: str | None = None, bootstrap: str | None = None) -> Pipeline:
    """The pipeline that a file declares, checked, with a name and brokers given on the command
    line. With another name it has another directory for its checkpoints."""
    # PyYAML is for those who have pipelines.
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
