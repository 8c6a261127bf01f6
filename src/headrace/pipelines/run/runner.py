"""Runs a pipeline: a session, its queries, and the end of both.

The queries are in `queries`, what others see of a run in `state`.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from headrace.pipelines.run.checkpoints import claim, query_parts
from headrace.pipelines.run.failures import log_path
from headrace.pipelines.run.logs import SparkLog
from headrace.pipelines.run.places import notes_directory
from headrace.pipelines.run.queries import Run, Settings
from headrace.pipelines.run.sessions import master_of, opened, session_config
from headrace.pipelines.run.state import RunState, locked
from headrace.pipelines.run.stopping import StopRequest
from headrace.pipelines.spec.model import Pipeline


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
    settings = Settings(master or master_of(whole), available_now)
    with locked(notes_directory(pipeline), pipeline.name):
        stop = stop or StopRequest()
        running = Run(pipeline, settings, stop, on_progress or _ignore, on_warning or _ignore)
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
