"""`headrace consume`: records of topics to standard output."""

import shutil
import sys
from collections.abc import Iterator, Sequence
from typing import BinaryIO

import click

from headrace.cli.formats import (
    TEMPLATE_FIELDS,
    Format,
    json_line,
    table_format,
    table_heading,
    template_format,
    value_line,
)
from headrace.cli.interrupts import Interrupts
from headrace.cli.options import client_options, examples
from headrace.cli.output import counted
from headrace.cli.partitions import check_numbers
from headrace.cli.reading import Reading, Skipped
from headrace.cli.session import IsolationLevelName, now_ms, open_admin, open_consumer
from headrace.cli.start import FORMS, find_ranges, parse_start
from headrace.client.administration.admin import Admin
from headrace.protocol.consumer_records import ConsumerRecord
from headrace.types import TopicPartition


@click.command(
    short_help="Read records from topics.",
    epilog=examples(
        "headrace consume greetings",
        "headrace consume orders --from -1h --format '%p %o %k: %v\\n'",
        "headrace consume orders --partition 0 --from 42 --max-messages 10 --json",
        "headrace consume orders payments --from end --follow --format table",
    ),
)
@click.argument("topics", metavar="TOPIC...", nargs=-1, required=True)
@click.option(
    "--from",
    "start_text",
    metavar="WHERE",
    default="beginning",
    show_default=True,
    help=f"Where to begin: {FORMS}.",
)
@click.option(
    "--from-beginning",
    is_flag=True,
    help="Begin at the beginning, as reading does anyway: kafka-console-consumer's word for it.",
)
@click.option(
    "--partition",
    "numbers",
    type=click.IntRange(min=0),
    multiple=True,
    metavar="N",
    help="Read this partition only; may be repeated.",
)
@click.option(
    "-n", "--max-messages", type=click.IntRange(min=1), metavar="N", help="Stop after N records."
)
@click.option(
    "-f",
    "--follow",
    is_flag=True,
    help="Wait for new records. Without it reading stops where the log ended at the start.",
)
@click.option(
    "--isolation-level",
    "isolation",
    type=click.Choice(["read_uncommitted", "read_committed"]),
    default="read_uncommitted",
    show_default=True,
    metavar="LEVEL",
    help="read_committed leaves out aborted transactions, and stops before open ones.",
)
@click.option(
    "--format",
    "format_text",
    metavar="FORMAT",
    help=f"value, json, table, or a template: {TEMPLATE_FIELDS}.  [default: value]",
)
@client_options
def consume(
    topics: tuple[str, ...],
    start_text: str,
    from_beginning: bool,
    numbers: tuple[int, ...],
    max_messages: int | None,
    follow: bool,
    isolation: IsolationLevelName,
    format_text: str | None,
    bootstrap: str,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Read records of TOPICs and print them.

    Records of one partition come in the order of their offsets. Ctrl-C ends reading and is no
    failure.
    """
    if from_beginning and start_text != "beginning":
        raise click.UsageError(f"--from-beginning and --from {start_text} say different things.")
    names = list(dict.fromkeys(topics))
    form, heading = _choose_format(format_text, as_json, len(names) > 1)
    with open_admin(bootstrap, timeout_s) as admin:
        start = parse_start(start_text, now_ms())
        partitions = _partitions(admin, names, list(dict.fromkeys(numbers)))
        ranges = find_ranges(admin, partitions, start)
        output = sys.stdout.buffer
        output.write(heading)
        with Interrupts() as interrupts, open_consumer(bootstrap, timeout_s, isolation) as consumer:
            ends = {tp: found.end for tp, found in ranges.items()}
            if isolation == "read_committed":
                ends |= consumer.end_offsets(*ends)
            reading = Reading(
                consumer,
                admin,
                {tp: found.start for tp, found in ranges.items()},
                until=None if follow else ends,
                timeout_s=timeout_s,
                on_skip=_warn_skipped,
            )
            try:
                _print_records(_polls(reading, interrupts), max_messages, form, output)
            except KeyboardInterrupt:
                if interrupts.insisted:
                    raise
        output.flush()


def _choose_format(text: str | None, as_json: bool, show_topic: bool) -> tuple[Format, bytes]:
    """How a record is printed, and what is printed before the first."""
    if as_json and text not in (None, "json"):
        raise click.UsageError("--json and --format say different things.")
    if as_json or text == "json":
        return json_line, b""
    if text in (None, "value"):
        return value_line, b""
    if text == "table":
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        return table_format(show_topic, width), table_heading(show_topic)
    if "%" not in text:
        raise click.UsageError(f"--format {text!r} is none of value, json, table, and has no %.")
    return template_format(text), b""


def _partitions(admin: Admin, names: Sequence[str], numbers: Sequence[int]) -> list[TopicPartition]:
    """The chosen partitions of the topics; all of them if none is chosen."""
    chosen = []
    for name, topic in admin.describe_topics(names).items():
        existing = [partition.index for partition in topic.partitions]
        check_numbers(name, numbers, existing)
        chosen += [TopicPartition(name, number) for number in numbers or existing]
    return chosen


def _polls(reading: Reading, interrupts: Interrupts) -> Iterator[list[ConsumerRecord]]:
    """What each poll brings. Only waiting for it may be interrupted."""
    while reading.unfinished:
        with interrupts.allowed():
            records = reading.poll()
        yield records


def _print_records(
    polls: Iterator[list[ConsumerRecord]], max_messages: int | None, form: Format, output: BinaryIO
) -> None:
    left = max_messages
    for records in polls:
        wanted = records if left is None else records[:left]
        output.writelines(map(form, wanted))
        # Whoever follows a log wants to see a record when it comes.
        output.flush()
        if left is not None:
            left -= len(wanted)
            if left == 0:
                return


def _warn_skipped(skipped: Skipped) -> None:
    count = counted(skipped.end_offset - skipped.start_offset, "record")
    click.echo(
        f"headrace: {count} of {skipped.tp} deleted by retention before they were read;"
        f" going on at offset {skipped.end_offset}",
        err=True,
    )
