"""Runs a pipeline: a session, its queries, and the end of both.

The queries are in `queries`, what others see of a run in `state`.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from headrace.pipelines.run.catching import explaining
from headrace.pipelines.run.checkpoints import claim, query_parts
from headrace.pipelines.run.failures import log_path
from headrace.pipelines.run.logs import SparkLog
from headrace.pipelines.run.places import notes_directory
from headrace.pipelines.run.queries import Run, Settings
from headrace.pipelines.run.state import RunState, locked
from headrace.pipelines.run.stopping import StopRequest
from headrace.pipelines.session import session
from headrace.pipelines.spec.model import Pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEFAULT_MASTER = "local[*]"

_SETTINGS = {
    # How long Spark waits for a query's thread when it is told to stop; its default is for ever.
    "spark.sql.streaming.stopTimeout": "30s",
}


def run(
    pipeline: Pipeline,
    *,
    master: str | None = None,
    available_now: bool = False,
    config: Mapping[str, str] | None = None,
    on_progress: Callable[[RunState], None] | None = None,
    on_warning: Callable[[str], None] | None = None,
    stop: StopRequest | None = None,
    allow_changes: bool = False,
    verbose: bool = False,
) -> RunState:
    """Run a pipeline until it ends, is asked to stop, or fails; how far it came.

    With `available_now` it ends when what is there at its start is done. SIGINT and SIGTERM stop
    it, and so does `stop.request()`. A Spark session of this process is used, and left, as it is;
    else one is made and stopped. Raises PipelineFailed, AlreadyRunning, or ConfigError for what is
    missing or wrong before anything runs.
    """
    given = {**pipeline.spark, **(config or {})}
    settings = Settings(
        master=master or given.get("spark.master") or DEFAULT_MASTER,
        available_now=available_now,
        config=given,
        allow_changes=allow_changes,
        verbose=verbose,
    )
    with locked(notes_directory(pipeline), pipeline.name):
        stop = stop or StopRequest()
        running = Run(pipeline, settings, stop, on_progress or _ignore, on_warning or _ignore)
        log = SparkLog(log_path(pipeline), on_warning or _ignore, verbose=verbose)
        with stop.listening(), running.told():
            for part in query_parts(pipeline):
                claim(pipeline, part, allow_changes=allow_changes)
            with _session(pipeline, settings, log) as spark, stop.listening():
                running.start(spark)
                running.wait()
    return running.state


def session_config(pipeline: Pipeline, config: Mapping[str, str]) -> dict[str, str]:
    """Spark's settings for a pipeline: what it says itself wins over what follows from it."""
    shuffles = (
        {}
        if pipeline.parallelism is None
        else {"spark.sql.shuffle.partitions": str(pipeline.parallelism)}
    )
    return {**_SETTINGS, **shuffles, **config}


@contextmanager
def _session(pipeline: Pipeline, settings: Settings, log: SparkLog) -> "Iterator[SparkSession]":
    """The session of this process, or a new one that is stopped in the end."""
    config = session_config(pipeline, settings.config)
    if settings.verbose:
        config.setdefault("spark.log.level", "WARN")
    if _has_session():
        yield session(pipeline.name, master=settings.master, config=config)
        return
    with explaining(pipeline, None), log.capturing():
        spark = session(pipeline.name, master=settings.master, config=config)
    try:
        yield spark
    except KeyboardInterrupt:
        # The user does not want to wait: Java ends when this process does.
        raise
    except BaseException:
        spark.stop()
        raise
    spark.stop()


def _has_session() -> bool:
    try:
        from pyspark import SparkContext  # noqa: PLC0415 - `session` says so if it is missing
    except ImportError:
        return False
    return SparkContext._active_spark_context is not None


def _ignore(_: object) -> None:
    """For those who do not want to be told."""
