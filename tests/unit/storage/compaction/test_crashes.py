"""A compaction that dies at any of its steps: the log that is opened then has lost nothing."""

from collections.abc import Callable
from pathlib import Path
from shutil import copytree

from headrace.storage.files import File, Files
from headrace.storage.log import Log
from tests.unit.storage.compaction.tables import compact, end_transaction, put, records, table_of
from tests.unit.storage.logs import NOW_MS, UnsyncedFiles, config, descriptor, open_log

COMPACT = config(cleanup_policy=("compact",), segment_bytes=900, delete_retention_ms=1000)


class Killed(BaseException):
    """The process is gone at this point."""


class MortalFiles(Files):
    """A disk whose process dies before its n-th change; with `tears` halfway through a write, or
    after any other change.
    """

    def __init__(self, changes: int, *, tears: bool = False) -> None:
        self.left = changes
        self.tears = tears

    def change(self) -> bool:
        """Count a change; whether it is the one that is torn."""
        self.left -= 1
        if self.left < 0:
            if self.tears and self.left == -1:
                return True
            raise Killed
        return False

    def open(self, path: str, *, create: bool = False) -> File:
        if create:
            self.change()
        return MortalFile(path, descriptor(path, create), self)

    def rename(self, old: str, new: str) -> None:
        self.change()
        super().rename(old, new)

    def remove(self, path: str) -> None:
        if self.left >= 0:  # Who is dead does not tidy up either.
            self.change()
            super().remove(path)

    def sync_directory(self, path: str) -> None:
        self.change()


class MortalFile(File):
    def __init__(self, path: str, fd: int, mortal: MortalFiles) -> None:
        super().__init__(path, fd)
        self.mortal = mortal

    def write_at(self, position: int, data: bytes | bytearray | memoryview) -> None:
        if self.mortal.change():
            super().write_at(position, memoryview(data)[: len(data) // 2])
            raise Killed
        super().write_at(position, data)

    def truncate(self, size: int) -> None:
        self.mortal.change()
        super().truncate(size)

    def sync(self) -> None:
        self.mortal.change()


def write(path: Path) -> dict[bytes, bytes]:
    """A log of several segments with transactions in it; the table it makes."""
    log = open_log(path, COMPACT, files=UnsyncedFiles())
    expected = {}
    for number in range(30):
        key, value = b"key-%d" % (number % 5), b"value-%d" % number
        put(log, (key, value))
        expected[key] = value
    put(log, (b"key-1", b"aborted"), producer=(1, 0, 0), transactional=True)
    end_transaction(log, 1, 0, committed=False)
    put(log, (b"key-2", None), (b"new", b"value"), producer=(2, 0, 0), transactional=True)
    end_transaction(log, 2, 0, committed=True)
    del expected[b"key-2"]
    expected[b"new"] = b"value"
    log.roll(NOW_MS)
    log.flush()
    log.close()
    return expected


def attempt(path: Path, files: Files, clean_offset: int) -> bool:
    """Open a log and compact it; whether the process lived through it."""
    try:
        log = open_log(path, COMPACT, files=files, recovery_point=30, clean_offset=clean_offset)
        compact(log)
    except Killed:
        return False
    return True


def check(path: Path, expected: dict[bytes, bytes]) -> Log:
    log = open_log(path, COMPACT, files=UnsyncedFiles(), recovery_point=30)
    assert log.recovery.truncated_because == ""
    found = [record for record in records(log) if record.value != b"aborted"]
    assert table_of(found) == expected
    assert (log.log_start_offset, log.log_end_offset) == (0, 35)
    offsets = [entry.offset for entry in found]
    assert offsets == sorted(set(offsets))
    ends = [segment.base_offset for segment in log.segments]
    assert ends == sorted(set(ends))
    assert not [
        entry for entry in path.iterdir() if entry.suffix in (".cleaned", ".swap", ".deleted")
    ]
    return log


def test_a_kill_at_any_step_loses_nothing(tmp_path: Path) -> None:
    expected = write(tmp_path / "first")
    changes, lived = 0, False
    while not lived:
        path = tmp_path / f"killed-{changes}"
        copytree(tmp_path / "first", path)
        lived = attempt(path, MortalFiles(changes, tears=True), 0)
        log = check(path, expected)
        # And what was begun can be ended.
        compact(log)
        assert len(records(log)) == len(expected) + 1  # A tombstone is among them.
        check(path, expected).close()
        changes += 1
    assert changes > 30


def test_a_start_that_is_killed_while_it_finishes_a_swap_loses_nothing(tmp_path: Path) -> None:
    expected = write(tmp_path / "first")
    swapping = _killed_while(tmp_path, lambda path: bool(list(path.glob("*.log.swap"))))
    changes, lived = 0, False
    while not lived:
        path = tmp_path / f"again-{changes}"
        copytree(swapping, path)
        try:
            open_log(path, COMPACT, files=MortalFiles(changes), recovery_point=30)
            lived = True
        except Killed:
            pass
        check(path, expected).close()
        changes += 1
    assert changes > 3


def _killed_while(tmp_path: Path, wanted: Callable[[Path], bool]) -> Path:
    """A log whose compaction was killed when its directory looked as `wanted`."""
    for changes in range(1000):
        path = tmp_path / f"until-{changes}"
        copytree(tmp_path / "first", path)
        if attempt(path, MortalFiles(changes), 0):
            break
        if wanted(path):
            return path
    raise AssertionError("it was never so")
