"""Streaming DataFrames from the parts of a pipeline: sources, steps, sinks and dead letters."""

import inspect
import sys
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from pyspark import cloudpickle
from pyspark.errors import AnalysisException, ParseException, PySparkException
from pyspark.sql import DataFrame, SparkSession

from headrace.options import nearest
from headrace.pipelines.frames.decoding import (
    DEAD_LETTER_COLUMNS,
    HEADERS,
    columns_to_read,
    dead_letters,
    good_rows,
)
from headrace.pipelines.frames.errors import (
    SPARK_ERRORS,
    blaming,
    essence,
    line_of,
    silenced,
)
from headrace.pipelines.locations import resolve
from headrace.pipelines.spec.dependencies import dead_letter_sources, inputs, needed
from headrace.pipelines.spec.model import (
    BuildError,
    DeduplicateStep,
    FormatSource,
    Pipeline,
    PythonStep,
    Sink,
    Source,
    SourceLocation,
    SpecError,
    SqlStep,
    Step,
    TopicSource,
    Watermark,
)
from headrace.pipelines.spec.user_code import SPARK, load_function

__all__ = [
    "dead_letter_frame",
    "dead_letter_sources",
    "group_of",
    "own_session",
    "sink_frame",
]

# The key in the metadata of a column by which Spark marks a watermark.
_DELAY = "spark.watermarkDelayMs"


def with_watermark(
    frame: DataFrame, watermark: Watermark | None, part: str, place: SourceLocation | None
) -> DataFrame:
    """The frame with the watermark of its part, if there is one."""
    if watermark is None:
        return frame
    remedy = "a watermark is a TIMESTAMP column and a delay, as in {column: at, delay: 1 minute}"
    with blaming(place, part, remedy):
        return frame.withWatermark(watermark.column, watermark.delay)


def has_watermark(frame: DataFrame) -> bool:
    """Whether a watermark bounds the state about the frame's rows."""
    return frame.isStreaming and any(_DELAY in field.metadata for field in frame.schema)


FORMAT = "headrace"


def source_frame(spark: SparkSession, pipeline: Pipeline, source: Source, group: str) -> DataFrame:
    """The rows of a source: decoded, and with its watermark."""
    part = f"source {source.name}"
    with blaming(source.place, part):
        if isinstance(source, FormatSource):
            frame = _format_frame(spark, pipeline, source)
        else:
            columns = columns_to_read(source.decode)
            records = _records(
                spark, topic_options(pipeline, source, columns, group), source.streaming
            )
            frame = good_rows(pipeline, source, records)
    return with_watermark(frame, source.watermark, part, source.place)


def dead_letter_rows(
    spark: SparkSession, pipeline: Pipeline, source: TopicSource, group: str
) -> DataFrame:
    """The undecodable records of a source, as a stream even if the source is a table."""
    if not source.streaming:
        source = as_stream(source)
    with blaming(source.place, f"source {source.name}"):
        options = topic_options(pipeline, source, DEAD_LETTER_COLUMNS, group)
        records = _records(spark, options, streaming=True)
        return dead_letters(pipeline, source, records)


def as_stream(table: TopicSource) -> TopicSource:
    """A table source as an endless stream, with the same start."""
    options = {
        name: text for name, text in table.options.items() if not name.lower().startswith("ending")
    }
    if not any(name.lower().startswith("starting") for name in options):
        options["startingOffsets"] = "earliest"
    return replace(table, streaming=True, options=options)


def topic_options(
    pipeline: Pipeline, source: TopicSource, columns: tuple[str, ...], group: str
) -> dict[str, str]:
    """The options of the data source; the source's own override those of the pipeline."""
    options = {f"kafka.{name}": text for name, text in pipeline.broker.items()}
    if source.pattern is not None:
        options["subscribePattern"] = source.pattern
    elif source.topics:
        options["subscribe"] = ",".join(source.topics)
    if pipeline.parallelism is not None:
        options["minPartitions"] = str(pipeline.parallelism)
    if source.streaming:
        options["groupId"] = group
    options |= source.options
    options["columns"] = ",".join(columns)
    if HEADERS in columns:
        options["includeHeaders"] = "true"
    return options


def _records(spark: SparkSession, options: dict[str, str], streaming: bool) -> DataFrame:
    if streaming:
        return spark.readStream.format(FORMAT).options(**options).load()
    return spark.read.format(FORMAT).options(**options).load()


def _format_frame(spark: SparkSession, pipeline: Pipeline, source: FormatSource) -> DataFrame:
    path = None if source.path is None else resolve(pipeline.directory, source.path)
    if source.streaming:
        stream = spark.readStream.format(source.format).options(**source.options)
        return (stream.schema(source.schema) if source.schema else stream).load(path)
    table = spark.read.format(source.format).options(**source.options)
    return (table.schema(source.schema) if source.schema else table).load(path)


# Python steps: the user's function is loaded, called with frames, and its result is checked.
#
# Rule: an exception of the function becomes the step's error, at the line of the user's file.


_NOT_THE_USERS = (str(Path(__file__).parents[2]), "pyspark", "py4j", "importlib")


def call_step(
    spark: SparkSession, pipeline: Pipeline, step: PythonStep, frames: Sequence[DataFrame]
) -> DataFrame:
    """The frame that a step's function returns for its inputs."""
    with _users_code(step):
        function = load_function(step.function, pipeline.directory)
        send_by_value(_directories(step, pipeline))
        result = function(*frames, **_extra(function, spark))
    if not isinstance(result, DataFrame):
        text = f"{name_of(step)} returned {_kind(result)} and not a DataFrame"
        raise BuildError(step.place, f"step {step.name}", text, "return the frame it makes")
    return result


def name_of(step: PythonStep) -> str:
    """The name of a step's function in messages."""
    if isinstance(step.function, str):
        return step.function
    return getattr(step.function, "__qualname__", repr(step.function))


def _directories(step: PythonStep, pipeline: Pipeline) -> set[Path]:
    """The directories of modules that workers lack: the pipeline's, and the step's file's."""
    root = pipeline.directory.absolute()
    file = step.function.rpartition(":")[0] if isinstance(step.function, str) else ""
    return {root, (root / file).parent} if file.endswith(".py") else {root}


def send_by_value(directories: Collection[Path]) -> None:
    """Make Spark pickle the code of modules in these directories by value.

    Workers can import installed modules, but not these: they lie beside the pipeline.
    """
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file is not None and import_root(name, Path(file)) in directories:
            cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]


def import_root(name: str, file: Path) -> Path | None:
    """The directory from which a file is the module of this name; None if it has another name."""
    path = Path(*name.split("."))
    for ending in (f"{path}.py", f"{path}/__init__.py"):
        if str(file).endswith(f"/{ending}"):
            return Path(str(file).removesuffix(ending))
    return None


def _extra(function: Callable[..., Any], spark: SparkSession) -> dict[str, SparkSession]:
    return {SPARK: spark} if SPARK in inspect.signature(function).parameters else {}


def _kind(value: object) -> str:
    return "nothing" if value is None else f"a {type(value).__name__}"


@contextmanager
def _users_code(step: PythonStep) -> Iterator[None]:
    part = f"step {step.name}"
    try:
        with blaming(step.place, part):
            yield
    except BuildError as error:
        cause = error.__cause__
        assert isinstance(cause, SPARK_ERRORS)
        raise _blamed(step, cause, essence(cause)) from cause
    except SpecError as error:
        raise BuildError(step.place, part, str(error), "correct `python` of the step") from error
    except Exception as error:
        raise _blamed(step, error, f"{type(error).__name__}: {error}") from error


def _blamed(step: PythonStep, error: BaseException, text: str) -> BuildError:
    """The error of a step, with the innermost line of the user's code in its traceback."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not any(foreign in frame.filename for foreign in _NOT_THE_USERS)
    ]
    where = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    what = f"{name_of(step)} failed{where}: {' '.join(text.split())}"
    return BuildError(step.place, f"step {step.name}", what, "correct the function")


_NO_TABLE = "TABLE_OR_VIEW_NOT_FOUND"


def step_frame(
    spark: SparkSession, pipeline: Pipeline, step: Step, frames: Mapping[str, DataFrame]
) -> DataFrame:
    """The rows of a step, from its input frames by name in lower case.

    For a query the inputs are registered as views of `spark`, so that session must not be shared.
    """
    part = f"step {step.name}"
    match step:
        case SqlStep():
            # Tables that are not inputs are looked up in Spark's catalog.
            for name in inputs(step):
                if name.lower() in frames:
                    frames[name.lower()].createOrReplaceTempView(_quoted(name))
            frame = _query(spark, step, part, pipeline)
        case PythonStep():
            read = [_input(step, part, name, frames) for name in step.inputs]
            frame = call_step(spark, pipeline, step, read)
        case DeduplicateStep():
            with blaming(step.place, part):
                return _distinct(_input(step, part, step.input, frames), step.keys)
    return with_watermark(frame, step.watermark, part, step.place)


def _input(step: Step, part: str, name: str, frames: Mapping[str, DataFrame]) -> DataFrame:
    found = frames.get(name.lower())
    if found is None:
        raise BuildError(step.place, part, f"there is no source or step {name}", "correct its name")
    return found


def _query(spark: SparkSession, step: SqlStep, part: str, pipeline: Pipeline) -> DataFrame:
    query = step.sql.rstrip().rstrip(";")
    try:
        with silenced():
            # `sql` would also run a statement that changes data.
            spark._jsparkSession.sessionState().sqlParser().parseQuery(query)
            return spark.sql(query)
    except PySparkException as error:
        text, remedy = _explained(error, pipeline)
        raise BuildError(_line_place(step, line_of(error)), part, text, remedy) from error


def _line_place(step: SqlStep, line: int | None) -> SourceLocation | None:
    """The place of a line of the query, or of the step if the line is unknown."""
    if step.sql_place is None or line is None:
        return step.place
    return SourceLocation(step.sql_place.file, step.sql_place.line + line - 1)


def _explained(error: PySparkException, pipeline: Pipeline) -> tuple[str, str]:
    if isinstance(error, ParseException):
        return essence(error), "a step is one query, SELECT ... or WITH ... SELECT ..."
    if isinstance(error, AnalysisException) and error.getCondition() == _NO_TABLE:
        name = (error.getMessageParameters() or {}).get("relationName", "").strip("`")
        return f"there is no table {name}", _tables(name, pipeline)
    return essence(error), "correct its query"


def _tables(name: str, pipeline: Pipeline) -> str:
    names = [part.name for part in (*pipeline.sources, *pipeline.steps)]
    near = nearest(name, names)
    return f"did you mean {near}?" if near else f"its tables can be {', '.join(names)}"


def _distinct(frame: DataFrame, keys: Sequence[str]) -> DataFrame:
    if has_watermark(frame):
        return frame.dropDuplicatesWithinWatermark(list(keys))
    return frame.dropDuplicates(list(keys))


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


# Streaming frames from the parts of a pipeline: one for each sink, and one for the dead letters of
# each source that has them.
#
# Rule: a frame has a separate Spark session, so that view names of frames do not clash.


_SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"
_STATE_STORE = "spark.sql.streaming.stateStore.providerClass"
_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def sink_frame(spark: SparkSession, pipeline: Pipeline, sink: Sink) -> DataFrame:
    """The rows of a sink's input, as a stream. Only the parts the sink needs are built, and every
    call builds them again. Raises BuildError for a part that Spark refuses.
    """
    own = own_session(spark, pipeline)
    group = group_of(pipeline, sink.name)
    frames: dict[str, DataFrame] = {}
    for part in needed(pipeline, sink.input):
        if isinstance(part, TopicSource | FormatSource):
            frames[part.name.lower()] = source_frame(own, pipeline, part, group)
        else:
            frames[part.name.lower()] = step_frame(own, pipeline, part, frames)
    frame = frames.get(sink.input.lower())
    if frame is None:
        text, remedy = f"there is no source or step {sink.input}", "correct `from`"
        raise BuildError(sink.place, f"sink {sink.name}", text, remedy)
    if not frame.isStreaming:
        remedy = "set streaming: true on one of its sources"
        raise BuildError(sink.place, f"sink {sink.name}", "all it reads are tables", remedy)
    if "TransformWithState" in _plan(frame):
        # Spark keeps state of this kind in RocksDB only.
        own.conf.set(_STATE_STORE, _ROCKSDB)
    return frame


def dead_letter_frame(spark: SparkSession, pipeline: Pipeline, source: TopicSource) -> DataFrame:
    """The undecodable records of a source, as a stream of key, value and headers: their own
    headers, and `headrace.*` with the reason and the origin.
    """
    group = group_of(pipeline, f"dead-letters-{source.name}")
    return dead_letter_rows(own_session(spark, pipeline), pipeline, source, group)


def group_of(pipeline: Pipeline, query: str) -> str:
    """The consumer group to which a query of a pipeline commits its progress."""
    return f"{pipeline.group or pipeline.name}.{query}"


def own_session(spark: SparkSession, pipeline: Pipeline) -> SparkSession:
    """A session with the settings of `spark` and of the pipeline, and no views."""
    own = spark.newSession()
    wanted = dict(spark.conf.getAll)
    if pipeline.parallelism is not None:
        wanted[_SHUFFLE_PARTITIONS] = str(pipeline.parallelism)
    for name, value in (wanted | dict(pipeline.spark)).items():
        if own.conf.get(name, None) != value and own.conf.isModifiable(name):
            own.conf.set(name, value)
    return own


def _plan(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().analyzed().toString())
