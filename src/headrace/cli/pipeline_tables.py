"""Runs of pipelines in tables."""

import click

from headrace.cli.output import print_table, printable
from headrace.pipelines.run.progress import QueryProgress
from headrace.pipelines.run.state import RunState


def print_queries(state: RunState, *, err: bool = False) -> None:
    """How far each query of a run is, or came."""
    if not state.queries:
        return
    print_table(
        ["QUERY", "BATCHES", "ROWS IN", "ROWS OUT", "ROWS/S", "BATCH TIME", "LAG"],
        [
            (
                one.name,
                f"{one.batches:,}",
                f"{one.rows_in:,}",
                rows_out_text(one),
                f"{one.average:,.0f}" if one.batches else "",
                seconds_text(one.batch_ms) if one.batches else "",
                lag_text(one),
            )
            for one in state.queries
        ],
        err=err,
    )
    for query in state.queries:
        if query.waiting_for is not None and not state.phase.over:
            click.echo(f"{query.name} waits: {printable(query.waiting_for)}", err=err)


def rows_out_text(one: QueryProgress) -> str:
    """The rows a query gave its sink; nothing where nobody counted them."""
    known = 0 if one.rows_out is None and not one.batches else one.rows_out
    return "" if known is None else f"{known:,}"


def lag_text(one: QueryProgress) -> str:
    """How far behind a query is; nothing where it reads no topics."""
    return "" if one.lag is None else f"{one.lag:,}"


def seconds_text(ms: float) -> str:
    """A time for people: 120 ms, 4.2 s, 3 min."""
    if ms < 1000:
        return f"{ms:.0f} ms"
    return f"{ms / 1000:.1f} s" if ms < 120_000 else f"{ms / 60_000:.0f} min"
