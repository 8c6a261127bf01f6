"""The table of all keys of a pipeline file, for reading it and for docs/pipelines.md."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace.pipelines.spec.model import (
    ConsoleSink,
    DeadLetters,
    Decode,
    DeduplicateStep,
    DeltaSink,
    FileSink,
    FormatSource,
    IcebergSink,
    OnError,
    OutputMode,
    Pipeline,
    PostgresSink,
    PythonStep,
    Sink,
    SourceLocation,
    SqlStep,
    Target,
    TopicSink,
    TopicSource,
    Watermark,
)
from headrace.pipelines.spec.sections import (
    DURATION,
    FLAG,
    NAMES,
    OPTIONS,
    PATH,
    PATTERN,
    STARTING,
    TEXT,
    TRIGGER,
    FileText,
    InvalidValue,
    NamedParts,
    OptionMapping,
    PlacedText,
    RenamedNames,
    Section,
    SectionKey,
    SectionVariants,
    choice,
    number,
    one_of,
)

FILE_FORMATS = ("parquet", "json", "csv", "orc")


def _sink(values: dict[str, Any], target: Target) -> Sink:
    return Sink(target=target, **values)


def _common(values: dict[str, Any]) -> dict[str, Any]:
    """The fields common to all sinks, removed from the values."""
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
    """A sink whose target is the value of a single key."""
    common = _common(values)
    [target] = values.values()
    return _sink(common, target)


def _iceberg(*, place: SourceLocation, **values: Any) -> IcebergSink:
    return IcebergSink(**values)


def _postgresql(*, place: SourceLocation, **values: Any) -> PostgresSink:
    return PostgresSink(**values)


def _console(*, place: SourceLocation, **values: Any) -> ConsoleSink:
    return ConsoleSink(**values)


_SINK_KEYS = (
    SectionKey(
        "from", TEXT, "The source or step whose rows are written.", required=True, field="input"
    ),
    SectionKey(
        "mode",
        choice(OutputMode),
        "Which rows of an aggregate a batch gives: the finished, the changed, or all of them.",
        default="append",
    ),
    SectionKey("trigger", TRIGGER, "When its batches run.", default="that of the pipeline"),
)

TOPIC_SINK = Section(
    "topic sink",
    (
        *_SINK_KEYS,
        SectionKey("topic", TEXT, "The topic to write."),
        SectionKey("topic_expression", TEXT, "The topic of each row, as an SQL expression."),
        SectionKey("key", TEXT, "The key of the record, as an SQL expression.", default="none"),
        SectionKey(
            "value",
            TEXT,
            "The value of the record, as an SQL expression.",
            default="the whole row as JSON: `to_json(struct(*))`",
        ),
        SectionKey(
            "headers",
            TEXT,
            "The headers, as an SQL expression: an array of structs of `key` and `value`.",
            default="none",
        ),
        SectionKey(
            "partition",
            TEXT,
            "The partition, as an SQL expression.",
            default="by the key, as every client",
        ),
        SectionKey(
            "timestamp",
            TEXT,
            "The record's timestamp, as an SQL expression.",
            default="when it is sent",
        ),
        SectionKey(
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

_PARTITION_BY = SectionKey(
    "partition_by", NAMES, "Columns that become directories: `day=2026-01-31/`.", default="none"
)

FILE_SINK = Section(
    "file sink",
    (
        *_SINK_KEYS,
        *(
            SectionKey(name, PATH, f"The directory to write {name} files in.")
            for name in FILE_FORMATS
        ),
        _PARTITION_BY,
        SectionKey("options", OPTIONS, "Spark's options of the format.", default="none"),
    ),
    _file_sink,
    text="To files, each batch once. Only mode `append`.",
    one_of=FILE_FORMATS,
)

DELTA_SINK = Section(
    "delta sink",
    (
        *_SINK_KEYS,
        SectionKey("delta", PATH, "The directory of the table.", field="path"),
        _PARTITION_BY,
        SectionKey("options", OPTIONS, "Storage options of `deltalake`.", default="none"),
    ),
    _delta_sink,
    text="To a Delta table, each batch once. Only mode `append`.",
    one_of=("delta",),
)

ICEBERG = Section(
    "iceberg table",
    (
        SectionKey("table", TEXT, "The table, with its namespace: `sales.orders`.", required=True),
        SectionKey("catalog", OPTIONS, "PyIceberg's properties of the catalog.", required=True),
        SectionKey(
            "location", PATH, "Where a table that is made has its files.", default="the catalog's"
        ),
    ),
    _iceberg,
)

ICEBERG_SINK = Section(
    "iceberg sink",
    (*_SINK_KEYS, SectionKey("iceberg", ICEBERG, "The table.")),
    _whole_sink,
    text="To an Iceberg table, each batch once. Only mode `append`.",
    one_of=("iceberg",),
)

POSTGRESQL = Section(
    "postgresql table",
    (
        SectionKey("dsn", TEXT, "Where the server is, as libpq has it.", required=True),
        SectionKey("table", TEXT, "The table, with its schema if not the default.", required=True),
        SectionKey(
            "keys",
            NAMES,
            "The columns that tell a row: a row that is there already is replaced.",
            default="none: rows are inserted",
        ),
        SectionKey("create", FLAG, "Make the table if it is not there.", default="true"),
    ),
    _postgresql,
)

POSTGRESQL_SINK = Section(
    "postgresql sink",
    (*_SINK_KEYS, SectionKey("postgresql", POSTGRESQL, "The table.")),
    _whole_sink,
    text="To a table of PostgreSQL, each batch once, in one transaction.",
    one_of=("postgresql",),
)

CONSOLE = Section(
    "console",
    (SectionKey("rows", number(1), "How many rows of a batch are shown.", default="20"),),
    _console,
    short="rows",
)

CONSOLE_SINK = Section(
    "console sink",
    (*_SINK_KEYS, SectionKey("console", CONSOLE, "How it is shown; `{}` for the defaults.")),
    _whole_sink,
    text="To the terminal.",
    one_of=("console",),
)

SINK = SectionVariants(
    "sink",
    (TOPIC_SINK, FILE_SINK, DELTA_SINK, ICEBERG_SINK, POSTGRESQL_SINK, CONSOLE_SINK),
)

KAFKA_COLUMNS = (
    "key",
    "value",
    "topic",
    "partition",
    "offset",
    "timestamp",
    "timestampType",
    "headers",
)
DECODE_FORMATS = ("json", "avro", "csv", "raw")
STARTING_OPTIONS = ("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp")


def _decode(*, schema: str | None = None, schema_file: str | None = None, **values: Any) -> Decode:
    if schema is not None and schema_file is not None:
        raise InvalidValue("has both 'schema' and 'schema_file': give one of them")
    return Decode(schema=schema if schema_file is None else schema_file, **values)


def _watermark(*, column: str, delay: str, place: SourceLocation) -> Watermark:
    return Watermark(column, delay)


def _topic_source(
    *,
    topic: str | None = None,
    topics: tuple[str, ...] = (),
    starting: Mapping[str, str] | None = None,
    options: Mapping[str, str] | None = None,
    **values: Any,
) -> TopicSource:
    chosen = dict(options or {})
    given = [name for name in STARTING_OPTIONS if name in chosen]
    if starting and given:
        raise InvalidValue(f"has 'starting' and the option {given[0]!r}: give one of them")
    if not given:
        chosen |= starting or {"startingOffsets": "earliest"}
    return TopicSource(topics=(topic,) if topic else topics, options=chosen, **values)


def _sql_step(*, sql: tuple[str, SourceLocation], **values: Any) -> SqlStep:
    return SqlStep(sql=sql[0], sql_place=sql[1], **values)


def _python_step(*, inputs: tuple[str, ...] = (), **values: Any) -> PythonStep:
    return PythonStep(inputs=inputs, **values)


WATERMARK = Section(
    "watermark",
    (
        SectionKey("column", TEXT, "The column with the time of the event.", required=True),
        SectionKey("delay", DURATION, "How late an event may come and still count.", required=True),
    ),
    _watermark,
    text="How late events may come. Windows, joins of streams and deduplication need one to forget"
    " what is over.",
)

_WATERMARK_KEY = SectionKey("watermark", WATERMARK, "How late its events may come.", default="none")

DECODE = Section(
    "decode",
    (
        SectionKey("format", one_of(*DECODE_FORMATS), "How values are written.", required=True),
        SectionKey(
            "schema",
            TEXT,
            "The columns, as Spark writes them (`id BIGINT, at TIMESTAMP`), for json and csv;"
            " the schema as JSON text for avro.",
        ),
        SectionKey("schema_file", FileText(), "A file that has the schema, instead of `schema`."),
        SectionKey(
            "framing",
            one_of("none", "confluent"),
            "What stands before an Avro value: nothing, or the five bytes of a schema registry.",
            default="none",
        ),
        SectionKey(
            "keep",
            RenamedNames(KAFKA_COLUMNS),
            "Columns of the record to have beside the decoded ones: "
            + ", ".join(f"`{name}`" for name in KAFKA_COLUMNS)
            + ".",
            default="none",
        ),
        SectionKey("options", OPTIONS, "Spark's options of the format.", default="none"),
        SectionKey(
            "on_error",
            choice(OnError),
            "What happens to a record that cannot be decoded.",
            default="dead-letter",
        ),
    ),
    _decode,
    text="How the value of a record becomes columns.",
    short="format",
)

TOPIC_SOURCE = Section(
    "topic source",
    (
        SectionKey("topic", TEXT, "The topic to read."),
        SectionKey("topics", NAMES, "Several topics to read."),
        SectionKey("pattern", PATTERN, "The topics whose whole name matches, new ones too."),
        SectionKey(
            "starting",
            STARTING,
            "Where the first run begins; later runs go on where the last one stopped.",
            default="earliest",
        ),
        SectionKey("decode", DECODE, "How values become columns.", default="raw"),
        _WATERMARK_KEY,
        SectionKey(
            "streaming",
            FLAG,
            "With false the topic is a table to join with: all the records it has.",
            default="true",
        ),
        SectionKey(
            "options",
            OPTIONS,
            "Options of the `headrace` data source, such as `maxOffsetsPerTrigger`.",
            default="none",
        ),
    ),
    _topic_source,
    text="Records of topics of the pipeline's broker.",
    one_of=("topic", "topics", "pattern"),
)

FORMAT_SOURCE = Section(
    "format source",
    (
        SectionKey("format", TEXT, "A format that Spark reads: csv, json, parquet, rate, ..."),
        SectionKey("path", PATH, "Where its files are.", default="none"),
        SectionKey(
            "schema", TEXT, "The columns, as Spark writes them.", default="as the files say"
        ),
        SectionKey("options", OPTIONS, "Spark's options of the format.", default="none"),
        _WATERMARK_KEY,
        SectionKey(
            "streaming",
            FLAG,
            "With true new files are a stream; with false it is a table to join with.",
            default="false",
        ),
    ),
    FormatSource,
    text="Anything else that Spark reads.",
    one_of=("format",),
)

SQL_STEP = Section(
    "sql step",
    (
        SectionKey(
            "sql", PlacedText(), "A query. Its tables are sources and other steps, by name."
        ),
        _WATERMARK_KEY,
    ),
    _sql_step,
    text="A query of Spark SQL.",
    one_of=("sql",),
)

PYTHON_STEP = Section(
    "python step",
    (
        SectionKey(
            "python",
            TEXT,
            "The function: `file.py:name`, from the pipeline's directory, or"
            " `package.module:name`. It is called with a DataFrame for each input, and with"
            " `spark=` if it has such a parameter, and returns a DataFrame.",
            field="function",
        ),
        SectionKey("inputs", NAMES, "The sources and steps it is given, in order.", default="none"),
        _WATERMARK_KEY,
    ),
    _python_step,
    text="A function of DataFrames, for what SQL cannot say: stateful processing, models, ...",
    one_of=("python",),
)

DEDUPLICATE_STEP = Section(
    "deduplicate step",
    (
        SectionKey("deduplicate", TEXT, "The source or step to read.", field="input"),
        SectionKey("keys", NAMES, "The columns in which equal rows are equal.", required=True),
    ),
    DeduplicateStep,
    text="The first of equal rows. With a watermark on what it reads, what it has to remember is"
    " bounded.",
    one_of=("deduplicate",),
)

DEAD_LETTERS = Section(
    "dead letters",
    (
        SectionKey("topic", TEXT, "The topic they are written to.", required=True),
        SectionKey("options", OPTIONS, "Options of the `headrace` data source.", default="none"),
    ),
    DeadLetters,
    text="Where records go that cannot be decoded, with the reason and their origin in headers.",
    short="topic",
)

SOURCE = SectionVariants("source", (TOPIC_SOURCE, FORMAT_SOURCE))
STEP = SectionVariants("step", (SQL_STEP, PYTHON_STEP, DEDUPLICATE_STEP))

# The keys of a pipeline beside its parts: also the arguments of the Python builder.
SETTINGS = (
    SectionKey("description", TEXT, "What it is for.", default="none"),
    SectionKey(
        "broker",
        OptionMapping("bootstrap.servers"),
        "Properties of the client by Kafka's names: `bootstrap.servers`, and those for security.",
        default="none; needed where topics are used",
    ),
    SectionKey(
        "checkpoint",
        PATH,
        "Where the positions and the state of its queries are kept.",
        default="`headrace-pipelines/` and its name",
    ),
    SectionKey("trigger", TRIGGER, "When batches run.", default="as soon as the last one is done"),
    SectionKey(
        "parallelism",
        number(1),
        "How many tasks share the work after a shuffle, and state is split in.",
        default="Spark's: 4 on one machine",
    ),
    SectionKey(
        "group",
        TEXT,
        "The consumer group that shows its positions; each sink adds its own name after a dot.",
        default="its name",
    ),
    SectionKey("dead_letters", DEAD_LETTERS, "Where undecodable records go.", default="none"),
    SectionKey("spark", OPTIONS, "Settings of Spark by their names.", default="none"),
)

PIPELINE = Section(
    "pipeline",
    (
        SectionKey("pipeline", TEXT, "Its name.", required=True, field="name"),
        *SETTINGS,
        SectionKey("sources", NamedParts(SOURCE), "What it reads.", required=True),
        SectionKey("steps", NamedParts(STEP), "What it makes of that.", default="none"),
        SectionKey("sinks", NamedParts(SINK), "Where the results go.", required=True),
    ),
    Pipeline,
    text="The whole file. Keys that begin with `x-` are left alone: a place for YAML anchors.",
)

# All sections, in the order of the documentation.
SECTIONS = (
    PIPELINE,
    *SOURCE.sections,
    DECODE,
    WATERMARK,
    *STEP.sections,
    *SINK.sections,
    ICEBERG,
    POSTGRESQL,
    CONSOLE,
    DEAD_LETTERS,
)

DEFAULT_CHECKPOINTS = "headrace-pipelines"


def default_checkpoint(name: str, directory: Path) -> str:
    """The default directory of a pipeline's state."""
    return str((directory / DEFAULT_CHECKPOINTS / name).absolute())
