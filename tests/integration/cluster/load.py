"""A load from librdkafka that promises everything: idempotent, acks=all, given up never."""

import threading
import time
from collections.abc import Iterable
from typing import Any

from confluent_kafka import KafkaError, Producer

from headrace.testing.broker_requests import PartitionView
from headrace.testing.time_limits import scaled
from tests.integration.cluster.history import UNKNOWN, Findings, PartitionHistory, compare, total
from tests.integration.wire import read_all

SETTINGS: dict[str, str | int | float | bool] = {
    "enable.idempotence": True,
    "acks": "all",
    "linger.ms": 2,
    # A broker that hangs is given up as soon as a cluster gives it up. By default a request may
    # wait for 30 s, and whatever the cluster does, its partition waits with it.
    "request.timeout.ms": 1_000,
    "socket.timeout.ms": 1_500,
    "socket.connection.setup.timeout.ms": 1_000,
    "reconnect.backoff.max.ms": 500,
    "retry.backoff.max.ms": 300,
    "message.timeout.ms": 60_000,
    "log_level": 0,
}
_PATIENCE_S = 60.0


class Load:
    """Sends at a steady rate to every partition in turn, from a thread of its own."""

    def __init__(self, bootstrap_servers: str, topic: str, partitions: int, rate: int) -> None:
        self.topic = topic
        self.histories = [PartitionHistory() for _ in range(partitions)]
        self.errors: list[str] = []
        """Errors that no retry helps against, as the client has told them."""
        self._rate = rate
        self._stop = threading.Event()
        self._lock = threading.Condition()
        self._producer = Producer(
            SETTINGS | {"bootstrap.servers": bootstrap_servers, "error_cb": self._on_error}
        )
        self._thread = threading.Thread(target=self._run, name="load", daemon=True)

    def start(self) -> "Load":
        self._thread.start()
        self.wait_until_acknowledged(time.monotonic(), range(len(self.histories)))
        return self

    def stop(self) -> None:
        """Send no more, and wait until everything sent is acknowledged."""
        self._stop.set()
        self._thread.join(2 * scaled(_PATIENCE_S))
        assert not self._thread.is_alive(), "the load did not end"

    def wait_until_acknowledged(
        self, after: float, partitions: Iterable[int], timeout_s: float = _PATIENCE_S
    ) -> float:
        """When all these partitions had acknowledged something sent after a moment."""
        wanted = list(partitions)

        def resumed() -> list[float | None]:
            return [self.histories[entry].resumed_at(after) for entry in wanted]

        with self._lock:
            done = self._lock.wait_for(lambda: None not in resumed(), scaled(timeout_s))
            times = [at for at in resumed() if at is not None]
        assert done, f"writes did not resume within {timeout_s:g} s on {wanted}; {self.errors}"
        return max(times)

    def findings(self, addresses: dict[int, str], views: dict[int, PartitionView]) -> Findings:
        """What all partitions have now, read from their leaders, beside what they should have."""
        found = []
        for partition, history in enumerate(self.histories):
            records = read_all(addresses[views[partition].leader], self.topic, partition)
            stored = [(record.offset, number_of(record.value)) for record in records]
            found.append(compare(history, stored))
        return total(found)

    def _run(self) -> None:
        begun, count = time.monotonic(), 0
        while not self._stop.is_set():
            due = begun + count / self._rate
            now = time.monotonic()
            if due > now:
                self._producer.poll(min(due - now, 0.01))
                continue
            partition = count % len(self.histories)
            with self._lock:
                number = self.histories[partition].send(now)
            self._producer.produce(
                self.topic,
                b"%d %s" % (number, b"x" * (number % 200)),
                partition=partition,
                on_delivery=self._on_delivery,
            )
            self._producer.poll(0)
            count += 1
        self._producer.flush(scaled(_PATIENCE_S))

    def _on_delivery(self, error: KafkaError | None, message: Any) -> None:
        now = time.monotonic()
        number, history = number_of(message.value()), self.histories[message.partition()]
        with self._lock:
            if error is None:
                # Of a batch that was sent again, and was there already, it may not be known.
                offset: int | None = message.offset()
                history.acknowledge(number, UNKNOWN if offset is None else offset, now)
            else:
                history.failed.append(number)
                self.errors.append(str(error))
            self._lock.notify_all()

    def _on_error(self, error: KafkaError) -> None:
        # What passes by itself, such as a broker that is away, is the client's own business.
        if error.fatal():
            self.errors.append(str(error))


def number_of(value: bytes | None) -> int:
    """The number of a record; one that no load has made is UNKNOWN."""
    first = (value or b"").partition(b" ")[0]
    return int(first) if first.isdigit() else UNKNOWN
