"""`python -m headrace.testing.simulation`: run seeds, or replay one; behind `make sim`."""

import argparse
import logging
import sys
import time

from headrace.storage.files import Files
from headrace.testing.simulation.hosts import current_host
from headrace.testing.simulation.planted import PLANTED, planted
from headrace.testing.simulation.runs import Outcome, Run


def simulate(seed: int, bug: str = "", *, trace: bool = False) -> Outcome:
    """Run one seed, perhaps with a bug planted."""
    plan = PLANTED[bug].plan if bug else None
    with planted(bug):
        return Run(seed, plan, trace=trace).outcome()


class _Where(logging.Filter):
    """Adds the virtual time and the host to every line of a log."""

    def filter(self, record: logging.LogRecord) -> bool:
        host = current_host()
        record.host, record.virtual_s = host.name, host.loop.now
        return True


def _show_logs() -> None:
    handler = logging.StreamHandler(sys.stdout)
    handler.addFilter(_Where())
    handler.setFormatter(
        logging.Formatter("%(virtual_s)9.3f %(host)s %(levelname)s %(name)s: %(message)s")
    )
    logging.basicConfig(level=logging.INFO, handlers=[handler])


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(description="Run a cluster under simulated faults.")
    parser.add_argument("--seed", type=int, help="replay one seed")
    parser.add_argument("--seeds", type=int, default=20, help="run so many seeds")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--bug", default="", choices=("", *PLANTED), help="plant a bug")
    parser.add_argument("--trace", help="write every event of the run to this file")
    parser.add_argument("--keep-going", action="store_true", help="do not stop at a failure")
    parser.add_argument("--logs", action="store_true", help="show what brokers and clients log")
    options = parser.parse_args()
    if options.logs:
        _show_logs()
    else:
        logging.disable()
    single = options.seed is not None
    first = options.seed if single else options.first
    seeds = range(first, first + (1 if single else options.seeds))
    failed, virtual_s, events, acknowledged = 0, 0.0, 0, 0
    began = time.perf_counter()
    for seed in seeds:
        outcome = simulate(seed, options.bug, trace=options.trace is not None)
        virtual_s, events = virtual_s + outcome.virtual_s, events + outcome.events
        acknowledged += outcome.acknowledged
        _say(
            f"seed {seed}: {outcome.problem or 'ok'} ({outcome.virtual_s:.0f} s simulated,"
            f" {outcome.faults} faults, {outcome.acknowledged} acknowledged,"
            f" {outcome.failed} failed, trace {outcome.trace_hash})"
        )
        for line in outcome.stopped:
            _say(f"  stopped by itself at {line}")
        if options.trace:
            Files().write_atomically(options.trace, "\n".join(outcome.trace).encode(), sync=False)
        if outcome.problem:
            failed += 1
            bug = f' ARGS="--bug {options.bug}"' if options.bug else ""
            _say(f"replay it with: make sim SEED={seed}{bug}")
            if not options.keep_going:
                break
    took = time.perf_counter() - began
    _say(
        f"{len(seeds)} seeds, {failed} failed; {acknowledged} records acknowledged; {took:.1f} s"
        f" for {virtual_s:.0f} s simulated, {events / took:.0f} events/s"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
