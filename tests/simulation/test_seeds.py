"""A bounded number of simulated clusters under faults; `make sim SEEDS=n` runs more."""

import os
import subprocess
import sys

import pytest

from headrace.testing.simulation.run import Plan, Run

# Copiers and tellers of transactions are among them.
SEEDS = (0, 1, 2, 4)
REPEATED = Plan(seconds=4, tellers=1, copiers=1)


@pytest.mark.parametrize("seed", SEEDS)
def test_cluster_keeps_its_promises_under_faults(seed: int) -> None:
    outcome = Run(seed).outcome()
    assert outcome.problem == "", f"replay it with: make sim SEED={seed}"
    assert outcome.acknowledged > 0


def test_same_seed_is_the_same_run_in_another_process() -> None:
    """Strings hash otherwise there, and objects lie elsewhere."""
    here = Run(1, REPEATED).outcome().trace_hash
    command = "from headrace.testing.simulation.run import Plan, Run;"
    command += f" print(Run(1, {REPEATED!r}).outcome().trace_hash)"
    ballast = "ballast = [bytearray(n % 500) for n in range(20_000)]; del ballast[::3]; "
    there = subprocess.run(
        [sys.executable, "-c", ballast + command],
        env={**os.environ, "PYTHONHASHSEED": "4242"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert there.stdout.strip() == here
