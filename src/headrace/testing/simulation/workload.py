"""Clients of a simulated cluster: producers with an account of every record, and a group."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from random import Random
from typing import Any, Literal

from headrace import aio
from headrace.client.producer.delivery import Future
from headrace.errors import HeadraceError
from headrace.testing.simulation.history import History, Violation
from headrace.testing.simulation.hosts import Host
from headrace.types import TopicPartition


async def read_partitions(
    bootstrap_servers: str,
    partitions: Sequence[TopicPartition],
    isolation_level: Literal["read_uncommitted", "read_committed"] = "read_uncommitted",
) -> dict[TopicPartition, dict[int, bytes]]:
    """The values of partitions by offset; the partitions must be readable."""
    found: dict[TopicPartition, dict[int, bytes]] = {partition: {} for partition in partitions}
    consumer = aio.Consumer(
        bootstrap_servers=bootstrap_servers,
        client_id="reader",
        auto_offset_reset="earliest",
        isolation_level=isolation_level,
    )
    try:
        consumer.assign(partitions)
        left = dict(await consumer.end_offsets(*partitions))
        while left:
            for record in await consumer.poll(1000):
                partition = TopicPartition(record.topic, record.partition)
                found[partition][record.offset] = bytes(record.value)
            for tp in list(left):
                if await consumer.position(tp) >= left[tp]:
                    del left[tp]
    except HeadraceError as error:
        raise Violation(f"the partitions cannot be read after healing: {error}") from error
    finally:
        await consumer.close()
    return found


async def read_until(
    stopped: Callable[[], bool],
    consumer: aio.Consumer,
    see: Callable[[TopicPartition, int, bytes], None],
    host: Host,
    role: str,
) -> None:
    """Read until `stopped` or an error, which is noted under `role`; then close the consumer."""
    try:
        while not stopped():
            for record in await consumer.poll(500):
                partition = TopicPartition(record.topic, record.partition)
                see(partition, record.offset, bytes(record.value))
    except HeadraceError as error:
        host.loop.note(role, host.name, str(error))
        await asyncio.sleep(1)
    finally:
        with suppress(HeadraceError):
            await consumer.close()


# The pause between two records, or transactions, of a client while the cluster is only watched.
CALM_S = 0.3
_DELIVERY_MS = 8_000
_REQUEST_MS = 3_000
_SMALL_BATCH_BYTES = 200
_OLD_MS_MAX = 1_700_000_000_000


class Workload:
    """The clients that run on their hosts until `stop` is set."""

    def __init__(
        self,
        history: History,
        bootstrap_servers: str,
        topic: str,
        partitions: int,
        pause_s: float,
        *,
        eager: bool = False,
        old_timestamps: bool = False,
    ) -> None:
        """`eager` producers have five small batches in flight to each broker."""
        self.history = history
        self.topic = topic
        self.partitions = [TopicPartition(topic, number) for number in range(partitions)]
        self.stop = False
        self._bootstrap_servers = bootstrap_servers
        self._pause_s = pause_s
        self._burst_chance = 0.7
        self._eager = eager
        self._old_timestamps = old_timestamps

    def calm_down(self) -> None:
        """Send a record only now and then, while the healed cluster is only watched."""
        self._pause_s, self._burst_chance = CALM_S, 0.0

    async def produce(self, host: Host) -> None:
        """Send numbered records; a producer that fails for good is replaced by another."""
        incarnation = 0
        while not self.stop:
            name = f"{host.name}.{incarnation}"
            incarnation += 1
            producer = self._producer(name)
            try:
                await self._send_all(producer, name, host.rng)
            except HeadraceError as error:
                host.loop.note("producer", name, str(error))
            finally:
                with suppress(HeadraceError):
                    await producer.close(timeout_ms=2 * _DELIVERY_MS)

    async def consume(self, host: Host) -> None:
        """Read as a member of a group, committing now and then."""
        while not self.stop:
            consumer = aio.Consumer(
                self.topic,
                bootstrap_servers=self._bootstrap_servers,
                client_id=host.name,
                group_id="readers",
                auto_offset_reset="earliest",
                enable_auto_commit=True,
                auto_commit_interval_ms=500,
                request_timeout_ms=_REQUEST_MS,
                session_timeout_ms=6000,
                heartbeat_interval_ms=500,
                # The time that a join may wait, also for a coordinator that lost its power.
                max_poll_interval_ms=10_000,
            )
            await read_until(lambda: self.stop, consumer, self.history.see, host, "consumer")

    async def probe(self, name: str) -> None:
        """Write one record to every partition, which must succeed."""
        producer = self._producer(name)
        try:
            for partition in self.partitions:
                value = self.history.send(name, partition, 0)
                future = await producer.send(self.topic, value, partition=partition.partition)
                self.history.acknowledge(value, (await future).offset)
        except HeadraceError as error:
            raise Violation(f"no progress after healing: {error}") from error
        finally:
            await producer.close()

    async def read_all(self) -> dict[TopicPartition, dict[int, bytes]]:
        """All records of the partitions, by offset, as a consumer reads them."""
        return await read_partitions(self._bootstrap_servers, self.partitions)

    def _producer(self, name: str) -> aio.Producer:
        options: dict[str, Any] = {"linger_ms": 2}
        if self._eager:
            options = {"linger_ms": 0, "batch_size": _SMALL_BATCH_BYTES, "max_in_flight": 5}
        return aio.Producer(
            bootstrap_servers=self._bootstrap_servers,
            client_id=name,
            acks="all",
            enable_idempotence=True,
            **options,
            request_timeout_ms=_REQUEST_MS,
            delivery_timeout_ms=_DELIVERY_MS,
            max_block_ms=_DELIVERY_MS,
            metadata_max_age_ms=2_000,
        )

    async def _send_all(self, producer: aio.Producer, name: str, rng: Random) -> None:
        numbers = dict.fromkeys(self.partitions, 0)
        waiting: dict[bytes, Future] = {}
        try:
            while not self.stop:
                partition = rng.choice(self.partitions)
                value = self.history.send(name, partition, numbers[partition])
                numbers[partition] += 1
                future = await producer.send(
                    self.topic,
                    value,
                    headers=_padding(rng),
                    partition=partition.partition,
                    timestamp_ms=self._timestamp(rng),
                )
                waiting[value] = future
                future.add_done_callback(partial(self._settle, waiting, value))
                if rng.random() >= self._burst_chance:
                    await asyncio.sleep(rng.expovariate(1 / self._pause_s))
        finally:
            for future in list(waiting.values()):
                with suppress(HeadraceError):
                    await future

    def _timestamp(self, rng: Random) -> int | None:
        """The timestamp of a record: now, or any time in the last decades."""
        return rng.randrange(_OLD_MS_MAX) if self._old_timestamps and rng.random() < 0.3 else None

    def _settle(self, waiting: dict[bytes, Future], value: bytes, future: Future) -> None:
        del waiting[value]
        error = future.exception()
        if error is None:
            self.history.acknowledge(value, future.result().offset)
        else:
            self.history.failed[value] = str(error)


def _padding(rng: Random) -> list[tuple[str, bytes]]:
    """Padding that makes records of different sizes."""
    return [("padding", bytes(rng.randrange(300)))] if rng.random() < 0.3 else []
