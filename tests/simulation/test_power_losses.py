"""Losses of power at the worst moment, as seeds have found them: of new logs and of cut ones."""

import asyncio
from random import Random

import pytest

from headrace import aio
from headrace.client.admin.topics import NewTopic
from headrace.storage.checkpoints import LEADER_EPOCHS
from headrace.storage.log import Log
from headrace.testing.simulation.hosts import Host, Simulation
from headrace.testing.simulation.invariants import check_log_files, check_replicas_equal
from headrace.testing.simulation.run import RunPlan, SimulationRun
from headrace.testing.simulation.simulated_cluster import DATA, SimulatedCluster
from headrace.testing.simulation.simulated_disk import FileNode
from headrace.types import TopicPartition

# Topics are made, brokers are killed, and only then records are written and power is lost.
NEW_LOGS = RunPlan(
    kinds=("kill", "torn_write", "split", "pause", "one_way_cut"),
    durable=True,
    mean_gap_s=0.4,
    producers=1,
    seconds=4,
    unused_s=1.0,
    healed_s=20,
)
ORDERS = TopicPartition("orders", 0)


def test_a_log_made_before_a_kill_is_there_when_power_is_lost() -> None:
    """Seed 88008 of an earlier tree: the next process never flushed the names of its files."""
    assert SimulationRun(88012, NEW_LOGS).outcome().problem == ""


async def send(cluster: SimulatedCluster, value: str, count: int) -> None:
    """Records that the leader alone acknowledges."""
    servers = cluster.bootstrap_servers
    async with aio.Producer(
        bootstrap_servers=servers, acks=1, enable_idempotence=False
    ) as producer:
        for number in range(count):
            await (await producer.send("orders", f"{value}{number}", partition=0))


def leader_of(cluster: SimulatedCluster) -> Host:
    image = cluster.image()
    assert image is not None
    return cluster.hosts[image.topics["orders"].partitions[0].leader - 1]


def log_of(cluster: SimulatedCluster, host: Host) -> Log:
    node = cluster.node_of(host)
    assert node is not None
    logs = [partition.log for partition in node.replicas if partition.name == ORDERS]
    assert logs, f"{host.name} has taken its log of {ORDERS} offline"
    return logs[0]


class LoseAll(Random):
    """The draws with which a loss of power takes all that was not flushed."""

    def random(self) -> float:
        return 0.99

    def randint(self, a: int, b: int) -> int:
        return a


def lose_all_but_epochs(cluster: SimulatedCluster, host: Host) -> None:
    """Lose power; of what was not flushed only the renamed file of epochs is there afterwards."""
    disk, rng = host.disk, host.disk.rng
    directory, name = disk.parent(f"{DATA}/{ORDERS}/{LEADER_EPOCHS}")
    epochs = directory.names[name]
    assert isinstance(epochs, FileNode)
    epochs.flush()
    disk.sync_directory(directory)
    disk.rng = LoseAll(0)
    cluster.take_down(host, power_loss=True)
    disk.rng = rng


@pytest.mark.parametrize("seed", [0, 1])
def test_a_cut_that_a_loss_of_power_undoes_leaves_no_batch_of_a_dead_epoch(seed: int) -> None:
    """Seed 71041 of an earlier tree: the file of epochs, renamed already, hid the old batches.

    Cuts are flushed at once, epochs are those of the batches, and a start reads the last segment:
    without the first two the last one takes the log offline.
    """
    simulation = Simulation(seed)
    cluster = SimulatedCluster(simulation)

    async def scenario() -> None:
        cluster.start()
        assert await cluster.whole(60)
        async with aio.Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
            await admin.create_topics([NewTopic("orders", 1, 3)])
        assert await cluster.whole(60)
        await send(cluster, "common", 3)
        await asyncio.sleep(1)
        old = leader_of(cluster)
        others = [host for host in cluster.hosts if host is not old]
        heal = simulation.network.cut([old], others)
        await send(cluster, "alone", 6)
        log = log_of(cluster, old)
        old_epoch = log.epochs.latest
        # All of it is on disk, as after a segment was rolled.
        log.flush()
        async with asyncio.timeout(60):
            while leader_of(cluster) is old:
                await asyncio.sleep(0.1)
        old.pause(5)  # Nobody is to write to it by mistake.
        await send(cluster, "new", 9)
        heal()
        async with asyncio.timeout(60):
            while log.epochs.latest == old_epoch:
                await asyncio.sleep(0.0005)
        lose_all_but_epochs(cluster, old)
        await asyncio.sleep(0.5)
        cluster.bring_up(old)
        assert await cluster.whole(60), cluster.missing()
        await send(cluster, "last", 1)
        async with asyncio.timeout(30):
            while len({log_of(cluster, host).log_end_offset for host in cluster.hosts}) > 1:
                await asyncio.sleep(0.1)
        assert check_replicas_equal(cluster) is None
        assert check_log_files(cluster) is None

    simulation.run(scenario(), time_max=300)
