"""Offsets in SQLite, in the transaction of the results: exactly once, whenever the process dies.

The group decides who reads which partition; where to begin is read from the database. A batch is
stored only if the offset is still the one that was seen there last, so of two processes that
believe to have a partition one stores each record, and the other one notices and starts over.
"""

import argparse
import contextlib
import sqlite3
from collections.abc import Collection, Sequence

from headrace import Consumer, ConsumerRecord, RebalanceListener, TopicPartition

BATCH_RECORDS = 10
LOCK_TIMEOUT_S = 30.0

# With a write-ahead log nobody who reads the results waits for us, nor we for him.
TABLES = """
PRAGMA journal_mode = WAL;
CREATE TABLE IF NOT EXISTS results (value TEXT);
CREATE TABLE IF NOT EXISTS offsets (
    topic TEXT, partition INTEGER, next_offset INTEGER NOT NULL, PRIMARY KEY (topic, partition)
);
"""

BEGIN_AT = "INSERT INTO offsets VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
LOOK_UP = "SELECT next_offset FROM offsets WHERE topic = ? AND partition = ?"

# Changes no row if somebody else has moved the offset since we looked.
MOVE = "UPDATE offsets SET next_offset = ? WHERE topic = ? AND partition = ? AND next_offset = ?"


class Fenced(Exception):
    """Somebody else has stored records of a partition that we took for ours."""


class Store(RebalanceListener):
    """Results with their offsets, and the offsets as we saw them last."""

    def __init__(self, consumer: Consumer, database: sqlite3.Connection) -> None:
        self._consumer = consumer
        self._database = database
        self._seen: dict[TopicPartition, int] = {}
        database.executescript(TABLES)

    def on_partitions_assigned(self, assigned: Collection[TopicPartition], /) -> None:
        for tp, first in self._consumer.beginning_offsets(assigned).items():
            with self._database:
                self._database.execute(BEGIN_AT, (*tp, first))
                [(self._seen[tp],)] = self._database.execute(LOOK_UP, tp)
            self._consumer.seek(tp, self._seen[tp])

    def store(self, batch: Sequence[ConsumerRecord]) -> None:
        """Store what the records say, and how far they go, together or not at all."""
        ends = {TopicPartition(item.topic, item.partition): item.offset + 1 for item in batch}
        with self._database:
            for tp, end in ends.items():
                if not self._database.execute(MOVE, (end, *tp, self._seen[tp])).rowcount:
                    raise Fenced(f"{tp} was moved on from {self._seen[tp]} by somebody else")
            values = [(item.value.decode(),) for item in batch]
            self._database.executemany("INSERT INTO results VALUES (?)", values)
        self._seen |= ends


def run(consumer: Consumer, store: Store, topic: str) -> None:
    consumer.subscribe([topic], listener=store)
    while True:
        batch = consumer.poll(timeout_ms=1_000)
        try:
            store.store(batch)
        except Fenced:
            # Nothing was stored. The group has given the partition to somebody else, and we have
            # not heard of it yet: as a new member we are told what is ours.
            consumer.unsubscribe()
            consumer.subscribe([topic], listener=store)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap-server", default="127.0.0.1:9092")
    parser.add_argument("--topic", default="orders")
    parser.add_argument("--group", default="external-offsets")
    parser.add_argument("--database", default="results.db")
    arguments = parser.parse_args()
    with (
        contextlib.closing(sqlite3.connect(arguments.database, LOCK_TIMEOUT_S)) as database,
        Consumer(
            bootstrap_servers=arguments.bootstrap_server,
            group_id=arguments.group,
            enable_auto_commit=False,
            # An offset the log no longer has means lost records, which nobody should pass over.
            auto_offset_reset="none",
            max_poll_records=BATCH_RECORDS,
            # So long a consumer that crashed keeps its partitions from the others.
            session_timeout_ms=10_000,
        ) as consumer,
        contextlib.suppress(KeyboardInterrupt),
    ):
        run(consumer, Store(consumer, database), arguments.topic)


if __name__ == "__main__":
    main()
