"""The queries of a pipeline before their start: a target, checkpoint and trigger for each sink."""

from typing import TYPE_CHECKING, Any

from headrace.pipelines.locations import hadoop_path, local_path, resolve
from headrace.pipelines.sinks import topic
from headrace.pipelines.sinks.console import ConsoleTarget
from headrace.pipelines.sinks.delta import DeltaTarget
from headrace.pipelines.sinks.files import FileTarget
from headrace.pipelines.sinks.iceberg import IcebergTarget
from headrace.pipelines.sinks.postgresql import PostgresTarget
from headrace.pipelines.sinks.target import SinkTarget, batch_function, named
from headrace.pipelines.spec.model import (
    ConsoleSink,
    DeltaSink,
    FileSink,
    IcebergSink,
    OutputMode,
    Pipeline,
    PostgresSink,
    Sink,
    SpecError,
    TopicSink,
    TopicSource,
    Trigger,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter


def check(sink: Sink, frame: "DataFrame") -> None:
    """Raise SpecError for a sink whose columns or expressions do not fit its input rows."""
    match sink.target:
        case TopicSink() as target:
            topic.records(frame, target, sink.name, sink.place)
        case FileSink() | DeltaSink() as target:
            _check_columns(sink, "partition_by", target.partition_by, frame)
        case PostgresSink() as target:
            _check_columns(sink, "keys", target.keys, frame)


def writer(
    spark: "SparkSession",
    pipeline: Pipeline,
    sink: Sink,
    frame: "DataFrame",
    *,
    checkpoint: str,
    trigger: Trigger,
) -> "DataStreamWriter":
    """The unstarted query that writes the rows of a streaming frame to the sink's target.

    The pipeline has passed spec.checks. Further conditions that are known before the first batch
    are checked here: SpecError as of `check`, SinkFailed for a missing target or library.
    """
    check(sink, frame)
    with named(pipeline.name, sink.name):
        made = _writer(spark, pipeline, sink, frame)
    return _configured(made.outputMode(sink.mode.value), sink.name, checkpoint, trigger)


def dead_letters_writer(
    spark: "SparkSession",
    pipeline: Pipeline,
    source: TopicSource,
    frame: "DataFrame",
    *,
    checkpoint: str,
    trigger: Trigger,
) -> "DataStreamWriter":
    """The unstarted query that writes undecodable records of a source to the dead-letter topic."""
    letters = pipeline.dead_letters
    if letters is None:
        raise SpecError(
            source.place,
            f"source {source.name} sends bad records to a topic, and the pipeline names none;"
            " add dead_letters: {topic: ...}",
        )
    options = _broker(pipeline) | {"topic": letters.topic} | dict(letters.options)
    made = frame.writeStream.format(topic.FORMAT).options(**options)
    return _configured(made, f"dead-letters-{source.name}", checkpoint, trigger)


def _configured(
    made: "DataStreamWriter", name: str, checkpoint: str, trigger: Trigger
) -> "DataStreamWriter":
    made = made.queryName(name).option("checkpointLocation", checkpoint)
    if trigger.available_now:
        return made.trigger(availableNow=True)
    return made.trigger(processingTime=trigger.interval)


def _writer(
    spark: "SparkSession", pipeline: Pipeline, sink: Sink, frame: "DataFrame"
) -> "DataStreamWriter":
    target = sink.target
    if isinstance(target, TopicSink):
        rows = topic.records(frame, target, sink.name, sink.place)
        options = topic.options(target, _broker(pipeline))
        if sink.mode is OutputMode.APPEND:
            return rows.writeStream.format(topic.FORMAT).options(**options)
        return _batched(pipeline, sink, rows, topic.TopicTarget(options))
    taker = _target(spark, pipeline, sink, frame)
    if taker is None:
        assert isinstance(target, FileSink), "only files have a sink of Spark's"
        files = frame.writeStream.format(target.format).options(**target.options)
        location = resolve(pipeline.directory, target.path)
        return files.partitionBy(*target.partition_by).option("path", location)
    return _batched(pipeline, sink, frame, taker)


def _batched(
    pipeline: Pipeline, sink: Sink, frame: "DataFrame", target: SinkTarget
) -> "DataStreamWriter":
    return frame.writeStream.foreachBatch(batch_function(pipeline.name, sink.name, target))


def _target(
    spark: "SparkSession", pipeline: Pipeline, sink: Sink, frame: "DataFrame"
) -> SinkTarget | None:
    match sink.target:
        case FileSink(path=path) as target:
            location = resolve(pipeline.directory, path)
            root = local_path(spark, location)
            if root is None:
                return None
            files = FileTarget(target, root)
            files.prepare()
            return files
        case DeltaSink(path=path) as target:
            location = resolve(pipeline.directory, path)
            hadoop_path(spark, location)
            return DeltaTarget(target, location)
        case IcebergSink() as target:
            return IcebergTarget(target)
        case PostgresSink() as target:
            table = PostgresTarget(target, frame.schema)
            table.prepare()
            return table
        case ConsoleSink() as target:
            return ConsoleTarget(target)
    raise AssertionError(f"{sink.target} is no target")


def _check_columns(sink: Sink, option: str, names: tuple[str, ...], frame: "DataFrame") -> None:
    for name in names:
        if name not in frame.columns:
            columns = ", ".join(frame.columns)
            text = (
                f"sink {sink.name}: {option}: there is no column {name}; the columns are {columns}"
            )
            raise SpecError(sink.place, text)


def _broker(pipeline: Pipeline) -> dict[str, Any]:
    return {f"kafka.{name}": text for name, text in pipeline.broker.items()}
