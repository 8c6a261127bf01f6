"""What was acknowledged is there afterwards: kill -9, restarts, full disks, lost directories."""

import os
import resource
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest

from headrace.errors import ErrorCode
from headrace.protocol.messages import incremental_alter_configs
from headrace.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from headrace.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from headrace.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from headrace.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from headrace.protocol.messages.describe_log_dirs import DescribeLogDirsRequest
from headrace.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from headrace.protocol.records import encode_batch
from headrace.testing.time_limits import scaled
from tests.integration.kills import assert_files_are_intact, survive_kills
from tests.integration.wire import (
    EARLIEST,
    PRODUCE_BY_NAME,
    Wire,
    create_topic,
    fetch,
    list_offset,
    new_producer_id,
    produce,
    produce_request,
    produced,
    read_all,
)
from tests.support import BrokerProcess, headrace_command, unused_port

StartBroker = Callable[..., BrokerProcess]

TOPIC_RESOURCE = 2


@pytest.mark.timeout(240)
def test_every_acknowledged_record_survives_kills_under_load(
    start_broker: StartBroker, topic: str
) -> None:
    survive_kills(start_broker(), topic, kills=8, rng=Random(20))


class Sequence(NamedTuple):
    """An idempotent producer as it is on the wire."""

    producer_id: int
    topic: str

    def batch(self, first: int, count: int = 1, epoch: int = 0) -> bytearray:
        # Old records, as of a backfill: producers are not to be forgotten with them.
        old_ms = int(time.time() * 1000) - 30 * 86_400_000
        rows = [(old_ms, None, b"%d" % (first + n), ()) for n in range(count)]
        return encode_batch(
            rows, producer_id=self.producer_id, producer_epoch=epoch, base_sequence=first
        )

    def send(self, wire: Wire, first: int, count: int = 1, epoch: int = 0) -> tuple[int, int]:
        """The error code and the base offset."""
        answer = produce(wire, self.topic, self.batch(first, count, epoch))
        return answer.error_code, answer.base_offset


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_producer_state_survives(start_broker: StartBroker, topic: str, how: str) -> None:
    broker = start_broker()
    create_topic(broker.address, topic, flush_messages="1", retention_ms="-1")
    with Wire(broker.address) as wire:
        sequence = Sequence(new_producer_id(wire), topic)
        for first in range(0, 21, 3):
            assert sequence.send(wire, first, 3) == (0, first)
    getattr(broker, how)()
    broker.start()
    with Wire(broker.address) as wire:
        # What is known is acknowledged again, and not written again. As in Kafka, a snapshot has
        # the last batch of each producer, and a log that is read again the last five.
        for first in range(18 if how == "stop" else 6, 21, 3):
            assert sequence.send(wire, first, 3) == (0, first)
        assert list_offset(wire, topic, -1) == 21
        out_of_order = int(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
        assert sequence.send(wire, 25)[0] == out_of_order, "a gap"
        assert sequence.send(wire, 0, 3)[0] != 0, "too old to be remembered"
        assert sequence.send(wire, 21) == (0, 21)
        assert sequence.send(wire, 0, 1, epoch=1) == (0, 22), "a new epoch begins again"
        assert sequence.send(wire, 22)[0] == ErrorCode.INVALID_PRODUCER_EPOCH
    assert [record.value for record in read_all(broker.address, topic)] == [
        *(b"%d" % number for number in range(22)),
        b"0",
    ]


def test_five_batches_in_flight_keep_their_order_over_a_lost_connection(
    start_broker: StartBroker, topic: str
) -> None:
    broker = start_broker()
    create_topic(broker.address, topic, retention_ms="-1")
    with Wire(broker.address) as wire:
        sequence = Sequence(new_producer_id(wire), topic)
        for first in range(5):
            wire.send(produce_request(topic, sequence.batch(first)), PRODUCE_BY_NAME)
        # The answers are lost with the connection; some or all of the batches were written.
        wire.finish_sending()
    with Wire(broker.address) as wire:
        for first in range(5):
            wire.send(produce_request(topic, sequence.batch(first)), PRODUCE_BY_NAME)
        answers = [produced(wire.receive()) for _ in range(5)]
    assert [(answer.error_code, answer.base_offset) for answer in answers] == [
        (0, at) for at in range(5)
    ]
    assert [record.value for record in read_all(broker.address, topic)] == [
        b"%d" % number for number in range(5)
    ]


def test_a_producer_id_is_never_given_twice(start_broker: StartBroker) -> None:
    broker = start_broker()
    given = []
    for how in ("kill", "stop", "kill"):
        with Wire(broker.address) as wire:
            given += [new_producer_id(wire) for _ in range(3)]
        getattr(broker, how)()
        broker.start()
    with Wire(broker.address) as wire:
        given.append(new_producer_id(wire))
    assert len(set(given)) == len(given)


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_deleted_records_stay_deleted(start_broker: StartBroker, topic: str, how: str) -> None:
    broker = start_broker()
    create_topic(broker.address, topic)
    rows = [(int(time.time() * 1000), None, b"%d" % number, ()) for number in range(100)]
    with Wire(broker.address) as wire:
        for row in rows:
            produce(wire, topic, encode_batch([row]))
        wanted = DeleteRecordsTopic(name=topic, partitions=[DeleteRecordsPartition(offset=60)])
        [answered] = wire.ask(DeleteRecordsRequest(topics=[wanted], timeout_ms=1000)).topics
        assert (answered.partitions[0].error_code, answered.partitions[0].low_watermark) == (0, 60)
    getattr(broker, how)()
    broker.start()
    with Wire(broker.address) as wire:
        assert list_offset(wire, topic, EARLIEST) == 60
        assert fetch(wire, topic, 59).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert [record.offset for record in read_all(broker.address, topic)] == list(range(60, 100))


def test_acknowledged_changes_of_topics_survive_a_kill(
    start_broker: StartBroker, topic: str
) -> None:
    broker = start_broker()
    topic_id = create_topic(broker.address, topic, 2, retention_ms="1234567")
    create_topic(broker.address, f"{topic}-gone")
    with Wire(broker.address) as wire:
        grown = CreatePartitionsTopic(name=topic, count=5, assignments=None)
        assert wire.ask(CreatePartitionsRequest(topics=[grown])).results[0].error_code == 0
        change = incremental_alter_configs.AlterConfigsResource(
            resource_type=TOPIC_RESOURCE,
            resource_name=topic,
            configs=[incremental_alter_configs.AlterableConfig(name="segment.ms", value="77777")],
        )
        request = incremental_alter_configs.IncrementalAlterConfigsRequest(resources=[change])
        assert wire.ask(request).responses[0].error_code == 0
        gone = DeleteTopicsRequest(topics=[DeleteTopicState(name=f"{topic}-gone")])
        assert wire.ask(gone).responses[0].error_code == 0
    broker.kill()
    broker.start()
    with Wire(broker.address) as wire:
        topics = {topic.name: topic for topic in wire.ask(MetadataRequest(topics=None)).topics}
        assert set(topics) == {topic}
        assert topics[topic].topic_id == topic_id
        assert len(topics[topic].partitions) == 5
        resource = DescribeConfigsResource(
            resource_type=TOPIC_RESOURCE,
            resource_name=topic,
            configuration_keys=["retention.ms", "segment.ms"],
        )
        [described] = wire.ask(DescribeConfigsRequest(resources=[resource])).results
        assert {config.name: config.value for config in described.configs} == {
            "retention.ms": "1234567",
            "segment.ms": "77777",
        }
    names = {entry.name for entry in broker.data_dir.iterdir() if entry.is_dir()}
    assert f"{topic}-gone-0" not in names


def failed_start(data_dir: Path, *settings: str) -> str:
    """What a broker that cannot start says; it must say it in one go, and fail."""
    command = [headrace_command(), "up", "--listen", f"127.0.0.1:{unused_port()}"]
    if not any(setting.startswith("log.dirs=") for setting in settings):
        command += ["--data-dir", str(data_dir)]
    for setting in settings:
        command += ["--set", setting]
    done = subprocess.run(command, capture_output=True, text=True, timeout=scaled(30), check=False)
    assert done.returncode != 0
    assert "Traceback" not in done.stderr, done.stderr
    return done.stderr


def test_a_second_broker_on_the_same_data_is_refused(start_broker: StartBroker, topic: str) -> None:
    broker = start_broker()
    create_topic(broker.address, topic)
    said = failed_start(broker.data_dir)
    assert str(broker.data_dir) in said and "in use by another process" in said
    with Wire(broker.address) as wire:
        rows = [(int(time.time() * 1000), None, b"v", ())]
        assert produce(wire, topic, encode_batch(rows)).error_code == 0


def test_data_of_another_node_is_refused(start_broker: StartBroker) -> None:
    broker = start_broker()
    broker.stop()
    said = failed_start(broker.data_dir, "node.id=7")
    assert "node.id=1" in said and "node.id=7" in said
    broker.start()


def test_an_address_in_use_is_refused(start_broker: StartBroker, tmp_path: Path) -> None:
    broker = start_broker()
    command = [headrace_command(), "up", "--listen", broker.address]
    command += ["--data-dir", str(tmp_path / "other")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=scaled(30), check=False)
    assert done.returncode != 0
    assert broker.address in done.stderr and "Traceback" not in done.stderr


def partitions_in(directory: Path, topic: str) -> list[int]:
    return [
        int(number)
        for name, _, number in (entry.name.rpartition("-") for entry in directory.iterdir())
        if name == topic and number.isdigit()
    ]


def one_record(value: bytes = b"v") -> bytearray:
    return encode_batch([(int(time.time() * 1000), None, value, ())])


def test_a_lost_directory_takes_only_its_own_partitions_offline(
    start_broker: StartBroker, topic: str, tmp_path: Path
) -> None:
    directories = [tmp_path / name for name in ("one", "two", "three")]
    broker = start_broker(**{"log.dirs": ",".join(map(str, directories))})
    create_topic(broker.address, topic, partitions=6)
    with Wire(broker.address) as wire:
        for partition in range(6):
            assert produce(wire, topic, one_record(), partition=partition).error_code == 0
    broker.stop()
    lost = partitions_in(directories[1], topic)
    assert len(lost) == 2, "partitions are spread over the directories"
    directories[1].rename(tmp_path / "lost")
    directories[1].write_text("a file where the directory was\n")
    broker.start()
    with Wire(broker.address) as wire:
        for partition in range(6):
            code = ErrorCode.KAFKA_STORAGE_ERROR if partition in lost else 0
            answer = produce(wire, topic, one_record(), partition=partition)
            assert answer.error_code == code
            assert fetch(wire, topic, 0, partition=partition).error_code == code
        states = wire.ask(DescribeLogDirsRequest(topics=None)).results
        codes = {state.log_dir: state.error_code for state in states}
        assert codes == {
            str(directories[0]): 0,
            str(directories[1]): ErrorCode.KAFKA_STORAGE_ERROR,
            str(directories[2]): 0,
        }
        request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)])
        [described] = wire.ask(request).topics
        offline = [
            partition.partition_index
            for partition in described.partitions
            if partition.offline_replicas
        ]
        assert sorted(offline) == sorted(lost)
        # Nothing that is done to a topic brings an empty log in the place of a lost one.
        grown = CreatePartitionsTopic(name=topic, count=7, assignments=None)
        assert wire.ask(CreatePartitionsRequest(topics=[grown])).results[0].error_code == 0
        refused = produce(wire, topic, one_record(), partition=lost[0])
        assert refused.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert produce(wire, topic, one_record(), partition=6).error_code == 0
    broker.stop()
    directories[1].unlink()
    (tmp_path / "lost").rename(directories[1])
    broker.start()
    for partition in range(6):
        count = 1 if partition in lost else 2
        assert len(read_all(broker.address, topic, partition)) == count


def test_a_topic_can_be_deleted_while_the_disk_of_a_partition_is_lost(
    start_broker: StartBroker, topic: str, tmp_path: Path
) -> None:
    directories = [tmp_path / name for name in ("one", "two")]
    broker = start_broker(**{"log.dirs": ",".join(map(str, directories))})
    create_topic(broker.address, topic, partitions=2)
    broker.stop()
    directories[1].rename(tmp_path / "lost")
    directories[1].write_text("a file where the directory was\n")
    broker.start()
    with Wire(broker.address) as wire:
        gone = DeleteTopicsRequest(topics=[DeleteTopicState(name=topic)])
        assert wire.ask(gone).responses[0].error_code == 0
    broker.stop()
    directories[1].unlink()
    (tmp_path / "lost").rename(directories[1])
    assert partitions_in(directories[1], topic)
    broker.start()
    # With the disk the log came back, of a topic that is gone.
    assert partitions_in(directories[1], topic) == []
    with Wire(broker.address) as wire:
        assert wire.ask(MetadataRequest(topics=None)).topics == []


def test_without_the_directory_of_its_metadata_a_broker_does_not_start(
    start_broker: StartBroker, topic: str, tmp_path: Path
) -> None:
    directories = [tmp_path / name for name in ("one", "two")]
    setting = "log.dirs=" + ",".join(map(str, directories))
    broker = start_broker(**{"log.dirs": ",".join(map(str, directories))})
    create_topic(broker.address, topic, partitions=2)
    broker.stop()
    directories[0].rename(tmp_path / "lost")
    directories[0].write_text("a file where the directory was\n")
    assert str(directories[0]) in failed_start(tmp_path, setting)
    directories[0].unlink()
    # An empty directory in its place is no better: the topics would all be strays.
    assert "metadata" in failed_start(tmp_path, setting)
    for entry in directories[0].iterdir():
        assert entry.name != f"{topic}-0"
    assert partitions_in(directories[1], topic), "nothing was deleted"
    remove_tree(directories[0])
    (tmp_path / "lost").rename(directories[0])
    broker.start()


def remove_tree(directory: Path) -> None:
    for entry in sorted(directory.rglob("*"), reverse=True):
        entry.rmdir() if entry.is_dir() else entry.unlink()
    directory.rmdir()


def test_a_file_that_may_not_grow_refuses_writes_until_it_may(
    start_broker: StartBroker, topic: str
) -> None:
    broker = start_broker()
    create_topic(broker.address, topic, partitions=2)
    kept: dict[int, list[bytes]] = {0: [], 1: []}
    # No file of the process may grow past this; the operating system refuses the write.
    limit = 2_000_000
    resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))

    def write(wire: Wire, partition: int, value: bytes) -> int:
        answer = produce(wire, topic, one_record(value), partition=partition)
        if answer.error_code == 0:
            kept[partition].append(value)
        return answer.error_code

    with Wire(broker.address) as wire:
        codes = [write(wire, 0, os.urandom(300_000)) for _ in range(10)]
        assert codes[0] == 0
        assert codes[-1] == ErrorCode.KAFKA_STORAGE_ERROR
        assert write(wire, 1, b"fine") == 0
        assert read_values(broker.address, topic, 0) == kept[0]
        resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (-1, -1))
        assert write(wire, 0, b"room again") == 0
    broker.kill()
    broker.start()
    for partition, values in kept.items():
        assert read_values(broker.address, topic, partition) == values
    assert_files_are_intact(broker.data_dir)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 16 MB. Mounting one needs root, as CI has."""
    directory = tmp_path / "small"
    directory.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(directory)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode != 0:
        pytest.skip(f"a small file system cannot be mounted: {mounted.stderr.strip()}")
    yield directory
    subprocess.run(["umount", "--lazy", str(directory)], check=True)


def test_a_full_disk_refuses_writes_and_leaves_the_rest_alone(
    start_broker: StartBroker, topic: str, tmp_path: Path, small_disk: Path
) -> None:
    large = tmp_path / "large"
    broker = start_broker(**{"log.dirs": f"{large},{small_disk}"})
    create_topic(broker.address, topic, partitions=2)
    [on_small] = partitions_in(small_disk, topic)
    [on_large] = partitions_in(large, topic)
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(8 * 1024 * 1024))
    rng = Random(16)
    kept: dict[int, list[bytes]] = {on_small: [], on_large: []}

    def write(wire: Wire, partition: int) -> int:
        value = rng.randbytes(300_000)
        answer = produce(wire, topic, one_record(value), partition=partition)
        if answer.error_code == 0:
            assert answer.base_offset == len(kept[partition])
            kept[partition].append(value)
        return answer.error_code

    with Wire(broker.address) as wire:
        codes = [write(wire, on_small) for _ in range(60)]
        assert codes[0] == 0, "there was room at first"
        assert codes[-1] == ErrorCode.KAFKA_STORAGE_ERROR
        assert [write(wire, on_large) for _ in range(60)] == [0] * 60
        # What is there can be read, and nothing is there that was not acknowledged.
        assert read_values(broker.address, topic, on_small) == kept[on_small]
        ballast.unlink()
        assert write(wire, on_small) == 0, "there is room again"
    broker.kill()
    broker.start()
    for partition, values in kept.items():
        assert read_values(broker.address, topic, partition) == values
    with Wire(broker.address) as wire:
        assert write(wire, on_small) == 0
    assert_files_are_intact(small_disk, large)


def test_a_disk_that_fills_up_during_a_kill_loses_nothing(
    start_broker: StartBroker, topic: str, tmp_path: Path, small_disk: Path
) -> None:
    broker = start_broker(**{"log.dirs": f"{tmp_path / 'large'},{small_disk}"})
    create_topic(broker.address, topic, partitions=2, flush_messages="1")
    [on_small] = partitions_in(small_disk, topic)
    ballast = small_disk / "ballast"
    kept: list[bytes] = []
    with Wire(broker.address) as wire:
        while True:
            value = os.urandom(300_000)
            answer = produce(wire, topic, one_record(value), partition=on_small)
            if answer.error_code:
                break
            kept.append(value)
    assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    free = os.statvfs(small_disk)
    ballast.write_bytes(bytes(free.f_bavail * free.f_frsize))
    broker.kill()
    # Not a byte is free: the broker must start nonetheless, and serve what it can.
    broker.start()
    with Wire(broker.address) as wire:
        refused = produce(wire, topic, one_record(), partition=on_small)
        assert refused.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert produce(wire, topic, one_record(), partition=1 - on_small).error_code == 0
    ballast.unlink()
    broker.restart()
    assert read_values(broker.address, topic, on_small) == kept
    with Wire(broker.address) as wire:
        assert produce(wire, topic, one_record(b"fits"), partition=on_small).error_code == 0


def read_values(address: str, topic: str, partition: int) -> list[bytes | None]:
    return [record.value for record in read_all(address, topic, partition)]
