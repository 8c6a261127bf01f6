"""The check of transactions looks at partitions only after their writers have ended."""

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from headrace.testing.simulation import transactional_workload
from headrace.testing.simulation.history import Records
from headrace.testing.simulation.hosts import Host, Simulation
from headrace.testing.simulation.transactional_workload import (
    LEDGER,
    TransactionalClients,
    TransactionalWorkload,
)
from headrace.types import TopicPartition

PARTITION = TopicPartition(LEDGER, 0)


class NoBrokers:
    """A cluster of which the check sees no partition."""

    bootstrap_servers = ""
    hosts: Sequence[Host] = ()

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation

    def nodes(self) -> Iterator[Any]:
        return iter(())


def test_a_commit_during_the_check_is_no_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    stored: dict[int, bytes] = {}

    async def tell(self: TransactionalClients, host: Host) -> None:
        """Commit a transaction a while after the order to stop."""
        transaction = self.ledger.begin(host.name)
        value = self.ledger.write(transaction, PARTITION)
        while not self.stop_telling:
            await asyncio.sleep(0.1)
        await asyncio.sleep(3)
        stored[0] = value
        transaction.committed = True

    async def wait_for_stop(self: TransactionalClients, host: Host) -> None:
        while not self.stop_reading:
            await asyncio.sleep(0.1)

    async def read_partitions(*_: Any, **__: Any) -> Records:
        """What is there when the read begins; it takes a while."""
        found = dict(stored)
        await asyncio.sleep(5)
        return {PARTITION: found, TopicPartition("copies", 0): {}}

    monkeypatch.setattr(TransactionalClients, "tell", tell)
    monkeypatch.setattr(TransactionalClients, "read", wait_for_stop)
    monkeypatch.setattr(transactional_workload, "read_partitions", read_partitions)
    simulation = Simulation(1)
    cluster: Any = NoBrokers(simulation)
    subject = TransactionalWorkload(
        cluster,
        "orders",
        1,
        0.1,
        tellers=1,
        copiers=0,
        rivals=False,
        hasty=False,
        version_max=2,
        epoch_max=None,
        done_s=60,
    )

    async def drive() -> None:
        for host in subject.hosts:
            host.start()
        await asyncio.sleep(1)
        await subject.finish({})

    simulation.run(drive())
    assert stored
