"""Columns in, columns out: a table of orders is sent, read back, and summed up with pyarrow.

    headrace up &
    python examples/arrow_client.py

No Python object is made for a record on the way: keys find their partitions, records are encoded
and decoded by the compiled codec, and what comes back is computed on where it lies.
"""

import argparse
import uuid

import pyarrow as pa
import pyarrow.compute as pc

from headrace import Admin, Consumer, Producer, TopicPartition

REGIONS = ("north", "south", "east", "west")
PARTITIONS = 4


def orders(count: int) -> pa.Table:
    """Orders as columns: the region is the key, so that each region stays in order."""
    numbers = pa.array(range(count), pa.int64())
    regions = pa.array(REGIONS).take(pc.bit_wise_and(numbers, 3))
    cents = pc.add(500, pc.multiply(pc.bit_wise_and(numbers, 1023), 10))
    return pa.table(
        {
            "key": regions.cast(pa.binary()),
            "value": pc.cast(cents, pa.string()).cast(pa.binary()),
        }
    )


def send(address: str, topic: str, table: pa.Table) -> int:
    """Send every row; how many the broker has acknowledged."""
    with Producer(bootstrap_servers=address, compression_type="lz4") as producer:
        return sum(batch.count for batch in producer.send_arrow(topic, table).result())


def read(address: str, topic: str, count: int) -> pa.Table:
    """Read the topic from the beginning, as many rows as are said to be there."""
    batches: list[pa.RecordBatch] = []
    with Consumer(bootstrap_servers=address, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(topic, partition) for partition in range(PARTITIONS)])
        while sum(batch.num_rows for batch in batches) < count:
            batches.append(consumer.poll_arrow(timeout_ms=1_000))
    return pa.Table.from_batches(batches)


def summary(table: pa.Table) -> pa.Table:
    """What each region ordered: the values are numbers as text."""
    cents = table["value"].cast(pa.string()).cast(pa.int64())
    by_region = pa.table({"region": table["key"].cast(pa.string()), "cents": cents})
    totals = by_region.group_by("region").aggregate([("cents", "count"), ("cents", "sum")])
    return totals.sort_by("region")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap-server", default="127.0.0.1:9092")
    parser.add_argument("--topic", default=f"orders-{uuid.uuid4().hex[:8]}")
    parser.add_argument("--orders", type=int, default=1_000_000)
    arguments = parser.parse_args()
    address, topic = arguments.bootstrap_server, arguments.topic
    with Admin(bootstrap_servers=address) as admin:
        admin.create_topic(topic, PARTITIONS)
    sent = send(address, topic, orders(arguments.orders))
    print(f"{sent:,} orders sent to {topic}")
    for row in summary(read(address, topic, sent)).to_pylist():
        print(f"{row['region']}: {row['cents_count']:,} orders, {row['cents_sum'] / 100:,.2f}")


if __name__ == "__main__":
    main()
