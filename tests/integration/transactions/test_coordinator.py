"""The coordinator of transactions as clients and other brokers find it."""

import time

import pytest
from confluent_kafka import Producer

from headrace.errors import ErrorCode
from headrace.protocol.messages.api_versions import ApiVersionsRequest
from headrace.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from headrace.protocol.records import encode_batch
from headrace.testing.cluster import Cluster
from headrace.testing.time_limits import scaled
from tests.integration.transactions.raw import NEW_PRODUCE, OLD_PRODUCE, RawProducer, refusal
from tests.integration.transactions.reading import read_committed
from tests.integration.wire import Wire, create_topic, produce_request, produced
from tests.support import BrokerProcess

STATE = "__transaction_state"
TOPIC_RESOURCE = 2
PARTITIONS = 3


@pytest.mark.parametrize(
    ("version", "supported"),
    [
        (3, {"metadata.version": (17, 30)}),
        (
            4,
            {
                "eligible.leader.replicas.version": (0, 1),
                "group.version": (0, 1),
                "kraft.version": (0, 1),
                "metadata.version": (17, 30),
                "transaction.version": (0, 2),
            },
        ),
    ],
)
def test_brokers_say_that_they_have_transactions_version_2(
    broker: BrokerProcess, version: int, supported: dict[str, tuple[int, int]]
) -> None:
    """Clients that ask in version 3 take no 0 for an answer."""
    request = ApiVersionsRequest(client_software_name="test", client_software_version="1")
    with Wire(broker.address) as wire:
        answer = wire.ask(request, version)
    assert supported == {
        supported_feature.name: (supported_feature.min_version, supported_feature.max_version)
        for supported_feature in answer.supported_features
    }
    assert {
        finalized_feature.name: (
            finalized_feature.min_version_level,
            finalized_feature.max_version_level,
        )
        for finalized_feature in answer.finalized_features
    } == {
        "eligible.leader.replicas.version": (1, 1),
        "group.version": (1, 1),
        "metadata.version": (30, 30),
        "transaction.version": (2, 2),
    }
    assert answer.finalized_features_epoch >= 0


def test_the_first_producer_has_the_topic_made_that_transactions_are_kept_in(
    broker: BrokerProcess,
) -> None:
    RawProducer(broker.address, "first").init()
    wanted = DescribeConfigsResource(
        resource_type=TOPIC_RESOURCE, resource_name=STATE, configuration_keys=None
    )
    with Wire(broker.address) as wire:
        [result] = wire.ask(DescribeConfigsRequest(resources=[wanted])).results
    settings = {config.name: config.value for config in result.configs}
    assert settings["cleanup.policy"] == "compact"
    assert settings["unclean.leader.election.enable"] == "false"
    assert settings["min.insync.replicas"] == "2"


def test_a_batch_that_comes_after_its_transaction_begins_none(
    broker: BrokerProcess, old: bool
) -> None:
    """It was delayed on the way; nobody would ever end what it began."""
    topic = f"late-{old}"
    create_topic(broker.address, topic)
    producer = RawProducer(broker.address, topic, old=old).init()
    producer.send(topic, b"a")
    late = produce_request(topic, producer.batch(topic, [b"late"]))
    late.transactional_id = topic
    producer.commit()
    producer.wait_until("CompleteCommit")
    with Wire(broker.address) as wire:
        answer = produced(wire.ask(late, OLD_PRODUCE if old else NEW_PRODUCE))
    # In version 2 the log itself knows: the epoch of the transaction is over.
    code = ErrorCode.INVALID_TXN_STATE if old else ErrorCode.INVALID_PRODUCER_EPOCH
    assert answer.error_code == code
    assert read_committed(broker.address, topic) == [b"a"]


def test_partitions_are_added_by_those_who_must(broker: BrokerProcess) -> None:
    create_topic(broker.address, "added")
    producer = RawProducer(broker.address, "added", old=True).init()
    code = refusal(lambda: producer.send("added", b"a", added=True))
    assert code is ErrorCode.INVALID_TXN_STATE
    producer.send("added", b"a")
    assert [topic.topic for topic in producer.describe().topics] == ["added"]
    producer.commit()
    newer = RawProducer(broker.address, "added-newer").init()
    newer.send("added", b"b")
    assert [topic.topic for topic in newer.describe().topics] == ["added"]
    newer.commit()
    newer.wait_until("CompleteCommit")
    assert read_committed(broker.address, "added") == [b"a", b"b"]


def test_pipelined_batches_keep_their_order_while_the_first_is_looked_up(
    broker: BrokerProcess,
) -> None:
    count = 20
    create_topic(broker.address, "pipelined", partitions=2)
    producer = RawProducer(broker.address, "pipelined").init()
    with Wire(broker.address) as wire:
        for number in range(count):
            for partition in (0, 1):
                data = encode_batch(
                    [(0, None, b"%d" % number, ())],
                    producer_id=producer.producer_id,
                    producer_epoch=producer.epoch,
                    base_sequence=number,
                    transactional=True,
                )
                request = produce_request("pipelined", data, partition=partition)
                request.transactional_id = "pipelined"
                wire.send(request, NEW_PRODUCE)
        codes = [produced(wire.receive()).error_code for _ in range(2 * count)]
    assert codes == [0] * 2 * count
    producer.commit()
    producer.wait_until("CompleteCommit")
    for partition in (0, 1):
        values = read_committed(broker.address, "pipelined", partition)
        assert values == [b"%d" % number for number in range(count)]


def test_transactions_go_on_while_brokers_are_restarted_one_after_the_other() -> None:
    """Leaderships are handed over, markers are under way, and every broker stops in time."""
    with Cluster(brokers=3, config={"transaction.state.log.num.partitions": "3"}) as cluster:
        topic = cluster.create_topic("rolled", PARTITIONS)
        producer = Producer(
            {
                "bootstrap.servers": cluster.bootstrap_servers,
                "transactional.id": topic,
                "linger.ms": 0,
            }
        )
        producer.init_transactions(scaled(30))
        committed = 0
        for broker in cluster.brokers:
            committed = _transact(producer, topic, committed, seconds=0.3)
            producer.begin_transaction()
            _send(producer, topic, committed)
            broker.restart()
            producer.commit_transaction(scaled(30))
            committed += 1
            cluster.wait_for_isr(STATE)
        committed = _transact(producer, topic, committed, seconds=0.3)
        open_ones = RawProducer(cluster, topic)
        open_ones.wait_until("CompleteCommit")
        for partition in range(PARTITIONS):
            leader = cluster.broker(cluster.wait_for_leader(topic, partition)).bootstrap_servers
            assert read_committed(leader, topic, partition) == [
                b"%d" % number for number in range(committed)
            ]


def _transact(producer: Producer, topic: str, number: int, seconds: float) -> int:
    """Transactions for a while, every second one is aborted; the number of the next."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        producer.begin_transaction()
        _send(producer, topic, -1)
        producer.abort_transaction(scaled(30))
        producer.begin_transaction()
        _send(producer, topic, number)
        producer.commit_transaction(scaled(30))
        number += 1
    return number


def _send(producer: Producer, topic: str, number: int) -> None:
    for partition in range(PARTITIONS):
        producer.produce(topic, b"%d" % number, partition=partition)
    producer.flush(scaled(30))
