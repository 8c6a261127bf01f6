"""Offsets in PostgreSQL, in the transaction of the results, with a number for each new owner.

Whoever is assigned a partition takes the next number of its row; from then on what an earlier owner
tries to store is refused, even if it has not noticed that it was replaced. So an owner may keep
what it has read from the database in memory: nobody changes it behind its back.
"""

import argparse
import signal
import threading
from collections.abc import Collection, Sequence

import psycopg

from headrace import Consumer, ConsumerRecord, RebalanceListener, TopicPartition

BATCH_RECORDS = 10

# Asked for one at a time: two processes that create the same table at once disturb each other.
TABLES = """
SELECT pg_advisory_xact_lock(hashtext('external offsets'));
CREATE TABLE IF NOT EXISTS results (value text);
CREATE TABLE IF NOT EXISTS offsets (
    topic text, partition integer, next_offset bigint NOT NULL, owner bigint NOT NULL,
    PRIMARY KEY (topic, partition)
);
"""

# Waits for a transaction of the earlier owner that is under way, and sees what it stored.
CLAIM = """
INSERT INTO offsets AS stored VALUES (%s, %s, %s, 1)
ON CONFLICT (topic, partition) DO UPDATE SET owner = stored.owner + 1
RETURNING next_offset, owner
"""

# Changes no row if a later owner has taken the partition.
MOVE = "UPDATE offsets SET next_offset = %s WHERE topic = %s AND partition = %s AND owner = %s"

# One statement for all: between the messages of an `executemany` PostgreSQL does not regard a
# transaction as idle, and the limit below would not hold.
ADD = "INSERT INTO results SELECT unnest(%s::text[])"

# A process that is stopped inside a transaction would keep its rows locked for as long.
GIVE_UP = "SET idle_in_transaction_session_timeout = '10s'"


class Fenced(Exception):
    """A partition that we took for ours has a later owner."""


class Store(RebalanceListener):
    """Results with their offsets, and the number under which we own each partition."""

    def __init__(self, consumer: Consumer, database: psycopg.Connection) -> None:
        self._consumer = consumer
        self._database = database
        self._owner: dict[TopicPartition, int] = {}
        with database.transaction():
            database.execute(TABLES)
        database.execute(GIVE_UP)

    def on_partitions_assigned(self, assigned: Collection[TopicPartition], /) -> None:
        for tp, first in self._consumer.beginning_offsets(assigned).items():
            claimed = self._database.execute(CLAIM, (*tp, first)).fetchone()
            assert claimed is not None
            next_offset, self._owner[tp] = claimed
            self._consumer.seek(tp, next_offset)

    def store(self, batch: Sequence[ConsumerRecord]) -> None:
        """Store what the records say, and how far they go, together or not at all."""
        ends = {TopicPartition(item.topic, item.partition): item.offset + 1 for item in batch}
        with self._database.transaction():
            # Every consumer locks rows in this order, so that no two wait for each other.
            for tp, end in sorted(ends.items()):
                if not self._database.execute(MOVE, (end, *tp, self._owner[tp])).rowcount:
                    raise Fenced(f"{tp} has a later owner than {self._owner[tp]}")
            self._database.execute(ADD, ([item.value.decode() for item in batch],))


def run(consumer: Consumer, store: Store, topic: str, stopping: threading.Event) -> None:
    consumer.subscribe([topic], listener=store)
    while not stopping.is_set():
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
    parser.add_argument("--database", default="dbname=results", help="as libpq takes it")
    arguments = parser.parse_args()
    # Ctrl-C ends the loop between two batches: an exception in the middle of a statement would
    # leave the connection in a state in which it cannot even be rolled back.
    stopping = threading.Event()
    signal.signal(signal.SIGINT, lambda *_: stopping.set())
    with (
        # Each statement is a transaction of its own, but for those inside `transaction()`.
        psycopg.connect(arguments.database, autocommit=True) as database,
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
    ):
        run(consumer, Store(consumer, database), arguments.topic, stopping)


if __name__ == "__main__":
    main()
