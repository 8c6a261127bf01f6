"""The console beside `headrace up`: in the ready line, and gone with the brokers."""

import os
import re
import signal
import subprocess
from pathlib import Path
from urllib.request import urlopen

import psutil

from headrace.testing.time_limits import scaled, wait_until
from tests.integration.console.http_viewer import HttpViewer
from tests.support import headrace_command


def test_up_starts_a_console_and_ends_it(tmp_path: Path) -> None:
    command = [headrace_command(), "up", "--listen", "127.0.0.1:0", "--data-dir"]
    with subprocess.Popen(
        [*command, str(tmp_path / "data")],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "HEADRACE_NO_CONSOLE": "0"},
    ) as process:
        assert process.stdout is not None
        ready = process.stdout.readline()
        found = re.search(r", console at (http://127\.0\.0\.1:\d+)\n", ready)
        assert found is not None, ready
        viewer = HttpViewer(found[1])
        wait_until(lambda: "All is well" in viewer.get("/").words, 30, "the console is not well")
        [child] = psutil.Process(process.pid).children()
        process.send_signal(signal.SIGINT)
        others = process.stdout.read()
    assert process.returncode == 0
    assert "Traceback" not in others
    assert not child.is_running()


def test_a_console_ends_with_brokers_that_are_killed(tmp_path: Path) -> None:
    command = [headrace_command(), "up", "--secure", "--listen", "127.0.0.1:0", "--data-dir"]
    with subprocess.Popen(
        [*command, str(tmp_path / "data")],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "HEADRACE_NO_CONSOLE": "0"},
    ) as process:
        assert process.stdout is not None
        found = re.search(r", console at (http://127\.0\.0\.1:\d+)\n", process.stdout.readline())
        assert found is not None
        # The file for clients has a password, which the console does not use for viewers.
        assert b"Sign in" in urlopen(found[1], timeout=scaled(30)).read()
        [child] = psutil.Process(process.pid).children()
        process.kill()
        wait_until(lambda: has_ended(child), 20, "the console outlived its broker")


def has_ended(process: psutil.Process) -> bool:
    """Whether a process has ended; init may not have asked for its status yet."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
