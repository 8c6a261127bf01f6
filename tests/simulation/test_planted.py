"""Bugs planted on purpose are found within a few seeds."""

import pytest

from headrace.testing.simulation.planted_bugs import PLANTED, planted
from headrace.testing.simulation.run import Run

SEEDS_MAX = 10


@pytest.mark.parametrize("name", sorted(PLANTED))
def test_planted_bug_is_caught(name: str) -> None:
    plan = PLANTED[name].plan
    for seed in range(SEEDS_MAX):
        with planted(name):
            problem = Run(seed, plan).outcome().problem
        if problem:
            assert problem.startswith("Violation: "), problem
            return
    pytest.fail(f"{name} was not caught by {SEEDS_MAX} seeds")
