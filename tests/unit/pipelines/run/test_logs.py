"""What Spark's processes say, taken by a process that starts others."""

import subprocess
import sys
from pathlib import Path

import pytest

from headrace.pipelines.run import runner

# In a process of its own: pytest has an opinion on where stderr goes.
CAPTURING = """
import subprocess, sys, threading
from pathlib import Path
from headrace.pipelines.run import runner as logs
logs._BYTES_MAX = int(sys.argv[2])
said = []
log = logs.SparkLog(Path(sys.argv[1]), said.append, verbose=sys.argv[3] == "verbose")
child = "import sys; [print(line, file=sys.stderr) for line in sys.argv[1:]]"
with log.capturing():
    started = subprocess.Popen([sys.executable, "-c", child, *sys.argv[4:]])
print("after", file=sys.stderr)
started.wait()
for thread in threading.enumerate():
    if thread.name == "spark-log":
        thread.join()
print(said)
"""
LOST = "orders-0: offsets 5 to 9 are gone; the query goes on, as failOnDataLoss is false"


def capture(path: Path, *lines: str, mode: str = "quiet", size: int = 1000) -> tuple[str, str]:
    """What a process that took the lines of another prints to stdout and stderr."""
    command = [sys.executable, "-c", CAPTURING, str(path), str(size), mode, *lines]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout.strip(), done.stderr.strip()


def test_all_goes_to_the_file_and_what_matters_to_the_user(tmp_path: Path) -> None:
    path = tmp_path / "spark.log"
    assert capture(path, "WARN a", LOST, "WARN b") == (str([LOST]), "after")
    assert path.read_text() == f"WARN a\n{LOST}\nWARN b\n"


def test_all_goes_to_a_user_who_asks_for_it(tmp_path: Path) -> None:
    said, _ = capture(tmp_path / "spark.log", "WARN a", "WARN b", mode="verbose")
    assert said == "['WARN a', 'WARN b']"


def test_the_log_before_is_kept_and_none_grows_for_ever(tmp_path: Path) -> None:
    path = tmp_path / "spark.log"
    capture(path, "first")
    capture(path, "second")
    assert (path.read_text(), Path(f"{path}.1").read_text()) == ("second\n", "first\n")
    capture(path, "long" * 10, "tail", size=20)
    assert (path.read_text(), Path(f"{path}.1").read_text()) == ("tail\n", "long" * 10 + "\n")
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("Invalid maximum heap size: -Xmx1x", "Invalid maximum heap size: -Xmx1x"),
        (
            "Error: Could not create the Java Virtual Machine.",
            "Could not create the Java Virtual Machine.",
        ),
        ("Exception in thread main org.apache.spark.SparkException: Odd master", "Odd master"),
        ("WARN all is well", ""),
    ],
)
def test_the_reason_of_an_end_is_found(tmp_path: Path, line: str, reason: str) -> None:
    log = runner.SparkLog(tmp_path / "spark.log", lambda _: None)
    assert log.reason() == ""
    (tmp_path / "spark.log").write_text(f"WARNING: Using incubator modules\n{line}\n\tat x.Y\n")
    assert log.reason() == reason


@pytest.mark.parametrize(("text", "shown"), [(LOST, True), ("headrace: x", True), ("gone", False)])
def test_a_warning_is_known_by_its_words(text: str, shown: bool) -> None:
    assert bool(runner._WARNING.search(text)) is shown
