"""One broker under librdkafka: throughput, requests, latency, start and memory.

    python -m bench.broker [--quick]

Each figure is shown with its limit on this machine, measured in the same run, or with its target.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from confluent_kafka import Producer

from bench.load import QUIET, create_topic
from bench.machine import copy_limit_mb_per_s, read_limit_mb_per_s, warm_page_cache
from bench.process import BrokerProcess, run_load
from bench.report import Report

GB = 1_000_000_000
BATCH_BYTES = 1_000_000
# Larger messages are sent from the application's memory without a copy.
PRODUCER = {"acks": "1", "linger.ms": 5, "batch.size": BATCH_BYTES, "message.copy.max.bytes": 4_000}


def best_of(rounds: int, measure: Callable[[], float]) -> float:
    """The median of a few rounds: the machine is shared, and one round can be unlucky."""
    return median(measure() for _ in range(rounds))


class Bench:
    """The measurements, in a directory on the disk to be measured."""

    def __init__(self, directory: Path, report: Report, scale: float, rounds: int) -> None:
        self._directory = directory
        self._report = report
        self._scale = scale
        self._rounds = rounds

    def throughput(self, size: int, total: int) -> None:
        total = int(total * self._scale)
        produced, consumed, per_core, copied, read = [], [], [], [], []
        for _ in range(self._rounds):
            warm_page_cache(self._directory, 2 * total)
            copied.append(copy_limit_mb_per_s(self._directory, total, BATCH_BYTES))
            warm_page_cache(self._directory, 2 * total)
            with BrokerProcess(self._directory) as broker:
                create_topic(broker.address, "bench")
                count, cpu_seconds = total // size, broker.cpu_seconds
                done = run_load(
                    "produce", broker.address, topic="bench", size=size, count=count, **PRODUCER
                )
                produced.append(done)
                per_core.append(done["bytes"] / (broker.cpu_seconds - cpu_seconds) / 1e6)
                consumed.append(run_load("consume", broker.address, topic="bench", count=count))
            read.append(read_limit_mb_per_s(self._directory, total))
        name = f"{size} B" if size < 1000 else f"{size // 1000} KB"
        target = 0.6 if size >= 10_000 else None
        limit = median(copied)
        self._speed(f"produce {name}", produced, limit, target)
        # The load needs more than the other core: this is the broker's throughput without it.
        mb = median(per_core)
        text = f"{mb:,.0f} MB for each second of a core"
        self._report.ratio(f"produce {name}, by the broker's CPU", text, mb, limit, target)
        self._speed(f"consume {name}", consumed, median(read), None)

    def _speed(
        self, name: str, rounds: list[dict[str, float]], limit: float, target: float | None
    ) -> None:
        mb = median(entry["bytes"] / entry["seconds"] / 1e6 for entry in rounds)
        rate = median(entry["messages"] / entry["seconds"] for entry in rounds)
        self._report.ratio(name, f"{mb:,.0f} MB/s, {rate:,.0f} msg/s", mb, limit, target)

    def single_message_requests(self) -> None:
        count = int(100_000 * self._scale)
        with BrokerProcess(self._directory) as broker:
            create_topic(broker.address, "bench")
            settings = {"acks": "1", "linger.ms": 0, "batch.num.messages": 1}

            def measure() -> float:
                done = run_load(
                    "produce", broker.address, topic="bench", size=100, count=count, **settings
                )
                return done["messages"] / done["seconds"]

            rate = best_of(self._rounds, measure)
        self._report.at_least("requests of one message", rate, 15_000, "requests/s")

    def latency(self) -> None:
        with BrokerProcess(self._directory) as broker:
            create_topic(broker.address, "bench")
            for size, rate in ((100, 1_000), (1_000, 1_000), (1_000, 5_000)):
                found = run_load(
                    "latency",
                    broker.address,
                    topic="bench",
                    size=size,
                    rate=rate,
                    seconds=10 * self._scale,
                    acks="all",
                )
                text = ", ".join(f"{name} {value:.2f} ms" for name, value in found.items())
                self._report.fact(f"latency, {size} B at {rate:,}/s, acks=all", text)

    def start(self) -> None:
        def measure() -> float:
            with BrokerProcess(self._directory) as broker:
                producer = Producer({"bootstrap.servers": broker.address, "linger.ms": 0} | QUIET)
                # A first message creates its topic, is written and acknowledged.
                producer.produce(
                    "first", b"x", on_delivery=lambda error, _: acknowledged.append(error)
                )
                acknowledged: list[object] = []
                while not acknowledged:
                    producer.poll(0.001)
                assert acknowledged == [None], acknowledged
                return time.perf_counter() - broker.started

        self._report.at_most("start to first acknowledgement", best_of(5, measure), 0.7, "s")

    def memory(self) -> None:
        with BrokerProcess(self._directory) as broker:
            create_topic(broker.address, "bench")
            idle = broker.resident_mb
            total = int(GB * self._scale)
            run_load(
                "produce",
                broker.address,
                topic="bench",
                size=1_000,
                count=total // 1_000,
                **PRODUCER,
            )
            after = broker.resident_mb
        self._report.at_most("resident memory, idle", idle, 70, "MB")
        self._report.at_most("its growth after 1 GB produced", after - idle, 30, "MB")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the load, one round")
    parser.add_argument("--directory", type=Path, help="where to put data; default: the temp dir")
    options = parser.parse_args()
    report = Report("One broker, librdkafka as the load")
    with tempfile.TemporaryDirectory(dir=options.directory, prefix="headrace-bench-") as directory:
        scale, rounds = (0.1, 1) if options.quick else (1.0, 5)
        bench = Bench(Path(directory), report, scale, rounds)
        bench.start()
        bench.memory()
        bench.single_message_requests()
        bench.latency()
        bench.throughput(100, GB // 4)
        bench.throughput(1_000, GB // 2)
        bench.throughput(10_000, GB // 2)
        bench.throughput(100_000, GB // 2)
    return report.close()


if __name__ == "__main__":
    sys.exit(main())
