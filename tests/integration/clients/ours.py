"""headrace's own client, beside the others."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import headrace
from headrace import EARLIEST as EARLIEST_OFFSET
from headrace import LATEST as LATEST_OFFSET
from headrace import KafkaError, TopicPartition
from tests.integration.clients.interface import (
    EARLIEST,
    LARGEST_REQUEST,
    LATEST,
    SECONDS,
    Client,
    Reader,
    Received,
    Refused,
    ToSend,
)
from tests.integration.clients.kafka_python import received


class HeadraceClient(Client):
    name = "headrace"

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self._admin = headrace.Admin(bootstrap_servers=address)

    def close(self) -> None:
        self._admin.close()

    def _call(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except KafkaError as error:
            raise Refused(error.code) from None

    def create_topic(
        self, name: str, partitions: int = 1, configs: Mapping[str, str] | None = None
    ) -> None:
        self._call(lambda: self._admin.create_topic(name, partitions, configs=configs))

    def delete_topic(self, name: str) -> None:
        self._call(lambda: self._admin.delete_topics([name]))

    def add_partitions(self, topic: str, count: int) -> None:
        self._call(lambda: self._admin.create_partitions({topic: count}))

    def delete_records(self, topic: str, before: int) -> int:
        where = TopicPartition(topic, 0)
        low: int = self._call(lambda: self._admin.delete_records({where: before}))[where]
        return low

    def topic_settings(self, topic: str) -> dict[str, str]:
        entries = self._admin.describe_configs(topic=topic)
        return {name: entry.value or "" for name, entry in entries.items()}

    def alter_topic(self, topic: str, settings: Mapping[str, str]) -> None:
        self._admin.alter_configs(settings, topic=topic)

    def topics(self) -> dict[str, int]:
        return {name: len(topic.partitions) for name, topic in self._admin.list_topics().items()}

    def cluster(self) -> tuple[str, list[int]]:
        described = self._admin.describe_cluster()
        return described.cluster_id or "", [broker.node_id for broker in described.brokers]

    def producer(self, **options: Any) -> "headrace.Producer":
        return headrace.Producer(
            bootstrap_servers=self.address, max_request_size=LARGEST_REQUEST, **options
        )

    def send(
        self,
        topic: str,
        records: Sequence[ToSend],
        *,
        codec: str = "none",
        acks: int | str = "all",
        idempotent: bool = False,
    ) -> list[tuple[int, int]]:
        with self.producer(
            compression_type=codec, acks=acks, enable_idempotence=idempotent
        ) as producer:
            futures = [
                producer.send(
                    topic,
                    record.value,
                    key=record.key,
                    headers=record.headers,
                    partition=record.partition,
                    timestamp_ms=record.timestamp_ms,
                )
                for record in records
            ]
            placed = self._call(lambda: [future.result(SECONDS) for future in futures])
        return [(where.partition, where.offset) for where in placed]

    def consumer(self, **options: Any) -> "headrace.Consumer":
        return headrace.Consumer(bootstrap_servers=self.address, **options)

    @contextmanager
    def reader(
        self, topic: str, starts: Mapping[int, int | str], *, wait_ms: int = 500
    ) -> Iterator[Reader]:
        with self.consumer(fetch_max_wait_ms=wait_ms, auto_offset_reset="none") as consumer:
            seek_to(consumer, topic, starts)
            yield _HeadraceReader(self, consumer)

    def offsets_at(self, topic: str, partitions: int, timestamp_ms: int) -> dict[int, int]:
        wanted = {TopicPartition(topic, index): timestamp_ms for index in range(partitions)}
        with self.consumer() as consumer:
            found = consumer.offsets_for_times(wanted)
        return {tp.partition: -1 if at is None else at.offset for tp, at in found.items()}

    def bounds(self, topic: str, partition: int = 0) -> tuple[int, int]:
        where = TopicPartition(topic, partition)
        first = self._admin.offsets({where: EARLIEST_OFFSET})[where].offset
        return first, self._admin.offsets({where: LATEST_OFFSET})[where].offset


def seek_to(consumer: "headrace.Consumer", topic: str, starts: Mapping[int, int | str]) -> None:
    """Assign the partitions to a consumer, each from the place that was asked for."""
    consumer.assign([TopicPartition(topic, start) for start in starts])
    for entry, start in starts.items():
        where = TopicPartition(topic, entry)
        if start == EARLIEST:
            consumer.seek_to_beginning(where)
        elif start == LATEST:
            consumer.seek_to_end(where)
        else:
            consumer.seek(where, int(start))


class _HeadraceReader(Reader):
    def __init__(self, client: HeadraceClient, consumer: "headrace.Consumer") -> None:
        self._client = client
        self._consumer = consumer

    def poll(self, seconds: float) -> list[Received]:
        found = self._client._call(lambda: self._consumer.poll(timeout_ms=int(seconds * 1000)))
        return [received(entry) for entry in found]
