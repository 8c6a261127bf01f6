"""What must hold between the parts of a pipeline before it is worth starting Spark.

Rule: a check yields what is wrong and goes on, so that all of it is told at once.
"""

import re
from collections.abc import Mapping, Sequence

from headrace.client.options import admin_options, from_properties
from headrace.pipelines.spec.functions import function_problem
from headrace.pipelines.spec.keys import listed, nearest
from headrace.pipelines.spec.model import (
    DeduplicateStep,
    Pipeline,
    Place,
    PythonStep,
    Sink,
    SpecError,
    SqlStep,
    Step,
    TopicSink,
    TopicSource,
    raise_problems,
)
from headrace.pipelines.spec.order import Part, cycles, inputs, parts_by_name
from headrace.pipelines.spec.problems import (
    Problems,
    column_problems,
    list_problems,
    title_of,
    told,
)
from headrace.pipelines.spec.sink_checks import SERVERS, check_sinks
from headrace.pipelines.spec.source_checks import check_dead_letters, check_sources
from headrace.pipelines.spec.sql_tables import RESERVED, begins_query

NAME_LENGTH_MAX = 100
PARTS_MAX = 300

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DIRECTORY_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def check(pipeline: Pipeline) -> None:
    """Raise SpecError for a pipeline that cannot run, with a line for each thing that is wrong."""
    parts = len(pipeline.sources) + len(pipeline.steps) + len(pipeline.sinks)
    if parts > PARTS_MAX:
        text = f"the pipeline has {parts} parts, and at most {PARTS_MAX} are allowed: split it"
        raise SpecError(pipeline.place, text)
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
                if isinstance(step, SqlStep) and "did you mean" not in text:
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
        f"source {one.name!r}"
        for one in pipeline.sources
        if isinstance(one, TopicSource) and own not in one.options
    ] + [
        f"sink {one.name!r}"
        for one in pipeline.sinks
        if isinstance(one.target, TopicSink) and own not in one.target.options
    ]
    if uses and not pipeline.broker.get(SERVERS):
        text = f"{uses[0]} has a topic, but 'broker' has no {SERVERS}"
        yield SpecError(pipeline.place, f"{text}: write broker: localhost:9092")
    if pipeline.broker:
        title = "'broker' of the pipeline"
        yield from told(title, pipeline.place, _client_options, pipeline.broker)


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
    """Every client takes these: sources, sinks and what asks the broker for its topics."""
    admin_options(**from_properties(properties, "admin"))


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
