"""A bug in a simulated broker ends that broker, fails the run, and is shown with its place."""

import asyncio

import pytest

from headrace.broker.replication.isr_proposals import IsrProposer
from headrace.testing.simulation.hosts import Simulation
from headrace.testing.simulation.simulated_cluster import SimulatedCluster


def test_a_broker_with_a_bug_stops_by_itself_and_starts_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    simulation = Simulation(5)
    cluster = SimulatedCluster(simulation, settings={"replica.lag.time.max.ms": "800"})
    planted = AssertionError("planted")

    async def mark_all_due(keeper: IsrProposer) -> None:
        if keeper._node_id == 2:
            monkeypatch.undo()
            raise planted

    async def scenario() -> None:
        cluster.start()
        assert await cluster.whole(60)
        monkeypatch.setattr(IsrProposer, "_mark_all_due", mark_all_due)
        while not cluster.fatal:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.01)
        assert cluster.node_of(cluster.hosts[1]) is None
        assert await cluster.whole(60)

    simulation.run(scenario(), time_max=300)
    [stopped] = cluster.fatal
    assert "b2: stopped by itself with status 70: bug in task in-sync replicas" in stopped
    [error] = simulation.loop.errors  # Which fails a run of seeds.
    assert "b2: bug in task in-sync replicas" in error
