"""Checks between the parts of a pipeline, made before Spark is started.

Rule: a check yields a problem and continues, so that all problems are reported at once.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from headrace.client.options import admin_options, from_properties
from headrace.client.property_files import resolved_properties
from headrace.errors import HeadraceError
from headrace.options import nearest
from headrace.pipelines.datasource.read_options import batch_options, stream_options
from headrace.pipelines.datasource.write_options import stream_write_options
from headrace.pipelines.spec.dependencies import (
    RESERVED,
    Part,
    begins_query,
    cycles,
    inputs,
    needed,
    parts_by_name,
)
from headrace.pipelines.spec.model import (
    ConsoleSink,
    Decode,
    DeduplicateStep,
    DeltaSink,
    FileSink,
    FormatSource,
    OnError,
    OutputMode,
    Pipeline,
    PostgresSink,
    PythonStep,
    Sink,
    Source,
    SourceLocation,
    SpecError,
    SqlStep,
    Step,
    TopicSink,
    TopicSource,
    raise_problems,
)
from headrace.pipelines.spec.sections import listed
from headrace.pipelines.spec.user_code import function_problem

# The columns of the data source by default.
RECORD_COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")

_TYPES = {
    *("BOOLEAN", "TINYINT", "BYTE", "SMALLINT", "SHORT", "INT", "INTEGER", "BIGINT", "LONG"),
    *("FLOAT", "REAL", "DOUBLE", "DECIMAL", "DEC", "NUMERIC", "STRING", "CHAR", "CHARACTER"),
    *("VARCHAR", "BINARY", "DATE", "TIME", "TIMESTAMP", "TIMESTAMP_NTZ", "TIMESTAMP_LTZ"),
    *("INTERVAL", "ARRAY", "MAP", "STRUCT", "VARIANT", "VOID", "GEOMETRY", "GEOGRAPHY"),
}
_FIELD = re.compile(
    r"(?:`(?P<quoted>(?:[^`]|``)+)`\s*:?\s*|(?P<plain>\w+)(?:\s*:\s*|\s+))(?P<type>[A-Za-z_]\w*)"
)


def ddl_columns(schema: str) -> tuple[str, ...]:
    """The columns of a schema in Spark's DDL. Raises ValueError with the problem."""
    if schema.lstrip().startswith("{"):
        return _struct_columns(schema)
    columns = []
    for field in _split(schema):
        match = _FIELD.match(field)
        if match is None:
            raise ValueError(
                f"{field!r} is no column: write its name and its type, as in id BIGINT"
            )
        kind = match["type"]
        if kind.upper() not in _TYPES:
            near = nearest(kind, _TYPES)
            hint = f"; did you mean {near}?" if near else "; use Spark's: STRING, BIGINT, ..."
            raise ValueError(f"{kind!r} in {field!r} is no type of Spark{hint}")
        columns.append(match["quoted"].replace("``", "`") if match["quoted"] else match["plain"])
    _refuse_doubled(columns)
    return tuple(columns)


def avro_columns(schema: str) -> tuple[str, ...]:
    """The columns of an Avro record schema. Raises ValueError with the problem."""
    try:
        document = json.loads(schema)
    except ValueError as error:
        raise ValueError(f"it is not JSON: {error}") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    _parse_avro(document)
    if not isinstance(document, dict) or document.get("type") not in ("record", "error"):
        raise ValueError("it must be that of a record, whose fields become the columns")
    fields = document.get("fields")
    if not isinstance(fields, list) or not all(isinstance(field, dict) for field in fields):
        raise ValueError("its 'fields' must be a list of fields")
    return tuple(str(field.get("name")) for field in fields)


def source_columns(source: Source) -> tuple[str, ...] | None:
    """The columns of a source; None if only Spark knows them, or the schema is invalid."""
    try:
        match source:
            case TopicSource(decode=decode):
                return decoded_columns(decode)
            case FormatSource(schema=str(schema)):
                return ddl_columns(schema)
    except ValueError:
        pass
    return None


def decoded_columns(decode: Decode) -> tuple[str, ...] | None:
    """The columns of a decoded value, then the kept columns of the record."""
    if decode.format == "raw":
        return None if decode.keep else RECORD_COLUMNS
    if decode.schema is None:
        return None
    columns = avro_columns if decode.format == "avro" else ddl_columns
    return (*columns(decode.schema), *decode.keep.values())


def _parse_avro(document: Any) -> None:
    try:
        import fastavro  # noqa: PLC0415 - optional: without it the schema is read where it is used
        from fastavro.schema import SchemaParseException, UnknownType  # noqa: PLC0415
    except ImportError:
        return
    try:
        fastavro.parse_schema(document)
    except UnknownType as error:
        raise ValueError(f"it has an unknown type: {error.name}") from None
    except (SchemaParseException, KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _struct_columns(schema: str) -> tuple[str, ...]:
    try:
        document = json.loads(schema)
        return tuple(str(field["name"]) for field in document["fields"])
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ValueError("it is no struct in the JSON form of Spark") from None


def _split(schema: str) -> list[str]:
    """The fields of a schema: the text between commas outside of brackets and quotes."""
    fields, depth, start = [], 0, 0
    quote = ""
    for at, character in enumerate(schema):
        if quote:
            quote = "" if character == quote else quote
        elif character in "`'\"":
            quote = character
        elif character in "<(":
            depth += 1
        elif character in ">)":
            depth -= 1
        elif character == "," and depth == 0:
            fields.append(schema[start:at].strip())
            start = at + 1
        if depth < 0:
            break
    if depth or quote:
        raise ValueError("its brackets or quotes do not match")
    return [*fields, schema[start:].strip()]


def _refuse_doubled(columns: list[str]) -> None:
    lower = [name.lower() for name in columns]
    doubled = [name for name in columns if lower.count(name.lower()) > 1]
    if doubled:
        raise ValueError(f"it has two columns named {doubled[0]!r}")


T = TypeVar("T")
Problems = Iterator[SpecError]

TOPIC_LENGTH_MAX = 249
_TOPIC = re.compile(rf"[a-zA-Z0-9._-]{{1,{TOPIC_LENGTH_MAX}}}")


def title_of(part: Part) -> str:
    """The title of a source or step in messages."""
    return f"{'step' if isinstance(part, Step) else 'source'} {part.name!r}"


def error_of(
    title: str, place: SourceLocation | None, act: Callable[[T], object], value: T
) -> Problems:
    """The error of a call, as a problem of the part of that title."""
    try:
        act(value)
    except (HeadraceError, ValueError) as error:
        yield SpecError(place, f"{title}: {error}")


def topic_problems(topics: Sequence[str], title: str, place: SourceLocation | None) -> Problems:
    """Problems of invalid topic names."""
    for topic in topics:
        if topic in (".", "..") or not _TOPIC.fullmatch(topic):
            text = f"{topic!r} is not a topic name: use letters of a-z, digits, '.', '_' and '-'"
            yield SpecError(place, f"{title}: {text}, and at most {TOPIC_LENGTH_MAX} of them")


def list_problems(names: Sequence[str], title: str, place: SourceLocation | None) -> Problems:
    """Problems of duplicate names."""
    doubled = {name for name in names if names.count(name) > 1}
    for name in sorted(doubled):
        yield SpecError(place, f"{title} has {name!r} twice")


def column_problems(
    part: Part | None, names: Sequence[str], title: str, place: SourceLocation | None = None
) -> Problems:
    """Columns that a source with a declared schema lacks; the columns of steps only Spark knows."""
    if not isinstance(part, TopicSource | FormatSource):
        return
    columns = source_columns(part)
    if columns is None:
        return
    known = {name.lower() for name in columns}
    for name in names:
        if name.lower() not in known:
            near = nearest(name, columns)
            hint = f"; did you mean {near!r}?" if near else f", which has {listed(columns)}"
            text = f"{title}: there is no column {name!r} in source {part.name!r}{hint}"
            yield SpecError(place or part.place, text)


FILE_FORMATS = ("avro", "csv", "json", "orc", "parquet", "text", "xml")


def check_sources(pipeline: Pipeline) -> Problems:
    """Problems of the topics, schemas, decoding and options of sources."""
    for source in pipeline.sources:
        if isinstance(source, TopicSource):
            yield from _topic_source_problems(source)
        else:
            yield from _format_source_problems(source)
        if source.watermark is not None:
            yield from _watermark_problems(source)


def check_dead_letters(pipeline: Pipeline) -> Problems:
    """Problems of the dead-letter topic: missing when needed, or read by a source."""
    letters = pipeline.dead_letters
    if letters:
        yield from topic_problems((letters.topic,), "dead_letters", letters.place)
        yield from error_of("dead_letters", letters.place, stream_write_options, letters.options)
    for source in pipeline.sources:
        if not isinstance(source, TopicSource):
            continue
        sends = source.decode.format != "raw" and source.decode.on_error is OnError.DEAD_LETTER
        if letters is None and sends:
            text = "sends what it cannot decode to dead letters, but the pipeline has no"
            remedy = "'dead_letters': give it a topic, or set on_error to drop or fail"
            place = source.decode.place or source.place
            yield SpecError(place, f"source {source.name!r} {text} {remedy}")
        elif letters and sends and reads_topic(source, letters.topic):
            text = f"also reads the topic of its dead letters, {letters.topic!r}"
            yield SpecError(source.place, f"source {source.name!r} {text}: they would go round")


def reads_topic(source: TopicSource, topic: str) -> bool:
    """Whether a source reads a topic."""
    if source.pattern is None:
        return topic in source.topics
    try:
        return re.fullmatch(source.pattern, topic) is not None
    except re.error:
        return False


def _topic_source_problems(source: TopicSource) -> Problems:
    title = title_of(source)
    if bool(source.topics) == bool(source.pattern):
        yield SpecError(source.place, f"{title} must have topics or a pattern: one of them")
        return
    yield from topic_problems(source.topics, title, source.place)
    yield from _decode_problems(source)
    yield from error_of(title, source.place, _read_options, source)


def _format_source_problems(source: FormatSource) -> Problems:
    title = title_of(source)
    if source.schema:
        yield from error_of(f"the schema of {title}", source.place, ddl_columns, source.schema)
    if source.format.lower() in FILE_FORMATS:
        if source.path is None and "path" not in source.options:
            yield SpecError(source.place, f"{title} lacks 'path': where are its files?")
        if source.streaming and source.schema is None and source.format.lower() != "text":
            text = "lacks 'schema', which a stream of files needs before the first has come"
            yield SpecError(source.place, f"{title} {text}")


def _watermark_problems(source: TopicSource | FormatSource) -> Problems:
    assert source.watermark is not None
    if not source.streaming:
        text = "is a table, which has no watermark: only a stream has"
        yield SpecError(source.place, f"{title_of(source)} {text}")
    title = f"the watermark of {title_of(source)}"
    yield from column_problems(source, (source.watermark.column,), title)


def _decode_problems(source: TopicSource) -> Problems:
    decode, title = source.decode, f"decode of source {source.name!r}"
    place = decode.place or source.place
    if decode.framing != "none" and decode.format != "avro":
        text = f"has framing {decode.framing}, which only format avro can have"
        yield SpecError(place, f"{title} {text}")
    if decode.format == "raw":
        if decode.schema is not None:
            yield SpecError(place, f"{title} has a schema, which format raw does not take")
    elif decode.schema is None:
        example = (
            '{"type": "record", ...}' if decode.format == "avro" else "id BIGINT, at TIMESTAMP"
        )
        yield SpecError(place, f"{title} lacks 'schema' for format {decode.format}: {example}")
    else:
        yield from error_of(f"the schema in {title}", place, _refuse_clashes, decode)


def _refuse_clashes(decode: Decode) -> None:
    columns = [name.lower() for name in decoded_columns(decode) or ()]
    clash = next((name for name in decode.keep.values() if columns.count(name.lower()) > 1), None)
    if clash is not None:
        raise ValueError(f"it has a column {clash!r}, and keep gives another that name")


def _read_options(source: TopicSource) -> None:
    subject = (
        {"subscribePattern": source.pattern}
        if source.pattern
        else {"subscribe": ",".join(source.topics)}
    )
    given = [name for name in source.options if name.lower().startswith(("subscribe", "assign"))]
    if given:
        raise ValueError(f"option {given[0]} is set by topic, topics and pattern: leave it out")
    read = stream_options if source.streaming else batch_options
    read({**source.options, **subject})


SERVERS = "bootstrap.servers"


def check_sinks(pipeline: Pipeline) -> Problems:
    """Problems of modes and targets, and of sinks without a stream to write."""
    if not pipeline.sinks:
        yield SpecError(pipeline.place, "the pipeline has no sink: nothing would be run")
    parts = parts_by_name(pipeline)
    for sink in pipeline.sinks:
        yield from _mode_problems(sink)
        yield from _target_problems(sink, parts.get(sink.input.lower()))
        read = needed(pipeline, sink.input)
        yield from _stream_problems(sink, read)
        yield from _circle_problems(pipeline, sink, read)
    yield from _path_problems(pipeline)


def _mode_problems(sink: Sink) -> Problems:
    if sink.mode == OutputMode.APPEND or isinstance(sink.target, TopicSink | ConsoleSink):
        return
    if not isinstance(sink.target, PostgresSink):
        text = f"writes each row once: its mode must be append, not {sink.mode}"
        remedy = "a window with a watermark gives finished rows"
        yield SpecError(sink.place, f"sink {sink.name!r} {text}; {remedy}")
    elif not sink.target.keys:
        text = f"needs 'keys' in mode {sink.mode}: rows that change are found by them"
        yield SpecError(sink.place, f"sink {sink.name!r} {text}")


def _target_problems(sink: Sink, read: Part | None) -> Problems:
    title = f"sink {sink.name!r}"
    match sink.target:
        case TopicSink() as target:
            if bool(target.topic) == bool(target.topic_expression):
                text = "must have a topic or a topic_expression: one of them"
                yield SpecError(sink.place, f"{title} {text}")
            if target.topic:
                yield from topic_problems((target.topic,), title, sink.place)
            yield from error_of(title, sink.place, stream_write_options, target.options)
        case FileSink() | DeltaSink() as target:
            partition_title = f"'partition_by' of {title}"
            yield from list_problems(target.partition_by, partition_title, sink.place)
            yield from column_problems(read, target.partition_by, partition_title, sink.place)
        case PostgresSink() as target:
            keys_title = f"'keys' of {title}"
            yield from list_problems(target.keys, keys_title, sink.place)
            yield from column_problems(read, target.keys, keys_title, sink.place)
            if not target.dsn.strip():
                yield SpecError(sink.place, f"{title} has no dsn: where is the server?")


def _stream_problems(sink: Sink, read: list[Part]) -> Problems:
    sources = [part for part in read if isinstance(part, TopicSource | FormatSource)]
    # A function can make its own stream, and SQL can read one in a catalog.
    has_own = any(isinstance(part, PythonStep) for part in read) or not sources
    if not has_own and not any(source.streaming for source in sources):
        text = f"reads only tables ({listed(source.name for source in sources)}), and no stream"
        yield SpecError(sink.place, f"sink {sink.name!r} {text}: set streaming: true for one")


def _circle_problems(pipeline: Pipeline, sink: Sink, read: list[Part]) -> Problems:
    if not isinstance(sink.target, TopicSink) or sink.target.topic is None:
        return
    for part in read:
        if not isinstance(part, TopicSource) or not reads_topic(part, sink.target.topic):
            continue
        # The same topic in another cluster is a mirror.
        servers = pipeline.broker.get(SERVERS)
        written = sink.target.options.get(f"kafka.{SERVERS}", servers)
        if written == part.options.get(f"kafka.{SERVERS}", servers):
            text = f"writes topic {sink.target.topic!r}, which it reads as source {part.name!r}"
            yield SpecError(sink.place, f"sink {sink.name!r} {text}: records would go round")


def _path_problems(pipeline: Pipeline) -> Problems:
    taken = {pipeline.checkpoint: "the checkpoint"}
    for sink in pipeline.sinks:
        if isinstance(sink.target, FileSink | DeltaSink):
            path = sink.target.path.rstrip("/")
            if path in taken:
                text = f"has the path of {taken[path]}: give each a directory of its own"
                yield SpecError(sink.place, f"sink {sink.name!r} {text}: {path}")
            taken.setdefault(path, f"sink {sink.name!r}")


NAME_LENGTH_MAX = 100
PARTS_MAX = 300

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DIRECTORY_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def check(pipeline: Pipeline) -> None:
    """Raise SpecError for a pipeline that cannot run, with a line for each problem."""
    parts = len(pipeline.sources) + len(pipeline.steps) + len(pipeline.sinks)
    if parts > PARTS_MAX:
        text = f"the pipeline has {parts} parts, and at most {PARTS_MAX} are allowed: split it"
        raise SpecError(pipeline.place, text)
    found = [problem for find in _CHECKS for problem in find(pipeline)]
    raise_problems(sorted(found, key=lambda problem: problem.place.line if problem.place else 0))


def _check_names(pipeline: Pipeline) -> Problems:
    if not _is_directory_name(pipeline.name):
        yield SpecError(pipeline.place, _not_a_directory("the pipeline's name", pipeline.name))
    for sink in pipeline.sinks:
        if not _is_directory_name(sink.name):
            yield SpecError(sink.place, _not_a_directory("the name of a sink", sink.name))
    for part in (*pipeline.sources, *pipeline.steps):
        if not _IDENTIFIER.fullmatch(part.name) or len(part.name) > NAME_LENGTH_MAX:
            text = "is the name of a table: letters, digits and _, and no digit first"
            yield SpecError(part.place, f"{title_of(part)}: its name {text}")
        elif part.name.upper() in RESERVED:
            yield SpecError(part.place, f"{title_of(part)}: its name is a word of SQL; use another")
    yield from _doubled("sink", pipeline.sinks)
    yield from _doubled("source or step", (*pipeline.sources, *pipeline.steps))
    dead = {f"dead-letters-{source.name}": source for source in pipeline.sources}
    for sink in pipeline.sinks:
        if sink.name in dead:
            text = f"is that of the query for dead letters of {dead[sink.name].name!r}; use another"
            yield SpecError(sink.place, f"the name of sink {sink.name!r} {text}")


def _check_inputs(pipeline: Pipeline) -> Problems:
    parts = parts_by_name(pipeline)
    for step in pipeline.steps:
        for name in inputs(step):
            if name.lower() not in parts:
                text = _unknown(f"step {step.name!r} reads", name, parts)
                if isinstance(step, SqlStep) and not nearest(name, _names(parts)):
                    text += f"; a table of Spark's catalog has its database first: default.{name}"
                yield SpecError(_input_place(step, name), text)
        if isinstance(step, PythonStep) and len(set(step.inputs)) < len(step.inputs):
            yield SpecError(step.place, f"step {step.name!r} has an input twice")
    for sink in pipeline.sinks:
        if sink.input.lower() not in parts:
            text = _unknown(f"sink {sink.name!r} is from", sink.input, parts)
            yield SpecError(sink.place, text)
    for circle in cycles(pipeline):
        path = " <- ".join([*circle, circle[0]])
        text = f"steps read each other in a circle: {path}"
        if len(circle) == 1:
            text = f"step {circle[0]!r} reads itself"
        yield SpecError(parts[circle[0].lower()].place, text)


def _check_broker(pipeline: Pipeline) -> Problems:
    own = f"kafka.{SERVERS}"
    uses = [
        f"source {source.name!r}"
        for source in pipeline.sources
        if isinstance(source, TopicSource) and own not in source.options
    ] + [
        f"sink {sink.name!r}"
        for sink in pipeline.sinks
        if isinstance(sink.target, TopicSink) and own not in sink.target.options
    ]
    if uses and not pipeline.broker.get(SERVERS):
        text = f"{uses[0]} has a topic, but 'broker' has no {SERVERS}"
        yield SpecError(pipeline.place, f"{text}: write broker: localhost:9092")
    if pipeline.broker:
        title = "'broker' of the pipeline"
        yield from error_of(title, pipeline.place, _client_options, pipeline.broker)


def _check_steps(pipeline: Pipeline) -> Problems:
    parts = parts_by_name(pipeline)
    for step in pipeline.steps:
        if isinstance(step, PythonStep):
            problem = function_problem(step.function, pipeline.directory, len(step.inputs))
            if problem:
                yield SpecError(step.place, f"step {step.name!r}: {problem}")
        elif isinstance(step, DeduplicateStep):
            title = f"'keys' of step {step.name!r}"
            if not step.keys:
                yield SpecError(step.place, f"{title} is empty: name the columns that tell a row")
            yield from list_problems(step.keys, title, step.place)
            source = parts.get(step.input.lower())
            yield from column_problems(source, step.keys, title, step.place)
        elif not begins_query(step.sql):
            text = f"step {step.name!r} must be a query: one that begins with SELECT or WITH"
            yield SpecError(step.place, text)


def _check_watermarks(pipeline: Pipeline) -> Problems:
    for part in (*pipeline.sources, *pipeline.steps):
        if isinstance(part, DeduplicateStep) or part.watermark is None:
            continue
        column = part.watermark.column
        if not _IDENTIFIER.fullmatch(column):
            text = f"the watermark of {title_of(part)} must name a column, not {column!r}"
            yield SpecError(part.place, text)


def _client_options(properties: Mapping[str, str]) -> None:
    """Check options that every client takes: of sources, sinks and topic lookups."""
    options = admin_options(**from_properties(resolved_properties(properties), "admin"))
    # Options that contradict each other are found out by what is made of them.
    options.client_security()


def _doubled(noun: str, parts: Sequence[Part] | Sequence[Sink]) -> Problems:
    first: dict[str, Part | Sink] = {}
    for part in parts:
        earlier = first.setdefault(part.name.lower(), part)
        if earlier is not part:
            where = f", first at {earlier.place}" if earlier.place else ""
            text = f"the name {part.name!r} is that of another {noun}{where}; names differ in more"
            yield SpecError(part.place, f"{text} than their case")


def _unknown(usage: str, name: str, parts: Mapping[str, Part]) -> str:
    near = nearest(name, _names(parts))
    hint = f"did you mean {near!r}? " if near else ""
    return f"{usage} {name!r}, which is no source or step; {hint}there are {listed(_names(parts))}"


def _names(parts: Mapping[str, Part]) -> list[str]:
    return [part.name for part in parts.values()]


def _input_place(step: Step, name: str) -> SourceLocation | None:
    """The location of a name: within SQL text the line of the name."""
    if not isinstance(step, SqlStep) or step.sql_place is None:
        return step.place
    match = re.search(rf"\b{re.escape(name)}\b", step.sql)
    lines = step.sql.count("\n", 0, match.start()) if match else 0
    return SourceLocation(step.sql_place.file, step.sql_place.line + lines)


def _is_directory_name(name: str) -> bool:
    return bool(_DIRECTORY_NAME.fullmatch(name)) and len(name) <= NAME_LENGTH_MAX


def _not_a_directory(what: str, name: str) -> str:
    allowed = "letters, digits, '.', '_' and '-', beginning with a letter or a digit"
    return f"{what} is also that of a directory: {allowed}, not {name!r}"


_CHECKS = (
    _check_names,
    _check_inputs,
    _check_broker,
    check_sources,
    check_dead_letters,
    _check_steps,
    _check_watermarks,
    check_sinks,
)
