"""A query made ready to start: what it reads, where it goes, from which checkpoint, when."""

from typing import TYPE_CHECKING, Any

from headrace.pipelines.run.checkpoints import noted_start
from headrace.pipelines.run.places import query_checkpoint, query_name
from headrace.pipelines.run.progress import OUTPUT_METRIC, OUTPUT_ROWS
from headrace.pipelines.run.starts import starting_at
from headrace.pipelines.spec.model import (
    OutputMode,
    Pipeline,
    Sink,
    TopicSink,
    TopicSource,
    Trigger,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter


def query_frame(spark: "SparkSession", pipeline: Pipeline, part: Sink | TopicSource) -> "DataFrame":
    """The rows of a sink, or of a source's dead letters, as a stream that Spark has analysed.

    Nothing is read or written. What Spark refuses of the query, it refuses here.
    """
    # Queries need Spark; commands that only look at a run do not.
    from headrace.pipelines import sinks  # noqa: PLC0415
    from headrace.pipelines.frames import assembly  # noqa: PLC0415

    begun = starting_at(pipeline, noted_start(pipeline, part))
    if isinstance(part, Sink):
        frame = assembly.sink_frame(spark, begun, part)
        _check_mode(frame, part)
        sinks.check(part, frame)
        return frame
    source = next(source for source in begun.sources if source.name == part.name)
    assert isinstance(source, TopicSource)
    return assembly.dead_letter_frame(spark, begun, source)


def query_writer(
    spark: "SparkSession",
    pipeline: Pipeline,
    part: Sink | TopicSource,
    frame: "DataFrame",
    trigger: Trigger,
) -> "DataStreamWriter":
    """The query that brings a frame to its target: the target is there, the query not started."""
    from headrace.pipelines import sinks  # noqa: PLC0415

    where: Any = {"checkpoint": query_checkpoint(pipeline, query_name(part)), "trigger": trigger}
    if isinstance(part, Sink):
        return sinks.writer(spark, pipeline, part, counted(frame, part), **where)
    return sinks.dead_letters_writer(spark, pipeline, part, frame, **where)


def _check_mode(frame: "DataFrame", sink: Sink) -> None:
    """Ask what Spark asks when a query starts: whether a stream can do this, in this mode."""
    jvm = frame.sparkSession._jvm
    assert jvm is not None
    mode = getattr(jvm.org.apache.spark.sql.streaming.OutputMode, sink.mode.value.capitalize())()
    checker = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
    checker.checkForStreaming(frame._jdf.queryExecution().analyzed(), mode)


def counted(frame: "DataFrame", sink: Sink) -> "DataFrame":
    """The frame with its rows counted, for a sink that does not tell how many it took."""
    # Only Spark's own way to a Python sink counts, and it takes no other mode.
    if isinstance(sink.target, TopicSink) and sink.mode is OutputMode.APPEND:
        return frame
    from pyspark.sql import functions as f  # noqa: PLC0415 - only runs need Spark

    return frame.observe(OUTPUT_METRIC, f.count(f.lit(1)).alias(OUTPUT_ROWS))
