"""Transactions: how long one takes, and what they cost beside records that are in none.

python -m bench.transactions [--quick]
"""

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path

from bench.load import create_topic
from bench.process import BrokerProcess, run_load
from bench.report import Report
from headrace import aio
from headrace.testing.cluster import Cluster

SIZE = 1_000
TOGETHER = 1_000
"""Records of one transaction where throughput is measured."""
SHARE_MIN = 0.5
P99_MS_MAX = 50.0
PREPARED_PRODUCERS, PREPARED_PARTITIONS = 8, 6


def throughput(directory: Path, report: Report, count: int) -> None:
    """The same records with and without transactions, on one broker."""
    with BrokerProcess(directory, transaction_state_log_num_partitions="1") as broker:
        create_topic(broker.address, "plain")
        plain = run_load(
            "produce",
            broker.address,
            topic="plain",
            size=SIZE,
            count=count,
            **{"enable.idempotence": True, "acks": "all"},
        )
    with BrokerProcess(directory, transaction_state_log_num_partitions="1") as broker:
        create_topic(broker.address, "orders")
        address = broker.address
        found = run_load(
            "transact", address, topic="orders", size=SIZE, count=count, together=TOGETHER
        )
        wanted = run_load("consume", address, topic="orders", count=count)
        committed = run_load(
            "consume", address, topic="orders", count=count, **{"isolation.level": "read_committed"}
        )
    name = f"{SIZE} bytes in transactions of {TOGETHER:,}"
    report.fact("produced in no transaction", _rate(plain))
    report.fact(f"produced, {name}", _rate(found))
    share = plain["seconds"] / found["seconds"]
    report.times(f"produced, {name}", share, "of what is in none", SHARE_MIN)
    report.fact("consumed, read_uncommitted", _rate(wanted))
    report.fact("consumed, read_committed", _rate(committed))
    share = wanted["seconds"] / committed["seconds"]
    report.times("consumed, read_committed", share, "of read_uncommitted", 0.8)


def latency(directory: Path, report: Report, count: int) -> None:
    """A transaction of one record after the other, acknowledged by one broker and by three."""
    settings = {"transaction.state.log.num.partitions": "1"}
    with BrokerProcess(directory, transaction_state_log_num_partitions="1") as broker:
        create_topic(broker.address, "one")
        found = run_load("transact", broker.address, topic="one", size=100, count=count, together=1)
        _report_latency(report, "one broker", found)
    with Cluster(3, data_dir=directory / "three", config=settings) as cluster:
        topic = cluster.create_topic("three")
        found = run_load(
            "transact", cluster.bootstrap_servers, topic=topic, size=100, count=count, together=1
        )
        _report_latency(report, "three replicas", found)


def prepared(directory: Path, report: Report, count: int) -> None:
    """How long transactions are prepared after the answer to EndTxn, with many at once."""
    settings = {
        "transaction.state.log.num.partitions": "4",
        "transaction.state.log.replication.factor": "3",
    }
    with BrokerProcess(directory, transaction_state_log_num_partitions="4") as broker:
        create_topic(broker.address, "prepared", PREPARED_PARTITIONS)
        found = asyncio.run(_watch_ends(broker.address, "prepared", count))
        _report_prepared(report, "one broker", found)
    with Cluster(3, data_dir=directory / "ends", config=settings) as cluster:
        topic = cluster.create_topic("prepared", partitions=PREPARED_PARTITIONS)
        found = asyncio.run(_watch_ends(cluster.bootstrap_servers, topic, count))
        _report_prepared(report, "three replicas", found)


async def _watch_ends(servers: str, topic: str, count: int) -> list[float]:
    """Milliseconds from each answer to EndTxn until the transaction is complete."""
    async with aio.Admin(bootstrap_servers=servers) as admin:
        watched = await asyncio.gather(
            *(
                _watch_producer(admin, servers, topic, f"prepared-{number}", count)
                for number in range(PREPARED_PRODUCERS)
            )
        )
    return sorted(found for some in watched for found in some)


async def _watch_producer(
    admin: aio.Admin, servers: str, topic: str, transactional_id: str, count: int
) -> list[float]:
    found = []
    async with aio.Producer(
        bootstrap_servers=servers, transactional_id=transactional_id, linger_ms=0
    ) as producer:
        for _ in range(count):
            async with producer.transaction():
                for partition in range(PREPARED_PARTITIONS):
                    await producer.send(topic, b"x" * 100, partition=partition)
            ended = time.perf_counter()
            while True:
                described = await admin.describe_transactions([transactional_id])
                if not described[transactional_id].state.startswith("Prepare"):
                    break
            found.append((time.perf_counter() - ended) * 1000)
    return found


def _report_prepared(report: Report, where: str, found: list[float]) -> None:
    p50, p99 = found[len(found) // 2], found[len(found) * 99 // 100]
    report.fact(
        f"prepared after the answer to EndTxn, {where}",
        f"median {p50:.2f} ms, p99 {p99:.2f} ms, most {found[-1]:.2f} ms,"
        f" {PREPARED_PRODUCERS} producers and {PREPARED_PARTITIONS} partitions at once",
    )


def _report_latency(report: Report, where: str, found: dict[str, float]) -> None:
    name = f"transaction of one record, {where}"
    report.fact(
        name,
        f"median {found['p50']:.2f} ms, p99 {found['p99']:.2f} ms,"
        f" {found['transactions'] / found['seconds']:,.0f} in a row each second",
    )
    report.at_most(f"p99 of a {name}", found["p99"], P99_MS_MAX, "ms")


def _rate(found: dict[str, float]) -> str:
    seconds = found["seconds"]
    return (
        f"{found['messages'] / seconds:,.0f} records/s, {found['bytes'] / seconds / 1e6:,.0f} MB/s"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the load")
    parser.add_argument("--directory", type=Path, help="where to put data; default: the temp dir")
    options = parser.parse_args()
    report = Report("Transactions")
    with tempfile.TemporaryDirectory(dir=options.directory, prefix="headrace-bench-") as directory:
        throughput(Path(directory), report, 50_000 if options.quick else 500_000)
        latency(Path(directory), report, 100 if options.quick else 2_000)
        prepared(Path(directory), report, 30 if options.quick else 300)
    return report.close()


if __name__ == "__main__":
    sys.exit(main())
