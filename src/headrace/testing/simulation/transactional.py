"""Clients of a simulated cluster that work in transactions, and readers of what they committed.

Tellers write transactions over several partitions. Copiers copy a topic into another, with their
place in the source as a part of each transaction. Both abort now and then; hasty tellers also
right after a commit, when little or nothing of the next transaction is sent. Rivals have one
transactional id for two hosts: each fences the other when it begins anew.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from random import Random
from typing import Any

from headrace import aio
from headrace.client.failures import ProducerFenced, TransactionAbortable
from headrace.errors import HeadraceError
from headrace.protocol.consumer_records import ConsumerRecord
from headrace.testing.simulation.history import Violation
from headrace.testing.simulation.hosts import Host
from headrace.testing.simulation.ledger import Ledger, Transaction
from headrace.types import TopicPartition

LEDGER, COPY = "ledger", "copies"
_BLOCK_MS = 8_000
_REQUEST_MS = 3_000
_TRANSACTION_MS = 6_000
_ABORT_CHANCE = 0.25
_RECORDS_MAX = 100
_CALM_RECORDS_MAX = 1_000
_TAKEN_OVER_S = 2.0
# As long as a batch lingers, or a little longer.
_HASTE_S = 0.006


class TransactionalClients:
    """What runs on client hosts until they are told to stop."""

    def __init__(
        self,
        ledger: Ledger,
        bootstrap_servers: str,
        source: str,
        partitions: int,
        pause_s: float,
        *,
        rivals: bool,
        hasty: bool,
        version_max: int,
    ) -> None:
        self.ledger = ledger
        # The hosts of hasty producers that were fenced.
        self.fenced: list[str] = []
        self._hasty = hasty
        self._version_max = version_max
        self.stop_telling = False
        self.stop_copying = False
        self.stop_reading = False
        self._bootstrap_servers = bootstrap_servers
        self._source = source
        self._partitions = range(partitions)
        self._pause_s = pause_s
        self._rivals = rivals
        self._is_calm = False

    def calm_down(self) -> None:
        """From now on the cluster is only watched; of rivals one is left."""
        self._pause_s, self._is_calm = 0.2, True

    def _retires(self, host: Host) -> bool:
        return self._rivals and self._is_calm and not host.name.endswith("1")

    def partitions_of(self, topic: str) -> list[TopicPartition]:
        return [TopicPartition(topic, number) for number in self._partitions]

    # -- tellers

    async def tell(self, host: Host) -> None:
        """Write transactions; a producer that cannot go on is replaced by another."""
        while not self.stop_telling and not self._retires(host):
            producer = self._producer(host, "teller")
            try:
                await self._abandoned(host, self._tell_all(producer, host))
            finally:
                await _close(producer)

    async def _tell_all(self, producer: aio.Producer, host: Host) -> None:
        while not self.stop_telling and not self._retires(host):
            transaction = self.ledger.begin(host.name)
            await producer.begin_transaction()
            try:
                await self._write(producer, transaction, host.rng)
                if host.rng.random() < _ABORT_CHANCE:
                    await producer.abort_transaction()
                    transaction.committed = False
                else:
                    await producer.commit_transaction()
                    transaction.committed = True
                    if self._hasty:
                        await self._abort_at_once(producer, host)
                        continue
            except TransactionAbortable as error:
                host.loop.note("aborting", host.name, str(error))
                await producer.abort_transaction()
                transaction.committed = False
            await asyncio.sleep(host.rng.expovariate(1 / self._pause_s))

    async def _abort_at_once(self, producer: aio.Producer, host: Host) -> None:
        """Abort a transaction whose records are sent or about to be, and wait for nothing."""
        transaction = self.ledger.begin(host.name)
        await producer.begin_transaction()
        for partition in host.rng.sample(
            self._partitions, min(host.rng.randint(1, 2), len(self._partitions))
        ):
            value = self.ledger.write(transaction, TopicPartition(LEDGER, partition))
            await producer.send(LEDGER, value, partition=partition)
        await asyncio.sleep(host.rng.uniform(0, _HASTE_S))
        try:
            await producer.abort_transaction()
        except ProducerFenced:
            self.fenced.append(host.name)
            raise
        transaction.committed = False

    async def _write(self, producer: aio.Producer, transaction: Transaction, rng: Random) -> None:
        for _ in range(rng.randint(1, 6)):
            partition = TopicPartition(LEDGER, rng.choice(self._partitions))
            value = self.ledger.write(transaction, partition)
            await producer.send(LEDGER, value, partition=partition.partition)
            if rng.random() < 0.3:
                await asyncio.sleep(rng.expovariate(1 / self._pause_s))

    async def probe(self, host: Host) -> None:
        """One transaction over all partitions, which must be committed."""
        producer = self._producer(host, "probe")
        transaction = self.ledger.begin("probe")
        try:
            await producer.begin_transaction()
            for partition in self.partitions_of(LEDGER):
                value = self.ledger.write(transaction, partition)
                await producer.send(LEDGER, value, partition=partition.partition)
            await producer.commit_transaction()
            transaction.committed = True
        except HeadraceError as error:
            raise Violation(f"no transaction can be committed after healing: {error}") from error
        finally:
            await _close(producer)

    # -- copiers

    async def copy(self, host: Host) -> None:
        """Copy the source; whatever fails, begin anew where the last transaction ended."""
        while not self.stop_copying and not self._retires(host):
            producer = self._producer(host, "copier")
            consumer = self._consumer(host, "copiers")
            try:
                await self._abandoned(host, self._copy_all(producer, consumer, host))
            finally:
                await _close(producer)
                with suppress(HeadraceError):
                    await consumer.close()

    async def _copy_all(self, producer: aio.Producer, consumer: aio.Consumer, host: Host) -> None:
        # Whoever was here before is fenced first: only then its last commit is known for good.
        await producer.init_transactions()
        if self._rivals:
            consumer.assign(self.partitions_of(self._source))
        else:
            consumer.subscribe([self._source])
        while not self.stop_copying and not self._retires(host):
            # A copier must keep up in the end, however much was made.
            most = _CALM_RECORDS_MAX if self._is_calm else _RECORDS_MAX
            records = await consumer.poll(300, max_records=most)
            if records and not await self._copy_some(producer, consumer, records, host.rng):
                for partition, offset in _starts(records).items():
                    consumer.seek(partition, offset)

    async def _copy_some(
        self,
        producer: aio.Producer,
        consumer: aio.Consumer,
        records: Sequence[ConsumerRecord],
        rng: Random,
    ) -> bool:
        """One transaction; whether it was committed."""
        doomed = rng.random() < _ABORT_CHANCE
        await producer.begin_transaction()
        try:
            for record in records:
                value = self.ledger.doom(bytes(record.value)) if doomed else bytes(record.value)
                await producer.send(COPY, value, partition=record.partition)
            group = consumer.group_metadata()
            await producer.send_offsets_to_transaction(_ends(records), group)
            if not doomed:
                await producer.commit_transaction()
                return True
            await producer.flush()
        except TransactionAbortable:
            pass
        await producer.abort_transaction()
        return False

    # -- readers

    async def read(self, host: Host) -> None:
        """Read what is committed, from the beginning, again and again."""
        while not self.stop_reading:
            consumer = self._consumer(host, None)
            consumer.assign(self.partitions_of(LEDGER) + self.partitions_of(COPY))
            try:
                while not self.stop_reading:
                    for record in await consumer.poll(500):
                        partition = TopicPartition(record.topic, record.partition)
                        self.ledger.see(partition, record.offset, bytes(record.value))
            except HeadraceError as error:
                host.loop.note("reader", host.name, str(error))
                await asyncio.sleep(1)
            finally:
                with suppress(HeadraceError):
                    await consumer.close()

    def seen(self, topic: str) -> int:
        """How many committed records of a topic readers were given."""
        return self.ledger.seen_counts[topic]

    # -- what they are made of

    async def _abandoned(self, host: Host, work: Coroutine[Any, Any, None]) -> None:
        """Work until it is done or fails for good; rivals give each other some time then."""
        try:
            await work
        except HeadraceError as error:
            host.loop.note("abandoned", host.name, str(error))
            await asyncio.sleep(host.rng.expovariate(1 / _TAKEN_OVER_S))

    def _producer(self, host: Host, role: str) -> aio.Producer:
        producer = aio.Producer(
            bootstrap_servers=self._bootstrap_servers,
            client_id=host.name,
            transactional_id=role if self._rivals else f"{role}-{host.name}",
            transaction_timeout_ms=_TRANSACTION_MS,
            linger_ms=2,
            request_timeout_ms=_REQUEST_MS,
            delivery_timeout_ms=_BLOCK_MS,
            max_block_ms=_BLOCK_MS,
            metadata_max_age_ms=2_000,
        )
        # No application has a reason to choose it, so no option does.
        transactor = producer._sender.transactor
        assert transactor is not None
        transactor.version_max = self._version_max
        return producer

    def _consumer(self, host: Host, group_id: str | None) -> aio.Consumer:
        return aio.Consumer(
            bootstrap_servers=self._bootstrap_servers,
            client_id=host.name,
            group_id=group_id,
            isolation_level="read_committed",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            request_timeout_ms=_REQUEST_MS,
            session_timeout_ms=6_000,
            heartbeat_interval_ms=500,
            max_poll_interval_ms=10_000,
        )


def _starts(records: Sequence[ConsumerRecord]) -> dict[TopicPartition, int]:
    starts: dict[TopicPartition, int] = {}
    for record in records:
        starts.setdefault(TopicPartition(record.topic, record.partition), record.offset)
    return starts


def _ends(records: Sequence[ConsumerRecord]) -> dict[TopicPartition, int]:
    return {TopicPartition(record.topic, record.partition): record.offset + 1 for record in records}


async def _close(producer: aio.Producer) -> None:
    with suppress(HeadraceError):
        await producer.close(timeout_ms=_BLOCK_MS)
