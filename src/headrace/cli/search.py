"""`headrace search`: records of a topic that an expression selects, to standard output."""

import shutil
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from headrace.cli.clients import IsolationLevelName, consumer_config, now_ms, open_admin
from headrace.cli.consume import check_format, choose_format, partitions_of
from headrace.cli.interrupts import INTERRUPTED
from headrace.cli.options import client_options, examples, isolation_option
from headrace.cli.output import TEMPLATE_FIELDS, Format, bytes_text, counted
from headrace.cli.partitions import FORMS, find_ranges, parse_start
from headrace.client.admin.admin import Admin
from headrace.clock import SystemClock
from headrace.errors import ConfigError
from headrace.protocol.consumer_records import ConsumerRecord

if TYPE_CHECKING:
    from headrace.search.scan_ranges import SearchRequest
    from headrace.search.topic_search import SearchHit, SearchProgress, SearchUpdate

_HITS_MAX = 2**63 - 1


class StatusLine:
    """A line on stderr that is replaced by the next; nothing if stderr is no terminal."""

    def __init__(self) -> None:
        self._is_shown = sys.stderr.isatty()

    def show(self, text: str) -> None:
        if self._is_shown:
            width = max(shutil.get_terminal_size().columns - 1, 1)
            click.echo(f"\r\x1b[K{text[:width]}", nl=False, err=True)

    def erase(self) -> None:
        """Make room for other lines."""
        self.show("")

    def close(self, text: str) -> None:
        """Leave a last line."""
        if self._is_shown:
            self.erase()
            click.echo(text, err=True)


@click.command(
    short_help="Find records by an expression.",
    epilog=examples(
        "headrace search orders espresso",
        "headrace search orders 'value.user.id = 7 and value.total > 100' --from -1h",
        "headrace search orders 'header.trace contains \"4bf9\"' --limit 10 --json",
        "headrace search orders 'value matches \"^err[0-9]+\"' --ignore-case",
    ),
)
@click.argument("topic")
@click.argument("expression", default="")
@click.option(
    "--from",
    "start_text",
    metavar="WHERE",
    default="beginning",
    show_default=True,
    help=f"Where to begin: {FORMS}.",
)
@click.option(
    "--to",
    "end_text",
    metavar="WHERE",
    default="end",
    show_default=True,
    help="Where to end, in the same forms; a time is that of the first record left out.",
)
@click.option(
    "--partition",
    "numbers",
    type=click.IntRange(min=0),
    multiple=True,
    metavar="N",
    help="Search this partition only; may be repeated.",
)
@click.option("-i", "--ignore-case", is_flag=True, help="Let small letters match capitals.")
@click.option(
    "-n", "--limit", type=click.IntRange(min=1), metavar="N", help="Stop after N records."
)
@click.option(
    "--newest-first", is_flag=True, help="Read from the end backwards, a part of the log at a time."
)
@isolation_option
@click.option(
    "--format",
    "format_text",
    metavar="FORMAT",
    help=f"table (the default), value, json, or a template: {TEMPLATE_FIELDS}.",
)
@client_options
def search(
    topic: str,
    expression: str,
    start_text: str,
    end_text: str,
    numbers: tuple[int, ...],
    ignore_case: bool,
    limit: int | None,
    newest_first: bool,
    isolation: IsolationLevelName,
    format_text: str | None,
    bootstrap: str,
    timeout_s: float,
    as_json: bool,
) -> int:
    """Print the records of TOPIC that EXPRESSION selects, as they are found.

    A word or a text in quotes is searched in value, key and headers. Conditions such as
    `value.user.id = 7` look into JSON; docs/search.md has the grammar. Without an expression all
    records are printed. Ctrl-C ends the search at once.
    """
    check_format(format_text, as_json)
    form, heading = choose_format(format_text or "table", as_json, False)
    # pyarrow takes long to import, and is needed by no other command.
    try:
        from headrace.search.scan_ranges import SearchRequest  # noqa: PLC0415
        from headrace.search.topic_search import TopicSearch  # noqa: PLC0415
    except ImportError as error:
        raise ConfigError(f"search needs {error.name}: pip install 'headrace[search]'") from None
    request = SearchRequest(
        topic=topic,
        expression=expression,
        ignore_case=ignore_case,
        hits_max=limit or _HITS_MAX,
        newest_first=newest_first,
    )
    with open_admin(bootstrap, timeout_s) as admin:
        request = _within(admin, request, start_text, end_text, numbers)
    from headrace.client.consumer.consumer import Consumer  # noqa: PLC0415
    from headrace.search.topic_search import search_consumer_config  # noqa: PLC0415

    config = search_consumer_config(consumer_config(bootstrap, timeout_s, isolation))
    status = StatusLine()
    sys.stdout.buffer.write(heading)
    try:
        with Consumer(**config) as consumer:
            found = TopicSearch(consumer, request, SystemClock())
            _print_updates(topic, found.updates(), form, status)
    except KeyboardInterrupt:
        status.close("interrupted")
        return INTERRUPTED
    return 0


def _within(
    admin: Admin, request: "SearchRequest", start_text: str, end_text: str, numbers: tuple[int, ...]
) -> "SearchRequest":
    """The request with the offsets that `--from`, `--to` and `--partition` stand for."""
    from dataclasses import replace  # noqa: PLC0415

    partitions = partitions_of(admin, [request.topic], list(dict.fromkeys(numbers)))
    now = now_ms()
    first = find_ranges(admin, partitions, parse_start(start_text, now))
    last = find_ranges(admin, partitions, parse_start(end_text, now))
    return replace(
        request,
        partitions=tuple(tp.partition for tp in partitions),
        start_offsets={tp.partition: found.start for tp, found in first.items()},
        end_offsets={tp.partition: found.start for tp, found in last.items()},
    )


def _print_updates(
    topic: str, updates: "Iterator[SearchUpdate]", form: Format, status: StatusLine
) -> None:
    output = sys.stdout.buffer
    for update in updates:
        if update.hits:
            status.erase()
            output.writelines(form(_record_of(topic, hit)) for hit in update.hits)
            output.flush()
        if update.end is None:
            status.show(_progress_text(update.progress))
        else:
            status.close(_summary(update.progress))


def _record_of(topic: str, hit: "SearchHit") -> ConsumerRecord:
    return ConsumerRecord(
        topic,
        hit.partition,
        hit.offset,
        hit.timestamp_ms,
        key=hit.key,
        value=hit.value,
        headers=hit.headers,
    )


def _progress_text(progress: "SearchProgress") -> str:
    if not progress.offsets_total:
        return "searching..."
    share = progress.offsets_done / progress.offsets_total
    text = (
        f"{share:.0%} of {counted(progress.offsets_total, 'record')},"
        f" {bytes_text(progress.bytes_read)} read, {progress.records_per_s:,.0f}/s"
    )
    if progress.seconds_left is not None:
        text += f", {progress.seconds_left:.0f} s left"
    return f"{text}, {progress.hits:,} found"


def _summary(progress: "SearchProgress") -> str:
    return (
        f"{progress.hits:,} of {counted(progress.records_read, 'record')} found,"
        f" {bytes_text(progress.bytes_read)} read in {progress.seconds:.1f} s"
    )
