"""Limits that only a hang reaches, and a report of what came near them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.testing.time_limits import SLOWNESS_VARIABLE
from tests.time_report import directory_of
from tests.unit.test_no_skips import NO_PLUGINS

ROOT = Path(__file__).resolve().parents[2]

TESTS = """
import time

import pytest

from headrace.testing.time_limits import Deadline

@pytest.fixture(scope="module")
def slow():
    time.sleep(0.2)

@pytest.mark.timeout(0.1)
def test_whose_fixture_is_slow(slow):
    pass

@pytest.mark.timeout(0.01)
def test_that_takes_longer_than_on_a_quiet_machine():
    time.sleep(0.1)

def test_that_is_quick():
    pass

def test_that_waits_almost_too_long():
    deadline = Deadline(0.0001)
    while deadline.taken_s < 0.07:
        pass
    deadline.end()

@pytest.mark.timeout(0.0001)
def test_that_hangs():
    while True:
        time.sleep(0.01)
"""


def _run_pytest(directory: Path, text: str) -> subprocess.CompletedProcess[str]:
    (directory / "sub").mkdir()
    (directory / "sub" / "test_sample.py").write_text(text)
    (directory / "pytest.ini").write_text("[pytest]\ntimeout=240\ntimeout_func_only=true\n")
    # A worker and the process that its reports go to.
    command = [sys.executable, "-m", "pytest", "-p", "xdist", "-p", "timeout"]
    command += ["-p", "tests.time_report", "-n", "1"]
    return subprocess.run(
        [*command, "--rootdir", ".", "-q", "."],
        cwd=directory,
        env=os.environ | {"PYTHONPATH": str(ROOT), SLOWNESS_VARIABLE: "1000"} | NO_PLUGINS,
        capture_output=True,
        text=True,
        check=False,
    )


def test_only_a_hang_fails_and_what_was_near_its_limit_is_said(tmp_path: Path) -> None:
    result = _run_pytest(tmp_path, TESTS)
    assert result.returncode == pytest.ExitCode.TESTS_FAILED, result.stdout
    said = result.stdout.splitlines()
    assert "1 failed, 4 passed" in said[-1], result.stdout
    assert "Timeout (>" in result.stdout
    [line] = [line for line in said if line.endswith("  sub")]
    assert line.split()[2] == "5"
    near = [line.partition("::")[2] for line in said if " s  sub/" in line]
    assert near == ["test_that_hangs", "test_that_waits_almost_too_long"]


def test_directories_are_counted_to_a_depth() -> None:
    assert directory_of("tests/unit/client/producer/test_sender.py::test_x[a/b]") == (
        "tests/unit/client"
    )
    assert directory_of("tests/test_tidy.py::test_x") == "tests"
