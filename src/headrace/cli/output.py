"""What commands print: JSON for programs, tables for people, plain columns where nobody looks."""

import json
import re
import sys
from collections.abc import Sequence
from typing import Any

import click

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def print_json(document: Any) -> None:
    """One JSON document on one line."""
    click.echo(json.dumps(document, ensure_ascii=False))


def print_table(
    columns: Sequence[str], rows: Sequence[Sequence[object]], *, err: bool = False
) -> None:
    """Rows under headings: drawn on a terminal, aligned with spaces elsewhere."""
    texts = [[printable("" if cell is None else str(cell)) for cell in row] for row in rows]
    if (sys.stderr if err else sys.stdout).isatty():
        _print_rich(columns, texts, err)
        return
    widths = [max(map(len, column)) for column in zip(columns, *texts, strict=True)]
    for row in [columns, *texts]:
        padded = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        click.echo("  ".join(padded).rstrip(), err=err)


def _print_rich(columns: Sequence[str], rows: Sequence[Sequence[str]], err: bool) -> None:
    # rich takes as long to import as everything else together.
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        # Text, not markup: square brackets are the user's own.
        table.add_row(*map(Text, row))
    Console(stderr=err).print(table)


def printable(text: str) -> str:
    """The text with control characters escaped, so that data cannot command the terminal."""
    return _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text)


def bytes_text(count: float) -> str:
    """A size for people, with decimal units: 1.5 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def counted(number: int, noun: str) -> str:
    """A number and its noun: "1 record", "2,000 records"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
