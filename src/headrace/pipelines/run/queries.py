"""The queries of a run: one for each sink and each source with dead letters, from start to end.

A query that fails stops the others; a query whose brokers do not answer any more waits for them. A
stop that is asked for waits for the batches that run, but not for ever: what is cut short is done
again by the next run.
"""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from headrace.errors import HeadraceError
from headrace.pipelines.run.catching import explaining
from headrace.pipelines.run.checkpoints import query_parts
from headrace.pipelines.run.failures import PipelineFailed, explain, label
from headrace.pipelines.run.groups import show_positions
from headrace.pipelines.run.launching import query_frame, query_writer
from headrace.pipelines.run.outages import Outage
from headrace.pipelines.run.places import notes_directory, query_name
from headrace.pipelines.run.progress import Tally
from headrace.pipelines.run.state import Phase, RunState, new_state, write_state
from headrace.pipelines.run.stopping import StopRequest
from headrace.pipelines.spec.model import Pipeline, Sink, TopicSource, Trigger

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

Result = TypeVar("Result")

_POLL_S = 0.2
_STATE_S = 2.0
_STOP_PATIENCE_S = 20.0
# How often a query is started again after something that passes by itself.
_RESTARTS_MAX = 3


@dataclass(frozen=True, slots=True)
class Settings:
    """Where a pipeline runs, and whether it ends when what is there now is done."""

    master: str
    available_now: bool = False


@dataclass(slots=True)
class _Running:
    """A query that was started, and what is known of it."""

    part: Sink | TopicSource
    query: "StreamingQuery"
    tally: Tally
    begin: Callable[[], "StreamingQuery"]
    restarts: int = 0
    has_progressed: bool = False
    outage: Outage | None = None


class Run:
    """The queries of one run from start to end, and the state others see of it."""

    def __init__(
        self,
        pipeline: Pipeline,
        settings: Settings,
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
        self._queries: list[_Running] = []
        self._written_at = 0.0
        self.state = new_state(
            pipeline.name, master=settings.master, available_now=settings.available_now
        )

    @contextmanager
    def told(self) -> Iterator[None]:
        """Have others see that the run begins, and how it ends."""
        self._publish(Phase.STARTING)
        try:
            yield
        except HeadraceError as error:
            self._publish(Phase.FAILED, error=str(error))
            raise
        except KeyboardInterrupt:
            self._publish(Phase.STOPPED)
            raise
        self._publish(Phase.STOPPED if self._stop.requested else Phase.FINISHED)

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
        self._publish(Phase.RUNNING)

    def wait(self) -> None:
        """Wait until all queries have ended, one has failed, or a stop is asked for."""
        try:
            while self._look() and not self._stop.requested:
                time.sleep(_POLL_S)
        except HeadraceError:
            self._abandon()
            raise
        if self._stop.requested:
            self._publish(Phase.STOPPING)
            self._stop_queries(_STOP_PATIENCE_S)
            self._show_positions()

    def _frame(self, spark: "SparkSession", part: Sink | TopicSource) -> "DataFrame":
        with explaining(self._pipeline, part):
            return query_frame(spark, self._pipeline, part)

    def _start(
        self, spark: "SparkSession", part: Sink | TopicSource, frame: "DataFrame"
    ) -> _Running:
        trigger = self._trigger(part)
        tally = Tally(query_name(part), bounded=trigger.available_now)

        def begin(frame: "DataFrame") -> "StreamingQuery":
            with explaining(self._pipeline, part):
                return query_writer(spark, self._pipeline, part, frame, trigger).start()

        query = self._retried(partial(begin, frame))
        return _Running(part, query, tally, lambda: begin(self._frame(spark, part)))

    def _retried(self, attempt: Callable[[], Result]) -> Result:
        """What an attempt gives, made again after failures that pass by themselves."""
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

    def _look(self) -> bool:
        """See how far the queries are; whether one still runs."""
        active = False
        for one in self._queries:
            with explaining(self._pipeline, one.part):
                active = self._look_at(one) or active
        self._publish(self.state.phase)
        return active

    def _look_at(self, one: _Running) -> bool:
        if one.outage is not None and self._is_away(one, one.outage):
            return True
        active = one.query.isActive
        _take_progress(one)
        if active:
            return True
        error = one.query.exception()
        if error is None:
            one.tally.end()
            return False
        failure = explain(self._pipeline, one.part, error)
        if failure.outage and one.has_progressed:
            self._wait_for_brokers(one, failure)
            return True
        if not failure.passes or one.restarts == _RESTARTS_MAX:
            one.tally.end()
            raise failure
        self._on_warning(f"{failure}; trying again")
        one.restarts += 1
        one.query = one.begin()
        return True

    def _wait_for_brokers(self, one: _Running, failure: PipelineFailed) -> None:
        """Have a query wait that has run before, and whose brokers do not answer any more."""
        now_s = self._clock()
        if one.outage is not None:
            one.outage.failed(now_s)
            return
        one.outage = Outage(now_s)
        one.tally.wait(str(failure))
        self._on_warning(f"{failure}; waiting, and going on when the brokers answer")

    def _is_away(self, one: _Running, outage: Outage) -> bool:
        """Whether a query that lost its brokers rests; it is started again when that is due."""
        now_s = self._clock()
        if outage.is_pausing(now_s):
            return True
        if outage.is_due(now_s):
            outage.attempted()
            try:
                one.query = one.begin()
            except PipelineFailed as failure:
                if not failure.outage:
                    raise
                outage.failed(now_s)
            return True
        if one.query.isActive and one.query.lastProgress is not None:
            one.outage = None
            one.tally.wait(None)
            waited_s = outage.duration_s(now_s)
            self._on_warning(
                f"{label(self._pipeline, one.part)}: the brokers answer again after"
                f" {waited_s:.0f} s; going on"
            )
        return False

    def _abandon(self) -> None:
        """Stop what runs, after a failure that is more worth telling than one of the stop."""
        with suppress(HeadraceError):
            self._stop_queries(0.0)

    def _stop_queries(self, patience_s: float) -> None:
        """Stop each query when its batch is done, or when there is no more patience."""
        until = time.monotonic() + patience_s
        with explaining(self._pipeline, None):
            waiting = {id(one): _batch(one) for one in self._queries if one.query.isActive}
            while waiting:
                late = time.monotonic() >= until
                for one in self._queries:
                    if id(one) in waiting and (late or _is_between(one, waiting[id(one)])):
                        one.query.stop()
                        del waiting[id(one)]
                if waiting:
                    time.sleep(0.01)
            for one in self._queries:
                _take_progress(one)
                one.tally.end()

    def _show_positions(self) -> None:
        """Let the brokers know of the last batches too. Nothing depends on it."""
        for one in self._queries:
            try:
                show_positions(self._pipeline, one.part, one.tally.progress.positions)
            except HeadraceError as error:
                self._on_warning(f"the positions of {query_name(one.part)} are not shown: {error}")

    def _publish(self, phase: Phase, error: str | None = None) -> None:
        before = self.state
        queries = tuple(one.tally.progress for one in self._queries)
        self.state = replace(before, phase=phase, error=error, queries=queries)
        now = time.monotonic()
        if self.state.phase is not before.phase or now - self._written_at > _STATE_S:
            self._written_at = now
            write_state(self._notes, self.state)
        self._on_progress(self.state)


def _take_progress(one: _Running) -> None:
    last = one.query.lastProgress
    if last is None:
        return
    one.has_progressed = True
    report = json.loads(last.json)
    # Spark keeps the newest hundred; they are asked for only if more than one came since.
    if report["batchId"] > one.tally.seen + 1:
        one.tally.add(json.loads(each.json) for each in one.query.recentProgress)
    else:
        one.tally.add([report])


def _batch(one: _Running) -> int:
    last = one.query.lastProgress
    return -1 if last is None else last.batchId


def _is_between(one: _Running, batch: int) -> bool:
    """Whether a query runs no batch, or has ended the one it ran."""
    return not one.query.isActive or not one.query.status["isTriggerActive"] or _batch(one) > batch
