"""Encrypted topics of real brokers, as clients, disks and an operator without the key see them."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from kafka import KafkaConsumer

import headrace
from headrace.security.keyring import key_line
from headrace.storage.key_sources import write_key_file
from headrace.testing import Broker, Cluster
from headrace.testing.broker import Value
from headrace.testing.time_limits import Deadline, scaled, wait_until
from tests.unit.security.encrypting import NEW, OLD

SECRET = b"nobody-may-read-this"


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    write_key_file(str(path), [OLD], replace=False)
    return path


def settings(key_file: Path, **more: Value) -> dict[str, Value]:
    return {
        "encryption.key.source": f"file:{key_file}",
        "encryption.key.refresh.ms": 200,
        **{name.replace("_", "."): value for name, value in more.items()},
    }


def value(number: int) -> bytes:
    return SECRET + b"-%d" % number


def produce(servers: str, topic: str, numbers: range, **config: object) -> None:
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 5, **config})
    errors: list[object] = []
    if "transactional.id" in config:
        producer.init_transactions(scaled(20))
        producer.begin_transaction()
    for number in numbers:
        producer.produce(
            topic,
            value(number),
            b"key-%d" % (number % 10),
            on_delivery=lambda error, _: errors.append(error),
        )
        producer.poll(0)
    assert producer.flush(scaled(60)) == 0
    assert set(errors) == {None}
    if "transactional.id" in config:
        producer.commit_transaction(scaled(20))


def consume(servers: str, topic: str, count: int, **config: object) -> list[bytes | None]:
    consumer = Consumer(
        {"bootstrap.servers": servers, "group.id": "g", "check.crcs": True, **config}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[bytes | None] = []
    deadline = Deadline(60)
    while len(found) < count and not deadline.has_passed:
        for message in consumer.consume(1000, 0.2):
            assert message.error() is None, message.error()
            found.append(message.value())
    consumer.close()
    return found


def on_disk(directory: Path, topic: str) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(directory.glob(f"**/{topic}-0/*.log")))


def test_every_client_reads_what_no_disk_shows(key_file: Path) -> None:
    with Broker(config=settings(key_file)) as broker:
        servers = broker.bootstrap_servers
        topic = broker.create_topic(encryption_enable=True)
        produce(servers, topic, range(500), **{"compression.type": "zstd"})
        produce(servers, topic, range(500, 1000), **{"transactional.id": "t"})
        expected = [value(number) for number in range(1000)]
        assert consume(servers, topic, 1000) == expected
        assert consume(servers, topic, 1000, **{"isolation.level": "read_committed"}) == expected
        with headrace.Consumer(
            topic, bootstrap_servers=servers, auto_offset_reset="earliest"
        ) as own:
            assert [next(own).value for _ in range(1000)] == expected
        theirs = KafkaConsumer(topic, bootstrap_servers=servers, auto_offset_reset="earliest")
        assert [next(theirs).value for _ in range(1000)] == expected
        theirs.close()
        assert SECRET not in on_disk(broker.data_dir, topic)
        broker.kill()
        broker.start()
        produce(servers, topic, range(1000, 1100))
        assert consume(servers, topic, 1100) == [value(number) for number in range(1100)]
        assert OLD.secret.hex() not in broker.log and key_line(OLD).strip() not in broker.log


def test_without_its_key_a_topic_waits_and_others_go_on(key_file: Path) -> None:
    with Broker(config=settings(key_file)) as broker:
        servers = broker.bootstrap_servers
        topic, plain = broker.create_topic(encryption_enable=True), broker.create_topic()
        produce(servers, topic, range(100))
        produce(servers, plain, range(10))
        before = on_disk(broker.data_dir, topic)
        broker.kill()
        key_file.unlink()
        write_key_file(str(key_file), [NEW], replace=False)
        broker.start()
        assert consume(servers, plain, 10) == [value(number) for number in range(10)]
        consumer = Consumer({"bootstrap.servers": servers, "group.id": "g"})
        consumer.assign([TopicPartition(topic, 0, 0)])
        needed = OLD.check_value.hex()
        wait_until(
            lambda: consumer.poll(0.1) is None and needed in broker.log, 30, "no word of the key"
        )
        assert on_disk(broker.data_dir, topic) == before
        # The consumer goes on when the key is back, without a restart.
        write_key_file(str(key_file), [NEW, OLD], replace=True)
        found: list[bytes | None] = []
        deadline = Deadline(60)
        while len(found) < 100 and not deadline.has_passed:
            found += [message.value() for message in consumer.consume(100, 0.2)]
        assert found == [value(number) for number in range(100)]
        consumer.close()
        assert "damage" not in broker.log


def test_a_rotated_key_seals_without_a_restart(key_file: Path) -> None:
    with Broker(config=settings(key_file)) as broker:
        servers = broker.bootstrap_servers
        topic = broker.create_topic(encryption_enable=True)
        produce(servers, topic, range(10))
        assert NEW.check_value not in on_disk(broker.data_dir, topic)
        write_key_file(str(key_file), [OLD, NEW], replace=True)
        wait_until(lambda: NEW.check_value.hex() in broker.log, 30, "the key is not read")
        produce(servers, topic, range(10, 20))
        assert NEW.check_value in on_disk(broker.data_dir, topic)
        # A damaged file changes nothing.
        key_file.write_text("nonsense\n")
        wait_until(lambda: "stay in use" in broker.log, 30, "no word of the file")
        produce(servers, topic, range(20, 30))
        assert consume(servers, topic, 30) == [value(number) for number in range(30)]
        assert "nonsense" not in broker.log


def test_a_broker_whose_keys_cannot_be_read_says_so_and_does_not_start(tmp_path: Path) -> None:
    broker = Broker(config={"encryption.key.source": f"file:{tmp_path}/missing"})
    with pytest.raises(Exception, match=r"cannot read .*missing"):
        broker.start()
    broker.close()


@pytest.fixture
def cluster(key_file: Path) -> Iterator[Cluster]:
    config = settings(key_file, log_cleaner_backoff_ms=50, log_segment_bytes=1 << 20)
    with Cluster(3, config=config) as cluster:
        yield cluster


def test_replicas_hold_the_same_sealed_bytes_through_kills_and_moves(cluster: Cluster) -> None:
    servers = cluster.bootstrap_servers
    topic = cluster.create_topic(encryption_enable=True, min_insync_replicas=2)
    acks = {"acks": "all"}
    written = 0
    for _ in range(3):
        produce(servers, topic, range(written, written + 200), **acks)
        written += 200
        leader = cluster.broker(cluster.leader_of(topic))
        leader.kill()
        produce(servers, topic, range(written, written + 200), **acks)
        written += 200
        leader.start()
        cluster.wait_for_isr(topic, 3)
    assert consume(servers, topic, written) == [value(number) for number in range(written)]
    copies = [on_disk(Path(broker.data_dir), topic) for broker in cluster.brokers]
    assert copies[0] == copies[1] == copies[2]
    assert SECRET not in copies[0] and len(copies[0]) > 0


def test_a_reassigned_partition_is_copied_sealed(cluster: Cluster) -> None:
    servers = cluster.bootstrap_servers
    topic = cluster.create_topic(replication_factor=1, encryption_enable=True)
    produce(servers, topic, range(300))
    before = cluster.leader_of(topic)
    after = before % 3 + 1
    with headrace.Admin(bootstrap_servers=servers) as admin:
        admin.alter_partition_reassignments({headrace.TopicPartition(topic, 0): [after]})
    wait_until(
        lambda: cluster.partitions_of(topic)[0].isr == (after,) and cluster.leader_of(topic),
        60,
        "the partition is not moved",
    )
    produce(servers, topic, range(300, 400))
    assert consume(servers, topic, 400) == [value(number) for number in range(400)]
    assert SECRET not in on_disk(Path(cluster.broker(after).data_dir), topic)


def test_a_compacted_topic_is_compacted_sealed(cluster: Cluster) -> None:
    servers = cluster.bootstrap_servers
    topic = cluster.create_topic(
        encryption_enable=True, cleanup_policy="compact", min_cleanable_dirty_ratio=0.01
    )
    padding = os.urandom(700)
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 5, "acks": "all"})
    for number in range(6000):
        producer.produce(topic, value(number) + padding, b"key-%d" % (number % 10))
        producer.poll(0)
    assert producer.flush(scaled(60)) == 0
    leader = cluster.broker(cluster.leader_of(topic))
    wait_until(lambda: len(on_disk(Path(leader.data_dir), topic)) < 2 << 20, 60, "it is too large")
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "g", "check.crcs": True})
    consumer.assign([TopicPartition(topic, 0, 0)])
    table: dict[bytes | None, bytes | None] = {}
    deadline = Deadline(60)
    last = value(5999) + padding
    while last not in table.values() and not deadline.has_passed:
        for message in consumer.consume(1000, 0.2):
            assert message.error() is None
            table[message.key()] = message.value()
    consumer.close()
    assert table == {b"key-%d" % (n % 10): value(n) + padding for n in range(5990, 6000)}
    assert SECRET not in on_disk(Path(leader.data_dir), topic)
