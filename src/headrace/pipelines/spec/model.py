"""The parts of a pipeline as values. Pure: no Spark, no files.

The YAML loader and the Python builder both make these; all later stages read only these. Rule: what
may have a secret in it (options, data source names) is not in a `repr`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from headrace.errors import ConfigError, HeadraceError


@dataclass(frozen=True, slots=True)
class SourceLocation:
    """The file and line of a declaration, for messages: `orders.yaml:12` or `orders.py:7`."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


class SpecError(ConfigError):
    """A pipeline that cannot run as declared. The text starts with the place."""

    def __init__(self, place: SourceLocation | None, text: str) -> None:
        super().__init__(f"{place}: {text}" if place else text)
        self.place = place


class SpecErrors(SpecError):
    """Several problems of one pipeline, each on a line of its own in the text."""

    def __init__(self, errors: Sequence[SpecError]) -> None:
        super().__init__(None, "\n".join(map(str, errors)))
        self.place = errors[0].place
        self.errors = tuple(errors)


class BuildError(HeadraceError):
    """A part of a pipeline that Spark refuses, such as a query of an unknown table."""

    def __init__(
        self, place: SourceLocation | None, part: str, reason: str, advice: str = ""
    ) -> None:
        where = f"{place}: " if place else ""
        super().__init__(f"{where}{part}: {reason}", advice=advice)
        self.place = place
        self.part = part
        self.reason = reason


def raise_problems(errors: Sequence[SpecError]) -> None:
    """Raise the problems: nothing, the only error, or all of them as one."""
    if errors:
        raise errors[0] if len(errors) == 1 else SpecErrors(errors)


class OnError(StrEnum):
    """The treatment of a record that cannot be decoded."""

    DEAD_LETTER = "dead-letter"
    DROP = "drop"
    FAIL = "fail"


class OutputMode(StrEnum):
    """The rows that a batch of a query writes to its sink, in Spark's terms."""

    APPEND = "append"
    UPDATE = "update"
    COMPLETE = "complete"


@dataclass(frozen=True, slots=True)
class Trigger:
    """The schedule of batches: every `interval` ("10 seconds"; "0 seconds" is as soon as possible),
    or once with the data available now.
    """

    interval: str = "0 seconds"
    available_now: bool = False


@dataclass(frozen=True, slots=True)
class Watermark:
    """The allowed delay of events, by a column with their time."""

    column: str
    delay: str


@dataclass(frozen=True, slots=True)
class Decode:
    """The decoding of a record's value into columns.

    `format` is json, avro, csv or raw. `schema` is Spark's DDL ("id BIGINT, at TIMESTAMP") for json
    and csv, the JSON text of an Avro schema for avro, and None for raw, which leaves Kafka's
    columns as they are. `framing` is none or confluent (five bytes before an Avro value). `keep`
    names Kafka's columns to keep beside the decoded ones: key, topic, partition, offset, timestamp,
    timestampType, headers; each is renamed in the result to its value (`{"timestamp":
    "received"}`). `options` are Spark's own of the format. Undecodable records are treated as
    `on_error` says.
    """

    format: str = "raw"
    schema: str | None = None
    framing: str = "none"
    keep: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    on_error: OnError = OnError.DEAD_LETTER
    place: SourceLocation | None = None


@dataclass(frozen=True, slots=True)
class TopicSource:
    """A source of topic records. One of `topics` and `pattern` is set. `options` are the data
    source's own (`startingOffsets`, `maxOffsetsPerTrigger`, `kafka.*`, ...); the pipeline's broker
    is added.
    """

    name: str
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    decode: Decode = Decode()
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    watermark: Watermark | None = None
    streaming: bool = True
    place: SourceLocation | None = None


@dataclass(frozen=True, slots=True)
class FormatSource:
    """A source in any format that Spark reads: files at a path, or a format with options only.

    With `streaming` false it is a table, read again for every run, to join with.
    """

    name: str
    format: str
    path: str | None = None
    schema: str | None = None
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    watermark: Watermark | None = None
    streaming: bool = False
    place: SourceLocation | None = None


Source = TopicSource | FormatSource


@dataclass(frozen=True, slots=True)
class SqlStep:
    """A query whose tables are the other steps and the sources. `sql_place` is the place of its
    first line, so that a line in Spark's error can be found in the file.
    """

    name: str
    sql: str
    watermark: Watermark | None = None
    place: SourceLocation | None = None
    sql_place: SourceLocation | None = None


@dataclass(frozen=True, slots=True)
class PythonStep:
    """A function of DataFrames: called with one positional argument for each of `inputs`, and with
    `spark=` if it has a parameter of that name; returns a DataFrame.

    `function` is the function itself, or "file.py:name" (relative to the pipeline's directory) or
    "package.module:name". Stateful processing (transformWithState and the like) is written so.
    """

    name: str
    function: str | Callable[..., Any]
    inputs: tuple[str, ...]
    watermark: Watermark | None = None
    place: SourceLocation | None = None


@dataclass(frozen=True, slots=True)
class DeduplicateStep:
    """The first of the rows with equal `keys`. With a watermark on `input` its state is bounded."""

    name: str
    input: str
    keys: tuple[str, ...]
    place: SourceLocation | None = None


Step = SqlStep | PythonStep | DeduplicateStep


@dataclass(frozen=True, slots=True)
class TopicSink:
    """A topic target. `key`, `value`, `topic_expression`, `headers`, `partition`, `timestamp` are
    SQL expressions over the input; the value is by default the whole row as JSON. Either `topic` or
    `topic_expression` is set. `options` go to the data source (`kafka.compression.type`, ...).
    """

    topic: str | None = None
    topic_expression: str | None = None
    key: str | None = None
    value: str | None = None
    headers: str | None = None
    partition: str | None = None
    timestamp: str | None = None
    options: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class FileSink:
    """A target of files in a Spark format (parquet, json, csv, orc), each batch written once."""

    format: str
    path: str
    partition_by: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class DeltaSink:
    """A Delta table target: Spark writes files, the driver commits them with the batch number."""

    path: str
    partition_by: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class IcebergSink:
    """An Iceberg table target, `namespace.name` in a catalog given by PyIceberg's properties."""

    table: str
    catalog: Mapping[str, str] = field(default_factory=dict, repr=False)
    location: str | None = None


@dataclass(frozen=True, slots=True)
class PostgresSink:
    """A PostgreSQL table target, by upsert on `keys` in the transaction that also stores the
    batch's number. `dsn` is libpq's; `keys` empty means plain inserts.
    """

    dsn: str = field(repr=False)
    table: str
    keys: tuple[str, ...] = ()
    create: bool = True


@dataclass(frozen=True, slots=True)
class ConsoleSink:
    """A terminal target: the first `rows` of each batch."""

    rows: int = 20


Target = TopicSink | FileSink | DeltaSink | IcebergSink | PostgresSink | ConsoleSink


@dataclass(frozen=True, slots=True)
class Sink:
    """One streaming query: the rows of `input` go to `target`. Its trigger is the pipeline's if
    None. `name` is the name of its checkpoint, and of its query in Spark.
    """

    name: str
    input: str
    target: Target
    mode: OutputMode = OutputMode.APPEND
    trigger: Trigger | None = None
    place: SourceLocation | None = None


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """The dead-letter topic for records that could not be decoded, at the pipeline's broker."""

    topic: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    place: SourceLocation | None = None


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A whole pipeline. `broker` has client properties by Kafka's names, `bootstrap.servers` at
    least; `directory` is the base of relative paths; `checkpoint` is a directory Spark can write (a
    path or a URI), with a directory for each query in it. `group` is the consumer group that shows
    the positions of its topic sources to the brokers; its name if None was given.
    """

    name: str
    sources: tuple[Source, ...]
    sinks: tuple[Sink, ...]
    steps: tuple[Step, ...] = ()
    description: str = ""
    broker: Mapping[str, str] = field(default_factory=dict, repr=False)
    directory: Path = Path()
    checkpoint: str = ""
    trigger: Trigger = Trigger()
    parallelism: int | None = None
    group: str = ""
    dead_letters: DeadLetters | None = None
    spark: Mapping[str, str] = field(default_factory=dict, repr=False)
    place: SourceLocation | None = None
