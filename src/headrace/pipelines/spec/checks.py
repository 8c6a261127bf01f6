"""What must hold between the parts of a pipeline before it is worth starting Spark.

Rule: a check yields what is wrong and goes on, so that all of it is told at once.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

from headrace.client.options import admin_options, from_properties
from headrace.errors import HeadraceError, KafkaError
from headrace.metadata.names import check_topic_name
from headrace.pipelines.source.options import batch_options, stream_options
from headrace.pipelines.source.write_options import write_options
from headrace.pipelines.spec.columns import ddl_columns, decoded_columns, source_columns
from headrace.pipelines.spec.functions import function_problem
from headrace.pipelines.spec.keys import listed, nearest
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
    Place,
    PostgresSink,
    PythonStep,
    Sink,
    SpecError,
    SqlStep,
    Step,
    TopicSink,
    TopicSource,
    Watermark,
    raise_problems,
)
from headrace.pipelines.spec.order import Part, cycles, inputs, needed, parts_by_name
from headrace.pipelines.spec.sql_tables import RESERVED

T = TypeVar("T")
Problems = Iterator[SpecError]

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DIRECTORY_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
NAME_LENGTH_MAX = 100


def check(pipeline: Pipeline) -> None:
    """Raise SpecError for a pipeline that cannot run, with a line for each thing that is wrong."""
    found = [problem for one in _CHECKS for problem in one(pipeline)]
    raise_problems(sorted(found, key=lambda one: one.place.line if one.place else 0))


def _check_names(pipeline: Pipeline) -> Problems:
    if not _is_directory_name(pipeline.name):
        yield SpecError(pipeline.place, _not_a_directory("the pipeline's name", pipeline.name))
    for sink in pipeline.sinks:
        if not _is_directory_name(sink.name):
            yield SpecError(sink.place, _not_a_directory("the name of a sink", sink.name))
    for part in (*pipeline.sources, *pipeline.steps):
        if not _IDENTIFIER.fullmatch(part.name) or len(part.name) > NAME_LENGTH_MAX:
            text = "is the name of a table: letters, digits and _, and no digit first"
            yield SpecError(part.place, f"{_title(part)}: its name {text}")
        elif part.name.upper() in RESERVED:
            yield SpecError(part.place, f"{_title(part)}: its name is a word of SQL; use another")
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
                hint = "; a table of Spark's catalog is written with its database: default."
                catalog = f"{hint}{name}" if isinstance(step, SqlStep) else ""
                text = _unknown(f"step {step.name!r} reads", name, parts)
                yield SpecError(_input_place(step, name), f"{text}{catalog}")
        if isinstance(step, PythonStep) and len(set(step.inputs)) < len(step.inputs):
            yield SpecError(step.place, f"step {step.name!r} has an input twice")
    for sink in pipeline.sinks:
        if sink.input.lower() not in parts:
            text = _unknown(f"sink {sink.name!r} is from", sink.input, parts)
            yield SpecError(sink.place, text)
    for circle in cycles(pipeline):
        path = " <- ".join([*circle, circle[0]])
        text = f"steps read each other in a circle: {path}" if len(circle) > 1 else "reads itself"
        place = parts[circle[0].lower()].place
        yield SpecError(place, text if len(circle) > 1 else f"step {circle[0]!r} {text}")


def _check_sources(pipeline: Pipeline) -> Problems:
    for source in pipeline.sources:
        title = _title(source)
        if isinstance(source, TopicSource):
            if bool(source.topics) == bool(source.pattern):
                yield SpecError(source.place, f"{title} must have topics or a pattern: one of them")
                continue
            yield from _topic_problems(source.topics, title, source.place)
            yield from _decode_problems(source)
            yield from _told(title, source.place, _read_options, source)
        elif isinstance(source, FormatSource) and source.schema:
            schema_title = f"the schema of {title}"
            yield from _told(schema_title, source.place, ddl_columns, source.schema)


def _check_broker(pipeline: Pipeline) -> Problems:
    uses = [f"source {one.name!r}" for one in pipeline.sources if isinstance(one, TopicSource)]
    uses += [f"sink {one.name!r}" for one in pipeline.sinks if isinstance(one.target, TopicSink)]
    if uses and not pipeline.broker.get("bootstrap.servers"):
        text = f"{uses[0]} has a topic, but 'broker' has no bootstrap.servers"
        yield SpecError(pipeline.place, f"{text}: write broker: localhost:9092")
    if pipeline.broker:
        title = "'broker' of the pipeline"
        yield from _told(title, pipeline.place, _client_options, pipeline.broker)


def _check_dead_letters(pipeline: Pipeline) -> Problems:
    letters = pipeline.dead_letters
    if letters:
        yield from _topic_problems((letters.topic,), "dead_letters", letters.place)
        yield from _told("dead_letters", letters.place, write_options, letters.options)
    for source in pipeline.sources:
        if not isinstance(source, TopicSource):
            continue
        place = source.decode.place or source.place
        undecoded = source.decode.format == "raw" or source.decode.on_error != OnError.DEAD_LETTER
        if letters is None and not undecoded:
            text = "sends what it cannot decode to dead letters, but the pipeline has no"
            remedy = "'dead_letters': give it a topic, or set on_error to drop or fail"
            yield SpecError(place, f"source {source.name!r} {text} {remedy}")
        if letters and letters.topic in source.topics:
            text = "reads the topic of the dead letters, which would go round for ever"
            yield SpecError(source.place, f"source {source.name!r} {text}")


def _check_watermarks(pipeline: Pipeline) -> Problems:
    for part in (*pipeline.sources, *pipeline.steps):
        watermark: Watermark | None = getattr(part, "watermark", None)
        if watermark is None:
            continue
        if not _IDENTIFIER.fullmatch(watermark.column):
            text = f"the watermark of {_title(part)} must name a column, not {watermark.column!r}"
            yield SpecError(part.place, text)
        elif not isinstance(part, Step):
            yield from _column_problems(part, (watermark.column,), f"watermark of {_title(part)}")
        if isinstance(part, TopicSource | FormatSource) and not part.streaming:
            text = "is a table, which has no watermark: only a stream has"
            yield SpecError(part.place, f"{_title(part)} {text}")


def _check_keys(pipeline: Pipeline) -> Problems:
    parts = parts_by_name(pipeline)
    for step in pipeline.steps:
        if isinstance(step, PythonStep):
            problem = function_problem(step.function, pipeline.directory, len(step.inputs))
            if problem:
                yield SpecError(step.place, f"step {step.name!r}: {problem}")
        elif isinstance(step, DeduplicateStep):
            title = f"'keys' of step {step.name!r}"
            yield from _list_problems(step.keys, title, step.place)
            source = parts.get(step.input.lower())
            yield from _column_problems(source, step.keys, title, step.place)
            if not step.keys:
                yield SpecError(step.place, f"{title} is empty: name the columns that tell a row")


def _check_sinks(pipeline: Pipeline) -> Problems:
    if not pipeline.sinks:
        yield SpecError(pipeline.place, "the pipeline has no sink: nothing would be run")
    parts = parts_by_name(pipeline)
    for sink in pipeline.sinks:
        yield from _mode_problems(sink)
        yield from _target_problems(sink, parts.get(sink.input.lower()))
        read = needed(pipeline, sink.input)
        # A function can make a stream of its own, and SQL can read a catalog's.
        sources = [part for part in read if isinstance(part, TopicSource | FormatSource)]
        if sources and len(sources) == sum(not one.streaming for one in sources):
            if not any(isinstance(part, PythonStep) for part in read):
                text = f"reads only tables ({listed(one.name for one in sources)}), and no stream"
                remedy = "set streaming: true for one of them"
                yield SpecError(sink.place, f"sink {sink.name!r} {text}: {remedy}")


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
                yield from _topic_problems((target.topic,), title, sink.place)
            yield from _told(title, sink.place, write_options, target.options)
        case FileSink() | DeltaSink() as target:
            partition_title = f"'partition_by' of {title}"
            yield from _list_problems(target.partition_by, partition_title, sink.place)
            yield from _column_problems(read, target.partition_by, partition_title, sink.place)
        case PostgresSink() as target:
            keys_title = f"'keys' of {title}"
            yield from _list_problems(target.keys, keys_title, sink.place)
            yield from _column_problems(read, target.keys, keys_title, sink.place)
            if not target.dsn.strip():
                yield SpecError(sink.place, f"{title} has no dsn: where is the server?")


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
        yield from _told(f"the schema in {title}", place, _refuse_clashes, decode)


def _refuse_clashes(decode: Decode) -> None:
    columns = [name.lower() for name in decoded_columns(decode) or ()]
    clash = next((name for name in decode.keep.values() if columns.count(name.lower()) > 1), None)
    if clash is not None:
        raise ValueError(f"it has a column {clash!r}, and keep gives another that name")


def _client_options(properties: Mapping[str, str]) -> None:
    """Every client takes these: sources, sinks and what asks the broker for its topics."""
    admin_options(**from_properties(properties, "admin"))


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


def _told(title: str, place: Place | None, act: Callable[[T], object], value: T) -> Problems:
    """What an act refuses to take, as a problem of the part of that title."""
    try:
        act(value)
    except (HeadraceError, ValueError) as error:
        yield SpecError(place, f"{title}: {error}")


def _topic_problems(topics: Sequence[str], title: str, place: Place | None) -> Problems:
    for topic in topics:
        try:
            check_topic_name(topic)
        except KafkaError as error:
            yield SpecError(place, f"{title}: {error.detail}")


def _list_problems(names: Sequence[str], title: str, place: Place | None) -> Problems:
    doubled = {name for name in names if names.count(name) > 1}
    for name in sorted(doubled):
        yield SpecError(place, f"{title} has {name!r} twice")


def _column_problems(
    part: Part | None, names: Sequence[str], title: str, place: Place | None = None
) -> Problems:
    """Columns that a source with a declared schema does not have; of steps only Spark can tell."""
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


def _doubled(noun: str, parts: Sequence[Part] | Sequence[Sink]) -> Problems:
    first: dict[str, Part | Sink] = {}
    for part in parts:
        earlier = first.setdefault(part.name.lower(), part)
        if earlier is not part:
            where = f", first at {earlier.place}" if earlier.place else ""
            text = f"the name {part.name!r} is that of another {noun}{where}; names differ in more"
            yield SpecError(part.place, f"{text} than their case")


def _unknown(what: str, name: str, parts: Mapping[str, Part]) -> str:
    names = [part.name for part in parts.values()]
    near = nearest(name, names)
    hint = f"did you mean {near!r}? " if near else ""
    return f"{what} {name!r}, which is no source or step; {hint}there are {listed(names)}"


def _input_place(step: Step, name: str) -> Place | None:
    """Where a name stands: in SQL text the line itself can be told."""
    if not isinstance(step, SqlStep) or step.sql_place is None:
        return step.place
    match = re.search(rf"\b{re.escape(name)}\b", step.sql)
    lines = step.sql.count("\n", 0, match.start()) if match else 0
    return Place(step.sql_place.file, step.sql_place.line + lines)


def _is_directory_name(name: str) -> bool:
    return bool(_DIRECTORY_NAME.fullmatch(name)) and len(name) <= NAME_LENGTH_MAX


def _not_a_directory(what: str, name: str) -> str:
    allowed = "letters, digits, '.', '_' and '-', beginning with a letter, a digit or '_'"
    return f"{what} is also that of a directory: {allowed}, not {name!r}"


def _title(part: Part) -> str:
    return f"{'step' if isinstance(part, Step) else 'source'} {part.name!r}"


_CHECKS = (
    _check_names,
    _check_inputs,
    _check_broker,
    _check_sources,
    _check_dead_letters,
    _check_watermarks,
    _check_keys,
    _check_sinks,
)
