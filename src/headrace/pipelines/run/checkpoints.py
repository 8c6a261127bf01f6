"""Checkpoints on this machine: which query each belongs to, and how to be rid of them."""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from headrace.pipelines.run.failures import mismatch
from headrace.pipelines.run.fingerprints import differences, fingerprint
from headrace.pipelines.run.places import (
    local_directory,
    notes_directory,
    query_checkpoint,
    query_name,
)
from headrace.pipelines.spec.model import Pipeline, Sink, TopicSource
from headrace.pipelines.spec.order import dead_letter_sources

_QUERIES = "queries"


def query_parts(pipeline: Pipeline) -> Iterator[Sink | TopicSource]:
    """What has a query of its own: each sink, and each source whose bad records are kept."""
    yield from pipeline.sinks
    yield from dead_letter_sources(pipeline)


def claim(pipeline: Pipeline, part: Sink | TopicSource, *, allow_changes: bool) -> None:
    """See that a query fits the checkpoint it has, if it has one, and note whose it is from now on.

    Raises CheckpointMismatch if not, unless that is allowed.
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
    """Remove a query's checkpoint, and note where it begins anew, if not where it is declared."""
    directory = checkpoint_of(pipeline, part)
    if directory is not None and directory.exists():
        # Renamed first: half a checkpoint would be worse than a whole one.
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
    """Where the last reset of a query said that it begins; None if it did not say."""
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
