"""Logs read as they lie in a directory, while their owner goes on with them."""

from pathlib import Path

import pytest

from headrace.errors import CorruptBatch
from headrace.protocol.batch import scan_headers
from headrace.storage.files import FileMissing
from headrace.storage.log import Log
from headrace.storage.stored_logs import (
    FILES,
    AbortedRange,
    StoredLog,
    open_stored,
    stored_log_starts,
    stored_partitions,
)
from headrace.types import TopicPartition
from tests.unit.storage.logs import NAME, NOW_MS, append, open_log
from tests.unit.storage.transacting import abort, commit, write


def filled(path: Path, count: int = 40) -> Log:
    """A log of several segments, a record in each batch, a millisecond apart."""
    log = open_log(path)
    for number in range(count):
        append(log, timestamp=NOW_MS + number)
    return log


def offsets(log: StoredLog, start: int, end: int, bytes_max: int | None = None) -> list[int]:
    """The offsets of the batches that extents hold."""
    found = []
    for extent in log.extents(start, end, bytes_max):
        data = FILES.open(extent.path).read_at(extent.position, extent.limit - extent.position)
        headers = scan_headers(data)
        assert headers[-1].position + headers[-1].size == len(data), "whole batches"
        found += [header.base_offset for header in headers]
    return found


def test_what_is_stored_is_what_the_log_has(tmp_path: Path) -> None:
    log = filled(tmp_path)
    stored = open_stored(NAME, str(tmp_path))
    assert (stored.start_offset, stored.end_offset) == (0, 40)
    assert [segment.base_offset for segment in stored.segments] == [
        segment.base_offset for segment in log.segments
    ]
    assert offsets(stored, 0, 40) == list(range(40))


def test_extents_hold_the_wanted_batches_and_no_others(tmp_path: Path) -> None:
    log = filled(tmp_path)
    log.flush()
    stored = open_stored(NAME, str(tmp_path))
    for start in range(0, 40, 7):
        for end in range(start, 41, 5):
            assert offsets(stored, start, end) == list(range(start, end))
            assert offsets(stored, start, end, 150) == list(range(start, end))


def test_a_segment_is_cut_by_its_index(tmp_path: Path) -> None:
    filled(tmp_path).close(clean=True)
    stored = open_stored(NAME, str(tmp_path))
    whole = stored.extents(0, 40)
    pieces = stored.extents(0, 40, 200)
    assert len(whole) == len(stored.segments)
    assert len(pieces) > 2 * len(whole)
    assert offsets(stored, 0, 40, 200) == list(range(40))


def test_a_wrong_index_costs_no_data(tmp_path: Path) -> None:
    filled(tmp_path).close(clean=True)
    for index in tmp_path.glob("*.index"):
        index.write_bytes(bytes(range(1, 25)) * 2)
    stored = open_stored(NAME, str(tmp_path))
    assert stored.end_offset == 40
    assert offsets(stored, 3, 38, 200) == list(range(3, 38))


def test_what_is_appended_later_does_not_belong_to_it(tmp_path: Path) -> None:
    log = filled(tmp_path, 10)
    stored = open_stored(NAME, str(tmp_path))
    for _ in range(30):
        append(log)
    assert offsets(stored, 0, stored.end_offset) == list(range(10))


def test_a_torn_end_is_left_out_and_damage_is_not(tmp_path: Path) -> None:
    log = filled(tmp_path, 5)
    path = Path(log.active.log_path)
    log.close(clean=True)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    assert open_stored(NAME, str(tmp_path)).end_offset == 4
    path.write_bytes(whole + bytes(200))
    with pytest.raises(CorruptBatch, match=f"{path} at position {len(whole)}"):
        open_stored(NAME, str(tmp_path))


def test_records_are_found_by_time(tmp_path: Path) -> None:
    filled(tmp_path)
    stored = open_stored(NAME, str(tmp_path), log_start=3)
    for timestamp, offset in ((0, 3), (NOW_MS + 20, 20)):
        record = stored.find_timestamp(timestamp)
        assert record is not None
        assert record.offset == offset
    assert stored.find_timestamp(NOW_MS + 40) is None


def test_deleted_segments_are_not_read(tmp_path: Path) -> None:
    log = filled(tmp_path)
    log.advance_log_start(30)
    log.retire_segments(NOW_MS, 40)
    assert list(tmp_path.glob("*.log.deleted"))
    stored = open_stored(NAME, str(tmp_path))
    assert stored.segments[0].base_offset == log.segments[0].base_offset > 0
    assert stored.start_offset == stored.segments[0].base_offset


def test_a_log_without_segments_is_empty(tmp_path: Path) -> None:
    stored = open_stored(NAME, str(tmp_path), 7)
    assert (stored.start_offset, stored.end_offset, stored.find_timestamp(0)) == (7, 7, None)
    with pytest.raises(FileMissing):
        open_stored(NAME, str(tmp_path / "gone"))


def test_partitions_are_told_by_their_directories(tmp_path: Path) -> None:
    for name in ("b-1", "a-10", "a-2", "__cluster_metadata-0", "a-0.0f-delete", "other"):
        (tmp_path / name).mkdir()
    found = stored_partitions(str(tmp_path))
    assert list(found) == [TopicPartition(*entry) for entry in (("a", 2), ("a", 10), ("b", 1))]
    assert found[TopicPartition("b", 1)] == f"{tmp_path}/b-1"


def test_log_starts_come_from_the_checkpoint(tmp_path: Path) -> None:
    assert stored_log_starts(str(tmp_path)) == {}
    checkpoint = tmp_path / "log-start-offset-checkpoint"
    checkpoint.write_text("0\n1\norders 0 12\n")
    assert stored_log_starts(str(tmp_path)) == {NAME: 12}
    checkpoint.write_text("what?")
    assert stored_log_starts(str(tmp_path)) == {}


def test_the_last_stable_offset_is_the_brokers(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    assert open_stored(NAME, str(tmp_path)).last_stable_offset() == 0
    for number in range(20):
        write(log, (number, 0, 0))
        append(log)
        if number >= 3 and number % 7:
            commit(log, number - 3) if number % 2 else abort(log, number - 3)
        stored = open_stored(NAME, str(tmp_path))
        assert stored.last_stable_offset() == log.last_stable_offset(log.log_end_offset)
    assert len(log.segments) > 3
    newest = sorted(tmp_path.glob("*.snapshot"))[-1]
    newest.write_bytes(newest.read_bytes()[:-1])
    assert stored.last_stable_offset() == log.last_stable_offset(log.log_end_offset)
    assert newest.exists()


def test_aborted_transactions_are_those_that_reach_into_the_range(tmp_path: Path) -> None:
    log = filled(tmp_path)
    entry = bytes(2) + b"".join(number.to_bytes(8, "big") for number in (77, 3, 5, 6))
    Path(log.segments[0].path + ".txnindex").write_bytes(entry + b"torn")
    stored = open_stored(NAME, str(tmp_path))
    assert stored.aborted(0, 40) == [AbortedRange(77, 3, 5)]
    assert stored.aborted(5, 6) == [AbortedRange(77, 3, 5)]
    assert stored.aborted(6, 40) == []
    assert stored.aborted(0, 3) == []
