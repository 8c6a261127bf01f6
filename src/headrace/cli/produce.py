"""`headrace produce`: records from lines, JSON lines or files into a topic."""

import base64
import binascii
import json
import os
import stat
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, field
from functools import partial
from typing import Any, BinaryIO, Literal, NamedTuple, TypeAlias, cast

import click

from headrace.cli.clients import open_producer, timeout_ms_of
from headrace.cli.errors import explain
from headrace.cli.interrupts import INTERRUPTED, Interrupts
from headrace.cli.options import client_options, examples, key_value
from headrace.cli.output import ProgressDisplay, bytes_text, counted, print_json
from headrace.cli.partitions import check_numbers
from headrace.client.errors import TimedOut
from headrace.client.options import ProducerConfig
from headrace.client.producer.producer import Producer
from headrace.client.types import RecordMetadata
from headrace.errors import ErrorCode, HeadraceError, KafkaError, UnknownTopic
from headrace.protocol.compression import Compression

# Records from standard input and files: lines, JSON lines, or whole files.
#
# Rule: bounded memory whatever the input. A record longer than any broker could accept is refused
# while it is being read.


Header: TypeAlias = tuple[str, bytes | None]

# No broker accepts a request above socket.request.max.bytes, by default 100 MiB.
RECORD_BYTES_MAX = 100 * 1_048_576
_CHUNK_BYTES = 256 * 1024


class InputError(HeadraceError):
    """Input that is not a record; the text says where and what to do."""


class InputRecord(NamedTuple):
    """A record from the input. None leaves a field to the options or the client."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[Header, ...] = ()
    partition: int | None = None
    timestamp: int | None = None


class InputLocation(NamedTuple):
    """The position of a record in the input."""

    source: str
    line: int

    def __str__(self) -> str:
        return f"line {self.line} of {self.source}" if self.line else self.source


class ReaderCallbacks(NamedTuple):
    """Callbacks of the reader."""

    on_read: Callable[[int], None]
    allow_interrupt: Callable[[], AbstractContextManager[None]]


def read_lines(
    stream: BinaryIO, name: str, watch: ReaderCallbacks
) -> Iterator[tuple[InputLocation, bytes]]:
    """The lines of a stream without their newlines; the last line may lack one."""
    number = 0
    pending: list[bytes] = []
    pending_bytes = 0
    for chunk in _chunks(stream, watch):
        first, *rest = chunk.split(b"\n")
        pending.append(first)
        pending_bytes += len(first)
        if pending_bytes > RECORD_BYTES_MAX:
            raise InputError(
                f"line {number + 1} of {name} is longer than {RECORD_BYTES_MAX} bytes;"
                " no broker takes such a message"
            )
        if not rest:
            continue
        number += 1
        yield InputLocation(name, number), b"".join(pending)
        for line in rest[:-1]:
            number += 1
            yield InputLocation(name, number), line
        pending = [rest[-1]]
        pending_bytes = len(rest[-1])
    if pending_bytes:
        yield InputLocation(name, number + 1), b"".join(pending)


def _chunks(stream: BinaryIO, watch: ReaderCallbacks) -> Iterator[bytes]:
    """Chunks of a stream as they arrive. Only the wait for them may be interrupted."""
    try:
        descriptor: int | None = stream.fileno()
    except OSError:
        descriptor = None  # A stream in memory, which never blocks.
    while True:
        if descriptor is None:
            chunk = stream.read(_CHUNK_BYTES)
        else:
            with watch.allow_interrupt():
                chunk = os.read(descriptor, _CHUNK_BYTES)
        if not chunk:
            return
        watch.on_read(len(chunk))
        yield chunk


def read_whole(stream: BinaryIO, name: str) -> bytes:
    """The whole stream as one record."""
    data = stream.read(RECORD_BYTES_MAX + 1)
    if len(data) > RECORD_BYTES_MAX:
        raise InputError(
            f"{name} is larger than {RECORD_BYTES_MAX} bytes; no broker takes such a message"
        )
    return data


def split_key(line: bytes, separator: bytes, place: InputLocation) -> InputRecord:
    """A record from a line of key, separator and value."""
    key, found, value = line.partition(separator)
    if not found:
        raise InputError(
            f"{place} has no key separator {separator.decode(errors='replace')!r};"
            " add it, or leave out --key-separator"
        )
    return InputRecord(value, key)


_FIELDS = frozenset(
    ("key", "key_base64", "value", "value_base64", "headers", "partition", "timestamp")
)
# Fields of `headrace consume --json` that a copy does not need.
_IGNORED = frozenset(("topic", "offset"))


def parse_json(line: bytes, place: InputLocation) -> InputRecord:
    """A record from a JSON object, in the form of `headrace consume --json`."""
    try:
        document = json.loads(line)
        if not isinstance(document, dict):
            raise ValueError("not a JSON object")
        unknown = sorted(document.keys() - _FIELDS - _IGNORED)
        if unknown:
            raise ValueError(f"unknown field {unknown[0]!r}")
        return InputRecord(
            _content(document, "value"),
            _content(document, "key"),
            _headers(document.get("headers")),
            _integer(document, "partition", 2**31 - 1),
            _integer(document, "timestamp", 2**63 - 1),
        )
    except (ValueError, RecursionError) as error:
        fields = "value, key, headers, partition and timestamp"
        raise InputError(
            f"{place} is no record: {error}; write one JSON object a line, with {fields}"
        ) from None


def _content(document: Mapping[str, Any], name: str) -> bytes | None:
    """Text as UTF-8, base64 decoded, any other JSON value as JSON text."""
    encoded = document.get(f"{name}_base64")
    if encoded is not None:
        if document.get(name) is not None:
            raise ValueError(f"both {name} and {name}_base64")
        try:
            return base64.b64decode(encoded, validate=True)
        except (TypeError, binascii.Error):
            raise ValueError(f"{name}_base64 is not base64") from None
    value = document.get(name)
    if value is None:
        return None
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text.encode()


def _headers(document: Any) -> tuple[Header, ...]:
    """Headers from an object, or from a list of objects, which can repeat a name."""
    match document:
        case None:
            return ()
        case dict():
            return tuple(
                (name, _content({"value": value}, "value")) for name, value in document.items()
            )
        case list():
            return tuple(_header(header) for header in document)
        case _:
            raise ValueError("headers is neither an object nor a list")


def _header(document: Any) -> Header:
    if not isinstance(document, dict) or not isinstance(document.get("name"), str):
        raise ValueError("a header without a name")
    return document["name"], _content(document, "value")


def _integer(document: Mapping[str, Any], name: str, most: int) -> int | None:
    value = document.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise ValueError(f"{name} is {value!r}, not a number from 0 to {most}")
    return value


FAILURES_KEPT_MAX = 10


@dataclass(frozen=True, slots=True)
class InputJob:
    """The input and the format of its lines."""

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
class FailedRecords:
    """Records that were not written, all for the same reason."""

    first: InputLocation
    error: Exception
    count: int = 1


@dataclass(slots=True)
class ProduceCounts:
    """Counts of sent and failed records. The producer's thread writes them until it is closed.

    Of the failures only the first are kept.
    """

    records: int = 0
    written_bytes: int = 0
    failed: int = 0
    failures: list[FailedRecords] = field(default_factory=list)
    interrupted: bool = False

    def settle(
        self, place: InputLocation, error: Exception | None, metadata: RecordMetadata | None
    ) -> None:
        """Count the outcome of one record."""
        if metadata is not None:
            self.records += 1
            # The size of a null is -1.
            self.written_bytes += max(metadata.serialized_key_size, 0)
            self.written_bytes += max(metadata.serialized_value_size, 0)
            return
        assert error is not None, "a record is written or not"
        self.failed += 1
        for known in self.failures:
            # The records of a batch share their error.
            if known.error is error:
                known.count += 1
                return
        if len(self.failures) < FAILURES_KEPT_MAX:
            self.failures.append(FailedRecords(place, error))


def feed(job: InputJob, producer: Producer, outcome: ProduceCounts, *, quiet: bool) -> None:
    """Write records until the input ends, the count is reached or the user interrupts."""
    progress = ProgressDisplay(f"to {job.topic}", _total_bytes(job.paths), shown=not quiet)
    with Interrupts() as interrupts:
        pace = _RateLimit(job.rate, interrupts)
        watch = ReaderCallbacks(progress.advance, interrupts.allowed)
        progress.start()
        try:
            for number, (place, record) in enumerate(_records(job, watch), 1):
                _send(producer, job, place, record, outcome)
                progress.items = number
                if number == job.count or interrupts.requested:
                    break
                pace.wait(number)
        except KeyboardInterrupt:
            # Interrupted while waiting for input: records read before are written all the same.
            if interrupts.insisted:
                raise
        except HeadraceError:
            # Records read before the error are written.
            producer.flush()
            raise
        finally:
            progress.stop()
        outcome.interrupted = interrupts.requested
        producer.flush()


def _send(
    producer: Producer,
    job: InputJob,
    place: InputLocation,
    record: InputRecord,
    outcome: ProduceCounts,
) -> None:
    try:
        producer.send(
            job.topic,
            record.value,
            key=job.key if record.key is None else record.key,
            headers=record.headers + job.headers,
            partition=job.partition if record.partition is None else record.partition,
            timestamp_ms=record.timestamp,
            on_delivery=partial(outcome.settle, place),
        )
    except UnknownTopic as error:
        raise InputError(f"{place}: {error.detail}") from None


class _RateLimit:
    """Limits the input to a number of records a second."""

    def __init__(self, rate: float | None, interrupts: Interrupts) -> None:
        self._rate = rate
        self._interrupts = interrupts
        self._begun = time.monotonic()

    def wait(self, number: int) -> None:
        """Wait until the record with this number is due."""
        if self._rate is None:
            return
        due = self._begun + number / self._rate
        with self._interrupts.allowed():
            time.sleep(max(due - time.monotonic(), 0))


def _records(job: InputJob, watch: ReaderCallbacks) -> Iterator[tuple[InputLocation, InputRecord]]:
    for path in job.paths:
        with closing(_open(path)) as stream:
            name = "standard input" if path == "-" else path
            if job.whole_file:
                value = read_whole(stream, name)
                yield InputLocation(name, 0), _finish(InputRecord(value), job)
                continue
            for place, line in read_lines(stream, name, watch):
                yield place, _finish(_parse(line, place, job), job)


def _parse(line: bytes, place: InputLocation, job: InputJob) -> InputRecord:
    if job.input_format == "json":
        return parse_json(line, place)
    if job.key_separator is not None:
        return split_key(line, job.key_separator, place)
    return InputRecord(line)


def _finish(record: InputRecord, job: InputJob) -> InputRecord:
    if job.repartition:
        record = record._replace(partition=None)
    return record._replace(value=None) if job.tombstones and not record.value else record


def _open(path: str) -> BinaryIO:
    try:
        # For `-` it is standard input, which stays open when closed here.
        stream = cast("BinaryIO", click.open_file(path, "rb"))
    except OSError as error:
        raise InputError(
            f"{path} cannot be read: {error.strerror}; see whether it is right"
        ) from None
    if path == "-" and stream.isatty():
        click.echo("Reading lines from the terminal; Ctrl-D ends.", err=True)
    return stream


def _total_bytes(paths: Sequence[str]) -> int | None:
    """The size of the input in bytes, if all of it is plain files; else None."""
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


BATCH_BYTES = 256 * 1024
LINGER_MS = 5
# Room for the largest record that is read. Only the broker decides which records are too large.
BUFFER_BYTES = RECORD_BYTES_MAX + 32 * 1_048_576

_INT32_MAX = 2**31 - 1
_LINGER_MS_MAX = 86_400_000
_ACKS: dict[str, Literal["all", 0, 1]] = {"0": 0, "1": 1, "all": "all", "-1": "all"}


@click.command(
    short_help="Write records to a topic.",
    epilog=examples(
        "echo hello | headrace produce greetings",
        "headrace produce orders --key-separator : orders.txt",
        "headrace produce events --format json --compression zstd events.jsonl",
        "headrace produce images --whole-file --header type=png *.png",
        "headrace consume a --json | headrace produce b --format json --repartition",
    ),
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
    type=click.IntRange(min=1, max=_INT32_MAX),
    metavar="BYTES",
    default=BATCH_BYTES,
    show_default=True,
    help="Bytes of records that go to a partition at once.",
)
@click.option(
    "--linger-ms",
    type=click.IntRange(min=0, max=_LINGER_MS_MAX),
    metavar="MS",
    default=LINGER_MS,
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
    compression: Literal["none", "gzip", "snappy", "lz4", "zstd"],
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
    job = InputJob(
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
    config: ProducerConfig = {
        "acks": _ACKS[acks],
        "compression_type": compression,
        # Only acks from all replicas make retries safe, as in Kafka.
        "enable_idempotence": idempotent and _ACKS[acks] == "all",
        "batch_size": batch_size,
        "buffer_memory": max(BUFFER_BYTES, batch_size),
        "max_request_size": _INT32_MAX,
    }
    outcome = ProduceCounts()
    begun = time.monotonic()
    try:
        with open_producer(bootstrap, timeout_s, linger_ms, config) as producer:
            # Before any input is read, so that a wrong topic or address is not reported for the
            # first line.
            existing = sorted(producer.partitions_for(topic))
            check_numbers(topic, [] if partition is None else [partition], existing)
            feed(job, producer, outcome, quiet=quiet)
    finally:
        _report(outcome, timeout_s, linger_ms)
    _print_summary(topic, outcome, time.monotonic() - begun, as_json, quiet)
    if outcome.interrupted:
        return INTERRUPTED
    return 1 if outcome.failed else 0


def _print_summary(
    topic: str, outcome: ProduceCounts, seconds: float, as_json: bool, quiet: bool
) -> None:
    records, written_bytes = outcome.records, outcome.written_bytes
    if as_json:
        print_json(
            {
                "topic": topic,
                "records": records,
                "bytes": written_bytes,
                "failed": outcome.failed,
                "seconds": round(seconds, 6),
            }
        )
    elif not quiet:
        total, speed = bytes_text(written_bytes), bytes_text(written_bytes / max(seconds, 1e-6))
        summary = f"{counted(records, 'record')}, {total} in {seconds:.2f} s, {speed}/s"
        click.echo(summary, err=True)


def _report(outcome: ProduceCounts, timeout_s: float, linger_ms: int) -> None:
    """Report the records that were not written."""
    named = 0
    for failure in outcome.failures:
        more = failure.count - 1
        also = f" and {counted(more, 'record')} after it" if more else ""
        reason = _reason(failure, timeout_s, linger_ms)
        click.echo(f"headrace: {failure.first}{also} not written: {reason}", err=True)
        named += failure.count
    if outcome.failed > named:
        rest = counted(outcome.failed - named, "further record")
        click.echo(f"headrace: {rest} not written", err=True)


def _reason(failure: FailedRecords, timeout_s: float, linger_ms: int) -> str:
    """The reason why records were not written, in terms of the command's options."""
    error = failure.error
    if isinstance(error, KafkaError) and error.code is ErrorCode.MESSAGE_TOO_LARGE:
        return explain(KafkaError(error.code, error.what))
    text = explain(error) if isinstance(error, HeadraceError) else str(error)
    if isinstance(error, TimedOut):
        limit_ms = timeout_ms_of(timeout_s) + linger_ms
        text = text.replace(f"delivery_timeout_ms ({limit_ms} ms)", f"{timeout_s:g} s")
    return text


def _separator(text: str | None, input_format: str, whole_file: bool) -> bytes | None:
    if text is None:
        return None
    if input_format == "json" or whole_file:
        raise click.UsageError("--key-separator is for lines, not for JSON or whole files.")
    if not text:
        raise click.UsageError("--key-separator is empty.")
    return text.encode()
