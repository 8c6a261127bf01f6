"""Logs that are set aside, and logs that a start misses."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ErrorCode, KafkaError
from headrace.storage.checkpoints import RECOVERY_POINTS, decode_offsets
from headrace.storage.damage import DamagedLog
from headrace.storage.files import Files
from headrace.storage.log_manager import LogManager
from headrace.storage.strays import (
    StrayNote,
    decode_note,
    encode_note,
    list_strays,
    parse_stray_name,
    stray_name,
)
from headrace.types import TopicPartition
from tests.unit.storage.logs import NOW_MS, SMALL, TOPIC_ID, FaultyFiles, append, read_all

ORDERS = TopicPartition("orders", 0)
OTHER_ID = bytes(range(50, 66))

Open = Callable[..., LogManager]


@pytest.fixture
def open_manager(tmp_path: Path) -> Iterator[Open]:
    opened: list[LogManager] = []

    def start(files: Files | None = None) -> LogManager:
        manager = LogManager.open(
            files or Files(),
            [str(tmp_path / "data")],
            node_id=1,
            cluster_id="cluster",
            config_of=lambda _: SMALL,
            now_ms=NOW_MS,
        )
        opened.append(manager)
        return manager

    yield start
    for manager in opened:
        manager.close(clean=False)


def create(manager: LogManager, records: int = 3, topic_id: bytes = TOPIC_ID) -> None:
    append(manager.create(ORDERS, topic_id, SMALL, NOW_MS), records)


def listed(tmp_path: Path) -> dict[TopicPartition, int]:
    return decode_offsets((tmp_path / "data" / RECOVERY_POINTS).read_bytes())


@given(
    st.from_regex(r"[a-zA-Z0-9._-]{1,20}", fullmatch=True).filter(lambda one: one not in ".."),
    st.integers(0, 99999),
    st.none() | st.binary(min_size=16, max_size=16),
    st.text(),
)
def test_a_note_tells_whose_the_log_was(
    topic: str, partition: int, topic_id: bytes | None, reason: str
) -> None:
    note = StrayNote(TopicPartition(topic, partition), topic_id, reason, "2024-05-01T12:00:00Z")
    decoded = decode_note(encode_note(note))
    assert (decoded.partition, decoded.topic_id) == (note.partition, note.topic_id)
    name = stray_name(note.partition, bytes(16))
    assert parse_stray_name(name) == note.partition


def test_the_longest_topic_name_can_be_set_aside(tmp_path: Path, open_manager: Open) -> None:
    manager = open_manager()
    name = TopicPartition("x" * 249, 12345)
    manager.create(name, TOPIC_ID, SMALL, NOW_MS)
    manager.set_aside(name, "a test", NOW_MS)
    [stray] = list_strays(Files(), str(tmp_path / "data"))
    assert stray.partition == name


def test_two_logs_of_one_topic_are_set_aside_beside_each_other(
    tmp_path: Path, open_manager: Open
) -> None:
    manager = open_manager()
    for records in (1, 2):
        create(manager, records)
        manager.set_aside(ORDERS, "a test", NOW_MS)
    assert len(list_strays(Files(), str(tmp_path / "data"))) == 2
    assert not manager.logs


def test_a_log_that_cannot_be_set_aside_is_offline(tmp_path: Path, open_manager: Open) -> None:
    files = FaultyFiles()
    manager = open_manager(files)
    create(manager)
    files.fail("rename", "orders-0")
    with pytest.raises(KafkaError) as caught:
        manager.set_aside(ORDERS, "a test", NOW_MS)
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert ORDERS in manager.failed
    assert (tmp_path / "data" / "orders-0").exists()


def test_a_log_that_a_checkpoint_lists_is_missed(tmp_path: Path, open_manager: Open) -> None:
    manager = open_manager()
    create(manager)
    assert manager.names_changed
    manager.checkpoint()
    assert not manager.names_changed
    manager.close(clean=False)
    (tmp_path / "data" / "orders-0").rename(tmp_path / "away")
    again = open_manager()
    assert list(again.missing) == [ORDERS]
    # It stays on the list until the partition has a log again, or is known to be gone.
    again.close()
    assert list(open_manager().missing) == [ORDERS]


def test_a_log_that_was_deleted_is_not_missed(tmp_path: Path, open_manager: Open) -> None:
    manager = open_manager()
    create(manager)
    manager.checkpoint()
    manager.delete(ORDERS, NOW_MS)
    # The checkpoint has not heard of it when the broker dies.
    manager.close(clean=False)
    assert listed(tmp_path) == {ORDERS: 0}
    assert not open_manager().missing


def test_a_log_that_is_made_again_is_not_measured_by_the_old_one(
    tmp_path: Path, open_manager: Open
) -> None:
    manager = open_manager()
    create(manager, 5)
    manager.logs[ORDERS].flush()
    manager.checkpoint({ORDERS: 5})
    assert listed(tmp_path) == {ORDERS: 5}
    manager.delete(ORDERS, NOW_MS)
    create(manager, 2, OTHER_ID)
    manager.close(clean=False)
    again = open_manager()
    assert again.logs[ORDERS].log_end_offset == 2
    assert again.high_watermark(ORDERS) is None


def test_a_log_that_ends_before_what_was_flushed_is_damaged(
    tmp_path: Path, open_manager: Open
) -> None:
    manager = open_manager()
    create(manager, 5)
    manager.close()
    for path in (tmp_path / "data" / "orders-0").iterdir():
        path.unlink()
    again = open_manager()
    assert not again.logs
    assert isinstance(again.failed[ORDERS], DamagedLog)
    assert f"{tmp_path}/data/orders-0" in str(again.failed[ORDERS])


def test_a_copy_for_a_move_that_is_left_alone_is_set_aside(tmp_path: Path) -> None:
    directories = [str(tmp_path / name) for name in ("a", "b")]

    def start() -> LogManager:
        return LogManager.open(
            Files(),
            directories,
            node_id=1,
            cluster_id="cluster",
            config_of=lambda _: SMALL,
            now_ms=NOW_MS,
        )

    manager = start()
    create(manager)
    manager.moves.begin(ORDERS, manager.directories[1], NOW_MS)
    manager.close(clean=False)
    (tmp_path / "a" / "orders-0").rename(tmp_path / "away")
    again = start()
    assert not again.moves.futures
    [stray] = list_strays(Files(), directories[1])
    assert stray.note is not None
    assert "copy of is gone" in stray.note.reason
    again.close(clean=False)


def test_a_log_in_the_place_of_a_damaged_one_reads_its_own_files(
    tmp_path: Path, open_manager: Open
) -> None:
    """Not those that were opened to find the damage."""
    manager = open_manager()
    log = manager.create(ORDERS, TOPIC_ID, SMALL, NOW_MS)
    for number in range(50):
        append(log, value=b"old %d" % number)
    manager.close()
    first = tmp_path / "data" / "orders-0" / f"{0:020}.log"
    first.write_bytes(first.read_bytes()[:-30])
    again = open_manager()
    assert isinstance(again.failed[ORDERS], DamagedLog)
    again.set_aside(ORDERS, "a test", NOW_MS)
    log = again.create(ORDERS, TOPIC_ID, SMALL, NOW_MS)
    for number in range(50):
        append(log, value=b"new %d" % number)
    assert len(log.segments) > 1
    assert read_all(log) == [(number, b"new %d" % number) for number in range(50)]
