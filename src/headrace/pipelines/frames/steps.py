"""The frames of a pipeline's steps: a query, a function of the user's, or no row twice."""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches

from pyspark.errors import AnalysisException, ParseException, PySparkException
from pyspark.sql import DataFrame, SparkSession

from headrace.pipelines.frames.calls import call_step
from headrace.pipelines.frames.failures import BuildError, blaming, essence, line_of, silenced
from headrace.pipelines.frames.watermarks import has_watermark, with_watermark
from headrace.pipelines.spec.model import (
    DeduplicateStep,
    Pipeline,
    Place,
    PythonStep,
    SqlStep,
    Step,
)
from headrace.pipelines.spec.order import inputs

_NO_TABLE = "TABLE_OR_VIEW_NOT_FOUND"


def step_frame(
    spark: SparkSession, pipeline: Pipeline, step: Step, frames: Mapping[str, DataFrame]
) -> DataFrame:
    """The rows of a step, given those of what it reads by names in lower case.

    For a query they are registered as views of `spark`, which should be nobody else's session.
    """
    part = f"step {step.name}"
    match step:
        case SqlStep():
            # What is not among them Spark looks for in its catalog.
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
            # `sql` would also run a statement that changes something.
            spark._jsparkSession.sessionState().sqlParser().parseQuery(query)
            return spark.sql(query)
    except PySparkException as error:
        text, remedy = _explained(error, pipeline)
        raise BuildError(_line_place(step, line_of(error)), part, text, remedy) from error


def _line_place(step: SqlStep, line: int | None) -> Place | None:
    """The place of a line of the query, where it is known."""
    if step.sql_place is None or line is None:
        return step.place
    return Place(step.sql_place.file, step.sql_place.line + line - 1)


def _explained(error: PySparkException, pipeline: Pipeline) -> tuple[str, str]:
    if isinstance(error, ParseException):
        return essence(error), "a step is one query, SELECT ... or WITH ... SELECT ..."
    if isinstance(error, AnalysisException) and error.getCondition() == _NO_TABLE:
        name = (error.getMessageParameters() or {}).get("relationName", "").strip("`")
        return f"there is no table {name}", _tables(name, pipeline)
    return essence(error), "correct its query"


def _tables(name: str, pipeline: Pipeline) -> str:
    names = [part.name for part in (*pipeline.sources, *pipeline.steps)]
    near = get_close_matches(name, names, n=1)
    return f"did you mean {near[0]}?" if near else f"its tables can be {', '.join(names)}"


def _distinct(frame: DataFrame, keys: Sequence[str]) -> DataFrame:
    if has_watermark(frame):
        return frame.dropDuplicatesWithinWatermark(list(keys))
    return frame.dropDuplicates(list(keys))


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"
