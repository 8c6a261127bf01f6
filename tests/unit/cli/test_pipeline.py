"""`headrace pipeline` without Spark: files, states, and a run that is not one."""

import io
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace.cli.interrupts import INTERRUPTED
from headrace.cli.pipeline_display import ProgressBars, ProgressLines, line_of, seconds_text
from headrace.pipelines.run.errors import PipelineFailed
from headrace.pipelines.run.progress import BatchProgress, QueryProgress
from headrace.pipelines.run.queries import StopRequest
from headrace.pipelines.run.run_state import RunPhase, RunState, locked, new_state, write_state
from headrace.pipelines.spec.model import Pipeline
from headrace.pipelines.spec.part_graph import PartGraph, PartNode
from tests.unit.cli.invoking import document, invoke

LAKE = QueryProgress(
    "lake", batch=4, batches=5, rows_in=1234, rows_out=1200, rows_per_second=410.5, batch_ms=3000,
    busy_ms=12_340, lag=7, remaining=7,
)  # fmt: skip
OTHER = QueryProgress("other")

WAITING = """
import sys, time, signal
from pathlib import Path
from headrace.pipelines.run.run_state import locked
ended = []
signal.signal(signal.SIGTERM, lambda *_: ended.append(1) if sys.argv[2] == "ends" else None)
with locked(Path(sys.argv[1]), "orders-by-region"):
    print("ready", flush=True)
    while not ended:
        time.sleep(0.01)
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A pipeline in a file."""
    assert invoke("pipeline", "init", str(tmp_path)).exit_code == 0
    return tmp_path / "pipeline.yaml"


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    """Where that pipeline has its state."""
    directory = tmp_path / "headrace-pipelines" / "orders-by-region" / "_headrace"
    directory.mkdir(parents=True)
    return directory


def a_state(phase: RunPhase, **more: Any) -> RunState:
    state = new_state("orders-by-region", master="local[2]", available_now=False)
    return replace(state, phase=phase, queries=(LAKE, OTHER), **more)


def test_init_writes_a_pipeline_that_passes_its_check(tmp_path: Path) -> None:
    place = tmp_path / "new"
    for template, name in (("lake", "pipeline.yaml"), ("python", "pipeline.py")):
        made = invoke("pipeline", "init", str(place), "--template", template)
        assert made.stdout == f"wrote {place / name}\n"
        assert f"headrace pipeline check {place / name}" in made.stderr
        checked = invoke("pipeline", "check", str(place / name))
        assert (checked.exit_code, checked.stdout.rsplit("; ")[-1]) == (0, "all right\n")


def test_init_overwrites_nothing(file: Path) -> None:
    file.write_text("mine")
    again = invoke("pipeline", "init", str(file.parent))
    assert again.exit_code == 2
    assert "is not overwritten" in again.stderr
    assert file.read_text() == "mine"


def test_check_says_what_a_pipeline_has(file: Path) -> None:
    assert invoke("pipeline", "check", str(file)).stdout == (
        "pipeline orders-by-region: 1 source, 2 steps, 1 sink; all right\n"
    )
    found = document(invoke("pipeline", "check", str(file), "--json", "--name", "copy"))
    assert found["pipeline"] == "copy"
    assert found["checkpoint"].endswith("headrace-pipelines/copy")
    assert found["sinks"] == ["totals"]


def test_check_tells_everything_that_is_wrong(file: Path) -> None:
    file.write_text(file.read_text().replace("keys:", "keyz:").replace("trigger:", "triger:"))
    result = invoke("pipeline", "check", str(file))
    lines = result.stderr.splitlines()
    assert (result.exit_code, len(lines)) == (2, 2)
    assert lines[0].startswith(f"headrace: {file}:")
    assert "did you mean 'trigger'?" in lines[0]
    assert "did you mean 'keys'?" in lines[1]


def test_check_warns_of_what_no_sink_needs(file: Path) -> None:
    file.write_text(file.read_text().replace("from: per_minute", "from: unique_orders"))
    result = invoke("pipeline", "check", str(file))
    assert result.exit_code == 0
    assert "no sink needs per_minute; it is not run" in result.stderr


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    for command in ("check", "run", "status", "stop", "reset"):
        result = invoke("pipeline", command, str(tmp_path / "none.yaml"))
        assert result.exit_code == 2
        assert f"{tmp_path / 'none.yaml'}: No such file" in result.stderr


def test_status_of_a_pipeline_that_never_ran(file: Path) -> None:
    assert "has not been run here" in invoke("pipeline", "status", str(file)).stdout
    assert document(invoke("pipeline", "status", str(file), "--json"))["phase"] is None


def test_status_of_a_run(file: Path, notes: Path) -> None:
    with locked(notes, "orders-by-region"):
        write_state(notes, a_state(RunPhase.RUNNING))
        lines = invoke("pipeline", "status", str(file)).stdout.splitlines()
    assert lines[0].startswith("Pipeline orders-by-region: running since ")
    assert lines[0].endswith(", master local[2]")
    assert lines[1:] == [
        "QUERY  BATCHES  ROWS IN  ROWS OUT  ROWS/S  BATCH TIME  LAG",
        "lake   5        1,234    1,200     100     3.0 s       7",
        "other  0        0        0",
    ]


def test_status_shows_parts_batches_and_dead_letters_by_reason(file: Path, notes: Path) -> None:
    recent = tuple(
        BatchProgress(n, f"2026-01-31T10:00:0{n}.000Z", 10 + n, None, 100 * n) for n in range(5)
    )
    reasons = {"not JSON": 7, "a\x1b[2J is no INT": 1200, **{f"r{n}": 1 for n in range(9)}}
    letters = QueryProgress("dead-letters-orders", reasons=reasons)
    graph = PartGraph(
        (
            PartNode("source orders", "source", "orders", "topic orders", ("orders",)),
            PartNode("sink lake", "sink", "lake", "parquet files in lake"),
        ),
        (("source orders", "sink lake"),),
    )
    state = a_state(RunPhase.FINISHED, graph=graph)
    write_state(notes, replace(state, queries=(replace(LAKE, recent=recent), letters)))
    lines = invoke("pipeline", "status", str(file)).stdout.splitlines()
    assert lines[1:3] == [
        "  source orders: topic orders",
        "  sink lake: parquet files in lake, from orders",
    ]
    shown = lines[lines.index("") + 1 :]
    assert [line.split()[:4] for line in shown[1:4]] == [
        ["lake", str(n), f"2026-01-31T10:00:0{n}.000Z", str(10 + n)] for n in (2, 3, 4)
    ]
    assert shown[4:8] == [
        "",
        "DEAD LETTERS         RECORDS  REASON",
        "dead-letters-orders  1,200    a\\x1b[2J is no INT",
        "dead-letters-orders  7        not JSON",
    ]
    assert len(shown) == 11, "the five most frequent reasons"
    found = document(invoke("pipeline", "status", str(file), "--json"))
    assert found["graph"]["edges"] == [["source orders", "sink lake"]]
    assert len(found["queries"][0]["recent"]) == 5
    assert found["queries"][1]["reasons"]["not JSON"] == 7


def test_status_of_runs_that_are_over(file: Path, notes: Path) -> None:
    write_state(notes, a_state(RunPhase.FAILED, error="a disk is full; make room"))
    lines = invoke("pipeline", "status", str(file)).stdout.splitlines()
    assert lines[0].startswith("Pipeline orders-by-region: failed at ")
    assert lines[1] == "a disk is full; make room"
    write_state(notes, a_state(RunPhase.RUNNING))
    found = document(invoke("pipeline", "status", str(file), "--json"))
    assert found["phase"] == "killed"
    assert found["queries"][0]["lag"] == 7


def waiting(notes: Path, what: str) -> "subprocess.Popen[str]":
    """A process that holds the lock as a run would, until SIGTERM or for ever."""
    child = subprocess.Popen(
        [sys.executable, "-c", WAITING, str(notes), what], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    return child


def test_stop_waits_for_the_end(file: Path, notes: Path) -> None:
    with waiting(notes, "ends") as child:
        result = invoke("pipeline", "stop", str(file))
        assert (result.exit_code, result.stdout) == (0, "stopped pipeline orders-by-region\n")
        assert child.wait() == 0
    idle = invoke("pipeline", "stop", str(file))
    assert (idle.exit_code, idle.stderr) == (0, "pipeline orders-by-region does not run\n")


def test_stop_gives_up_after_its_timeout(file: Path, notes: Path) -> None:
    with waiting(notes, "stays") as child:
        result = invoke("pipeline", "stop", str(file), "--timeout", "0.1")
        child.kill()
    assert result.exit_code == 1
    assert f"still runs after 0.1 s, as process {child.pid}; wait longer" in result.stderr


def test_a_run_of_another_machine_is_stopped_there(
    file: Path, notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with locked(notes, "orders-by-region"):
        monkeypatch.setattr("socket.gethostname", lambda: "elsewhere")
        result = invoke("pipeline", "stop", str(file))
    assert result.exit_code == 1
    assert f"as process {os.getpid()}; stop it there" in result.stderr


def make_checkpoints(notes: Path) -> Path:
    """As if the pipeline had run."""
    (notes.parent / "totals").mkdir()
    return notes.parent


def test_reset_removes_checkpoints_if_it_is_meant(file: Path, notes: Path) -> None:
    root = make_checkpoints(notes)
    unsure = invoke("pipeline", "reset", str(file))
    assert unsure.exit_code == 2
    assert "--yes" in unsure.stderr
    assert (root / "totals").exists()
    lines = invoke("pipeline", "reset", str(file), "--yes").stdout.splitlines()
    assert lines == [
        f"totals: removed {root / 'totals'}; begins where the pipeline says",
        "dead-letters-orders: no checkpoint to remove; begins where the pipeline says",
    ]
    assert not (root / "totals").exists()


def test_reset_of_one_query_to_a_time(file: Path, notes: Path) -> None:
    root = make_checkpoints(notes)
    reset = ("pipeline", "reset", str(file), "--sink", "totals", "--yes", "--to")
    assert document(invoke(*reset, "2024-05-01T12:00:00Z", "--json")) == {
        "pipeline": "orders-by-region",
        "to": "2024-05-01T12:00:00Z",
        "queries": [{"name": "totals", "removed": str(root / "totals")}],
    }
    assert (notes / "queries" / "totals.start").read_text() == "1714564800000\n"
    wrong = invoke(*reset, "noon")
    assert wrong.exit_code == 2
    assert "--to 'noon' is not earliest, latest or a time" in wrong.stderr
    unknown = invoke("pipeline", "reset", str(file), "--sink", "total")
    assert unknown.exit_code == 2
    assert "has no sink or query total; it has totals, dead-letters-orders" in unknown.stderr


def test_a_pipeline_that_runs_is_not_reset(file: Path, notes: Path) -> None:
    root = make_checkpoints(notes)
    with locked(notes, "orders-by-region"):
        result = invoke("pipeline", "reset", str(file), "--yes")
    assert result.exit_code == 1
    assert "is already run by process" in result.stderr
    assert (root / "totals").exists()


Runner = Callable[..., RunState]


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Callable[[Runner], None]:
    """Let `run` do something else than run."""

    def use(runner: Runner) -> None:
        monkeypatch.setattr("headrace.pipelines.run.runner.run", runner)

    return use


def test_run_passes_on_what_it_is_given_and_prints_how_it_ended(
    file: Path, play: Callable[[Runner], None]
) -> None:
    given: dict[str, Any] = {}

    def runner(pipeline: Pipeline, **options: Any) -> RunState:
        given.update(options, pipeline=pipeline)
        for phase in (RunPhase.STARTING, RunPhase.RUNNING):
            options["on_progress"](a_state(phase))
        options["on_warning"]("records are gone")
        return a_state(RunPhase.FINISHED)

    play(runner)
    arguments = ("--available-now", "--master", "local[1]", "--conf", "spark.a=1", "-b", "h:1")
    result = invoke("pipeline", "run", str(file), *arguments)
    assert result.exit_code == 0
    assert (given["master"], given["available_now"]) == ("local[1]", True)
    assert given["config"] == {"spark.a": "1"}
    assert given["pipeline"].broker == {"bootstrap.servers": "h:1"}
    assert result.stderr.splitlines()[0].startswith("QUERY  BATCHES")
    assert result.stdout == ""
    found = document(invoke("pipeline", "run", str(file), "--json"))
    assert (found["phase"], found["queries"][0]["rows_out"]) == ("finished", 1200)
    assert invoke("pipeline", "run", str(file), "-q").stderr == ""


def test_run_ends_with_the_status_of_how_it_was_stopped(
    file: Path, play: Callable[[Runner], None]
) -> None:
    def interrupted(pipeline: Pipeline, *, stop: StopRequest, **options: Any) -> RunState:
        stop.requested = stop.interrupted = True
        return a_state(RunPhase.STOPPED)

    def failed(pipeline: Pipeline, **options: Any) -> RunState:
        raise PipelineFailed("pipeline orders-by-region, sink lake: a disk is full; make room")

    play(interrupted)
    assert invoke("pipeline", "run", str(file)).exit_code == INTERRUPTED
    play(failed)
    result = invoke("pipeline", "run", str(file))
    assert result.exit_code == 1
    assert result.stderr == (
        "headrace: pipeline orders-by-region, sink lake: a disk is full; make room\n"
    )


def test_lines_tell_of_phases_and_batches_but_not_of_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = io.StringIO()
    lines = ProgressLines("orders", out, shown=True)
    clock = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    for at, batches in ((100, 5), (101, 6), (104, 7), (107, 8)):
        clock[0] = at
        lines.show(replace(a_state(RunPhase.RUNNING), queries=(replace(LAKE, batches=batches),)))
    lines.show(
        replace(a_state(RunPhase.STOPPING), queries=(replace(LAKE, batches=9, active=False),))
    )
    lines.warn("records are\x1b gone")
    batch = "lake: batch 4, 1,234 rows, 410 rows/s, 3.0 s, lag 7"
    assert out.getvalue().splitlines() == [
        "pipeline orders: running",
        batch,
        batch,
        "pipeline orders: stopping after the batches that run",
        batch,
        "headrace: records are\\x1b gone",
    ]
    assert line_of(replace(LAKE, lag=None)).endswith("3.0 s")


def test_bars_have_a_line_for_each_query() -> None:
    out = io.StringIO()
    with ProgressBars("orders", out) as bars:
        bars.show(a_state(RunPhase.RUNNING))
        bars.warn("records are gone")
    text = out.getvalue()
    assert "headrace: records are gone" in text
    for words in ("lake", "410 rows/s", "lag 7", "batch 4", "3.0 s", "orders", "running"):
        assert words in text


@pytest.mark.parametrize(("ms", "text"), [(5, "5 ms"), (1500, "1.5 s"), (180_000, "3 min")])
def test_times_are_for_people(ms: int, text: str) -> None:
    assert seconds_text(ms) == text


def test_no_command_but_run_needs_spark(file: Path) -> None:
    script = (
        "import sys; sys.modules['pyspark'] = None\n"
        "from headrace.cli.main import cli\n"
        "cli.main(sys.argv[1:], prog_name='headrace')"
    )
    for command, status in (("check", 0), ("status", 0), ("stop", 0), ("run", 2)):
        done = subprocess.run(
            [sys.executable, "-c", script, "pipeline", command, str(file)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == status, done.stderr
    assert "pip install 'headrace[spark]'" in done.stderr
