"""Where logs begin: a wrong number in the checkpoint hides no records."""

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.storage.checkpoints import encode_offsets
from headrace.storage.files import Files
from headrace.storage.log_manager import LogManager
from headrace.storage.log_start_offsets import (
    decode_copy,
    encode_copy,
    read_log_start_offsets,
    write_log_start_offsets,
)
from headrace.types import TopicPartition
from tests.unit.storage.logs import NOW_MS, SMALL, TOPIC_ID, append

ORDERS, AUDIT = TopicPartition("orders", 0), TopicPartition("audit", 3)
NAME = "log-start-offset-checkpoint"


def open_manager(directory: Path) -> LogManager:
    return LogManager.open(
        Files(),
        [str(directory)],
        node_id=1,
        cluster_id="cluster",
        config_of=lambda _: SMALL,
        now_ms=NOW_MS,
    )


def make(directory: Path, *, clean: bool) -> None:
    """A log of 30 records whose first two were deleted."""
    manager = open_manager(directory)
    log = manager.create(ORDERS, TOPIC_ID, SMALL, NOW_MS)
    for _ in range(30):
        append(log)
    log.flush()
    log.advance_log_start(2)
    manager.checkpoint()
    manager.close(clean=clean)


def flip(path: Path) -> None:
    path.write_bytes(encode_offsets({ORDERS: 22}))


def zero(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("damage", [flip, zero, Path.unlink])
@pytest.mark.parametrize("name", [NAME, f"{NAME}.copy"])
def test_one_damaged_file_changes_nothing_but_the_file(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    damage: Callable[[Path], object],
    name: str,
    clean: bool,
) -> None:
    make(tmp_path, clean=clean)
    before = {entry: (tmp_path / entry).read_bytes() for entry in (NAME, f"{NAME}.copy")}
    damage(tmp_path / name)
    caplog.set_level(logging.WARNING)
    for _ in range(2):
        manager = open_manager(tmp_path)
        assert manager.logs[ORDERS].log_start_offset == 2
        manager.close(clean=clean)
    assert {entry: (tmp_path / entry).read_bytes() for entry in before} == before
    lines = [record.getMessage() for record in caplog.records if NAME in record.getMessage()]
    # A copy that is missing is that of a directory which has had none yet.
    assert len(lines) == (0 if name != NAME and damage is Path.unlink else 1)


def test_what_kafka_wrote_is_believed_until_there_is_a_copy(tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(encode_offsets({ORDERS: 7}))
    assert read_log_start_offsets(Files(), str(tmp_path)) == ({ORDERS: 7}, "")
    write_log_start_offsets(Files(), str(tmp_path), {ORDERS: 7})
    assert read_log_start_offsets(Files(), str(tmp_path)) == ({ORDERS: 7}, None)


def test_a_new_directory_has_neither(tmp_path: Path) -> None:
    assert read_log_start_offsets(Files(), str(tmp_path)) == ({}, None)


def test_what_differs_is_told(tmp_path: Path) -> None:
    write_log_start_offsets(Files(), str(tmp_path), {ORDERS: 7, AUDIT: 1})
    (tmp_path / NAME).write_bytes(encode_offsets({ORDERS: 7, AUDIT: 9}))
    found, problem = read_log_start_offsets(Files(), str(tmp_path))
    assert found == {ORDERS: 7, AUDIT: 1}
    assert problem is not None
    assert "audit-3 at 9 is 1; it is made again from its copy" in problem


def test_no_flipped_bit_of_a_copy_is_believed() -> None:
    offsets = {ORDERS: 7, AUDIT: 1}
    data = encode_copy(offsets)
    assert decode_copy(data) == offsets
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ValueError):
            decode_copy(bytes(flipped))
