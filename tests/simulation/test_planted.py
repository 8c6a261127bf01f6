"""Bugs planted on purpose are found within a few seeds, and nothing is found without them."""

import pytest

from headrace.testing.simulation.planted_bugs import PLANTED, planted
from headrace.testing.simulation.run import RunPlan, SimulationRun

SEEDS_MAX = 10
# Several bugs share a plan. Runs with damage are short.
PLANS = {repr(planted.plan): (name, planted.plan) for name, planted in sorted(PLANTED.items())}
CONTROLS = [
    pytest.param(plan, seed, id=f"{name}-{seed}")
    for name, plan in PLANS.values()
    for seed in range(3 if plan.damage else 1)
]


@pytest.mark.parametrize(("plan", "seed"), CONTROLS)
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
