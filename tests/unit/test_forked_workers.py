"""Workers that are forked run every test once, and tell all of what came of it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.test_no_skips import NO_PLUGINS

ROOT = Path(__file__).resolve().parents[2]

FIXTURES = """
import os
from pathlib import Path

import pytest

@pytest.fixture(scope="module", autouse=True)
def in_its_module(request):
    log = Path(os.environ["LOG"])
    with log.open("a") as out:
        out.write(f"up {request.module.__name__} {os.getpid()}\\n")
    yield
    with log.open("a") as out:
        out.write(f"down {request.module.__name__} {os.getpid()}\\n")
"""
PASSING = """
import os
import pytest

@pytest.mark.parametrize("number", range(20))
def test_passes(number, tmp_path):
    with open(os.environ["LOG"], "a") as out:
        out.write(f"ran {__name__} {number} {os.getpid()} {tmp_path}\\n")
"""
FAILING = """
import os
import signal

def test_fails():
    print("what it printed")
    assert [1] == [2]

def test_kills_its_process():
    os.kill(os.getpid(), signal.SIGKILL)

def test_goes_on():
    pass
"""
INTERRUPTED = """
import os
import signal

def test_is_interrupted():
    os.kill(os.getpid(), signal.SIGINT)
"""


def _run_pytest(
    directory: Path, files: dict[str, str], *arguments: str
) -> tuple[subprocess.CompletedProcess[str], list[list[str]]]:
    """The run, and what its tests have noted."""
    for name, text in files.items():
        (directory / name).write_text(text)
    (directory / "pytest.ini").write_text("[pytest]\n")
    log = directory / "log"
    log.touch()
    command = [sys.executable, "-m", "pytest", "-p", "tests.forked_workers"]
    command += ["--rootdir", ".", *arguments, "."]
    result = subprocess.run(
        command,
        cwd=directory,
        env=os.environ | {"PYTHONPATH": str(ROOT), "LOG": str(log)} | NO_PLUGINS,
        capture_output=True,
        text=True,
        check=False,
    )
    return result, [line.split() for line in log.read_text().splitlines()]


def test_each_test_runs_once_and_modules_are_kept_together(tmp_path: Path) -> None:
    files = {f"test_{name}.py": PASSING for name in "abcd"} | {"conftest.py": FIXTURES}
    result, noted = _run_pytest(tmp_path, files, "--forked", "2")
    assert result.returncode == 0, result.stdout
    assert "80 passed" in result.stdout.splitlines()[-1]
    ran = [words for words in noted if words[0] == "ran"]
    assert len({(module, number) for _, module, number, _, _ in ran}) == len(ran) == 80
    assert len({process for _, _, _, process, _ in ran}) == 2
    assert len({directory for _, _, _, _, directory in ran}) == 80
    # Of four modules only the last may be shared.
    assert [words[0] for words in noted].count("up") <= 5
    ups, downs = ([words[1:] for words in noted if words[0] == kind] for kind in ("up", "down"))
    assert sorted(ups) == sorted(downs)


def test_failures_and_deaths_are_those_of_their_tests(tmp_path: Path) -> None:
    result, _ = _run_pytest(tmp_path, {"test_a.py": FAILING}, "--forked", "1", "-ra")
    assert result.returncode == pytest.ExitCode.TESTS_FAILED
    assert "2 failed, 1 passed" in result.stdout.splitlines()[-1]
    assert "what it printed" in result.stdout
    assert "assert [1] == [2]" in result.stdout
    assert re.search(r"FAILED test_a.py::test_kills_its_process - .*status -9", result.stdout)


def test_enough_failures_end_the_run(tmp_path: Path) -> None:
    files = {"test_a.py": FAILING, "test_b.py": PASSING}
    result, noted = _run_pytest(tmp_path, files, "--forked", "1", "-x")
    assert result.returncode == pytest.ExitCode.TESTS_FAILED
    assert "stopping after 1 failures" in result.stdout
    assert noted == []


def test_an_interrupted_worker_interrupts_the_run(tmp_path: Path) -> None:
    result, _ = _run_pytest(tmp_path, {"test_a.py": INTERRUPTED}, "--forked", "2")
    assert result.returncode == pytest.ExitCode.INTERRUPTED
    assert "KeyboardInterrupt" in result.stdout


def test_modules_that_cannot_be_imported_fail_the_run(tmp_path: Path) -> None:
    files = {"test_a.py": PASSING, "test_b.py": "raise ValueError('of test_b')"}
    result, noted = _run_pytest(tmp_path, files, "--forked", "2")
    assert result.returncode == pytest.ExitCode.INTERRUPTED
    assert "of test_b" in result.stdout
    assert noted == []
