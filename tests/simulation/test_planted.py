"""Bugs planted on purpose are found within a few seeds, and nothing is found without them."""

import pytest

from headrace.testing.simulation.planted_bugs import PLANTED, planted
from headrace.testing.simulation.run import RunPlan, SimulationRun

SEEDS_MAX = 10
# The runs in which bugs are found, without the bugs. `make sim` has other seeds.
CONTROLS = {
    (repr(bug.plan), bug.seed): pytest.param(bug.plan, bug.seed, id=f"{name}-{bug.seed}")
    for name, bug in sorted(PLANTED.items())
}


@pytest.mark.parametrize(("plan", "seed"), CONTROLS.values())
def test_plan_of_a_bug_finds_nothing_without_it(plan: RunPlan, seed: int) -> None:
    assert SimulationRun(seed, plan).outcome().problem == ""


@pytest.mark.parametrize("name", sorted(PLANTED))
def test_planted_bug_is_caught(name: str) -> None:
    plan, first = PLANTED[name].plan, PLANTED[name].seed
    for seed in sorted(range(SEEDS_MAX), key=lambda seed: seed != first):
        with planted(name):
            problem = SimulationRun(seed, plan).outcome().problem
        # What else a bug ends in, an operating error say, is not found by a check.
        if problem.startswith("Violation: "):
            return
    pytest.fail(f"{name} was not caught by {SEEDS_MAX} seeds")
