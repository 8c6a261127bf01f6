"""The graph of a pipeline's parts: sources, steps, sinks and dead letters, and what reads what.

Pure. Rule: options and data source names may have secrets in them and stay out of every text.
"""

from dataclasses import dataclass
from urllib.parse import urlsplit

from headrace.pipelines.spec.dependencies import (
    Part,
    dead_letter_sources,
    inputs,
    needed,
    parts_by_name,
)
from headrace.pipelines.spec.model import (
    DeduplicateStep,
    DeltaSink,
    FileSink,
    IcebergSink,
    Pipeline,
    PostgresSink,
    PythonStep,
    Sink,
    SqlStep,
    Target,
    TopicSink,
    TopicSource,
)

PARTS_MAX = 200
_TOPICS_MAX = 20
_TEXT_MAX = 120


@dataclass(frozen=True, slots=True)
class PartNode:
    """One part of a pipeline.

    `kind` is source, step, sink or dead-letters, and `id` is unique in the graph. `detail` says in
    a few words what the part reads, does or writes. `topics` are those that it reads or writes by
    name, the first twenty. `query` is the query that writes a sink or dead letters.
    """

    id: str
    kind: str
    name: str
    detail: str
    topics: tuple[str, ...] = ()
    query: str = ""


@dataclass(frozen=True, slots=True)
class PartGraph:
    """The parts that a run needs, each after its inputs, and pairs of ids: from, to."""

    nodes: tuple[PartNode, ...] = ()
    edges: tuple[tuple[str, str], ...] = ()


def graph_of(pipeline: Pipeline) -> PartGraph:
    """The graph of all parts that some sink needs; the first 200 if there are more."""
    parts: dict[str, Part] = {}
    for sink in pipeline.sinks:
        parts |= {part.name.lower(): part for part in needed(pipeline, sink.input)}
    nodes = [_part_node(part) for part in parts.values()]
    edges = [
        (_id_of(parts[name.lower()]), _id_of(part))
        for part in parts.values()
        for name in inputs(part)
        if name.lower() in parts
    ]
    declared = parts_by_name(pipeline)
    for sink in pipeline.sinks:
        nodes.append(_sink_node(sink))
        if sink.input.lower() in declared:
            edges.append((_id_of(declared[sink.input.lower()]), nodes[-1].id))
    for source in dead_letter_sources(pipeline):
        if pipeline.dead_letters is not None:
            nodes.append(_dead_letter_node(source, pipeline.dead_letters.topic))
            edges.append((_id_of(source), nodes[-1].id))
    nodes = nodes[:PARTS_MAX]
    known = {node.id for node in nodes}
    return PartGraph(
        tuple(nodes), tuple(edge for edge in dict.fromkeys(edges) if known.issuperset(edge))
    )


def _id_of(part: Part) -> str:
    is_step = isinstance(part, SqlStep | PythonStep | DeduplicateStep)
    return f"{'step' if is_step else 'source'} {part.name}"


def _part_node(part: Part) -> PartNode:
    kind = _id_of(part).partition(" ")[0]
    topics = part.topics[:_TOPICS_MAX] if isinstance(part, TopicSource) else ()
    return PartNode(_id_of(part), kind, part.name, _short(_part_text(part)), topics)


def _part_text(part: Part) -> str:
    match part:
        case TopicSource(pattern=None):
            return _topics_text(part.topics)
        case TopicSource():
            return f"topics {part.pattern}"
        case SqlStep():
            return "SQL"
        case PythonStep():
            function = part.function
            return function if isinstance(function, str) else f"Python {function.__name__}"
        case DeduplicateStep():
            return f"first of equal {', '.join(part.keys)}"
    return f"{part.format} in {_public_path(part.path)}" if part.path else part.format


def _sink_node(sink: Sink) -> PartNode:
    target = sink.target
    topics = (target.topic,) if isinstance(target, TopicSink) and target.topic else ()
    detail = _short(_target_text(target))
    return PartNode(f"sink {sink.name}", "sink", sink.name, detail, topics, sink.name)


def _dead_letter_node(source: TopicSource, topic: str) -> PartNode:
    name = f"dead-letters-{source.name}"
    return PartNode(name, "dead-letters", source.name, _topics_text((topic,)), (topic,), name)


def _target_text(target: Target) -> str:
    match target:
        case TopicSink():
            return _topics_text((target.topic,)) if target.topic else "topics by an expression"
        case FileSink():
            return f"{target.format} files in {_public_path(target.path)}"
        case DeltaSink():
            return f"Delta table {_public_path(target.path)}"
        case IcebergSink():
            return f"Iceberg table {target.table}"
        case PostgresSink():
            return f"PostgreSQL table {target.table}"
    return "console"


def _topics_text(topics: tuple[str, ...]) -> str:
    return f"topic{'s' if len(topics) > 1 else ''} {', '.join(topics)}"


def _public_path(path: str) -> str:
    """A path, or a URI without its password and its query, which may have a signature."""
    parts = urlsplit(path)
    if "://" not in path:
        return path
    user, at, host = parts.netloc.rpartition("@")
    # In abfss://container@account the container is no secret.
    shown = host if ":" in user else f"{user}{at}{host}"
    return f"{parts.scheme}://{shown}{parts.path}"


def _short(text: str) -> str:
    return text if len(text) <= _TEXT_MAX else f"{text[: _TEXT_MAX - 1]}…"
