"""Every command of docs/quick-start.md works as it is written, and prints what the page shows."""

import os
import re
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import headrace
from headrace.testing.time_limits import Deadline, scaled
from tests.support import headrace_command

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "quick-start.md").read_text()
READY = re.compile(r"ready on (127\.0\.0\.1:\d+)")
SECONDS = 60

# The tree is installed already: an environment without pip, and a pip that installs what is there.
PYTHON = f"""#!/bin/sh
[ "$1 $2" = "-m venv" ] || {{ echo "unexpected: python3 $*" >&2; exit 1; }}
{sys.executable} -m venv --without-pip "$3"
cp "$SHIMS/pip" "$3/bin/pip"
"""
PIP = f"""#!/bin/sh
[ "$1" = install ] || {{ echo "unexpected: pip $*" >&2; exit 1; }}
echo "$2" >> "$SHIMS/installed"
ln -sf {headrace_command()} "$(dirname "$0")/headrace"
"""


def blocks() -> Iterator[tuple[str, str]]:
    """The blocks of the page in their order: language and text."""
    yield from re.findall(r"^```(console|python)\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


def steps() -> Iterator[tuple[str, list[str]]]:
    """The commands of the page, each with the lines it is said to print; code of Python too."""
    for language, text in blocks():
        if language == "python":
            yield f"{sys.executable} - <<'END'\n{text}END", []
            continue
        for part in text.removeprefix("$ ").split("\n$ "):
            command, *printed = part.strip().splitlines()
            yield command, printed


class Reader:
    """Somebody who types the commands of the page, in a directory of their own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        shims = directory / "shims"
        shims.mkdir()
        for name, script in (("python3", PYTHON), ("pip", PIP)):
            (shims / name).write_text(script)
            (shims / name).chmod(0o755)
        self.installed = shims / "installed"
        # What `export` and `activate` do is kept from one command to the next.
        self.variables = directory / "variables.sh"
        self.environment = {
            **{name: value for name, value in os.environ.items() if "BOOTSTRAP" not in name},
            "PATH": f"{shims}{os.pathsep}{os.environ['PATH']}",
            "SHIMS": str(shims),
        }
        self.brokers: list[subprocess.Popen[bytes]] = []
        # The addresses on the page, and those of this test.
        self.addresses: dict[str, str] = {}

    def type(self, command: str) -> str:
        """Run a command; what it printed. A server goes on in the background once it is ready."""
        if command.startswith("headrace up"):
            return self._start(command)
        result = subprocess.run(
            self._script(f"{self._here(command)}\nexport -p > {self.variables}"),
            cwd=self.directory,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=scaled(SECONDS),
            check=False,
        )
        assert result.returncode == 0, (command, result.stderr)
        return result.stdout + result.stderr

    def _script(self, text: str) -> list[str]:
        known = f". {self.variables}\n" if self.variables.exists() else ""
        return ["bash", "-euo", "pipefail", "-c", known + text]

    def _here(self, command: str) -> str:
        for shown, here in self.addresses.items():
            command = command.replace(shown, here)
        return command

    def _start(self, command: str) -> str:
        """Start brokers on free ports in place of those that are written."""
        found = re.search(r"--listen (\S+)", command)
        shown = found[1] if found else "127.0.0.1:9092"
        free = command.replace(f" --listen {shown}", "") + " --listen 127.0.0.1:0"
        log = self.directory / f"up-{len(self.brokers)}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                self._script(f"exec {free}"),
                cwd=self.directory,
                env=self.environment,
                stdout=output,
                stderr=output,
            )
        self.brokers.append(process)
        deadline = Deadline(scaled(SECONDS))
        while not (ready := READY.search(log.read_text())):
            assert process.poll() is None and not deadline.has_passed, log.read_text()
            time.sleep(0.02)
        self.addresses[shown] = ready[1]
        if not found:
            self.environment["HEADRACE_BOOTSTRAP_SERVERS"] = self.addresses[shown]
        return log.read_text()

    def stop(self) -> None:
        for process in self.brokers:
            process.terminate()
        for process in self.brokers:
            assert process.wait(scaled(SECONDS)) == 0


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    reader = Reader(tmp_path)
    yield reader
    reader.stop()


def pattern(line: str) -> str:
    """A printed line of the page, with any port in place of its own."""
    return re.sub(r"127\\\.0\\\.0\\\.1:\d+", r"127\\.0\\.0\\.1:\\d+", re.escape(line))


def test_commands_do_what_the_page_says(reader: Reader) -> None:
    shown: dict[str, str] = {}
    for command, printed in steps():
        shown[command] = reader.type(command)
        for line in printed:
            assert re.search(pattern(line), shown[command]), (command, shown[command])
    # What no line of the page shows.
    [group] = [text for command, text in shown.items() if command.startswith("headrace groups d")]
    assert re.search(r"\borders\b.*\b0\b", group)
    [program] = [text for command, text in shown.items() if "auto_offset_reset" in command]
    assert "one espresso" in program
    assert "3" in shown["headrace brokers list"]
    assert shown["headrace doctor"]


def test_extras_that_the_page_installs_exist() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    installed = re.findall(r"pip install (\S+)", PAGE)
    assert installed[0] == "."
    named = [name for entry in installed for name in re.findall(r"\[(\w+)\]", entry)]
    assert named == ["spark"]
    assert set(named) <= set(extras)


def test_page_shows_the_version_of_the_package() -> None:
    assert set(re.findall(r"headrace (\d\S+) ready", PAGE)) == {headrace.__version__}
