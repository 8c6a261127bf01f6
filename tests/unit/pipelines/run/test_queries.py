"""The queries of a run, with queries that do what a test says."""

import json
import signal
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

from headrace.pipelines.locations import notes_directory
from headrace.pipelines.run import queries
from headrace.pipelines.run.errors import PipelineFailed
from headrace.pipelines.run.queries import PipelineRun, QuerySettings, StopRequest
from headrace.pipelines.run.run_state import RunPhase, RunState, read_state
from headrace.pipelines.spec.model import Pipeline, Sink, TopicSource, Trigger
from tests.unit.pipelines.run.pipelines import orders_pipeline
from tests.unit.pipelines.run.test_progress import report

SLOW = PySparkException("Python worker failed to connect back.")
AWAY = PySparkException("\nheadrace.client.errors.Unreachable: no broker at 1.2.3.4:9092\n")


@dataclass
class Report:
    """What a query says of a batch."""

    batchId: int

    @property
    def json(self) -> str:
        end = {"orders": {"0": self.batchId}}
        return json.dumps(report(self.batchId, end, {"orders": {"0": 9}}, rows=1))


@dataclass
class FakeQuery:
    """A query that has done a batch each time somebody looks at its progress."""

    batches: int = 3
    ends: bool = True
    error: PySparkException | None = None
    done: int = 0
    stopped: bool = False
    triggered: bool = True
    looks: list[int] = field(default_factory=list)

    @property
    def isActive(self) -> bool:
        return not self.stopped and (self.done < self.batches or not self.ends)

    @property
    def status(self) -> dict[str, Any]:
        return {"isTriggerActive": self.triggered}

    @property
    def lastProgress(self) -> Report | None:
        self.done = min(self.done + 1, self.batches)
        return Report(self.done - 1) if self.done else None

    @property
    def recentProgress(self) -> list[Report]:
        return [Report(number) for number in range(self.done)]

    def exception(self) -> PySparkException | None:
        return self.error

    def stop(self) -> None:
        self.looks.append(self.done)
        self.stopped = True


Scripts = dict[str, list[FakeQuery | PySparkException]]


@dataclass
class FakeWriter:
    """A query that is ready to start."""

    script: list[FakeQuery | PySparkException]

    def start(self) -> FakeQuery:
        query = self.script.pop(0) if self.script else FakeQuery()
        if isinstance(query, PySparkException):
            raise query
        return query


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> Scripts:
    """What the queries do, by name; one for each time a query is started."""
    found: Scripts = {}

    def writer(
        spark: object,
        pipeline: object,
        part: Sink | TopicSource,
        frame: object,
        trigger: Trigger,
    ) -> object:
        name = part.name if isinstance(part, Sink) else f"dead-letters-{part.name}"
        return FakeWriter(found.setdefault(name, []))

    monkeypatch.setattr(queries, "query_frame", lambda *given: None)
    monkeypatch.setattr(queries, "query_writer", writer)
    monkeypatch.setattr(queries, "_POLL_S", 0.0)
    monkeypatch.setattr(queries, "show_positions", lambda *given: None)
    return found


class Watched:
    """A run, and what it said."""

    def __init__(self, directory: Path, *, available_now: bool = False) -> None:
        self.pipeline: Pipeline = orders_pipeline(directory)
        self.notes = notes_directory(self.pipeline)
        self.notes.mkdir(parents=True)
        self.seen: list[RunState] = []
        self.warnings: list[str] = []
        self.stop = StopRequest()
        self.now_s = 0.0
        self.run = PipelineRun(
            self.pipeline,
            QuerySettings("local[1]", available_now),
            self.stop,
            self.seen.append,
            self.warnings.append,
            self.clock,
        )

    def clock(self) -> float:
        """A second more at each look."""
        self.now_s += 1.0
        return self.now_s

    def go(self) -> RunState:
        with self.run.published():
            self.run.start(None)  # type: ignore[arg-type]
            self.run.wait()
        return self.run.state


def test_a_run_ends_when_all_its_queries_have(scripts: Scripts, tmp_path: Path) -> None:
    watched = Watched(tmp_path, available_now=True)
    state = watched.go()
    assert state.phase is RunPhase.FINISHED
    assert [(query.name, query.batches, query.active) for query in state.queries] == [
        ("totals", 3, False),
        ("lake", 3, False),
        ("dead-letters-orders", 3, False),
    ]
    assert [query.remaining for query in state.queries] == [7, 7, 7]
    phases = list(dict.fromkeys(entry.phase for entry in watched.seen))
    assert phases == [RunPhase.STARTING, RunPhase.RUNNING, RunPhase.FINISHED]
    written = read_state(watched.notes)
    assert written is not None
    assert (written.phase, written.queries[0].rows_in) == (RunPhase.FINISHED, 3)


def test_a_query_that_fails_stops_the_others(scripts: Scripts, tmp_path: Path) -> None:
    other = FakeQuery(ends=False)
    scripts["totals"] = [other]
    scripts["lake"] = [FakeQuery(error=PySparkException("No space left on device"))]
    watched = Watched(tmp_path)
    with pytest.raises(PipelineFailed, match=r"pipeline orders, sink lake .*a disk is full"):
        watched.go()
    assert other.stopped
    written = read_state(watched.notes)
    assert written is not None
    assert written.phase is RunPhase.FAILED
    assert "a disk is full" in (written.error or "")


def test_a_query_that_cannot_be_started_stops_those_before_it(
    scripts: Scripts, tmp_path: Path
) -> None:
    first = FakeQuery(ends=False)
    scripts["totals"] = [first]
    scripts["lake"] = [PySparkException("[PATH_NOT_FOUND] Path does not exist: file:/x. SQLSTATE")]
    with pytest.raises(PipelineFailed, match="there is no file or directory file:/x; see"):
        Watched(tmp_path).go()
    assert first.stopped


def test_what_passes_is_tried_again(scripts: Scripts, tmp_path: Path) -> None:
    scripts["totals"] = [SLOW, FakeQuery()]
    scripts["lake"] = [FakeQuery(error=SLOW, batches=1), FakeQuery()]
    watched = Watched(tmp_path)
    assert watched.go().phase is RunPhase.FINISHED
    assert len(watched.warnings) == 2
    assert all(line.endswith("; trying again") for line in watched.warnings)


def test_nothing_is_tried_for_ever(scripts: Scripts, tmp_path: Path) -> None:
    scripts["lake"] = [FakeQuery(error=SLOW, batches=1) for _ in range(4)]
    watched = Watched(tmp_path)
    with pytest.raises(PipelineFailed, match="took too long to start"):
        watched.go()
    assert len(watched.warnings) == 3
    (tmp_path / "again").mkdir()
    scripts["totals"] = [SLOW] * 4
    with pytest.raises(PipelineFailed, match="took too long to start"):
        Watched(tmp_path / "again").go()


def test_every_query_is_analysed_before_the_first_is_started(
    scripts: Scripts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def analyse(spark: object, pipeline: object, part: Sink | TopicSource) -> None:
        calls.append(f"analysed {part.name}")
        if part.name == "lake":
            raise PySparkException("[UNRESOLVED_COLUMN] no column x. SQLSTATE: 42703")

    monkeypatch.setattr(queries, "query_frame", analyse)
    monkeypatch.setattr(queries, "query_writer", lambda *given: calls.append("started"))
    with pytest.raises(PipelineFailed, match=r"sink lake .*no column x"):
        Watched(tmp_path).go()
    assert calls == ["analysed totals", "analysed lake"]


def test_a_query_waits_for_brokers_that_went_away(scripts: Scripts, tmp_path: Path) -> None:
    scripts["lake"] = [
        FakeQuery(error=AWAY, batches=1),
        *(FakeQuery(error=AWAY, batches=0) for _ in range(20)),
        FakeQuery(),
    ]
    other = FakeQuery(ends=False, batches=2)
    scripts["totals"] = [other]
    watched = Watched(tmp_path)

    def stop_when_done(state: RunState) -> None:
        lake = state.queries[1] if len(state.queries) == 3 else None
        if lake is not None and lake.waiting_for is not None:
            waits.add(lake.waiting_for)
        elif lake is not None and lake.batches > 1:
            watched.stop.request()

    waits: set[str] = set()
    watched.run._on_progress = stop_when_done
    assert watched.go().phase is RunPhase.STOPPED
    assert scripts["lake"] == []
    assert waits == {"pipeline orders, sink lake (orders.yaml:21): no broker at 1.2.3.4:9092"}
    lost, found = watched.warnings
    assert lost.endswith("no broker at 1.2.3.4:9092; waiting, and going on when the brokers answer")
    assert "sink lake (orders.yaml:21): the brokers answer again after" in found


def test_a_stop_is_heard_while_a_query_waits_for_brokers(scripts: Scripts, tmp_path: Path) -> None:
    scripts["lake"] = [
        FakeQuery(error=AWAY, batches=1),
        *(FakeQuery(error=AWAY, batches=0) for _ in range(20)),
    ]
    watched = Watched(tmp_path)
    watched.run._on_progress = lambda state: (
        watched.stop.request()
        if any(query.waiting_for is not None for query in state.queries)
        else None
    )
    assert watched.go().phase is RunPhase.STOPPED


def test_brokers_that_were_never_there_end_the_run(scripts: Scripts, tmp_path: Path) -> None:
    scripts["lake"] = [FakeQuery(error=AWAY, batches=0)]
    with pytest.raises(PipelineFailed, match=r"no broker at 1\.2\.3\.4:9092"):
        Watched(tmp_path).go()


def test_a_stop_waits_for_the_batch_that_runs(scripts: Scripts, tmp_path: Path) -> None:
    endless = FakeQuery(ends=False, batches=9)
    idle = FakeQuery(ends=False, triggered=False)
    scripts["totals"], scripts["lake"] = [endless], [idle]
    watched = Watched(tmp_path)
    watched.run.start(None)  # type: ignore[arg-type]
    before = endless.done
    watched.stop.request()
    with watched.run.published():
        watched.run.wait()
    assert watched.run.state.phase is RunPhase.STOPPED
    assert endless.looks[0] > before
    assert idle.stopped
    assert RunPhase.STOPPING in [entry.phase for entry in watched.seen]


def test_a_stop_does_not_wait_for_ever(
    scripts: Scripts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "_STOP_PATIENCE_S", 0.0)
    stuck = FakeQuery(ends=False, batches=1, done=1)
    scripts["totals"] = [stuck]
    watched = Watched(tmp_path)
    watched.stop.request()
    # Asked before it began: no query is started at all.
    assert watched.go().queries == ()
    watched.stop.requested = False
    watched.run.start(None)  # type: ignore[arg-type]
    watched.stop.request()
    watched.run.wait()
    assert stuck.stopped


def test_positions_that_cannot_be_shown_are_only_a_warning(
    scripts: Scripts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*given: object) -> None:
        raise PipelineFailed("nobody answers; start a broker")

    monkeypatch.setattr(queries, "show_positions", refuse)
    watched = Watched(tmp_path)
    watched.run.start(None)  # type: ignore[arg-type]
    watched.stop.request()
    watched.run.wait()
    assert watched.warnings[0] == (
        "the positions of totals are not shown: nobody answers; start a broker"
    )


def test_signals_are_noted_and_the_second_strikes() -> None:
    stop = StopRequest()
    before = signal.getsignal(signal.SIGTERM)
    with stop.listening():
        signal.raise_signal(signal.SIGTERM)
        assert stop.requested
        assert not stop.interrupted
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        assert stop.interrupted
    assert signal.getsignal(signal.SIGTERM) is before


def test_another_thread_than_the_main_one_hears_no_signals() -> None:
    stop = StopRequest()
    before = signal.getsignal(signal.SIGTERM)

    def listen() -> None:
        with stop.listening():
            assert signal.getsignal(signal.SIGTERM) is before

    thread = threading.Thread(target=listen)
    thread.start()
    thread.join()


def test_a_second_ctrl_c_leaves_a_state_that_says_stopped(scripts: Scripts, tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    with pytest.raises(KeyboardInterrupt), watched.run.published():
        raise KeyboardInterrupt
    written = read_state(watched.notes)
    assert written is not None
    assert written.phase is RunPhase.STOPPED
