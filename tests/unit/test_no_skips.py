"""A skipped test is a note on a developer's machine and a failure in CI."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Importing all that are installed takes most of the CPU time of such a run.
NO_PLUGINS = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}

SKIPPING = """
import pytest

def test_passes():
    pass

@pytest.mark.skip(reason="the moon is full")
def test_skips():
    pass
"""


def _run_pytest(directory: Path, text: str, ci: str) -> subprocess.CompletedProcess[str]:
    (directory / "test_sample.py").write_text(text)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.no_skips", "--rootdir", ".", "-q", "."],
        cwd=directory,
        env=os.environ | {"CI": ci, "PYTHONPATH": str(ROOT)} | NO_PLUGINS,
        capture_output=True,
        text=True,
        check=False,
    )


def test_skip_fails_the_run_in_ci_and_says_why(tmp_path: Path) -> None:
    result = _run_pytest(tmp_path, SKIPPING, "true")
    assert result.returncode == pytest.ExitCode.TESTS_FAILED
    assert "the moon is full" in result.stdout
    assert "1 passed, 1 skipped" in result.stdout.splitlines()[-1]


@pytest.mark.parametrize("ci", ["", "false"])
def test_skip_is_allowed_elsewhere(tmp_path: Path, ci: str) -> None:
    assert _run_pytest(tmp_path, SKIPPING, ci).returncode == pytest.ExitCode.OK


def test_run_without_skips_passes_in_ci(tmp_path: Path) -> None:
    text = "def test_passes():\n    pass\n"
    assert _run_pytest(tmp_path, text, "true").returncode == pytest.ExitCode.OK


def test_module_skipped_at_import_fails_the_run_in_ci(tmp_path: Path) -> None:
    text = SKIPPING.replace("import pytest", "import pytest\npytest.importorskip('no_such_thing')")
    result = _run_pytest(tmp_path, text, "true")
    assert result.returncode != pytest.ExitCode.OK
    assert "no_such_thing" in result.stdout
