"""Input into a producer: each line or file a record, at a chosen pace, until the end or Ctrl-C."""

import os
import stat
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import BinaryIO, cast

import click

from headrace.cli.input import (
    Header,
    InputError,
    InputRecord,
    Place,
    Watch,
    parse_json,
    read_lines,
    read_whole,
    split_key,
)
from headrace.cli.interrupts import Interrupts
from headrace.cli.progress import Progress
from headrace.client.failures import UnknownTopic
from headrace.client.producer.producer import Producer
from headrace.client.producer.values import RecordMetadata
from headrace.errors import HeadraceError

FAILURES_KEPT_MAX = 10


@dataclass(frozen=True, slots=True)
class Job:
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
class Failure:
    """Records that were not written, all for one reason."""

    first: Place
    error: Exception
    count: int = 1


@dataclass(slots=True)
class Outcome:
    """What came of it. The producer's thread fills it in, and is done when the producer is closed.

    Of the failures the first are kept.
    """

    records: int = 0
    written_bytes: int = 0
    failed: int = 0
    failures: list[Failure] = field(default_factory=list)
    interrupted: bool = False

    def settle(
        self, place: Place, error: Exception | None, metadata: RecordMetadata | None
    ) -> None:
        """Take note of one record."""
        if metadata is not None:
            self.records += 1
            # A size is -1 for what is null.
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
            self.failures.append(Failure(place, error))


def feed(job: Job, producer: Producer, outcome: Outcome, *, quiet: bool) -> None:
    """Write until the input ends, the count is reached or the user stops it."""
    progress = Progress(f"to {job.topic}", _total_bytes(job.paths), shown=not quiet)
    with Interrupts() as interrupts:
        pace = _Pace(job.rate, interrupts)
        watch = Watch(progress.advance, interrupts.allowed)
        progress.start()
        try:
            for number, (place, record) in enumerate(_records(job, watch), 1):
                _send(producer, job, place, record, outcome)
                progress.items = number
                if number == job.count or interrupts.requested:
                    break
                pace.wait(number)
        except KeyboardInterrupt:
            # While waiting for input: what was read is written all the same.
            if interrupts.insisted:
                raise
        except HeadraceError:
            # What was read before the error is not to blame for it.
            producer.flush()
            raise
        finally:
            progress.stop()
        outcome.interrupted = interrupts.requested
        producer.flush()


def _send(
    producer: Producer, job: Job, place: Place, record: InputRecord, outcome: Outcome
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


class _Pace:
    """Holds the input back to a number of records a second."""

    def __init__(self, rate: float | None, interrupts: Interrupts) -> None:
        self._rate = rate
        self._interrupts = interrupts
        self._begun = time.monotonic()

    def wait(self, number: int) -> None:
        """Return when the record after the given one is due."""
        if self._rate is None:
            return
        due = self._begun + number / self._rate
        with self._interrupts.allowed():
            time.sleep(max(due - time.monotonic(), 0))


def _records(job: Job, watch: Watch) -> Iterator[tuple[Place, InputRecord]]:
    for path in job.paths:
        with closing(_open(path)) as stream:
            name = "standard input" if path == "-" else path
            if job.whole_file:
                value = read_whole(stream, name)
                yield Place(name, 0), _finish(InputRecord(value), job)
                continue
            for place, line in read_lines(stream, name, watch):
                yield place, _finish(_parse(line, place, job), job)


def _parse(line: bytes, place: Place, job: Job) -> InputRecord:
    if job.input_format == "json":
        return parse_json(line, place)
    if job.key_separator is not None:
        return split_key(line, job.key_separator, place)
    return InputRecord(line)


def _finish(record: InputRecord, job: Job) -> InputRecord:
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
