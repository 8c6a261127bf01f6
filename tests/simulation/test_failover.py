"""How long partitions are without a leader, in the simulator's time, which no load disturbs.

And that no controller is replaced that is reached and runs.
"""

import asyncio

import pytest

from headrace import aio
from headrace.client.admin.topics import NewTopic
from headrace.testing.simulation.faults import Faults
from headrace.testing.simulation.hosts import Simulation
from headrace.testing.simulation.simulated_cluster import SimulatedCluster


@pytest.mark.parametrize("fault", ["kill", "pause"])
@pytest.mark.parametrize("controller", [False, True], ids=["a broker", "the controller"])
def test_others_lead_soon_and_pay_nothing(fault: str, *, controller: bool) -> None:
    simulation = Simulation(3)
    cluster = SimulatedCluster(simulation)

    async def scenario() -> None:
        cluster.start()
        assert await cluster.whole(60)
        async with aio.Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
            await admin.create_topics([NewTopic("orders", 6, 3)])
        assert await cluster.whole(60)
        [active] = [node.node_id for _, node in cluster.nodes() if node.store.is_active]
        victim = active if controller else active % 3 + 1
        host = cluster.hosts[victim - 1]
        began = simulation.now
        if fault == "kill":
            cluster.take_down(host, power_loss=False)
        else:
            host.pause(30)
        while not led_by_others(cluster, victim):
            assert simulation.now - began < 4
            # Those who are well may write all the time, whoever is the controller.
            others = [node for _, node in cluster.nodes() if node.node_id != victim]
            assert all(node.membership.may_write for node in others)
            await asyncio.sleep(0.02)

    simulation.run(scenario(), time_max=300)


@pytest.mark.parametrize("seed", range(3))
def test_a_busy_machine_replaces_no_controller(seed: int) -> None:
    """Every broker waits for its turn again and again, none but all at once for long."""
    simulation = Simulation(seed)
    cluster = SimulatedCluster(simulation)

    async def scenario() -> None:
        cluster.start()
        assert await cluster.whole(60)
        epochs = {node.quorum.leader.epoch for _, node in cluster.nodes()}
        await Faults(cluster, [], kinds=["busy"], mean_gap_s=0.1).run(20)
        assert await cluster.whole(60)
        assert {node.quorum.leader.epoch for _, node in cluster.nodes()} == epochs

    simulation.run(scenario(), time_max=300)


def led_by_others(cluster: SimulatedCluster, victim: int) -> bool:
    for _, node in cluster.nodes():
        if node.store.is_active and node.node_id != victim:
            partitions = node.store.image.topics["orders"].partitions
            return all(partition.leader not in (victim, -1) for partition in partitions)
    return False
