"""Three brokers on this machine, as one cluster: many partitions, failover, replicated writes.

    python -m bench.cluster [--quick]

The brokers share the machine's cores with each other and with the load.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from confluent_kafka import KafkaError, Message, Producer

from bench.load import QUIET
from bench.process import run_load
from bench.report import Report
from headrace.testing.cluster import Cluster

PARTITIONS = 1_000
PATIENCE_S = 120.0

CREATE_S_MAX = 20.0
FAILOVER_S_MAX = 5.0
P99_MS_MAX = 20.0

# A broker that hangs is given up as soon as the cluster fences it; the other timeouts are defaults.
PRODUCER = QUIET | {
    "acks": "all",
    "enable.idempotence": True,
    "linger.ms": 2,
    "request.timeout.ms": 1_000,
    "reconnect.backoff.max.ms": 500,
}


def create(cluster: Cluster, topic: str, partitions: int) -> float:
    """Seconds until every partition has a leader and all its replicas in sync."""
    begun = time.perf_counter()
    cluster.create_topic(topic, partitions, replication_factor=3)
    return time.perf_counter() - begun


class Writer:
    """Writes one record to each of some partitions, and tracks the acknowledgements."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self._topic = topic
        self._left: set[int] = set()
        self._producer = Producer(PRODUCER | {"bootstrap.servers": cluster.bootstrap_servers})

    def write(self, partitions: list[int]) -> float:
        """Seconds until all partitions have acknowledged a record."""
        begun = time.perf_counter()
        self._left = set(partitions)
        for partition in partitions:
            self._producer.produce(
                self._topic, b"x" * 100, partition=partition, on_delivery=self._delivered
            )
        while self._left and time.perf_counter() - begun < PATIENCE_S:
            self._producer.poll(0.01)
        if self._left:
            raise SystemExit(f"{len(self._left)} of {len(partitions)} partitions were not written")
        return time.perf_counter() - begun

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            raise SystemExit(f"partition {message.partition()}: {error}")
        self._left.discard(message.partition() or 0)


def fail_over(cluster: Cluster, topic: str, writer: Writer, node_id: int) -> tuple[int, float]:
    """Kill a broker; returns the number of partitions it led, and the seconds until all are
    writable.
    """
    views = cluster.partitions_of(topic)
    led = [partition for partition, view in views.items() if view.leader == node_id]
    begun = time.perf_counter()
    cluster.broker(node_id).kill()
    writer.write(led)
    return len(led), time.perf_counter() - begun


def many_partitions(directory: Path, report: Report, partitions: int) -> None:
    topic = "many"
    with Cluster(3, data_dir=directory) as cluster:
        seconds = create(cluster, topic, partitions)
        name = f"{partitions:,} partitions of three replicas"
        report.at_most(f"{name}, created and in sync", seconds, CREATE_S_MAX, "s")
        writer = Writer(cluster, topic)
        report.fact(
            "a record to each of them, acks=all", f"{writer.write([*range(partitions)]):.2f} s"
        )
        for number in (1, 2, 3):
            led, seconds = fail_over(cluster, topic, writer, number)
            report.at_most(
                f"broker {number} killed, the {led} it led written again",
                seconds,
                FAILOVER_S_MAX,
                "s",
            )
            begun = time.perf_counter()
            cluster.broker(number).start()
            cluster.wait_for_isr(topic, timeout_s=PATIENCE_S)
            back = time.perf_counter() - begun
            report.fact(f"broker {number} started again and in sync", f"{back:.2f} s")


def latency(directory: Path, report: Report, seconds: float, rounds: int) -> None:
    with Cluster(3, data_dir=directory) as cluster:
        topic = cluster.create_topic(partitions=1)
        found = [
            run_load(
                "latency",
                cluster.bootstrap_servers,
                topic=topic,
                size=1_000,
                rate=1_000,
                seconds=seconds,
                acks="all",
            )
            for _ in range(rounds)
        ]
    middle = {name: median(entry[name] for entry in found) for name in found[0]}
    name = "1 KB at 1,000/s, acks=all, three replicas"
    report.fact(f"latency, {name}", ", ".join(f"{k} {v:.2f} ms" for k, v in middle.items()))
    report.at_most(f"p99 of {name}", middle["p99"], P99_MS_MAX, "ms")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the load")
    parser.add_argument("--directory", type=Path, help="where to put data; default: the temp dir")
    options = parser.parse_args()
    report = Report("Three brokers as a cluster")
    with tempfile.TemporaryDirectory(dir=options.directory, prefix="headrace-bench-") as directory:
        seconds, rounds = (2.0, 1) if options.quick else (20.0, 3)
        latency(Path(directory) / "latency", report, seconds, rounds)
        partitions = PARTITIONS // 10 if options.quick else PARTITIONS
        many_partitions(Path(directory) / "many", report, partitions)
    return report.close()


if __name__ == "__main__":
    sys.exit(main())
