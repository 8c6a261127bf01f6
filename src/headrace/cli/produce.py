"""`headrace produce`: records from lines, JSON lines or files into a topic."""

import os
import stat
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import BinaryIO, cast

import click

from headrace.cli.explain import explain
from headrace.cli.input import (
    InputError,
    InputRecord,
    Place,
    Watch,
    parse_json,
    read_lines,
    read_whole,
    split_key,
)
from headrace.cli.interrupts import INTERRUPTED, Interrupts
from headrace.cli.options import client_options, examples, key_value
from headrace.cli.output import bytes_text, counted, print_json
from headrace.cli.progress import Progress
from headrace.cli.session import open_cluster
from headrace.client.batches import Header
from headrace.client.cluster import UnknownTopic
from headrace.client.writer import ACKS_ALL, Failure, Writer, WriterOptions
from headrace.errors import HeadraceError
from headrace.protocol.compression import Compression
from headrace.types import TopicPartition

FAILURES_SHOWN_MAX = 10
_DEFAULTS = WriterOptions()
_ACKS = {"0": 0, "1": 1, "all": ACKS_ALL, "-1": ACKS_ALL}


@dataclass(frozen=True, slots=True)
class _Job:
    """What to read, and how a line becomes a record."""

    topic: str
    paths: Sequence[str]
    input_format: str
    whole_file: bool
    key: bytes | None
    key_separator: bytes | None
    headers: tuple[Header, ...]
    partition: int | None
    repartition: bool
    tombstones: bool
    rate: float | None
    count: int | None


@dataclass(slots=True)
class _Outcome:
    """What came of it."""

    failed: int = 0
    failures: list[Failure] = field(default_factory=list)
    interrupted: bool = False

    def note(self, failure: Failure) -> None:
        self.failed += len(failure.tags)
        if len(self.failures) < FAILURES_SHOWN_MAX:
            self.failures.append(failure)


@click.command(
    epilog=examples(
        "echo hello | headrace produce greetings",
        "headrace produce orders --key-separator : orders.txt",
        "headrace produce events --format json --compression zstd events.jsonl",
        "headrace produce images --whole-file --header type=png *.png",
        "headrace consume a --json | headrace produce b --format json --repartition",
    )
)
@click.argument("topic")
@click.argument("paths", metavar="[FILE]...", nargs=-1)
@click.option(
    "--format",
    "input_format",
    type=click.Choice(["lines", "json"]),
    default="lines",
    show_default=True,
    help="What a line of input is: a value, or a JSON object with value, key, headers, partition"
    " and timestamp.",
)
@click.option("--whole-file", is_flag=True, help="Make each file one record.")
@click.option("--key", metavar="TEXT", help="The key of records that bring none.")
@click.option(
    "--key-separator", metavar="TEXT", help="What stands between key and value in each line."
)
@click.option(
    "--header",
    "headers",
    type=key_value,
    multiple=True,
    metavar="NAME=VALUE",
    help="A header of every record; may be repeated.",
)
@click.option(
    "--partition",
    type=click.IntRange(min=0),
    metavar="N",
    help="The partition of records that bring none; without it the key decides.",
)
@click.option(
    "--repartition",
    is_flag=True,
    help="Ignore the partitions that JSON input names, and let the key decide.",
)
@click.option("--tombstones", is_flag=True, help="Make empty values null, which deletes a key.")
@click.option(
    "--acks",
    type=click.Choice(list(_ACKS)),
    default="all",
    show_default=True,
    help="Replicas that must have a record before it counts as written.",
)
@click.option(
    "--compression",
    type=click.Choice([codec.name.lower() for codec in Compression]),
    default="none",
    show_default=True,
    help="How batches are compressed.",
)
@click.option(
    "--batch-size",
    type=click.IntRange(min=1),
    metavar="BYTES",
    default=_DEFAULTS.batch_bytes,
    show_default=True,
    help="Bytes of records that go to a partition at once.",
)
@click.option(
    "--linger-ms",
    type=click.IntRange(min=0),
    metavar="MS",
    default=_DEFAULTS.linger_ms,
    show_default=True,
    help="How long a batch may wait for more records.",
)
@click.option(
    "--idempotence/--no-idempotence",
    "idempotent",
    default=True,
    show_default=True,
    help="Whether a retry can never write a record twice; needs --acks all.",
)
@click.option(
    "--rate",
    type=click.FloatRange(min=0, min_open=True),
    metavar="N",
    help="Write at most N records a second.",
)
@click.option(
    "--count", type=click.IntRange(min=1), metavar="N", help="Stop after N records of the input."
)
@click.option("-q", "--quiet", is_flag=True, help="No progress and no summary.")
@client_options
def produce(
    topic: str,
    paths: tuple[str, ...],
    input_format: str,
    whole_file: bool,
    key: str | None,
    key_separator: str | None,
    headers: tuple[tuple[str, str], ...],
    partition: int | None,
    repartition: bool,
    tombstones: bool,
    acks: str,
    compression: str,
    batch_size: int,
    linger_ms: int,
    idempotent: bool,
    rate: float | None,
    count: int | None,
    quiet: bool,
    bootstrap: str,
    timeout_s: float,
    as_json: bool,
) -> int:
    """Write records to TOPIC from FILEs, or from standard input without any; - is standard input.

    Each line is one record, without its newline. The exit status is 1 if a record could not be
    written, and stderr names it.
    """
    job = _Job(
        topic,
        paths or ("-",),
        input_format,
        whole_file,
        None if key is None else key.encode(),
        _separator(key_separator, input_format, whole_file),
        tuple((name, value.encode()) for name, value in headers),
        partition,
        repartition,
        tombstones,
        rate,
        count,
    )
    options = WriterOptions(
        acks=_ACKS[acks],
        compression=Compression[compression.upper()],
        # Only acks from all replicas make a retry safe, as in Kafka.
        idempotent=idempotent and _ACKS[acks] == ACKS_ALL,
        batch_bytes=batch_size,
        linger_ms=linger_ms,
    )
    outcome = _Outcome()
    begun = time.monotonic()
    with open_cluster(bootstrap, timeout_s) as cluster:
        # Before any input is read: a wrong topic or address is not the first line's fault.
        cluster.topics([topic], create=True)
        if partition is not None:
            cluster.partition(TopicPartition(topic, partition))
        writer = Writer(cluster, options, outcome.note)
        try:
            _run(job, writer, options, outcome, quiet)
        finally:
            _report(outcome)
    seconds = time.monotonic() - begun
    if as_json:
        print_json(
            {
                "topic": topic,
                "records": writer.records_written,
                "bytes": writer.bytes_written,
                "failed": outcome.failed,
                "seconds": round(seconds, 6),
            }
        )
    elif not quiet:
        click.echo(_summary(writer.records_written, writer.bytes_written, seconds), err=True)
    if outcome.interrupted:
        return INTERRUPTED
    return 1 if outcome.failed else 0


def _summary(records: int, written_bytes: int, seconds: float) -> str:
    speed = bytes_text(written_bytes / max(seconds, 1e-6))
    return (
        f"{counted(records, 'record')}, {bytes_text(written_bytes)} in {seconds:.2f} s, {speed}/s"
    )


def _report(outcome: _Outcome) -> None:
    """Name the records that were not written."""
    named = 0
    for failure in outcome.failures:
        first, more = failure.tags[0], len(failure.tags) - 1
        also = f" and {counted(more, 'record')} after it" if more else ""
        click.echo(f"headrace: {first}{also} not written: {explain(failure.error)}", err=True)
        named += len(failure.tags)
    if outcome.failed > named:
        rest = counted(outcome.failed - named, "further record")
        click.echo(f"headrace: {rest} not written", err=True)


def _separator(text: str | None, input_format: str, whole_file: bool) -> bytes | None:
    if text is None:
        return None
    if input_format == "json" or whole_file:
        raise click.UsageError("--key-separator is for lines, not for JSON or whole files.")
    if not text:
        raise click.UsageError("--key-separator is empty.")
    return text.encode()


def _run(job: _Job, writer: Writer, options: WriterOptions, outcome: _Outcome, quiet: bool) -> None:
    """Write until the input ends, the count is reached or the user stops it."""
    progress = Progress(f"to {job.topic}", _total_bytes(job.paths), shown=not quiet)
    linger_s = options.linger_ms / 1000
    with Interrupts() as interrupts:
        pace = _Pace(job.rate, writer, linger_s, interrupts)
        watch = Watch(linger_s, writer.flush, progress.advance, interrupts.allowed)
        progress.start()
        try:
            for number, (place, record) in enumerate(_records(job, watch), 1):
                _send(writer, job, place, record)
                progress.records = number
                if number == job.count or interrupts.requested:
                    break
                pace.wait(number)
        except KeyboardInterrupt:
            # While waiting for input: what was read is written all the same.
            if interrupts.insisted:
                raise
        except HeadraceError:
            # What was read before the error is not to blame for it.
            writer.flush()
            raise
        finally:
            progress.stop()
        outcome.interrupted = interrupts.requested
        writer.flush()


def _send(writer: Writer, job: _Job, place: Place, record: InputRecord) -> None:
    try:
        writer.send(
            job.topic,
            record.value,
            key=job.key if record.key is None else record.key,
            headers=record.headers + job.headers,
            partition=job.partition if record.partition is None else record.partition,
            timestamp=record.timestamp,
            tag=place,
        )
    except UnknownTopic as error:
        raise InputError(f"{place}: {error.detail}") from None


class _Pace:
    """Holds the writer back to a number of records a second."""

    def __init__(
        self, rate: float | None, writer: Writer, linger_s: float, interrupts: Interrupts
    ) -> None:
        self._rate = rate
        self._writer = writer
        self._linger_s = linger_s
        self._interrupts = interrupts
        self._begun = time.monotonic()

    def wait(self, number: int) -> None:
        """Return when the record after the given one is due."""
        if self._rate is None:
            return
        due = self._begun + number / self._rate
        if due - time.monotonic() > self._linger_s:
            self._writer.flush()
        with self._interrupts.allowed():
            time.sleep(max(due - time.monotonic(), 0))


def _records(job: _Job, watch: Watch) -> Iterator[tuple[Place, InputRecord]]:
    for path in job.paths:
        with closing(_open(path)) as stream:
            name = "standard input" if path == "-" else path
            if job.whole_file:
                value = read_whole(stream, name)
                yield Place(name, 0), _finish(InputRecord(value), job)
                continue
            for place, line in read_lines(stream, name, watch):
                yield place, _finish(_parse(line, place, job), job)


def _parse(line: bytes, place: Place, job: _Job) -> InputRecord:
    if job.input_format == "json":
        return parse_json(line, place)
    if job.key_separator is not None:
        return split_key(line, job.key_separator, place)
    return InputRecord(line)


def _finish(record: InputRecord, job: _Job) -> InputRecord:
    if job.repartition:
        record = record._replace(partition=None)
    return record._replace(value=None) if job.tombstones and not record.value else record


def _open(path: str) -> BinaryIO:
    try:
        # `-` comes back as standard input, which our closing leaves open.
        stream = cast("BinaryIO", click.open_file(path, "rb"))
    except OSError as error:
        raise InputError(
            f"{path} cannot be read: {error.strerror}; see whether it is right"
        ) from None
    if path == "-" and stream.isatty():
        click.echo("Reading lines from the terminal; Ctrl-D ends.", err=True)
    return stream


def _total_bytes(paths: Sequence[str]) -> int | None:
    """The size of the input, if all of it is plain files."""
    total = 0
    for path in paths:
        try:
            status = os.fstat(sys.stdin.fileno()) if path == "-" else os.stat(path)
        except OSError:
            return None
        if not stat.S_ISREG(status.st_mode):
            return None
        total += status.st_size
    return total
