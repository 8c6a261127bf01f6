import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.errors import HeadraceError
from headrace.pipelines.run.progress import BatchProgress, QueryProgress
from headrace.pipelines.run.run_state import (
    AlreadyRunning,
    RunPhase,
    holder,
    locked,
    new_state,
    read_state,
    to_document,
    write_state,
)
from headrace.pipelines.spec.part_graph import PartGraph, graph_of
from tests.unit.pipelines.run.pipelines import orders_pipeline

HOLDING = """
import sys
from pathlib import Path
from headrace.pipelines.run.run_state import locked, new_state, write_state
with locked(Path(sys.argv[1]), "orders"):
    write_state(Path(sys.argv[1]), new_state("orders", master="local[1]", available_now=False))
    print("ready", flush=True)
    sys.stdin.read()
"""


def test_a_state_reads_as_it_was_written(tmp_path: Path) -> None:
    batch = BatchProgress(2, "2026-01-31T10:00:05.000Z", 7, None, 120)
    queries = (
        QueryProgress("lake", batches=3, rows_in=7, rows_out=None, lag=2, recent=(batch,)),
        QueryProgress("dead-letters-orders", reasons={"not JSON": 3}),
    )
    graph = graph_of(orders_pipeline(tmp_path))
    state = replace(
        new_state("orders", master="local[2]", available_now=True, graph=graph),
        phase=RunPhase.FAILED,
        error="no disk; buy one",
        queries=queries,
    )
    write_state(tmp_path, state)
    found = read_state(tmp_path)
    assert found is not None
    assert replace(found, updated=state.updated) == state
    assert found.pid == os.getpid()


def test_a_state_of_an_earlier_version_has_no_graph_and_no_batches(tmp_path: Path) -> None:
    state = replace(
        new_state("orders", master="local", available_now=True), phase=RunPhase.FINISHED
    )
    document = to_document(replace(state, queries=(QueryProgress("lake"),)))
    del document["graph"]
    for name in ("recent", "reasons", "reported"):
        del document["queries"][0][name]
    (tmp_path / "state.json").write_text(json.dumps(document))
    found = read_state(tmp_path)
    assert found is not None
    assert (found.graph, found.queries) == (PartGraph(), (QueryProgress("lake"),))


def test_there_is_no_state_where_nothing_ran(tmp_path: Path) -> None:
    assert read_state(tmp_path / "nothing") is None
    assert holder(tmp_path / "nothing") is None


@pytest.mark.parametrize("text", ["", "[]", '{"phase": "odd"}', '{"queries": 3}'])
def test_a_damaged_state_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "state.json").write_text(text)
    with pytest.raises(HeadraceError, match=r"state\.json is no state of a pipeline; remove"):
        read_state(tmp_path)


def test_only_one_can_run_a_pipeline(tmp_path: Path) -> None:
    with locked(tmp_path, "orders"):
        with pytest.raises(AlreadyRunning) as caught, locked(tmp_path, "orders"):
            pass
        text = str(caught.value)
        assert text.startswith(f"pipeline orders is already run by process {os.getpid()} of ")
        assert "headrace pipeline stop" in text
    with locked(tmp_path, "orders"):
        pass


def test_two_pipelines_in_one_directory_are_told_apart(tmp_path: Path) -> None:
    with locked(tmp_path, "orders"), pytest.raises(AlreadyRunning) as caught:
        with locked(tmp_path, "clicks"):
            pass
    assert "for pipeline orders; stop it first" in str(caught.value)
    assert "give each its own `checkpoint`" in str(caught.value)


def test_a_killed_run_leaves_no_lock_and_is_called_killed(tmp_path: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", HOLDING, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        who = holder(tmp_path)
        assert who is not None
        assert (who.pid, who.pipeline) == (child.pid, "orders")
        running = read_state(tmp_path)
        assert running is not None
        assert running.phase is RunPhase.STARTING
        child.kill()
    assert holder(tmp_path) is None
    killed = read_state(tmp_path)
    assert killed is not None
    assert killed.phase is RunPhase.KILLED
    assert killed.phase.over
    with locked(tmp_path, "orders"):
        pass


def test_a_run_that_ended_stays_what_it_was(tmp_path: Path) -> None:
    state = new_state("orders", master="local[1]", available_now=False)
    write_state(tmp_path, replace(state, phase=RunPhase.FINISHED))
    found = read_state(tmp_path)
    assert found is not None
    assert found.phase is RunPhase.FINISHED


def test_no_other_file_is_left_beside_the_state(tmp_path: Path) -> None:
    write_state(tmp_path, new_state("orders", master="local[1]", available_now=False))
    assert [path.name for path in tmp_path.iterdir()] == ["state.json"]
    assert json.loads((tmp_path / "state.json").read_text())["pipeline"] == "orders"
