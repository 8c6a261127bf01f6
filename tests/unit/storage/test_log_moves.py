"""Logs that move to another data directory: the same records there, whatever happens meanwhile."""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from itertools import count
from pathlib import Path
from random import Random
from shutil import copytree

import pytest

from headrace.config import TopicConfig
from headrace.errors import ConfigError, ErrorCode, KafkaError, StorageError
from headrace.storage.data_directory import DataDirectory
from headrace.storage.files import Files
from headrace.storage.future_log import FutureLog, common_end
from headrace.storage.log import Log
from headrace.storage.log_manager import LogManager
from headrace.storage.stored_logs import current_logs
from headrace.testing.simulation.simulated_disk import HostCrashed, SimulatedDisk, SimulatedFiles
from headrace.types import TopicPartition
from tests.unit.storage.logs import (
    NAME,
    NOW_MS,
    SMALL,
    TOPIC_ID,
    UnsyncedFiles,
    append,
    check_indexes,
    read_all,
)
from tests.unit.storage.transacting import abort, commit, write

SETTINGS = replace(SMALL, file_delete_delay_ms=1000)

Open = Callable[..., LogManager]


def manage(path: Path, *names: str, files: Files | None = None) -> LogManager:
    ids = count(int.from_bytes(os.urandom(6), "big"))
    return LogManager.open(
        files or UnsyncedFiles(),
        [str(path / name) for name in names or ("a", "b", "c")],
        node_id=1,
        cluster_id="4L6g3nShT-eMCtK--X86sw",
        config_of=lambda _partition: SETTINGS,
        now_ms=NOW_MS,
        new_id=lambda: next(ids).to_bytes(16, "big"),
    )


@pytest.fixture
def open_manager(tmp_path: Path) -> Iterator[Open]:
    opened: list[LogManager] = []

    def start(*names: str, files: Files | None = None) -> LogManager:
        opened.append(manage(tmp_path, *names, files=files))
        return opened[-1]

    yield start
    for manager in opened:
        manager.close(clean=False)


def fill(log: Log) -> None:
    """Several segments, with epochs, idempotent producers and transactions of all outcomes."""
    for number in range(12):
        append(log, 2, value=b"%d" % number * 30, leader_epoch=number // 5)
    append(log, producer=(7, 0, 0), leader_epoch=2)
    write(log, (8, 0, 0), 3)
    append(log, producer=(7, 0, 1), leader_epoch=2)
    abort(log, 8)
    write(log, (9, 1, 0), 2)
    commit(log, 9, 1)
    write(log, (10, 0, 0), 2)
    log.start_epoch(4)


def create(manager: LogManager, settings: TopicConfig = SETTINGS) -> Log:
    """A log in the first directory."""
    manager.moves.prefer(NAME, manager.directories[0])
    log = manager.create(NAME, TOPIC_ID, settings, NOW_MS)
    fill(log)
    return log


def begin(manager: LogManager, number: int) -> FutureLog:
    manager.moves.begin(NAME, manager.directories[number], NOW_MS)
    return manager.moves.futures[NAME]


def copy_piece(manager: LogManager, bytes_max: int = 250) -> int:
    future, log = manager.moves.futures[NAME], manager.logs[NAME]
    offset = future.divergence(log)
    if offset is not None:
        future.cut(offset)
    return future.copy(log, bytes_max, NOW_MS)


def copy(manager: LogManager) -> None:
    future, log = manager.moves.futures[NAME], manager.logs[NAME]
    while future.divergence(log) is not None or future.log.log_end_offset < log.log_end_offset:
        copy_piece(manager)


def finish(manager: LogManager) -> Log:
    """What a broker does with a move that has begun, up to the new log being durable."""
    copy(manager)
    manager.moves.prepare(NAME, manager.moves.futures[NAME])
    copy(manager)
    log = manager.moves.promote(NAME, NOW_MS)
    manager.moves.make_durable(NAME)
    return log


def state_of(log: Log) -> object:
    """Everything that readers, producers and followers can learn of a log."""
    data = b"".join(
        bytes(segment.file().read_at(0, segment.size)) for segment in log.segments if segment.size
    )
    producers = {
        key: (
            producer.epoch,
            producer.batches,
            producer.coordinator_epoch,
            producer.transaction_first_offset,
        )
        for key, producer in log.producers
    }
    end = log.log_end_offset
    return (
        data,
        (log.log_start_offset, end, log.epochs.entries, log.topic_id),
        producers,
        log.aborted_transactions(log.log_start_offset, end),
        log.last_stable_offset(end),
        log.clean_offset,
    )


def logs_on_disk(path: Path) -> list[str]:
    """The directories of logs that are neither deleted nor half copied."""
    found = (entry for entry in path.glob("?/orders-0*") if not entry.name.endswith("-delete"))
    return sorted(str(entry.relative_to(path)) for entry in found)


def test_a_moved_log_is_the_same_byte_for_byte(tmp_path: Path, open_manager: Open) -> None:
    manager = open_manager()
    old = create(manager)
    old.clean_offset = 3
    before = state_of(old)
    begin(manager, 1)
    [future_name] = [entry for entry in logs_on_disk(tmp_path) if entry.startswith("b")]
    assert future_name.startswith("b/orders-0.")
    assert future_name.endswith("-future")
    new = finish(manager)
    assert new is manager.logs[NAME] is not old
    assert new.directory == str(tmp_path / "b" / "orders-0")
    assert state_of(new) == before
    check_indexes(new)
    # Those who still read the old log finish.
    assert read_all(old) == read_all(new)
    manager.delete_retired(NOW_MS + 999)
    assert logs_on_disk(tmp_path) == ["a/orders-0", "b/orders-0"]
    manager.delete_retired(NOW_MS + 1000)
    assert logs_on_disk(tmp_path) == ["b/orders-0"]
    appended = append(new, producer=(7, 0, 2), leader_epoch=4)
    assert not appended.duplicate
    assert append(new, producer=(7, 0, 2), leader_epoch=4).duplicate
    expected = state_of(new)
    manager.close()
    assert state_of(open_manager().logs[NAME]) == expected


def test_records_that_come_during_the_copy_are_copied_too(open_manager: Open) -> None:
    manager = open_manager()
    log = create(manager)
    future = begin(manager, 1)
    for number in range(20):
        copy_piece(manager, 100)
        append(log, value=b"late-%d" % number, leader_epoch=4)
    assert future.log.log_end_offset < log.log_end_offset
    before = read_all(log)
    assert read_all(finish(manager)) == before


def test_a_truncation_of_the_log_reaches_its_copy(open_manager: Open) -> None:
    manager = open_manager()
    log = create(manager)
    append(log, 3, value=b"old", leader_epoch=5)
    begin(manager, 1)
    copy(manager)
    end = log.log_end_offset
    log.truncate_to(end - 3)
    append(log, 4, value=b"new", leader_epoch=6)
    copy(manager)
    assert state_of(finish(manager)) == state_of(log)
    assert read_all(manager.logs[NAME])[-1] == (end, b"new")


def test_a_truncation_while_a_piece_is_copied_is_found_afterwards(open_manager: Open) -> None:
    manager = open_manager()
    log = create(manager)
    future = begin(manager, 1)
    copy(manager)
    append(log, value=b"old", leader_epoch=5)
    # The piece was read and is written although the log has been truncated in between.
    future.copy(log, 1000, NOW_MS)
    log.truncate_to(log.log_end_offset - 1)
    append(log, value=b"new", leader_epoch=6)
    assert future.log.log_end_offset == log.log_end_offset
    assert future.divergence(log) == log.log_end_offset - 1
    future.cut(log.log_end_offset - 1)
    assert state_of(finish(manager)) == state_of(log)


def test_a_log_that_loses_its_oldest_records_meanwhile_is_copied_from_its_start(
    open_manager: Open,
) -> None:
    manager = open_manager()
    log = create(manager)
    begin(manager, 1)
    copy_piece(manager, 100)
    # Into the middle of a batch of two.
    log.advance_log_start(15)
    log.retire_segments(NOW_MS, log.log_end_offset)
    new = finish(manager)
    assert new.log_start_offset == 15
    assert read_all(new) == read_all(log)
    assert new.epochs.entries == log.epochs.entries


def test_the_end_is_reached_where_compaction_left_nothing_before_it(open_manager: Open) -> None:
    manager = open_manager()
    log = create(manager)
    end = log.log_end_offset + 5
    log.roll(NOW_MS, end)
    assert log.log_end_offset == end
    assert finish_from(manager).log_end_offset == end
    assert append(manager.logs[NAME]).base_offset == end


def finish_from(manager: LogManager, number: int = 1) -> Log:
    begin(manager, number)
    return finish(manager)


def test_another_directory_replaces_the_first_and_the_own_one_cancels(
    tmp_path: Path, open_manager: Open
) -> None:
    manager = open_manager()
    log = create(manager)
    first = begin(manager, 1)
    copy_piece(manager)
    assert not manager.moves.begin(NAME, manager.directories[1], NOW_MS)
    assert manager.moves.futures[NAME] is first
    second = begin(manager, 2)
    assert second is not first
    assert [entry.rpartition(".")[0] for entry in logs_on_disk(tmp_path)] == ["", "c/orders-0"]
    copy(manager)
    manager.moves.prepare(NAME, second)
    assert not manager.moves.begin(NAME, manager.directories[0], NOW_MS)
    assert logs_on_disk(tmp_path) == ["a/orders-0"]
    assert not (tmp_path / "a" / "orders-0" / "move.metadata").exists()
    assert manager.logs[NAME] is log
    assert not manager.moves.futures
    assert [directory.log_count for directory in manager.directories] == [1, 0, 0]


def test_a_log_can_go_back_at_once(tmp_path: Path, open_manager: Open) -> None:
    manager = open_manager()
    before = state_of(create(manager))
    finish_from(manager, 1)
    finish_from(manager, 0)
    assert state_of(manager.logs[NAME]) == before
    manager.close()
    assert logs_on_disk(tmp_path) == ["a/orders-0"]


def test_deleting_a_log_deletes_its_copies(tmp_path: Path, open_manager: Open) -> None:
    manager = open_manager()
    create(manager)
    finish_from(manager, 1)
    begin(manager, 2)
    copy_piece(manager)
    manager.delete(NAME, NOW_MS)
    assert logs_on_disk(tmp_path) == []
    assert [directory.log_count for directory in manager.directories] == [0, 0, 0]
    assert manager.create(NAME, TOPIC_ID, SETTINGS, NOW_MS).log_end_offset == 0


def test_a_log_may_be_deleted_while_its_move_is_made_durable(
    open_manager: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = open_manager()
    create(manager)
    begin(manager, 1)
    copy(manager)
    manager.moves.prepare(NAME, manager.moves.futures[NAME])
    manager.moves.promote(NAME, NOW_MS)
    monkeypatch.setattr(Log, "flush", lambda self: manager.delete(NAME, NOW_MS))
    manager.moves.make_durable(NAME)
    monkeypatch.undo()
    assert NAME not in manager.logs
    assert NAME not in manager.moves.replaced


@pytest.mark.parametrize("clean", [True, False])
def test_a_restart_goes_on_copying(open_manager: Open, clean: bool) -> None:
    manager = open_manager()
    log = create(manager)
    begin(manager, 1)
    for _ in range(3):
        copy_piece(manager)
    copied, before = manager.moves.futures[NAME].log.log_end_offset, read_all(log)
    assert 0 < copied < log.log_end_offset
    manager.close(clean=clean)
    again = open_manager()
    assert again.moves.futures[NAME].log.log_end_offset == copied
    assert read_all(finish(again)) == before
    assert again.directories[1].log_count == 1


def test_a_damaged_copy_is_made_again_by_the_next_start(
    open_manager: Open, caplog: pytest.LogCaptureFixture
) -> None:
    """The log itself is intact, so the move that was asked for goes on."""
    manager = open_manager()
    log = create(manager)
    begin(manager, 1)
    for _ in range(3):
        copy_piece(manager)
    before, future = read_all(log), manager.moves.futures[NAME].log
    future.flush()
    manager.close(clean=False)
    for segment in Path(future.directory).glob("*.log"):
        os.truncate(segment, segment.stat().st_size // 2)
    again = open_manager()
    assert again.moves.futures[NAME].directory is again.directories[1]
    assert again.moves.futures[NAME].log.log_end_offset == 0
    assert "is made again" in caplog.text
    assert read_all(finish(again)) == before
    assert again.directories[1].log_count == 1


def test_what_cannot_be_moved_is_refused(open_manager: Open) -> None:
    manager = open_manager("a", "b")
    create(manager)
    with pytest.raises(KafkaError) as caught:
        manager.moves.directory_at("/elsewhere")
    assert caught.value.code is ErrorCode.LOG_DIR_NOT_FOUND
    long = TopicPartition("x" * 220, 0)
    manager.create(long, TOPIC_ID, SETTINGS, NOW_MS)
    with pytest.raises(KafkaError) as caught:
        manager.moves.begin(long, manager.directories[0], NOW_MS)
    assert caught.value.code is ErrorCode.INVALID_TOPIC_EXCEPTION


def test_nothing_moves_while_a_directory_is_offline(tmp_path: Path, open_manager: Open) -> None:
    (tmp_path / "c").write_text("not a directory")
    manager = open_manager("a", "b", "c")
    create(manager)
    with pytest.raises(KafkaError, match=r"while .*c is offline") as caught:
        begin(manager, 1)
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    with pytest.raises(KafkaError) as caught:
        manager.moves.directory_at(str(tmp_path / "c"))
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR


@pytest.mark.parametrize("names", [("a", "b"), ("b", "a")])
def test_who_reads_the_files_finds_the_newer_of_two_logs(
    tmp_path: Path, names: tuple[str, str]
) -> None:
    manager = manage(tmp_path, "a", "b")
    create(manager)
    new = finish_from(manager, 1)
    new.advance_log_start(3)
    manager.checkpoint()
    assert logs_on_disk(tmp_path) == ["a/orders-0", "b/orders-0"]
    found = current_logs(str(tmp_path / name) for name in names)
    assert found == {NAME: (str(tmp_path / "b" / "orders-0"), 3)}
    manager.close()


def test_a_stale_log_is_not_served_while_its_copy_is_offline(tmp_path: Path) -> None:
    manager = manage(tmp_path, "a", "b")
    create(manager)
    new = finish_from(manager, 1)
    append(new, value=b"only in b", leader_epoch=4)
    manager.close(clean=False)
    assert logs_on_disk(tmp_path) == ["a/orders-0", "b/orders-0"]
    (tmp_path / "b").rename(tmp_path / "away")
    (tmp_path / "b").write_text("a disk that failed")
    broken = manage(tmp_path, "a", "b")
    assert NAME not in broken.logs
    with pytest.raises(KafkaError, match="may be older") as caught:
        broken.get(NAME)
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert "without that directory, remove it from log.dirs" in str(caught.value)
    broken.close()
    copytree(tmp_path / "a", tmp_path / "without" / "a")
    alone = manage(tmp_path / "without", "a")
    assert read_all(alone.logs[NAME]), "without it, what there is is served"
    alone.close()
    (tmp_path / "b").unlink()
    (tmp_path / "away").rename(tmp_path / "b")
    healed = manage(tmp_path, "a", "b")
    assert read_all(healed.logs[NAME])[-1][1] == b"only in b"
    assert logs_on_disk(tmp_path) == ["b/orders-0"]
    healed.close()


def test_after_a_move_the_new_directory_counts_and_the_old_one_does_not(
    open_manager: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = open_manager("a", "b")
    create(manager)
    new = finish_from(manager, 1)

    def fail(directory: DataDirectory) -> None:
        def raise_error(*_: object) -> None:
            raise StorageError("Input/output error")

        monkeypatch.setattr(directory, "write_checkpoints", raise_error)
        manager.checkpoint()

    fail(manager.directories[0])
    assert new.offline is None
    append(new, leader_epoch=4)
    fail(manager.directories[1])
    assert new.offline is not None


def test_a_power_failure_that_takes_the_end_of_the_copy_brings_the_old_log_back(
    tmp_path: Path,
) -> None:
    manager = manage(tmp_path, "a", "b")
    old = create(manager)
    begin(manager, 1)
    copy(manager)
    manager.moves.prepare(NAME, manager.moves.futures[NAME])
    append(old, leader_epoch=4)
    copy(manager)  # After the flush.
    before = read_all(old)
    new = manager.moves.promote(NAME, NOW_MS)
    path = new.active.log_path
    manager.close(clean=False)
    (tmp_path / "b" / "boot-id").unlink()
    os.truncate(path, os.path.getsize(path) - 10)
    again = manage(tmp_path, "a", "b")
    assert again.logs[NAME].directory == str(tmp_path / "a" / "orders-0")
    assert read_all(again.logs[NAME]) == before
    assert logs_on_disk(tmp_path) == ["a/orders-0"]
    again.close()


def test_two_logs_of_a_partition_without_a_move_are_refused(tmp_path: Path) -> None:
    manager = manage(tmp_path, "a", "b")
    create(manager)
    manager.close()
    copytree(tmp_path / "a" / "orders-0", tmp_path / "b" / "orders-0")
    manager = manage(tmp_path, "a")
    append(manager.logs[NAME], value=b"newest", leader_epoch=9)
    manager.close()
    with pytest.raises(ConfigError, match="in more than one data directory") as caught:
        manage(tmp_path, "a", "b")
    # What it says, done as it is said: the copy that lacks the last record is the one to go.
    [older] = re.findall(r"Move (\S+) out of the data directories", str(caught.value))
    assert older == str(tmp_path / "b" / "orders-0")
    Path(older).rename(tmp_path / "kept")
    manager = manage(tmp_path, "a", "b")
    assert read_all(manager.logs[NAME])[-1][1] == b"newest"
    manager.close()


class DyingDisk(SimulatedDisk):
    """A disk whose host dies before a change that is counted down to; `alive` until then."""

    def __init__(self, seed: int) -> None:
        super().__init__(Random(seed), lambda *_: None, "disk")
        self.left = -1
        self.alive = True
        self.power_loss = False

    def begin(self, risk: float, number: int, what: str, path: str, *details: object) -> None:
        if self.left == 0:
            self.alive = False
            self.crash(power_loss=self.power_loss)
            raise HostCrashed
        self.left -= 1
        super().begin(risk, number, what, path, *details)


class Mover:
    """A move of a log from `/a` to `/b`, with records that are appended and flushed all the time.

    `durable` counts the records of which a producer was told that they are on stable storage.
    """

    def __init__(self, disk: DyingDisk) -> None:
        self.disk = disk
        self.durable = 0

    def open(self) -> LogManager:
        return manage(Path("/"), "a", "b", files=SimulatedFiles(self.disk))

    def write(self, log: Log) -> None:
        append(log, value=b"during", leader_epoch=4)
        log.flush()
        self.durable = log.log_end_offset

    def run(self) -> None:
        manager = self.open()
        if (
            NAME not in manager.moves.futures
            and manager.directory_of(NAME) is manager.directories[0]
        ):
            begin(manager, 1)
        step = 0
        while NAME in manager.moves.futures:
            log, future = manager.logs[NAME], manager.moves.futures[NAME]
            copy_piece(manager, 900)
            if step < 2:
                self.write(log)
            elif not future.prepared:
                manager.moves.prepare(NAME, future)
                self.write(log)
            elif future.log.log_end_offset == log.log_end_offset:
                new = manager.moves.promote(NAME, NOW_MS)
                append(new, value=b"during", leader_epoch=4)
                manager.moves.make_durable(NAME)
                manager.delete_retired(NOW_MS + 2000)
                self.write(new)
            step += 1
        manager.close()


@pytest.mark.parametrize("power_loss", [False, True])
def test_a_crash_at_any_file_operation_leaves_one_complete_log(power_loss: bool) -> None:
    first = DyingDisk(0)
    mover = Mover(first)
    manager = mover.open()
    written = len(read_all(create(manager)))
    end = manager.logs[NAME].log_end_offset
    manager.close()
    changes = 0
    while True:
        disk = deepcopy(first)
        disk.rng = Random(changes)
        disk.power_loss = power_loss
        disk.left = changes
        mover = Mover(disk)
        mover.durable = end
        with suppress(HostCrashed):
            mover.run()
        disk.left = -1
        check_after_crash(mover, written)
        if disk.alive:
            break
        # And what was begun can be ended.
        mover.run()
        manager = mover.open()
        assert [directory.log_count for directory in manager.directories] == [0, 1]
        assert not manager.moves.futures
        assert disk.find("/a/orders-0") is None
        changes += 1
    assert changes > 150


def check_after_crash(mover: Mover, written: int) -> None:
    manager = mover.open()
    log = manager.logs[NAME]
    found = read_all(log)
    assert {value for _, value in found[written:]} <= {b"during"}
    offsets = [offset for offset, _ in found]
    assert offsets == sorted(set(offsets))
    assert log.log_end_offset >= mover.durable
    assert log.producers.has_open_transaction(10, 0)
    assert [transaction.producer_id for transaction in log.aborted_transactions(0, 30)] == [8]
    for directory in manager.directories:
        there = mover.disk.find(f"{directory.path}/orders-0") is not None
        assert there == (directory is manager.directory_of(NAME))
    manager.close()


@pytest.mark.parametrize(
    ("ours", "our_end", "theirs", "their_end", "end"),
    [
        ((), 5, (), 9, 5),
        (((0, 0),), 5, ((0, 0),), 9, 5),
        (((0, 0),), 9, ((0, 0),), 5, 5),
        (((0, 0), (2, 5)), 9, ((0, 0), (1, 4), (3, 6)), 12, 4),
        (((0, 0), (2, 5)), 9, ((0, 0), (2, 5), (3, 7)), 12, 7),
        (((0, 0), (2, 5)), 9, ((2, 5), (3, 10)), 12, 9),
        (((0, 0),), 9, ((3, 10),), 12, -1),
    ],
)
def test_logs_agree_up_to_the_end_of_the_newest_epoch_both_have(
    ours: tuple[tuple[int, int], ...],
    our_end: int,
    theirs: tuple[tuple[int, int], ...],
    their_end: int,
    end: int,
) -> None:
    assert common_end(ours, our_end, theirs, their_end) == end
