"""A bounded number of simulated clusters under faults; `make sim SEEDS=n` runs more."""

import gc
import logging
import os
import subprocess
import sys

import pytest

from headrace.testing.simulation.run import RunPlan, SimulationRun

# Copiers and tellers of transactions are among them.
SEEDS = (0, 1, 2, 4)
# Of the tens of thousands of a run.
OBJECTS_MAX = 100
SHORT = RunPlan(seconds=0.5, producers=1)
# With damage to disks: those that take the least time. Some have transactions, some lose power.
DAMAGE_SEEDS = (0, 2, 3)
REPEATED = RunPlan(seconds=4, tellers=1, copiers=1)


@pytest.mark.parametrize("seed", SEEDS)
def test_cluster_keeps_its_promises_under_faults(seed: int) -> None:
    outcome = SimulationRun(seed).outcome()
    assert outcome.problem == "", f"replay it with: make sim SEED={seed}"
    assert outcome.acknowledged > 0


def test_runs_leave_nothing_in_memory() -> None:
    counts = []
    logging.disable()  # Or pytest keeps every record of a log with all it refers to.
    try:
        for _ in range(3):
            SimulationRun(2, SHORT).outcome()
            gc.collect()
            counts.append(len(gc.get_objects()))
    finally:
        logging.disable(logging.NOTSET)
    assert counts[2] - counts[1] < OBJECTS_MAX


@pytest.mark.parametrize("seed", DAMAGE_SEEDS)
def test_cluster_loses_nothing_that_a_disk_still_has(seed: int) -> None:
    outcome = SimulationRun(seed, RunPlan.of_damage(seed)).outcome()
    assert outcome.problem == "", f"replay it with: make sim SEED={seed} ARGS=--damage"
    assert outcome.acknowledged > 0


def test_same_seed_is_the_same_run_in_another_process() -> None:
    """Strings hash otherwise there, and objects lie elsewhere."""
    here = SimulationRun(1, REPEATED).outcome().trace_hash
    command = "from headrace.testing.simulation.run import RunPlan, SimulationRun;"
    command += f" print(SimulationRun(1, {REPEATED!r}).outcome().trace_hash)"
    ballast = "ballast = [bytearray(n % 500) for n in range(20_000)]; del ballast[::3]; "
    there = subprocess.run(
        [sys.executable, "-c", ballast + command],
        env={**os.environ, "PYTHONHASHSEED": "4242"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert there.stdout.strip() == here
