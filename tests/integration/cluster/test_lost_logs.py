"""Small damage to one replica's files while all are stopped: no acknowledged record is lost."""

import re
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import run

import pytest

from headrace import Producer
from headrace.errors import ErrorCode
from headrace.protocol.batch import HEADER_SIZE
from headrace.protocol.records import encode_batch
from headrace.testing.cluster import Cluster
from headrace.testing.time_limits import scaled
from tests.integration.cluster.replicas import wait_until_identical
from tests.integration.wire import Wire, create_topic, produce, read_all
from tests.support import BrokerProcess, headrace_command

RECORDS = 300
VICTIM = 3


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """One for all: after each test it is whole again."""
    with Cluster(brokers=3) as cluster:
        yield cluster


def flip_a_bit_of_the_topic_id(log: Path) -> None:
    path = log / "partition.metadata"
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)


def zero_the_topic_id(log: Path) -> None:
    path = log / "partition.metadata"
    path.write_bytes(bytes(path.stat().st_size))


def flip_a_bit_of_the_records(log: Path) -> None:
    path = min(log.glob("*.log"))
    data = bytearray(path.read_bytes())
    data[HEADER_SIZE + 5] ^= 1
    path.write_bytes(data)


def empty_the_directory(log: Path) -> None:
    for path in log.iterdir():
        path.unlink()


def write(bootstrap_servers: str, topic: str) -> list[bytes]:
    """Records that all replicas in sync have acknowledged."""
    values = [b"%d" % number for number in range(RECORDS)]
    with Producer(bootstrap_servers=bootstrap_servers, acks="all") as producer:
        for value in values:
            producer.send(topic, value)
        producer.flush()
    return values


def one_record() -> bytearray:
    return encode_batch([(int(time.time() * 1000), None, b"v", ())])


def start_in_turn(cluster: Cluster) -> None:
    """Start brokers 1 and 2, which are a majority, and then the one with the damage."""
    first = [cluster.broker(number) for number in (1, 2)]
    for broker in first:
        broker.launch()
    for broker in first:
        broker.wait_until_ready(scaled(60))
    cluster.broker(VICTIM).start()


def check_all_is_there(cluster: Cluster, topic: str, values: list[bytes]) -> None:
    cluster.wait_for_isr(topic, 3, timeout_s=scaled(60))
    wait_until_identical(cluster, topic, 1)
    leader = cluster.broker(cluster.leader_of(topic))
    assert [record.value for record in read_all(leader.bootstrap_servers, topic)] == values


def damage_and_restart(
    cluster: Cluster, topic: str, damage: Callable[[Path], object], *, victim_stops_last: bool
) -> None:
    """Stop all brokers in turn, damage a log of the third, start the others and then that one."""
    order = (1, 2, VICTIM) if victim_stops_last else (VICTIM, 2, 1)
    for number in order:
        cluster.broker(number).stop()
    damage(cluster.broker(VICTIM).data_dir / f"{topic}-0")
    start_in_turn(cluster)


@pytest.mark.parametrize("damage", [flip_a_bit_of_the_topic_id, zero_the_topic_id])
def test_the_last_replica_in_sync_keeps_its_records_without_its_id(
    cluster: Cluster, damage: Callable[[Path], object]
) -> None:
    topic = cluster.create_topic(min_insync_replicas=2, flush_messages=1)
    values = write(cluster.bootstrap_servers, topic)
    damage_and_restart(cluster, topic, damage, victim_stops_last=True)
    check_all_is_there(cluster, topic, values)
    assert f"{topic}-0: partition.metadata" in cluster.broker(VICTIM).log


@pytest.mark.parametrize("victim_stops_last", [False, True])
@pytest.mark.parametrize("damage", [empty_the_directory, shutil.rmtree])
def test_a_replica_whose_log_is_lost_is_filled_by_the_others(
    cluster: Cluster, damage: Callable[[Path], object], victim_stops_last: bool
) -> None:
    topic = cluster.create_topic(min_insync_replicas=2, flush_messages=1)
    values = write(cluster.bootstrap_servers, topic)
    damage_and_restart(cluster, topic, damage, victim_stops_last=victim_stops_last)
    check_all_is_there(cluster, topic, values)
    assert f"{topic}-0 begins with an empty log" in cluster.broker(VICTIM).log


def test_a_damaged_log_is_fetched_again_as_the_plan_of_its_repair_says(
    cluster: Cluster, tmp_path: Path
) -> None:
    topic = cluster.create_topic(min_insync_replicas=2, flush_messages=1)
    # More than one batch, so that a whole one follows on the damage.
    values = [value for _ in range(2) for value in write(cluster.bootstrap_servers, topic)]
    broker = cluster.broker(VICTIM)
    log = broker.data_dir / f"{topic}-0"
    cluster.wait_for_isr(topic, 3, timeout_s=scaled(60))
    flip_a_bit_of_the_records(log)
    command = [headrace_command(), "log", "repair", str(log)]
    shown = run(command, capture_output=True, text=True, check=False)
    assert shown.returncode == 1, shown
    [directory] = re.findall(r"^(.*): offsets \d+ to \d+, ", shown.stdout, re.MULTILINE)
    advice = "If another replica has the log whole, (.*): it fetches the log"
    [steps] = re.findall(advice, shown.stdout)
    assert steps == "stop the broker, move this directory away, and start it again"
    broker.stop()
    Path(directory).rename(tmp_path / "away")
    broker.start()
    check_all_is_there(cluster, topic, values)


@pytest.mark.parametrize(
    "damage",
    [
        flip_a_bit_of_the_topic_id,
        zero_the_topic_id,
        lambda log: (log / "partition.metadata").unlink(),
    ],
    ids=["flipped", "zeroed", "missing"],
)
def test_a_lone_broker_keeps_the_records_of_a_log_without_its_id(
    tmp_path: Path, damage: Callable[[Path], object]
) -> None:
    with BrokerProcess(tmp_path) as broker:
        create_topic(broker.address, "orders")
        values = write(broker.address, "orders")
        broker.stop()
        damage(broker.data_dir / "orders-0")
        broker.start()
        assert [record.value for record in read_all(broker.address, "orders")] == values


def test_the_advice_about_a_lost_log_without_another_replica_can_be_followed(
    tmp_path: Path,
) -> None:
    with BrokerProcess(tmp_path) as broker:
        create_topic(broker.address, "orders", partitions=2)
        values = write(broker.address, "orders")
        broker.stop()
        shutil.rmtree(broker.data_dir / "orders-0")
        broker.start()
        [line] = [line for line in broker.log_text.splitlines() if "orders-0 is offline" in line]
        advice = re.findall(r"`headrace (log strays \S+ [^`]+)`", line)
        with Wire(broker.address) as wire:
            refused = produce(wire, "orders", one_record())
            assert refused.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        others = [record.value for record in read_all(broker.address, "orders", 1)]
        assert set(others) <= set(values)
        broker.stop()
        for command in advice:
            done = run([headrace_command(), *command.split()], capture_output=True, check=True)
            assert done.stdout
        broker.start()
        assert read_all(broker.address, "orders", 0) == []
        with Wire(broker.address) as wire:
            assert produce(wire, "orders", one_record()).error_code == 0
        assert [record.value for record in read_all(broker.address, "orders", 1)] == others


def test_the_advice_about_a_directory_in_the_way_of_a_new_log_can_be_followed(
    tmp_path: Path,
) -> None:
    with BrokerProcess(tmp_path) as broker:
        (broker.data_dir / "orders-0").mkdir()
        create_topic(broker.address, "orders")
        with Wire(broker.address) as wire:
            refused = produce(wire, "orders", one_record())
            assert refused.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        [(end, path)] = re.findall(
            r"orders-0 is offline until (.*): \S+: (\S+) is there already: move it away",
            broker.log_text,
        )
        assert end == "a restart"
        Path(path).rename(tmp_path / "away")
        broker.restart()
        with Wire(broker.address) as wire:
            assert produce(wire, "orders", one_record()).error_code == 0
