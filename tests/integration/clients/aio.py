"""aiokafka: the client for asyncio, driven here by a loop of its own."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import aiokafka
import aiokafka.admin
from aiokafka.errors import KafkaError

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


class AiokafkaClient(Client):
    name = "aiokafka"

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self._runner = asyncio.Runner()

        async def start() -> Any:
            admin = aiokafka.admin.AIOKafkaAdminClient(bootstrap_servers=address)
            await admin.start()
            return admin

        self._admin = self.run(start())

    def close(self) -> None:
        self.run(self._admin.close())
        self._runner.close()

    def run(self, coroutine: Any) -> Any:
        try:
            return self._runner.run(_within(coroutine))
        except KafkaError as error:
            raise Refused(error.errno) from None

    def create_topic(
        self, name: str, partitions: int = 1, configs: Mapping[str, str] | None = None
    ) -> None:
        topic = aiokafka.admin.NewTopic(name, partitions, 1, topic_configs=dict(configs or {}))
        [answer] = self.run(self._admin.create_topics([topic])).topic_errors
        if answer[1]:
            raise Refused(answer[1])

    def delete_topic(self, name: str) -> None:
        [(_, code)] = self.run(self._admin.delete_topics([name])).topic_error_codes
        if code:
            raise Refused(code)

    def add_partitions(self, topic: str, count: int) -> None:
        self.run(self._admin.create_partitions({topic: aiokafka.admin.NewPartitions(count)}))

    def delete_records(self, topic: str, before: int) -> int:
        where = aiokafka.TopicPartition(topic, 0)
        wanted = {where: aiokafka.admin.RecordsToDelete(before)}
        low: int = self.run(self._admin.delete_records(wanted))[where]
        return low

    def topic_settings(self, topic: str) -> dict[str, str]:
        resource = aiokafka.admin.config_resource.ConfigResource(
            aiokafka.admin.config_resource.ConfigResourceType.TOPIC, topic
        )
        [response] = self.run(self._admin.describe_configs([resource]))
        [(code, _, _, _, entries)] = response.resources
        assert code == 0
        return {entry[0]: entry[1] for entry in entries}

    def alter_topic(self, topic: str, settings: Mapping[str, str]) -> None:
        resource = aiokafka.admin.config_resource.ConfigResource(
            aiokafka.admin.config_resource.ConfigResourceType.TOPIC, topic, dict(settings)
        )
        [response] = self.run(self._admin.alter_configs([resource]))
        [(code, *_)] = response.resources
        if code:
            raise Refused(code)

    def topics(self) -> dict[str, int]:
        described = self.run(self._admin.describe_topics())
        return {topic["topic"]: len(topic["partitions"]) for topic in described}

    def cluster(self) -> tuple[str, list[int]]:
        described = self.run(self._admin.describe_cluster())
        return described["cluster_id"], [broker["node_id"] for broker in described["brokers"]]

    def send(
        self,
        topic: str,
        records: Sequence[ToSend],
        *,
        codec: str = "none",
        acks: int | str = "all",
        idempotent: bool = False,
    ) -> list[tuple[int, int]]:
        async def go() -> list[tuple[int, int]]:
            producer = aiokafka.AIOKafkaProducer(
                bootstrap_servers=self.address,
                compression_type=None if codec == "none" else codec,
                acks=acks,
                enable_idempotence=idempotent,
                max_request_size=LARGEST_REQUEST,
                linger_ms=5,
            )
            async with producer:
                futures = [
                    await producer.send(
                        topic,
                        value=record.value,
                        key=record.key,
                        headers=list(record.headers),
                        partition=record.partition,
                        timestamp_ms=record.timestamp_ms,
                    )
                    for record in records
                ]
                placed = await asyncio.gather(*futures)
            # With acks=0 it knows nothing of the offset, and says so with None.
            return [(where.partition, where.offset) for where in placed if where is not None]

        sent: list[tuple[int, int]] = self.run(go())
        return sent

    def _consumer(self, **options: Any) -> Any:
        return aiokafka.AIOKafkaConsumer(bootstrap_servers=self.address, group_id=None, **options)

    @contextmanager
    def reader(
        self, topic: str, starts: Mapping[int, int | str], *, wait_ms: int = 500
    ) -> Iterator[Reader]:
        where = {aiokafka.TopicPartition(topic, entry): start for entry, start in starts.items()}

        async def start() -> Any:
            consumer = self._consumer(fetch_max_wait_ms=wait_ms, auto_offset_reset="none")
            await consumer.start()
            consumer.assign(list(where))
            for partition, first in where.items():
                if first == EARLIEST:
                    await consumer.seek_to_beginning(partition)
                elif first == LATEST:
                    await consumer.seek_to_end(partition)
                else:
                    consumer.seek(partition, first)
            return consumer

        consumer = self.run(start())
        try:
            yield _AiokafkaReader(self, consumer)
        finally:
            self.run(consumer.stop())

    def offsets_at(self, topic: str, partitions: int, timestamp_ms: int) -> dict[int, int]:
        wanted = {
            aiokafka.TopicPartition(topic, index): timestamp_ms for index in range(partitions)
        }

        async def go() -> dict[int, int]:
            async with self._consumer() as consumer:
                found = await consumer.offsets_for_times(wanted)
            return {tp.partition: -1 if at is None else at.offset for tp, at in found.items()}

        offsets: dict[int, int] = self.run(go())
        return offsets

    def bounds(self, topic: str, partition: int = 0) -> tuple[int, int]:
        where = aiokafka.TopicPartition(topic, partition)

        async def go() -> tuple[int, int]:
            async with self._consumer() as consumer:
                first = await consumer.beginning_offsets([where])
                end = await consumer.end_offsets([where])
            return first[where], end[where]

        bounds: tuple[int, int] = self.run(go())
        return bounds


class _AiokafkaReader(Reader):
    def __init__(self, client: AiokafkaClient, consumer: Any) -> None:
        self._client = client
        self._consumer = consumer

    def poll(self, seconds: float) -> list[Received]:
        found = self._client.run(self._consumer.getmany(timeout_ms=int(seconds * 1000)))
        return [received(message) for messages in found.values() for message in messages]


async def _within(coroutine: Any) -> Any:
    async with asyncio.timeout(SECONDS):
        return await coroutine
