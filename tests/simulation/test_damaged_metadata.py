"""Files of the metadata damaged on one node of three, round by round: no topic is ever lost."""

import asyncio
import re
from random import Random

import pytest

from headrace import aio
from headrace.client.admin.topics import NewTopic
from headrace.testing.simulation.hosts import Simulation
from headrace.testing.simulation.simulated_cluster import SimulatedCluster
from headrace.testing.simulation.simulated_disk import DirectoryNode, FileNode, SimulatedDisk

ROUNDS = 12
DATA = "/data"
METADATA = f"{DATA}/__cluster_metadata-0"
# Snapshots after a few topics, so that there are some to damage.
SETTINGS = {"metadata.log.max.record.bytes.between.snapshots": "1500"}


def damage(disk: SimulatedDisk, rng: Random) -> str:
    """Damage one of the metadata's files in some way; which and how."""
    found: list[tuple[DirectoryNode, str, FileNode]] = []
    for path in (METADATA, DATA):
        directory = disk.directory(path)
        found += [
            (directory, name, node)
            for name, node in sorted(directory.names.items())
            if isinstance(node, FileNode) and name != ".lock"
        ]
    # Most files are small; the log and its snapshots are to be hit as often as all others.
    logs = [
        entry for entry in found if entry[1].endswith((".log", ".checkpoint")) and entry[2].cache
    ]
    directory, name, node = rng.choice(logs if logs and rng.random() < 0.5 else found)
    how = rng.choice(("flip", "zeros", "cut", "remove"))
    if how == "remove":
        directory.names.pop(name)
        directory.durable.pop(name, None)
    elif node.cache:
        at = rng.randrange(len(node.cache))
        match how:
            case "flip":
                node.cache[at] ^= 1 << rng.randrange(8)
            case "zeros":
                count = rng.randrange(1, 200)
                node.cache[at : at + count] = bytes(len(node.cache[at : at + count]))
            case "cut":
                del node.cache[at:]
        node.durable = bytearray(node.cache)
        node.dirty.clear()
    return f"{name}: {how}"


@pytest.mark.parametrize("seed", range(4))
def test_no_topic_is_lost_while_a_majority_is_whole(seed: int) -> None:
    simulation = Simulation(seed)
    cluster = SimulatedCluster(simulation, settings=SETTINGS)
    rng = Random(seed)
    done: list[str] = []

    async def scenario() -> None:
        cluster.start()
        assert await cluster.whole(60)
        for number in range(ROUNDS):
            async with aio.Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
                for part in range(3):
                    await admin.create_topics([NewTopic(f"t{number}-{part}", 1, 3)])
            hosts = rng.sample(cluster.hosts, rng.choice((1, 1, 2, 3)))
            power_loss = rng.random() < 0.5
            for host in hosts:
                cluster.take_down(host, power_loss=power_loss)
            done.append(f"{len(hosts)} down, {hosts[0].name} {damage(hosts[0].disk, rng)}")
            await asyncio.sleep(rng.choice((0.1, 3)))
            for host in hosts:
                cluster.bring_up(host)
            assert await cluster.whole(60), (done, cluster.missing(), cluster.fatal)
            image = cluster.image()
            assert image is not None
            made = {f"t{index}-{part}" for index in range(number + 1) for part in range(3)}
            assert made <= image.topics.keys(), (done, made - image.topics.keys())

    simulation.run(scenario(), time_max=3000)
    assert not simulation.loop.errors


def test_a_node_that_lost_its_metadata_log_is_back_when_its_advice_is_followed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    simulation = Simulation(5)
    cluster = SimulatedCluster(simulation)
    lost, *others = cluster.hosts

    async def scenario() -> None:
        cluster.start()
        assert await cluster.whole(60)
        async with aio.Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
            await admin.create_topics([NewTopic("orders", 1, 3)])
        # Until it has a log of the partition: by that it knows that it had a metadata log.
        await asyncio.sleep(5)
        for host in cluster.hosts:
            cluster.take_down(host, power_loss=False)
        parent, _, name = METADATA.rpartition("/")
        directory = lost.disk.directory(parent)
        del directory.names[name], directory.durable[name]
        cluster.bring_up(lost)
        await asyncio.sleep(15)
        [said] = [text for text in caplog.messages if "lost its metadata log" in text]
        assert re.findall(r"waits for .*: start (.*?)\.", said) == ["the other controllers"]
        for host in others:
            cluster.bring_up(host)
        assert await cluster.whole(60), (cluster.missing(), cluster.fatal)
        image = cluster.image()
        assert image is not None and "orders" in image.topics

    simulation.run(scenario(), time_max=300)
    assert not simulation.loop.errors
