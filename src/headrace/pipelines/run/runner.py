"""Runs a pipeline: a Spark session and its log, the plan checked, its queries, the end of all.

The queries are in `queries`, what others see of a run in `run_state`.
"""

import logging
import os
import re
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from headrace.pipelines.locations import notes_directory
from headrace.pipelines.run.checkpoints import claim, query_parts
from headrace.pipelines.run.errors import PipelineFailed, explaining, log_path
from headrace.pipelines.run.queries import PipelineRun, QuerySettings, StopRequest, query_frame
from headrace.pipelines.run.run_state import RunState, locked
from headrace.pipelines.session import session
from headrace.pipelines.spec.model import Pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# What Spark's processes write to stderr: into a file, and only what matters to the terminal.
#
# Spark's Java process and its Python workers have the stderr of whoever starts them. While the
# session starts, that is a pipe; what comes out of it later is theirs alone.


_BYTES_MAX = 10_000_000
_LINE_MAX = 65_536
# What a source that may pass over lost records says of them.
_WARNING = re.compile(r"failOnDataLoss is false$|^headrace: ")
_REASON = re.compile(r"\bInvalid |Exception: |Error: ")
_THROWN = re.compile(r"^Exception in thread \S+ |(?:\w+\.)+\w+(?:Exception|Error): |^Error: ")
_REASON_S = 2.0


class SparkLog:
    """A file that takes all, kept to a size, with the one before it beside it.

    `on_line` is called in another thread: with the lines that matter, or with all if `verbose`.
    """

    def __init__(
        self, path: Path, on_line: Callable[[str], None], *, verbose: bool = False
    ) -> None:
        self._path = path
        self._on_line = on_line
        self._verbose = verbose
        self._thread: threading.Thread | None = None

    @contextmanager
    def capturing(self) -> Iterator[None]:
        """Processes that are started inside write to this log for as long as they live."""
        reading, writing = os.pipe()
        sys.stderr.flush()
        saved = os.dup(2)
        os.dup2(writing, 2)
        os.close(writing)
        source = os.fdopen(reading, "rb")
        self._thread = threading.Thread(
            target=self._copy, args=(source,), name="spark-log", daemon=True
        )
        self._thread.start()
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(saved, 2)
            os.close(saved)

    def reason(self) -> str:
        """Why processes that have ended did so, if a line of the log says it."""
        if self._thread is not None:
            self._thread.join(_REASON_S)
        lines = self._path.read_text(errors="replace").splitlines() if self._path.exists() else []
        found = next((line for line in lines if _REASON.search(line)), "")
        return _THROWN.sub("", found).strip()

    def _copy(self, source: BinaryIO) -> None:
        with source:
            file, size = self._open(), 0
            # Lines as long as they like would be kept in memory as a whole.
            while line := source.readline(_LINE_MAX):
                file.write(line)
                file.flush()
                size += len(line)
                if size > _BYTES_MAX:
                    file.close()
                    file, size = self._open(), 0
                text = line.decode(errors="replace").rstrip()
                if self._verbose or _WARNING.search(text):
                    self._on_line(text)
            file.close()

    def _open(self) -> BinaryIO:
        if self._path.exists():
            self._path.replace(self._path.with_name(f"{self._path.name}.1"))
        return self._path.open("wb")


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
    # What is given here wins over the file, also where the file is looked at again.
    pipeline = replace(pipeline, spark={**pipeline.spark, **(config or {})})
    whole = session_config(pipeline, verbose=verbose)
    settings = QuerySettings(master or master_of(whole), available_now)
    with locked(notes_directory(pipeline), pipeline.name):
        stop = stop or StopRequest()
        running = PipelineRun(
            pipeline, settings, stop, on_progress or _ignore, on_warning or _ignore
        )
        log = SparkLog(log_path(pipeline), on_warning or _ignore, verbose=verbose)
        for part in query_parts(pipeline):
            claim(pipeline, part, allow_changes=allow_changes)
        with stop.listening(), running.told():
            with opened(pipeline, settings.master, whole, log) as spark, stop.listening():
                running.start(spark)
                running.wait()
    return running.state


def _ignore(_: object) -> None:
    """For those who do not want to be told."""


# Plans are made by one thread: more cores would only take longer to start.
_PLANNING_MASTER = "local[1]"


def check_plan(pipeline: Pipeline) -> None:
    """Have Spark plan every query; PipelineFailed says what it refuses. Nothing is read."""
    with tempfile.TemporaryDirectory() as scratch:
        log = SparkLog(Path(scratch, "spark.log"), lambda _: None)
        with opened(pipeline, _PLANNING_MASTER, session_config(pipeline), log) as spark:
            for part in query_parts(pipeline):
                with explaining(pipeline, part):
                    query_frame(spark, pipeline, part)
