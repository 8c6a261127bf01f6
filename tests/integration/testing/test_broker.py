"""A broker of headrace.testing lives as long as its test and leaves nothing behind."""

import asyncio
import doctest
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ConfigResource,
    ResourceType,
)

import headrace
import headrace.testing.broker
from headrace.errors import KafkaError
from headrace.testing import Broker, BrokerError
from headrace.testing.time_limits import Deadline, scaled
from headrace.types import TopicPartition
from tests.fork_server import started_plainly

MODES = pytest.mark.parametrize("in_process", [False, True], ids=["process", "in-process"])


@pytest.fixture(autouse=True, scope="module")
def plain_start() -> Iterator[None]:
    """Start brokers of these tests like those of users' tests, not forked."""
    with started_plainly():
        yield


def produce(broker: Broker, topic: str, *values: bytes) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(scaled(30)) == 0


def consume(broker: Broker, topic: str, count: int) -> list[bytes]:
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "readers",
            "auto.offset.reset": "earliest",
        }
    )
    try:
        consumer.subscribe([topic])
        return [message.value() or b"" for message in consumer.consume(count, timeout=scaled(30))]
    finally:
        consumer.close()


@MODES
def test_it_serves_a_client_and_leaves_nothing_behind(in_process: bool) -> None:
    threads, children = threading.active_count(), psutil.Process().children()
    with Broker(in_process=in_process) as broker:
        assert broker.is_running
        assert broker.bootstrap_servers == f"{broker.host}:{broker.port}"
        assert (broker.pid == os.getpid()) is in_process
        topic = broker.create_topic(partitions=3, retention_ms=60_000)
        produce(broker, topic, b"a", b"b")
        assert sorted(consume(broker, topic, 2)) == [b"a", b"b"]
        data_dir = broker.data_dir
        assert data_dir.is_dir()
    assert not broker.is_running
    assert not data_dir.exists()
    assert psutil.Process().children() == children
    assert threading.active_count() == threads


@MODES
def test_a_restart_keeps_port_and_data(in_process: bool) -> None:
    with Broker(in_process=in_process) as broker:
        address, topic = broker.bootstrap_servers, broker.create_topic("orders")
        produce(broker, topic, b"before")
        broker.restart()
        assert broker.bootstrap_servers == address
        produce(broker, topic, b"after")
        broker.stop()
        assert not broker.is_running
        broker.stop()
        broker.start()
        assert consume(broker, topic, 2) == [b"before", b"after"]
        with pytest.raises(BrokerError, match="running already"):
            broker.start()


@MODES
def test_topics_get_their_settings(in_process: bool) -> None:
    with Broker(in_process=in_process, config={"num.partitions": 4}) as broker:
        names = [broker.create_topic(), broker.create_topic(cleanup_policy="delete", partitions=2)]
        assert len(set(names)) == 2
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        produce(broker, "made-by-itself", b"x")
        topics = admin.list_topics(timeout=scaled(30)).topics
        assert [len(topics[name].partitions) for name in (*names, "made-by-itself")] == [1, 2, 4]
        broker.create_topic("short", retention_ms=60_000)
        resource = ConfigResource(ResourceType.TOPIC, "short")
        [described] = admin.describe_configs([resource]).values()
        assert described.result(scaled(30))["retention.ms"].value == "60000"
        with pytest.raises(KafkaError, match="TOPIC_ALREADY_EXISTS"):
            broker.create_topic("short")
        with pytest.raises(KafkaError, match=r"retention\.msec"):
            broker.create_topic(retention_msec=1)
        with pytest.raises(KafkaError, match="INVALID_PARTITIONS"):
            broker.create_topic(partitions=0)


def test_records_are_deleted_for_their_age_if_the_test_wants_that() -> None:
    with (
        Broker(config={"log.retention.check.interval.ms": 10}) as broker,
        headrace.Producer(bootstrap_servers=broker.bootstrap_servers) as producer,
        headrace.Consumer(bootstrap_servers=broker.bootstrap_servers) as consumer,
    ):
        topic = broker.create_topic()
        producer.send(topic, "old", timestamp_ms=1).result()
        until = Deadline(30)
        while consumer.beginning_offsets(TopicPartition(topic, 0)) != {(topic, 0): 1}:
            assert not until.has_passed


@MODES
def test_a_taken_port_is_named(in_process: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        broker = Broker(in_process=in_process, port=port)
        with pytest.raises(BrokerError, match=rf"127\.0\.0\.1:{port}"):
            broker.start()
    assert not broker.is_running
    # What failed has let go of everything: the same broker can be started now.
    with broker:
        assert broker.port == port


@MODES
def test_data_that_is_given_is_kept(in_process: bool, tmp_path: Path) -> None:
    with Broker(in_process=in_process, data_dir=tmp_path / "data") as broker:
        produce(broker, broker.create_topic("orders"), b"kept")
    with Broker(in_process=in_process, data_dir=tmp_path / "data") as broker:
        assert consume(broker, "orders", 1) == [b"kept"]
        assert broker.data_dir == tmp_path / "data"


@MODES
def test_data_it_cannot_read_is_said(in_process: bool, tmp_path: Path) -> None:
    (tmp_path / "orders-0").mkdir()
    (tmp_path / "orders-0" / f"{0:020}.log").touch()
    with pytest.raises(BrokerError, match="no metadata log"):
        Broker(in_process=in_process, data_dir=tmp_path).start()


@MODES
def test_it_can_be_used_inside_an_event_loop(in_process: bool) -> None:
    async def use() -> str:
        with Broker(in_process=in_process) as broker:
            return broker.create_topic("orders")

    assert asyncio.run(use()) == "orders"


def test_the_examples_of_its_docstrings_are_true() -> None:
    assert doctest.testmod(headrace.testing.broker) == doctest.TestResults(failed=0, attempted=1)


def test_brokers_stand_side_by_side() -> None:
    with Broker() as one, Broker(in_process=True) as two, Broker(in_process=True) as three:
        assert len({one.port, two.port, three.port}) == 3
        for broker in (one, two, three):
            produce(broker, broker.create_topic("orders"), broker.bootstrap_servers.encode())
        for broker in (one, two, three):
            assert consume(broker, "orders", 1) == [broker.bootstrap_servers.encode()]


def test_a_broker_that_is_not_ready_in_time_is_ended() -> None:
    children = psutil.Process().children()
    with pytest.raises(BrokerError, match=r"not ready within 0\.001 s"):
        Broker(start_timeout_s=0.001).start()
    assert psutil.Process().children() == children


def test_a_broker_that_ends_by_itself_fails_its_test() -> None:
    broker = Broker().start()
    _end_from_outside(broker)
    assert not broker.is_running
    with pytest.raises(BrokerError, match=r"not running(.|\n)*ready on"):
        broker.create_topic()
    with pytest.raises(BrokerError, match=r"ended by itself with status -10(.|\n)*ready on"):
        broker.close()
    assert "ready on" in broker.log
    with Broker() as broker:
        _end_from_outside(broker)
        broker.start()
        broker.create_topic()


def _end_from_outside(broker: Broker) -> None:
    # A broker does not handle it, and nobody has it ignored: it is as good as a crash.
    os.kill(broker.pid, signal.SIGUSR1)
    while broker.is_running:
        time.sleep(0.001)


@pytest.mark.parametrize("state", ["running", "paused", "closing"])
def test_a_broker_ends_with_the_process_that_started_it(state: str) -> None:
    program = (
        "import sys\n"
        "from headrace.testing import Broker\n"
        "broker = Broker().start()\n"
        f"if {state == 'paused'}: broker.pause()\n"
        "print(broker.pid, broker.data_dir, flush=True)\n"
        "sys.stdin.read()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        pid, data_dir = process.stdout.readline().split()
        broker = psutil.Process(int(pid))
        # The end of its input ends the program, which closes its broker.
        if state != "closing":
            process.kill()
    # Where nobody waits for orphans an ended process stays as a zombie.
    gone, _ = psutil.wait_procs([broker], timeout=scaled(30))
    assert gone or broker.status() == psutil.STATUS_ZOMBIE
    assert not Path(data_dir).exists()


def test_an_in_process_broker_that_nobody_closed_leaves_no_files() -> None:
    program = (
        "from headrace.testing import Broker\n"
        "print(Broker(in_process=True).start().data_dir, flush=True)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=scaled(60),
        check=False,
    )
    assert result.returncode == 0
    assert result.stderr == ""
    assert not Path(result.stdout.strip()).exists()
