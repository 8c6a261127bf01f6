"""The room of a data directory: when records are refused, and what becomes of the reserve."""

import errno
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import StorageError
from headrace.storage.disk_space import (
    AUTOMATIC,
    RESERVE_FILE,
    DiskSpace,
    DiskSpaceChange,
    reserve_of,
)
from headrace.storage.files import DiskFull, Files, storage_error

MIB = 1024 * 1024


class SmallDisk(Files):
    """A disk of `total` bytes on which others use `used`; a quota may allow less than is free."""

    def __init__(self, total: int = 32 * MIB) -> None:
        self.total = total
        self.used = 0
        self.reserve = 0
        self.quota = total
        self.fails: StorageError | None = None

    def space(self, path: str) -> tuple[int, int]:
        if self.fails is not None:
            raise self.fails
        return self.total, max(self.total - self.used - self.reserve, 0)

    def file_sizes(self, path: str) -> dict[str, int]:
        return {RESERVE_FILE: self.reserve} if self.reserve else {}

    def allocate(self, path: str, size: int) -> bool:
        assert path.endswith(f"/{RESERVE_FILE}")
        if size > self.quota or size > self.total - self.used:
            raise DiskFull("cannot allocate")
        self.reserve = size
        return True

    def remove(self, path: str) -> None:
        self.reserve = 0


def room_on(disk: SmallDisk, reserved: int = 4 * MIB, warn_percent: int = 85) -> DiskSpace:
    room = DiskSpace(disk, "/data", reserved, warn_percent)
    room.open()
    return room


def append(room: DiskSpace, disk: SmallDisk, size: int) -> None:
    room.count_append(size)
    disk.used += size


@pytest.mark.parametrize(
    ("setting", "total", "reserved"),
    [
        (AUTOMATIC, 16 * MIB, MIB // 2),
        (AUTOMATIC, 1 << 40, 16 * MIB),
        (0, 1 << 40, 0),
        (5 * MIB, 1 << 40, 5 * MIB),
    ],
)
def test_a_reserve_is_as_large_as_its_setting_or_the_disk_says(
    setting: int, total: int, reserved: int
) -> None:
    reserve = reserve_of(setting, total)
    assert reserve.bytes == reserved
    assert reserve.held + reserve.margin == reserved


def test_records_leave_the_reserve_alone() -> None:
    disk = SmallDisk()
    room = room_on(disk)
    assert disk.reserve == 3 * MIB
    for _ in range(28 * MIB // 100_000):
        append(room, disk, 100_000)
    with pytest.raises(DiskFull, match="the data directory /data is full"):
        append(room, disk, 100_000)
    assert room.is_full
    with pytest.raises(DiskFull):
        room.count_append(1)
    with pytest.raises(DiskFull):
        room.check()


def test_the_reserve_is_given_away_bit_by_bit_and_set_aside_again() -> None:
    disk = SmallDisk()
    room = room_on(disk)
    disk.used = 29 * MIB
    room.refresh()
    assert room.is_full
    assert disk.reserve == 2 * MIB, "one of four MiB is free to use"
    disk.used = 31 * MIB + MIB // 2
    room.refresh()
    assert disk.reserve == 0
    disk.used = 27 * MIB + MIB // 2
    room.refresh()
    assert room.is_full, "a little more than the reserve is free"
    disk.used = 26 * MIB
    room.refresh()
    assert not room.is_full
    assert disk.reserve == 3 * MIB
    room.count_append(1000)


def test_a_start_on_a_full_disk_has_a_part_of_the_reserve() -> None:
    disk = SmallDisk()
    room_on(disk)
    disk.used = 29 * MIB
    again = room_on(disk)
    assert again.is_full
    assert disk.space("/data")[1] == MIB


def test_there_is_room_again_when_there_is_as_much_as_was_wanted() -> None:
    disk = SmallDisk()
    room = room_on(disk)
    with pytest.raises(DiskFull):
        room.count_append(30 * MIB)
    room.refresh()
    assert room.is_full, "or it would be full and empty by turns"
    disk.total = disk.quota = 64 * MIB
    room.refresh()
    assert not room.is_full


def test_what_the_file_system_refuses_counts_whatever_it_says_to_be_free() -> None:
    disk = SmallDisk()
    room = room_on(disk)
    disk.quota = 2 * MIB
    room.count_append(1000)
    room.refused(DiskFull("cannot write"), 1000)
    for _ in range(3):
        room.refresh()
        assert room.is_full
    disk.quota = 32 * MIB
    room.refresh()
    assert not room.is_full


def test_a_file_that_is_too_large_fills_no_disk() -> None:
    room = room_on(SmallDisk())
    try:
        raise storage_error("write", "/x", OSError()) from OSError(errno.EFBIG, "large")
    except StorageError as error:
        room.refused(error, 10)
    assert not room.is_full


def test_each_change_is_told_once() -> None:
    disk = SmallDisk()
    room = room_on(disk)
    assert room.changes() == []
    disk.used = 28 * MIB - 10
    room.refresh()
    assert room.changes() == [DiskSpaceChange.LOW]
    for _ in range(3):
        disk.used = 27 * MIB
        room.refresh()
        assert room.changes() == []
        disk.used = 28 * MIB - 10
        room.refresh()
        assert room.changes() == []
    disk.used = 30 * MIB
    room.refresh()
    assert room.changes() == [DiskSpaceChange.FULL]
    room.refresh()
    assert room.changes() == []
    disk.used = 0
    room.refresh()
    assert room.changes() == [DiskSpaceChange.HAS_ROOM]
    assert room.changes() == []


def test_a_disk_that_fails_is_not_full() -> None:
    disk = SmallDisk()
    room = room_on(disk)
    disk.fails = StorageError("cannot inspect /data: EIO")
    room.refresh()
    assert room.changes() == []


@given(st.lists(st.tuples(st.sampled_from(["append", "others", "look"]), st.integers(0, 9 * MIB))))
def test_records_never_take_what_is_reserved(steps: list[tuple[str, int]]) -> None:
    disk = SmallDisk()
    room = room_on(disk)
    for action, size in steps:
        if action == "append":
            try:
                append(room, disk, size)
            except DiskFull:
                assert room.is_full
        elif action == "others":
            disk.used = min(size * 4, disk.total - disk.reserve)
            room.refresh()
        else:
            room.refresh()
        free = disk.space("/data")[1] + disk.reserve
        if action == "append" and not room.is_full:
            assert free >= 4 * MIB
        assert disk.reserve <= 3 * MIB


def test_a_real_file_holds_the_reserve(tmp_path: Path) -> None:
    room = DiskSpace(Files(), str(tmp_path), MIB)
    room.open()
    held = tmp_path / RESERVE_FILE
    if held.exists():  # Some file systems cannot.
        assert held.stat().st_blocks * 512 >= MIB * 3 // 4
        assert held.stat().st_size == MIB * 3 // 4
