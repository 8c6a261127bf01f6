"""A compacted topic of a real broker, as clients see it."""

import time
from random import Random

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

import headrace
from headrace.testing import Broker
from headrace.testing.broker import Value
from headrace.testing.time_limits import Deadline, scaled, wait_until
from tests.integration.test_admin_listener import metrics

SETTINGS = {"log.cleaner.backoff.ms": 50, "log.segment.bytes": 1 << 20}
RECORDS = 6_000
KEYS = 40


def fill(broker: Broker, topic: str) -> dict[bytes, bytes]:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 5})
    written = {}
    rng = Random(1)  # No codec makes less of it.
    for number in range(RECORDS):
        key, value = b"key-%d" % (number % KEYS), b"%d:" % number + rng.randbytes(600)
        producer.produce(topic, value, key)
        producer.poll(0)
        written[key] = value
    assert producer.flush(scaled(30)) == 0
    return written


def read(broker: Broker, topic: str) -> dict[bytes | None, bytes | None]:
    """The table that a reader makes of a topic."""
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap_servers, "group.id": "g", "check.crcs": True}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    end = consumer.get_watermark_offsets(TopicPartition(topic, 0), 10)[1]
    found: dict[bytes | None, bytes | None] = {}
    offset = 0
    while offset < end:
        for message in consumer.consume(1000, 1.0):
            assert message.error() is None
            found[message.key()] = message.value()
            offset = (message.offset() or 0) + 1
    consumer.close()
    return found


def bytes_of(admin: headrace.Admin, topic: str) -> int:
    [directory] = admin.describe_log_dirs()[1]
    return directory.replicas[headrace.TopicPartition(topic, 0)]


def test_the_progress_of_a_compaction_is_shown() -> None:
    rate = "log.cleaner.io.max.bytes.per.second"
    config: dict[str, Value] = {**SETTINGS, "admin.listener": "127.0.0.1:0", rate: 200_000}
    with (
        Broker(config=config) as broker,
        headrace.Admin(bootstrap_servers=broker.bootstrap_servers) as admin,
    ):

        def ratio() -> float:
            return metrics(broker.admin_url)["headrace_compaction_done_ratio"]

        assert ratio() == 1, "no round is under way"
        fill(broker, broker.create_topic(cleanup_policy="compact"))
        seen = [wait_until(lambda: ratio() < 1 and ratio(), 60, "a round has begun")]
        wait_until(lambda: seen[0] < ratio() < 1, 60, "the round goes on")
        assert metrics(broker.admin_url)["headrace_compacting"] == 1
        admin.alter_configs({rate: 1 << 40}, broker=1)
        wait_until(lambda: ratio() == 1, 60, "the round has ended")


@pytest.mark.parametrize("codec", ["producer", "lz4"])
def test_a_topic_is_compacted_and_read_while_the_broker_runs(codec: str) -> None:
    with (
        Broker(config=SETTINGS) as broker,
        headrace.Admin(bootstrap_servers=broker.bootstrap_servers) as admin,
    ):
        topic = broker.create_topic(cleanup_policy="compact", compression_type=codec)
        written = fill(broker, topic)
        # Closed segments alone are compacted, so the last one has old records in it.
        deadline = Deadline(20)
        while bytes_of(admin, topic) > 2 << 20:
            assert not deadline.has_passed
            time.sleep(0.05)
        assert read(broker, topic) == written
        broker.kill()
        broker.start()
        assert read(broker, topic) == written


def test_a_record_without_a_key_is_refused() -> None:
    with Broker(config=SETTINGS) as broker:
        topic = broker.create_topic(cleanup_policy="compact,delete")
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
        errors = []
        producer.produce(topic, b"value", on_delivery=lambda error, _: errors.append(error))
        producer.flush(scaled(10))
        assert [error and error.code() for error in errors] == [KafkaError.INVALID_RECORD]
