"""What Spark finds wrong with a pipeline before it reads a record: names, types, what streams
cannot do."""

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.pipelines.run.catching import explaining
from headrace.pipelines.run.checkpoints import query_parts
from headrace.pipelines.run.logs import SparkLog
from headrace.pipelines.run.sessions import opened, session_config
from headrace.pipelines.spec.model import Pipeline, Sink, TopicSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Plans are made by one thread: more cores would only take longer to start.
_MASTER = "local[1]"


def check_plan(pipeline: Pipeline) -> None:
    """Have Spark plan every query; PipelineFailed says what it refuses. Nothing is read."""
    with tempfile.TemporaryDirectory() as scratch:
        log = SparkLog(Path(scratch, "spark.log"), lambda _: None)
        with opened(pipeline, _MASTER, session_config(pipeline), log) as spark:
            for part in query_parts(pipeline):
                with explaining(pipeline, part):
                    _check(spark, pipeline, part)


def _check(spark: "SparkSession", pipeline: Pipeline, part: Sink | TopicSource) -> None:
    from headrace.pipelines import sinks  # noqa: PLC0415 - it needs Spark
    from headrace.pipelines.frames import assembly  # noqa: PLC0415

    if isinstance(part, Sink):
        frame = assembly.sink_frame(spark, pipeline, part)
        _check_mode(frame, part)
        sinks.check(part, frame)
    else:
        assembly.dead_letter_frame(spark, pipeline, part)


def _check_mode(frame: "DataFrame", sink: Sink) -> None:
    """Ask what Spark asks when a query starts: whether a stream can do this, in this mode."""
    jvm = frame.sparkSession._jvm
    assert jvm is not None
    mode = getattr(jvm.org.apache.spark.sql.streaming.OutputMode, sink.mode.value.capitalize())()
    checker = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
    checker.checkForStreaming(frame._jdf.queryExecution().analyzed(), mode)
