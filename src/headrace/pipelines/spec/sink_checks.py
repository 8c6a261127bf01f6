"""What must hold for the sinks of a pipeline, each of which is a query of its own."""

from headrace.pipelines.source.write_options import stream_write_options
from headrace.pipelines.spec.keys import listed
from headrace.pipelines.spec.model import (
    ConsoleSink,
    DeltaSink,
    FileSink,
    FormatSource,
    OutputMode,
    Pipeline,
    PostgresSink,
    PythonStep,
    Sink,
    SpecError,
    TopicSink,
    TopicSource,
)
from headrace.pipelines.spec.order import Part, needed, parts_by_name
from headrace.pipelines.spec.problems import (
    Problems,
    column_problems,
    list_problems,
    told,
    topic_problems,
)
from headrace.pipelines.spec.source_checks import reads_topic

SERVERS = "bootstrap.servers"


def check_sinks(pipeline: Pipeline) -> Problems:
    """Modes, targets, and whether there is a stream to write."""
    if not pipeline.sinks:
        yield SpecError(pipeline.place, "the pipeline has no sink: nothing would be run")
    parts = parts_by_name(pipeline)
    for sink in pipeline.sinks:
        yield from _mode_problems(sink)
        yield from _target_problems(sink, parts.get(sink.input.lower()))
        read = needed(pipeline, sink.input)
        yield from _stream_problems(sink, read)
        yield from _circle_problems(pipeline, sink, read)
    yield from _path_problems(pipeline)


def _mode_problems(sink: Sink) -> Problems:
    if sink.mode == OutputMode.APPEND or isinstance(sink.target, TopicSink | ConsoleSink):
        return
    if not isinstance(sink.target, PostgresSink):
        text = f"writes each row once: its mode must be append, not {sink.mode}"
        remedy = "a window with a watermark gives finished rows"
        yield SpecError(sink.place, f"sink {sink.name!r} {text}; {remedy}")
    elif not sink.target.keys:
        text = f"needs 'keys' in mode {sink.mode}: rows that change are found by them"
        yield SpecError(sink.place, f"sink {sink.name!r} {text}")


def _target_problems(sink: Sink, read: Part | None) -> Problems:
    title = f"sink {sink.name!r}"
    match sink.target:
        case TopicSink() as target:
            if bool(target.topic) == bool(target.topic_expression):
                text = "must have a topic or a topic_expression: one of them"
                yield SpecError(sink.place, f"{title} {text}")
            if target.topic:
                yield from topic_problems((target.topic,), title, sink.place)
            yield from told(title, sink.place, stream_write_options, target.options)
        case FileSink() | DeltaSink() as target:
            partition_title = f"'partition_by' of {title}"
            yield from list_problems(target.partition_by, partition_title, sink.place)
            yield from column_problems(read, target.partition_by, partition_title, sink.place)
        case PostgresSink() as target:
            keys_title = f"'keys' of {title}"
            yield from list_problems(target.keys, keys_title, sink.place)
            yield from column_problems(read, target.keys, keys_title, sink.place)
            if not target.dsn.strip():
                yield SpecError(sink.place, f"{title} has no dsn: where is the server?")


def _stream_problems(sink: Sink, read: list[Part]) -> Problems:
    sources = [part for part in read if isinstance(part, TopicSource | FormatSource)]
    # A function can make a stream of its own, and SQL can read a catalog's.
    has_own = any(isinstance(part, PythonStep) for part in read) or not sources
    if not has_own and not any(source.streaming for source in sources):
        text = f"reads only tables ({listed(one.name for one in sources)}), and no stream"
        yield SpecError(sink.place, f"sink {sink.name!r} {text}: set streaming: true for one")


def _circle_problems(pipeline: Pipeline, sink: Sink, read: list[Part]) -> Problems:
    if not isinstance(sink.target, TopicSink) or sink.target.topic is None:
        return
    for part in read:
        if not isinstance(part, TopicSource) or not reads_topic(part, sink.target.topic):
            continue
        # The same topic of another cluster is a mirror.
        servers = pipeline.broker.get(SERVERS)
        written = sink.target.options.get(f"kafka.{SERVERS}", servers)
        if written == part.options.get(f"kafka.{SERVERS}", servers):
            text = f"writes topic {sink.target.topic!r}, which it reads as source {part.name!r}"
            yield SpecError(sink.place, f"sink {sink.name!r} {text}: records would go round")


def _path_problems(pipeline: Pipeline) -> Problems:
    taken = {pipeline.checkpoint: "the checkpoint"}
    for sink in pipeline.sinks:
        if isinstance(sink.target, FileSink | DeltaSink):
            path = sink.target.path.rstrip("/")
            if path in taken:
                text = f"has the path of {taken[path]}: give each a directory of its own"
                yield SpecError(sink.place, f"sink {sink.name!r} {text}: {path}")
            taken.setdefault(path, f"sink {sink.name!r}")
