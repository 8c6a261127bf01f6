"""The line that an operator finds when a disk fails under a log, or under all of a directory."""

import logging
from pathlib import Path

import pytest

from headrace.errors import KafkaError
from headrace.storage.log_manager import LogManager
from headrace.types import TopicPartition
from tests.unit.storage.logs import NOW_MS, SMALL, TOPIC_ID, FaultyFiles, append, open_log


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]


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
    manager = LogManager.open(
        files,
        [str(tmp_path / "data")],
        node_id=1,
        cluster_id="cluster",
        config_of=lambda _: SMALL,
        now_ms=NOW_MS,
    )
    for number in range(3):
        append(manager.create(TopicPartition("orders", number), TOPIC_ID, SMALL, NOW_MS))
    files.fail("rename", "checkpoint.tmp")
    assert manager.checkpoint()
    assert all(log.offline is not None for log in manager)
    [line] = errors(caplog)
    assert f"the data directory {tmp_path}/data is offline with 3 logs" in line
    assert "Repair or replace the disk" in line
    manager.close(clean=False)
