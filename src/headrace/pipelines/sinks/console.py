"""The console sink: the first rows of each batch as a table."""

from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from headrace.pipelines.sinks.target import MicroBatch
from headrace.pipelines.spec.model import ConsoleSink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_CELL_MAX = 60


class ConsoleTarget:
    """Shows batches. A batch that is run again is shown again: nothing is recorded."""

    def __init__(self, sink: ConsoleSink, console: Console | None = None) -> None:
        self._rows_max = sink.rows
        self._console = console or Console()

    def write(self, frame: "DataFrame", batch: MicroBatch) -> bool:
        """Show the first rows; the others are counted and do not come to the driver."""
        # Persisted, since fetching the first rows alone would run only some of the plan.
        frame.persist()
        try:
            count = frame.count()
            rows = frame.limit(self._rows_max).collect() if count else []
        finally:
            frame.unpersist()
        if count:
            title = heading(batch.sink, batch.number, count, len(rows))
            self._console.print(Text(title), table(frame.columns, rows), sep="\n")
        return True


def heading(sink: str, batch: int, count: int, shown: int) -> str:
    """The title of the table, with its row count."""
    more = f"; the first {shown} are shown" if shown < count else ""
    return f"{sink}, batch {batch}: {count:,} {'row' if count == 1 else 'rows'}{more}"


def table(columns: list[str], rows: list[Any]) -> Table:
    """The rows as a table for the terminal."""
    drawn = Table()
    for column in columns:
        drawn.add_column(Text(column), overflow="ellipsis", max_width=_CELL_MAX)
    for row in rows:
        drawn.add_row(*(cell(value) for value in row))
    return drawn


def cell(value: object) -> Text:
    """A value as text; null is dim, and markup and control characters have no effect."""
    if value is None:
        return Text("null", style="dim")
    shown = value.decode(errors="replace") if isinstance(value, bytes | bytearray) else str(value)
    printable = "".join(
        letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}"
        for letter in shown[: _CELL_MAX * 2]
    )
    return Text(printable)
