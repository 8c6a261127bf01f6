"""Brokers that die and come back under a producer: nothing lost, nothing twice, all in order."""

import threading
from pathlib import Path
from typing import Any

import pyarrow
import pytest

import headrace
from headrace.client.producer.delivery import Future
from headrace.testing.time_limits import scaled
from tests.integration.wire import create_topic, read_all
from tests.support import BrokerProcess

PARTITIONS = 3
RESTARTS = 4


class Load(threading.Thread):
    """Sends numbered records to every partition in turn, until told to stop."""

    def __init__(self, producer: headrace.Producer) -> None:
        super().__init__()
        self.producer = producer
        self.sent = 0
        self.acknowledged = threading.Semaphore(0)
        self.futures: list[Future] = []
        self._ending = threading.Event()

    def run(self) -> None:
        while not self._ending.is_set():
            value = b"%08d" % self.sent * (1 + self.sent % 30)
            future = self.producer.send("t", value, partition=self.sent % PARTITIONS)
            if self.sent % 500 == 0:
                future.add_callback(lambda _: self.acknowledged.release())
            self.futures.append(future)
            self.sent += 1

    def wait_for_progress(self) -> None:
        for _ in range(5):
            assert self.acknowledged.acquire(timeout=scaled(60))

    def end(self) -> None:
        self._ending.set()
        self.join()


def numbers_in(broker: BrokerProcess, partition: int) -> list[int]:
    return [int((record.value or b"")[:8]) for record in read_all(broker.address, "t", partition)]


@pytest.mark.parametrize(
    ("how", "options"),
    [
        ("kill", {}),
        ("stop", {}),
        ("kill", {"compression_type": "zstd", "max_in_flight": 2}),
        ("kill", {"batch_size": 1000, "linger_ms": 0}),
    ],
    ids=["kill", "stop", "kill-compressed", "kill-small-batches"],
)
def test_every_record_is_written_once_and_in_order(
    tmp_path: Path, how: str, options: dict[str, Any]
) -> None:
    options = {"buffer_memory": 4_000_000, **options}
    with BrokerProcess(tmp_path) as broker:
        create_topic(broker.address, "t", PARTITIONS)
        with headrace.Producer(bootstrap_servers=broker.address, **options) as producer:
            load = Load(producer)
            load.start()
            try:
                for _ in range(RESTARTS):
                    load.wait_for_progress()
                    getattr(broker, how)()
                    broker.start()
                load.wait_for_progress()
            finally:
                load.end()
            producer.flush(60_000)
        assert [future.exception() for future in load.futures if not future.succeeded()] == []
        for partition in range(PARTITIONS):
            numbers = range(partition, load.sent, PARTITIONS)
            found = numbers_in(broker, partition)
            assert found == list(numbers)
            offsets = [future.result().offset for future in load.futures[partition::PARTITIONS]]
            assert offsets == list(range(len(numbers)))


def test_without_idempotence_nothing_is_lost_and_order_holds(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        create_topic(broker.address, "t", PARTITIONS)
        options: Any = {"buffer_memory": 4_000_000, "acks": 1}
        with headrace.Producer(bootstrap_servers=broker.address, **options) as producer:
            load = Load(producer)
            load.start()
            try:
                for _ in range(RESTARTS):
                    load.wait_for_progress()
                    broker.kill()
                    broker.start()
                load.wait_for_progress()
            finally:
                load.end()
        for partition in range(PARTITIONS):
            found = numbers_in(broker, partition)
            assert list(dict.fromkeys(found)) == list(range(partition, load.sent, PARTITIONS))


def test_columns_survive_a_restart(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        create_topic(broker.address, "t", PARTITIONS)
        with headrace.Producer(bootstrap_servers=broker.address) as producer:
            futures = []
            for round_number in range(6):
                values = [b"%02d %06d" % (round_number, row) * 12 for row in range(20_000)]
                keys = [b"%d" % (row % 50) for row in range(20_000)]
                table = pyarrow.table({"key": keys, "value": values})
                futures.append(producer.send_arrow("t", table))
                if round_number in {1, 3}:
                    broker.kill()
                    broker.start()
            assert (
                sum(entry.count for future in futures for entry in future.result(scaled(60)))
                == 120_000
            )
        total = 0
        for partition in range(PARTITIONS):
            found = [record.value for record in read_all(broker.address, "t", partition)]
            assert found == sorted(set(found))  # type: ignore[type-var]
            total += len(found)
        assert total == 120_000


def test_a_producer_finds_a_broker_that_starts_after_it(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        address = broker.address
        broker.stop()
        with headrace.Producer(bootstrap_servers=address) as producer:
            starter = threading.Timer(1.0, broker.start)
            starter.start()
            assert producer.send("t", b"patience").result(scaled(30)).offset == 0
            starter.join()
