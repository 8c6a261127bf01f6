"""`headrace.testing.Cluster`: what a test of somebody else's application can do with it."""

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from headrace.testing import BrokerError, Cluster
from headrace.testing.broker_runners import BrokerLog, BrokerProcess
from headrace.testing.time_limits import scaled, wait_until


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=3, proxied=True) as cluster:
        yield cluster


def send(cluster: Cluster, topic: str, value: bytes, timeout_s: float | None = None) -> int:
    """How many records are not acknowledged in time."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "acks": "all"})
    producer.produce(topic, value)
    left = producer.flush(scaled(30) if timeout_s is None else timeout_s)
    producer.purge()
    producer.flush(1)
    return left


def receive(cluster: Cluster, topic: str, count: int) -> list[bytes | None]:
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": f"readers-of-{topic}",
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([topic])
    try:
        return [record.value() for record in consumer.consume(count, timeout=scaled(30))]
    finally:
        consumer.close()


def test_topics_are_replicated_and_read_through_any_broker(cluster: Cluster) -> None:
    topic = cluster.create_topic(partitions=3)
    views = cluster.partitions_of(topic)
    assert {view.leader for view in views.values()} == {1, 2, 3}
    assert all(sorted(view.replicas) == [1, 2, 3] and view.is_whole for view in views.values())
    assert cluster.leader_of(topic, 1) == views[1].leader
    assert cluster.controller_id in {1, 2, 3}
    assert send(cluster, topic, b"hello") == 0
    assert receive(cluster, topic, 1) == [b"hello"]


def test_each_broker_has_its_own_process_address_and_data(cluster: Cluster) -> None:
    assert len({broker.pid for broker in cluster.brokers}) == 3
    addresses = cluster.bootstrap_servers.split(",")
    assert addresses == [broker.bootstrap_servers for broker in cluster.brokers]
    assert [broker.data_dir.name for broker in cluster.brokers] == [
        "broker-1",
        "broker-2",
        "broker-3",
    ]
    with pytest.raises(BrokerError, match=r"there is no broker 4; there are \[1, 2, 3\]"):
        cluster.broker(4)
    with pytest.raises(BrokerError, match="broker 1 is running; stop"):
        cluster.broker(1).wipe()


def test_a_follower_that_is_cut_off_leaves_the_replicas_in_sync_and_comes_back(
    cluster: Cluster,
) -> None:
    topic = cluster.create_topic(min_insync_replicas=3)
    leader = cluster.leader_of(topic)
    follower = next(broker.node_id for broker in cluster.brokers if broker.node_id != leader)
    cluster.isolate(follower)
    assert len(cluster.wait_for_isr(topic, 2)[0].isr) == 2
    assert send(cluster, topic, b"too few", timeout_s=0.5) == 1
    cluster.heal()
    cluster.wait_for_isr(topic, 3)
    assert send(cluster, topic, b"enough") == 0


def test_a_client_that_knows_only_a_leader_that_is_cut_off_is_sent_to_the_others(
    cluster: Cluster,
) -> None:
    topic = cluster.create_topic()
    leader = cluster.leader_of(topic)
    cluster.isolate(leader)
    cluster.wait_for_leader(topic, other_than=[leader])
    producer = Producer({"bootstrap.servers": cluster.broker(leader).bootstrap_servers})
    producer.produce(topic, b"x")
    assert producer.flush(scaled(15)) == 0
    cluster.heal()
    cluster.wait_for_isr(topic)


def test_a_slow_broker_is_slow_for_clients(cluster: Cluster) -> None:
    topic = cluster.create_topic()
    cluster.slow(cluster.leader_of(topic), latency_ms=300)
    begun = time.monotonic()
    assert send(cluster, topic, b"x") == 0
    assert time.monotonic() - begun > 0.3
    cluster.heal()


def test_nothing_is_left_of_a_cluster() -> None:
    with Cluster(brokers=2) as cluster:
        root = cluster.brokers[0].data_dir.parent
        ports = [broker.port for broker in cluster.brokers]
        assert sorted(path.name for path in root.iterdir()) == ["broker-1", "broker-2"]
        topic = cluster.create_topic()
        assert sorted(cluster.partitions_of(topic)[0].replicas) == [1, 2]
    assert not root.exists()
    for port in ports:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), 5)


def test_a_second_process_with_the_id_of_a_broker_is_refused_and_takes_nothing_from_it(
    cluster: Cluster, tmp_path: Path
) -> None:
    victim = cluster.add_broker()
    topic = cluster.create_topic(partitions=4, replication_factor=1, min_insync_replicas=1)
    views = cluster.partitions_of(topic)
    partition = next(index for index, view in views.items() if view.leader == victim.node_id)
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "acks": "all"})
    for number in range(100):
        producer.produce(topic, str(number).encode(), partition=partition)
    assert producer.flush(scaled(30)) == 0
    properties = cluster._properties(victim)
    del properties["advertised.listeners"]
    properties["listeners"] = "PLAINTEXT://127.0.0.1:0"
    properties["log.dirs"] = str(tmp_path / "empty")
    log = BrokerLog()
    duplicate = BrokerProcess(log, 30)
    duplicate.launch(properties, None)
    try:
        refused = f"another process runs as broker {victim.node_id} ({victim.bootstrap_servers})"
        wait_until(lambda: refused in log.text or not duplicate.is_running, 60, lambda: log.text)
        assert duplicate.is_running, log.text
        assert "stop it, or give this one a node.id of its own" in log.text
    finally:
        if duplicate.is_running:
            duplicate.kill()
    assert victim.is_running
    assert cluster.leader_of(topic, partition) == victim.node_id
    reader = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": topic})
    assert reader.get_watermark_offsets(TopicPartition(topic, partition)) == (
        0,
        100,
    )
    reader.close()
