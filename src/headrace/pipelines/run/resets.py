"""Letting queries begin anew: what that removes, and doing it."""

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.errors import ConfigError, HeadraceError
from headrace.pipelines.run.checkpoints import checkpoint_of, query_parts, remove
from headrace.pipelines.run.places import (
    local_directory,
    notes_directory,
    query_checkpoint,
    query_name,
)
from headrace.pipelines.run.state import locked
from headrace.pipelines.spec.model import FileSink, Pipeline, Sink, TopicSource


class ResetRefused(HeadraceError):
    """A reset that would not do what it says."""


@dataclass(frozen=True, slots=True)
class Reset:
    """What happens to one query. `checkpoint` is None if there is none to remove."""

    part: Sink | TopicSource
    query: str
    checkpoint: str | None


def plan_resets(pipeline: Pipeline, queries: Sequence[str] = ()) -> list[Reset]:
    """What a reset of these queries, or of all, would do."""
    parts = {query_name(part): part for part in query_parts(pipeline)}
    for name in queries:
        if name not in parts:
            raise ConfigError(
                f"pipeline {pipeline.name} has no sink or query {name}; it has {', '.join(parts)}"
            )
    return [
        _plan(pipeline, name, part)
        for name, part in parts.items()
        if not queries or name in queries
    ]


def _plan(pipeline: Pipeline, name: str, part: Sink | TopicSource) -> Reset:
    directory = checkpoint_of(pipeline, part)
    where = query_checkpoint(pipeline, name)
    if directory is None:
        raise ResetRefused(
            f"the checkpoint of {name} is {where}, where this command cannot remove it; remove it"
            " there"
        )
    if isinstance(part, Sink) and isinstance(part.target, FileSink):
        _refuse_elsewhere(name, part.target)
    return Reset(part, name, where if directory.exists() else None)


def _refuse_elsewhere(name: str, target: FileSink) -> None:
    """Spark's own sink of files remembers, beside them, the batches of the old checkpoint."""
    if local_directory(target.path) is None:
        raise ResetRefused(
            f"sink {name} writes to {target.path}, where Spark would take the first batches of a"
            " new checkpoint for old ones; give it another path, and it needs no reset"
        )


def do_resets(pipeline: Pipeline, resets: Sequence[Reset], start: str | None) -> None:
    """Remove the checkpoints, if nobody uses them. `start` says where the topics begin: earliest,
    latest, milliseconds since 1970, or None for where the pipeline says."""
    with locked(notes_directory(pipeline), pipeline.name):
        for one in resets:
            remove(pipeline, one.part, start)
