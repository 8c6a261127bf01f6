"""Where a run keeps what it must not lose: a checkpoint for each query, and its own notes beside.

Pure, but for asking which directory is the current one.
"""

from pathlib import Path
from urllib.parse import unquote, urlsplit

from headrace.pipelines.spec.model import Pipeline, Sink, TopicSource

NOTES = "_headrace"
DEFAULT_PARENT = "headrace-pipelines"


def checkpoint_root(pipeline: Pipeline) -> str:
    """The directory of all its checkpoints: an absolute path, or a URI as it was given."""
    given = pipeline.checkpoint or f"{DEFAULT_PARENT}/{pipeline.name}"
    if _scheme(given):
        return given.rstrip("/")
    return str(Path(pipeline.directory, given).absolute())


def local_directory(location: str) -> Path | None:
    """The path that a location means on this machine; None if it is elsewhere."""
    scheme = _scheme(location)
    if not scheme:
        return Path(location)
    return Path(unquote(urlsplit(location).path)) if scheme == "file" else None


def notes_directory(pipeline: Pipeline) -> Path:
    """Where its lock, its state and its log are: beside the checkpoints, if these are here."""
    root = local_directory(checkpoint_root(pipeline))
    if root is None:
        root = Path(pipeline.directory, DEFAULT_PARENT, pipeline.name).absolute()
    return root / NOTES


def query_name(part: Sink | TopicSource) -> str:
    """The name of the query that fills a sink, or that carries away what a source cannot decode."""
    return part.name if isinstance(part, Sink) else f"dead-letters-{part.name}"


def query_checkpoint(pipeline: Pipeline, query: str) -> str:
    """The checkpoint of one of its queries."""
    return f"{checkpoint_root(pipeline)}/{query}"


def query_group(pipeline: Pipeline, query: str) -> str:
    """The consumer group that shows a query's position to the brokers."""
    return f"{pipeline.group or pipeline.name}.{query}"


def _scheme(location: str) -> str:
    return urlsplit(location).scheme if ":" in location.split("/", 1)[0] else ""
