"""Records that keep coming while groups change."""

import threading
from collections.abc import Sequence
from functools import partial
from types import TracebackType
from typing import Any, Self

from confluent_kafka import Producer

from headrace.testing.time_limits import scaled
from tests.integration.groups.consumers import Group, Partition, wait_for

PAUSE_SECONDS = 0.1


class Stream:
    """A producer that adds a record to every partition again and again, until it is stopped."""

    def __init__(self, address: str, partitions: Sequence[Partition]) -> None:
        self._partitions = partitions
        self._acknowledged: set[tuple[str, int, int]] = set()
        self._lock = threading.Lock()
        self._failed: list[str] = []
        self._stop = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": address,
                # A record of which it is not known whether it was written is written again: the
                # broker may be killed in between.
                "enable.idempotence": True,
                "linger.ms": 5,
                "reconnect.backoff.max.ms": 500,
                "log_level": 0,
            }
        )
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()
        if kind is None:
            assert self._producer.flush(scaled(30)) == 0
            assert not self._failed, self._failed[0]

    @property
    def acknowledged(self) -> set[tuple[str, int, int]]:
        """Topic, partition and offset of every record that the broker has taken so far."""
        with self._lock:
            return set(self._acknowledged)

    def wait_read(self, groups: Sequence[Group]) -> None:
        """Wait until each of the groups has read everything produced before this call."""
        # Members that are forked can be ready before the first record is acknowledged.
        wait_for(lambda: None if self.acknowledged else "nothing is acknowledged yet")
        wanted = self.acknowledged
        for group in groups:
            wait_for(partial(_missing, group, wanted))

    def wait_read_something(self, groups: Sequence[Group]) -> None:
        """Wait until each of the groups has read a record of this stream from every partition."""
        wait_for(self._is_missing_somewhere)
        self.wait_read(groups)

    def _is_missing_somewhere(self) -> str | None:
        reached = {(topic, partition) for topic, partition, _ in self.acknowledged}
        return None if reached >= set(self._partitions) else f"only {reached} were written to"

    def _run(self) -> None:
        while not self._stop.wait(PAUSE_SECONDS):
            for topic, partition in self._partitions:
                self._producer.produce(topic, b"x", partition=partition, on_delivery=self._report)
            self._producer.poll(0)

    def _report(self, error: Any, message: Any) -> None:
        if error is not None:
            self._failed.append(str(error))
            return
        with self._lock:
            self._acknowledged.add((message.topic(), message.partition(), message.offset()))


def _missing(group: Group, wanted: set[tuple[str, int, int]]) -> str | None:
    missing = wanted - group.received
    if not missing:
        return None
    return f"{group.name} has not read {len(missing)} records, e.g. {sorted(missing)[:3]}"
