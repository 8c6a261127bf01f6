"""Reads and flushes in worker threads while the owner appends, rolls and drops segments."""

from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread

import pytest

from headrace.errors import ErrorCode, KafkaError
from headrace.storage.files import File, Files
from headrace.storage.log import Log
from headrace.storage.open_files import OpenFiles
from tests.unit.storage.logs import (
    NOW_MS,
    FaultyFiles,
    UnsyncedFiles,
    append,
    config,
    open_log,
    read_all,
    values,
)


def run_beside(work: Callable[[], None], owner: Callable[[], None], threads: int = 2) -> None:
    """Repeat `work` in threads while `owner` runs once; the first error of any is raised."""
    done = Event()
    errors: list[BaseException] = []

    def repeat() -> None:
        try:
            while not done.is_set():
                work()
        except BaseException as error:
            errors.append(error)

    workers = [Thread(target=repeat) for _ in range(threads)]
    for worker in workers:
        worker.start()
    try:
        owner()
    finally:
        done.set()
        for worker in workers:
            worker.join()
    if errors:
        raise errors[0]


def test_readers_see_whole_batches_below_their_limit_and_nothing_else(tmp_path: Path) -> None:
    files = UnsyncedFiles()
    log = open_log(tmp_path, files=files, open_files=OpenFiles(files, limit=2))

    def read() -> None:
        limit = log.log_end_offset
        for offset in range(max(0, limit - 40), limit, 7):
            records = values(log.read(offset, 400, limit, at_least_one=True).records)
            assert records[0][0] <= offset
            for at, value in records:
                assert value == b"%d" % (at // 2)
            assert records[-1][0] < limit

    def write() -> None:
        for index in range(1500):
            append(log, 2, value=b"%d" % index)

    run_beside(read, write)
    assert len(read_all(log)) == 3000


def test_readers_of_segments_that_go_away_are_told_so(tmp_path: Path) -> None:
    settings = config(retention_bytes=2000, file_delete_delay_ms=0)
    files = UnsyncedFiles()
    log = open_log(tmp_path, settings, files=files, open_files=OpenFiles(files, limit=1))
    refused: list[ErrorCode] = []

    def read() -> None:
        start, limit = log.log_start_offset, log.log_end_offset
        for offset in range(start, limit, 3):
            try:
                records = values(log.read(offset, 200, limit, at_least_one=True).records)
                assert records[0] == (offset, b"%d" % offset)
            except KafkaError as error:
                refused.append(error.code)

    def write() -> None:
        for index in range(1500):
            append(log, value=b"%d" % index)
            if index % 10 == 0:
                log.retire_segments(NOW_MS, log.log_end_offset)
                log.delete_retired(NOW_MS)

    run_beside(read, write)
    assert log.offline is None
    assert set(refused) <= {ErrorCode.OFFSET_OUT_OF_RANGE}


def test_readers_of_a_truncated_log_never_see_what_is_gone(tmp_path: Path) -> None:
    log = open_log(tmp_path, files=UnsyncedFiles())
    for _ in range(40):
        append(log, value=b"0")
    refused: list[ErrorCode] = []

    def read() -> None:
        for offset in range(0, 40, 3):
            try:
                found = values(log.read(offset, 300, 40, at_least_one=True).records)
                assert not found or found[0][0] == offset
            except KafkaError as error:
                refused.append(error.code)

    def write() -> None:
        for turn in range(60):
            log.truncate_to(turn % 40)
            while log.log_end_offset < 40:
                append(log, value=b"%d" % turn)

    run_beside(read, write)
    assert log.offline is None
    assert set(refused) <= {ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.NOT_LEADER_OR_FOLLOWER}


def test_flushes_beside_appends_never_claim_too_much(tmp_path: Path) -> None:
    log = open_log(tmp_path, files=UnsyncedFiles())

    def flush() -> None:
        before = log.recovery_point
        after = log.flush()
        assert before <= after <= log.log_end_offset

    def write() -> None:
        for _ in range(1500):
            append(log)

    run_beside(flush, write)
    assert log.flush() == 1500


class PausedFiles(FaultyFiles):
    """A disk that runs `during` in the middle of the next fsync of a log file."""

    def __init__(self) -> None:
        super().__init__()
        self.during: Callable[[], None] | None = None

    def attempt(self, operation: str, path: str) -> None:
        if operation == "sync" and path.endswith(".log") and self.during is not None:
            during, self.during = self.during, None
            during()
        super().attempt(operation, path)


@pytest.fixture
def paused(tmp_path: Path) -> tuple[PausedFiles, Log]:
    files = PausedFiles()
    return files, open_log(tmp_path, config(flush_ms=1000), files=files)


def test_what_is_appended_during_a_flush_is_not_claimed_by_it(
    paused: tuple[PausedFiles, Log],
) -> None:
    files, log = paused
    append(log, 5)
    files.during = lambda: append(log, 3, now_ms=NOW_MS + 700) and None
    assert log.flush() == 5
    assert log.recovery_point == 5
    assert log.log_end_offset - log.recovery_point == 3
    assert log.flush_due(NOW_MS + 1700)
    assert log.flush() == 8


def test_what_is_truncated_during_a_flush_is_not_claimed_by_it(
    paused: tuple[PausedFiles, Log],
) -> None:
    files, log = paused
    for _ in range(6):
        append(log)
    files.during = lambda: log.truncate_to(4)
    log.flush()
    assert log.recovery_point <= 4
    append(log)
    append(log)
    assert log.recovery_point <= 4
    assert log.flush() == 6


def test_a_roll_during_a_flush_leaves_the_new_segment_unclaimed(
    paused: tuple[PausedFiles, Log],
) -> None:
    files, log = paused
    append(log)

    def roll() -> None:
        log.roll(NOW_MS)
        append(log)

    files.during = roll
    assert log.flush() == 1
    assert log.flush() == 2


def test_a_read_in_progress_outlives_the_segment(tmp_path: Path) -> None:
    """The owner drops the segment between a reader's search and its read of the records."""

    class Dropping(Files):
        drop: Callable[[], object] | None = None

        def open(self, path: str, *, create: bool = False) -> File:
            file = super().open(path, create=create)
            if self.drop is not None:
                drop, self.drop = self.drop, None
                drop()
            return file

    files = Dropping()
    settings = config(retention_bytes=0, file_delete_delay_ms=0)
    log = open_log(tmp_path, settings, files=files, open_files=OpenFiles(files, limit=1))
    append(log, value=b"read me")
    log.roll(NOW_MS)

    def drop() -> None:
        log.retire_segments(NOW_MS, 1)
        assert log.delete_retired(NOW_MS) == 1

    files.drop = drop
    assert values(log.read(0, 1000, 1).records) == [(0, b"read me")]
    assert not list(tmp_path.glob("*.deleted"))
    with pytest.raises(KafkaError) as caught:
        log.read(0, 1000, 1)
    assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
