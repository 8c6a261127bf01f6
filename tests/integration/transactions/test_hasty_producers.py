"""Producers that end a transaction while the end before is not complete, without a pause.

Clients wait for no markers. Those of Java and franz-go abort with the epoch of the last answer also
where nothing of the transaction was written, so the abort may be the next request that the
coordinator gets after a commit.
"""

import pytest
from confluent_kafka import Producer

from headrace.testing.time_limits import scaled
from tests.integration.transactions.hasty import SEQUENCES, HastyProducer
from tests.integration.transactions.reading import read_committed
from tests.integration.wire import create_topic
from tests.support import BrokerProcess

PAIRS = 50
PARTITIONS = 3


@pytest.mark.parametrize("name", SEQUENCES)
def test_commits_and_aborts_without_a_pause(broker: BrokerProcess, name: str) -> None:
    topic = f"hasty-{name}"
    create_topic(broker.address, topic, PARTITIONS)
    with HastyProducer(broker.address, topic) as producer:
        wanted = SEQUENCES[name](producer, topic, PARTITIONS, PAIRS)
        producer.wait_until("CompleteAbort")
    for partition in range(PARTITIONS):
        assert read_committed(broker.address, topic, partition) == wanted


def test_commits_and_aborts_of_librdkafka_without_a_pause(broker: BrokerProcess) -> None:
    topic = "hasty-librdkafka"
    create_topic(broker.address, topic)
    producer = Producer(
        {"bootstrap.servers": broker.address, "transactional.id": topic, "linger.ms": 5}
    )
    producer.init_transactions(scaled(30))
    for number in range(PAIRS):
        producer.begin_transaction()
        producer.produce(topic, b"%d" % number)
        producer.commit_transaction(scaled(30))
        producer.begin_transaction()
        producer.produce(topic, b"aborted")
        producer.abort_transaction(scaled(30))
    assert read_committed(broker.address, topic) == [b"%d" % number for number in range(PAIRS)]
