"""Paths of a pipeline: its checkpoints, its run notes, and the outputs of its sinks."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from headrace.pipelines.sinks.target import TargetError, java_error, one_line
from headrace.pipelines.spec.model import Pipeline, Sink, TopicSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The durable files of a run: a checkpoint for each query, and its notes beside them.
#
# Pure, but for asking which directory is the current one.


NOTES = "_headrace"
DEFAULT_PARENT = "headrace-pipelines"


def checkpoint_root(pipeline: Pipeline) -> str:
    """The directory of all its checkpoints: an absolute path, or the given URI."""
    given = pipeline.checkpoint or f"{DEFAULT_PARENT}/{pipeline.name}"
    if _scheme(given):
        return given.rstrip("/")
    return str(Path(pipeline.directory, given).absolute())


def local_directory(location: str) -> Path | None:
    """The path of a location on this machine; None if it is elsewhere."""
    scheme = _scheme(location)
    if not scheme:
        return Path(location)
    return Path(unquote(urlsplit(location).path)) if scheme == "file" else None


def notes_directory(pipeline: Pipeline) -> Path:
    """The directory of its lock, state and log: beside the checkpoints, if these are local."""
    root = local_directory(checkpoint_root(pipeline))
    if root is None:
        root = Path(pipeline.directory, DEFAULT_PARENT, pipeline.name).absolute()
    return root / NOTES


def query_name(part: Sink | TopicSource) -> str:
    """The name of the query of a sink, or of the dead letters of a source."""
    return part.name if isinstance(part, Sink) else f"dead-letters-{part.name}"


def query_checkpoint(pipeline: Pipeline, query: str) -> str:
    """The checkpoint location of one of its queries."""
    return f"{checkpoint_root(pipeline)}/{query}"


def query_group(pipeline: Pipeline, query: str) -> str:
    """The consumer group that shows a query's position to the brokers."""
    return f"{pipeline.group or pipeline.name}.{query}"


def _scheme(location: str) -> str:
    return urlsplit(location).scheme if ":" in location.split("/", 1)[0] else ""


_SCHEME = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*:/")


def resolve(directory: Path, path: str) -> str:
    """The path for Spark: a URI unchanged, any other path relative to the pipeline's directory."""
    if _SCHEME.match(path):
        return path
    return str((directory / Path(path).expanduser()).absolute())


def hadoop_path(spark: "SparkSession", location: str) -> tuple[Any, Any]:
    """Spark's file system for a location, and the full path in it.

    Raises TargetError if Spark has none.
    """
    context: Any = spark.sparkContext
    path = context._jvm.org.apache.hadoop.fs.Path(location)
    try:
        files = path.getFileSystem(context._jsc.hadoopConfiguration())
    except java_error() as error:
        reason = one_line(str(getattr(error, "java_exception", error)))
        raise TargetError(
            f"Spark has no file system for {location}: {reason};"
            " add the connector of that store to spark.jars.packages"
        ) from error
    return files, files.makeQualified(path)


def local_path(spark: "SparkSession", location: str) -> Path | None:
    """The location as a path on this machine; None if it is in another file system.

    The meaning of a path without a scheme depends on Spark's settings.
    """
    _, path = hadoop_path(spark, location)
    uri = path.toUri()
    return Path(uri.getPath()) if uri.getScheme() == "file" else None
