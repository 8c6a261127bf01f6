"""The Spark session of a run: with the pipeline's settings, and quiet."""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from headrace.pipelines.run.catching import explaining
from headrace.pipelines.run.failures import PipelineFailed
from headrace.pipelines.run.logs import SparkLog
from headrace.pipelines.session import session
from headrace.pipelines.spec.model import Pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEFAULT_MASTER = "local[*]"

_MASTER = "spark.master"
_SETTINGS = {
    # How long Spark waits for a query's thread when it is told to stop; its default is for ever.
    "spark.sql.streaming.stopTimeout": "30s",
}


def session_config(pipeline: Pipeline, *, verbose: bool = False) -> dict[str, str]:
    """Spark's settings for a run: the pipeline's own, over what follows from it."""
    found = dict(_SETTINGS)
    if verbose:
        found["spark.log.level"] = "WARN"
    if pipeline.parallelism is not None:
        found["spark.sql.shuffle.partitions"] = str(pipeline.parallelism)
    return {**found, **pipeline.spark}


def master_of(config: Mapping[str, str]) -> str:
    """The master that settings name, or all cores of this machine."""
    return config.get(_MASTER, DEFAULT_MASTER)


@contextmanager
def opened(
    pipeline: Pipeline, master: str, config: Mapping[str, str], log: SparkLog
) -> "Iterator[SparkSession]":
    """The session of this process, left as it is in the end; or a new one, stopped then."""
    whole = {name: text for name, text in config.items() if name != _MASTER}
    if _has_session():
        yield session(pipeline.name, master=master, config=whole)
        return
    try:
        with explaining(pipeline, None), log.capturing():
            spark = session(pipeline.name, master=master, config=whole)
            _silence()
    except PipelineFailed as failure:
        reason = log.reason()
        raise PipelineFailed(f"{failure}: {reason}") if reason else failure from None
    try:
        yield spark
    except KeyboardInterrupt:
        # The user does not want to wait: Java ends when this process does.
        raise
    except BaseException:
        _stop(spark)
        raise
    _stop(spark)


def _stop(spark: "SparkSession") -> None:
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # noqa: PLC0415

    # If Java is dead there is nothing to stop, and somebody has said so.
    with suppress(Py4JError, OSError):
        spark.stop()


def _silence() -> None:
    """Keep from the terminal what Spark's Python and our clients log here: errors say it better."""
    from pyspark.logger import PySparkLogger  # noqa: PLC0415 - there is a session

    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = True
    for name in ("py4j", "headrace"):
        # With a handler, Python does not print to stderr what has none.
        logging.getLogger(name).addHandler(logging.NullHandler())


def _has_session() -> bool:
    try:
        from pyspark import SparkContext  # noqa: PLC0415 - `session` says so if it is missing
    except ImportError:
        return False
    return SparkContext._active_spark_context is not None
