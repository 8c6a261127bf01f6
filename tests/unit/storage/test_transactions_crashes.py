"""What crashes, full disks and other threads do to the transactions of a log: nothing."""

import errno
from pathlib import Path
from random import Random

import pytest

from headrace.errors import ErrorCode, KafkaError
from headrace.protocol.batch import scan_headers
from headrace.protocol.markers import decode_marker
from headrace.storage.files import Files
from headrace.storage.log import Log
from headrace.storage.open_files import OpenFiles
from headrace.storage.stored_logs import AbortedRange, open_stored
from headrace.testing.simulation.simulated_disk import HostCrashed, SimulatedDisk, SimulatedFiles
from tests.unit.storage.logs import (
    NAME,
    NOW_MS,
    FaultyFiles,
    UnsyncedFiles,
    append,
    config,
    open_log,
    set_modified,
)
from tests.unit.storage.test_log_threads import run_beside
from tests.unit.storage.transacting import abort, aborted, commit, end, read_committed, write

DIRECTORY = "/data/orders-0"


def visible(log: Log) -> list[int]:
    """The offsets of committed records below the first open transaction, without any index."""
    batches = [batch for segment in log.segments for batch in segment.batches(0, segment.size)]
    records: list[int] = []
    begun: dict[int, list[int]] = {}
    for header, buffer, _ in batches:
        offsets = list(range(header.base_offset, header.next_offset))
        if header.is_control:
            marker = decode_marker(buffer, header)
            assert marker is not None
            ended = begun.pop(marker.producer_id, [])
            records += ended if marker.committed else []
        elif header.is_transactional:
            begun.setdefault(header.producer_id, []).extend(offsets)
        else:
            records += offsets
    stable = min((some[0] for some in begun.values()), default=log.log_end_offset)
    return sorted(record for record in records if record < stable)


class Crashing:
    """A log on a disk that loses its power at any moment, and what is done to it."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.disk = SimulatedDisk(self.random, lambda *_: None, "disk")
        self.disk.lose_power = lambda: self.disk.crash(power_loss=True)
        self.flushed = 0
        self.closed = False
        SimulatedFiles(self.disk).make_directory("/data")
        SimulatedFiles(self.disk).sync_directory("/")
        self.log = self.open()
        self.log.flush()

    def open(self) -> Log:
        files = SimulatedFiles(self.disk)
        settings = config(segment_bytes=700)
        return Log.open(
            files,
            DIRECTORY,
            NAME,
            settings,
            NOW_MS,
            recovery_point=self.flushed,
            clean=self.closed,
            on_truncate=self.truncated,
        )

    def truncated(self) -> None:
        self.flushed = min(self.flushed, self.log.recovery_point)

    def step(self) -> None:
        kind = self.random.random()
        producer_id = self.random.randrange(3)
        producer = self.log.producers.get(producer_id)
        epoch, sequence = (producer.epoch, producer.last_sequence + 1) if producer else (0, 0)
        if kind < 0.5:
            write(self.log, (producer_id, epoch, sequence), self.random.randint(1, 3))
        elif kind < 0.6:
            append(self.log)
        elif kind < 0.85:
            committed = self.random.random() < 0.4
            end(self.log, producer_id, epoch + self.random.randrange(2), committed=committed)
        elif kind < 0.92:
            self.flushed = self.log.flush()
        elif kind < 0.96:
            self.log.truncate_to(max(0, self.log.log_end_offset - self.random.randint(1, 9)))
        else:
            self.log.roll(NOW_MS)

    def run(self) -> None:
        """Until the power goes: in the middle of something, or after the log was closed."""
        self.closed = False
        self.disk.faults.power_loss = 0.02
        try:
            for _ in range(self.random.randint(1, 60)):
                self.step()
            self.log.close()
            self.closed = True
            self.flushed = self.log.log_end_offset
            self.disk.crash(power_loss=True)
        except HostCrashed:
            pass
        self.disk.faults.power_loss = 0.0
        self.log = self.open()


@pytest.mark.parametrize("seed", range(20))
def test_whatever_a_loss_of_power_leaves_is_judged_by_what_is_left(seed: int) -> None:
    crashing = Crashing(seed)
    for _ in range(8):
        crashing.run()
        log = crashing.log
        assert log.log_end_offset >= crashing.flushed
        assert read_committed(log, log.log_end_offset) == visible(log)
        crashing.flushed = log.log_end_offset


def aborting(crashing: Crashing) -> Log:
    """A log that was flushed before its segment was closed."""
    write(crashing.log, (1, 0, 0))
    abort(crashing.log, 1)
    crashing.flushed = crashing.log.flush()
    crashing.log.roll(NOW_MS)
    return crashing.log


@pytest.mark.parametrize("seed", range(5))
def test_a_closed_log_has_its_index_although_its_last_segment_is_empty(seed: int) -> None:
    crashing = Crashing(seed)
    aborting(crashing).close()
    crashing.disk.crash(power_loss=True)
    crashing.closed = True
    assert aborted(crashing.open(), 0, 2) == [(1, 0)]


@pytest.mark.parametrize("seed", range(5))
def test_an_index_that_was_made_again_is_durable_before_it_is_trusted(seed: int) -> None:
    crashing = Crashing(seed)
    aborting(crashing)
    crashing.disk.crash(power_loss=False)
    log = crashing.open()
    assert log.recovery.scanned
    append(log)
    crashing.flushed = log.flush()
    crashing.disk.crash(power_loss=True)
    log = crashing.open()
    assert log.recovery.scanned_bytes == log.active.size
    assert aborted(log, 0, 2) == [(1, 0)]


def filled(path: Path, files: Files | None = None) -> Log:
    """A log of several segments with aborted transactions, two of which span some of them."""
    log = open_log(path, files=files or Files())
    write(log, (100, 0, 0))
    write(log, (101, 0, 0))
    for number in range(18):
        write(log, (number, 0, 0), 2)
        append(log)
        abort(log, number) if number % 3 else commit(log, number)
        if number == 5:
            abort(log, 100)
    abort(log, 101)
    write(log, (102, 0, 0))
    assert len(log.segments) > 4
    return log


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("damage", ["torn", "overwritten", "another version"])
def test_a_damaged_index_of_a_closed_segment_is_made_again(
    tmp_path: Path, clean: bool, damage: str
) -> None:
    log = filled(tmp_path)
    recovery_point = log.flush()
    wanted = [segment.aborted.entries() for segment in log.segments]
    log.close(clean=clean)
    for path in tmp_path.glob("*.txnindex"):
        data = bytearray(path.read_bytes())
        if damage == "torn":
            del data[-1:]
        elif damage == "overwritten":
            data[10:26] = b"\xff" * 16
        else:
            data[1] = 1
        path.write_bytes(data)
    if clean and damage != "torn":
        # As with the other indexes only sizes are looked at, and the last segment's content.
        clean = False
    again = open_log(tmp_path, recovery_point=recovery_point, clean=clean)
    assert [segment.aborted.entries() for segment in again.segments] == wanted
    assert again.last_stable_offset(again.log_end_offset) == again.log_end_offset - 1


def test_a_crash_loses_nothing_that_was_not_flushed_but_written(tmp_path: Path) -> None:
    log = filled(tmp_path)
    wanted = [segment.aborted.entries() for segment in log.segments]
    for path in tmp_path.glob("*.txnindex"):
        path.unlink()  # None of them was flushed.
    set_modified(tmp_path)
    again = open_log(tmp_path)
    assert [segment.aborted.entries() for segment in again.segments] == wanted
    assert again.producers.encode_snapshot() == log.producers.encode_snapshot()


def test_truncation_brings_open_transactions_back(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    write(log, (1, 0, 0))
    append(log)
    marker = abort(log, 1)
    for _ in range(30):
        append(log)
    assert len(log.segments) > 1
    log.truncate_to(marker + 1)
    assert (aborted(log, 0, 3), log.last_stable_offset(3)) == ([(1, 0)], 3)
    log.truncate_to(marker)
    assert (aborted(log, 0, 2), log.last_stable_offset(2)) == ([], 0)
    assert commit(log, 1) == marker
    assert (aborted(log, 0, 3), log.last_stable_offset(3)) == ([], 3)
    assert (tmp_path / f"{0:020d}.txnindex").read_bytes() == b""


def test_truncation_keeps_what_is_decided_but_not_committed(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    write(log, (1, 0, 0))
    append(log)
    commit(log, 1)
    log.roll(NOW_MS)
    append(log, 3)
    append(log)
    log.truncate_to(6)  # Producer state is loaded from the snapshot at 3.
    assert log.last_stable_offset(2) == 0
    assert log.last_stable_offset(3) == 3


def test_a_marker_that_was_cut_off_keeps_nothing_back(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log)
    log.roll(NOW_MS)
    write(log, (1, 0, 0))
    append(log, 4)
    append(log, 4)
    commit(log, 1)
    log.truncate_to(6)
    assert log.last_stable_offset(6) == 1
    assert commit(log, 1) == 6
    assert log.last_stable_offset(7) == 7


def test_the_snapshot_a_log_would_begin_with_is_taken_again_if_it_was_damaged(
    tmp_path: Path,
) -> None:
    log = open_log(tmp_path)
    write(log, (1, 0, 0))
    log.flush()
    log.roll(NOW_MS)
    append(log)
    (tmp_path / f"{1:020d}.snapshot").write_bytes(b"")
    log = open_log(tmp_path, recovery_point=log.flush())
    log.advance_log_start(1)
    assert log.retire_segments(NOW_MS, 2)
    log = open_log(tmp_path, recovery_point=2, log_start_offset=1)
    assert log.last_stable_offset(2) == 1


def test_a_log_that_begins_anew_has_no_transactions(tmp_path: Path) -> None:
    log = filled(tmp_path)
    log.truncate_fully_and_start_at(500)
    assert log.last_stable_offset(500) == 500
    assert list(tmp_path.glob("*.txnindex")) == []
    append(log)
    assert aborted(log, 500, 501) == []


def test_a_failed_write_of_a_marker_leaves_the_transaction_open(tmp_path: Path) -> None:
    files = FaultyFiles()
    log = open_log(tmp_path, files=files)
    write(log, (1, 0, 0))
    files.fail("write", ".log", errno.ENOSPC)
    with pytest.raises(KafkaError) as caught:
        abort(log, 1)
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert log.producers.has_open_transaction(1, 0)
    files.heal()
    assert abort(log, 1) == 1
    assert aborted(log, 0, 2) == [(1, 0)]


def test_an_index_that_cannot_be_written_yet_is_right_all_the_same(tmp_path: Path) -> None:
    files = FaultyFiles()
    log = open_log(tmp_path, files=files)
    files.fail("write", ".txnindex", errno.ENOSPC)
    for number in range(3):
        write(log, (number, 0, 0))
        abort(log, number)
    assert aborted(log, 0, 6) == [(0, 0), (1, 2), (2, 4)]
    with pytest.raises(KafkaError):
        log.roll(NOW_MS)  # A closed segment must have it.
    assert len(log.segments) == 1
    files.heal()
    log.roll(NOW_MS)
    assert aborted(log, 0, 6) == [(0, 0), (1, 2), (2, 4)]
    assert open_stored(NAME, str(tmp_path)).aborted(0, 3) == [
        AbortedRange(0, 0, 1),
        AbortedRange(1, 2, 3),
    ]


def test_who_reads_the_files_finds_an_aborted_transaction_at_once(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    write(log, (1, 0, 0))
    abort(log, 1)
    assert open_stored(NAME, str(tmp_path)).aborted(0, 2) == [AbortedRange(1, 0, 1)]


def test_an_index_without_its_segment_is_removed(tmp_path: Path) -> None:
    open_log(tmp_path).close()
    (tmp_path / f"{77:020d}.txnindex").write_bytes(bytes(34))
    open_log(tmp_path)
    assert list(tmp_path.glob("*.txnindex")) == []


def test_a_new_segment_does_not_take_over_an_old_index(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log)
    (tmp_path / f"{1:020d}.txnindex").write_bytes(bytes(34))
    log.roll(NOW_MS)
    assert list(tmp_path.glob("*.txnindex")) == []


def test_other_threads_find_all_that_was_aborted_or_are_told_why_not(tmp_path: Path) -> None:
    settings = config(retention_bytes=3000, file_delete_delay_ms=0)
    files = UnsyncedFiles()
    log = open_log(tmp_path, settings, files=files, open_files=OpenFiles(files, limit=2))
    refused: list[ErrorCode] = []
    stable = [0]

    def look_up() -> None:
        start, limit = log.log_start_offset, stable[0]
        for first in range(start // 3 * 3 + 3, limit, 9):
            try:
                found = log.aborted_transactions(first, first + 3)
                assert [entry.first_offset for entry in found] == [first]
            except KafkaError as error:
                refused.append(error.code)

    def work() -> None:
        for number in range(400):
            write(log, (number, 0, 0), 2)
            abort(log, number)
            stable[0] = log.last_stable_offset(log.log_end_offset)
            if number % 10 == 0:
                log.retire_segments(NOW_MS, log.log_end_offset)
                log.delete_retired(NOW_MS)

    run_beside(look_up, work)
    assert log.offline is None
    assert set(refused) <= {ErrorCode.OFFSET_OUT_OF_RANGE}


def test_retired_headers_are_gone_with_their_index(tmp_path: Path) -> None:
    log = filled(tmp_path)
    log.advance_log_start(log.active.base_offset)
    retired = log.retire_segments(NOW_MS, log.log_end_offset)
    suffixes = {path.rpartition(".txnindex")[1] for entry in retired for path in entry.paths}
    assert ".txnindex" in suffixes
    log.delete_retired(NOW_MS + log.config.file_delete_delay_ms)
    assert list(tmp_path.glob("*.deleted")) == []
    assert scan_headers(log.read(log.log_start_offset, 500, log.log_end_offset).records)
