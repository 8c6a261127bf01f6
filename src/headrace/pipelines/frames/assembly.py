"""From the parts of a pipeline to streaming frames: one for each sink, and one for the dead letters
of each source that has them.

Rule: a frame has a Spark session of its own, so that the names of one are nobody else's.
"""

from pyspark.sql import DataFrame, SparkSession

from headrace.pipelines.frames.failures import BuildError
from headrace.pipelines.frames.sources import dead_letter_rows, source_frame
from headrace.pipelines.frames.steps import step_frame
from headrace.pipelines.spec.model import (
    FormatSource,
    Pipeline,
    Sink,
    TopicSource,
)
from headrace.pipelines.spec.order import dead_letter_sources, needed

__all__ = ["dead_letter_frame", "dead_letter_sources", "group_of", "own_session", "sink_frame"]

_SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"
_STATE_STORE = "spark.sql.streaming.stateStore.providerClass"
_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def sink_frame(spark: SparkSession, pipeline: Pipeline, sink: Sink) -> DataFrame:
    """The rows of a sink's input, as a stream. Only what the sink needs is built, and every call
    builds anew. Raises BuildError for the part that Spark can make nothing of."""
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
        # Spark keeps state of that kind in RocksDB only.
        own.conf.set(_STATE_STORE, _ROCKSDB)
    return frame


def dead_letter_frame(spark: SparkSession, pipeline: Pipeline, source: TopicSource) -> DataFrame:
    """The records of a source that cannot be decoded, as a stream of key, value and headers: their
    own headers, and `headrace.*` that say why and where from."""
    group = group_of(pipeline, f"dead-letters-{source.name}")
    return dead_letter_rows(own_session(spark, pipeline), pipeline, source, group)


def group_of(pipeline: Pipeline, query: str) -> str:
    """The consumer group in which a query of a pipeline shows how far it is."""
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
