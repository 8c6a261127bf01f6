"""Open files: bounded in number, and safe for whoever holds one."""

import os
from pathlib import Path
from threading import Thread

from headrace.storage.files import File, Files
from headrace.storage.open_files import OpenFiles


def make(tmp_path: Path, count: int) -> list[str]:
    for index in range(count):
        (tmp_path / f"{index}").write_bytes(b"%d" % index)
    return [str(tmp_path / f"{index}") for index in range(count)]


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_no_more_files_stay_open_than_allowed(tmp_path: Path) -> None:
    paths = make(tmp_path, 20)
    before = descriptors()
    open_files = OpenFiles(Files(), limit=4)
    for path in paths:
        open_files.get(path)
    assert len(open_files) == 4
    assert descriptors() == before + 4


def test_the_file_used_least_recently_goes_first(tmp_path: Path) -> None:
    paths = make(tmp_path, 3)
    open_files = OpenFiles(Files(), limit=2)
    first = open_files.get(paths[0])
    second = open_files.get(paths[1])
    assert open_files.get(paths[0]) is first
    open_files.get(paths[2])
    assert open_files.get(paths[0]) is first
    assert open_files.get(paths[1]) is not second


def test_a_file_in_use_survives_its_eviction_and_its_removal(tmp_path: Path) -> None:
    paths = make(tmp_path, 3)
    open_files = OpenFiles(Files(), limit=1)
    held = open_files.get(paths[0])
    open_files.get(paths[1])
    os.unlink(paths[0])
    assert held.read_at(0, 1) == b"0"


def test_forgotten_files_are_opened_again(tmp_path: Path) -> None:
    paths = make(tmp_path, 2)
    open_files = OpenFiles(Files(), limit=8)
    for path in paths:
        open_files.get(path)
    open_files.forget(paths[0])
    os.rename(paths[1], paths[0])
    assert open_files.get(paths[0]).read_at(0, 1) == b"1"
    open_files.forget_under(str(tmp_path))
    assert len(open_files) == 0


def test_a_file_that_is_replaced_while_it_is_opened_is_not_kept(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    class Replacing(Files):
        """Opens the old file, then lets the owner put another in its place."""

        def open(self, path: str, *, create: bool = False) -> File:
            file = super().open(path, create=create)
            if first.pop("time", False):
                self.remove(path)
                opened.forget(path)
                Path(path).write_bytes(b"new")
            return file

    first = {"time": True}
    opened = OpenFiles(Replacing())
    assert opened.get(str(path)).read_at(0, 3) == b"old"
    assert opened.get(str(path)).read_at(0, 3) == b"new"


def test_threads_may_share_it(tmp_path: Path) -> None:
    paths = make(tmp_path, 6)
    open_files = OpenFiles(Files(), limit=2)
    wrong: list[str] = []

    def use(start: int) -> None:
        for turn in range(300):
            index = (start + turn) % 6
            if open_files.get(paths[index]).read_at(0, 1) != b"%d" % index:
                wrong.append(paths[index])

    threads = [Thread(target=use, args=(start,)) for start in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert len(open_files) == 2
