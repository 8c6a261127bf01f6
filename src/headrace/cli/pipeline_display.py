"""Display of a run: bars on a terminal, lines elsewhere, and tables of queries."""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, TextIO

import click

from headrace.cli.output import print_table
from headrace.cli.terminal_text import printable
from headrace.pipelines.run.progress import QueryProgress
from headrace.pipelines.run.run_state import RunPhase, RunState
from headrace.pipelines.spec.part_graph import PartGraph

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


def print_queries(state: RunState, *, err: bool = False) -> None:
    """The table of a run's queries and their progress."""
    if not state.queries:
        return
    print_table(
        ["QUERY", "BATCHES", "ROWS IN", "ROWS OUT", "ROWS/S", "BATCH TIME", "LAG"],
        [
            (
                query.name,
                f"{query.batches:,}",
                f"{query.rows_in:,}",
                rows_out_text(query),
                f"{query.average:,.0f}" if query.batches else "",
                seconds_text(query.batch_ms) if query.batches else "",
                lag_text(query),
            )
            for query in state.queries
        ],
        err=err,
    )
    for query in state.queries:
        if query.waiting_for is not None and not state.phase.over:
            click.echo(f"{query.name} waits: {printable(query.waiting_for)}", err=err)


_BATCHES_SHOWN = 3
_REASONS_SHOWN = 5


def print_run(state: RunState) -> None:
    """A run for `status`: its parts, the table of its queries, their newest batches, and their
    dead letters by reason.
    """
    for line in graph_lines(state.graph):
        click.echo(printable(line))
    print_queries(state)
    batches = [
        (query, batch) for query in state.queries for batch in query.recent[-_BATCHES_SHOWN:]
    ]
    if batches:
        click.echo()
        print_table(
            ["LAST BATCHES", "BATCH", "STARTED", "ROWS IN", "ROWS OUT", "TIME"],
            [
                (
                    query.name,
                    str(batch.batch),
                    batch.started,
                    f"{batch.rows_in:,}",
                    "" if batch.rows_out is None else f"{batch.rows_out:,}",
                    seconds_text(batch.batch_ms),
                )
                for query, batch in batches
            ],
        )
    reasons = [
        (query.name, f"{count:,}", reason)
        for query in state.queries
        for reason, count in sorted(query.reasons.items(), key=lambda each: -each[1])[
            :_REASONS_SHOWN
        ]
    ]
    if reasons:
        click.echo()
        print_table(["DEAD LETTERS", "RECORDS", "REASON"], reasons)


def graph_lines(graph: PartGraph) -> list[str]:
    """A line for each part: what it is, and what it reads."""
    readers: dict[str, list[str]] = {}
    for source, target in graph.edges:
        readers.setdefault(target, []).append(source.partition(" ")[2])
    return [
        f"  {node.kind} {node.name}: {node.detail}"
        + (f", from {', '.join(readers[node.id])}" if node.id in readers else "")
        for node in graph.nodes
    ]


def rows_out_text(query: QueryProgress) -> str:
    """The rows that a query wrote to its sink; empty if they are not counted."""
    known = 0 if query.rows_out is None and not query.batches else query.rows_out
    return "" if known is None else f"{known:,}"


def lag_text(query: QueryProgress) -> str:
    """The text about a query's lag; empty if it reads no topics."""
    return "" if query.lag is None else f"{query.lag:,}"


def seconds_text(ms: float) -> str:
    """A duration for the user: 120 ms, 4.2 s, 3 min."""
    if ms < 1000:
        return f"{ms:.0f} ms"
    return f"{ms / 1000:.1f} s" if ms < 120_000 else f"{ms / 60_000:.0f} min"


# The shortest interval between two lines about a query.
_LINE_S = 5.0

_PHASES = {
    RunPhase.STARTING: "starting Spark",
    RunPhase.RUNNING: "running",
    RunPhase.STOPPING: "stopping after the batches that run",
}


class RunDisplay(Protocol):
    """The display of a run. Called from more than one thread."""

    def show(self, state: RunState) -> None:
        """Show the state of the run."""

    def warn(self, line: str) -> None:
        """Show a warning to the user."""


@contextmanager
def display(pipeline: str, *, shown: bool) -> Iterator[RunDisplay]:
    """The display of a run: on stderr, which other code may redirect meanwhile."""
    # While Spark starts, stderr is a pipe to its log.
    with os.fdopen(os.dup(2), "w", buffering=1) as stderr:
        if not shown or not sys.stderr.isatty():
            yield ProgressLines(pipeline, stderr, shown=shown)
            return
        with ProgressBars(pipeline, stderr) as bars:
            yield bars


class ProgressLines:
    """Prints a line after a batch of a query, at limited intervals."""

    def __init__(self, pipeline: str, stderr: TextIO, *, shown: bool) -> None:
        self._pipeline = pipeline
        self._stderr = stderr
        self._shown = shown
        self._phase: RunPhase | None = None
        self._printed: dict[str, tuple[int, float]] = {}

    def show(self, state: RunState) -> None:
        if not self._shown:
            return
        if state.phase is not self._phase:
            self._phase = state.phase
            if state.phase in _PHASES:
                self._print(f"pipeline {self._pipeline}: {_PHASES[state.phase]}")
        now = time.monotonic()
        for query in state.queries:
            batches, at = self._printed.get(query.name, (0, 0.0))
            if query.batches > batches and (now - at > _LINE_S or not query.active):
                self._printed[query.name] = (query.batches, now)
                self._print(line_of(query))

    def warn(self, line: str) -> None:
        self._print(f"headrace: {printable(line)}")

    def _print(self, text: str) -> None:
        self._stderr.write(f"{text}\n")


def line_of(query: QueryProgress) -> str:
    """A query's progress as one line."""
    facts = [
        f"batch {query.batch}",
        f"{query.rows_in:,} rows",
        f"{query.rows_per_second:,.0f} rows/s",
        seconds_text(query.batch_ms),
    ]
    if query.lag is not None:
        facts.append(f"lag {lag_text(query)}")
    return f"{query.name}: {', '.join(facts)}"


class ProgressBars:
    """Shows a bar for each query towards the end of its topics."""

    def __init__(self, pipeline: str, stderr: TextIO) -> None:
        # rich takes longer to import than a small command to run.
        from rich.console import Console  # noqa: PLC0415

        self._console = Console(file=stderr, force_terminal=True)
        self._progress = _progress(self._console)
        self._head = self._progress.add_task(
            f"[bold]{pipeline}", total=None, rate="", lag="", batch="", time=""
        )
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> "ProgressBars":
        self._progress.start()
        return self

    def __exit__(self, *exit_: object) -> None:
        self._progress.stop()

    def show(self, state: RunState) -> None:
        words = _PHASES.get(state.phase, str(state.phase))
        self._progress.update(self._head, rate=words, visible=not state.phase.over)
        for query in state.queries:
            self._progress.update(self._task(query.name), **_columns(query))

    def warn(self, line: str) -> None:
        self._console.print(f"headrace: {printable(line)}", markup=False, highlight=False)

    def _task(self, name: str) -> "TaskID":
        if name not in self._tasks:
            self._tasks[name] = self._progress.add_task(
                name, total=None, rate="", lag="", batch="", time=""
            )
        return self._tasks[name]


def _columns(query: QueryProgress) -> dict[str, Any]:
    fraction = query.fraction
    return {
        "total": None if fraction is None else 1.0,
        "completed": fraction or 0.0,
        "rate": f"{query.rows_per_second:,.0f} rows/s" if query.batches else "",
        "lag": "" if query.lag is None else f"lag {lag_text(query)}",
        "batch": "" if query.batch is None else f"batch {query.batch}",
        "time": seconds_text(query.batch_ms) if query.batches else "",
    }


def _progress(console: object) -> "Progress":
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import BarColumn, Progress, TextColumn  # noqa: PLC0415

    assert isinstance(console, Console)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[rate]}", justify="right"),
        TextColumn("{task.fields[lag]}", justify="right"),
        TextColumn("{task.fields[batch]}", justify="right"),
        TextColumn("{task.fields[time]}", justify="right"),
        console=console,
        refresh_per_second=4,
        # Output of a console sink is printed above the bars, unless it is redirected.
        redirect_stdout=sys.stdout.isatty(),
        redirect_stderr=False,
    )
