"""The start time of a test's broker: `python -m bench.testing`."""

import sys
import time
from statistics import median

from bench.report import Report
from headrace.testing.broker import Broker

ROUNDS = 7
TARGET_S = 0.5


def ready_s(in_process: bool) -> float:
    """Seconds until a broker is ready, with everything imported in this process."""
    broker = Broker(in_process=in_process)
    begun = time.perf_counter()
    with broker:
        return time.perf_counter() - begun


def main() -> int:
    """Print the figures; the exit status is 0 if the target is met."""
    report = Report("headrace.testing")
    for in_process, name in ((False, "its own process"), (True, "in the test's process")):
        seconds = median(ready_s(in_process) for _ in range(ROUNDS))
        report.at_most(f"pytest fixture broker ready, {name}", seconds, TARGET_S, "s")
    return report.close()


if __name__ == "__main__":
    sys.exit(main())
