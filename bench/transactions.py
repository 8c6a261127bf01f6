"""Transactions: their duration, and their cost compared with non-transactional records.

python -m bench.transactions [--quick] [--only prepared]
"""

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from bench.load import create_topic
from bench.process import BackgroundLoad, BrokerProcess, run_load
from bench.report import Report
from headrace import aio
from headrace.broker.coordination.runtime import TRANSACTIONS_TOPIC
from headrace.coordinator.records import decode_transaction, decode_transaction_key
from headrace.coordinator.transactions.transaction_metadata import TransactionStatus
from headrace.testing.cluster import Cluster
from headrace.types import TopicPartition

SIZE = 1_000
TOGETHER = 1_000
"""Records of one transaction where throughput is measured."""
SHARE_MIN = 0.5
P99_MS_MAX = 50.0
PREPARED_PRODUCERS, PREPARED_PARTITIONS = 8, 6
OTHER_LOAD_MB = 20.0
READ_SECONDS_MAX = 300.0
PARTS = ("throughput", "latency", "prepared")


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
    """Measure how long transactions are prepared, alone and beside other load."""
    settings = {
        "transaction.state.log.num.partitions": "4",
        "transaction.state.log.replication.factor": "3",
    }
    with BrokerProcess(directory, transaction_state_log_num_partitions="4") as broker:
        for topic in ("prepared", "other"):
            create_topic(broker.address, topic, PREPARED_PARTITIONS)
        _measure_prepared(report, "one broker", broker.address, count)
    with Cluster(3, data_dir=directory / "ends", config=settings) as cluster:
        for topic in ("prepared", "other"):
            cluster.create_topic(topic, partitions=PREPARED_PARTITIONS)
        _measure_prepared(report, "three replicas", cluster.bootstrap_servers, count)


def _measure_prepared(report: Report, where: str, servers: str, count: int) -> None:
    _report_prepared(report, where, asyncio.run(_prepared_ms(servers, "alone", count)), 0.0)
    load = BackgroundLoad(
        "produce_steadily",
        servers,
        topic="other",
        partitions=PREPARED_PARTITIONS,
        size=SIZE,
        rate_mb=OTHER_LOAD_MB,
    )
    with load:
        found = asyncio.run(_prepared_ms(servers, "beside", count))
    other_mb = load.measured["bytes"] / load.measured["seconds"] / 1e6
    _report_prepared(report, where, found, other_mb)


async def _prepared_ms(servers: str, prefix: str, count: int) -> list[int]:
    """The times that transactions were prepared, in ascending order.

    From the records of their coordinators, so that the pace of clients does not count: from the
    decision to end a transaction until all its markers are committed.
    """
    transactional_ids = [f"{prefix}-{number}" for number in range(PREPARED_PRODUCERS)]
    await asyncio.gather(
        *(
            _commit_in_a_row(servers, transactional_id, count)
            for transactional_id in transactional_ids
        )
    )
    found: list[int] = []
    since_ms: dict[str, int] = {}
    left = dict.fromkeys(transactional_ids, count)
    async with (
        asyncio.timeout(READ_SECONDS_MAX),
        aio.Consumer(bootstrap_servers=servers, auto_offset_reset="earliest") as consumer,
    ):
        partitions = await consumer.partitions_for(TRANSACTIONS_TOPIC) or []
        await consumer.assign(
            [TopicPartition(TRANSACTIONS_TOPIC, partition) for partition in partitions]
        )
        while any(left.values()):
            for record in await consumer.poll(1000):
                transactional_id = decode_transaction_key(record.key or b"")
                if transactional_id not in left or record.value is None:
                    continue
                transaction = decode_transaction(record.value)
                if transaction.status.is_prepared:
                    since_ms[transactional_id] = transaction.updated_ms
                elif transaction.status is TransactionStatus.COMPLETE_COMMIT:
                    found.append(transaction.updated_ms - since_ms[transactional_id])
                    left[transactional_id] -= 1
    return sorted(found)


async def _commit_in_a_row(servers: str, transactional_id: str, count: int) -> None:
    async with aio.Producer(
        bootstrap_servers=servers, transactional_id=transactional_id, linger_ms=0
    ) as producer:
        for _ in range(count):
            async with producer.transaction():
                for partition in range(PREPARED_PARTITIONS):
                    await producer.send("prepared", b"x" * 100, partition=partition)


def _report_prepared(report: Report, where: str, found: list[int], other_mb: float) -> None:
    p50, p99 = found[len(found) // 2], found[len(found) * 99 // 100]
    report.fact(
        f"prepared, {where}",
        f"p50 {p50} ms, p99 {p99} ms, max {found[-1]} ms,"
        f" {PREPARED_PRODUCERS} producers and {PREPARED_PARTITIONS} partitions at once,"
        f" with {other_mb:.0f} MB/s of other load",
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
    parser.add_argument("--only", choices=PARTS, help="one part of it; default: all")
    options = parser.parse_args()
    report = Report("Transactions")
    parts = PARTS if options.only is None else (options.only,)
    with tempfile.TemporaryDirectory(dir=options.directory, prefix="headrace-bench-") as directory:
        if "throughput" in parts:
            throughput(Path(directory), report, 50_000 if options.quick else 500_000)
        if "latency" in parts:
            latency(Path(directory), report, 100 if options.quick else 2_000)
        if "prepared" in parts:
            prepared(Path(directory), report, 30 if options.quick else 300)
    return report.close()


if __name__ == "__main__":
    sys.exit(main())
