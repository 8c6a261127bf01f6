"""Simulated disks keep what was flushed, and lose and tear what was not."""

import random
from functools import partial
from typing import Any

import pytest

from headrace.errors import StorageError
from headrace.storage.files import DiskFull, FileMissing
from headrace.testing.simulation.simulated_disk import (
    DiskFaults,
    HostCrashed,
    SimulatedDisk,
    SimulatedFiles,
)


def new_disk(seed: int = 1, **faults: float) -> tuple[SimulatedDisk, SimulatedFiles]:
    disk = SimulatedDisk(random.Random(seed), lambda *_: None, "h")
    disk.faults = DiskFaults(**faults)
    return disk, SimulatedFiles(disk)


def test_flushed_data_survive_and_others_may_not() -> None:
    outcomes = set()
    for seed in range(200):
        disk, files = new_disk(seed)
        log = files.open("/log", create=True)
        log.write_at(0, b"A" * 1000)
        log.sync()
        files.sync_directory("/")
        log.write_at(1000, b"B" * 1000)
        log.write_at(2000, memoryview(b"C" * 1000))
        assert log.read_at(0, 5000) == b"A" * 1000 + b"B" * 1000 + b"C" * 1000
        disk.crash(power_loss=True)
        with pytest.raises(HostCrashed):
            log.size()
        content = SimulatedFiles(disk).open("/log").read_at(0, 5000)
        assert content[:1000] == b"A" * 1000
        outcomes.add(content[1000:])
    assert {b"", b"B" * 1000, b"B" * 1000 + b"C" * 1000, bytes(1000) + b"C" * 1000} <= outcomes
    assert len(outcomes) > 10  # Torn ones.


def test_kill_keeps_the_page_cache() -> None:
    disk, files = new_disk()
    files.open("/log", create=True).write_at(0, b"x")
    disk.crash(power_loss=False)
    assert SimulatedFiles(disk).read_bytes("/log") == b"x"


def test_names_need_a_flush_of_their_directory() -> None:
    lost = 0
    for seed in range(50):
        disk, files = new_disk(seed)
        files.make_directory("/d")
        files.sync_directory("/")
        file = files.open("/d/tmp", create=True)
        file.write_at(0, b"x")
        file.sync()
        files.rename("/d/tmp", "/d/file")
        if seed % 2:
            files.sync_directory("/d")
        disk.crash(power_loss=True)
        files = SimulatedFiles(disk)
        if seed % 2:
            assert files.list_directory("/d") == ["file"]
        lost += not files.exists("/d/file")
    assert lost > 5


def test_lost_directory_takes_its_files_along() -> None:
    gone = 0
    for seed in range(20):
        disk, files = new_disk(seed)
        files.make_directory("/d")
        files.open("/d/file", create=True).sync()
        files.sync_directory("/d")
        disk.crash(power_loss=True)
        files = SimulatedFiles(disk)
        gone += not files.exists("/d")
        assert files.exists("/d") == files.exists("/d/file")
    assert 0 < gone < 20


def test_atomic_writes_leave_the_old_or_the_new() -> None:
    outcomes = set()
    for seed in range(400):
        disk, files = new_disk(seed)
        disk.lose_power = partial(disk.crash, power_loss=True)
        files.write_atomically("/state", b"old")
        disk.faults = DiskFaults(power_loss=0.1)
        try:
            files.write_atomically("/state", b"new")
            outcomes.add((True, SimulatedFiles(disk).read_bytes("/state")))
        except HostCrashed:
            outcomes.add((False, SimulatedFiles(disk).read_bytes("/state")))
    assert outcomes == {(True, b"new"), (False, b"old"), (False, b"new")}


def test_renamed_directory_keeps_its_files() -> None:
    _, files = new_disk()
    files.make_directory("/a/b")
    files.write_atomically("/a/b/one", b"1")
    files.rename("/a/b", "/a/c")
    assert files.read_bytes("/a/c/one") == b"1"
    assert files.list_directories("/a") == ["c"]
    assert files.file_sizes("/a/c") == {"one": 1}
    files.remove_tree("/a")
    files.remove_tree("/a")
    assert files.list_directory("/") == []


def test_errors_are_those_of_real_files() -> None:
    _, files = new_disk()
    with pytest.raises(FileMissing):
        files.open("/nowhere/file", create=True)
    with pytest.raises(FileMissing):
        files.list_directory("/nowhere")
    assert files.read_bytes("/nothing") is None
    lock = files.lock("/.lock")
    assert lock is not None and files.lock("/.lock") is None
    lock.release()
    assert files.lock("/.lock") is not None


def test_crash_releases_locks() -> None:
    disk, files = new_disk()
    assert files.lock("/.lock") is not None
    disk.crash(power_loss=False)
    assert SimulatedFiles(disk).lock("/.lock") is not None


FAULTS: list[tuple[str, type[Exception], Any]] = [
    ("read_error", StorageError, lambda file: file.read_at(0, 1)),
    ("write_error", StorageError, lambda file: file.write_at(0, b"x")),
    ("no_space", DiskFull, lambda file: file.write_at(0, b"x")),
    ("fsync_error", StorageError, lambda file: file.sync()),
]


@pytest.mark.parametrize(("fault", "kind", "action"), FAULTS)
def test_faults_are_storage_errors(fault: str, kind: type[Exception], action: Any) -> None:
    disk, files = new_disk()
    file = files.open("/f", create=True)
    setattr(disk.faults, fault, 1.0)
    with pytest.raises(kind):
        action(file)


def test_flush_after_a_failed_flush_lies() -> None:
    disk, files = new_disk()
    file = files.open("/f", create=True)
    files.sync_directory("/")
    disk.faults = DiskFaults(fsync_error=1.0)
    file.write_at(0, b"x")
    with pytest.raises(StorageError):
        file.sync()
    disk.faults = DiskFaults()
    file.sync()
    disk.crash(power_loss=True)
    assert SimulatedFiles(disk).read_bytes("/f") == b""


def test_a_full_disk_takes_nothing_more_until_there_is_room() -> None:
    disk, files = new_disk()
    file = files.open("/log", create=True)
    file.write_at(0, bytes(100))
    disk.limit_bytes = 150
    assert files.space("/log") == (150, 50)
    file.write_at(0, bytes(150))
    with pytest.raises(DiskFull):
        file.write_at(150, b"x")
    disk.limit_bytes = None
    file.write_at(150, b"x")


def test_nothing_fails_while_the_simulator_looks() -> None:
    disk, files = new_disk(read_error=1.0)
    file = files.open("/log", create=True)
    with pytest.raises(StorageError):
        file.read_at(0, 1)
    with disk.inspected():
        assert file.read_at(0, 1) == b""
