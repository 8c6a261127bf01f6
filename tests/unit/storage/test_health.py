"""The line that an operator finds when a disk fails under a log, or under all of a directory."""

import errno
import logging
from pathlib import Path

import pytest

from headrace.errors import KafkaError
from headrace.storage.log_manager import LogManager
from headrace.types import TopicPartition
from tests.unit.storage.logs import NOW_MS, SMALL, TOPIC_ID, FaultyFiles, append, open_log


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]


def open_manager(directory: Path, files: FaultyFiles) -> LogManager:
    return LogManager.open(
        files,
        [str(directory / "data")],
        node_id=1,
        cluster_id="cluster",
        config_of=lambda _: SMALL,
        now_ms=NOW_MS,
    )


def test_a_log_that_goes_offline_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = FaultyFiles()
    log = open_log(tmp_path, files=files)
    append(log)
    files.fail("write", ".log")
    for _ in range(3):
        with pytest.raises(KafkaError):
            append(log)
    [line] = errors(caplog)
    assert "the log orders-0 is offline" in line
    assert f"{tmp_path}/{0:020d}.log: EIO" in line
    assert "repair or replace the disk, then restart the broker" in line


def test_a_directory_that_goes_offline_says_so_once_for_all_its_logs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = FaultyFiles()
    manager = open_manager(tmp_path, files)
    for number in range(3):
        append(manager.create(TopicPartition("orders", number), TOPIC_ID, SMALL, NOW_MS))
    files.fail("rename", "checkpoint.tmp")
    assert manager.checkpoint()
    assert all(log.offline is not None for log in manager)
    [line] = errors(caplog)
    assert f"the data directory {tmp_path}/data is offline with 3 logs" in line
    assert "Repair or replace the disk" in line
    manager.close(clean=False)


def test_a_disk_that_is_full_at_the_end_is_told_of_once_and_needs_no_repair(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = FaultyFiles()
    manager = open_manager(tmp_path, files)
    for number in range(3):
        append(manager.create(TopicPartition("orders", number), TOPIC_ID, SMALL, NOW_MS))
    files.fail("write", ".snapshot.tmp", errno.ENOSPC)
    manager.close()
    assert errors(caplog) == []
    [line] = [record.getMessage() for record in caplog.records]
    assert line.startswith(f"3 logs in {tmp_path}/data were not closed cleanly, and the next start")
    assert "free some space on that disk" in line
    files.heal()
    manager = open_manager(tmp_path, files)
    assert not manager.directories[0].clean
    assert [log.log_end_offset for log in manager] == [1, 1, 1]
    manager.close()


def test_a_change_that_a_full_disk_broke_off_needs_room_and_no_other_disk(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = FaultyFiles()
    log = open_log(tmp_path, files=files)
    append(log)
    append(log)
    files.fail("write", "leader-epoch-checkpoint.tmp", errno.ENOSPC)
    with pytest.raises(KafkaError, match="is offline: it is opened again when there is room"):
        log.truncate_to(0)
    [line] = errors(caplog)
    assert line.endswith("Other replicas lead in its place; it is opened again when there is room")
    assert log.may_reopen


def test_after_a_flush_that_found_no_room_a_log_is_not_opened_again(tmp_path: Path) -> None:
    """The page cache may have records that the disk does not have, and would not write again."""
    files = FaultyFiles()
    log = open_log(tmp_path, files=files)
    append(log)
    files.fails = lambda operation, _path: errno.ENOSPC * (operation == "sync")
    with pytest.raises(KafkaError, match="is offline: when there is room, restart the broker"):
        log.flush()
    assert not log.may_reopen
