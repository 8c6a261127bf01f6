"""A committed record may be lost only when faults took it from every disk that held it."""

from random import Random

import pytest

from headrace.testing.simulation.batches import batches_in
from headrace.testing.simulation.committed_records import (
    CommittedUnit,
    Copies,
    intact_units,
    units_of,
)
from headrace.testing.simulation.simulated_disk import SimulatedDisk, SimulatedFiles
from headrace.types import TopicPartition
from tests.integration.requests import batch

PARTITION = TopicPartition("orders", 0)
PLACE = (b"id", PARTITION)
LOG = "/data/orders-0/00000000000000000000.log"


def stored(count: int) -> bytes:
    """Batches of one record each, as a log has them."""
    parts = []
    for offset in range(count):
        data = bytearray(batch(b"%d" % offset))
        data[:8] = offset.to_bytes(8, "big")
        parts.append(bytes(data))
    return b"".join(parts)


def disk_with(content: bytes) -> SimulatedDisk:
    disk = SimulatedDisk(Random(1), lambda *_: None, "b1")
    files = SimulatedFiles(disk)
    files.make_directory("/data/orders-0")
    files.open(LOG, create=True).write_at(0, content)
    return disk


def test_a_disk_holds_what_lies_before_the_first_damage() -> None:
    content, name = bytearray(stored(4)), LOG.rpartition("/")[2]
    size = len(content) // 4
    assert list(intact_units(PARTITION, {name: bytes(content)})) == [0, 1, 2, 3]
    content[2 * size + size - 1] ^= 1
    assert list(intact_units(PARTITION, {name: bytes(content)})) == [0, 1]


def test_a_gap_between_segments_ends_a_log_unless_compaction_rewrote_it() -> None:
    partition = TopicPartition("__consumer_offsets", 0)
    place, log = (bytes(16), partition), "/data/__consumer_offsets-0/00000000000000000000.log"
    content, later = stored(4), log.replace("00.log", "03.log")
    size = len(content) // 4
    for rewritten in (False, True):
        disk, copies = SimulatedDisk(Random(1), lambda *_: None, "b1"), Copies()
        files = SimulatedFiles(disk)
        files.make_directory("/data/__consumer_offsets-0")
        files.open(log, create=True).write_at(0, content[: 2 * size])
        files.open(later, create=True).write_at(0, content[3 * size :])
        for unit in units_of("__consumer_offsets", batches_in(content)):
            copies.hold(place, unit, "b1")
        if rewritten:
            copies.renamed("b1", "__consumer_offsets-0/00000000000000000000.log.swap")
        copies.harmed("b1", disk, "/data")
        assert copies.holders(partition, 1) == {"b1"}
        assert copies.holders(partition, 3) == ({"b1"} if rewritten else set())
    copies.renamed("b1", "__consumer_offsets-0")
    copies.harmed("b1", disk, "/data")
    assert copies.holders(partition, 3) == set()


def test_only_what_was_flushed_is_durable() -> None:
    content = stored(1)
    disk = disk_with(content)
    files, name = SimulatedFiles(disk), LOG.rpartition("/")[2]
    files.open(LOG).sync()
    assert disk.durable_files("/data/orders-0") == {}
    files.sync_directory("/data/orders-0")
    assert disk.durable_files("/data/orders-0") == {}
    files.sync_directory("/data")
    files.sync_directory("/")
    assert disk.durable_files("/data/orders-0") == {name: content}
    files.open(LOG).write_at(len(content), content)
    assert disk.durable_files("/data/orders-0") == {name: content}


def test_a_record_that_one_disk_holds_must_not_be_lost() -> None:
    content, copies = stored(3), Copies()
    disk = disk_with(content)
    for unit in units_of("orders", batches_in(content)):
        copies.hold(PLACE, unit, "b1")
        copies.hold(PLACE, unit, "b2")
    disk.put(LOG, content[: len(content) // 3])
    copies.harmed("b1", disk, "/data")
    assert copies.holders(PARTITION, 0) == {"b1", "b2"}
    assert copies.holders(PARTITION, 2) == {"b2"}
    assert not copies.lost()
    with pytest.raises(ValueError, match="intact on b2"):
        copies.hold(PLACE, CommittedUnit(2, 2, 77), "b1")
    copies.damaged("b2", "orders-0")
    assert copies.holders(PARTITION, 2) == set()
    assert [unit.offset for unit in copies.lost()[PARTITION]] == [1, 2]


def test_what_takes_the_place_of_a_lost_record_does_not_hide_the_loss() -> None:
    copies = Copies()
    copies.hold(PLACE, CommittedUnit(5, 7, 1), "b1")
    copies.damaged("b1", "orders-0")
    copies.hold(PLACE, CommittedUnit(5, 6, 2), "b1")
    assert copies.holders(PARTITION, 6) == set()
    assert copies.lost() == {PARTITION: [CommittedUnit(5, 7, 1)]}


def test_a_lost_record_stays_lost_when_other_batches_cover_its_offset() -> None:
    copies = Copies()
    copies.hold(PLACE, CommittedUnit(6, 7, 1), "b1")
    copies.hold(PLACE, CommittedUnit(8, 12, 2), "b1")
    copies.damaged("b1", "orders-0")
    copies.hold(PLACE, CommittedUnit(6, 8, 3), "b1")
    copies.hold(PLACE, CommittedUnit(9, 11, 4), "b1")
    assert copies.holders(PARTITION, 10) == set()
    assert copies.holders(PARTITION, 13) == set()
