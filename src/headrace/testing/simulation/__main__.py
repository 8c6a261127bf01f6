"""`python -m headrace.testing.simulation`: run seeds, or replay one; behind `make sim`."""

import argparse
import logging
import os
import sys
import time

from headrace.storage.files import Files
from headrace.testing.simulation.hosts import current_host
from headrace.testing.simulation.planted_bugs import PLANTED
from headrace.testing.simulation.run import RunOutcome
from headrace.testing.simulation.seeds import outcomes


class _LogContext(logging.Filter):
    """Adds the virtual time and the host to every line of a log."""

    def filter(self, record: logging.LogRecord) -> bool:
        host = current_host()
        record.host, record.virtual_s = host.name, host.loop.now
        return True


def _show_logs() -> None:
    handler = logging.StreamHandler(sys.stdout)
    handler.addFilter(_LogContext())
    handler.setFormatter(
        logging.Formatter("%(virtual_s)9.3f %(host)s %(levelname)s %(name)s: %(message)s")
    )
    logging.basicConfig(level=logging.INFO, handlers=[handler])


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Run a cluster under simulated faults.")
    parser.add_argument("--seed", type=int, help="replay one seed")
    parser.add_argument("--seeds", type=int, default=20, help="run so many seeds")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--bug", default="", choices=("", *PLANTED), help="plant a bug")
    parser.add_argument(
        "--damage", action="store_true", help="disks lose and damage files, are full, slow, fail"
    )
    parser.add_argument("--trace", help="write every event of the run to this file")
    parser.add_argument("--keep-going", action="store_true", help="do not stop at a failure")
    parser.add_argument("--logs", action="store_true", help="show what brokers and clients log")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, help="seeds at a time (default: the cores)"
    )
    return parser


def main() -> int:
    options = _parser().parse_args()
    if options.logs:
        _show_logs()
    else:
        logging.disable()
    single = options.seed is not None
    first = options.seed if single else options.first
    seeds = range(first, first + (1 if single else options.seeds))
    done, failed, virtual_s, cpu_s, events, acknowledged = 0, 0, 0.0, 0.0, 0, 0
    began = time.perf_counter()
    trace, jobs = options.trace is not None, 1 if options.logs else options.jobs
    with outcomes(seeds, bug=options.bug, damage=options.damage, trace=trace, jobs=jobs) as found:
        for outcome in found:
            done, cpu_s = done + 1, cpu_s + outcome.cpu_s
            virtual_s, events = virtual_s + outcome.virtual_s, events + outcome.events
            acknowledged += outcome.acknowledged
            _print_outcome(outcome, options)
            if outcome.problem:
                failed += 1
                if not options.keep_going:
                    break
    took = time.perf_counter() - began
    _say(
        f"{done} seeds, {failed} failed; {acknowledged} records acknowledged; {took:.1f} s"
        f" for {virtual_s:.0f} s simulated; {done / took * 60:.1f} seeds/minute,"
        f" {cpu_s / done:.2f} s of CPU per seed, {events / cpu_s:.0f} events/s of CPU"
    )
    return 1 if failed else 0


def _print_outcome(outcome: RunOutcome, options: argparse.Namespace) -> None:
    """Print the result of a run, and after a failure the command that repeats it."""
    _say(
        f"seed {outcome.seed}: {outcome.problem or 'ok'} ({outcome.virtual_s:.0f} s simulated,"
        f" {outcome.faults} faults, {outcome.acknowledged} acknowledged,"
        f" {outcome.failed} failed, trace {outcome.trace_hash})"
    )
    for line in outcome.stopped:
        _say(f"  stopped by itself at {line}")
    for line in outcome.damage:
        _say(f"  damaged at {line}")
    if outcome.lost:
        _say(f"  {outcome.lost} committed batches were lost by every disk that held them")
    if options.trace:
        Files().write_atomically(options.trace, "\n".join(outcome.trace).encode(), sync=False)
    if outcome.problem:
        arguments = "--damage" if options.damage else f"--bug {options.bug}" if options.bug else ""
        arguments = f' ARGS="{arguments}"' if arguments else ""
        _say(f"replay it with: make sim SEED={outcome.seed}{arguments}")


if __name__ == "__main__":
    sys.exit(main())
