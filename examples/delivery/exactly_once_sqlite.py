"""Exactly once in a database: results and offsets change in one transaction of SQLite.

The database says where to go on, so the broker is told nothing. Whenever the process dies, the
results and the offset agree: both are there, or neither is.
"""

import argparse
import contextlib
import sqlite3

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaException,
    Message,
    TopicPartition,
)

BATCH_RECORDS = 10

TABLES = """
CREATE TABLE IF NOT EXISTS results (value TEXT);
CREATE TABLE IF NOT EXISTS offsets (
    topic TEXT, partition INTEGER, next_offset INTEGER, PRIMARY KEY (topic, partition)
);
"""

# Changes a row only if the record is new: not stored by somebody who had the partition before us,
# nor by ourselves before a rebalance.
ADVANCE = """
INSERT INTO offsets VALUES (?, ?, ?)
ON CONFLICT DO UPDATE SET next_offset = excluded.next_offset
WHERE next_offset < excluded.next_offset
"""


def next_offset(database: sqlite3.Connection, partition: TopicPartition) -> int:
    found = database.execute(
        "SELECT next_offset FROM offsets WHERE topic = ? AND partition = ?",
        (partition.topic, partition.partition),
    ).fetchone()
    return int(found[0]) if found else OFFSET_BEGINNING


def store(database: sqlite3.Connection, batch: list[Message]) -> None:
    """Store what the records say, and how far they go, together or not at all."""
    with database:
        for message in batch:
            offset, value = message.offset(), message.value() or b""
            assert offset is not None
            position = (message.topic(), message.partition(), offset + 1)
            if database.execute(ADVANCE, position).rowcount:
                database.execute("INSERT INTO results VALUES (?)", (value.decode(),))


def run(consumer: Consumer, database: sqlite3.Connection) -> None:
    while True:
        batch = consumer.consume(BATCH_RECORDS, timeout=1.0)
        for message in batch:
            if error := message.error():
                raise KafkaException(error)
        store(database, batch)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap-server", default="127.0.0.1:9092")
    parser.add_argument("--topic", default="orders")
    parser.add_argument("--group", default="exactly-once")
    parser.add_argument("--database", default="results.db")
    arguments = parser.parse_args()
    settings = {
        "bootstrap.servers": arguments.bootstrap_server,
        "group.id": arguments.group,
        "enable.auto.commit": False,
        # An offset the log no longer has means lost records, which nobody should pass over.
        "auto.offset.reset": "error",
        # So long a consumer that crashed keeps its partitions from the others.
        "session.timeout.ms": 10_000,
    }
    with (
        contextlib.closing(sqlite3.connect(arguments.database)) as database,
        contextlib.closing(Consumer(settings)) as consumer,
    ):
        database.executescript(TABLES)

        def seek(consumer: Consumer, partitions: list[TopicPartition]) -> None:
            for partition in partitions:
                partition.offset = next_offset(database, partition)
            consumer.assign(partitions)

        consumer.subscribe([arguments.topic], on_assign=seek)
        with contextlib.suppress(KeyboardInterrupt):
            run(consumer, database)


if __name__ == "__main__":
    main()
