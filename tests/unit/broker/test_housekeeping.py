"""What housekeeping writes to the broker's log."""

import asyncio
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.broker.housekeeping import Housekeeping
from headrace.storage.data_directory import DataDirectory
from headrace.storage.files import DiskFull, Files
from tests.unit.storage.logs import NAME, append, config, open_log

DAY_MS = 86_400_000


def test_old_records_that_are_deleted_soon_after_their_append_are_explained(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = open_log(tmp_path, config(retention_ms=7 * DAY_MS))
    append(log, timestamp=1_577_836_800_000)
    now_ms = log.active.modified_ms()
    partition = SimpleNamespace(name=NAME, log=log, high_watermark=1, log_start_moved=lambda: None)

    async def flush(note: Any, offset: int) -> None:
        assert (note, offset) == (log.note_start, 1), "the log start is durable before segments go"
        note(offset)

    node: Any = SimpleNamespace(
        replicas=[partition],
        clock=SimpleNamespace(now_ms=lambda: now_ms),
        workers=SimpleNamespace(flush=flush),
    )
    with caplog.at_level(logging.INFO):
        asyncio.run(Housekeeping(node, None, None).retire_segments())  # type: ignore[arg-type]
    deleted, advice = caplog.records
    assert deleted.levelno == logging.INFO
    assert deleted.getMessage().startswith("orders-0: deleted the segment at offset 0 with ")
    assert "its largest record timestamp, 2020-01-01T00:00:00Z" in deleted.getMessage()
    assert "retention.ms is 604800000 (7.0 days)" in deleted.getMessage()
    assert advice.levelno == logging.WARNING
    assert "message.timestamp.type=LogAppendTime" in advice.getMessage()


def test_a_checkpoint_lists_new_logs_soon() -> None:
    checkpoints: list[str] = []

    async def flush(write: Any) -> list[Any]:
        checkpoints.append("written")
        logs.names_changed = False
        return []

    logs = SimpleNamespace(names_changed=False, checkpoint=None)
    node: Any = SimpleNamespace(logs=logs, workers=SimpleNamespace(flush=flush))
    housekeeping = Housekeeping(node, None, None)  # type: ignore[arg-type]
    for changed in (False, True, False):
        logs.names_changed = logs.names_changed or changed
        asyncio.run(housekeeping.checkpoint_new_logs())
    assert checkpoints == ["written"]


def test_a_full_directory_is_told_with_what_to_do_and_the_controller_hears_of_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = DataDirectory(Files(), str(tmp_path), 4096)
    heartbeats: list[str] = []
    node: Any = SimpleNamespace(
        logs=SimpleNamespace(directories=[directory]),
        membership=SimpleNamespace(heartbeat_now=lambda: heartbeats.append("now")),
        replicas=SimpleNamespace(reopen_after_shortage=lambda config: iter(())),
        config=None,
    )
    housekeeping = Housekeeping(node, None, None)  # type: ignore[arg-type]
    asyncio.run(housekeeping.check_free_space())
    assert caplog.records == []
    directory.room.refused(DiskFull("no room"), 1 << 60)
    for _ in range(3):
        asyncio.run(housekeeping.check_free_space())
    [line] = caplog.records
    assert line.levelno == logging.ERROR
    assert f"the data directory {tmp_path} is full: " in line.getMessage()
    assert "delete topics or records, lower retention" in line.getMessage()
    assert heartbeats == ["now"]
