"""Runs of many seeds, several at a time in processes of their own."""

import gc
import logging
import multiprocessing
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from headrace.testing.simulation.planted_bugs import PLANTED, planted
from headrace.testing.simulation.run import RunOutcome, RunPlan, SimulationRun

# The number of seeds after which a worker is replaced, to free whatever a run leaves behind.
_SEEDS_PER_WORKER = 100


def simulate(seed: int, bug: str = "", *, damage: bool = False, trace: bool = False) -> RunOutcome:
    """Run one seed, optionally with damage to disks, or with a planted bug."""
    plan = PLANTED[bug].plan if bug else RunPlan.of_damage(seed) if damage else None
    with planted(bug):
        outcome = SimulationRun(seed, plan, trace=trace).outcome()
    # The run was referenced while its garbage was collected, and is garbage only now.
    gc.collect()
    return outcome


def _begin_worker() -> None:
    """Disable logging, and exclude present objects from garbage collection after each run."""
    logging.disable()
    gc.freeze()


@contextmanager
def outcomes(
    seeds: Sequence[int], *, bug: str, damage: bool, trace: bool, jobs: int
) -> Iterator[Iterator[RunOutcome]]:
    """The outcomes of seeds in their order; `jobs` of them run at a time, a single one here."""
    work = partial(simulate, bug=bug, damage=damage, trace=trace)
    if min(jobs, len(seeds)) <= 1:
        gc.freeze()
        try:
            yield map(work, seeds)
        finally:
            gc.unfreeze()
        return
    # Not forked from here: a pool has threads of its own.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    with context.Pool(jobs, _begin_worker, maxtasksperchild=_SEEDS_PER_WORKER) as pool:
        yield pool.imap(work, seeds)
