"""headrace's client beside confluent-kafka, kafka-python and aiokafka: one broker, topic, process.

    python -m bench.clients [--quick] [--partitions N] [--only rows,columns,confluent]

In each round every client works on the same broker, one after the other, so that other load of the
machine affects them all; the figures are medians over the rounds. Slower clients are given fewer
messages, so that each works for about as long; messages per second are compared.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from bench.client_jobs import BUFFER_BYTES
from bench.load import create_topic
from bench.load import produce as fill
from bench.machine import copy_limit_mb_per_s, read_limit_mb_per_s, warm_page_cache
from bench.process import BrokerProcess
from bench.report import Report

TOPIC = "bench"
SIZES = (100, 1_000)
WAYS = ("produce", "consume")
MB = 1_000_000
JOB_S_MAX = 120.0
BATCH_BYTES = 1_000_000

NAMES = {
    "confluent": "confluent-kafka",
    "kafka_python": "kafka-python",
    "aiokafka": "aiokafka",
    "rows": "headrace rows",
    "aio": "headrace rows, asyncio",
    "columns": "headrace columns",
}

MODULES = {
    f"{client}_{way}": (module, way)
    for client, module in (
        ("confluent", "confluent"),
        ("kafka_python", "kafka_python"),
        ("aiokafka", "aio_kafka"),
    )
    for way in WAYS
}

# Thousands of messages: about a second of work for each client. The topic of the producers is
# filled up to the count of the fastest consumer.
THOUSANDS = {
    ("produce", 100): {"confluent": 1_000, "kafka_python": 50, "aiokafka": 200, "rows": 600}
    | {"aio": 600, "columns": 4_000},
    ("consume", 100): {"confluent": 1_200, "kafka_python": 150, "aiokafka": 600, "rows": 2_000}
    | {"aio": 2_000, "columns": 5_000},
    ("produce", 1_000): {"confluent": 500, "kafka_python": 30, "aiokafka": 120, "rows": 400}
    | {"aio": 400, "columns": 1_000},
    ("consume", 1_000): {"confluent": 800, "kafka_python": 80, "aiokafka": 250, "rows": 1_000}
    | {"aio": 1_000, "columns": 1_500},
}


class Target(NamedTuple):
    """At least `times` as many messages a second as the other client; None: shown only."""

    ours: str
    peer: str
    times: float | None
    ways: tuple[str, ...] = WAYS


TARGETS = (
    Target("rows", "aiokafka", 3),
    Target("rows", "kafka_python", 10),
    Target("rows", "confluent", 1, ("consume",)),
    Target("rows", "confluent", None, ("produce",)),
    Target("aio", "aiokafka", None),
    Target("columns", "confluent", 5),
)


def run_job(job: str, broker: BrokerProcess, **arguments: Any) -> dict[str, float]:
    """Run a job of a module of `bench.client_jobs` in its own process."""
    module, name = MODULES.get(job, ("ours", job))
    command = [sys.executable, "-m", f"bench.client_jobs.{module}", name, broker.address]
    output = subprocess.run(
        [*command, json.dumps(arguments)], stdout=subprocess.PIPE, check=True, timeout=JOB_S_MAX
    ).stdout
    measured: dict[str, float] = json.loads(output)
    return measured


class Bench:
    """The rounds, and their results: messages a second by direction, size and client."""

    def __init__(
        self, directory: Path, report: Report, *, scale: float, rounds: int, partitions: int
    ) -> None:
        self._directory = directory
        self._report = report
        self._scale = scale
        self._rounds = rounds
        self._partitions = partitions
        self._rates: dict[tuple[str, int, str], list[float]] = {}
        # CPU seconds per message in the client, of all its threads together: less affected by other
        # load of the machine.
        self._costs: dict[tuple[str, int, str], list[float]] = {}
        self._limits: dict[str, list[float]] = {way: [] for way in WAYS}

    def measure(self, clients: list[str]) -> None:
        for number in range(self._rounds):
            # The first client on a fresh broker changes with every round.
            turn = number % len(clients)
            order = [*clients[turn:], *clients[:turn]]
            self._limit()
            for size in SIZES:
                warm_page_cache(self._directory, int(2_500 * MB * self._scale))
                with BrokerProcess(self._directory) as broker:
                    create_topic(broker.address, TOPIC, self._partitions)
                    self._round(broker, size, order)

    def _limit(self) -> None:
        """Measure the machine's limit without Kafka; at 1 KB a message a hard limit for columns."""
        total = int(500 * MB * max(self._scale, 0.2))
        warm_page_cache(self._directory, 2 * total)
        self._limits["produce"].append(copy_limit_mb_per_s(self._directory, total, BATCH_BYTES))
        self._limits["consume"].append(read_limit_mb_per_s(self._directory, total))

    def _round(self, broker: BrokerProcess, size: int, order: list[str]) -> None:
        written = 0
        for way in WAYS:
            if way == "consume":
                wanted = max(self._count(way, size, client) for client in order)
                fill(broker.address, topic=TOPIC, size=size, count=max(0, wanted - written))
            for client in order:
                count = self._count(way, size, client)
                arguments: dict[str, Any] = {"topic": TOPIC, "size": size, "count": count}
                if way == "consume":
                    arguments["partitions"] = self._partitions
                done = run_job(f"{client}_{way}", broker, **arguments)
                # Equal work: the job counts the messages it has checked. Columns come by the batch,
                # so the last one may exceed the requested count.
                if done["messages"] < count:
                    raise SystemExit(f"{client} {way}: {done['messages']} of {count} messages")
                written += count if way == "produce" else 0
                rate = done["messages"] / done["seconds"]
                self._rates.setdefault((way, size, client), []).append(rate)
                cost = done["cpu_seconds"] / done["messages"]
                self._costs.setdefault((way, size, client), []).append(cost)

    def _count(self, way: str, size: int, client: str) -> int:
        return int(THOUSANDS[way, size][client] * 1_000 * self._scale)

    def tell(self) -> None:
        """Report every client's figures, then each of headrace's beside each of the others."""
        for size in SIZES:
            for way in WAYS:
                for client, name in NAMES.items():
                    if rounds := self._rates.get((way, size, client)):
                        rate = median(rounds)
                        text = f"{rate:,.0f} msg/s, {rate * size / MB:,.0f} MB/s"
                        if len(rounds) > 1:
                            text += f" ({min(rounds):,.0f} to {max(rounds):,.0f})"
                        cost = median(self._costs[way, size, client])
                        text += f", {cost * 1e6:.2f} µs of a core each"
                        self._report.fact(f"{way} {_name(size)}, {name}", text)
        for target in TARGETS:
            for size in SIZES:
                for way in target.ways:
                    self._compare(target, way, size)

    def _compare(self, target: Target, way: str, size: int) -> None:
        ours = self._rates.get((way, size, target.ours))
        peers = self._rates.get((way, size, target.peer))
        if not ours or not peers:
            return
        limit_mb, rate, peer = median(self._limits[way]), median(ours), median(peers)
        note = ""
        if target.times is not None and peer * size / MB * target.times > limit_mb:
            # Shown beside the target, not instead of it: the machine's limit may be below the
            # target.
            path = "loopback to file with CRC" if way == "produce" else "file to loopback"
            most = limit_mb * MB / size / peer
            note = f"; out of reach here: {path} carries {limit_mb:,.0f} MB/s, {most:.1f} times"
        name = f"{way} {_name(size)}, {NAMES[target.ours]}"
        self._report.times(name, rate / peer, NAMES[target.peer], target.times, note)

    def memory(self) -> None:
        """Measure the memory growth of a producer whose broker is frozen."""
        with BrokerProcess(self._directory) as broker:
            create_topic(broker.address, TOPIC)
            for size in (*SIZES, 10_000):
                done = run_job("memory", broker, topic=TOPIC, size=size, pid=broker.pid, refusals=5)
                held = f"{done['messages']:,.0f} messages of {size:,} B held"
                self._report.at_most(
                    f"memory of a producer whose broker stands still, {held}",
                    done["growth"] / BUFFER_BYTES,
                    1.5,
                    "times buffer_memory",
                )


def _name(size: int) -> str:
    return f"{size} B" if size < 1000 else f"{size // 1000} KB"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a fifth of the load, one round")
    parser.add_argument("--directory", type=Path, help="where to put data; default: the temp dir")
    parser.add_argument("--partitions", type=int, default=1, help="of the topic; default: 1")
    parser.add_argument("--only", default=",".join(NAMES), help="the clients, by their short names")
    options = parser.parse_args()
    report = Report("Clients on one broker, one process each, acks=all")
    with tempfile.TemporaryDirectory(dir=options.directory, prefix="headrace-bench-") as directory:
        scale, rounds = (0.2, 1) if options.quick else (1.0, 5)
        bench = Bench(
            Path(directory), report, scale=scale, rounds=rounds, partitions=options.partitions
        )
        clients = options.only.split(",")
        bench.measure(clients)
        bench.tell()
        if "rows" in clients:
            bench.memory()
    return report.close()


if __name__ == "__main__":
    sys.exit(main())
