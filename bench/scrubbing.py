"""Scrubbing: its effect on producers while a broker reads its closed segments again.

    python -m bench.scrubbing [--quick]

A producer writes at a fixed rate, and its latency is measured at rest and while the broker scrubs
another topic at the default rate, in turns, so that other load of the machine affects both.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bench.compaction import RATE, Watch
from bench.load import create_topic
from bench.process import BrokerProcess, run_load
from bench.report import Report
from headrace import Admin
from headrace.client.admin.cluster import DirectoryHealth

TOPIC = "archive"
RECORDS = 100_000
VALUE_BYTES = 1_000
SEGMENT_BYTES = 1 << 20
CYCLES = 6
PHASE_SECONDS = 10.0
INTERVAL = "log.scrub.interval.ms"
# A broker without segments to scrub checks again after ten seconds.
TIMEOUT_SECONDS = 60.0

Window = tuple[float, float]


def health(admin: Admin) -> DirectoryHealth:
    [broker] = admin.describe_health().values()
    [directory] = broker.health.values()
    return directory


def wait_for_scrubbing(admin: Admin) -> None:
    """Return when the broker has scrubbed another segment."""
    deadline, known = time.time() + TIMEOUT_SECONDS, health(admin)
    while health(admin) == known:
        if time.time() > deadline:
            raise SystemExit("the broker has not begun to scrub in time")
        time.sleep(0.1)


def pause(seconds: float) -> Window:
    """Pause, and return the start and end times."""
    began = time.time()
    time.sleep(seconds)
    return began, time.time()


def p99_ms(watch: Watch, windows: Sequence[Window]) -> float:
    """The 99th percentile latency of the messages that were due in any of these windows."""
    waits = sorted(
        wait for due, wait in watch.waits if any(began <= due <= end for began, end in windows)
    )
    return waits[int(len(waits) * 0.99)]


def measure(report: Report, directory: Path, cycles: int) -> None:
    resting: list[Window] = []
    scrubbing: list[Window] = []
    cpu_seconds = 0.0
    with BrokerProcess(directory, log_scrub_interval_ms="-1") as broker:
        create_topic(broker.address, "other")
        create_topic(broker.address, TOPIC, 1, **{"segment.bytes": str(SEGMENT_BYTES)})
        run_load("produce", broker.address, topic=TOPIC, size=VALUE_BYTES, count=RECORDS)
        with Admin(bootstrap_servers=broker.address) as admin, Watch(broker) as watch:
            pause(3)  # The first messages are sent while the broker warms up.
            for _ in range(cycles):
                resting.append(pause(PHASE_SECONDS))
                admin.alter_configs({INTERVAL: 0}, broker=1)
                wait_for_scrubbing(admin)
                cpu_began = broker.cpu_seconds
                scrubbing.append(pause(PHASE_SECONDS))
                cpu_seconds += broker.cpu_seconds - cpu_began
                admin.alter_configs({INTERVAL: -1}, broker=1)
                pause(2)  # The segment being read is read to its end.
            closed_mb = health(admin).closed_bytes / 1e6
    at_rest, meanwhile = p99_ms(watch, resting), p99_ms(watch, scrubbing)
    share = cpu_seconds / (cycles * PHASE_SECONDS)
    name = f"produce p99 at {RATE:,}/s"
    report.fact("scrubbed", f"{closed_mb:,.0f} MB of closed segments, one pass after the other")
    report.fact("broker while scrubbing", f"{share:.1%} of a core")
    report.fact(name, f"{at_rest:.2f} ms at rest, {meanwhile:.2f} ms while scrubbing")
    report.at_most("produce p99 while scrubbing", meanwhile / at_rest, 2, "times that at rest")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two turns instead of six")
    parser.add_argument("--directory", type=Path, help="where to put data; default: the temp dir")
    options = parser.parse_args()
    report = Report("Scrubbing in a running broker")
    with tempfile.TemporaryDirectory(dir=options.directory, prefix="headrace-bench-") as directory:
        measure(report, Path(directory), 2 if options.quick else CYCLES)
    return report.close()


if __name__ == "__main__":
    sys.exit(main())
