"""Where exceptions of Spark become ours."""

from collections.abc import Iterator
from contextlib import contextmanager

from headrace.errors import ConfigError, HeadraceError
from headrace.pipelines.run.failures import Part, explain
from headrace.pipelines.spec.model import Pipeline


@contextmanager
def explaining(pipeline: Pipeline, part: Part) -> Iterator[None]:
    """Turn what Spark, or a part of ours inside it, raises into a PipelineFailed of this part.

    What is missing or wrong in the settings stays a ConfigError.
    """
    try:
        from py4j.protocol import (  # type: ignore[import-untyped]  # noqa: PLC0415
            Py4JError,
        )
        from pyspark.errors import PySparkException  # noqa: PLC0415
    except ImportError:
        # Whoever needs Spark says that it is missing.
        yield
        return
    try:
        yield
    except ConfigError:
        raise
    except (HeadraceError, PySparkException, Py4JError, OSError) as error:
        raise explain(pipeline, part, error) from error
