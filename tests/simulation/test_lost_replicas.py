"""A disk that fails under one log: others lead the partition, its broker keeps the rest."""

import asyncio

from headrace import aio
from headrace.client.admin.topics import NewTopic
from headrace.errors import StorageError
from headrace.metadata.image import PartitionImage
from headrace.testing.simulation.hosts import Simulation
from headrace.testing.simulation.simulated_cluster import SimulatedCluster

PARTITIONS = 6


def partition_of(cluster: SimulatedCluster, index: int) -> PartitionImage:
    image = cluster.image()
    assert image is not None
    return image.topics["orders"].partitions[index]


async def write(cluster: SimulatedCluster, count: int) -> None:
    """Records to every partition, acknowledged by all that are in sync."""
    async with aio.Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        for number in range(count):
            for index in range(PARTITIONS):
                await producer.send("orders", f"{number}", partition=index)
        await producer.flush()


def test_a_broker_that_lost_one_log_gives_it_away_and_goes_on() -> None:
    simulation = Simulation(7)
    cluster = SimulatedCluster(simulation)

    async def scenario() -> None:
        cluster.start()
        assert await cluster.whole(60)
        async with aio.Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
            await admin.create_topics([NewTopic("orders", PARTITIONS, 3)])
        await write(cluster, 5)
        before = [partition_of(cluster, index) for index in range(PARTITIONS)]
        assert sorted(partition.leader for partition in before) == [1, 1, 2, 2, 3, 3]
        victim = before[0].leader
        host = cluster.hosts[victim - 1]
        node = cluster.node_of(host)
        assert node is not None
        node.replicas.leader_of("orders", 0).log.take_offline(StorageError("a bad block"))

        await write(cluster, 5)
        lost = partition_of(cluster, 0)
        assert lost.leader not in (victim, -1)
        assert (lost.lost_replicas, len(lost.isr)) == ((victim,), 2)
        # The broker lives, and leads what is on good blocks.
        gone, kept = [index for index, partition in enumerate(before) if partition.leader == victim]
        assert (gone, partition_of(cluster, kept).leader) == (0, victim)
        image = cluster.image()
        assert image is not None
        assert not image.brokers[victim].fenced

        host.crash()
        await asyncio.sleep(1)
        host.start()
        assert await cluster.whole(60), cluster.missing()
        assert partition_of(cluster, 0).lost_replicas == ()
        await write(cluster, 5)

    simulation.run(scenario(), time_max=300)
    assert not simulation.loop.errors


def test_a_follower_that_lost_its_log_is_not_put_back_in_sync() -> None:
    simulation = Simulation(8)
    cluster = SimulatedCluster(simulation)

    async def scenario() -> None:
        cluster.start()
        assert await cluster.whole(60)
        async with aio.Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
            await admin.create_topics([NewTopic("orders", PARTITIONS, 3)])
        await write(cluster, 5)
        assert await cluster.whole(60)
        victim = next(number for number in (1, 2, 3) if number != partition_of(cluster, 0).leader)
        node = cluster.node_of(cluster.hosts[victim - 1])
        assert node is not None
        # It has fetched everything, and nothing is written that it would be missed for.
        node.replicas.replica_of("orders", 0).log.take_offline(StorageError("a bad block"))
        for _ in range(120):
            await asyncio.sleep(0.5)
            partition = partition_of(cluster, 0)
            assert victim not in partition.isr or not partition.lost_replicas
        assert partition.lost_replicas == (victim,)

    simulation.run(scenario(), time_max=300)
    assert not simulation.loop.errors
