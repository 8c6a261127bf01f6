"""Output of commands: JSON, tables, records in a format, and progress of a long command."""

import base64
import json
import re
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeAlias

import click

from headrace.cli.terminal_text import for_terminal, is_terminal, printable, printable_json
from headrace.protocol.consumer_records import ConsumerRecord

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress


def print_json(document: Any) -> None:
    """Print a JSON document on one line."""
    text = json.dumps(document, ensure_ascii=False)
    click.echo(printable_json(text) if is_terminal() else text)


def print_table(
    columns: Sequence[str], rows: Sequence[Sequence[object]], *, err: bool = False
) -> None:
    """Print rows under headings: drawn on a terminal, aligned with spaces elsewhere."""
    texts = [[printable("" if cell is None else str(cell)) for cell in row] for row in rows]
    if (sys.stderr if err else sys.stdout).isatty():
        _print_rich(columns, texts, err)
        return
    widths = [max(map(len, column)) for column in zip(columns, *texts, strict=True)]
    for row in [columns, *texts]:
        padded = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        click.echo("  ".join(padded).rstrip(), err=err)


def _print_rich(columns: Sequence[str], rows: Sequence[Sequence[str]], err: bool) -> None:
    # rich takes as long to import as all other modules together.
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        # Text, not markup: square brackets belong to the data.
        table.add_row(*map(Text, row))
    Console(stderr=err).print(table)


def bytes_text(count: float) -> str:
    """A size in decimal units: 1.5 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def counted(number: int, noun: str) -> str:
    """A number and its noun: "1 record", "2,000 records"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


Format: TypeAlias = Callable[[ConsumerRecord], bytes]

TEMPLATE_FIELDS = (
    "%t topic, %p partition, %o offset, %T timestamp in ms, %k key, %v value (or %s), %h headers,"
    " %K and %S the lengths of key and value, %% a percent sign; \\n, \\r, \\t, \\0, \\xNN, \\\\"
)

_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "0": "\0", "\\": "\\"}
_TOKEN = re.compile(r"%(?P<field>.)|\\x(?P<hex>[0-9A-Fa-f]{2})|\\(?P<escape>.)", re.DOTALL)
_TABLE_WIDTHS = (9, 10, 24, 20)
_TABLE_HEADINGS = ("PARTITION", "OFFSET", "TIMESTAMP", "KEY")


def value_line(record: ConsumerRecord) -> bytes:
    """The value of a record, and a newline."""
    return (record.value or b"") + b"\n"


def json_line(record: ConsumerRecord) -> bytes:
    """A record as one JSON object, which `headrace produce --format json` accepts."""
    document = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        **content("key", record.key),
        **content("value", record.value),
        "headers": [{"name": name, **content("value", value)} for name, value in record.headers],
    }
    return json.dumps(document, ensure_ascii=False).encode() + b"\n"


def content(name: str, data: bytes | None) -> dict[str, Any]:
    """Bytes as text if they are UTF-8, else as base64 under another name."""
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}


def table_heading(show_topic: bool) -> bytes:
    """The first line of a table."""
    cells = [
        heading.ljust(width) for heading, width in zip(_TABLE_HEADINGS, _TABLE_WIDTHS, strict=True)
    ]
    return (
        "  ".join([*(["TOPIC" + 15 * " "] if show_topic else []), *cells, "VALUE"]) + "\n"
    ).encode()


def table_format(show_topic: bool, width: int | None) -> Format:
    """Aligned columns, one record a line, cut to `width` characters if given."""

    def record_line(record: ConsumerRecord) -> bytes:
        cells = [
            str(record.partition),
            str(record.offset),
            timestamp_text(record.timestamp),
            _shown(record.key),
        ]
        padded = [cell.ljust(size) for cell, size in zip(cells, _TABLE_WIDTHS, strict=True)]
        if show_topic:
            padded.insert(0, record.topic.ljust(20))
        headers = "".join(f" {name}={_shown(value)}" for name, value in record.headers)
        line = "  ".join([*padded, _shown(record.value)])
        if headers:
            line += f"  [{headers.strip()}]"
        line = line.rstrip()
        if width is not None and len(line) > width:
            line = line[: width - 1] + "…"
        return line.encode() + b"\n"

    return record_line


def _shown(data: bytes | None) -> str:
    return "(null)" if data is None else printable(data.decode(errors="backslashreplace"))


def timestamp_text(timestamp_ms: int) -> str:
    """A timestamp in ISO 8601, UTC; none for a record without one."""
    if timestamp_ms < 0:
        return "none"
    try:
        moment = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return f"{timestamp_ms} ms"  # Beyond the year 9999.
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{timestamp_ms % 1000:03d}Z"


def _header_list(record: ConsumerRecord) -> bytes:
    return b",".join(
        name.encode() + b"=" + (b"NULL" if value is None else value)
        for name, value in record.headers
    )


_FIELDS: dict[str, Callable[[ConsumerRecord], bytes]] = {
    "t": lambda record: record.topic.encode(),
    "p": lambda record: b"%d" % record.partition,
    "o": lambda record: b"%d" % record.offset,
    "T": lambda record: b"%d" % record.timestamp,
    "k": lambda record: record.key or b"",
    "v": lambda record: record.value or b"",
    "s": lambda record: record.value or b"",
    # As in kcat: -1 distinguishes null from empty.
    "K": lambda record: b"%d" % (-1 if record.key is None else len(record.key)),
    "S": lambda record: b"%d" % (-1 if record.value is None else len(record.value)),
    "h": _header_list,
    "%": lambda record: b"%",
}


def value_shown(record: ConsumerRecord) -> bytes:
    """The value of a record for a terminal, and a newline."""
    return for_terminal(record.value or b"") + b"\n"


def json_shown(record: ConsumerRecord) -> bytes:
    """A record as one JSON object for a terminal."""
    return printable_json(json_line(record).decode()).encode()


def template_format(template: str, *, shown: bool = False) -> Format:
    """A format from a template like kcat's; a usage error names an unknown field.

    If `shown`, fields are made safe for a terminal; what the template itself says stays.
    """
    parts: list[bytes | Format] = []
    position = 0
    for match in _TOKEN.finditer(template):
        parts.append(template[position : match.start()].encode())
        position = match.end()
        if match["field"]:
            if match["field"] not in _FIELDS:
                raise click.UsageError(
                    f"--format has no %{match['field']}; it has {TEMPLATE_FIELDS}."
                )
            field = _FIELDS[match["field"]]
            parts.append(_shown_field(field) if shown else field)
        elif match["hex"]:
            parts.append(bytes.fromhex(match["hex"]))
        elif match["escape"] in _ESCAPES:
            parts.append(_ESCAPES[match["escape"]].encode())
        else:
            raise click.UsageError(
                f"--format has no \\{match['escape']}; it has {TEMPLATE_FIELDS}."
            )
    parts.append(template[position:].encode())

    def record_bytes(record: ConsumerRecord) -> bytes:
        return b"".join(part if isinstance(part, bytes) else part(record) for part in parts)

    return record_bytes


def _shown_field(field: Format) -> Format:
    return lambda record: for_terminal(field(record))


class ProgressDisplay:
    """A progress bar on stderr if the total is known, else a counter."""

    def __init__(
        self, label: str, total_bytes: int | None, *, shown: bool, noun: str = "record"
    ) -> None:
        self.items = 0
        self._noun = noun
        self._done_bytes = 0
        self._bar: RichProgress | None = None
        if shown and sys.stderr.isatty():
            self._bar = _bar()
            self._task = self._bar.add_task(label, total=total_bytes, items="")

    @property
    def is_visible(self) -> bool:
        """Whether the bar is shown."""
        return self._bar is not None

    def start(self) -> None:
        if self._bar is not None:
            self._bar.start()

    def advance(self, count_bytes: int) -> None:
        """Add bytes that are done."""
        if self._bar is not None:
            self._done_bytes += count_bytes
            items = counted(self.items, self._noun)
            self._bar.update(self._task, completed=self._done_bytes, items=items)

    def stop(self) -> None:
        if self._bar is not None:
            self._bar.stop()


def _bar() -> "RichProgress":
    # rich takes longer to import than a small command to run.
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import (  # noqa: PLC0415
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TransferSpeedColumn,
    )

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TextColumn("{task.fields[items]}"),
        TransferSpeedColumn(),
        console=Console(stderr=True),
        transient=True,
        refresh_per_second=4,
    )
