"""Every broker killed at once, and one loses what it had not flushed: the others have it all."""

import asyncio
import signal
from collections.abc import Sequence
from dataclasses import replace
from unittest.mock import patch

import pytest

from headrace import aio
from headrace.broker.cluster import controller
from headrace.client.admin.topics import NewTopic
from headrace.errors import ErrorCode, KafkaError
from headrace.metadata.recovery_elections import RecoveredPartition
from headrace.testing.simulation.batches import batches_in
from headrace.testing.simulation.hosts import Host, Simulation
from headrace.testing.simulation.run import LogLines
from headrace.testing.simulation.simulated_cluster import DATA, SimulatedCluster

PARTITIONS = 3
RECORDS = 60


async def write(cluster: SimulatedCluster, first: int, count: int) -> None:
    """Records to every partition, acknowledged by all that are in sync."""
    async with aio.Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        for number in range(first, first + count):
            for index in range(PARTITIONS):
                await producer.send("orders", f"{number}", partition=index)
        await producer.flush()


async def read(cluster: SimulatedCluster) -> list[list[int]]:
    """What each partition has, by another way than any offset that a broker tells."""
    found: list[list[int]] = [[] for _ in range(PARTITIONS)]
    async with aio.Consumer(
        "orders",
        bootstrap_servers=cluster.bootstrap_servers,
        auto_offset_reset="earliest",
    ) as consumer:
        while min(map(len, found)) < RECORDS + 1:
            async with asyncio.timeout(30):
                record = await anext(aiter(consumer))
            found[record.partition].append(int(record.value))
    return found


@pytest.mark.parametrize("order", [(1, 2, 3), (3, 2, 1), (2, 3, 1), (2, 1, 3)])
def test_no_order_of_restarts_loses_what_an_intact_replica_has(order: tuple[int, ...]) -> None:
    simulation = Simulation(5)
    cluster = SimulatedCluster(simulation)
    without_power = cluster.hosts[2]

    async def scenario() -> None:
        cluster.start()
        assert await cluster.whole(60)
        async with aio.Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
            await admin.create_topics([NewTopic("orders", PARTITIONS, 3)])
        assert await cluster.whole(60)
        await write(cluster, 0, RECORDS)
        for host in cluster.hosts:
            cluster.take_down(host, power_loss=host is without_power)
        for node_id in order:
            await asyncio.sleep(0.5)
            cluster.bring_up(cluster.hosts[node_id - 1])
        began = simulation.now
        assert await cluster.whole(60), cluster.missing()
        assert simulation.now - began < 10
        await write(cluster, RECORDS, 1)
        assert await read(cluster) == [list(range(RECORDS + 1))] * PARTITIONS

    simulation.run(scenario(), time_max=300)
    assert not simulation.loop.errors


def test_a_replica_that_stopped_before_the_others_lost_power_is_waited_for() -> None:
    simulation = Simulation(5)
    cluster = SimulatedCluster(simulation)
    stopped, *others = cluster.hosts

    async def scenario() -> None:
        cluster.start()
        assert await cluster.whole(60)
        async with aio.Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
            await admin.create_topics([NewTopic("orders", PARTITIONS, 3)])
        assert await cluster.whole(60)
        await write(cluster, 0, RECORDS)
        stopped.signal(signal.SIGTERM)
        async with asyncio.timeout(60):
            while stopped.process is not None:
                await asyncio.sleep(0.1)
        for host in others:
            cluster.take_down(host, power_loss=True)
        for host in others:
            cluster.bring_up(host)
        # Longer than it takes to elect: the two have a quorum, and are all of the last ISR.
        await asyncio.sleep(10)
        cluster.bring_up(stopped)
        assert await cluster.whole(60), cluster.missing()
        await write(cluster, RECORDS, 1)
        assert await read(cluster) == [list(range(RECORDS + 1))] * PARTITIONS

    simulation.run(scenario(), time_max=300)
    assert not simulation.loop.errors


async def create_and_fill(cluster: SimulatedCluster) -> None:
    cluster.start()
    assert await cluster.whole(60)
    async with aio.Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        await admin.create_topics([NewTopic("orders", PARTITIONS, 3)])
    assert await cluster.whole(60)
    for number in range(RECORDS):
        await write(cluster, number, 1)  # A batch for each record.


def test_a_replica_whose_disk_failed_for_a_while_is_waited_for() -> None:
    """Seed 400248: its broker had reported its log as lost, and alone still had the records."""
    simulation = Simulation(5)
    cluster = SimulatedCluster(simulation)
    *others, failing = cluster.hosts

    async def scenario() -> None:
        await create_and_fill(cluster)
        failing.disk.faults = replace(failing.disk.faults, write_error=1.0)
        await asyncio.sleep(1)
        await write(cluster, RECORDS, 1)  # Which takes its logs offline.
        await asyncio.sleep(3)
        for host in others:
            cluster.take_down(host, power_loss=True)
        for host in others:
            cluster.bring_up(host)
        await asyncio.sleep(10)
        failing.disk.faults = replace(failing.disk.faults, write_error=0.0)
        cluster.take_down(failing, power_loss=False)
        cluster.bring_up(failing)
        assert await cluster.whole(60), cluster.missing()
        await write(cluster, RECORDS, 1)
        assert [found[:RECORDS] for found in await read(cluster)] == [
            list(range(RECORDS))
        ] * PARTITIONS

    simulation.run(scenario(), time_max=300)
    assert not simulation.loop.errors


def test_a_damaged_log_leads_up_to_its_damage_if_the_others_have_less() -> None:
    """Seed 400225: the others had lost power, and an intact half of the records was set aside."""
    simulation, lines = Simulation(5), LogLines()
    cluster = SimulatedCluster(simulation)
    damaged = cluster.hosts[-1]
    kept = RECORDS // 2

    async def scenario() -> None:
        await create_and_fill(cluster)
        for host in cluster.hosts:
            cluster.take_down(host, power_loss=host is not damaged)
        for index in range(PARTITIONS):
            flip_bit(damaged, index, kept)
        for host in cluster.hosts:
            cluster.bring_up(host)
        assert await cluster.whole(60), cluster.missing()
        await write(cluster, RECORDS, RECORDS + 1 - kept)
        expected = [*range(kept), *range(RECORDS, 2 * RECORDS + 1 - kept)]
        assert await read(cluster) == [expected] * PARTITIONS

    with lines.caught():
        simulation.run(scenario(), time_max=300)
    assert not simulation.loop.errors
    for index in range(PARTITIONS):
        assert lines.report_loss(f"orders-{index}"), lines.lines


def flip_bit(host: Host, index: int, offset: int) -> None:
    """Turn over a bit of the batch that has an offset of a partition."""
    path = f"{DATA}/orders-{index}/{0:020d}.log"
    content = bytearray(dict(host.disk.files(DATA))[path.removeprefix(f"{DATA}/")].cache)
    position = 0
    for batch in batches_in(bytes(content)):
        position += len(batch.data)
        if batch.last_offset >= offset:
            break
    content[position - 2] ^= 1
    host.disk.put(path, bytes(content))


def test_a_loss_of_power_on_all_machines_is_reported_for_each_partition() -> None:
    """All logs end alike then, so no replica can tell that another had more."""
    simulation, lines = Simulation(5), LogLines()
    cluster = SimulatedCluster(simulation)

    async def scenario() -> None:
        cluster.start()
        assert await cluster.whole(60)
        async with aio.Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
            await admin.create_topics([NewTopic("orders", PARTITIONS, 3)])
        assert await cluster.whole(60)
        await write(cluster, 0, RECORDS)
        for host in cluster.hosts:
            cluster.take_down(host, power_loss=True)
        for host in cluster.hosts:
            cluster.bring_up(host)
        assert await cluster.whole(60), cluster.missing()

    with lines.caught():
        simulation.run(scenario(), time_max=300)
    for index in range(PARTITIONS):
        assert lines.report_loss(f"orders-{index}"), lines.lines


def test_a_loss_is_reported_though_the_controller_ends_before_it_can_say_so() -> None:
    """Seed 600447: cut off, it lost its office before it knew that its election was committed."""
    simulation, lines = Simulation(5), LogLines()
    cluster = SimulatedCluster(simulation)

    async def scenario() -> None:
        await create_and_fill(cluster)
        for host in cluster.hosts:
            cluster.take_down(host, power_loss=True)
        for host in cluster.hosts:
            cluster.bring_up(host)
        assert await cluster.whole(60), cluster.missing()

    with lines.caught(), patch.object(controller, "_log_outcomes", report_nothing):
        simulation.run(scenario(), time_max=300)
    for index in range(PARTITIONS):
        assert lines.report_loss(f"orders-{index}"), lines.lines


def report_nothing(outcomes: Sequence[RecoveredPartition]) -> None:
    """Fail as a submission does of a controller that is replaced meanwhile."""
    raise KafkaError(ErrorCode.NOT_CONTROLLER)
