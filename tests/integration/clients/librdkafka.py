"""confluent-kafka: librdkafka, the client behind most languages but Java."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import confluent_kafka
import confluent_kafka.admin

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

# Typed as it is used: its annotations leave out most of what the module offers.
admin: Any = confluent_kafka.admin


class ConfluentClient(Client):
    name = "librdkafka"

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self._common: dict[str, Any] = {
            "bootstrap.servers": address,
            "log_level": 0,
            "message.max.bytes": LARGEST_REQUEST,
        }
        self._admin = admin.AdminClient(self._common)

    def close(self) -> None:
        pass

    def _only(self, futures: Mapping[Any, Any]) -> Any:
        [future] = futures.values()
        try:
            return future.result(SECONDS)
        except confluent_kafka.KafkaException as error:
            raise Refused(error.args[0].code()) from None

    def create_topic(
        self, name: str, partitions: int = 1, configs: Mapping[str, str] | None = None
    ) -> None:
        topic = admin.NewTopic(name, partitions, config=dict(configs or {}))
        self._only(self._admin.create_topics([topic]))

    def delete_topic(self, name: str) -> None:
        self._only(self._admin.delete_topics([name]))

    def add_partitions(self, topic: str, count: int) -> None:
        self._only(self._admin.create_partitions([admin.NewPartitions(topic, count)]))

    def delete_records(self, topic: str, before: int) -> int:
        where = confluent_kafka.TopicPartition(topic, 0, before)
        low: int = self._only(self._admin.delete_records([where])).low_watermark
        return low

    def topic_settings(self, topic: str) -> dict[str, str]:
        resource = admin.ConfigResource("topic", topic)
        entries = self._only(self._admin.describe_configs([resource]))
        return {name: entry.value for name, entry in entries.items()}

    def alter_topic(self, topic: str, settings: Mapping[str, str]) -> None:
        resource = admin.ConfigResource("topic", topic)
        for name, value in settings.items():
            resource.add_incremental_config(
                admin.ConfigEntry(
                    name,
                    value,
                    incremental_operation=admin.AlterConfigOpType.SET,
                )
            )
        self._only(self._admin.incremental_alter_configs([resource]))

    def topics(self) -> dict[str, int]:
        found = self._admin.list_topics(timeout=SECONDS).topics
        return {name: len(topic.partitions) for name, topic in found.items()}

    def cluster(self) -> tuple[str, list[int]]:
        described = self._admin.describe_cluster().result(SECONDS)
        return described.cluster_id, [node.id for node in described.nodes]

    def send(
        self,
        topic: str,
        records: Sequence[ToSend],
        *,
        codec: str = "none",
        acks: int | str = "all",
        idempotent: bool = False,
    ) -> list[tuple[int, int]]:
        producer = confluent_kafka.Producer(
            {
                **self._common,
                "compression.type": codec,
                "acks": acks,
                "enable.idempotence": idempotent,
                "linger.ms": 5,
            }
        )
        placed: list[tuple[int, int] | None] = [None] * len(records)
        failed: list[int] = []

        def reporter(number: int) -> Callable[[Any, Any], None]:
            def report(error: Any, message: Any) -> None:
                if error is not None:
                    failed.append(error.code())
                else:
                    placed[number] = (message.partition(), message.offset())

            return report

        for number, record in enumerate(records):
            producer.produce(
                topic,
                value=record.value,
                key=record.key,
                partition=record.partition,
                timestamp=record.timestamp_ms or 0,
                headers=list(record.headers) or None,
                on_delivery=reporter(number),
            )
            producer.poll(0)
        left = producer.flush(SECONDS)
        if failed:
            raise Refused(failed[0])
        assert left == 0, f"{left} records were not delivered in time"
        return [where for where in placed if where is not None]

    @contextmanager
    def reader(
        self, topic: str, starts: Mapping[int, int | str], *, wait_ms: int = 500
    ) -> Iterator[Reader]:
        consumer = confluent_kafka.Consumer(
            {
                **self._common,
                # It must have a group, though nothing is ever committed to it.
                "group.id": "unused",
                "enable.auto.commit": False,
                "enable.partition.eof": False,
                "fetch.wait.max.ms": wait_ms,
                "auto.offset.reset": "error",
            }
        )
        # With the leader known it asks for offsets at once, else half a second later.
        consumer.list_topics(topic, timeout=SECONDS)
        named: dict[int | str, Any] = {
            EARLIEST: confluent_kafka.OFFSET_BEGINNING,
            LATEST: confluent_kafka.OFFSET_END,
        }
        consumer.assign(
            [
                confluent_kafka.TopicPartition(topic, partition, named.get(start, start))
                for partition, start in starts.items()
            ]
        )
        try:
            yield _ConfluentReader(consumer)
        finally:
            consumer.close()

    def offsets_at(self, topic: str, partitions: int, timestamp_ms: int) -> dict[int, int]:
        consumer = confluent_kafka.Consumer({**self._common, "group.id": "unused"})
        try:
            found = consumer.offsets_for_times(
                [
                    confluent_kafka.TopicPartition(topic, partition, timestamp_ms)
                    for partition in range(partitions)
                ],
                timeout=SECONDS,
            )
            return {position.partition: position.offset for position in found}
        finally:
            consumer.close()

    def bounds(self, topic: str, partition: int = 0) -> tuple[int, int]:
        consumer = confluent_kafka.Consumer({**self._common, "group.id": "unused"})
        try:
            where = confluent_kafka.TopicPartition(topic, partition)
            low, high = consumer.get_watermark_offsets(where, timeout=SECONDS)
            return low, high
        finally:
            consumer.close()


class _ConfluentReader(Reader):
    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer

    def poll(self, seconds: float) -> list[Received]:
        first = self._consumer.poll(seconds)
        messages = [first, *self._consumer.consume(1000, timeout=0)] if first is not None else []
        for message in messages:
            if message.error() is not None:
                raise Refused(message.error().code())
        return [
            Received(
                message.partition(),
                message.offset(),
                message.timestamp()[1],
                message.key(),
                message.value(),
                tuple(message.headers() or ()),
            )
            for message in messages
        ]
