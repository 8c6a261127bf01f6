"""Damage in a closed segment, found by brokers that read theirs again, while others are intact."""

import os
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition

from headrace import Admin
from headrace.testing import Broker, Cluster
from headrace.testing.time_limits import scaled, wait_until
from tests.integration.cluster.replicas import wait_until_identical

VALUES = [os.urandom(100_000) for _ in range(25)]
# Segments of a megabyte, and a pass after each start.
CONFIG = {"log.segment.bytes": 1_048_576, "log.scrub.interval.ms": 0}


def produce(bootstrap_servers: str, topic: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap_servers, "acks": "all", "linger.ms": 0})
    for value in VALUES:
        producer.produce(topic, value, partition=0)
        assert producer.flush(scaled(30)) == 0


def consume(bootstrap_servers: str, topic: str, count: int, offset: int = 0) -> list[bytes | None]:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "nobody",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": "false",
        }
    )
    consumer.assign([TopicPartition(topic, 0, offset)])
    try:
        return [record.value() for record in consumer.consume(count, timeout=scaled(30))]
    finally:
        consumer.close()


def damage(directory: Path, topic: str) -> Path:
    """Flip a bit in the middle of the first closed segment."""
    path = directory / f"{topic}-0" / f"{0:020d}.log"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    return path


def test_a_damaged_replica_is_set_aside_and_fetched_again(tmp_path: Path) -> None:
    with Cluster(brokers=3, config=CONFIG, data_dir=tmp_path) as cluster:
        topic = cluster.create_topic(min_insync_replicas=2)
        produce(cluster.bootstrap_servers, topic)
        damaged = cluster.broker(cluster.leader_of(topic))
        damaged.stop()
        path = damage(damaged.data_dir, topic)
        damaged.start()
        wait_until(
            lambda: f"{path} is damaged" in damaged.log, 30, lambda: f"not found: {damaged.log}"
        )
        assert cluster.wait_for_leader(topic, other_than=[damaged.node_id])
        assert consume(cluster.bootstrap_servers, topic, len(VALUES)) == VALUES
        wait_until(lambda: "begins with an empty log" in damaged.log, 30, "it is not fetched again")
        cluster.wait_for_isr(topic, 3)
        wait_until_identical(cluster, topic, 1)
        [aside] = damaged.data_dir.glob(f"{topic}-0.*-stray")
        assert (aside / path.name).exists(), "nothing is deleted"


def test_a_lone_replica_serves_what_is_intact_and_says_what_is_not(tmp_path: Path) -> None:
    with Broker(config=CONFIG, data_dir=tmp_path) as broker:
        topic = broker.create_topic()
        produce(broker.bootstrap_servers, topic)
        broker.stop()
        path = damage(tmp_path, topic)
        broker.start()
        wait_until(
            lambda: f"{path} is damaged" in broker.log, 30, lambda: f"not found: {broker.log}"
        )
        [line] = [line for line in broker.log.splitlines() if "is damaged" in line]
        assert "No other replica is in sync" in line
        assert f"headrace log repair {tmp_path}/{topic}-0" in line
        assert consume(broker.bootstrap_servers, topic, 5, offset=20) == VALUES[20:]
        with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
            [health] = admin.describe_health().values()
        [directory] = health.health.values()
        assert directory.scrub_started_ms is not None
        assert directory.damaged_segments == 1
        [problem] = health.problems
        assert (problem.partition.topic, problem.state) == (topic, "damaged")
