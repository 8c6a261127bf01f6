"""The runner of a pipeline: makes a Spark session and its log, checks the plan, runs the queries.

The queries are in `queries`, the published state of a run in `run_state`.
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
from headrace.pipelines.run.errors import PipelineFailed, log_path, spark_errors_explained
from headrace.pipelines.run.queries import PipelineRun, QuerySettings, StopRequest, query_frame
from headrace.pipelines.run.run_state import RunState, locked
from headrace.pipelines.session import session
from headrace.pipelines.spec.model import Pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The stderr of Spark's processes: written to a file, and only important lines to the terminal.
#
# Spark's Java process and its Python workers inherit the stderr of their parent. While the
# session starts, that is a pipe; later output in the pipe is from them alone.


_BYTES_MAX = 10_000_000
_LINE_MAX = 65_536
# The warnings of a source that may skip lost records.
_WARNING = re.compile(r"failOnDataLoss is false$|^headrace: ")
_REASON = re.compile(r"\bInvalid |Exception: |Error: ")
_THROWN = re.compile(r"^Exception in thread \S+ |(?:\w+\.)+\w+(?:Exception|Error): |^Error: ")
_REASON_S = 2.0


class SparkLog:
    """A log file for all output, limited in size, with its predecessor beside it.

    `on_line` is called in another thread: with the important lines, or with all if `verbose`.
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
        """Processes that are started inside the block write to this log for their lifetime."""
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
        """The reason why processes have ended, if a line of the log has it."""
        if self._thread is not None:
            self._thread.join(_REASON_S)
        lines = self._path.read_text(errors="replace").splitlines() if self._path.exists() else []
        found = next((line for line in lines if _REASON.search(line)), "")
        return _THROWN.sub("", found).strip()

    def _copy(self, source: BinaryIO) -> None:
        with source:
            file, size = self._open(), 0
            # Bounded, because lines of any length would be kept in memory as a whole.
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
    # How long Spark waits for a query's thread when it is stopped; the default is for ever.
    "spark.sql.streaming.stopTimeout": "30s",
}


def session_config(pipeline: Pipeline, *, verbose: bool = False) -> dict[str, str]:
    """Spark's settings for a run: the derived ones, overridden by the pipeline's own."""
    found = dict(_SETTINGS)
    if verbose:
        found["spark.log.level"] = "WARN"
    if pipeline.parallelism is not None:
        found["spark.sql.shuffle.partitions"] = str(pipeline.parallelism)
    return {**found, **pipeline.spark}


def master_of(config: Mapping[str, str]) -> str:
    """The master in the settings, by default all cores of this machine."""
    return config.get(_MASTER, DEFAULT_MASTER)


@contextmanager
def opened(
    pipeline: Pipeline, master: str, config: Mapping[str, str], log: SparkLog
) -> "Iterator[SparkSession]":
    """The existing session of this process, which is kept; or a new one, stopped at the end."""
    whole = {name: text for name, text in config.items() if name != _MASTER}
    if _has_session():
        yield session(pipeline.name, master=master, config=whole)
        return
    try:
        with spark_errors_explained(pipeline, None), log.capturing():
            spark = session(pipeline.name, master=master, config=whole)
            _silence()
    except PipelineFailed as failure:
        reason = log.reason()
        raise PipelineFailed(f"{failure}: {reason}") if reason else failure from None
    try:
        yield spark
    except KeyboardInterrupt:
        # The user does not want to wait: Java ends with this process.
        raise
    except BaseException:
        _stop(spark)
        raise
    _stop(spark)


def _stop(spark: "SparkSession") -> None:
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # noqa: PLC0415

    # If Java is dead there is nothing to stop, and that was reported before.
    with suppress(Py4JError, OSError):
        spark.stop()


def _silence() -> None:
    """Keep logs of Spark's Python and our clients off the terminal: errors say it better."""
    from pyspark.logger import PySparkLogger  # noqa: PLC0415 - there is a session

    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = True
    for name in ("py4j", "headrace"):
        # Without a handler, Python prints warnings to stderr.
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
    """Run a pipeline until it ends, is asked to stop, or fails; returns its final state.

    With `available_now` it ends after the data present at its start. SIGINT and SIGTERM stop it,
    and so does `stop.request()`. An existing Spark session of this process is used and kept; else
    one is made and stopped. Raises PipelineFailed, AlreadyRunning, or ConfigError for missing or
    wrong settings before anything runs.
    """
    # These settings override the file's, also where the pipeline's settings are read again.
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
        with stop.listening(), running.published():
            with opened(pipeline, settings.master, whole, log) as spark, stop.listening():
                running.start(spark)
                running.wait()
    return running.state


def _ignore(_: object) -> None:
    """A callback that does nothing."""


# Plans are made by one thread: more cores would only lengthen the start.
_PLANNING_MASTER = "local[1]"


def check_plan(pipeline: Pipeline) -> None:
    """Have Spark plan every query; PipelineFailed has the reason of a refusal. Nothing is read."""
    with tempfile.TemporaryDirectory() as scratch:
        log = SparkLog(Path(scratch, "spark.log"), lambda _: None)
        with opened(pipeline, _PLANNING_MASTER, session_config(pipeline), log) as spark:
            for part in query_parts(pipeline):
                with spark_errors_explained(pipeline, part):
                    query_frame(spark, pipeline, part)
