"""The queries of a run, from start to stop: one for each sink and each source with dead letters.

A query that fails stops the others; a query whose brokers do not answer any more waits for them. A
requested stop waits for the running batches, but not for ever: an interrupted batch is repeated by
the next run.
"""

import json
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

from headrace.errors import HeadraceError
from headrace.pipelines.locations import notes_directory, query_checkpoint, query_group, query_name
from headrace.pipelines.run.checkpoints import noted_start, query_parts, starting_at, topic_sources
from headrace.pipelines.run.errors import PipelineFailed, explain, label, spark_errors_explained
from headrace.pipelines.run.progress import OUTPUT_METRIC, OUTPUT_ROWS, Positions, ProgressTally
from headrace.pipelines.run.run_state import RunPhase, RunState, new_state, write_state
from headrace.pipelines.spec.model import (
    OutputMode,
    Pipeline,
    Sink,
    TopicSink,
    TopicSource,
    Trigger,
)
from headrace.pipelines.spec.part_graph import graph_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_KAFKA = "kafka."
_GROUP_OPTION = "groupid"


def show_positions(pipeline: Pipeline, part: Sink | TopicSource, positions: Positions) -> None:
    """Commit a query's positions to its group, at the brokers of each of its sources.

    The sources commit when they plan a batch, so the last batch before a stop is left.
    """
    # It needs Spark, like everything about the data source.
    from headrace.pipelines.datasource.brokers import commit_progress  # noqa: PLC0415
    from headrace.pipelines.datasource.offset_ranges import StreamOffset, to_json  # noqa: PLC0415

    for source in topic_sources(pipeline, part):
        mine = {tp: offset for tp, offset in positions.items() if reads(source, tp.topic)}
        group = group_of(pipeline, part, source)
        client = client_properties(pipeline, source)
        commit_progress(client, group, to_json(StreamOffset(mine)))


def client_properties(pipeline: Pipeline, source: TopicSource) -> dict[str, str]:
    """The brokers and client options of a source: the pipeline's, unless it has its own."""
    own = {
        name.lower().removeprefix(_KAFKA): text
        for name, text in source.options.items()
        if name.lower().startswith(_KAFKA)
    }
    return {**pipeline.broker, **own}


def group_of(pipeline: Pipeline, part: Sink | TopicSource, source: TopicSource) -> str:
    """The consumer group of a query at a source: its own, unless the source names one."""
    named = [text for name, text in source.options.items() if name.lower() == _GROUP_OPTION]
    return named[0] if named else query_group(pipeline, query_name(part))


def reads(source: TopicSource, topic: str) -> bool:
    """Whether a source reads a topic."""
    if source.pattern is not None:
        return re.fullmatch(source.pattern, topic) is not None
    return topic in source.topics


def query_frame(spark: "SparkSession", pipeline: Pipeline, part: Sink | TopicSource) -> "DataFrame":
    """The rows of a sink, or of a source's dead letters, as a stream that Spark has analysed.

    Nothing is read or written. An invalid query is refused here.
    """
    # Queries need Spark; commands that only show a run do not.
    from headrace.pipelines import sinks  # noqa: PLC0415
    from headrace.pipelines.frames import dataframes as assembly  # noqa: PLC0415

    begun = starting_at(pipeline, noted_start(pipeline, part))
    if isinstance(part, Sink):
        frame = assembly.sink_frame(spark, begun, part)
        _check_mode(frame, part)
        sinks.check(part, frame)
        return frame
    source = next(source for source in begun.sources if source.name == part.name)
    assert isinstance(source, TopicSource)
    return assembly.dead_letter_frame(spark, begun, source)


def query_writer(
    spark: "SparkSession",
    pipeline: Pipeline,
    part: Sink | TopicSource,
    frame: "DataFrame",
    trigger: Trigger,
) -> "DataStreamWriter":
    """The unstarted query that writes a frame to its target, which exists already."""
    from headrace.pipelines import sinks  # noqa: PLC0415

    where: Any = {"checkpoint": query_checkpoint(pipeline, query_name(part)), "trigger": trigger}
    if isinstance(part, Sink):
        return sinks.writer(spark, pipeline, part, counted(frame, part), **where)
    return sinks.dead_letters_writer(spark, pipeline, part, frame, **where)


def _check_mode(frame: "DataFrame", sink: Sink) -> None:
    """Run Spark's own check at the start of a query: whether a stream supports it, in this mode."""
    jvm = frame.sparkSession._jvm
    assert jvm is not None
    mode = getattr(jvm.org.apache.spark.sql.streaming.OutputMode, sink.mode.value.capitalize())()
    checker = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
    checker.checkForStreaming(frame._jdf.queryExecution().analyzed(), mode)


def counted(frame: "DataFrame", sink: Sink) -> "DataFrame":
    """The frame with its rows counted, for a sink that does not report how many it wrote."""
    # Only Spark's own Python sink reports them, and only in this mode.
    if isinstance(sink.target, TopicSink) and sink.mode is OutputMode.APPEND:
        return frame
    from pyspark.sql import functions as f  # noqa: PLC0415 - only runs need Spark

    return frame.observe(OUTPUT_METRIC, f.count(f.lit(1)).alias(OUTPUT_ROWS))


# The wait of a query for brokers that do not answer.
#
# Pure: the time is an argument.


_PAUSE_S_MAX = 15.0


class Outage:
    """The time since which a query waits for its brokers, and the time of the next start.

    The pauses between attempts grow, and there is no last attempt: a query continues from its
    checkpoint however long the brokers were away.
    """

    def __init__(self, now_s: float) -> None:
        self._since_s = now_s
        self._attempts = 0
        self._retry_at_s: float | None = now_s + 1.0

    def is_due(self, now_s: float) -> bool:
        """Whether the query should be started again now."""
        return self._retry_at_s is not None and now_s >= self._retry_at_s

    def is_pausing(self, now_s: float) -> bool:
        """Whether the query pauses until the next attempt."""
        return self._retry_at_s is not None and now_s < self._retry_at_s

    def attempted(self) -> None:
        """Note that the query was started again."""
        self._attempts += 1
        self._retry_at_s = None

    def failed(self, now_s: float) -> None:
        """Note that the brokers still do not answer."""
        self._retry_at_s = now_s + min(2.0**self._attempts, _PAUSE_S_MAX)

    def duration_s(self, now_s: float) -> float:
        """The time that the query has waited."""
        return now_s - self._since_s


_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopRequest:
    """A flag to stop the run. A second signal interrupts at once: the user insists."""

    def __init__(self) -> None:
        self.requested = False
        self.interrupted = False

    def request(self) -> None:
        """Request a stop, like SIGTERM."""
        self.requested = True

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Handle the signals of this process inside the block. Python delivers them to its main
        thread.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = [signal.signal(number, self._on_signal) for number in _SIGNALS]
        try:
            yield
        finally:
            for number, handler in zip(_SIGNALS, before, strict=True):
                signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        insisted = self.requested
        self.requested = True
        self.interrupted = self.interrupted or number == signal.SIGINT
        if insisted:
            raise KeyboardInterrupt


Result = TypeVar("Result")

_POLL_S = 0.2
_STATE_S = 2.0
_STOP_PATIENCE_S = 20.0
# The number of restarts of a query after a failure that may be temporary.
_RESTARTS_MAX = 3


@dataclass(frozen=True, slots=True)
class QuerySettings:
    """The settings of a run: its Spark master, and whether it ends with the present data."""

    master: str
    available_now: bool = False


@dataclass(slots=True)
class _RunningQuery:
    """A started query, with its progress and its outage."""

    part: Sink | TopicSource
    query: "StreamingQuery"
    tally: ProgressTally
    begin: Callable[[], "StreamingQuery"]
    restarts: int = 0
    has_progressed: bool = False
    outage: Outage | None = None


class PipelineRun:
    """The queries of one run from start to end, and its published state."""

    def __init__(
        self,
        pipeline: Pipeline,
        settings: QuerySettings,
        stop: StopRequest,
        on_progress: Callable[[RunState], None],
        on_warning: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pipeline = pipeline
        self._settings = settings
        self._notes = notes_directory(pipeline)
        self._stop = stop
        self._on_progress = on_progress
        self._on_warning = on_warning
        self._clock = clock
        self._queries: list[_RunningQuery] = []
        self._written_at = 0.0
        self.state = new_state(
            pipeline.name,
            master=settings.master,
            available_now=settings.available_now,
            graph=graph_of(pipeline),
        )

    @contextmanager
    def published(self) -> Iterator[None]:
        """Publish the start of the run, and its end."""
        self._publish(RunPhase.STARTING)
        try:
            yield
        except HeadraceError as error:
            self._publish(RunPhase.FAILED, error=str(error))
            raise
        except KeyboardInterrupt:
            self._publish(RunPhase.STOPPED)
            raise
        self._publish(RunPhase.STOPPED if self._stop.requested else RunPhase.FINISHED)

    def start(self, spark: "SparkSession") -> None:
        """Start every query; if one cannot be started, those before it are stopped again.

        All are analysed before the first is started: a mistake in the last must not leave
        checkpoints and output of the others behind.
        """
        frames: list[tuple[Sink | TopicSource, DataFrame]] = []
        for part in query_parts(self._pipeline):
            if self._stop.requested:
                return
            frames.append((part, self._retried(partial(self._frame, spark, part))))
        for part, frame in frames:
            if self._stop.requested:
                return
            try:
                self._queries.append(self._start(spark, part, frame))
            except HeadraceError:
                self._abandon()
                raise
        self._publish(RunPhase.RUNNING)

    def wait(self) -> None:
        """Wait until all queries have ended, one has failed, or a stop is requested."""
        try:
            while self._update_queries() and not self._stop.requested:
                time.sleep(_POLL_S)
        except HeadraceError:
            self._abandon()
            raise
        if self._stop.requested:
            self._publish(RunPhase.STOPPING)
            self._stop_queries(_STOP_PATIENCE_S)
            self._show_positions()

    def _frame(self, spark: "SparkSession", part: Sink | TopicSource) -> "DataFrame":
        with spark_errors_explained(self._pipeline, part):
            return query_frame(spark, self._pipeline, part)

    def _start(
        self, spark: "SparkSession", part: Sink | TopicSource, frame: "DataFrame"
    ) -> _RunningQuery:
        trigger = self._trigger(part)
        tally = ProgressTally(query_name(part), bounded=trigger.available_now)

        def begin(frame: "DataFrame") -> "StreamingQuery":
            with spark_errors_explained(self._pipeline, part):
                return query_writer(spark, self._pipeline, part, frame, trigger).start()

        query = self._retried(partial(begin, frame))
        return _RunningQuery(part, query, tally, lambda: begin(self._frame(spark, part)))

    def _retried(self, attempt: Callable[[], Result]) -> Result:
        """The result of an attempt, repeated after failures that may be temporary."""
        for _ in range(_RESTARTS_MAX):
            try:
                return attempt()
            except PipelineFailed as failure:
                if not failure.passes:
                    raise
                self._on_warning(f"{failure}; trying again")
        return attempt()

    def _trigger(self, part: Sink | TopicSource) -> Trigger:
        if self._settings.available_now:
            return Trigger(available_now=True)
        own = part.trigger if isinstance(part, Sink) else None
        return own or self._pipeline.trigger

    def _update_queries(self) -> bool:
        """Update the progress of the queries; returns whether one is still active."""
        active = False
        for query in self._queries:
            with spark_errors_explained(self._pipeline, query.part):
                active = self._update_query(query) or active
        self._publish(self.state.phase)
        return active

    def _update_query(self, running: _RunningQuery) -> bool:
        if running.outage is not None and self._is_away(running, running.outage):
            return True
        active = running.query.isActive
        _take_progress(running)
        if active:
            return True
        error = running.query.exception()
        if error is None:
            running.tally.end()
            return False
        failure = explain(self._pipeline, running.part, error)
        if failure.outage and running.has_progressed:
            self._wait_for_brokers(running, failure)
            return True
        if not failure.passes or running.restarts == _RESTARTS_MAX:
            running.tally.end()
            raise failure
        self._on_warning(f"{failure}; trying again")
        running.restarts += 1
        running.tally.restarted()
        running.query = running.begin()
        return True

    def _wait_for_brokers(self, running: _RunningQuery, failure: PipelineFailed) -> None:
        """Make a query that ran before wait for its brokers, which do not answer any more."""
        now_s = self._clock()
        if running.outage is not None:
            running.outage.failed(now_s)
            return
        running.outage = Outage(now_s)
        running.tally.wait(str(failure))
        self._on_warning(f"{failure}; waiting, and going on when the brokers answer")

    def _is_away(self, running: _RunningQuery, outage: Outage) -> bool:
        """Whether a query that lost its brokers is pausing; it is started again when due."""
        now_s = self._clock()
        if outage.is_pausing(now_s):
            return True
        if outage.is_due(now_s):
            outage.attempted()
            try:
                running.query = running.begin()
            except PipelineFailed as failure:
                if not failure.outage:
                    raise
                outage.failed(now_s)
            return True
        if running.query.isActive and running.query.lastProgress is not None:
            running.outage = None
            running.tally.wait(None)
            waited_s = outage.duration_s(now_s)
            self._on_warning(
                f"{label(self._pipeline, running.part)}: the brokers answer again after"
                f" {waited_s:.0f} s; going on"
            )
        return False

    def _abandon(self) -> None:
        """Stop all queries after a failure, which matters more than an error of the stop."""
        with suppress(HeadraceError):
            self._stop_queries(0.0)

    def _stop_queries(self, patience_s: float) -> None:
        """Stop each query when its batch is done, or when `patience_s` is over."""
        until = time.monotonic() + patience_s
        with spark_errors_explained(self._pipeline, None):
            waiting = {id(query): _batch(query) for query in self._queries if query.query.isActive}
            while waiting:
                late = time.monotonic() >= until
                for query in self._queries:
                    if id(query) in waiting and (late or _is_between(query, waiting[id(query)])):
                        query.query.stop()
                        del waiting[id(query)]
                if waiting:
                    time.sleep(0.01)
            for query in self._queries:
                _take_progress(query)
                query.tally.end()

    def _show_positions(self) -> None:
        """Commit the positions of the last batches too. Nothing depends on it."""
        for query in self._queries:
            try:
                show_positions(self._pipeline, query.part, query.tally.progress.positions)
            except HeadraceError as error:
                self._on_warning(
                    f"the positions of {query_name(query.part)} are not shown: {error}"
                )

    def _publish(self, phase: RunPhase, error: str | None = None) -> None:
        before = self.state
        queries = tuple(query.tally.progress for query in self._queries)
        self.state = replace(before, phase=phase, error=error, queries=queries)
        now = time.monotonic()
        if self.state.phase is not before.phase or now - self._written_at > _STATE_S:
            self._written_at = now
            write_state(self._notes, self.state)
        self._on_progress(self.state)


def _take_progress(running: _RunningQuery) -> None:
    last = running.query.lastProgress
    if last is None:
        return
    running.has_progressed = True
    report = json.loads(last.json)
    # Spark keeps the newest hundred reports; they are requested only if more than one came since.
    if report["batchId"] > running.tally.seen + 1:
        running.tally.add(json.loads(each.json) for each in running.query.recentProgress)
    else:
        running.tally.add([report])


def _batch(running: _RunningQuery) -> int:
    last = running.query.lastProgress
    return -1 if last is None else last.batchId


def _is_between(running: _RunningQuery, batch: int) -> bool:
    """Whether a query runs no batch, or has ended batch `batch`."""
    return (
        not running.query.isActive
        or not running.query.status["isTriggerActive"]
        or _batch(running) > batch
    )
