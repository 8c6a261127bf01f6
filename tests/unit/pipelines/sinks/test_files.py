"""Files of a batch are visible once, whatever two steps the process dies between."""

import os
import shutil
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from headrace.pipelines.sinks.files import AREA, Staging

QUERY = "b1f0"
BATCHES = 3


class Killed(BaseException):
    """The process is gone: nothing after this line runs, not even what catches errors."""


class Writer:
    """Writes batches as a driver does, from the one that Spark's commit log has not."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._attempts = count()
        self.committed = -1

    def run(self) -> None:
        for number in range(self.committed + 1, BATCHES):
            self.write(number)
            self.committed = number

    def write(self, number: int) -> bool:
        staging = Staging(self._root, QUERY, lambda file: "empty" not in file.name)
        if staging.recover(number):
            return False
        attempt = staging.attempt(number)
        take = next(self._attempts)
        for name in (f"day=1/part-0-{take}", f"day=2/part-1-{take}", f"part-empty-{take}"):
            file = attempt / name
            os.makedirs(file.parent, exist_ok=True)
            file.write_text(f"{number}")
        (attempt / "_SUCCESS").write_text("")
        (attempt / ".part.crc").write_text("")
        staging.commit(number, attempt)
        return True


def visible(root: Path) -> list[str]:
    """What any reader finds, without what was different from attempt to attempt."""
    files = [path for path in root.rglob("*") if path.is_file() and AREA not in path.parts]
    takes = {path.name.split("-")[1]: set[str]() for path in files}
    for path in files:
        takes[path.name.split("-")[1]].add(path.name.rsplit("-", 1)[1])
    assert all(len(found) == 1 for found in takes.values()), "files of two attempts are mixed"
    return sorted(
        f"{path.parent.relative_to(root)} {path.name.rsplit('-', 1)[0]} {path.read_text()}"
        for path in files
    )


WHOLE = sorted(
    f"day={part + 1} batch-00000{number}-part-{part} {number}"
    for number in range(BATCHES)
    for part in range(2)
)


@pytest.fixture
def dying(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Kills the process before (even) or after (odd) one of its steps on the disk."""
    steps: Iterator[int] = iter(())
    fatal = -1

    def stepwise(step: Callable[..., object]) -> Callable[..., object]:
        def run(*arguments: object, **options: object) -> object:
            if next(steps) == fatal:
                raise Killed
            result = step(*arguments, **options)
            if next(steps) == fatal:
                raise Killed
            return result

        return run

    def arm(at: int) -> None:
        nonlocal steps, fatal
        steps, fatal = count(), at

    for owner, name in ((os, "rename"), (os, "makedirs"), (shutil, "rmtree"), (Path, "mkdir")):
        monkeypatch.setattr(owner, name, stepwise(getattr(owner, name)))
    return arm


def test_every_moment_to_die_leads_to_the_same_files(
    tmp_path: Path, dying: Callable[[int], None]
) -> None:
    survived = False
    moments = 0
    while not survived:
        root = tmp_path / f"lake-{moments}"
        writer = Writer(root)
        dying(moments)
        try:
            writer.run()
            survived = True
        except Killed:
            dying(-1)
            writer.run()
        assert visible(root) == WHOLE, f"killed at step {moments}"
        moments += 1
    assert moments > 40, "the steps were not found"


def test_dying_again_and_again_while_recovering(
    tmp_path: Path, dying: Callable[[int], None]
) -> None:
    writer = Writer(tmp_path)
    for moment in (30, 11, 3, 2, 7, 5, 13):
        dying(moment)
        with pytest.raises(Killed):
            writer.run()
    dying(-1)
    writer.run()
    assert visible(tmp_path) == WHOLE


def test_a_batch_that_is_there_is_not_written_again(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    assert [writer.write(number) for number in (0, 0, 1, 1, 0, 2)] == [
        True,
        False,
        True,
        False,
        False,
        True,
    ]
    assert visible(tmp_path) == WHOLE


def test_what_an_orphan_writes_later_is_seen_by_nobody(tmp_path: Path) -> None:
    staging = Staging(tmp_path, QUERY, lambda _: True)
    staging.recover(0)
    orphan = staging.attempt(0)
    orphan.mkdir()
    writer = Writer(tmp_path)
    writer.write(0)
    orphan.mkdir(exist_ok=True)
    (orphan / "part-9-9").write_text("late")
    writer.committed = 0
    writer.run()
    assert visible(tmp_path) == WHOLE
    assert not orphan.exists()


def test_a_query_that_starts_anew_has_numbers_of_its_own(tmp_path: Path) -> None:
    assert not Staging(tmp_path, "old", lambda _: True).recover(0)
    Writer(tmp_path).run()
    assert Staging(tmp_path, QUERY, lambda _: True).recover(BATCHES - 1)
    assert not Staging(tmp_path, "new", lambda _: True).recover(0)
