"""The part of a run that is about transactions: its hosts, and what must hold in the end."""

import asyncio
from collections.abc import Callable

from headrace.client.administration.topics import NewTopic
from headrace.testing.simulation.cluster import SimulatedCluster
from headrace.testing.simulation.history import Violation
from headrace.testing.simulation.ledger import Ledger, Records, check_copy, check_seen
from headrace.testing.simulation.reading import read_partitions
from headrace.testing.simulation.transactional import COPY, LEDGER, TransactionalClients
from headrace.types import TopicPartition

_POLL_S = 0.2


class Transactions:
    """Tellers, copiers and a reader of committed records; nobody if there is nothing to read."""

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
        done_s: float,
    ) -> None:
        """`version_max` limits the version of transactions that clients speak.

        `done_s` is how long it may take after healing until all is copied and decided.
        """
        self._cluster = cluster
        self._done_s = done_s
        self._source = source
        self._partitions = partitions
        self._copies = copiers > 0
        self.ledger = Ledger()
        # Whether nothing happens in this run for which a producer may be fenced.
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

    def topics(self) -> list[NewTopic]:
        """What they write to."""
        names = (LEDGER, COPY) if self.hosts else ()
        return [NewTopic(name, self._partitions, len(self._cluster.hosts)) for name in names]

    async def probe(self) -> None:
        """One transaction must be committed, now that all is healed."""
        if self.hosts:
            await self.clients.probe(self._cluster.simulation.driver)

    async def finish(self, sources: Records) -> None:
        """End their work, once everything is copied that the source has, and look at all of it."""
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
        # A writer that still runs commits after the look at the partitions: it must have ended.
        await self._until(lambda: not self._running(), self._running)
        await self._until(lambda: not self._unstable(), self._unstable)
        partitions = clients.partitions_of(LEDGER) + clients.partitions_of(COPY)
        found = await read_partitions(
            self._cluster.bootstrap_servers, partitions, isolation_level="read_committed"
        )
        clients.stop_reading = True
        self.ledger.check({one: found[one] for one in clients.partitions_of(LEDGER)})
        copies = {one: found[one] for one in clients.partitions_of(COPY)}
        check_seen(self.ledger.seen, copies)
        if self._copies:
            self._check_copies(sources, copies)

    def _seen_copies(self) -> Records:
        """What the reader was given of the copies so far."""
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
        """Which tellers and copiers have not ended yet, if any."""
        names = [host.name for host in self.writers if host.process is not None]
        return f"clients do not end: {names}" if names else ""

    def _unstable(self) -> str:
        """Which transaction is still open, if one is: whoever began it has gone."""
        for _, node in self._cluster.nodes():
            for partition in node.replicas:
                if partition.is_leader and partition.name.topic in (LEDGER, COPY):
                    stable, end = partition.last_stable_offset, partition.high_watermark
                    if stable < end:
                        return f"{partition.name} is stable up to {stable} of {end} for ever"
        return ""
