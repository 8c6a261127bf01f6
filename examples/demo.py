"""Orders through a broker and back, with an ordinary Kafka client: what `make demo` runs.

Starts `headrace up` on a free port with its data in a temporary directory, produces order events
with confluent-kafka, reads every partition back from the start, and checks that nothing was lost,
doubled or reordered.
"""

import argparse
import json
import random
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
from pathlib import Path

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

TOPIC = "orders"
PARTITIONS = 4
REGIONS = ("north", "south", "east", "west")
PATIENCE_S = 60.0

console = Console()


@dataclass
class Reading:
    """What came back: orders and money by region, and the records seen in each partition."""

    orders: Counter[str] = field(default_factory=Counter)
    cents: Counter[str] = field(default_factory=Counter)
    counts: Counter[int] = field(default_factory=Counter)
    bytes: int = 0
    seconds: float = 0.0


@contextmanager
def running_broker(directory: Path) -> Iterator[str]:
    """Run a broker for the length of the block; yields its address and stops it cleanly."""
    command = [str(Path(sys.executable).with_name("headrace")), "up"]
    command += ["--data-dir", str(directory), "--listen", "127.0.0.1:0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if ready := re.search(r"\bready\b.*?([\w.\-]+:\d+)", line):
                console.print(f"[dim]{line.strip()}[/]", highlight=False)
                yield ready[1]
                break
        else:
            raise SystemExit(f"the broker did not start; exit status {process.wait()}")
    finally:
        process.send_signal(signal.SIGTERM)
        status = process.wait(PATIENCE_S)
        process.stdout.close()
    if status != 0:
        raise SystemExit(f"the broker stopped with status {status}")


def create_topic(address: str) -> None:
    admin = AdminClient({"bootstrap.servers": address})
    created = admin.create_topics([NewTopic(TOPIC, PARTITIONS, replication_factor=1)])
    created[TOPIC].result(timeout=PATIENCE_S)


def order_event(number: int, chance: random.Random) -> tuple[bytes, bytes]:
    """One order as key and JSON value; the key keeps a customer's orders in one partition."""
    customer = f"customer-{chance.randrange(5_000)}"
    event = {
        "order": number,
        "customer": customer,
        "region": chance.choice(REGIONS),
        "cents": chance.randrange(500, 20_000),
    }
    return customer.encode(), json.dumps(event).encode()


def produce(address: str, count: int, progress: Progress) -> tuple[float, int]:
    """Send `count` orders and wait until each is acknowledged; returns seconds and bytes."""
    failures: list[KafkaError] = []

    def on_delivery(error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            failures.append(error)

    producer = Producer(
        {"bootstrap.servers": address, "acks": "all", "linger.ms": 5, "on_delivery": on_delivery}
    )
    chance = random.Random(2026)
    task = progress.add_task("produce", total=count)
    sent_bytes = 0
    started = time.perf_counter()
    for number in range(count):
        key, value = order_event(number, chance)
        sent_bytes += len(key) + len(value)
        while True:
            try:
                producer.produce(TOPIC, key=key, value=value)
                break
            except BufferError:  # The client's own queue is full: let it drain.
                producer.poll(0.1)
        if number % 1_000 == 0:
            producer.poll(0)
            progress.update(task, completed=number)
    unsent = producer.flush(PATIENCE_S)
    seconds = time.perf_counter() - started
    progress.update(task, completed=count)
    if failures or unsent:
        raise SystemExit(f"{len(failures)} orders failed, {unsent} unsent: {failures[:1]}")
    return seconds, sent_bytes


def consume(address: str, count: int, progress: Progress) -> Reading:
    """Read every partition from its start, checking order as the messages come."""
    consumer = Consumer(
        {"bootstrap.servers": address, "group.id": "demo", "enable.auto.commit": False}
    )
    consumer.assign([TopicPartition(TOPIC, p, OFFSET_BEGINNING) for p in range(PARTITIONS)])
    reading = Reading()
    newest_order: dict[int, int] = {}
    task = progress.add_task("consume", total=count)
    started = time.perf_counter()
    while (seen := reading.counts.total()) < count:
        messages = consumer.consume(5_000, timeout=1.0)
        if not messages and time.perf_counter() - started > PATIENCE_S:
            raise SystemExit(f"only {seen} of {count} orders came back")
        for message in messages:
            check_and_count(message, reading, newest_order)
        progress.update(task, completed=reading.counts.total())
    reading.seconds = time.perf_counter() - started
    consumer.close()
    return reading


def check_and_count(message: Message, reading: Reading, newest_order: dict[int, int]) -> None:
    if message.error() is not None:
        raise SystemExit(f"the broker answered: {message.error()}")
    partition, key, value = message.partition(), message.key(), message.value()
    assert partition is not None and key is not None and value is not None
    event = json.loads(value)
    # Offsets count up by one from 0, and orders were sent in the order of their numbers.
    in_order = event["order"] > newest_order.get(partition, -1)
    if message.offset() != reading.counts[partition] or not in_order:
        raise SystemExit(f"out of order: partition {partition}, offset {message.offset()}: {event}")
    newest_order[partition] = event["order"]
    reading.counts[partition] += 1
    reading.orders[event["region"]] += 1
    reading.cents[event["region"]] += event["cents"]
    reading.bytes += len(key) + len(value)


def show(count: int, produced: tuple[float, int], reading: Reading) -> None:
    console.print(f"{count:,} orders came back: none lost, none doubled, none out of order")
    table = Table()
    table.add_column("region")
    table.add_column("orders", justify="right")
    table.add_column("amount", justify="right")
    for region in REGIONS:
        amount = reading.cents[region] / 100
        table.add_row(region, f"{reading.orders[region]:,}", f"{amount:,.2f}")
    console.print(table)
    for verb, (seconds, size) in {
        "produced": produced,
        "consumed": (reading.seconds, reading.bytes),
    }.items():
        rates = f"{size / seconds / 1e6:,.1f} MB/s, {count / seconds:,.0f} orders/s"
        console.print(f"{verb} {rates} (the demo's own Python included)", highlight=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--orders", type=int, default=200_000, help="how many orders to send")
    count: int = parser.parse_args().orders
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with tempfile.TemporaryDirectory(prefix="headrace-demo-") as directory:
        with running_broker(Path(directory)) as address:
            create_topic(address)
            with Progress(*columns, TimeElapsedColumn(), console=console) as progress:
                produced = produce(address, count, progress)
                reading = consume(address, count, progress)
            # Identical totals: nothing was lost, doubled or altered in size.
            if reading.counts.total() != count or reading.bytes != produced[1]:
                raise SystemExit("what came back is not what was sent")
            show(count, produced, reading)
    console.print("the broker stopped cleanly")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
