"""Checkpoints of queries: ownership, compatibility checks, and resets."""

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from headrace.errors import ConfigError, HeadraceError
from headrace.pipelines.locations import (
    local_directory,
    notes_directory,
    query_checkpoint,
    query_name,
)
from headrace.pipelines.run.errors import mismatch
from headrace.pipelines.run.run_state import locked
from headrace.pipelines.spec.dependencies import dead_letter_sources, needed
from headrace.pipelines.spec.model import (
    ConsoleSink,
    DeduplicateStep,
    DeltaSink,
    FileSink,
    FormatSource,
    IcebergSink,
    Pipeline,
    PostgresSink,
    Sink,
    Source,
    SqlStep,
    Step,
    Target,
    TopicSink,
    TopicSource,
)

# The properties of a query that must stay the same for its checkpoint to fit.
#
# Pure.
#
# A checkpoint holds positions in sources, by their number, and the state of steps, by their order.
# A query that reads other topics or groups by other columns would continue from meaningless state;
# Spark detects some such changes, late and in its own words. Other properties may change.


# Each property of a query that has to stay, with its value in words.
Fingerprint = Mapping[str, str]

_STATEFUL = re.compile(
    r"\b(?:group\s+by|join|distinct|having|intersect|except)\b"
    r"|\b(?:count|sum|avg|mean|min|max|first|last|any_value|collect_\w+|approx_\w+|window"
    r"|session_window|max_by|min_by|stddev\w*|var\w*|percentile\w*)\s*\(",
    re.IGNORECASE,
)
_SHOWN_MAX = 60


def fingerprint(pipeline: Pipeline, part: Sink | TopicSource) -> dict[str, str]:
    """The properties of a query, of a sink or of dead letters, that must stay the same."""
    found = {"pipeline": pipeline.name}
    if isinstance(part, TopicSource):
        return found | {f"source {part.name}": _source_text(part)}
    for needed_part in needed(pipeline, part.input):
        if isinstance(needed_part, TopicSource | FormatSource):
            if needed_part.streaming:
                found[f"source {needed_part.name}"] = _source_text(needed_part)
        elif state := _state_text(needed_part):
            found[f"step {needed_part.name}"] = state
    found["sink"] = target_text(part.target)
    found["output mode"] = str(part.mode)
    # The directory is left out, so that a pipeline may be moved together with its files.
    inside = f"{pipeline.directory.absolute()}/"
    return {name: text.replace(inside, "") for name, text in found.items()}


def topic_sources(pipeline: Pipeline, part: Sink | TopicSource) -> list[TopicSource]:
    """The topic sources that a query reads as streams."""
    parts = [part] if isinstance(part, TopicSource) else needed(pipeline, part.input)
    return [part for part in parts if isinstance(part, TopicSource) and part.streaming]


def _source_text(source: Source) -> str:
    match source:
        case TopicSource(pattern=None, topics=topics):
            return "topics " + ", ".join(sorted(topics))
        case TopicSource(pattern=pattern):
            return f"topics like {pattern}"
    return f"{source.format} {source.path or ''}".rstrip()


def _state_text(step: Step) -> str | None:
    """A text for the state that a step keeps between batches; None if it has none."""
    match step:
        case DeduplicateStep(input=name, keys=keys):
            return f"first of {name} by {', '.join(keys)}"
        case SqlStep(sql=sql):
            return " ".join(sql.split()) if _STATEFUL.search(sql) else None
    return None


def target_text(target: Target) -> str:
    """A text for the target of rows. Topics are left out: their name may change."""
    match target:
        case TopicSink():
            return "a topic"
        case FileSink(format=kind, path=path):
            return f"{kind} files in {path}"
        case DeltaSink(path=path):
            return f"the Delta table {path}"
        case IcebergSink(table=table):
            return f"the Iceberg table {table}"
        case PostgresSink(table=table):
            return f"the PostgreSQL table {table}"
        case ConsoleSink():
            return "the terminal"


def differences(old: Fingerprint, new: Fingerprint) -> list[str]:
    """The differences between two fingerprints, a phrase for each."""
    gone = [f"{part} is gone" for part in old if part not in new]
    added = [f"{part} is new" for part in new if part not in old]
    changed = [
        _changed_text(part, old[part], new[part])
        for part in new
        if part in old and old[part] != new[part]
    ]
    return [*changed, *gone, *added]


def _changed_text(part: str, old: str, new: str) -> str:
    if part.startswith("step ") and max(len(old), len(new)) > _SHOWN_MAX:
        return f"{part} is different"
    return f"{part} was {old} and is {new}"


_QUERIES = "queries"


def query_parts(pipeline: Pipeline) -> Iterator[Sink | TopicSource]:
    """The parts with a query of their own: sinks, and sources with dead letters."""
    yield from pipeline.sinks
    yield from dead_letter_sources(pipeline)


def claim(pipeline: Pipeline, part: Sink | TopicSource, *, allow_changes: bool) -> None:
    """Check that a query fits its existing checkpoint, and record its fingerprint.

    Raises CheckpointMismatch if it does not fit, unless that is allowed.
    """
    note = _note(pipeline, part)
    new = fingerprint(pipeline, part)
    if note.exists() and _may_exist(pipeline, part):
        changes = differences(json.loads(note.read_text()), new)
        if changes and not allow_changes:
            raise mismatch(pipeline, part, changes)
    _write(note, json.dumps(new, indent=1))


def checkpoint_of(pipeline: Pipeline, part: Sink | TopicSource) -> Path | None:
    """The directory of a query's checkpoint; None if it is not on this machine."""
    return local_directory(query_checkpoint(pipeline, query_name(part)))


def remove(pipeline: Pipeline, part: Sink | TopicSource, start: str | None) -> None:
    """Remove a query's checkpoint, and record a start that differs from the declared one."""
    directory = checkpoint_of(pipeline, part)
    if directory is not None and directory.exists():
        # Renamed first: a partly deleted checkpoint would be worse than a whole one.
        doomed = directory.with_name(f".{directory.name}.removed")
        if doomed.exists():
            shutil.rmtree(doomed)
        directory.rename(doomed)
        shutil.rmtree(doomed)
    _note(pipeline, part).unlink(missing_ok=True)
    if start is None:
        _start_note(pipeline, part).unlink(missing_ok=True)
    else:
        _write(_start_note(pipeline, part), start)


def noted_start(pipeline: Pipeline, part: Sink | TopicSource) -> str | None:
    """The start position chosen by the last reset of a query; None if it chose none."""
    note = _start_note(pipeline, part)
    return note.read_text().strip() if note.exists() else None


def _may_exist(pipeline: Pipeline, part: Sink | TopicSource) -> bool:
    directory = checkpoint_of(pipeline, part)
    return directory is None or (directory / "metadata").exists()


def _note(pipeline: Pipeline, part: Sink | TopicSource) -> Path:
    return notes_directory(pipeline) / _QUERIES / f"{query_name(part)}.json"


def _start_note(pipeline: Pipeline, part: Sink | TopicSource) -> Path:
    return notes_directory(pipeline) / _QUERIES / f"{query_name(part)}.start"


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.{os.getpid()}")
    new.write_text(f"{text}\n")
    new.replace(path)


class CheckpointResetRefused(HeadraceError):
    """A reset that would not have the intended effect."""


@dataclass(frozen=True, slots=True)
class CheckpointReset:
    """The reset of one query. `checkpoint` is None if there is none to remove."""

    part: Sink | TopicSource
    query: str
    checkpoint: str | None


def plan_resets(pipeline: Pipeline, queries: Sequence[str] = ()) -> list[CheckpointReset]:
    """The resets of these queries, by default of all."""
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


def _plan(pipeline: Pipeline, name: str, part: Sink | TopicSource) -> CheckpointReset:
    directory = checkpoint_of(pipeline, part)
    where = query_checkpoint(pipeline, name)
    if directory is None:
        raise CheckpointResetRefused(
            f"the checkpoint of {name} is {where}, where this command cannot remove it; remove it"
            " there"
        )
    if isinstance(part, Sink) and isinstance(part.target, FileSink):
        _refuse_elsewhere(name, part.target)
    return CheckpointReset(part, name, where if directory.exists() else None)


def _refuse_elsewhere(name: str, target: FileSink) -> None:
    """Refuse files in Spark's own sink, which records the batches of the old checkpoint beside
    them.
    """
    if local_directory(target.path) is None:
        raise CheckpointResetRefused(
            f"sink {name} writes to {target.path}, where Spark would take the first batches of a"
            " new checkpoint for old ones; give it another path, and it needs no reset"
        )


def do_resets(pipeline: Pipeline, resets: Sequence[CheckpointReset], start: str | None) -> None:
    """Remove the checkpoints, unless a run uses them. `start` is the new start of the topics:
    earliest, latest, milliseconds since 1970, or None for the declared one.
    """
    with locked(notes_directory(pipeline), pipeline.name):
        for reset in resets:
            remove(pipeline, reset.part, start)


EARLIEST = "earliest"
LATEST = "latest"

_GROUP_OFFSETS = "groupoffsets"


def starting_at(pipeline: Pipeline, start: str | None) -> Pipeline:
    """The pipeline with its topics read from `start`: earliest, latest, or milliseconds since 1970.

    Only a query without a checkpoint uses it. None leaves the pipeline as declared.
    """
    if start is None:
        return pipeline
    sources = tuple(
        replace(source, options=_options(source.options, start))
        if isinstance(source, TopicSource) and source.streaming
        else source
        for source in pipeline.sources
    )
    return replace(pipeline, sources=sources)


def _options(given: Mapping[str, str], start: str) -> dict[str, str]:
    kept = {
        name: text
        for name, text in given.items()
        if not name.lower().startswith("starting") and name.lower() != _GROUP_OFFSETS
    }
    if start in (EARLIEST, LATEST):
        return {**kept, "startingOffsets": start}
    # If no record is so new, reading starts at the end.
    return {
        **kept,
        "startingTimestamp": start,
        "startingOffsetsByTimestampStrategy": "latest",
    }
