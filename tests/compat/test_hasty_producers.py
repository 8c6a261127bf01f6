"""A thousand commits of each client, each with an abort right behind it, without a pause."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from headrace.testing.cluster import Cluster
from headrace.testing.time_limits import Deadline, scaled
from tests.compat.apache import apache_kafka
from tests.compat.java_gateway import java_gateway, java_map
from tests.integration.transactions.hasty import SEQUENCES, HastyProducer
from tests.integration.transactions.reading import read_committed
from tests.integration.wire import create_topic
from tests.support import BrokerProcess

PAIRS = 1_000
KAFKA_PAIRS = 40
PARTITIONS = 3
PATIENCE_S = 20.0


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    settings = {"transaction.state.log.num.partitions": "2"}
    with BrokerProcess(tmp_path_factory.mktemp("ours"), settings) as broker:
        yield broker.address


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Three brokers: markers wait for followers, so a transaction is prepared for a while."""
    settings = {
        "transaction.state.log.num.partitions": "2",
        "transaction.state.log.replication.factor": "3",
    }
    with Cluster(3, config=settings) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def jvm() -> Iterator[Any]:
    with java_gateway() as jvm:
        yield jvm


def values(pairs: int) -> list[bytes]:
    return [b"%d" % number for number in range(pairs)]


def play_java(jvm: Any, address: str, topic: str, pairs: int) -> None:
    """The abort comes while the record before it is in the client's buffer, mostly."""
    settings = {
        "bootstrap.servers": address,
        "transactional.id": topic,
        "linger.ms": "5",
        "key.serializer": "org.apache.kafka.common.serialization.StringSerializer",
        "value.serializer": "org.apache.kafka.common.serialization.StringSerializer",
    }
    clients = jvm.org.apache.kafka.clients.producer
    producer = clients.KafkaProducer(java_map(jvm, settings))
    try:
        producer.initTransactions()
        for number in range(pairs):
            producer.beginTransaction()
            producer.send(clients.ProducerRecord(topic, str(number)))
            producer.commitTransaction()
            producer.beginTransaction()
            producer.send(clients.ProducerRecord(topic, "aborted"))
            producer.abortTransaction()
    finally:
        producer.close()


def committed(cluster: Cluster, topic: str) -> list[bytes | None]:
    """All that was committed; a new leader learns a little later how far it may be read."""
    deadline = Deadline(PATIENCE_S)
    while True:
        leader = cluster.broker(cluster.wait_for_leader(topic, 0))
        found = read_committed(leader.bootstrap_servers, topic)
        if len(found) >= PAIRS or deadline.has_passed:
            return found
        time.sleep(0.1)


@pytest.mark.timeout(300)
def test_java(jvm: Any, cluster: Cluster) -> None:
    topic = cluster.create_topic("java", partitions=1)
    play_java(jvm, cluster.bootstrap_servers, topic, PAIRS)
    assert committed(cluster, topic) == values(PAIRS)


@pytest.mark.timeout(300)
def test_java_with_apache_kafka(jvm: Any, tmp_path: Path) -> None:
    """What the others are compared with."""
    with apache_kafka(tmp_path / "kafka") as kafka:
        create_topic(kafka.bootstrap_servers, "java")
        play_java(jvm, kafka.bootstrap_servers, "java", KAFKA_PAIRS)
        assert read_committed(kafka.bootstrap_servers, "java") == values(KAFKA_PAIRS)


@pytest.mark.timeout(300)
def test_librdkafka(cluster: Cluster) -> None:
    topic = cluster.create_topic("librdkafka", partitions=1)
    servers = cluster.bootstrap_servers
    producer = Producer({"bootstrap.servers": servers, "transactional.id": topic, "linger.ms": 5})
    producer.init_transactions(scaled(PATIENCE_S))
    for value in values(PAIRS):
        producer.begin_transaction()
        producer.produce(topic, value)
        producer.commit_transaction(scaled(PATIENCE_S))
        producer.begin_transaction()
        producer.produce(topic, b"aborted")
        producer.abort_transaction(scaled(PATIENCE_S))
    assert committed(cluster, topic) == values(PAIRS)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", SEQUENCES)
def test_requests_that_wait_for_no_answer(address: str, name: str) -> None:
    create_topic(address, name, PARTITIONS)
    with HastyProducer(address, name) as producer:
        wanted = SEQUENCES[name](producer, name, PARTITIONS, PAIRS)
        producer.wait_until("CompleteAbort")
    for partition in range(PARTITIONS):
        assert read_committed(address, name, partition) == wanted
