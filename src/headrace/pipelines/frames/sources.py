"""The frames of a pipeline's sources: records of topics, and whatever else Spark reads."""

from dataclasses import replace

from pyspark.sql import DataFrame, SparkSession

from headrace.pipelines.frames.decoding import (
    DEAD_LETTER_COLUMNS,
    HEADERS,
    columns_to_read,
    dead_letters,
    good_rows,
)
from headrace.pipelines.frames.failures import blaming
from headrace.pipelines.frames.watermarks import with_watermark
from headrace.pipelines.sinks.locations import resolve
from headrace.pipelines.spec.model import FormatSource, Pipeline, Source, TopicSource

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
    """The records of a source that cannot be decoded, as a stream even where it is a table."""
    if not source.streaming:
        source = as_stream(source)
    with blaming(source.place, f"source {source.name}"):
        options = topic_options(pipeline, source, DEAD_LETTER_COLUMNS, group)
        records = _records(spark, options, streaming=True)
        return dead_letters(pipeline, source, records)


def as_stream(table: TopicSource) -> TopicSource:
    """A source that is read whole, as one that goes on: from where it starts, without an end."""
    options = {
        name: text for name, text in table.options.items() if not name.lower().startswith("ending")
    }
    if not any(name.lower().startswith("starting") for name in options):
        options["startingOffsets"] = "earliest"
    return replace(table, streaming=True, options=options)


def topic_options(
    pipeline: Pipeline, source: TopicSource, columns: tuple[str, ...], group: str
) -> dict[str, str]:
    """What the data source is told; the source's own options win over what the pipeline says."""
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
