"""kafka-python: the client in pure Python."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import kafka
import kafka.admin
from kafka.errors import KafkaError

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


class KafkaPythonClient(Client):
    name = "kafka-python"
    sends_null_headers = False  # It reads them, but its producer does not let them pass.

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self._admin = kafka.KafkaAdminClient(bootstrap_servers=address)

    def close(self) -> None:
        self._admin.close()

    def create_topic(
        self, name: str, partitions: int = 1, configs: Mapping[str, str] | None = None
    ) -> None:
        wanted = {name: {"num_partitions": partitions, "configs": dict(configs or {})}}
        self._call(lambda: self._admin.create_topics(wanted))

    def delete_topic(self, name: str) -> None:
        self._call(lambda: self._admin.delete_topics([name]))

    def add_partitions(self, topic: str, count: int) -> None:
        self._call(lambda: self._admin.create_partitions({topic: count}))

    def delete_records(self, topic: str, before: int) -> int:
        where = kafka.TopicPartition(topic, 0)
        deleted = self._call(lambda: self._admin.delete_records({where: before}))
        low: int = deleted[where]["low_watermark"]
        return low

    def topic_settings(self, topic: str) -> dict[str, str]:
        resource = kafka.admin.ConfigResource(kafka.admin.ConfigResourceType.TOPIC, topic)
        described = self._admin.describe_configs([resource], config_filter="all")
        return {name: entry["value"] for name, entry in described["topic"][topic].items()}

    def alter_topic(self, topic: str, settings: Mapping[str, str]) -> None:
        resource = kafka.admin.ConfigResource(
            kafka.admin.ConfigResourceType.TOPIC, topic, dict(settings)
        )
        assert self._admin.alter_configs([resource])["topic"][topic] == "OK"

    def topics(self) -> dict[str, int]:
        return {
            describe_topic["name"]: len(describe_topic["partitions"])
            for describe_topic in self._admin.describe_topics()
        }

    def cluster(self) -> tuple[str, list[int]]:
        described = self._admin.describe_cluster()
        return described["cluster_id"], [broker["broker_id"] for broker in described["brokers"]]

    def _call(self, call: Any) -> Any:
        try:
            return call()
        except KafkaError as error:
            raise Refused(error.errno) from None

    def send(
        self,
        topic: str,
        records: Sequence[ToSend],
        *,
        codec: str = "none",
        acks: int | str = "all",
        idempotent: bool = False,
    ) -> list[tuple[int, int]]:
        producer = kafka.KafkaProducer(
            bootstrap_servers=self.address,
            compression_type=None if codec == "none" else codec,
            acks=acks,
            enable_idempotence=idempotent,
            max_request_size=LARGEST_REQUEST,
            linger_ms=5,
        )
        try:
            futures = [
                producer.send(
                    topic,
                    value=record.value,
                    key=record.key,
                    headers=list(record.headers),
                    partition=record.partition,
                    timestamp_ms=record.timestamp_ms,
                )
                for record in records
            ]
            producer.flush(SECONDS)
            placed = [self._call(lambda future=future: future.get(SECONDS)) for future in futures]
            return [(where.partition, where.offset) for where in placed]
        finally:
            producer.close(SECONDS)

    def _consumer(self, **options: Any) -> Any:
        return kafka.KafkaConsumer(bootstrap_servers=self.address, group_id=None, **options)

    @contextmanager
    def reader(
        self, topic: str, starts: Mapping[int, int | str], *, wait_ms: int = 500
    ) -> Iterator[Reader]:
        consumer = self._consumer(fetch_max_wait_ms=wait_ms, auto_offset_reset="none")
        try:
            where = {kafka.TopicPartition(topic, entry): start for entry, start in starts.items()}
            consumer.assign(list(where))
            for partition, start in where.items():
                if start == EARLIEST:
                    consumer.seek_to_beginning(partition)
                elif start == LATEST:
                    consumer.seek_to_end(partition)
                else:
                    consumer.seek(partition, start)
            yield _KafkaPythonReader(consumer)
        finally:
            consumer.close()

    def offsets_at(self, topic: str, partitions: int, timestamp_ms: int) -> dict[int, int]:
        consumer = self._consumer()
        try:
            wanted = {
                kafka.TopicPartition(topic, index): timestamp_ms for index in range(partitions)
            }
            found = consumer.offsets_for_times(wanted)
            return {tp.partition: -1 if at is None else at.offset for tp, at in found.items()}
        finally:
            consumer.close()

    def bounds(self, topic: str, partition: int = 0) -> tuple[int, int]:
        consumer = self._consumer()
        try:
            where = kafka.TopicPartition(topic, partition)
            first, end = consumer.beginning_offsets([where]), consumer.end_offsets([where])
            return first[where], end[where]
        finally:
            consumer.close()


class _KafkaPythonReader(Reader):
    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer

    def poll(self, seconds: float) -> list[Received]:
        try:
            found = self._consumer.poll(timeout_ms=int(seconds * 1000))
        except KafkaError as error:
            raise Refused(error.errno) from None
        return [received(message) for messages in found.values() for message in messages]


def received(message: Any) -> Received:
    return Received(
        message.partition,
        message.offset,
        message.timestamp,
        message.key,
        message.value,
        tuple((name, value) for name, value in message.headers),
    )
