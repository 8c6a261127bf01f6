"""Orders through a cluster and a pipeline, the whole way: what `make demo` runs.

Starts `headrace up` with three brokers on free ports and their data in a temporary directory, sends
orders to them, runs the pipeline of examples/pipelines/orders on Spark over those, reads its
results back and checks them against what was sent.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NoReturn

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import headrace
from examples.pipelines.orders import produce

# So short a run is over before the better compiler of the JVM pays.
QUICK_JAVA = ("--conf", "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1")
PIPELINE = Path(__file__).parent / "pipelines" / "orders" / "pipeline.yaml"
BROKERS = 3
GROUP = "orders-by-region.totals"
RESULTS = "orders-by-region"
DEAD_LETTERS = "orders-dead"
SPAN = timedelta(minutes=10)
PATIENCE_S = 60.0

Key = tuple[str, str]

console = Console(highlight=False, soft_wrap=True)


@dataclass
class Totals:
    """Orders and cents by minute and region, and how many orders could not be read."""

    orders: Counter[Key] = field(default_factory=Counter)
    cents: Counter[Key] = field(default_factory=Counter)
    unreadable: int = 0

    @property
    def minutes(self) -> list[str]:
        return sorted({minute for minute, _ in self.orders})

    def add(self, order: produce.Order) -> None:
        if order.from_old_till:
            self.unreadable += 1
            return
        key = (f"{order.at:%Y-%m-%d %H:%M}", order.region)
        self.orders[key] += 1
        self.cents[key] += order.cents


def headrace_command() -> str:
    return str(Path(sys.executable).with_name("headrace"))


@contextmanager
def running_brokers(directory: Path) -> Iterator[str]:
    """Run a cluster for the length of the block; yields its addresses and stops it cleanly."""
    command = [headrace_command(), "up", "--brokers", str(BROKERS), "--listen", "127.0.0.1:0"]
    log = directory / "brokers.log"
    with log.open("w+") as said:
        process = subprocess.Popen(
            [*command, "--data-dir", str(directory / "data")],
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
        )
        assert process.stdout is not None
        try:
            ready = process.stdout.readline()
            addresses = re.search(r"\bready on (.+), data in ", ready)
            if addresses is None:
                fail(f"the brokers did not start; exit status {process.wait(PATIENCE_S)}", log)
            console.print(f"[dim]{ready.strip()}[/]")
            yield addresses[1].replace(" ", "")
        finally:
            process.send_signal(signal.SIGTERM)
            status = process.wait(PATIENCE_S)
            process.stdout.close()
        if status != 0:
            fail(f"the brokers stopped with status {status}", log)


def fail(what: str, log: Path) -> NoReturn:
    """End with what is wrong, and what the brokers said last."""
    raise SystemExit(f"{what}; they said:\n{''.join(log.read_text()[-5_000:])}")


def show_replicas(address: str) -> None:
    """Say who leads the partitions of the orders, and on how many brokers each of them is."""
    with headrace.Admin(bootstrap_servers=address) as admin:
        # The broker that is asked may hear of a new topic a moment after the others.
        until = time.monotonic() + PATIENCE_S
        while produce.TOPIC not in admin.list_topics() and time.monotonic() < until:
            time.sleep(0.05)
        partitions = admin.describe_topic(produce.TOPIC).partitions
    leaders = ", ".join(str(partition.leader) for partition in partitions)
    replicas = min(len(partition.isr) for partition in partitions)
    console.print(
        f"{len(partitions)} partitions, led by brokers {leaders}; each is on {replicas} brokers"
    )


def send_orders(address: str, count: int) -> Totals:
    """Send so many orders of the last ten minutes; what they add up to."""
    sent = Totals()

    def counted() -> Iterator[produce.Order]:
        for order in produce.make_orders(count, start=datetime.now(UTC) - SPAN, span=SPAN):
            sent.add(order)
            yield order

    columns = (TextColumn("orders"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    started = time.perf_counter()
    produce.create_topic(address)
    show_replicas(address)
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("orders", total=count)
        produce.send_orders(
            address, counted(), on_sent=lambda done: progress.update(task, completed=done)
        )
    rate = count / (time.perf_counter() - started)
    console.print(f"{count:,} orders sent, {rate:,.0f} in a second")
    return sent


def run_pipeline(address: str, checkpoints: Path) -> None:
    """Run the pipeline over what is in the topic, as anybody would from a shell."""
    environment = os.environ | {
        "HEADRACE_BOOTSTRAP_SERVERS": address,
        "HEADRACE_CHECKPOINTS": str(checkpoints),
    }
    command = ["pipeline", "run", os.path.relpath(PIPELINE), "--available-now", *QUICK_JAVA]
    console.print(f"[bold]$ headrace {' '.join(command)}[/]")
    status = subprocess.run([headrace_command(), *command], env=environment, check=False).returncode
    if status != 0:
        raise SystemExit(f"the pipeline ended with status {status}")


def read_topic(address: str, topic: str) -> Iterator[headrace.ConsumerRecord]:
    """Every record that is committed in a topic now."""
    with headrace.Admin(bootstrap_servers=address) as admin:
        known = admin.list_topics().get(topic)
    parts = (
        [headrace.TopicPartition(topic, partition.index) for partition in known.partitions]
        if known
        else []
    )
    with headrace.Consumer(
        bootstrap_servers=address,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
    ) as consumer:
        consumer.assign(parts)
        ends = consumer.end_offsets(parts)
        while any(consumer.position(tp) < ends[tp] for tp in parts):
            yield from consumer.poll(timeout_ms=1_000)


def read_results(address: str) -> Totals:
    """What the pipeline has found: the last record of each key, and its dead letters."""
    results = Totals()
    for record in read_topic(address, RESULTS):
        row = json.loads(record.value)
        minute = datetime.fromisoformat(row["minute"])
        key = (f"{minute:%Y-%m-%d %H:%M}", row["region"])
        results.orders[key] = row["orders"]
        results.cents[key] = row["cents"]
    results.unreadable = sum(1 for _ in read_topic(address, DEAD_LETTERS))
    return results


def show(results: Totals) -> None:
    table = Table(title="orders of each region, minute by minute")
    table.add_column("minute")
    for region in produce.REGIONS:
        table.add_column(region, justify="right")
    table.add_column("orders", justify="right", style="bold")
    table.add_column("revenue", justify="right")
    for minute in results.minutes:
        keys = [(minute, region) for region in produce.REGIONS]
        orders = [results.orders[key] for key in keys]
        cents = sum(results.cents[key] for key in keys)
        table.add_row(
            minute[-5:], *(f"{entry:,}" for entry in [*orders, sum(orders)]), f"{cents / 100:,.2f}"
        )
    table.add_section()
    regions = [
        sum(results.orders[minute, region] for minute in results.minutes)
        for region in produce.REGIONS
    ]
    total = sum(regions)
    revenue = results.cents.total() / 100
    table.add_row("all", *(f"{entry:,}" for entry in [*regions, total]), f"{revenue:,.2f}")
    console.print(table)


def lag(address: str) -> int:
    """How many orders the pipeline has not read yet, as the broker knows it."""
    with headrace.Admin(bootstrap_servers=address) as admin:
        progress = admin.group_progress([GROUP])[GROUP]
    if len(progress) != produce.PARTITIONS:
        raise SystemExit(f"the group {GROUP} has committed {len(progress)} partitions")
    return sum(entry.lag or 0 for entry in progress)


def check(sent: Totals, results: Totals, left: int) -> None:
    if results != sent:
        raise SystemExit("the results are not what was sent adds up to")
    if left:
        raise SystemExit(f"the pipeline has {left:,} orders left to read")
    counted, unreadable = results.orders.total(), results.unreadable
    console.print(
        f"{counted:,} orders counted + {unreadable:,} unreadable ones in {DEAD_LETTERS}"
        f" = {counted + unreadable:,} sent: none lost, none counted twice"
    )
    console.print(f"lag of the group {GROUP}: {left}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--orders", type=int, default=200_000, help="how many orders to send")
    count: int = parser.parse_args().orders
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="headrace-demo-") as name:
        directory = Path(name)
        with running_brokers(directory) as address:
            sent = send_orders(address, count)
            run_pipeline(address, directory / "checkpoints")
            results = read_results(address)
            show(results)
            check(sent, results, lag(address))
    seconds = time.perf_counter() - started
    console.print(f"the brokers stopped cleanly; all of it took {seconds:.0f} s")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
