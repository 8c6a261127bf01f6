"""A topic whose oldest records a client deletes while it writes: DeleteRecords under faults.

Check: what was acknowledged and nobody asked to delete is there, where it was acknowledged; what
was deleted, with an acknowledgement, is never there again.
"""

import asyncio
from contextlib import suppress

from headrace import aio
from headrace.client.admin.topics import EARLIEST, NewTopic
from headrace.errors import HeadraceError
from headrace.testing.simulation.history import Violation
from headrace.testing.simulation.hosts import Host
from headrace.testing.simulation.simulated_cluster import SimulatedCluster
from headrace.testing.simulation.workload import CALM_S, read_partitions
from headrace.types import TopicPartition

TOPIC = "trimmed"
PARTITION = TopicPartition(TOPIC, 0)
_REQUEST_MS, _DELIVERY_MS = 3_000, 8_000
_RECORDS_MAX = 5
_DELETE_CHANCE = 0.3
# Segments of a few records, so that deleting records removes files.
_CONFIGS = {"segment.ms": 300, "file.delete.delay.ms": 500}


class TrimmedLog:
    """The account of the partition: what it must have, and what it must not have any more."""

    def __init__(self) -> None:
        self.acknowledged: dict[int, bytes] = {}
        # Records below the first offset may be deleted, those below the second are.
        self.asked_before = self.deleted_before = 0

    def check_start(self, offset: int, deleted_before: int) -> None:
        """Check where the partition begins; what is deleted may have become more meanwhile."""
        if offset < deleted_before:
            raise Violation(
                f"{PARTITION} begins at offset {offset}, although the records before"
                f" {deleted_before} were deleted"
            )
        if offset > self.asked_before:
            raise Violation(
                f"{PARTITION} begins at offset {offset}, although nobody deleted records from"
                f" {self.asked_before} on"
            )

    def check(self, records: dict[int, bytes]) -> None:
        """Compare with all that the partition has in the end."""
        if records:
            self.check_start(min(*records, self.asked_before), self.deleted_before)
        for offset, value in self.acknowledged.items():
            if offset >= self.asked_before and records.get(offset) != value:
                raise Violation(
                    f"{PARTITION} has {records.get(offset)!r} at offset {offset}, where {value!r}"
                    f" was acknowledged, and only records before {self.asked_before} were to be"
                    " deleted"
                )
        values = list(records.values())
        if len(set(values)) < len(values):
            raise Violation(f"{PARTITION} has a record twice: {records}")


class TrimmedTopic:
    """The client that writes and deletes, on one host."""

    def __init__(self, cluster: SimulatedCluster, pause_s: float, enabled: bool) -> None:
        self.stop = False
        self.log = TrimmedLog()
        self._cluster = cluster
        self._pause_s = pause_s
        self._written = 0
        self._violation: Violation | None = None
        self.hosts = [cluster.simulation.host("x1", self._run)] if enabled else []

    def topics(self) -> list[NewTopic]:
        """The topic, if a client works with it."""
        return [NewTopic(TOPIC, 1, len(self._cluster.hosts), _CONFIGS)] if self.hosts else []

    def calm_down(self) -> None:
        """Work now and then only: the cluster is only watched from now on."""
        self._pause_s = CALM_S

    async def check(self) -> None:
        """Compare the topic with the account, once nobody writes to it any more."""
        if self._violation is not None:
            raise self._violation
        if self.hosts:
            found = await read_partitions(self._cluster.bootstrap_servers, [PARTITION])
            self.log.check(found[PARTITION])

    async def _run(self, host: Host) -> None:
        servers = self._cluster.bootstrap_servers
        while not self.stop:
            try:
                async with aio.Admin(
                    bootstrap_servers=servers,
                    client_id=host.name,
                    request_timeout_ms=_REQUEST_MS,
                ) as admin:
                    await self._work(admin, host)
            except HeadraceError as error:
                host.loop.note("trimmer", host.name, str(error))
                await asyncio.sleep(self._pause_s)
            except Violation as violation:
                self._violation = violation
                return

    async def _work(self, admin: aio.Admin, host: Host) -> None:
        producer = aio.Producer(
            bootstrap_servers=self._cluster.bootstrap_servers,
            client_id=host.name,
            acks="all",
            request_timeout_ms=_REQUEST_MS,
            delivery_timeout_ms=_DELIVERY_MS,
            max_block_ms=_DELIVERY_MS,
        )
        rng, log = host.rng, self.log
        try:
            while not self.stop:
                for _ in range(rng.randint(1, _RECORDS_MAX)):
                    self._written += 1
                    value = f"{self._written}".encode()
                    metadata = await (await producer.send(TOPIC, value, partition=0))
                    log.acknowledged[metadata.offset] = value
                if rng.random() < _DELETE_CHANCE:
                    offset = rng.randint(log.asked_before, max(log.acknowledged) + 1)
                    log.asked_before = offset
                    left = await admin.delete_records({PARTITION: offset})
                    log.deleted_before = max(log.deleted_before, left[PARTITION])
                deleted_before = log.deleted_before
                found = await admin.offsets({PARTITION: EARLIEST})
                log.check_start(found[PARTITION].offset, deleted_before)
                await asyncio.sleep(rng.expovariate(1 / self._pause_s))
        finally:
            with suppress(HeadraceError):
                await producer.close(timeout_ms=_DELIVERY_MS)
