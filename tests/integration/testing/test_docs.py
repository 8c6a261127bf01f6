"""What docs/testing.md shows works as it is written."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.testing.time_limits import scaled
from tests.integration.testing.test_plugin import NOT_NEEDED

pytest_plugins = ["pytester"]

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "testing.md").read_text()
FILES = dict(re.findall(r"^```python\n# (\w+\.py)\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE))
[INI] = re.findall(r"^```ini\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
TESTS = [name for name in FILES if name.startswith("test_")]
# A run of pytest for those that take long, and one for the others, which share a broker.
RUNS = [["test_cluster.py"], [name for name in TESTS if name != "test_cluster.py"]]


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A directory with every file of the page, and the commands of this environment at hand."""
    for name, code in FILES.items():
        (pytester.path / name).write_text(code)
    (pytester.path / "pytest.ini").write_text(f"{INI}pythonpath = .\nfilterwarnings = error\n")
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    return pytester


def test_every_example_is_a_file() -> None:
    assert len(FILES) == PAGE.count("```python\n")
    assert len(TESTS) == 8


@pytest.mark.parametrize("names", RUNS, ids=["cluster", "others"])
def test_examples_pass(project: pytest.Pytester, names: list[str]) -> None:
    result = project.runpytest_subprocess(*NOT_NEEDED, *names)
    count = sum(FILES[name].count("def test_") for name in names)
    assert result.parseoutcomes() == {"passed": count}


def test_the_first_program_runs(project: pytest.Pytester) -> None:
    subprocess.run([sys.executable, "first.py"], cwd=project.path, check=True, timeout=scaled(60))


def test_unittest_runs_its_example_too(project: pytest.Pytester) -> None:
    command = [sys.executable, "-W", "error", "-m", "unittest", "test_with_unittest"]
    subprocess.run(command, cwd=project.path, check=True, timeout=scaled(60))
