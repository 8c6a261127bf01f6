"""The keys of sinks, a part of the table of all keys."""

from typing import Any

from headrace.pipelines.spec.keys import Key, Section, Variants
from headrace.pipelines.spec.kinds import FLAG, NAMES, OPTIONS, PATH, TEXT, TRIGGER, choice, number
from headrace.pipelines.spec.model import (
    ConsoleSink,
    DeltaSink,
    FileSink,
    IcebergSink,
    OutputMode,
    Place,
    PostgresSink,
    Sink,
    Target,
    TopicSink,
)

FILE_FORMATS = ("parquet", "json", "csv", "orc")


def _sink(values: dict[str, Any], target: Target) -> Sink:
    return Sink(target=target, **values)


def _common(values: dict[str, Any]) -> dict[str, Any]:
    """What every sink has, taken out of the values."""
    names = ("name", "input", "mode", "trigger", "place")
    return {name: values.pop(name) for name in names if name in values}


def _topic_sink(**values: Any) -> Sink:
    return _sink(_common(values), TopicSink(**values))


def _file_sink(**values: Any) -> Sink:
    common = _common(values)
    [file_format] = [name for name in FILE_FORMATS if name in values]
    return _sink(common, FileSink(file_format, values.pop(file_format), **values))


def _delta_sink(**values: Any) -> Sink:
    return _sink(_common(values), DeltaSink(**values))


def _whole_sink(**values: Any) -> Sink:
    """A sink whose one key has all of its target."""
    common = _common(values)
    [target] = values.values()
    return _sink(common, target)


def _iceberg(*, place: Place, **values: Any) -> IcebergSink:
    return IcebergSink(**values)


def _postgresql(*, place: Place, **values: Any) -> PostgresSink:
    return PostgresSink(**values)


def _console(*, place: Place, **values: Any) -> ConsoleSink:
    return ConsoleSink(**values)


_SINK_KEYS = (
    Key("from", TEXT, "The source or step whose rows are written.", required=True, field="input"),
    Key(
        "mode",
        choice(OutputMode),
        "Which rows of an aggregate a batch gives: the finished, the changed, or all of them.",
        default="append",
    ),
    Key("trigger", TRIGGER, "When its batches run.", default="that of the pipeline"),
)

TOPIC_SINK = Section(
    "topic sink",
    (
        *_SINK_KEYS,
        Key("topic", TEXT, "The topic to write."),
        Key("topic_expression", TEXT, "The topic of each row, as an SQL expression."),
        Key("key", TEXT, "The key of the record, as an SQL expression.", default="none"),
        Key(
            "value",
            TEXT,
            "The value of the record, as an SQL expression.",
            default="the whole row as JSON: `to_json(struct(*))`",
        ),
        Key(
            "headers",
            TEXT,
            "The headers, as an SQL expression: an array of structs of `key` and `value`.",
            default="none",
        ),
        Key(
            "partition",
            TEXT,
            "The partition, as an SQL expression.",
            default="by the key, as every client",
        ),
        Key(
            "timestamp",
            TEXT,
            "The record's timestamp, as an SQL expression.",
            default="when it is sent",
        ),
        Key(
            "options",
            OPTIONS,
            "Options of the `headrace` data source, such as `kafka.compression.type`.",
            default="none",
        ),
    ),
    _topic_sink,
    text="To a topic of the pipeline's broker.",
    one_of=("topic", "topic_expression"),
)

_PARTITION_BY = Key(
    "partition_by", NAMES, "Columns that become directories: `day=2026-01-31/`.", default="none"
)

FILE_SINK = Section(
    "file sink",
    (
        *_SINK_KEYS,
        *(Key(name, PATH, f"The directory to write {name} files in.") for name in FILE_FORMATS),
        _PARTITION_BY,
        Key("options", OPTIONS, "Spark's options of the format.", default="none"),
    ),
    _file_sink,
    text="To files, each batch once. Only mode `append`.",
    one_of=FILE_FORMATS,
)

DELTA_SINK = Section(
    "delta sink",
    (
        *_SINK_KEYS,
        Key("delta", PATH, "The directory of the table.", field="path"),
        _PARTITION_BY,
        Key("options", OPTIONS, "Storage options of `deltalake`.", default="none"),
    ),
    _delta_sink,
    text="To a Delta table, each batch once. Only mode `append`.",
    one_of=("delta",),
)

ICEBERG = Section(
    "iceberg table",
    (
        Key("table", TEXT, "The table, with its namespace: `sales.orders`.", required=True),
        Key("catalog", OPTIONS, "PyIceberg's properties of the catalog.", required=True),
        Key("location", PATH, "Where a table that is made has its files.", default="the catalog's"),
    ),
    _iceberg,
)

ICEBERG_SINK = Section(
    "iceberg sink",
    (*_SINK_KEYS, Key("iceberg", ICEBERG, "The table.")),
    _whole_sink,
    text="To an Iceberg table, each batch once. Only mode `append`.",
    one_of=("iceberg",),
)

POSTGRESQL = Section(
    "postgresql table",
    (
        Key("dsn", TEXT, "Where the server is, as libpq has it.", required=True),
        Key("table", TEXT, "The table, with its schema if not the default.", required=True),
        Key(
            "keys",
            NAMES,
            "The columns that tell a row: a row that is there already is replaced.",
            default="none: rows are inserted",
        ),
        Key("create", FLAG, "Make the table if it is not there.", default="true"),
    ),
    _postgresql,
)

POSTGRESQL_SINK = Section(
    "postgresql sink",
    (*_SINK_KEYS, Key("postgresql", POSTGRESQL, "The table.")),
    _whole_sink,
    text="To a table of PostgreSQL, each batch once, in one transaction.",
    one_of=("postgresql",),
)

CONSOLE = Section(
    "console",
    (Key("rows", number(1), "How many rows of a batch are shown.", default="20"),),
    _console,
    short="rows",
)

CONSOLE_SINK = Section(
    "console sink",
    (*_SINK_KEYS, Key("console", CONSOLE, "How it is shown; `{}` for the defaults.")),
    _whole_sink,
    text="To the terminal.",
    one_of=("console",),
)

SINK = Variants(
    "sink",
    (TOPIC_SINK, FILE_SINK, DELTA_SINK, ICEBERG_SINK, POSTGRESQL_SINK, CONSOLE_SINK),
)
