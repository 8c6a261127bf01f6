"""All brokers killed at once, and one of them comes back with less than it acknowledged."""

from confluent_kafka import Consumer, Producer, TopicPartition

from headrace.testing import Cluster
from headrace.testing.time_limits import scaled, wait_until
from tests.integration.cluster.replicas import wait_until_identical

RECORDS = 300


def produce(cluster: Cluster, topic: str, first: int, count: int) -> None:
    producer = Producer(
        {"bootstrap.servers": cluster.bootstrap_servers, "acks": "all", "linger.ms": 0}
    )
    for number in range(first, first + count):
        producer.produce(topic, str(number), partition=0)
        producer.poll(0)
    assert producer.flush(scaled(30)) == 0


def read_all(cluster: Cluster, topic: str, count: int) -> list[int]:
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": "none"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    try:
        found = consumer.consume(count, timeout=scaled(30))
        return [int(record.value() or b"-1") for record in found]
    finally:
        consumer.close()


def test_acknowledged_records_survive_the_lost_tail_of_the_last_one_in_sync() -> None:
    with Cluster(brokers=3) as cluster:
        topic = cluster.create_topic(min_insync_replicas=2)
        produce(cluster, topic, 0, RECORDS)
        cluster.wait_for_isr(topic, 3)
        size = wait_until_identical(cluster, topic, 1)
        for broker in cluster.brokers:
            broker.kill()
        # As a loss of power does to what was not flushed. The others register first, so this one
        # is the last that the metadata has as in sync.
        victim = cluster.broker(3)
        [segment] = (victim.data_dir / f"{topic}-0").glob("*.log")
        with segment.open("r+b") as file:
            file.truncate(size // 2)
        for broker in cluster.brokers[:2]:
            broker.launch()
        for broker in cluster.brokers[:2]:
            broker.wait_until_ready(scaled(60))
        victim.start()
        cluster.wait_for_isr(topic, 3)
        produce(cluster, topic, RECORDS, 1)
        assert read_all(cluster, topic, RECORDS + 1) == list(range(RECORDS + 1))
        wait_until_identical(cluster, topic, 1)
        wait_until(
            lambda: f"{topic}-0 is led by broker" in "".join(cluster.logs.values()),
            scaled(10),
            "the election to be told",
        )
