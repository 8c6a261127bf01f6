"""Files: every failure is a StorageError that names the path, and replacing one is atomic."""

import errno
import os
from pathlib import Path

import pytest

from headrace.errors import StorageError
from headrace.storage.files import DiskFull, FileMissing, Files, TooManyOpenFiles, storage_error

FILES = Files()


def test_a_file_is_read_and_written_by_position(tmp_path: Path) -> None:
    file = FILES.open(str(tmp_path / "file"), create=True)
    file.write_at(3, b"defg")
    file.write_at(0, memoryview(b"abc"))
    assert file.size() == 7
    assert file.read_at(1, 3) == b"bcd"
    assert file.read_at(5, 100) == b"fg"
    assert file.read_at(100, 5) == b""
    assert bytes(file.read_cached(2, 4) or b"") == b"cdef"
    file.truncate(2)
    file.sync()
    assert FILES.read_bytes(file.path) == b"ab"


def test_a_cached_read_is_all_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = FILES.open(str(tmp_path / "file"), create=True)
    file.write_at(0, b"0123456789")
    assert file.read_cached(5, 10) is None

    def partly(_fd: int, buffers: list[bytearray], _position: int, _flags: int) -> int:
        return len(buffers[0]) - 1

    monkeypatch.setattr("os.preadv", partly)
    assert file.read_cached(0, 10) is None


def test_a_file_system_that_cannot_tell_is_read_plainly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = FILES.open(str(tmp_path / "file"), create=True)
    file.write_at(0, b"0123456789")

    def unsupported(*_arguments: object) -> int:
        raise OSError(errno.EOPNOTSUPP, "no")

    monkeypatch.setattr("os.preadv", unsupported)
    assert bytes(file.read_cached(2, 3) or b"") == b"234"
    assert bytes(file.read_cached(2, 3) or b"") == b"234"


def test_short_writes_and_reads_are_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = FILES.open(str(tmp_path / "file"), create=True)
    pwrite, pread = os.pwrite, os.pread
    monkeypatch.setattr("os.pwrite", lambda fd, data, at: pwrite(fd, memoryview(data)[:3], at))
    monkeypatch.setattr("os.pread", lambda fd, size, at: pread(fd, min(size, 4), at))
    file.write_at(0, b"0123456789")
    assert file.read_at(0, 10) == b"0123456789"


def test_a_descriptor_lives_as_long_as_its_last_user(tmp_path: Path) -> None:
    file = FILES.open(str(tmp_path / "file"), create=True)
    file.write_at(0, b"still here")
    os.unlink(file.path)
    user = file
    del file
    assert user.read_at(0, 10) == b"still here"
    before = len(os.listdir("/proc/self/fd"))
    del user
    assert len(os.listdir("/proc/self/fd")) == before - 1


@pytest.mark.parametrize(
    ("number", "kind", "advice"),
    [
        (errno.ENOSPC, DiskFull, "free some space"),
        (errno.EDQUOT, DiskFull, "free some space"),
        (errno.EFBIG, DiskFull, "free some space"),
        (errno.EMFILE, TooManyOpenFiles, "ulimit -n"),
        (errno.ENOENT, FileMissing, "No such file"),
        (errno.EIO, StorageError, "Input/output error"),
    ],
)
def test_errors_name_the_path_the_action_and_the_cause(
    number: int, kind: type[StorageError], advice: str
) -> None:
    error = storage_error("write", "a/b.log", OSError(number, os.strerror(number)))
    assert type(error) is kind
    assert str(error).startswith("cannot write a/b.log: ")
    assert advice in str(error)


def test_operations_on_missing_files_say_which(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing")
    for action in (
        lambda: FILES.open(missing),
        lambda: FILES.rename(missing, missing + "2"),
        lambda: FILES.file_sizes(missing),
        lambda: FILES.list_directory(missing),
        lambda: FILES.list_directories(missing),
        lambda: FILES.sync_directory(missing),
        lambda: FILES.modified_ms(missing),
        lambda: FILES.space(missing),
    ):
        with pytest.raises(FileMissing, match="missing"):
            action()
    assert FILES.read_bytes(missing) is None
    assert not FILES.exists(missing)
    FILES.remove(missing)
    FILES.remove_tree(missing)
    FILES.sync_file(missing)


def test_a_replaced_file_has_the_old_or_the_new_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "checkpoint")
    FILES.write_atomically(path, b"old and longer")
    FILES.write_atomically(path, b"new")
    assert FILES.read_bytes(path) == b"new"

    def full(*_arguments: object) -> int:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr("os.pwrite", full)
    with pytest.raises(DiskFull):
        FILES.write_atomically(path, b"never")
    assert FILES.read_bytes(path) == b"new"
    assert FILES.list_directory(str(tmp_path)) == ["checkpoint"]


def test_a_lock_has_one_holder(tmp_path: Path) -> None:
    path = str(tmp_path / ".lock")
    lock = FILES.lock(path)
    assert lock is not None
    assert FILES.lock(path) is None
    lock.release()
    lock.release()
    again = FILES.lock(path)
    assert again is not None
    again.release()


def test_a_private_directory_is_for_its_owner(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "private"
    path.mkdir(mode=0o755)
    FILES.make_private(str(path))
    assert path.stat().st_mode & 0o777 == 0o700
    FILES.make_private(str(tmp_path / "none"))
    assert "others may read" in caplog.text


def test_directories_are_listed_by_kind(tmp_path: Path) -> None:
    FILES.make_directory(str(tmp_path / "one" / "two"))
    FILES.make_directory(str(tmp_path / "one"))
    (tmp_path / "file").write_bytes(b"123")
    assert FILES.list_directory(str(tmp_path)) == ["file", "one"]
    assert FILES.list_directories(str(tmp_path)) == ["one"]
    assert FILES.file_sizes(str(tmp_path)) == {"file": 3}
    total, usable = FILES.space(str(tmp_path))
    assert total >= usable > 0
