"""A stop of a cluster: each broker lets go of what it leads, and none waits long for another."""

import asyncio
import signal

import pytest

from headrace import aio
from headrace.client.admin.topics import NewTopic
from headrace.testing.simulation.hosts import Simulation
from headrace.testing.simulation.simulated_cluster import SimulatedCluster

STOP_S_MAX = 10.0


@pytest.mark.parametrize("gap_s", [0.0, 0.3, 2.0], ids=["at once", "nearly", "in turn"])
def test_three_idle_brokers_stop_within_ten_seconds_in_all(gap_s: float) -> None:
    simulation = Simulation(7)
    cluster = SimulatedCluster(simulation)

    async def scenario() -> float:
        cluster.start()
        assert await cluster.whole(60)
        async with aio.Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
            await admin.create_topics([NewTopic("orders", 6, 3)])
        assert await cluster.whole(60)
        began = simulation.now
        for host in cluster.hosts:
            host.signal(signal.SIGTERM)
            await asyncio.sleep(gap_s)
        async with asyncio.timeout(120):
            while any(host.process is not None for host in cluster.hosts):
                await asyncio.sleep(0.05)
        return simulation.now - began

    took_s = simulation.run(scenario(), time_max=300)
    assert not simulation.loop.errors
    assert not cluster.fatal
    assert took_s < STOP_S_MAX
