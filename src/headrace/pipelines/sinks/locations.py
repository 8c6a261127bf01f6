"""Where a path of a pipeline leads: from its directory, and whether to a disk."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.pipelines.sinks.failures import TargetError, java_error, one_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SCHEME = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*:/")


def resolve(directory: Path, path: str) -> str:
    """The path as Spark takes it: a URI as it is, anything else from the pipeline's directory."""
    if _SCHEME.match(path):
        return path
    return str((directory / Path(path).expanduser()).absolute())


def hadoop_path(spark: "SparkSession", location: str) -> tuple[Any, Any]:
    """The file system that Spark has for a location, and the full path in it.

    Raises TargetError if it has none.
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
    """The location as a path of this machine's; None for one of another file system.

    What a path without a scheme is depends on how Spark is set up.
    """
    _, path = hadoop_path(spark, location)
    uri = path.toUri()
    return Path(uri.getPath()) if uri.getScheme() == "file" else None
