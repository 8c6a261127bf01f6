"""Kill a broker under load, again and again, and look for what it had acknowledged."""

import threading
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from confluent_kafka import Producer

from headrace.cli.log.dump import expand
from headrace.cli.log.verify import check_files
from headrace.testing.time_limits import scaled
from tests.integration.wire import create_topic, read_all
from tests.support import BrokerProcess

PARTITIONS = 2


class Load:
    """Sends without pause with librdkafka, and remembers what the broker acknowledged."""

    def __init__(self, address: str, topic: str, partitions: int, *, first: int) -> None:
        self.acknowledged: list[tuple[int, int, bytes]] = []
        self._address = address
        self._topic = topic
        self._partitions = partitions
        self._next = first
        self._stop = threading.Event()
        self._enough = threading.Event()
        self._wanted = 0
        self._thread = threading.Thread(target=self._run)

    def run_until(self, count: int) -> None:
        """Start, and return while it goes on, once so many records are acknowledged."""
        self._wanted = count
        self._thread.start()
        assert self._enough.wait(scaled(30)), (
            f"{len(self.acknowledged)} of {count} acknowledged in time"
        )

    def stop(self) -> int:
        """Give up what is not acknowledged; the number that comes after the last one used."""
        self._stop.set()
        self._thread.join()
        return self._next

    def _run(self) -> None:
        producer = Producer(
            {
                "bootstrap.servers": self._address,
                "acks": 1,
                "retries": 0,
                "linger.ms": 1,
                "log_level": 0,
                "queue.buffering.max.messages": 2_000_000,
            }
        )
        while not self._stop.is_set():
            for _ in range(50):
                number = self._next
                self._next += 1
                producer.produce(
                    self._topic,
                    b"%d %s" % (number, b"x" * (number % 700)),
                    partition=number % self._partitions,
                    on_delivery=self._report,
                )
            # Not faster than it is acknowledged: a backlog would only be purged in the end.
            while len(producer) > 2_000 and not self._stop.is_set():
                producer.poll(0.01)
            producer.poll(0)
        producer.purge()
        producer.flush(scaled(10))

    def _report(self, error: Any, message: Any) -> None:
        if error is None:
            self.acknowledged.append((message.partition(), message.offset(), message.value()))
            if len(self.acknowledged) >= self._wanted:
                self._enough.set()


def assert_files_are_intact(*directories: Path) -> None:
    for directory in directories:
        findings = check_files(expand(directory))
        assert findings.batches > 0
        assert not findings.problems, "\n".join(map(str, findings.problems))


def survive_kills(
    broker: BrokerProcess,
    topic: str,
    kills: int,
    rng: Random,
    on_kill: Callable[[int, int], None] = lambda kill, acknowledged: None,
) -> None:
    """Require after each kill that every acknowledged record is there and that no file is damaged.

    `on_kill` hears how many kills there were, and how many records were acknowledged so far.
    """
    create_topic(
        broker.address, topic, PARTITIONS, flush_messages="1", segment_bytes=str(1024 * 1024)
    )
    acknowledged: list[dict[int, bytes]] = [{} for _ in range(PARTITIONS)]
    checked = [0] * PARTITIONS
    number = 0
    for kill in range(1, kills + 1):
        load = Load(broker.address, topic, PARTITIONS, first=number)
        load.run_until(rng.randrange(500, 4000))
        broker.kill()
        number = load.stop()
        broker.start()
        assert_files_are_intact(
            *(broker.data_dir / f"{topic}-{index}" for index in range(PARTITIONS))
        )
        for partition, offset, value in load.acknowledged:
            assert offset not in acknowledged[partition], "an offset was given to two records"
            acknowledged[partition][offset] = value
        for partition in range(PARTITIONS):
            first = checked[partition]
            stored = _stored(broker.address, topic, partition, first)
            new = {at: value for at, value in acknowledged[partition].items() if at >= first}
            assert new.items() <= stored.items(), "an acknowledged record is missing or changed"
            checked[partition] += len(stored)
        on_kill(kill, sum(map(len, acknowledged)))
    for partition in range(PARTITIONS):
        stored = _stored(broker.address, topic, partition, 0)
        assert list(stored) == list(range(len(stored)))
        assert acknowledged[partition].items() <= stored.items()


def _stored(address: str, topic: str, partition: int, first: int) -> dict[int, bytes | None]:
    return {record.offset: record.value for record in read_all(address, topic, partition, first)}
