"""Readers of committed records, while a copy is made and when it is done."""

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import kafka
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

import headrace
from headrace.testing.time_limits import scaled
from tests.integration.transactions.judging import Watch

_POLL_S = 0.2
_QUIET_S = 0.4
_PATIENCE_S = 60.0


def _librdkafka(bootstrap_servers: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "not used",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "socket.timeout.ms": 2_000,
            "reconnect.backoff.max.ms": 500,
            "log_level": 0,
        }
    )


class Watcher:
    """Reads copies while they are made, by librdkafka; nothing else than the next may come."""

    def __init__(self, bootstrap_servers: str, topics: list[str], partitions: int) -> None:
        self.watches = {topic: [Watch() for _ in range(partitions)] for topic in topics}
        self._consumer = _librdkafka(bootstrap_servers)
        self._consumer.assign(
            [
                TopicPartition(topic, partition, OFFSET_BEGINNING)
                for topic in topics
                for partition in range(partitions)
            ]
        )
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watcher", daemon=True)
        self._thread.start()

    def seen(self, topic: str) -> int:
        """How many records of a copy were read."""
        return sum(watch.following for watch in self.watches[topic])

    @property
    def violations(self) -> list[str]:
        return [
            f"{topic}-{partition} at {what}"
            for topic, watches in self.watches.items()
            for partition, watch in enumerate(watches)
            for what in watch.violations
        ]

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        self._consumer.close()

    def _run(self) -> None:
        while not self._stop.is_set():
            for message in self._consumer.consume(1000, timeout=_POLL_S):
                if message.error() is None:
                    topic, partition = message.topic(), message.partition()
                    offset = message.offset()
                    assert topic is not None and partition is not None and offset is not None
                    self.watches[topic][partition].see(offset, message.value())


Values = dict[int, list[bytes | None]]
# How many records each partition should have.
Counts = Mapping[int, int]


def read_by_librdkafka(bootstrap_servers: str, topic: str, counts: Counts) -> Values:
    consumer = _librdkafka(bootstrap_servers)
    consumer.assign([TopicPartition(topic, count, OFFSET_BEGINNING) for count in counts])

    def poll() -> list[tuple[int, bytes | None]]:
        messages = consumer.consume(5000, timeout=_POLL_S)
        return [
            (message.partition() or 0, message.value())
            for message in messages
            if message.error() is None
        ]

    try:
        return _read(poll, counts)
    finally:
        consumer.close()


def read_by_kafka_python(bootstrap_servers: str, topic: str, counts: Counts) -> Values:
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=bootstrap_servers.split(","),
        isolation_level="read_committed",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    consumer.assign([kafka.TopicPartition(topic, count) for count in counts])

    def poll() -> list[tuple[int, bytes | None]]:
        found: dict[Any, list[Any]] = consumer.poll(timeout_ms=200, max_records=5000)
        return [
            (record.partition, record.value) for records in found.values() for record in records
        ]

    try:
        return _read(poll, counts)
    finally:
        consumer.close()


def read_by_headrace(bootstrap_servers: str, topic: str, counts: Counts) -> Values:
    with headrace.Consumer(
        bootstrap_servers=bootstrap_servers,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
    ) as consumer:
        consumer.assign([headrace.TopicPartition(topic, count) for count in counts])

        def poll() -> list[tuple[int, bytes | None]]:
            found = consumer.poll(timeout_ms=200, max_records=5000)
            return [(record.partition, bytes(record.value)) for record in found]

        return _read(poll, counts)


def _read(poll: Callable[[], list[tuple[int, bytes | None]]], counts: Counts) -> Values:
    """Read all there is: until it is enough, and a little longer, or until nothing comes."""
    values: Values = {count: [] for count in counts}
    quiet_since = time.monotonic()
    while True:
        if came := poll():
            quiet_since = time.monotonic()
        for partition, value in came:
            values[partition].append(value)
        enough = all(len(values[entry]) >= count for entry, count in counts.items())
        if time.monotonic() - quiet_since > (_QUIET_S if enough else scaled(_PATIENCE_S)):
            return values


READERS: dict[str, Callable[[str, str, Counts], Values]] = {
    "librdkafka": read_by_librdkafka,
    "kafka-python": read_by_kafka_python,
    "headrace": read_by_headrace,
}
