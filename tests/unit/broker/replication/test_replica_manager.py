"""What this broker holds, follows and leads, as the metadata image says."""

import errno
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, cast
from unittest.mock import ANY, Mock, call

import pytest

from headrace.broker.replication.flush_queue import FlushQueue
from headrace.broker.replication.partition import Partition
from headrace.broker.replication.replica_fetchers import ReplicaFetchers
from headrace.broker.replication.replica_manager import ReplicaManager
from headrace.config import BrokerConfig, TopicConfig
from headrace.errors import ErrorCode, KafkaError, StorageError
from headrace.metadata.elections import RECOVERING
from headrace.metadata.image import (
    BrokerImage,
    ConfigKey,
    ConfigResourceType,
    Image,
    PartitionImage,
    TopicImage,
)
from headrace.storage.log_manager import LogManager
from headrace.types import TopicPartition
from tests.unit.storage.logs import FaultyFiles, append, read_all

NOW_MS = 1_700_000_000_000
ME = 2
INCARNATION = b"this run of mine"
A, B = bytes(range(16)), bytes(range(100, 116))
CONFIG = BrokerConfig(node_id=ME)

Partitions = tuple[PartitionImage, ...]


class FakeFetchers:
    """Notes who is followed: (leader, epoch, topic id) by name."""

    def __init__(self) -> None:
        self.followed: dict[TopicPartition, tuple[int, int, bytes]] = {}
        self.calls = 0
        self.broker_changes = 0
        self.config: BrokerConfig | None = None

    def follow(self, partition: Partition, topic_id: bytes) -> None:
        self.calls += 1
        self.followed[partition.name] = (partition.leader_id, partition.leader_epoch, topic_id)

    def forget(self, name: TopicPartition) -> None:
        self.calls += 1
        self.followed.pop(name, None)

    def brokers_changed(self) -> None:
        self.broker_changes += 1

    def reconfigure(self, config: BrokerConfig) -> None:
        self.config = config


class FakeIsr:
    def now_ms(self) -> int:
        return NOW_MS

    def may_join(self, partition: Partition, broker_id: int, broker_epoch: int) -> bool:
        return True

    def propose_soon(self, partition: Partition) -> None:
        raise AssertionError(partition)


class FakeClock:
    def now_ms(self) -> int:
        return NOW_MS

    def monotonic(self) -> float:
        return 0.0


class Unused(Executor):
    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        raise AssertionError(fn)


class Holder:
    """The replicas of one run of broker 2, on its disks."""

    def __init__(self, directories: list[Path], files: FaultyFiles) -> None:
        rng = Random(1)
        self.files = files
        self.logs = LogManager.open(
            files,
            [str(directory) for directory in directories],
            node_id=ME,
            cluster_id="cluster",
            config_of=lambda _: TopicConfig(),
            now_ms=NOW_MS,
            new_id=lambda: rng.randbytes(16),
        )
        self.fetchers = FakeFetchers()
        self.replicas = ReplicaManager(
            ME,
            self.logs,
            FlushQueue(Unused()),
            cast(ReplicaFetchers, self.fetchers),
            FakeIsr(),
            FakeClock(),
            INCARNATION,
        )

    def apply(self, new: Image) -> int:
        """Apply an image; in how many steps."""
        return len(list(self.replicas.apply(new, CONFIG)))

    def held(self) -> list[str]:
        return sorted(str(replica.name) for replica in self.replicas)

    def crash(self) -> None:
        self.logs.close(clean=False)

    def stop(self) -> None:
        self.logs.close(high_watermarks=self.replicas.high_watermarks())


Open = Callable[..., Holder]


@pytest.fixture
def hold(tmp_path: Path) -> Iterator[Open]:
    """Start broker 2 on one or more directories."""
    holders: list[Holder] = []

    def start(*names: str) -> Holder:
        holders.append(Holder([tmp_path / name for name in names or ("data",)], FaultyFiles()))
        return holders[-1]

    yield start
    for holder in holders:
        holder.crash()


def partition(
    leader: int, *replicas: int, epoch: int = 0, isr: tuple[int, ...] | None = None
) -> PartitionImage:
    return PartitionImage(replicas, replicas if isr is None else isr, leader, epoch, epoch)


def topic(name: str, topic_id: bytes, *partitions: PartitionImage) -> TopicImage:
    return TopicImage(name, topic_id, partitions)


def image(
    *topics: TopicImage,
    incarnation: bytes = INCARNATION,
    configs: dict[ConfigKey, dict[str, str]] | None = None,
) -> Image:
    broker = BrokerImage(ME, 7, incarnation, (), None, False)
    return Image(
        brokers={ME: broker},
        topics={entry.name: entry for entry in topics},
        topics_by_id={entry.topic_id: entry for entry in topics},
        configs=configs or {},
        partition_count=sum(len(entry.partitions) for entry in topics),
    )


def refusal(action: Callable[[], object]) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        action()
    return caught.value.code


def test_a_broker_leads_follows_and_leaves_to_others_what_the_image_says(hold: Open) -> None:
    here = hold()
    here.apply(
        image(topic("orders", A, partition(2, 2, 1), partition(1, 1, 2), partition(1, 1, 3)))
    )
    assert here.held() == ["orders-0", "orders-1"]
    led = here.replicas.leader_of("orders", 0)
    assert led.is_leader
    assert list(here.replicas.led_partitions("orders")) == [0]
    assert here.fetchers.followed == {TopicPartition("orders", 1): (1, 0, A)}
    assert refusal(lambda: here.replicas.leader_of("orders", 1)) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert not here.replicas.replica_of("orders", 1).is_leader
    assert refusal(lambda: here.replicas.leader_of("orders", 2)) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    for unknown in (TopicPartition("orders", 3), TopicPartition("audit", 0)):
        with pytest.raises(KafkaError) as caught:
            here.replicas.leader_of(*unknown)
        assert caught.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert here.replicas.name_of(A) == "orders"
    assert here.replicas.name_of(B) is None


def test_images_of_before_this_run_change_nothing(hold: Open) -> None:
    here = hold()
    here.apply(image(topic("orders", A, partition(2, 2, 1))))
    append(here.replicas.leader_of("orders", 0).log, 3)
    here.crash()
    again = hold()
    # The topic is not in the image yet, then it is, then it has another id.
    again.apply(image(incarnation=b"an earlier run.."))
    again.apply(image(topic("orders", B, partition(2, 2, 1)), incarnation=b"an earlier run.."))
    assert again.held() == []
    again.apply(image(topic("orders", A, partition(2, 2, 1, epoch=4))))
    assert again.replicas.leader_of("orders", 0).log.log_end_offset == 3


def test_only_what_changed_is_looked_at(hold: Open) -> None:
    here = hold()
    many = tuple(partition(1, 1, 2) for _ in range(20))
    audit = topic("audit", B, *many)
    here.apply(image(topic("orders", A, *many), audit))
    here.fetchers.calls = 0
    changed = (*many[:7], partition(1, 1, 2, epoch=1), *many[8:])
    assert here.apply(image(topic("orders", A, *changed), audit)) == 1
    assert here.fetchers.calls == 1


def test_leadership_comes_and_goes(hold: Open) -> None:
    here = hold()
    name = TopicPartition("orders", 0)
    here.apply(image(topic("orders", A, partition(1, 1, 2))))
    assert here.fetchers.followed[name] == (1, 0, A)
    here.apply(image(topic("orders", A, partition(2, 1, 2, epoch=1))))
    assert not here.fetchers.followed
    assert here.replicas.leader_of("orders", 0).leader_epoch == 1
    here.apply(image(topic("orders", A, partition(1, 1, 2, epoch=2))))
    assert here.fetchers.followed[name] == (1, 2, A)
    here.apply(image(topic("orders", A, partition(-1, 1, 2, epoch=3))))
    assert here.fetchers.followed[name] == (-1, 3, A)


def test_a_change_of_the_isr_leaves_the_fetchers_alone(hold: Open) -> None:
    here = hold()
    here.apply(image(topic("orders", A, partition(1, 1, 2, 3), partition(2, 1, 2, 3))))
    here.fetchers.calls = 0
    shrunk = [
        PartitionImage((1, 2, 3), (1, 2), leader, leader_epoch=0, partition_epoch=1)
        for leader in (1, 2)
    ]
    here.apply(image(topic("orders", A, *shrunk)))
    assert here.fetchers.calls == 0
    assert here.replicas.replica_of("orders", 0).isr == (1, 2)
    assert here.replicas.leader_of("orders", 1).isr == (1, 2)


def test_a_replica_that_was_moved_away_is_deleted(hold: Open, tmp_path: Path) -> None:
    here = hold()
    here.apply(image(topic("orders", A, partition(1, 1, 2), partition(2, 2, 1))))
    here.apply(image(topic("orders", A, partition(1, 1, 3, epoch=1), partition(1, 3, 1, epoch=1))))
    assert here.held() == []
    assert not here.fetchers.followed
    assert not here.logs.logs
    assert not (tmp_path / "data" / "orders-0").exists()
    # It may come back, and begins with nothing then.
    here.apply(image(topic("orders", A, partition(1, 1, 2, epoch=2), partition(1, 3, 1, epoch=1))))
    assert here.held() == ["orders-0"]


def test_a_deleted_topic_is_gone_and_one_of_its_name_begins_empty(hold: Open) -> None:
    here = hold()
    here.apply(image(topic("orders", A, partition(2, 2, 1))))
    append(here.replicas.leader_of("orders", 0).log, 3)
    here.apply(image(topic("orders", B, partition(2, 2, 1))))
    assert here.replicas.leader_of("orders", 0).log.topic_id == B
    assert here.replicas.leader_of("orders", 0).log.log_end_offset == 0
    here.apply(image())
    assert here.held() == []
    assert not here.logs.logs


def strays(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.glob("*-stray"))


def test_what_was_moved_or_deleted_meanwhile_is_set_aside_at_the_start(
    hold: Open, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    here = hold()
    here.apply(
        image(
            topic("orders", A, partition(2, 2, 1), partition(1, 1, 2)),
            topic("audit", B, partition(2, 2)),
        )
    )
    append(here.replicas.leader_of("audit", 0).log, 3)
    here.crash()
    again = hold()
    assert len(again.logs.logs) == 3
    now = image(topic("orders", A, partition(1, 1, 3, epoch=1), partition(1, 1, 2)))
    again.apply(now)
    assert again.held() == ["orders-1"]
    assert [str(name) for name in again.logs.logs] == ["orders-1"]
    assert strays(tmp_path / "data") == [f"audit-0.{B.hex()}-stray", f"orders-0.{A.hex()}-stray"]
    audit = tmp_path / "data" / f"audit-0.{B.hex()}-stray"
    assert (audit / f"{0:020d}.log").stat().st_size > 0
    assert "the metadata knows no such partition" in (audit / "stray.metadata").read_text()
    lines = [record.getMessage() for record in caplog.records if "set aside" in record.getMessage()]
    assert len(lines) == 2
    assert any("audit-0" in line and "offsets 0 to 3" in line for line in lines)
    # Over restarts they are neither opened nor deleted.
    again.stop()
    third = hold()
    third.apply(now)
    third.logs.delete_retired(NOW_MS + 10**9)
    assert len(strays(tmp_path / "data")) == 2


def test_the_log_of_a_topic_that_was_made_again_meanwhile_is_set_aside(
    hold: Open, tmp_path: Path
) -> None:
    here = hold()
    here.apply(image(topic("orders", A, partition(2, 2, 1))))
    append(here.replicas.leader_of("orders", 0).log, 3)
    here.stop()
    again = hold()
    again.apply(image(topic("orders", B, partition(1, 2, 1, epoch=3))))
    assert again.replicas.replica_of("orders", 0).log.log_end_offset == 0
    assert strays(tmp_path / "data") == [f"orders-0.{A.hex()}-stray"]
    assert again.replicas.offline_partitions() == []
    # The new log is not taken for one that lost the records of the other.
    again.crash()
    third = hold()
    third.apply(image(topic("orders", B, partition(1, 2, 1, epoch=3))))
    assert third.held() == ["orders-0"]


def flip_bit(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "a flipped bit in the id": lambda path: flip_bit(path, -5),
    "a flipped bit in the name": lambda path: flip_bit(path, 14),
    "nothing but zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "empty": lambda path: path.write_bytes(b""),
    "missing": lambda path: path.unlink(),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("replicas", [(2,), (2, 1)])
def test_a_damaged_topic_id_is_taken_from_the_metadata(
    hold: Open,
    tmp_path: Path,
    damage: str,
    replicas: tuple[int, ...],
    caplog: pytest.LogCaptureFixture,
) -> None:
    here = hold()
    here.apply(image(topic("orders", A, partition(2, *replicas))))
    append(here.replicas.leader_of("orders", 0).log, 3)
    here.stop()
    path = tmp_path / "data" / "orders-0" / "partition.metadata"
    sound = path.read_bytes()
    DAMAGES[damage](path)
    assert not path.exists() or path.read_bytes() != sound
    again = hold()
    again.apply(image(topic("orders", A, partition(2, *replicas, epoch=1))))
    assert again.replicas.leader_of("orders", 0).log.log_end_offset == 3
    assert path.read_bytes() == sound
    assert strays(tmp_path / "data") == []
    assert sum("partition.metadata" in record.getMessage() for record in caplog.records) == 1


def test_a_log_without_an_id_that_is_newer_than_the_topic_is_set_aside(
    hold: Open, tmp_path: Path
) -> None:
    here = hold()
    here.apply(image(topic("orders", A, partition(2, 2, 1, epoch=7))))
    append(here.replicas.leader_of("orders", 0).log, 3, leader_epoch=7)
    here.stop()
    (tmp_path / "data" / "orders-0" / "partition.metadata").unlink()
    again = hold()
    again.apply(image(topic("orders", A, partition(1, 2, 1, epoch=2))))
    assert len(strays(tmp_path / "data")) == 1
    assert again.replicas.offline_partitions() == [TopicPartition("orders", 0)]


def lost_on_2(leader: int, *, isr: tuple[int, ...] = (1,), epoch: int = 3) -> PartitionImage:
    return PartitionImage((1, 2), isr, leader, epoch, epoch, lost_replicas=(2,))


def with_a_lost_log(hold: Open, tmp_path: Path) -> Holder:
    """A broker that finds the directory of orders-0 gone, and has heard that 1 leads."""
    here = hold()
    here.apply(image(topic("orders", A, partition(1, 1, 2), partition(1, 1, 2))))
    for index in range(2):
        append(here.replicas.replica_of("orders", index).log, 3)
    here.stop()
    for file in (tmp_path / "data" / "orders-0").iterdir():
        file.unlink()
    (tmp_path / "data" / "orders-0").rmdir()
    again = hold()
    others = partition(1, 1, 2, epoch=1)
    again.apply(image(topic("orders", A, partition(1, 1, 2, epoch=1, isr=(1,)), others)))
    return again


def with_a_damaged_log(hold: Open, tmp_path: Path) -> Holder:
    """A broker that finds a flipped bit in the fourth of six batches of orders-0."""
    here = hold()
    here.apply(image(topic("orders", A, partition(1, 1, 2, 3))))
    log = here.replicas.replica_of("orders", 0).log
    ends = []
    for _ in range(6):
        append(log, 2)
        ends.append(log.size_bytes)
    here.crash()
    flip_bit(tmp_path / "data" / "orders-0" / f"{0:020d}.log", ends[3] - 1)
    again = hold()
    again.apply(image(topic("orders", A, PartitionImage((1, 2, 3), (), -1, 1, 1))))
    assert again.replicas.offline_partitions() == [ORDERS]
    assert again.replicas.is_lost("orders", 0)
    return again


ORDERS = TopicPartition("orders", 0)
# Elected by the controller after a report of the loss, which the election takes back.
ELECTED = PartitionImage((1, 2, 3), (2,), 2, 4, 4, leader_recovery_state=1)


def test_a_damaged_log_is_cut_when_its_sound_part_was_elected(hold: Open, tmp_path: Path) -> None:
    here = with_a_damaged_log(hold, tmp_path)
    prefix = here.logs.intact_prefix(ORDERS)
    assert prefix is not None
    assert (prefix.end_offset, prefix.epoch) == (6, 0)
    here.replicas.offer_prefix(ORDERS, prefix)
    assert not here.replicas.awaits_truncation(ORDERS, lost_on_2(1))
    assert here.replicas.awaits_truncation(ORDERS, ELECTED)
    here.apply(image(topic("orders", A, ELECTED)))
    leader = here.replicas.leader_of("orders", 0)
    assert leader.log.log_end_offset == 6
    assert here.replicas.offline_partitions() == []
    append(leader.log, 1, leader_epoch=4)
    [removed] = (tmp_path / "data" / "orders-0").glob("*.removed")
    assert removed.stat().st_size > 0
    here.stop()
    again = hold()
    again.apply(image(topic("orders", A, partition(1, 1, 2, epoch=5))))
    assert again.replicas.replica_of("orders", 0).log.log_end_offset == 7


def test_a_damaged_log_that_the_controller_did_not_ask_for_is_never_cut(
    hold: Open, tmp_path: Path
) -> None:
    here = with_a_damaged_log(hold, tmp_path)
    before = (tmp_path / "data" / "orders-0" / f"{0:020d}.log").read_bytes()
    here.apply(image(topic("orders", A, ELECTED)))
    assert here.replicas.offline_partitions() == [ORDERS]
    assert (tmp_path / "data" / "orders-0" / f"{0:020d}.log").read_bytes() == before


def test_an_offer_ends_when_another_replica_leads(hold: Open, tmp_path: Path) -> None:
    here = with_a_damaged_log(hold, tmp_path)
    prefix = here.logs.intact_prefix(ORDERS)
    assert prefix is not None
    here.replicas.offer_prefix(ORDERS, prefix)
    others = PartitionImage((1, 2, 3), (1,), 1, 4, 4, lost_replicas=(2,))
    here.apply(image(topic("orders", A, others)))
    assert here.replicas.replica_of("orders", 0).log.log_end_offset == 0
    assert not here.replicas.awaits_truncation(ORDERS, ELECTED)
    assert len(strays(tmp_path / "data")) == 1


def test_a_log_that_cannot_be_cut_stays_offline_and_is_lost_again(
    hold: Open, tmp_path: Path
) -> None:
    here = with_a_damaged_log(hold, tmp_path)
    prefix = here.logs.intact_prefix(ORDERS)
    assert prefix is not None
    here.replicas.offer_prefix(ORDERS, prefix)
    here.files.fail("truncate", ".log")
    here.apply(image(topic("orders", A, ELECTED)))
    assert here.replicas.offline_partitions() == [ORDERS]
    assert not here.replicas.awaits_truncation(ORDERS, ELECTED), "it is reported as lost again"


def test_a_lost_log_is_offline_until_the_cluster_goes_on_without_it(
    hold: Open, tmp_path: Path
) -> None:
    again = with_a_lost_log(hold, tmp_path)
    name, others = TopicPartition("orders", 0), partition(1, 1, 2, epoch=1)
    assert again.held() == ["orders-1"]
    assert again.replicas.offline_partitions() == [name]
    assert "it is fetched again" in str(again.replicas._offline[name])
    # Not while nobody leads, nor while it may be elected as the last one in sync.
    again.apply(image(topic("orders", A, lost_on_2(-1), others)))
    again.apply(image(topic("orders", A, lost_on_2(-1, isr=(2,), epoch=4), others)))
    assert again.held() == ["orders-1"]
    again.apply(image(topic("orders", A, lost_on_2(1, epoch=5), others)))
    assert again.held() == ["orders-0", "orders-1"]
    assert again.replicas.replica_of("orders", 0).log.log_end_offset == 0
    assert again.fetchers.followed[name] == (1, 5, A)
    assert again.replicas.offline_partitions() == []
    # It is told as found when it has what its leader says is committed.
    assert again.replicas.rebuilt_partitions() == []
    meta = again.logs.directories[0].meta
    assert meta is not None
    again.replicas.replica_of("orders", 0).append_replicated(b"", [], 0, 0, NOW_MS)
    assert again.replicas.rebuilt_partitions() == [(name, meta.directory_id)]


def test_a_lost_log_stays_known_as_lost_over_restarts(hold: Open, tmp_path: Path) -> None:
    again = with_a_lost_log(hold, tmp_path)
    again.logs.checkpoint()
    again.stop()
    third = hold()
    third.apply(image(topic("orders", A, lost_on_2(-1), partition(1, 1, 2, epoch=1))))
    assert third.replicas.offline_partitions() == [TopicPartition("orders", 0)]
    # Until its topic is deleted.
    third.apply(image())
    third.apply(image(topic("orders", B, partition(2, 2))))
    assert third.held() == ["orders-0"]


def test_a_lost_log_without_another_replica_stays_offline_with_advice(
    hold: Open, tmp_path: Path
) -> None:
    here = hold()
    here.apply(image(topic("orders", A, partition(2, 2))))
    append(here.replicas.leader_of("orders", 0).log, 3)
    here.stop()
    directory = tmp_path / "data" / "orders-0"
    directory.rename(tmp_path / "away")
    again = hold()
    again.apply(image(topic("orders", A, partition(2, 2, epoch=1))))
    with pytest.raises(KafkaError, match="headrace log strays forget"):
        again.replicas.leader_of("orders", 0)
    assert not directory.exists()
    again.stop()
    # With its directory it is back.
    (tmp_path / "away").rename(directory)
    third = hold()
    third.apply(image(topic("orders", A, partition(2, 2, epoch=2))))
    assert third.replicas.leader_of("orders", 0).log.log_end_offset == 3


def test_a_log_that_lost_flushed_records_is_set_aside_and_begun_anew(
    hold: Open, tmp_path: Path
) -> None:
    here = hold()
    here.apply(image(topic("orders", A, partition(1, 1, 2))))
    append(here.replicas.replica_of("orders", 0).log, 3)
    here.stop()
    for file in (tmp_path / "data" / "orders-0").iterdir():
        if file.name != "partition.metadata":
            file.unlink()
    again = hold()
    again.apply(image(topic("orders", A, partition(1, 1, 2, epoch=1, isr=(1,)))))
    assert again.replicas.offline_partitions() == [TopicPartition("orders", 0)]
    assert strays(tmp_path / "data") == []
    again.apply(image(topic("orders", A, lost_on_2(1))))
    assert again.held() == ["orders-0"]
    assert len(strays(tmp_path / "data")) == 1


def test_high_watermarks_outlive_a_restart(hold: Open) -> None:
    here = hold()
    here.apply(image(topic("orders", A, partition(1, 1, 2), partition(1, 1, 2))))
    for index in range(2):
        log = here.replicas.replica_of("orders", index).log
        append(log, 5)
        append(log, 5)
    here.replicas.replica_of("orders", 0).set_high_watermark(8)
    assert here.logs.checkpoint_high_watermarks(here.replicas.high_watermarks()) == []
    here.crash()
    again = hold()
    again.apply(image(topic("orders", A, partition(1, 1, 2), partition(1, 1, 2))))
    assert again.replicas.replica_of("orders", 0).high_watermark == 8
    assert again.replicas.replica_of("orders", 1).high_watermark == 0


@pytest.mark.parametrize(
    ("replicas", "consequence"),
    [((2,), "and lost, since there is no other replica"), ((1, 2), "fetched again if another")],
)
def test_committed_records_that_a_log_no_longer_has_are_reported(
    hold: Open,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    replicas: tuple[int, ...],
    consequence: str,
) -> None:
    here = hold()
    here.apply(image(topic("orders", A, partition(replicas[0], *replicas))))
    held = here.replicas.replica_of("orders", 0)
    append(held.log, 5)
    append(held.log, 5)
    assert here.logs.checkpoint_high_watermarks({held.name: 10}) == []
    here.crash()
    [segment] = (tmp_path / "data" / "orders-0").glob("*.log")
    os.truncate(segment, segment.stat().st_size // 2)
    again = hold()
    again.apply(image(topic("orders", A, partition(replicas[0], *replicas, epoch=1))))
    assert again.replicas.replica_of("orders", 0).log.log_end_offset == 5
    assert "orders-0: the log ends at offset 5" in caplog.text
    assert "up to offset 9 were committed" in caplog.text
    assert consequence in caplog.text


def test_a_leader_says_that_its_election_may_have_lost_records(
    hold: Open, caplog: pytest.LogCaptureFixture
) -> None:
    """The controller that elected it may end before it can say so."""
    here = hold()
    here.apply(image(topic("orders", A, partition(1, 1, 2), partition(1, 1, 2))))
    append(here.replicas.replica_of("orders", 0).log, 5)
    elected = replace(partition(2, 1, 2, epoch=1, isr=(2,)), leader_recovery_state=RECOVERING)
    other = partition(2, 1, 2, epoch=1)
    here.apply(image(topic("orders", A, elected, other)))
    [line] = [record.getMessage() for record in caplog.records]
    assert "orders-0 at 5" in line
    assert "lost" in line
    assert "orders-1" not in line
    # Nor again for a change within the same leadership.
    here.apply(image(topic("orders", A, replace(elected, partition_epoch=2), other)))
    assert len(caplog.records) == 1


def test_a_high_watermark_is_not_above_what_a_crash_left(hold: Open) -> None:
    here = hold()
    here.apply(image(topic("orders", A, partition(1, 1, 2))))
    replica = here.replicas.replica_of("orders", 0)
    append(replica.log, 5)
    append(replica.log, 5)
    replica.set_high_watermark(10)
    here.logs.checkpoint_high_watermarks(here.replicas.high_watermarks())
    replica.log.truncate_to(5)
    here.crash()
    again = hold()
    again.apply(image(topic("orders", A, partition(1, 1, 2))))
    assert again.replicas.replica_of("orders", 0).high_watermark == 5


def test_high_watermarks_outlive_a_run_that_never_joined(hold: Open) -> None:
    here = hold()
    here.apply(image(topic("orders", A, partition(1, 1, 2))))
    replica = here.replicas.replica_of("orders", 0)
    append(replica.log, 5)
    replica.set_high_watermark(5)
    here.stop()
    hold().stop()
    again = hold()
    again.apply(image(topic("orders", A, partition(1, 1, 2))))
    assert again.replicas.replica_of("orders", 0).high_watermark == 5


def test_the_only_replica_has_committed_all_it_has(hold: Open) -> None:
    here = hold()
    here.apply(image(topic("orders", A, partition(2, 2))))
    append(here.replicas.leader_of("orders", 0).log, 5)
    here.crash()
    again = hold()
    again.apply(image(topic("orders", A, partition(2, 2))))
    assert again.replicas.leader_of("orders", 0).high_watermark == 5


def test_a_log_in_a_lost_directory_is_not_begun_anew(hold: Open, tmp_path: Path) -> None:
    here = hold("one", "two")
    here.apply(image(topic("orders", A, partition(2, 2, 1), partition(1, 1, 2))))
    here.crash()
    lost = tmp_path / "one"
    lost.rename(tmp_path / "away")
    lost.write_text("no directory")
    again = hold("one", "two")
    again.apply(image(topic("orders", A, partition(2, 2, 1), partition(1, 1, 2))))
    assert again.held() == ["orders-1"]
    assert refusal(lambda: again.replicas.leader_of("orders", 0)) is ErrorCode.KAFKA_STORAGE_ERROR
    assert again.replicas.offline_replicas("orders", 0) == [ME]
    assert again.replicas.offline_replicas("orders", 1) == []
    # What is made later has its place in the directory that works.
    again.apply(
        image(
            topic("orders", A, partition(2, 2, 1), partition(1, 1, 2)),
            topic("audit", B, partition(2, 2)),
        )
    )
    assert again.held() == ["audit-0", "orders-1"]


def test_a_directory_that_fails_is_reported_and_its_partitions_refuse(hold: Open) -> None:
    here = hold("one", "two")
    here.apply(image(topic("orders", A, partition(2, 2, 1), partition(2, 2, 1))))
    assert here.replicas.offline_directories() == []
    first = here.logs.directories[0]
    here.files.fail("rename", "one/replication-offset-checkpoint.tmp")
    append(here.replicas.leader_of("orders", 0).log, 1)
    assert here.logs.checkpoint_high_watermarks({TopicPartition("orders", 0): 1})
    assert first.meta is not None
    assert here.replicas.offline_directories() == [first.meta.directory_id]
    assert here.replicas.offline_replicas("orders", 0) == [ME]
    assert here.replicas.offline_replicas("orders", 1) == []
    log = here.replicas.leader_of("orders", 0).log
    assert isinstance(log.offline, StorageError)
    append(here.replicas.leader_of("orders", 1).log, 1)
    # To lead in a new epoch is no longer possible, and a client is told why.
    new = (partition(2, 2, 1, epoch=1), partition(2, 2, 1, epoch=1))
    here.apply(image(topic("orders", A, *new)))
    assert refusal(lambda: here.replicas.leader_of("orders", 0)) is ErrorCode.KAFKA_STORAGE_ERROR
    assert here.replicas.leader_of("orders", 1).leader_epoch == 1


def test_settings_reach_the_partitions(hold: Open) -> None:
    here = hold()
    orders, audit = topic("orders", A, partition(2, 2)), topic("audit", B, partition(2, 2))
    here.apply(image(orders, audit))
    resource = ConfigKey(ConfigResourceType.TOPIC, "orders")
    steps = here.apply(image(orders, audit, configs={resource: {"retention.ms": "5000"}}))
    assert steps == 1
    assert here.replicas.leader_of("orders", 0).config.retention_ms == 5000
    assert here.replicas.leader_of("orders", 0).log.config.retention_ms == 5000
    changed = BrokerConfig(node_id=ME, log_retention_ms=7000)
    list(here.replicas.reconfigure(changed))
    assert here.fetchers.config is changed
    assert here.replicas.leader_of("orders", 0).config.retention_ms == 5000
    assert here.replicas.leader_of("audit", 0).config.retention_ms == 7000
    here.apply(image(orders, audit))
    assert here.replicas.leader_of("orders", 0).config.retention_ms == TopicConfig().retention_ms


def test_who_waits_is_told_when_the_broker_stops(hold: Open) -> None:
    here = hold()
    here.apply(image(topic("orders", A, partition(2, 2))))
    waiting = here.replicas.leader_of("orders", 0).waiting_fetches = Mock()
    here.replicas.close()
    assert waiting.mock_calls == [call.changed(ANY)]


def test_a_replica_for_which_there_was_no_room_comes_back_by_itself(
    hold: Open, tmp_path: Path
) -> None:
    here = hold()
    here.apply(image())
    here.files.fails = lambda operation, _path: errno.ENOSPC * (operation == "write")
    made = image(topic("orders", A, partition(2, 2)))
    here.apply(made)
    orders = TopicPartition("orders", 0)
    assert here.replicas.offline_partitions() == [orders]
    assert not (tmp_path / "data" / "orders-0").exists(), "half a log is in nobody's way"
    list(here.replicas.reopen_after_shortage(CONFIG))
    assert here.replicas.offline_partitions() == [orders]
    assert here.replicas.rebuilt_partitions() == []
    here.files.heal()
    list(here.replicas.reopen_after_shortage(CONFIG))
    assert here.replicas.offline_partitions() == []
    assert here.replicas.leader_of("orders", 0).is_leader
    assert [name for name, _ in here.replicas.rebuilt_partitions()] == [orders]


def test_a_replica_that_cannot_note_its_leadership_comes_back_with_its_log(hold: Open) -> None:
    here = hold()
    here.apply(image(topic("orders", A, partition(1, 1, 2))))
    here.files.fails = lambda operation, _path: errno.ENOSPC * (operation == "write")
    here.apply(image(topic("orders", A, partition(2, 1, 2, epoch=1))))
    assert len(here.replicas.offline_partitions()) == 1
    here.files.heal()
    list(here.replicas.reopen_after_shortage(CONFIG))
    assert here.replicas.leader_of("orders", 0).leader_epoch == 1


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EMFILE])
@pytest.mark.parametrize(
    ("operation", "suffix"),
    [("write", "leader-epoch-checkpoint.tmp"), ("truncate", ".log"), ("write", "flushed-offset")],
)
def test_a_replica_whose_truncation_a_full_disk_broke_off_comes_back_by_itself(
    hold: Open, operation: str, suffix: str, number: int
) -> None:
    here = hold()
    here.apply(image(topic("orders", A, partition(1, 1, 2))))
    log = here.replicas.replica_of("orders", 0).log
    append(log, 5)
    append(log, 5, leader_epoch=1)
    here.stop()
    here = hold()
    here.apply(image(topic("orders", A, partition(1, 1, 2))))
    log = here.replicas.replica_of("orders", 0).log
    assert not log.recovery.scanned
    here.files.fail(operation, suffix, number)
    with pytest.raises(KafkaError):
        here.replicas.replica_of("orders", 0).truncate_to(5)
    assert here.replicas.offline_partitions() == [TopicPartition("orders", 0)]
    list(here.replicas.reopen_after_shortage(CONFIG))
    here.files.heal()
    list(here.replicas.reopen_after_shortage(CONFIG))
    assert here.replicas.offline_partitions() == []
    found = here.replicas.replica_of("orders", 0)
    assert found.log is not log
    assert found.log.recovery.scanned
    assert here.fetchers.followed[found.name][0] == 1
    found.truncate_to(5)
    assert [offset for offset, _ in read_all(found.log)] == list(range(5))
    append(found.log, 5, leader_epoch=1)
    assert found.log.log_end_offset == 10


def test_a_replica_whose_disk_failed_in_a_truncation_stays_offline(hold: Open) -> None:
    here = hold()
    here.apply(image(topic("orders", A, partition(1, 1, 2))))
    held = here.replicas.replica_of("orders", 0)
    append(held.log, 5)
    append(held.log, 5, leader_epoch=1)
    here.files.fail("write", "leader-epoch-checkpoint.tmp", errno.EIO)
    with pytest.raises(KafkaError):
        held.truncate_to(0)
    here.files.heal()
    list(here.replicas.reopen_after_shortage(CONFIG))
    assert here.replicas.offline_partitions() == [held.name]


def test_a_log_that_is_begun_anew_is_not_found_where_nobody_else_is_in_sync(hold: Open) -> None:
    here = hold()
    here.files.fails = lambda operation, _path: errno.ENOSPC * (operation == "write")
    # With the first image of a run: the topic is old, and its log may have been lost.
    here.apply(image(topic("orders", A, partition(-1, 2, 1, isr=(2,)))))
    here.files.heal()
    list(here.replicas.reopen_after_shortage(CONFIG))
    assert here.replicas.rebuilt_partitions() == []
