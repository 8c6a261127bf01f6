"""Full and failing disks: the log refuses or goes offline, says why, and never serves damage."""

import errno
import resource
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ErrorCode, KafkaError, StorageError
from headrace.protocol.batch import read_header, scan_headers
from headrace.storage.files import DiskFull
from headrace.storage.log import Log
from tests.unit.storage.logs import (
    NOW_MS,
    FaultyFiles,
    append,
    batch,
    check_indexes,
    config,
    open_log,
    read_all,
)


@pytest.fixture
def files() -> FaultyFiles:
    return FaultyFiles()


@pytest.fixture
def log(tmp_path: Path, files: FaultyFiles) -> Log:
    log = open_log(tmp_path, files=files)
    for index in range(3):
        append(log, value=b"%d" % index)
    return log


def refused(log: Log, value: bytes = b"value") -> str:
    with pytest.raises(KafkaError) as caught:
        append(log, value=value)
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    return caught.value.detail


def test_a_full_disk_refuses_appends_until_there_is_room(
    tmp_path: Path, log: Log, files: FaultyFiles
) -> None:
    size = log.active.size
    files.fail("write", ".log", errno.ENOSPC)
    detail = refused(log)
    assert f"{tmp_path}/{0:020d}.log" in detail
    assert "free some space" in detail
    assert isinstance(log.shortage, DiskFull)
    assert log.offline is None
    assert (tmp_path / f"{0:020d}.log").stat().st_size == size  # Half the batch had been written.
    assert len(read_all(log)) == 3
    refused(log)
    files.heal()
    assert append(log).base_offset == 3
    assert log.shortage is None
    assert len(read_all(open_log(tmp_path))) == 4


def test_a_write_that_cannot_be_undone_takes_the_log_offline(log: Log, files: FaultyFiles) -> None:
    files.fails = lambda operation, path: (
        errno.ENOSPC * (operation in ("write", "truncate") and path.endswith(".log"))
    )
    refused(log)
    files.heal()
    assert log.offline is not None
    assert "restart the broker" in refused(log)


@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".tmp", ".log"])
def test_a_full_disk_while_rolling_changes_nothing(
    tmp_path: Path, log: Log, files: FaultyFiles, suffix: str
) -> None:
    log.update_config(config(index_interval_bytes=0))
    for index in range(3, 6):
        append(log, value=b"%d" % index)
    operation = "open" if suffix == ".log" else "write"
    files.fail(operation, suffix, errno.ENOSPC)
    with pytest.raises(KafkaError):
        log.roll(NOW_MS)
    assert log.offline is None
    assert len(log.segments) == 1
    files.heal()
    log.roll(NOW_MS)
    assert append(log, value=b"6").base_offset == 6
    check_indexes(log)
    assert [value for _, value in read_all(log)] == [b"%d" % index for index in range(7)]
    assert [value for _, value in read_all(open_log(tmp_path))] == [b"%d" % i for i in range(7)]


@pytest.mark.parametrize("clean", [True, False])
def test_a_roll_that_failed_half_way_leaves_no_segment_behind(
    tmp_path: Path, log: Log, files: FaultyFiles, clean: bool
) -> None:
    files.fail("open", f"{3:020d}.timeindex", errno.ENOSPC)
    with pytest.raises(KafkaError):
        log.roll(NOW_MS)
    files.heal()
    append(log, value=b"3")
    log.close(clean=clean)
    again = open_log(tmp_path, clean=clean, recovery_point=4 if clean else 0)
    assert len(again.segments) == 1
    assert [value for _, value in read_all(again)] == [b"0", b"1", b"2", b"3"]


def test_a_roll_that_cannot_be_undone_takes_the_log_offline(log: Log, files: FaultyFiles) -> None:
    files.fails = lambda operation, path: (
        errno.ENOSPC * (f"{3:020d}" in path and (operation == "remove" or path.endswith(".index")))
    )
    with pytest.raises(KafkaError):
        log.roll(NOW_MS)
    assert log.offline is not None


def test_a_full_disk_does_not_keep_retention_from_making_room(log: Log, files: FaultyFiles) -> None:
    log.roll(NOW_MS)
    append(log)
    log.update_config(config(retention_ms=0))
    files.fails = lambda operation, _path: errno.ENOSPC * (operation == "write")
    retired = log.retire_segments(NOW_MS + 10**6, high_watermark=4)
    assert [segment.base_offset for segment in retired] == [0]
    assert log.offline is None
    assert log.delete_retired(NOW_MS + 10**7) == 1


def test_an_input_output_error_takes_the_log_offline_for_good(log: Log, files: FaultyFiles) -> None:
    files.fail("write", ".log", errno.EIO)
    detail = refused(log)
    files.heal()
    assert "orders-0 is offline" in detail
    assert isinstance(log.offline, StorageError)
    for action in (
        lambda: append(log),
        lambda: log.read(0, 100, 3),
        lambda: log.read_cached(0, 100, 3),
        log.flush,
        lambda: log.roll(NOW_MS),
        lambda: log.truncate_to(1),
        lambda: log.truncate_fully_and_start_at(9),
        lambda: log.advance_log_start(1),
        lambda: log.retire_segments(NOW_MS, 3),
        lambda: log.offset_for_timestamp(0),
        lambda: log.max_timestamp_offset(),
        lambda: log.start_epoch(9),
    ):
        with pytest.raises(KafkaError) as caught:
            action()
        assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    log.close()


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_after_a_failed_fsync_nothing_is_claimed_and_nothing_served(
    tmp_path: Path, log: Log, files: FaultyFiles, number: int
) -> None:
    files.fail("sync", ".log", number)
    with pytest.raises(KafkaError) as caught:
        log.flush()
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert log.recovery_point == 0
    files.heal()
    with pytest.raises(KafkaError):
        log.flush()
    refused(log)
    assert len(read_all(open_log(tmp_path))) == 3


@pytest.mark.parametrize("what", ["leader-epoch-checkpoint", ".snapshot", "partition.metadata"])
def test_the_recovery_point_waits_for_the_small_files_too(
    tmp_path: Path, files: FaultyFiles, what: str
) -> None:
    log = open_log(tmp_path / "new", files=files, topic_id=bytes(16))
    append(log)
    log.roll(NOW_MS)
    append(log)
    files.fail("sync", what)
    with pytest.raises(KafkaError):
        log.flush()
    assert log.recovery_point == 0


def test_a_new_file_is_durable_only_with_its_directory(
    tmp_path: Path, log: Log, files: FaultyFiles
) -> None:
    log.flush()
    log.roll(NOW_MS)
    append(log)
    parent = files.operations.index(("sync_directory", str(tmp_path.parent)))
    assert files.operations.index(("sync_directory", str(tmp_path))) > parent
    files.fail("sync_directory", tmp_path.name)
    with pytest.raises(KafkaError):
        log.flush()
    assert log.recovery_point == 3


def test_a_read_error_takes_the_log_offline(log: Log, files: FaultyFiles) -> None:
    files.fail("read", ".log")
    with pytest.raises(KafkaError, match=r"cannot read .*\.log") as caught:
        log.read(0, 100, 3)
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert log.offline is not None
    assert log.offline.__traceback__ is None  # It would keep the descriptor open for ever.


def test_an_append_needs_nothing_from_the_disk_once_it_is_written(
    log: Log, files: FaultyFiles
) -> None:
    log.update_config(config(segment_bytes=100_000, index_interval_bytes=0))
    for index in range(600):
        before = len(files.operations)
        append(log, timestamp=NOW_MS + index)
        operations = files.operations[before:]
        assert [name for name, _ in operations].count("read") == 0
        assert operations[-1] == ("write", log.active.log_path)


def test_too_many_open_files_is_no_reason_to_give_up_a_log(log: Log, files: FaultyFiles) -> None:
    log.roll(NOW_MS)
    files.fail("open", ".log", errno.EMFILE)
    with pytest.raises(KafkaError, match="ulimit"):
        log.read(0, 100, 3)
    with pytest.raises(KafkaError, match="ulimit"):
        log.flush()
    assert log.offline is None
    files.heal()
    assert log.flush() == 3
    assert len(read_all(log)) == 3


def test_corruption_found_while_reading_is_reported_and_not_served(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for index in range(3):
        append(log, value=b"%d" % index)
    path = tmp_path / f"{0:020d}.log"
    content = bytearray(path.read_bytes())
    second = log.active.position_of(1, log.active.size)
    content[second + 8 : second + 12] = b"\xff\xff\xff\xff"
    path.write_bytes(content)
    for read in (log.read, log.read_cached):
        with pytest.raises(KafkaError, match=rf"{0:020d}\.log at position {second}") as caught:
            read(1, 1000, 3)
        assert caught.value.code is ErrorCode.CORRUPT_MESSAGE
    assert log.offline is None
    assert log.read(0, 10, 3, at_least_one=True).records


@pytest.fixture
def file_size_limit() -> Iterator[int]:
    """A real limit of the operating system: no file of this process may grow beyond it."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    limit = 20_000
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    yield limit
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_real_limit_of_the_system_cuts_no_batch_in_two(
    tmp_path: Path, file_size_limit: int
) -> None:
    log = open_log(tmp_path, config(segment_bytes=100_000))
    while log.active.size + 1100 < file_size_limit:
        append(log, value=b"x" * 997)
    refused(log, value=b"x" * 997)
    end = log.log_end_offset
    assert 15 < end < 20
    assert (tmp_path / f"{0:020d}.log").stat().st_size == log.active.size < file_size_limit
    assert len(read_all(log)) == end
    log.roll(NOW_MS)
    assert append(log, value=b"x" * 997).base_offset == end


@given(data=st.data())
def test_any_operation_may_fail_and_acknowledged_records_survive(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("log")
    files = FaultyFiles()
    log = open_log(path, files=files)
    acknowledged: list[bytes] = []
    number = data.draw(st.sampled_from([errno.EIO, errno.ENOSPC]), label="error")
    start = len(files.operations)
    failing = data.draw(st.sets(st.integers(0, 60), max_size=4), label="failing operations")
    files.fails = lambda _operation, _path: number * (len(files.operations) - start in failing)
    for turn, step in enumerate(data.draw(st.lists(st.integers(0, 9), max_size=25), label="steps")):
        with suppress(KafkaError):
            match step:
                case 0:
                    log.roll(NOW_MS)
                case 1:
                    log.flush()
                case 2:
                    log.start_epoch(turn)
                case _:
                    value = b"%d" % turn
                    append(log, value=value, leader_epoch=max(log.latest_epoch, 0))
                    acknowledged.append(value)
    files.heal()
    if log.offline is None:
        assert [value for _, value in read_all(log)] == acknowledged
        check_indexes(log)
    again = open_log(path, recovery_point=log.recovery_point)
    assert [value for _, value in read_all(again)][: len(acknowledged)] == acknowledged
    check_indexes(again)


@pytest.mark.parametrize(
    ("operation", "file"), [("write", ".log"), ("write", "leader-epoch-checkpoint.tmp")]
)
def test_a_refused_append_leaves_no_epochs_behind(
    tmp_path: Path, operation: str, file: str
) -> None:
    """Seed 3000243: with them a replica that lacked the batches won the next election."""
    files = FaultyFiles()
    log = open_log(tmp_path / "orders-0", files=files)
    first = batch(2, leader_epoch=1)
    log.append_replicated(first, [read_header(first)], NOW_MS)
    more = batch(1, base_offset=2, leader_epoch=3) + batch(1, base_offset=3, leader_epoch=4)
    headers = scan_headers(more)
    files.fail(operation, file, errno.ENOSPC)
    with pytest.raises(KafkaError, match="ENOSPC"):
        log.append_replicated(more, headers, NOW_MS)
    assert log.log_end_offset == 2
    assert list(log.epochs.entries) == [(1, 0)]
    assert log.latest_epoch == 1
    files.heal()
    assert open_log(tmp_path / "orders-0").epochs.entries == ((1, 0),)
    log.append_replicated(more, headers, NOW_MS)
    assert list(log.epochs.entries) == [(1, 0), (3, 2), (4, 3)]
    assert read_all(log) == read_all(open_log(tmp_path / "orders-0"))
