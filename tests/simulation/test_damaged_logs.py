"""Damage on one of three replicas: it is found, the replica fetched again, and nothing is lost."""

import asyncio
import logging
import signal
from collections.abc import Callable

import pytest

from headrace import TopicPartition, aio
from headrace.client.admin.topics import NewTopic
from headrace.testing.simulation.hosts import Host, Simulation
from headrace.testing.simulation.invariants import check_log_starts, check_replicas_equal
from headrace.testing.simulation.simulated_cluster import DATA, SimulatedCluster

TOPIC, OFFSETS = "orders", "__consumer_offsets"
COUNT = 40
LENGTH_AT, RECORDS_AT = 10, 100


def start_cluster(**settings: str) -> tuple[Simulation, SimulatedCluster]:
    simulation = Simulation(5)
    names = {name.replace("_", "."): value for name, value in settings.items()}
    return simulation, SimulatedCluster(
        simulation, 3, {"log.flush.interval.messages": "1", "log.retention.ms": "-1", **names}
    )


async def prepare(cluster: SimulatedCluster) -> None:
    cluster.start()
    assert await cluster.whole(60)
    async with aio.Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        await admin.create_topics([NewTopic(TOPIC, 1, 3)])
    async with aio.Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        for number in range(COUNT):
            await producer.send(TOPIC, f"{number}" + "x" * 300, partition=0)
            await producer.flush()
            await asyncio.sleep(0.02)
    assert await cluster.whole(60)


def leader_of(cluster: SimulatedCluster, topic: str, index: int = 0) -> int:
    image = cluster.image()
    assert image is not None
    return image.topics[topic].partitions[index].leader


async def stop(cluster: SimulatedCluster, host: Host) -> None:
    """Stop a broker cleanly."""
    host.signal(signal.SIGTERM)
    while host.process is not None:
        await asyncio.sleep(0.1)
    cluster.take_down(host, power_loss=False)


def flip(host: Host, path: str, number: int, byte: int) -> None:
    """Turn over a bit of a batch of a segment."""
    files = {name: bytes(node.cache) for name, node in host.disk.files(DATA)}
    content = bytearray(files[path])
    position = 0
    for _ in range(number):
        position += 12 + int.from_bytes(content[position + 8 : position + 12], "big")
    content[position + byte] ^= 1
    host.disk.put(f"{DATA}/{path}", bytes(content))


async def read_all(cluster: SimulatedCluster) -> list[int]:
    found: list[int] = []
    async with aio.Consumer(
        TOPIC,
        bootstrap_servers=cluster.bootstrap_servers,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
    ) as consumer:
        async with asyncio.timeout(30):
            async for record in consumer:
                found.append(record.offset)
                if len(found) == COUNT:
                    return found
    return found


def lose_first_segment(host: Host) -> None:
    for suffix in (".log", ".index", ".timeindex"):
        host.disk.put(f"{DATA}/{TOPIC}-0/{0:020d}{suffix}", None)


def flip_length(host: Host) -> None:
    flip(host, f"{TOPIC}-0/{0:020d}.log", 20, LENGTH_AT)


def flip_records(host: Host) -> None:
    flip(host, f"{TOPIC}-0/{0:020d}.log", 20, RECORDS_AT)


@pytest.mark.parametrize(
    ("damage", "clean", "roll_ms"),
    [
        (lose_first_segment, False, "400"),
        (flip_length, True, "600000000"),
        (flip_records, True, "600000000"),
    ],
)
def test_a_damaged_leader_is_fetched_again_from_intact_replicas(
    damage: Callable[[Host], None], clean: bool, roll_ms: str, caplog: pytest.LogCaptureFixture
) -> None:
    simulation, cluster = start_cluster(log_roll_ms=roll_ms)

    async def scenario() -> None:
        await prepare(cluster)
        victim = cluster.hosts[leader_of(cluster, TOPIC) - 1]
        if clean:
            await stop(cluster, victim)
        else:
            cluster.take_down(victim, power_loss=False)
        damage(victim)
        await asyncio.sleep(3)
        cluster.bring_up(victim)
        assert await cluster.whole(60), cluster.missing()
        async with aio.Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
            await admin.elect_leaders([TopicPartition(TOPIC, 0)])
        await asyncio.sleep(5)
        assert await cluster.whole(60), cluster.missing()
        assert await read_all(cluster) == list(range(COUNT))
        assert check_replicas_equal(cluster) is None
        assert check_log_starts(cluster) is None

    with caplog.at_level(logging.ERROR):
        simulation.run(scenario(), time_max=300)
    assert not simulation.loop.errors
    assert any(
        f"{DATA}/{TOPIC}-0/{0:020d}.log is damaged" in line.getMessage() for line in caplog.records
    )


def test_a_coordinator_moves_away_from_a_damaged_log() -> None:
    simulation, cluster = start_cluster(offsets_topic_num_partitions="1")

    async def scenario() -> None:
        await prepare(cluster)
        async with aio.Consumer(
            TOPIC,
            bootstrap_servers=cluster.bootstrap_servers,
            group_id="g",
            auto_offset_reset="earliest",
        ) as consumer:
            async for record in consumer:
                await consumer.commit()
                if record.offset == 20:
                    break
        assert await cluster.whole(60)
        victim = cluster.hosts[leader_of(cluster, OFFSETS) - 1]
        await stop(cluster, victim)
        flip(victim, f"{OFFSETS}-0/{0:020d}.log", 5, 80)
        await asyncio.sleep(3)
        cluster.bring_up(victim)
        assert await cluster.whole(60), cluster.missing()
        async with aio.Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
            await admin.elect_leaders([TopicPartition(OFFSETS, 0)])
            await asyncio.sleep(5)
            committed = await admin.group_offsets("g")
        assert committed[TopicPartition(TOPIC, 0)].offset >= 20
        assert await cluster.whole(60), cluster.missing()
        assert check_replicas_equal(cluster) is None

    simulation.run(scenario(), time_max=300)
    assert not simulation.loop.errors
