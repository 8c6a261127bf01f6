"""Transactional clients of a simulated cluster, their hosts, and checks of their effects."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from random import Random
from typing import Any
from unittest.mock import patch

from headrace import aio
from headrace.client.admin.topics import NewTopic
from headrace.client.errors import ProducerFenced, TransactionAbortable
from headrace.coordinator.transactions import decisions, transaction_metadata
from headrace.errors import HeadraceError
from headrace.protocol.consumer_records import ConsumerRecord
from headrace.testing.simulation.history import (
    RecordedTransaction,
    Records,
    TransactionHistory,
    Violation,
    check_copy,
    check_seen,
)
from headrace.testing.simulation.hosts import Host
from headrace.testing.simulation.simulated_cluster import SimulatedCluster
from headrace.testing.simulation.workload import CALM_S, read_partitions, read_until
from headrace.types import TopicPartition

# Transactional clients of a simulated cluster, and read_committed readers.
#
# Tellers write transactions over several partitions. Copiers copy a topic into another, with their
# offsets in the source as a part of each transaction. Both abort now and then; hasty tellers also
# right after a commit, when little or nothing of the next transaction is sent. Rivals have one
# transactional id for two hosts: each fences the other when it restarts.
#
# In some runs the epochs of a producer id are few, so that producer ids are used up. At the end of
# such a run a leaver dies for good with a transaction open at the last epoch, and its coordinator
# moves: the next coordinator must abort that transaction, although no request comes.


LEDGER, COPY = "ledger", "copies"
_BLOCK_MS = 8_000
_REQUEST_MS = 3_000
_TRANSACTION_MS = 6_000
_ABORT_CHANCE = 0.25
_RECORDS_MAX = 100
_CALM_RECORDS_MAX = 1_000
_TAKEN_OVER_S = 2.0
# The linger time of a batch, or a little longer.
_HASTE_S = 0.006
# How often the next transaction begins right after such an abort.
_HASTE_CHANCE = 0.5
_LEAVER = "leaver"


@contextmanager
def epochs_up_to(epoch_max: int | None) -> Iterator[None]:
    """Use producer ids up at epoch `epoch_max` instead of 32767, which no run would reach."""
    if epoch_max is None:
        yield
        return
    client_max = epoch_max - 1
    with (
        patch.multiple(transaction_metadata, EPOCH_MAX=epoch_max, CLIENT_EPOCH_MAX=client_max),
        patch.multiple(decisions, CLIENT_EPOCH_MAX=client_max),
    ):
        yield


class TransactionalClients:
    """The clients that run on their hosts until they are stopped."""

    def __init__(
        self,
        ledger: TransactionHistory,
        bootstrap_servers: str,
        source: str,
        partitions: int,
        pause_s: float,
        *,
        rivals: bool,
        hasty: bool,
        version_max: int,
        epoch_max: int | None,
    ) -> None:
        self.ledger = ledger
        # The hosts of hasty producers that were fenced.
        self.fenced: list[str] = []
        self._hasty = hasty
        self._version_max = version_max
        self.epoch_max = epoch_max
        self.has_left = False
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
        """Slow down, and stop one of two rivals, while the healed cluster is only watched."""
        self.slow_down()
        self._is_calm = True

    def slow_down(self) -> None:
        """Begin transactions only now and then."""
        self._pause_s = CALM_S

    def _retires(self, host: Host) -> bool:
        return self._rivals and self._is_calm and not host.name.endswith("1")

    def partitions_of(self, topic: str) -> list[TopicPartition]:
        return [TopicPartition(topic, number) for number in self._partitions]

    # -- tellers

    async def tell(self, host: Host) -> None:
        """Write transactions; a producer that fails for good is replaced by another."""
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
                        if host.rng.random() < _HASTE_CHANCE:
                            continue
            except TransactionAbortable as error:
                host.loop.note("aborting", host.name, str(error))
                await producer.abort_transaction()
                transaction.committed = False
            await asyncio.sleep(host.rng.expovariate(1 / self._pause_s))

    async def _abort_at_once(self, producer: aio.Producer, host: Host) -> None:
        """Abort a transaction whose records are sent or about to be, without waiting for them."""
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

    async def _write(
        self, producer: aio.Producer, transaction: RecordedTransaction, rng: Random
    ) -> None:
        for _ in range(rng.randint(1, 6)):
            partition = TopicPartition(LEDGER, rng.choice(self._partitions))
            value = self.ledger.write(transaction, partition)
            await producer.send(LEDGER, value, partition=partition.partition)
            if rng.random() < 0.3:
                await asyncio.sleep(rng.expovariate(1 / self._pause_s))

    async def probe(self, host: Host) -> None:
        """Write one transaction over all partitions, which must be committed."""
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

    # -- leavers

    async def leave(self, host: Host) -> None:
        """Raise the epoch to the last one, write a transaction, and never end it."""
        assert self.epoch_max is not None
        for _ in range(self.epoch_max - 1):
            producer = self._producer(host, _LEAVER)
            await producer.init_transactions()
            await _close(producer)
        producer = self._producer(host, _LEAVER)
        transaction = self.ledger.begin(host.name)
        await producer.begin_transaction()
        for partition in self.partitions_of(LEDGER):
            value = self.ledger.write(transaction, partition)
            await producer.send(LEDGER, value, partition=partition.partition)
        await producer.flush()
        transaction.committed = False
        self.has_left = True
        await asyncio.Event().wait()

    def leaver_id(self, host: Host) -> str:
        return self._transactional_id(host, _LEAVER)

    # -- copiers

    async def copy(self, host: Host) -> None:
        """Copy the source; after any failure, restart where the last transaction ended."""
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
        # The previous copier is fenced first: only then its last commit is known for good.
        await producer.init_transactions()
        if self._rivals:
            consumer.assign(self.partitions_of(self._source))
        else:
            consumer.subscribe([self._source])
        while not self.stop_copying and not self._retires(host):
            # A copier must catch up in the end, however many records were written.
            most = _CALM_RECORDS_MAX if self._is_calm else _RECORDS_MAX
            records = await consumer.poll(300, max_records=most)
            if records and not await self._copy_some(producer, consumer, records, host.rng):
                for partition, offset in _starts(records).items():
                    consumer.seek(partition, offset)
            await asyncio.sleep(host.rng.expovariate(1 / self._pause_s))

    async def _copy_some(
        self,
        producer: aio.Producer,
        consumer: aio.Consumer,
        records: Sequence[ConsumerRecord],
        rng: Random,
    ) -> bool:
        """Copy records in one transaction; returns whether it was committed."""
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
        """Read the committed records from the beginning, repeatedly."""
        while not self.stop_reading:
            consumer = self._consumer(host, None)
            consumer.assign(self.partitions_of(LEDGER) + self.partitions_of(COPY))
            await read_until(lambda: self.stop_reading, consumer, self.ledger.see, host, "reader")

    def seen(self, topic: str) -> int:
        """The number of committed records of a topic that readers have read."""
        return self.ledger.seen_counts[topic]

    # -- parts

    async def _abandoned(self, host: Host, work: Coroutine[Any, Any, None]) -> None:
        """Run until done or failed for good; rivals then pause to let each other work."""
        try:
            await work
        except HeadraceError as error:
            host.loop.note("abandoned", host.name, str(error))
            await asyncio.sleep(host.rng.expovariate(1 / _TAKEN_OVER_S))

    def _transactional_id(self, host: Host, role: str) -> str:
        return role if self._rivals else f"{role}-{host.name}"

    def _producer(self, host: Host, role: str) -> aio.Producer:
        producer = aio.Producer(
            bootstrap_servers=self._bootstrap_servers,
            client_id=host.name,
            transactional_id=self._transactional_id(host, role),
            transaction_timeout_ms=_TRANSACTION_MS,
            linger_ms=2,
            request_timeout_ms=_REQUEST_MS,
            delivery_timeout_ms=_BLOCK_MS,
            max_block_ms=_BLOCK_MS,
            metadata_max_age_ms=2_000,
        )
        # Applications have no reason to choose it, so there is no option.
        transactor = producer._engine.sender.transactor
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


_POLL_S = 0.2


class TransactionalWorkload:
    """Tellers, copiers and a read_committed reader; empty without tellers and copiers."""

    def __init__(
        self,
        cluster: SimulatedCluster,
        source: str,
        partitions: int,
        pause_s: float,
        *,
        tellers: int,
        copiers: int,
        rivals: bool,
        hasty: bool,
        version_max: int,
        epoch_max: int | None,
        done_s: float,
    ) -> None:
        """`version_max` limits the transaction version of the clients.

        `epoch_max` is that of the run's `epochs_up_to`. `done_s` is the time after healing until
        all is copied and decided.
        """
        self._cluster = cluster
        self._done_s = done_s
        self._source = source
        self._partitions = partitions
        self._copies = copiers > 0
        self.ledger = TransactionHistory()
        # Whether no fault of this run can cause a producer to be fenced.
        self.is_fencing_wrong = False
        self.clients = TransactionalClients(
            self.ledger,
            cluster.bootstrap_servers,
            source,
            partitions,
            pause_s,
            rivals=rivals,
            hasty=hasty,
            version_max=version_max,
            epoch_max=epoch_max,
        )
        simulation, clients = cluster.simulation, self.clients
        self.writers = [
            simulation.host(f"{role}{number}", work)
            for role, work, count in (("t", clients.tell, tellers), ("k", clients.copy, copiers))
            for number in range(1, count + 1)
        ]
        self.hosts = list(self.writers)
        if self.writers:
            self.hosts.append(simulation.host("r1", clients.read))
        self._leaver = simulation.host("l1", clients.leave) if epoch_max is not None else None

    def topics(self) -> list[NewTopic]:
        """The topics that they write to."""
        names = (LEDGER, COPY) if self.hosts else ()
        return [NewTopic(name, self._partitions, len(self._cluster.hosts)) for name in names]

    async def probe(self) -> None:
        """Check that a transaction can be committed, now that all is healed."""
        if self.hosts:
            await self.clients.probe(self._cluster.simulation.driver)

    async def finish(self, sources: Records) -> None:
        """End the clients, once everything in the source is copied, and check all results."""
        if not self.hosts:
            return
        clients = self.clients
        if self.is_fencing_wrong and clients.fenced:
            raise Violation(f"the producer of {clients.fenced[0]} is fenced, and nobody has its id")
        clients.stop_telling = True
        if self._copies:
            wanted = sum(map(len, sources.values()))
            self._check_copies(sources, self._seen_copies(), whole=False)
            await self._until(
                lambda: clients.seen(COPY) >= wanted,
                lambda: f"of {wanted} records {clients.seen(COPY)} are copied after healing",
            )
        clients.stop_copying = True
        # A running writer commits after the partitions were read: it must have ended.
        await self._until(lambda: not self._running(), self._running)
        if self._leaver is not None:
            await self._leave(self._leaver)
        await self._until(lambda: not self._unstable(), self._unstable)
        partitions = clients.partitions_of(LEDGER) + clients.partitions_of(COPY)
        found = await read_partitions(
            self._cluster.bootstrap_servers, partitions, isolation_level="read_committed"
        )
        clients.stop_reading = True
        self.ledger.check({tp: found[tp] for tp in clients.partitions_of(LEDGER)})
        copies = {tp: found[tp] for tp in clients.partitions_of(COPY)}
        check_seen(self.ledger.seen, copies)
        if self._copies:
            self._check_copies(sources, copies)

    async def _leave(self, leaver: Host) -> None:
        """Kill the leaver with its transaction open, and move its coordinator."""
        leaver.start()
        await self._until(
            lambda: self.clients.has_left, lambda: "no transaction can be written after healing"
        )
        leaver.crash(power_loss=False)
        coordinator = self._coordinator_of(self.clients.leaver_id(leaver))
        self._cluster.take_down(coordinator, power_loss=False)
        await asyncio.sleep(_TAKEN_OVER_S)
        self._cluster.bring_up(coordinator)
        await self._until(self._cluster.is_whole, self._cluster.missing)

    def _coordinator_of(self, transactional_id: str) -> Host:
        for host, node in self._cluster.nodes():
            with suppress(HeadraceError):
                node.transactions.shards.driver_of(transactional_id)
                return host
        raise Violation(f"{transactional_id} has no coordinator after healing")

    def _seen_copies(self) -> Records:
        """The copies that the reader has read so far."""
        found: dict[TopicPartition, dict[int, bytes]] = {}
        for (partition, offset), value in self.ledger.seen.items():
            if partition.topic == COPY:
                found.setdefault(partition, {})[offset] = value
        return found

    def _check_copies(self, sources: Records, copies: Records, *, whole: bool = True) -> None:
        for partition, records in copies.items():
            source = TopicPartition(self._source, partition.partition)
            check_copy(sources[source], records, partition, whole=whole)

    async def _until(self, done: Callable[[], bool], problem: Callable[[], str]) -> None:
        until = self._cluster.simulation.now + self._done_s
        while not done():
            if self._cluster.simulation.now > until:
                raise Violation(problem())
            await asyncio.sleep(_POLL_S)

    def _running(self) -> str:
        """The tellers and copiers that have not ended yet; empty if all have."""
        names = [host.name for host in self.writers if host.process is not None]
        return f"clients do not end: {names}" if names else ""

    def _unstable(self) -> str:
        """A partition with a transaction that stays open after its client has ended; or empty."""
        for _, node in self._cluster.nodes():
            for partition in node.replicas:
                if partition.is_leader and partition.name.topic in (LEDGER, COPY):
                    stable, end = partition.last_stable_offset, partition.high_watermark
                    if stable < end:
                        return f"{partition.name} is stable up to {stable} of {end} for ever"
        return ""
