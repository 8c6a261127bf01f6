"""Brokers whose disk is full: others lead, nothing is lost, and all comes back by itself."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from headrace.testing import Cluster
from headrace.testing.cluster import ClusterBroker
from headrace.testing.time_limits import scaled, wait_until

BROKERS = 3


@contextmanager
def small_disks(directories: list[Path]) -> Iterator[None]:
    """File systems of 32 MB. To mount one needs root, as CI has."""
    mounted = []
    try:
        for directory in directories:
            directory.mkdir()
            command = ["mount", "-t", "tmpfs", "-o", "size=32m", "tmpfs", str(directory)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                pytest.skip(f"a small file system cannot be mounted: {done.stderr.strip()}")
            mounted.append(directory)
        yield
    finally:
        for directory in mounted:
            subprocess.run(["umount", "--lazy", str(directory)], check=False)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Three brokers, each on a small disk."""
    with small_disks([tmp_path / f"broker-{number}" for number in range(1, BROKERS + 1)]):
        config = {"log.dir.reserved.bytes": -1, "log.segment.delete.delay.ms": 0}
        with Cluster(brokers=BROKERS, config=config, data_dir=tmp_path) as cluster:
            yield cluster


def fill(directory: Path) -> Path:
    """Use up every byte of a disk; the file to remove to make room."""
    ballast = directory / "ballast"
    with ballast.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(65_536))
    return ballast


def produce(cluster: Cluster, topic: str, values: list[bytes], timeout_s: float) -> int:
    """How many of these records are acknowledged by all in sync, in time."""
    acknowledged = []
    producer = Producer(
        {"bootstrap.servers": cluster.bootstrap_servers, "acks": "all", "linger.ms": 0}
    )
    for value in values:
        producer.produce(topic, value, on_delivery=lambda error, _: acknowledged.append(error))
    producer.flush(scaled(timeout_s))
    return acknowledged.count(None)


def consume(cluster: Cluster, topic: str, count: int) -> list[bytes | None]:
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": "nobody",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": "false",
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    try:
        return [record.value() for record in consumer.consume(count, timeout=scaled(30))]
    finally:
        consumer.close()


def full_lines(cluster: Cluster, node_id: int, text: str) -> list[str]:
    return [line for line in cluster.broker(node_id).log.splitlines() if text in line]


def test_others_lead_while_the_disk_of_a_leader_is_full(cluster: Cluster) -> None:
    topic = cluster.create_topic(min_insync_replicas=2)
    full = cluster.leader_of(topic)
    before = [b"before %d" % number for number in range(100)]
    during = [b"during %d" % number for number in range(200)]
    after = [b"after %d" % number for number in range(100)]
    assert produce(cluster, topic, before, 30) == len(before)
    directory = cluster.broker(full).data_dir
    ballast = fill(directory)
    assert produce(cluster, topic, during, 30) == len(during), "two replicas have room"
    cluster.wait_for_leader(topic, other_than=[full])
    assert len(cluster.wait_for_isr(topic, 2)[0].isr) == 2
    assert full not in cluster.partitions_of(topic)[0].isr
    [line] = full_lines(cluster, full, " is full: ")
    assert f"the data directory {directory} is full" in line
    assert not full_lines(cluster, full, "cannot follow"), "one line is enough"
    # A topic that is made meanwhile has its replica there too, and is led elsewhere.
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    made = NewTopic("made-meanwhile", num_partitions=2, replication_factor=3)
    admin.create_topics([made])["made-meanwhile"].result(scaled(30))
    assert produce(cluster, "made-meanwhile", during, 30) == len(during)
    ballast.unlink()
    cluster.wait_for_isr(topic, 3)
    cluster.wait_for_isr("made-meanwhile", 3)
    [line] = wait_until(
        lambda: full_lines(cluster, full, " has room again: ") or None, 30, "no word of room"
    )
    assert str(directory) in line
    assert produce(cluster, topic, after, 30) == len(after)
    found = consume(cluster, topic, len(before + during + after))
    assert sorted(map(bytes, filter(None, found))) == sorted(before + during + after)


def test_a_broker_starts_on_a_full_disk_and_deletes_topics_there(cluster: Cluster) -> None:
    large, small = cluster.create_topic("large"), cluster.create_topic("small")
    values = [os.urandom(100_000) for _ in range(100)]
    assert produce(cluster, large, values, 60) == len(values)
    assert produce(cluster, small, [b"kept"], 30) == 1
    ballasts = [fill(broker.data_dir) for broker in cluster.brokers]
    for broker in cluster.brokers:
        broker.kill()
    cluster.start()
    assert consume(cluster, small, 1) == [b"kept"], "what is there can be read"
    assert produce(cluster, small, [b"refused"], 1) == 0, "there is no room anywhere"
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    admin.delete_topics([large])[large].result(scaled(30))

    wait_until(lambda: produce(cluster, small, [b"room again"], 2) == 1, 60, "no room for a record")
    text = " has room again: "
    wait_until(
        lambda: all(full_lines(cluster, broker.node_id, text) for broker in cluster.brokers),
        30,
        "not every broker says that it has room",
    )
    for ballast in ballasts:
        ballast.unlink()


class OnTwoDisks(Cluster):
    """Brokers with a second data directory each, of 32 MB."""

    def _properties(self, member: ClusterBroker) -> dict[str, str]:
        found = super()._properties(member)
        return found | {"log.dirs": f"{found['log.dirs']},{second_disk(member)}"}


def second_disk(member: ClusterBroker) -> Path:
    return member.data_dir.parent / f"{member.data_dir.name}-second"


@pytest.fixture
def on_two_disks(tmp_path: Path) -> Iterator[Cluster]:
    with small_disks([tmp_path / f"broker-{number}-second" for number in range(1, BROKERS + 1)]):
        config = {"log.dir.reserved.bytes": 1_048_576}
        with OnTwoDisks(brokers=BROKERS, config=config, data_dir=tmp_path) as cluster:
            yield cluster


def test_only_leaderships_of_a_full_directory_move(on_two_disks: Cluster) -> None:
    cluster = on_two_disks
    topic = cluster.create_topic(partitions=12, min_insync_replicas=2)
    victim = cluster.broker(1)
    disk = second_disk(victim)
    there = {int(path.name.rpartition("-")[2]) for path in disk.glob(f"{topic}-*")}
    led = {
        index for index, partition in cluster.partitions_of(topic).items() if partition.leader == 1
    }
    assert led & there, "it leads partitions in both directories"
    assert led - there
    ballast = fill(disk)
    wait_until(
        lambda: all(cluster.partitions_of(topic)[entry].leader != 1 for entry in led & there),
        30,
        lambda: f"{cluster.partitions_of(topic)} with {there} in {disk}",
    )
    assert all(cluster.partitions_of(topic)[entry].leader == 1 for entry in led - there)
    ballast.unlink()
    wait_until(
        lambda: full_lines(cluster, 1, " has room again: "), 30, lambda: f"full: {victim.log}"
    )
    cluster.wait_for_isr(topic, 3)
