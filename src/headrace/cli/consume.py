"""`headrace consume`: records of topics to standard output."""

import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import BinaryIO, NamedTuple

import click

from headrace.cli.clients import IsolationLevelName, now_ms, open_admin, open_consumer
from headrace.cli.interrupts import Interrupts
from headrace.cli.options import client_options, examples, isolation_option
from headrace.cli.output import (
    TEMPLATE_FIELDS,
    Format,
    counted,
    json_line,
    json_shown,
    table_format,
    table_heading,
    template_format,
    value_line,
    value_shown,
)
from headrace.cli.partitions import FORMS, check_numbers, find_ranges, parse_start
from headrace.cli.terminal_text import is_terminal
from headrace.client.admin.admin import Admin
from headrace.client.admin.topics import EARLIEST, LATEST
from headrace.client.consumer.consumer import Consumer
from headrace.client.errors import NoOffset
from headrace.errors import ErrorCode, KafkaError
from headrace.protocol.consumer_records import ConsumerRecord
from headrace.types import TopicPartition

POLL_MS = 500
_FOR_EVER = 2**63


class SkippedOffsets(NamedTuple):
    """Records that retention deleted before they could be read: offsets [start, end)."""

    tp: TopicPartition
    start_offset: int
    end_offset: int


class PartitionReader:
    """Reads partitions with a consumer that has no group. Not thread-safe."""

    def __init__(
        self,
        consumer: Consumer,
        admin: Admin,
        start: Mapping[TopicPartition, int],
        *,
        until: Mapping[TopicPartition, int] | None,
        timeout_s: float,
        on_skip: Callable[[SkippedOffsets], None],
    ) -> None:
        self._consumer = consumer
        self._admin = admin
        self._timeout_s = timeout_s
        self._on_skip = on_skip
        # The end offset of each partition that is not finished.
        self._until = {
            tp: _FOR_EVER if until is None else until[tp]
            for tp, offset in start.items()
            if until is None or offset < until[tp]
        }
        self._heard = time.monotonic()
        consumer.assign(self._until)
        for tp in self._until:
            consumer.seek(tp, start[tp])

    @property
    def unfinished(self) -> list[TopicPartition]:
        """The partitions that are not read to their end, or have no end."""
        return list(self._until)

    def poll(self) -> list[ConsumerRecord]:
        """The next records; none if none arrived for a moment."""
        try:
            records = self._consumer.poll(timeout_ms=POLL_MS)
        except NoOffset:
            self._skip_deleted()
            return []
        if not records:
            self._notice_ends()
            self._check_alive()
            return []
        self._heard = time.monotonic()
        return self._take(records)

    def _take(self, records: Sequence[ConsumerRecord]) -> list[ConsumerRecord]:
        """The records before the end offsets."""
        taken: list[ConsumerRecord] = []
        topic, partition, end = "", -1, 0
        for record in records:
            # A poll returns the records of one partition after those of another.
            if record.partition != partition or record.topic != topic:
                topic, partition = record.topic, record.partition
                end = self._until.get(TopicPartition(topic, partition), 0)
            if record.offset < end:
                taken.append(record)
            if record.offset >= end - 1:
                self._finish(TopicPartition(topic, partition))
        return taken

    def _finish(self, tp: TopicPartition) -> None:
        if self._until.pop(tp, None) is not None:
            self._consumer.pause(tp)

    def _notice_ends(self) -> None:
        """Finish partitions whose last offsets have no records, as after transactions."""
        for tp, end in list(self._until.items()):
            if end != _FOR_EVER and self._consumer.position(tp) >= end:
                self._finish(tp)

    def _check_alive(self) -> None:
        """Ask the brokers whether they are there when nothing has come for long."""
        if self._until and time.monotonic() - self._heard > self._timeout_s:
            self._admin.offsets(dict.fromkeys(self._until, LATEST))
            self._heard = time.monotonic()

    def _skip_deleted(self) -> None:
        """Seek to the start of the log if retention has deleted the next records."""
        positions = {tp: self._consumer.position(tp) for tp in self._until}
        earliest = self._admin.offsets(dict.fromkeys(positions, EARLIEST))
        latest = self._admin.offsets(dict.fromkeys(positions, LATEST))
        for tp, position in positions.items():
            start = earliest[tp].offset
            if position < start:
                self._on_skip(SkippedOffsets(tp, position, start))
                self._consumer.seek(tp, start)
                if start >= self._until[tp]:
                    self._finish(tp)
            elif position > latest[tp].offset:
                raise KafkaError(
                    ErrorCode.OFFSET_OUT_OF_RANGE,
                    f"{tp} has no offset {position}: its log ends before it",
                )


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
@isolation_option
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

    Records of one partition are printed in the order of their offsets. Ctrl-C ends reading and is
    not a failure.
    """
    check_format(format_text, as_json)
    if from_beginning and start_text != "beginning":
        raise click.UsageError(f"--from-beginning and --from {start_text} say different things.")
    names = list(dict.fromkeys(topics))
    form, heading = choose_format(format_text or "value", as_json, len(names) > 1)
    with open_admin(bootstrap, timeout_s) as admin:
        start = parse_start(start_text, now_ms())
        partitions = partitions_of(admin, names, list(dict.fromkeys(numbers)))
        ranges = find_ranges(admin, partitions, start)
        output = sys.stdout.buffer
        output.write(heading)
        with Interrupts() as interrupts, open_consumer(bootstrap, timeout_s, isolation) as consumer:
            ends = {tp: found.end for tp, found in ranges.items()}
            if isolation == "read_committed":
                ends |= consumer.end_offsets(*ends)
            reading = PartitionReader(
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


def check_format(text: str | None, as_json: bool) -> None:
    """A usage error for `--json` with another `--format`."""
    if as_json and text not in (None, "json"):
        raise click.UsageError("--json and --format say different things.")


def choose_format(text: str, as_json: bool, show_topic: bool) -> tuple[Format, bytes]:
    """The printer of records, and the header before the first."""
    shown = is_terminal()
    if as_json or text == "json":
        return json_shown if shown else json_line, b""
    if text == "value":
        return value_shown if shown else value_line, b""
    if text == "table":
        width = shutil.get_terminal_size().columns if shown else None
        return table_format(show_topic, width), table_heading(show_topic)
    if "%" not in text:
        raise click.UsageError(f"--format {text!r} is none of value, json, table, and has no %.")
    return template_format(text, shown=shown), b""


def partitions_of(
    admin: Admin, names: Sequence[str], numbers: Sequence[int]
) -> list[TopicPartition]:
    """The chosen partitions of the topics; all of them if none is chosen."""
    chosen = []
    for name, topic in admin.describe_topics(names).items():
        existing = [partition.index for partition in topic.partitions]
        check_numbers(name, numbers, existing)
        chosen += [TopicPartition(name, number) for number in numbers or existing]
    return chosen


def _polls(reading: PartitionReader, interrupts: Interrupts) -> Iterator[list[ConsumerRecord]]:
    """The records of each poll. Only the wait may be interrupted."""
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
        # A user who follows a log wants to see a record as soon as it arrives.
        output.flush()
        if left is not None:
            left -= len(wanted)
            if left == 0:
                return


def _warn_skipped(skipped: SkippedOffsets) -> None:
    count = counted(skipped.end_offset - skipped.start_offset, "record")
    click.echo(
        f"headrace: {count} of {skipped.tp} deleted by retention before they were read;"
        f" going on at offset {skipped.end_offset}",
        err=True,
    )
