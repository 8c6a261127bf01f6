"""Small damage to one replica's files while all are stopped: no acknowledged record is lost."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace import Producer
from headrace.testing.cluster import Cluster
from headrace.testing.time_limits import scaled
from tests.integration.cluster.replicas import wait_until_identical
from tests.integration.wire import create_topic, read_all
from tests.support import BrokerProcess

RECORDS = 300
VICTIM = 3


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """One for all: after each test it is whole again."""
    with Cluster(brokers=3) as cluster:
        yield cluster


def flip_a_bit_of_the_topic_id(log: Path) -> None:
    path = log / "partition.metadata"
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)


def zero_the_topic_id(log: Path) -> None:
    path = log / "partition.metadata"
    path.write_bytes(bytes(path.stat().st_size))


def empty_the_directory(log: Path) -> None:
    for path in log.iterdir():
        path.unlink()


def write(bootstrap_servers: str, topic: str) -> list[bytes]:
    """Records that all replicas in sync have acknowledged."""
    values = [b"%d" % number for number in range(RECORDS)]
    with Producer(bootstrap_servers=bootstrap_servers, acks="all") as producer:
        for value in values:
            producer.send(topic, value)
        producer.flush()
    return values


def start_in_turn(cluster: Cluster) -> None:
    """Start brokers 1 and 2, which are a majority, and then the one with the damage."""
    first = [cluster.broker(number) for number in (1, 2)]
    for broker in first:
        broker.launch()
    for broker in first:
        broker.wait_until_ready(scaled(60))
    cluster.broker(VICTIM).start()


def check_all_is_there(cluster: Cluster, topic: str, values: list[bytes]) -> None:
    cluster.wait_for_isr(topic, 3, timeout_s=scaled(60))
    wait_until_identical(cluster, topic, 1)
    leader = cluster.broker(cluster.leader_of(topic))
    assert [one.value for one in read_all(leader.bootstrap_servers, topic)] == values


def damage_and_restart(
    cluster: Cluster, topic: str, damage: Callable[[Path], object], *, victim_stops_last: bool
) -> None:
    """Stop all brokers in turn, damage a log of the third, start the others and then that one."""
    order = (1, 2, VICTIM) if victim_stops_last else (VICTIM, 2, 1)
    for number in order:
        cluster.broker(number).stop()
    damage(cluster.broker(VICTIM).data_dir / f"{topic}-0")
    start_in_turn(cluster)


@pytest.mark.parametrize("damage", [flip_a_bit_of_the_topic_id, zero_the_topic_id])
def test_the_last_replica_in_sync_keeps_its_records_without_its_id(
    cluster: Cluster, damage: Callable[[Path], object]
) -> None:
    topic = cluster.create_topic(min_insync_replicas=2, flush_messages=1)
    values = write(cluster.bootstrap_servers, topic)
    damage_and_restart(cluster, topic, damage, victim_stops_last=True)
    check_all_is_there(cluster, topic, values)
    assert f"{topic}-0: partition.metadata" in cluster.broker(VICTIM).log


@pytest.mark.parametrize("victim_stops_last", [False, True])
@pytest.mark.parametrize("damage", [empty_the_directory, shutil.rmtree])
def test_a_replica_whose_log_is_lost_is_filled_by_the_others(
    cluster: Cluster, damage: Callable[[Path], object], victim_stops_last: bool
) -> None:
    topic = cluster.create_topic(min_insync_replicas=2, flush_messages=1)
    values = write(cluster.bootstrap_servers, topic)
    damage_and_restart(cluster, topic, damage, victim_stops_last=victim_stops_last)
    check_all_is_there(cluster, topic, values)
    assert f"{topic}-0 begins with an empty log" in cluster.broker(VICTIM).log


@pytest.mark.parametrize(
    "damage",
    [
        flip_a_bit_of_the_topic_id,
        zero_the_topic_id,
        lambda log: (log / "partition.metadata").unlink(),
    ],
    ids=["flipped", "zeroed", "missing"],
)
def test_a_lone_broker_keeps_the_records_of_a_log_without_its_id(
    tmp_path: Path, damage: Callable[[Path], object]
) -> None:
    with BrokerProcess(tmp_path) as broker:
        create_topic(broker.address, "orders")
        values = write(broker.address, "orders")
        broker.stop()
        damage(broker.data_dir / "orders-0")
        broker.start()
        assert [one.value for one in read_all(broker.address, "orders")] == values
