"""The console beside `headrace up`: in the ready line, and gone with the brokers."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

import psutil

from headrace.tasks import EXIT_BUG
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


PLANTED = """
import headrace.console.app as app

async def fail(console):
    raise ZeroDivisionError("a planted bug")

app._expire = fail
from headrace.cli.main import main
main()
"""


def test_a_bug_in_a_task_ends_the_console_with_its_stack_and_status_70() -> None:
    arguments = ["console", "--listen", "127.0.0.1:0", "-b", "127.0.0.1:1"]
    ended = subprocess.run(
        [sys.executable, "-c", PLANTED, *arguments],
        capture_output=True,
        text=True,
        timeout=scaled(60),
        check=False,
    )
    assert ended.returncode == EXIT_BUG
    assert "bug in task console: expiry of sessions" in ended.stderr
    assert "ZeroDivisionError: a planted bug" in ended.stderr


def test_up_starts_a_console_again_that_ended_by_itself(tmp_path: Path) -> None:
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
        found = re.search(r", console at (http://127\.0\.0\.1:\d+)\n", process.stdout.readline())
        assert found is not None
        assert urlopen(f"{found[1]}/healthz", timeout=scaled(60)).status == 200
        [first] = psutil.Process(process.pid).children()
        first.kill()
        assert "the console ended with status -9 and is started again" in process.stdout.readline()
        # A request that came before the next process serves has waited for it.
        assert urlopen(f"{found[1]}/healthz", timeout=scaled(60)).status == 200
        [second] = psutil.Process(process.pid).children()
        assert second.pid != first.pid
        process.send_signal(signal.SIGINT)
        process.stdout.read()
    assert process.returncode == 0
    assert not second.is_running()


def has_ended(process: psutil.Process) -> bool:
    """Whether a process has ended; init may not have asked for its status yet."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
