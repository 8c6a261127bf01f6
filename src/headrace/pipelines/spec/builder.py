"""Pipelines declared in Python, with the keys of a pipeline file as arguments.

from headrace import pipelines

    orders = pipelines.pipeline("orders-by-region", broker="localhost:9092")
    orders.source("orders", topic="orders", decode=pipelines.json("region STRING, cents BIGINT"))

    @orders.step
    def large(orders):
        return orders.where("cents > 10000")

    orders.sink("lake", large, parquet="./lake")

Rule: what is given goes through the same table of keys as a file, so that both can say the same.
"""

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypedDict, TypeVar, Unpack, overload

from headrace.pipelines.spec.model import (
    Pipeline,
    PythonStep,
    Sink,
    Source,
    SourceLocation,
    SpecError,
    Step,
    raise_problems,
)
from headrace.pipelines.spec.nodes import from_python
from headrace.pipelines.spec.sections import ReadContext, Section, SectionVariants, listed
from headrace.pipelines.spec.table import PIPELINE, SETTINGS, SINK, SOURCE, STEP, default_checkpoint
from headrace.pipelines.spec.user_code import SPARK, import_file, shown_path

# The arguments of the Python builder, for editors and type checkers: the keys of a file by kind.
#
# Their meaning is in `table.py`; a test compares the two.


# A value that is converted to text: an option of Spark or of a client.
Value: TypeAlias = str | int | float | bool
Values: TypeAlias = Mapping[str, Value]
Location: TypeAlias = str | PathLike[str]
Names: TypeAlias = str | Sequence[str]
Mode: TypeAlias = Literal["append", "update", "complete"]
Keep: TypeAlias = Sequence[str | Mapping[str, str]] | Mapping[str, str]
Schema: TypeAlias = str | Mapping[str, Any] | Sequence[Any]


class WatermarkKeys(TypedDict):
    """The options of a watermark."""

    column: str
    delay: str


class DeadLetterKeys(TypedDict, total=False):
    """The options of dead letters."""

    topic: str
    options: Values


class DecodeKeys(TypedDict, total=False):
    """The options of decoding beside its format and schema."""

    framing: Literal["none", "confluent"]
    keep: Keep
    options: Values
    on_error: Literal["dead-letter", "drop", "fail"]


class SourceKeys(TypedDict, total=False):
    """The keys of a source."""

    topic: str
    topics: Names
    pattern: str
    starting: str
    decode: str | Mapping[str, object]
    format: str
    path: Location
    schema: str
    watermark: WatermarkKeys
    streaming: bool
    options: Values


class IcebergKeys(TypedDict, total=False):
    """An Iceberg table."""

    table: str
    catalog: Values
    location: Location


class PostgresKeys(TypedDict, total=False):
    """A table of PostgreSQL."""

    dsn: str
    table: str
    keys: Names
    create: bool


class ConsoleKeys(TypedDict, total=False):
    """The options of the console sink."""

    rows: int


class SinkKeys(TypedDict, total=False):
    """The keys of a sink beside its input."""

    mode: Mode
    trigger: str
    topic: str
    topic_expression: str
    key: str
    value: str
    headers: str
    partition: str
    timestamp: str
    parquet: Location
    json: Location
    csv: Location
    orc: Location
    delta: Location
    partition_by: Names
    iceberg: IcebergKeys
    postgresql: PostgresKeys
    console: ConsoleKeys | int
    options: Values


class PipelineSettings(TypedDict, total=False):
    """The keys of a pipeline, beside its name and its parts."""

    description: str
    broker: str | Values
    checkpoint: Location
    trigger: str
    parallelism: int
    group: str
    dead_letters: str | DeadLetterKeys
    spark: Values


Function = TypeVar("Function", bound=Callable[..., Any])
# A source or step: its name, or the function that a step was made of.
Input = str | Callable[..., Any]

_SETTINGS = replace(PIPELINE, keys=SETTINGS, make=lambda place, **values: values)


def pipeline(name: str, **settings: Unpack[PipelineSettings]) -> "Builder":
    """A pipeline to add parts to. The settings are the keys of a file beside its parts.

    Relative paths start from the directory of the file that calls this.
    """
    return Builder(name, _caller(), settings)


def json(schema: str, **more: Unpack[DecodeKeys]) -> Mapping[str, object]:
    """For `decode`: values are JSON objects, with these columns in Spark's DDL."""
    return {"format": "json", "schema": schema, **more}


def csv(schema: str, **more: Unpack[DecodeKeys]) -> Mapping[str, object]:
    """For `decode`: values are lines of comma-separated values, with these columns."""
    return {"format": "csv", "schema": schema, **more}


def avro(schema: Schema, **more: Unpack[DecodeKeys]) -> Mapping[str, object]:
    """For `decode`: values are Avro records of a schema, as JSON text or as a Python value."""
    from json import dumps  # noqa: PLC0415 - the name is that of a function here

    text = schema if isinstance(schema, str) else dumps(schema)
    return {"format": "avro", "schema": text, **more}


class Builder:
    """A pipeline being declared; `build` returns it as a value.

    Each method takes the keys of its part as in a file, and raises SpecError for an error that a
    file would be refused for, with the place of the call.
    """

    def __init__(self, name: str, place: SourceLocation, settings: Mapping[str, object]) -> None:
        self.name = name
        self.place = place
        self._directory = Path(place.file).absolute().parent
        self._settings = self._read(_SETTINGS, "the pipeline", place, settings)
        self._sources: list[Source] = []
        self._steps: list[Step] = []
        self._sinks: list[Sink] = []

    def source(self, name: str, **keys: Unpack[SourceKeys]) -> str:
        """Declare a source: of topics, or with `format` of any format that Spark reads."""
        self._sources.append(self._part(SOURCE, name, _caller(), keys))
        return name

    def sql(self, name: str, sql: str, *, watermark: WatermarkKeys | None = None) -> str:
        """Declare a step that is an SQL query of sources and other steps."""
        self._steps.append(self._part(STEP, name, _caller(), {"sql": sql, "watermark": watermark}))
        return name

    def deduplicate(self, name: str, input: Input, keys: str | Sequence[str]) -> str:
        """Declare a step that keeps the first of the rows with equal keys."""
        given = {"deduplicate": self._input(input), "keys": keys}
        self._steps.append(self._part(STEP, name, _caller(), given))
        return name

    @overload
    def step(self, function: Function) -> Function: ...
    @overload
    def step(
        self,
        *,
        name: str = ...,
        inputs: Sequence[Input] | None = ...,
        watermark: WatermarkKeys | None = ...,
    ) -> Callable[[Function], Function]: ...
    def step(
        self,
        function: Any = None,
        *,
        name: str = "",
        inputs: Sequence[Input] | None = None,
        watermark: WatermarkKeys | None = None,
    ) -> Any:
        """Declare a step that is a function of DataFrames; a decorator, with arguments or without.

        Its name is the function's. Its inputs are the sources and steps with the names of its
        parameters without a default, unless `inputs` is given. A parameter `spark` gets the
        session.
        """

        def declare(function: Function) -> Function:
            self._add_function(function, name, inputs, watermark)
            return function

        return declare if function is None else declare(function)

    def sink(self, name: str, input: Input, **keys: Unpack[SinkKeys]) -> str:
        """Declare a sink for the rows of a source or step."""
        given = {"from": self._input(input), **keys}
        self._sinks.append(self._part(SINK, name, _caller(), given))
        return name

    def build(self) -> Pipeline:
        """The pipeline as a value; `checks.check` checks it as a whole."""
        settings = dict(self._settings)
        checkpoint = settings.pop("checkpoint", "") or default_checkpoint(
            self.name, self._directory
        )
        return Pipeline(
            name=self.name,
            sources=tuple(self._sources),
            steps=tuple(self._steps),
            sinks=tuple(self._sinks),
            directory=self._directory,
            checkpoint=checkpoint,
            place=self.place,
            **settings,
        )

    def _add_function(
        self,
        function: Callable[..., Any],
        name: str,
        inputs: Sequence[Input] | None,
        watermark: WatermarkKeys | None,
    ) -> None:
        code = getattr(inspect.unwrap(function), "__code__", None)
        place = (
            SourceLocation(shown_path(code.co_filename), code.co_firstlineno) if code else _caller()
        )
        chosen = (
            _parameters(function) if inputs is None else [self._input(given) for given in inputs]
        )
        given: dict[str, object] = {"python": "function", "watermark": watermark}
        if chosen:
            given["inputs"] = chosen
        step = self._part(STEP, name or getattr(function, "__name__", ""), place, given)
        assert isinstance(step, PythonStep)
        self._steps.append(replace(step, function=function))

    def _input(self, given: Input) -> str:
        if isinstance(given, str):
            return given
        for step in self._steps:
            if isinstance(step, PythonStep) and step.function is given:
                return step.name
        name = getattr(given, "__name__", repr(given))
        raise SpecError(
            _caller(), f"{name} is no step of the pipeline: decorate it with step first"
        )

    def _part(
        self,
        kind: Section | SectionVariants,
        name: str,
        place: SourceLocation,
        keys: Mapping[str, object],
    ) -> Any:
        return self._read(kind, f"{kind.name} {name!r}", place, keys, name=name)

    def _read(
        self,
        kind: Section | SectionVariants,
        what: str,
        place: SourceLocation,
        keys: Mapping[str, object],
        **given: Any,
    ) -> Any:
        context = ReadContext(place.file, self._directory)
        try:
            node = from_python(keys, place.line)
        except TypeError as error:
            raise SpecError(
                place, f"{what} has a value that a file could not have: {error}"
            ) from None
        value = kind.read(node, what, context, **given)
        raise_problems(context.problems)
        return value


def _parameters(function: Callable[..., Any]) -> list[str]:
    """The required parameters, which are frames: all but `spark`."""
    parameters = inspect.signature(function).parameters.values()
    return [
        parameter.name
        for parameter in parameters
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        and parameter.default is parameter.empty
        and parameter.name != SPARK
    ]


def _caller() -> SourceLocation:
    """The location of the calling code outside of this module."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__") == __name__:
        frame = frame.f_back
    return SourceLocation(shown_path(frame.f_code.co_filename), frame.f_lineno)


def load(path: Path | str) -> Pipeline:
    """The single pipeline that a Python file declares; imports the file.

    Raises SpecError if there is none, if there are several, or if the import fails.
    """
    path = Path(path)
    module = import_file(path)
    builders = {id(var): var for var in vars(module).values() if isinstance(var, Builder)}
    if len(builders) == 1:
        [builder] = builders.values()
        return builder.build()
    place = SourceLocation(shown_path(path), 1)
    if not builders:
        text = "no pipeline here: give a variable of the module headrace.pipelines.pipeline(...)"
        raise SpecError(place, text)
    names = listed(f"{builder.name} (line {builder.place.line})" for builder in builders.values())
    raise SpecError(place, f"several pipelines here: {names}; keep one in a file")
