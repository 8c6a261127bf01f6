"""Which parts of a pipeline read which, and in what order they can be made. Pure.

Spark finds tables whatever the case of their names, and so does all of this.
"""

from headrace.pipelines.spec.model import (
    DeduplicateStep,
    OnError,
    Pipeline,
    PythonStep,
    Source,
    SqlStep,
    Step,
    TopicSource,
)
from headrace.pipelines.spec.sql_tables import tables_read

Part = Source | Step


def inputs(part: Part) -> tuple[str, ...]:
    """The names of what a part reads, as they are written in it; a source reads nothing."""
    match part:
        case SqlStep():
            return tables_read(part.sql)
        case PythonStep():
            return part.inputs
        case DeduplicateStep():
            return (part.input,)
    return ()


def parts_by_name(pipeline: Pipeline) -> dict[str, Part]:
    """Sources and steps by their names in lower case."""
    return {part.name.lower(): part for part in (*pipeline.sources, *pipeline.steps)}


def needed(pipeline: Pipeline, name: str) -> list[Part]:
    """What has to be made to have the part of that name, itself last: each after its inputs."""
    made: dict[str, Part] = {}
    _add(name.lower(), parts_by_name(pipeline), made, [])
    return list(made.values())


def ordered_steps(pipeline: Pipeline) -> list[Step]:
    """All steps, each after the steps it reads."""
    made: dict[str, Part] = {}
    parts = parts_by_name(pipeline)
    for step in pipeline.steps:
        _add(step.name.lower(), parts, made, [])
    return [part for part in made.values() if isinstance(part, Step)]


def unused(pipeline: Pipeline) -> list[Part]:
    """Sources and steps that no sink needs, which are never run."""
    used = {part.name for sink in pipeline.sinks for part in needed(pipeline, sink.input)}
    return [part for part in (*pipeline.sources, *pipeline.steps) if part.name not in used]


def dead_letter_sources(pipeline: Pipeline) -> list[TopicSource]:
    """The sources whose bad records go to the dead-letter topic, if a sink reads them."""
    read = {part.name for sink in pipeline.sinks for part in needed(pipeline, sink.input)}
    return [
        source
        for source in pipeline.sources
        if isinstance(source, TopicSource)
        and source.name in read
        and source.decode.format != "raw"
        and source.decode.on_error is OnError.DEAD_LETTER
    ]


def cycles(pipeline: Pipeline) -> list[list[str]]:
    """The circles of steps that read each other, each once, as names from its first step on."""
    parts = parts_by_name(pipeline)
    found: dict[frozenset[str], list[str]] = {}
    done: set[str] = set()

    def visit(name: str, path: list[str]) -> None:
        if name in path:
            circle = path[path.index(name) :]
            found.setdefault(frozenset(circle), [parts[one].name for one in circle])
        elif name in parts and name not in done:
            for one in inputs(parts[name]):
                visit(one.lower(), [*path, name])
            done.add(name)

    for name in parts:
        visit(name, [])
    return list(found.values())


def _add(name: str, parts: dict[str, Part], made: dict[str, Part], above: list[str]) -> None:
    # What is not there, or reads itself, has been refused by the checks; here it only has to end.
    if name not in parts or name in made or name in above:
        return
    for one in inputs(parts[name]):
        _add(one.lower(), parts, made, [*above, name])
    made[name] = parts[name]
