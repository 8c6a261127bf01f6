"""Starting and stopping: many topics, SIGTERM under load, and a start that need not look twice."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from confluent_kafka import Producer

from headrace.config import TopicConfig
from headrace.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from headrace.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from headrace.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from headrace.protocol.messages.metadata import MetadataRequest
from headrace.protocol.records import encode_batch
from headrace.storage.checkpoints import CLEAN_SHUTDOWN
from headrace.storage.files import Files
from headrace.storage.log_manager import LogManager
from headrace.testing.time_limits import scaled
from tests.integration.wire import FETCH_BY_NAME, Wire, create_topic, produce, read_all
from tests.support import BrokerProcess

StartBroker = Callable[..., BrokerProcess]

TOPICS = 1_000
PARTITIONS = 2_000


def recovery_of(data_dir: Path) -> dict[str, bool]:
    """Whether each log had to be scanned, as the next start would find it."""
    manager = LogManager.open(
        Files(),
        [str(data_dir)],
        node_id=1,
        cluster_id=None,
        config_of=lambda _: TopicConfig(),
        now_ms=int(time.time() * 1000),
    )
    scanned = {str(log.topic_partition): log.recovery.scanned for log in manager}
    manager.close(clean=True)
    return scanned


def one_record(value: bytes = b"v") -> bytearray:
    return encode_batch([(int(time.time() * 1000), None, value, ())])


def test_a_clean_stop_leaves_nothing_to_look_through(start_broker: StartBroker, topic: str) -> None:
    broker = start_broker()
    create_topic(broker.address, topic, partitions=3)
    with Wire(broker.address) as wire:
        for _ in range(100):
            produce(wire, topic, one_record(bytes(1000)), partition=1)
    assert not (broker.data_dir / CLEAN_SHUTDOWN).exists()
    broker.stop()
    assert (broker.data_dir / CLEAN_SHUTDOWN).exists()
    assert recovery_of(broker.data_dir) == {f"{topic}-{index}": False for index in range(3)}
    broker.start()
    assert not (broker.data_dir / CLEAN_SHUTDOWN).exists()
    broker.kill()
    assert recovery_of(broker.data_dir) == {f"{topic}-{index}": True for index in range(3)}
    broker.start()
    assert len(read_all(broker.address, topic, 1)) == 100


@pytest.mark.parametrize("acks", ["1", "all"])
def test_sigterm_under_load_loses_no_acknowledged_record(
    start_broker: StartBroker, topic: str, acks: str
) -> None:
    broker = start_broker()
    create_topic(broker.address, topic, partitions=2)
    acknowledged: list[tuple[int, int, bytes]] = []
    enough, stop = threading.Event(), threading.Event()

    def report(error: Any, message: Any) -> None:
        if error is None:
            acknowledged.append((message.partition(), message.offset(), message.value()))
            if len(acknowledged) == 20_000:
                enough.set()

    def load() -> None:
        settings: dict[str, Any] = {
            "bootstrap.servers": broker.address,
            "acks": acks,
            "retries": 0,
            "log_level": 0,
        }
        producer = Producer(settings)
        number = 0
        while not stop.is_set():
            for _ in range(100):
                value = b"%d" % number
                producer.produce(topic, value, partition=number % 2, on_delivery=report)
                number += 1
            while len(producer) > 5_000 and not stop.is_set():
                producer.poll(0.01)
        producer.purge()
        producer.flush(scaled(10))

    thread = threading.Thread(target=load)
    thread.start()
    assert enough.wait(scaled(30))
    begin = time.monotonic()
    broker.stop()
    assert time.monotonic() - begin < scaled(10)
    stop.set()
    thread.join()
    assert recovery_of(broker.data_dir) == {f"{topic}-{number}": False for number in (0, 1)}
    broker.start()
    for partition in (0, 1):
        stored = {
            record.offset: record.value for record in read_all(broker.address, topic, partition)
        }
        told = {offset: value for where, offset, value in acknowledged if where == partition}
        assert told.items() <= stored.items()


def test_a_stop_answers_those_who_wait(start_broker: StartBroker, topic: str) -> None:
    broker = start_broker()
    create_topic(broker.address, topic)
    with Wire(broker.address) as wire, Wire(broker.address) as other:
        wanted = FetchPartition(partition_max_bytes=1000)
        request = FetchRequest(
            max_wait_ms=20_000,
            min_bytes=1,
            topics=[FetchTopic(topic=topic, partitions=[wanted])],
        )
        wire.send(request, FETCH_BY_NAME)
        # Answered after the fetch has arrived, which therefore waits by now.
        other.ask(MetadataRequest(topics=None))
        begin = time.monotonic()
        broker.stop()
        assert time.monotonic() - begin < scaled(10), "the stop waited for the fetch to time out"
        assert wire.receive().error_code == 0


def create_many(wire: Wire, names: list[str], partitions: int = 1) -> None:
    for first in range(0, len(names), 500):
        topics = [
            CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)
            for name in names[first : first + 500]
        ]
        response = wire.ask(CreateTopicsRequest(topics=topics, timeout_ms=60_000))
        assert {topic.error_code for topic in response.topics} == {0}


@pytest.mark.timeout(240)
def test_a_thousand_topics_are_made_kept_and_deleted(start_broker: StartBroker) -> None:
    broker = start_broker()
    names = [f"many-{number}" for number in range(TOPICS)]
    begin = time.monotonic()
    with Wire(broker.address, timeout_s=60) as wire:
        create_many(wire, names)
        assert time.monotonic() - begin < scaled(60), "creating took too long"
        for name in (names[0], names[-1]):
            assert produce(wire, name, one_record()).error_code == 0
        assert {topic.name for topic in wire.ask(MetadataRequest(topics=None)).topics} == set(names)
    assert psutil.Process(broker.pid).num_fds() < 1000
    begin = time.monotonic()
    broker.restart()
    assert time.monotonic() - begin < scaled(60), "starting took too long"
    assert len(read_all(broker.address, names[-1])) == 1
    begin = time.monotonic()
    broker.kill()
    broker.start()
    assert time.monotonic() - begin < scaled(60), "recovering took too long"
    with Wire(broker.address, timeout_s=60) as wire:
        gone = [DeleteTopicState(name=name) for name in names[1:]]
        response = wire.ask(DeleteTopicsRequest(topics=gone, timeout_ms=60_000))
        assert {result.error_code for result in response.responses} == {0}
        assert [topic.name for topic in wire.ask(MetadataRequest(topics=None)).topics] == [names[0]]
        assert produce(wire, names[0], one_record()).error_code == 0


@pytest.mark.timeout(180)
def test_one_topic_of_thousands_of_partitions(start_broker: StartBroker, topic: str) -> None:
    broker = start_broker()
    with Wire(broker.address, timeout_s=60) as wire:
        begin = time.monotonic()
        create_many(wire, [topic], PARTITIONS)
        assert time.monotonic() - begin < scaled(60)
        for partition in (0, PARTITIONS - 1):
            answer = produce(wire, topic, one_record(), partition=partition)
            assert (answer.error_code, answer.base_offset) == (0, 0)
