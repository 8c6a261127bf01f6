"""Records that were deleted, with an acknowledgement, stay deleted, whoever leads after a crash."""

import asyncio

from headrace import aio
from headrace.client.admin.topics import EARLIEST, NewTopic
from headrace.testing.simulation.hosts import Simulation
from headrace.testing.simulation.simulated_cluster import SimulatedCluster
from headrace.types import TopicPartition

ORDERS = TopicPartition("orders", 0)
RECORDS, DELETED = 20, 15
# The broker that led is not waited for.
SETTINGS = {"log.flush.interval.messages": "1", "unclean.recovery.timeout.ms": "5000"}


async def new_leader(cluster: SimulatedCluster, old: int) -> int:
    """The id of the broker that leads in place of another one."""
    async with asyncio.timeout(60):
        while True:
            image = cluster.image()
            if image is not None:
                leader = image.topics["orders"].partitions[0].leader
                if leader not in (-1, old):
                    return leader
            await asyncio.sleep(0.1)


def test_deleted_records_are_gone_after_every_follower_lost_power() -> None:
    """Seed 103 of a plan with power losses: followers knew of deletions in memory only."""
    simulation = Simulation(5)
    cluster = SimulatedCluster(simulation, settings=SETTINGS)

    async def scenario() -> None:
        cluster.start()
        assert await cluster.whole(60)
        servers = cluster.bootstrap_servers
        async with aio.Admin(bootstrap_servers=servers) as admin:
            await admin.create_topics([NewTopic("orders", 1, 3)])
            async with aio.Producer(bootstrap_servers=servers) as producer:
                for number in range(RECORDS):
                    await (await producer.send("orders", f"{number}", partition=0))
            assert await admin.delete_records({ORDERS: DELETED}) == {ORDERS: DELETED}
        first = await new_leader(cluster, -1)
        followers = [host for host in cluster.hosts if host is not cluster.hosts[first - 1]]
        cluster.take_down(cluster.hosts[first - 1], power_loss=True)
        await new_leader(cluster, first)
        for host in followers:
            cluster.take_down(host, power_loss=True)
        for host in followers:
            cluster.bring_up(host)
        await new_leader(cluster, first)
        async with aio.Admin(bootstrap_servers=servers) as admin:
            assert (await admin.offsets({ORDERS: EARLIEST}))[ORDERS].offset == DELETED

    simulation.run(scenario(), time_max=300)
    assert not simulation.loop.errors
