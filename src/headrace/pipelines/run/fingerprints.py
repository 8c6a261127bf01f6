"""What a query must stay the same in for its checkpoint to fit it. Pure.

A checkpoint holds positions in sources, by their number, and the state of steps, by their order. A
query that reads other topics or groups by other columns would go on from what means nothing to it;
Spark notices some of that, late and in its own words. What else a query does may change.
"""

import re
from collections.abc import Mapping

from headrace.pipelines.spec.model import (
    ConsoleSink,
    DeduplicateStep,
    DeltaSink,
    FileSink,
    FormatSource,
    IcebergSink,
    Pipeline,
    PostgresSink,
    Sink,
    Source,
    SqlStep,
    Step,
    Target,
    TopicSink,
    TopicSource,
)
from headrace.pipelines.spec.order import needed

# Each part of a query that has to stay, and what it is in words.
Fingerprint = Mapping[str, str]

_STATEFUL = re.compile(
    r"\b(?:group\s+by|join|distinct|having|intersect|except)\b"
    r"|\b(?:count|sum|avg|mean|min|max|first|last|any_value|collect_\w+|approx_\w+|window"
    r"|session_window|max_by|min_by|stddev\w*|var\w*|percentile\w*)\s*\(",
    re.IGNORECASE,
)
_SHOWN_MAX = 60


def fingerprint(pipeline: Pipeline, part: Sink | TopicSource) -> dict[str, str]:
    """What must stay of the query that fills a sink, or carries away a source's dead letters."""
    found = {"pipeline": pipeline.name}
    if isinstance(part, TopicSource):
        return found | {f"source {part.name}": _source_text(part)}
    for one in needed(pipeline, part.input):
        if isinstance(one, TopicSource | FormatSource):
            if one.streaming:
                found[f"source {one.name}"] = _source_text(one)
        elif state := _state_text(one):
            found[f"step {one.name}"] = state
    found["sink"] = target_text(part.target)
    found["output mode"] = str(part.mode)
    # A pipeline that is moved together with what belongs to it stays the same.
    inside = f"{pipeline.directory.absolute()}/"
    return {name: text.replace(inside, "") for name, text in found.items()}


def topic_sources(pipeline: Pipeline, part: Sink | TopicSource) -> list[TopicSource]:
    """The topics that a query reads as streams."""
    parts = [part] if isinstance(part, TopicSource) else needed(pipeline, part.input)
    return [one for one in parts if isinstance(one, TopicSource) and one.streaming]


def _source_text(source: Source) -> str:
    match source:
        case TopicSource(pattern=None, topics=topics):
            return "topics " + ", ".join(sorted(topics))
        case TopicSource(pattern=pattern):
            return f"topics like {pattern}"
    return f"{source.format} {source.path or ''}".rstrip()


def _state_text(step: Step) -> str | None:
    """What a step keeps between batches, as far as it can be seen; None if it keeps nothing."""
    match step:
        case DeduplicateStep(input=name, keys=keys):
            return f"first of {name} by {', '.join(keys)}"
        case SqlStep(sql=sql):
            return " ".join(sql.split()) if _STATEFUL.search(sql) else None
    return None


def target_text(target: Target) -> str:
    """Where rows go, in words. A topic may change its name: what is written stays where it is."""
    match target:
        case TopicSink():
            return "a topic"
        case FileSink(format=kind, path=path):
            return f"{kind} files in {path}"
        case DeltaSink(path=path):
            return f"the Delta table {path}"
        case IcebergSink(table=table):
            return f"the Iceberg table {table}"
        case PostgresSink(table=table):
            return f"the PostgreSQL table {table}"
        case ConsoleSink():
            return "the terminal"


def differences(old: Fingerprint, new: Fingerprint) -> list[str]:
    """What is not the same, a phrase for each."""
    gone = [f"{part} is gone" for part in old if part not in new]
    added = [f"{part} is new" for part in new if part not in old]
    changed = [
        _changed_text(part, old[part], new[part])
        for part in new
        if part in old and old[part] != new[part]
    ]
    return [*changed, *gone, *added]


def _changed_text(part: str, old: str, new: str) -> str:
    if part.startswith("step ") and max(len(old), len(new)) > _SHOWN_MAX:
        return f"{part} is different"
    return f"{part} was {old} and is {new}"
