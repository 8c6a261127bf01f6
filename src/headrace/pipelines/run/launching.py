"""The start of one query: what it reads, where it goes, from which checkpoint, when."""

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
    from pyspark.sql.streaming.query import StreamingQuery


def start_query(
    spark: "SparkSession", pipeline: Pipeline, part: Sink | TopicSource, trigger: Trigger
) -> "StreamingQuery":
    """Start the query of a sink, or of a source's dead letters."""
    # What makes queries needs Spark, and whoever only looks at a run does not.
    from headrace.pipelines import sinks  # noqa: PLC0415
    from headrace.pipelines.frames import assembly  # noqa: PLC0415

    where: Any = {"checkpoint": query_checkpoint(pipeline, query_name(part)), "trigger": trigger}
    begun = starting_at(pipeline, noted_start(pipeline, part))
    if isinstance(part, Sink):
        frame = counted(assembly.sink_frame(spark, begun, part), part)
        return sinks.start(spark, pipeline, part, frame, **where)
    source = next(one for one in begun.sources if one.name == part.name)
    assert isinstance(source, TopicSource)
    frame = assembly.dead_letter_frame(spark, begun, source)
    return sinks.start_dead_letters(spark, pipeline, part, frame, **where)


def counted(frame: "DataFrame", sink: Sink) -> "DataFrame":
    """The frame with its rows counted, for a sink that does not tell how many it took."""
    # Only Spark's own way to a Python sink counts, and it takes no other mode.
    if isinstance(sink.target, TopicSink) and sink.mode is OutputMode.APPEND:
        return frame
    from pyspark.sql import functions as f  # noqa: PLC0415 - only runs need Spark

    return frame.observe(OUTPUT_METRIC, f.count(f.lit(1)).alias(OUTPUT_ROWS))
