"""What must hold for the sources of a pipeline, and for the records they cannot decode."""

import re

from headrace.pipelines.source.options import batch_options, stream_options
from headrace.pipelines.source.write_options import stream_write_options
from headrace.pipelines.spec.columns import ddl_columns, decoded_columns
from headrace.pipelines.spec.model import (
    Decode,
    FormatSource,
    OnError,
    Pipeline,
    SpecError,
    TopicSource,
)
from headrace.pipelines.spec.problems import (
    Problems,
    column_problems,
    title_of,
    told,
    topic_problems,
)

FILE_FORMATS = ("avro", "csv", "json", "orc", "parquet", "text", "xml")


def check_sources(pipeline: Pipeline) -> Problems:
    """Topics, schemas, decoding and options of every source."""
    for source in pipeline.sources:
        if isinstance(source, TopicSource):
            yield from _topic_source_problems(source)
        else:
            yield from _format_source_problems(source)
        if source.watermark is not None:
            yield from _watermark_problems(source)


def check_dead_letters(pipeline: Pipeline) -> Problems:
    """Is there a place for what cannot be decoded, and is it none that is read again?"""
    letters = pipeline.dead_letters
    if letters:
        yield from topic_problems((letters.topic,), "dead_letters", letters.place)
        yield from told("dead_letters", letters.place, stream_write_options, letters.options)
    for source in pipeline.sources:
        if not isinstance(source, TopicSource):
            continue
        sends = source.decode.format != "raw" and source.decode.on_error is OnError.DEAD_LETTER
        if letters is None and sends:
            text = "sends what it cannot decode to dead letters, but the pipeline has no"
            remedy = "'dead_letters': give it a topic, or set on_error to drop or fail"
            place = source.decode.place or source.place
            yield SpecError(place, f"source {source.name!r} {text} {remedy}")
        elif letters and sends and reads_topic(source, letters.topic):
            text = f"also reads the topic of its dead letters, {letters.topic!r}"
            yield SpecError(source.place, f"source {source.name!r} {text}: they would go round")


def reads_topic(source: TopicSource, topic: str) -> bool:
    """Whether the records of a topic come to a source."""
    if source.pattern is None:
        return topic in source.topics
    try:
        return re.fullmatch(source.pattern, topic) is not None
    except re.error:
        return False


def _topic_source_problems(source: TopicSource) -> Problems:
    title = title_of(source)
    if bool(source.topics) == bool(source.pattern):
        yield SpecError(source.place, f"{title} must have topics or a pattern: one of them")
        return
    yield from topic_problems(source.topics, title, source.place)
    yield from _decode_problems(source)
    yield from told(title, source.place, _read_options, source)


def _format_source_problems(source: FormatSource) -> Problems:
    title = title_of(source)
    if source.schema:
        yield from told(f"the schema of {title}", source.place, ddl_columns, source.schema)
    if source.format.lower() in FILE_FORMATS:
        if source.path is None and "path" not in source.options:
            yield SpecError(source.place, f"{title} lacks 'path': where are its files?")
        if source.streaming and source.schema is None and source.format.lower() != "text":
            text = "lacks 'schema', which a stream of files needs before the first has come"
            yield SpecError(source.place, f"{title} {text}")


def _watermark_problems(source: TopicSource | FormatSource) -> Problems:
    assert source.watermark is not None
    if not source.streaming:
        text = "is a table, which has no watermark: only a stream has"
        yield SpecError(source.place, f"{title_of(source)} {text}")
    title = f"the watermark of {title_of(source)}"
    yield from column_problems(source, (source.watermark.column,), title)


def _decode_problems(source: TopicSource) -> Problems:
    decode, title = source.decode, f"decode of source {source.name!r}"
    place = decode.place or source.place
    if decode.framing != "none" and decode.format != "avro":
        text = f"has framing {decode.framing}, which only format avro can have"
        yield SpecError(place, f"{title} {text}")
    if decode.format == "raw":
        if decode.schema is not None:
            yield SpecError(place, f"{title} has a schema, which format raw does not take")
    elif decode.schema is None:
        example = (
            '{"type": "record", ...}' if decode.format == "avro" else "id BIGINT, at TIMESTAMP"
        )
        yield SpecError(place, f"{title} lacks 'schema' for format {decode.format}: {example}")
    else:
        yield from told(f"the schema in {title}", place, _refuse_clashes, decode)


def _refuse_clashes(decode: Decode) -> None:
    columns = [name.lower() for name in decoded_columns(decode) or ()]
    clash = next((name for name in decode.keep.values() if columns.count(name.lower()) > 1), None)
    if clash is not None:
        raise ValueError(f"it has a column {clash!r}, and keep gives another that name")


def _read_options(source: TopicSource) -> None:
    subject = (
        {"subscribePattern": source.pattern}
        if source.pattern
        else {"subscribe": ",".join(source.topics)}
    )
    given = [name for name in source.options if name.lower().startswith(("subscribe", "assign"))]
    if given:
        raise ValueError(f"option {given[0]} is set by topic, topics and pattern: leave it out")
    read = stream_options if source.streaming else batch_options
    read({**source.options, **subject})
