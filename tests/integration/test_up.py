"""`headrace up` as a person starts and ends it."""

import signal
import subprocess
from pathlib import Path

import pytest

from tests.support import headrace_command, unused_port


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_it_says_when_it_is_ready_and_ends_cleanly(tmp_path: Path, how: signal.Signals) -> None:
    address, data = f"127.0.0.1:{unused_port()}", tmp_path / "data"
    command = [headrace_command(), "up", "--listen", address, "--data-dir", str(data)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        ready = process.stdout.readline()
        process.send_signal(how)
        assert process.stdout.read() == ""
    assert ready.endswith(f" ready on {address}, data in {data}\n")
    assert process.returncode == 0
