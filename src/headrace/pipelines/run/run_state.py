"""The state of a run for other commands: its process, its progress, its end.

A lock shows whether it runs, and the kernel releases it at any end; the rest is one JSON file that
is replaced atomically.
"""

import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, TextIO

from headrace.errors import HeadraceError
from headrace.pipelines.run.progress import BatchProgress, QueryProgress
from headrace.pipelines.spec.part_graph import PartGraph, PartNode

_STATE_FILE = "state.json"
_LOCK_FILE = "lock"
# A command that only tests the lock holds it for a moment itself.
_LOCK_PATIENCE_S = 0.3
_QUERY_FIELDS = [each.name for each in fields(QueryProgress) if each.name != "positions"]


class AlreadyRunning(HeadraceError):
    """The pipeline already runs with these checkpoints."""


class RunPhase(StrEnum):
    """The phase of a run. `KILLED` is never written, only derived."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FINISHED = "finished"
    FAILED = "failed"
    KILLED = "killed"

    @property
    def over(self) -> bool:
        """Whether the run has come to an end."""
        return self in (RunPhase.STOPPED, RunPhase.FINISHED, RunPhase.FAILED, RunPhase.KILLED)


@dataclass(frozen=True, slots=True)
class RunState:
    """One run of a pipeline, as published. Times are ISO 8601 in UTC."""

    pipeline: str
    pid: int
    host: str
    started: str
    updated: str
    phase: RunPhase = RunPhase.STARTING
    master: str = ""
    available_now: bool = False
    error: str | None = None
    queries: tuple[QueryProgress, ...] = ()
    graph: PartGraph = field(default_factory=PartGraph)


def new_state(
    pipeline: str, *, master: str, available_now: bool, graph: PartGraph | None = None
) -> RunState:
    """The state of a run that this process begins now."""
    now = now_text()
    return RunState(
        pipeline,
        os.getpid(),
        socket.gethostname(),
        now,
        now,
        master=master,
        available_now=available_now,
        graph=graph or PartGraph(),
    )


def now_text() -> str:
    """The current time as text, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def to_document(state: RunState) -> dict[str, Any]:
    """The state as a JSON document."""
    plain = {
        each.name: getattr(state, each.name)
        for each in fields(state)
        if each.name not in ("queries", "graph")
    }
    return {
        **plain,
        "phase": state.phase.value,
        "queries": [_query_document(query) for query in state.queries],
        "graph": asdict(state.graph),
    }


def _query_document(query: QueryProgress) -> dict[str, Any]:
    plain = {name: getattr(query, name) for name in _QUERY_FIELDS}
    recent = [asdict(batch) for batch in query.recent]
    return {**plain, "recent": recent, "reasons": dict(query.reasons)}


def from_document(document: dict[str, Any]) -> RunState:
    """The inverse of `to_document`; KeyError or TypeError for any other document.

    A run of an earlier version wrote no graph and no batches.
    """
    queries = tuple(
        QueryProgress(
            **{
                **query,
                "recent": tuple(BatchProgress(**batch) for batch in query.get("recent", ())),
            }
        )
        for query in document["queries"]
    )
    drawn = document.get("graph", {"nodes": (), "edges": ()})
    graph = PartGraph(
        tuple(PartNode(**{**node, "topics": tuple(node["topics"])}) for node in drawn["nodes"]),
        tuple((source, target) for source, target in drawn["edges"]),
    )
    phase = RunPhase(document["phase"])
    return RunState(**{**document, "phase": phase, "queries": queries, "graph": graph})


def write_state(directory: Path, state: RunState) -> None:
    """Replace the state file atomically, so that readers see the old or the new state."""
    document = to_document(replace(state, updated=now_text()))
    new = directory / f".{_STATE_FILE}.{os.getpid()}"
    new.write_text(json.dumps(document, indent=1) + "\n")
    new.replace(directory / _STATE_FILE)


def read_state(directory: Path) -> RunState | None:
    """The newest run's state, or None.

    A run that is not over although its lock is free was killed.
    """
    try:
        state = from_document(json.loads((directory / _STATE_FILE).read_text()))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, KeyError, TypeError, AttributeError):
        path = directory / _STATE_FILE
        raise HeadraceError(f"{path} is no state of a pipeline; remove the file") from None
    if not state.phase.over and holder(directory) is None:
        return replace(state, phase=RunPhase.KILLED)
    return state


@contextmanager
def locked(directory: Path, pipeline: str) -> Iterator[None]:
    """Hold the pipeline's lock for running it or changing its checkpoints; else AlreadyRunning."""
    directory.mkdir(parents=True, exist_ok=True)
    with open(directory / _LOCK_FILE, "a+") as file:
        if not _take(file.fileno()):
            raise AlreadyRunning(_running_text(directory, pipeline))
        file.truncate(0)
        file.write(f"{os.getpid()} {socket.gethostname()} {pipeline}\n")
        file.flush()
        yield


@dataclass(frozen=True, slots=True)
class RunHolder:
    """The process that runs a pipeline now."""

    pid: int
    host: str
    pipeline: str


def holder(directory: Path) -> RunHolder | None:
    """The process that holds the pipeline's lock now, or None."""
    try:
        with open(directory / _LOCK_FILE) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return _read_holder(file)
    except (FileNotFoundError, NotADirectoryError):
        pass
    return None


def _read_holder(file: TextIO) -> RunHolder | None:
    until = time.monotonic() + _LOCK_PATIENCE_S
    while not (text := file.read()):
        # It has the lock and has not written its name yet, or only tested the lock.
        if time.monotonic() > until:
            return None
        time.sleep(0.02)
    pid, host, pipeline = text.split()
    return RunHolder(int(pid), host, pipeline)


def _take(descriptor: int) -> bool:
    until = time.monotonic() + _LOCK_PATIENCE_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                return False
            time.sleep(0.02)
        else:
            return True


def _running_text(directory: Path, pipeline: str) -> str:
    found = holder(directory)
    by = f" by process {found.pid} of {found.host}" if found else ""
    stop = "stop it first with `headrace pipeline stop`"
    if found and found.pipeline != pipeline:
        return (
            f"pipeline {pipeline}: its checkpoint directory {directory.parent} is in use{by}, for"
            f" pipeline {found.pipeline}; {stop}, or give each its own `checkpoint`"
        )
    return f"pipeline {pipeline} is already run{by}; {stop}"
