"""A group goes on when the broker that coordinates it dies: its offsets are where it left them."""

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from headrace.testing import Cluster
from headrace.testing.time_limits import scaled

RECORDS = 300


def produce(cluster: Cluster, first: int, count: int) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "acks": "all"})
    for number in range(first, first + count):
        producer.produce("work", str(number).encode(), partition=number % 3)
    assert producer.flush(scaled(30)) == 0


def read(consumer: Consumer, wanted: set[int], attempts: int = 60) -> list[int]:
    seen: list[int] = []
    for _ in range(attempts):
        for message in consumer.consume(500, timeout=1.0):
            if message.error() is None:
                seen.append(int(message.value() or b""))
        if wanted <= set(seen):
            break
    return seen


def new_consumer(cluster: Cluster, protocol: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": "workers",
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            **({"session.timeout.ms": 6000} if protocol == "classic" else {}),
        }
    )


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_survives_its_coordinator(protocol: str) -> None:
    config = {"offsets.topic.num.partitions": "1", "offsets.topic.replication.factor": "3"}
    with Cluster(brokers=3, config=config) as cluster:
        cluster.create_topic("work", partitions=3, replication_factor=3)
        consumer = new_consumer(cluster, protocol)
        consumer.subscribe(["work"])
        produce(cluster, 0, RECORDS)
        assert sorted(read(consumer, set(range(RECORDS)))) == list(range(RECORDS))
        consumer.commit(asynchronous=False)
        first = cluster.leader_of("__consumer_offsets")
        cluster.broker(first).kill()
        cluster.wait_for_leader("__consumer_offsets", 0, other_than=[first])
        produce(cluster, RECORDS, RECORDS)
        again = set(range(RECORDS, 2 * RECORDS))
        assert sorted(read(consumer, again)) == sorted(again)
        consumer.commit(asynchronous=False)
        committed = consumer.committed(
            [TopicPartition("work", n) for n in range(3)], timeout=scaled(30)
        )
        assert sum(entry.offset for entry in committed) == 2 * RECORDS
        consumer.close()
        # A newcomer finds nothing left to do: the commit was made by the second coordinator.
        late = new_consumer(cluster, protocol)
        late.subscribe(["work"])
        produce(cluster, 2 * RECORDS, 3)
        assert sorted(read(late, {600, 601, 602})) == [600, 601, 602]
        late.close()
