"""`headrace up` as a person starts and ends it."""

import json
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO
from urllib.request import urlopen

import psutil
import pytest

from headrace.config import read_properties
from headrace.protocol import records
from headrace.protocol.codec_build import UNCOMPILED
from headrace.testing.broker_runners import environment
from tests.integration.commands import Cli
from tests.integration.wire import is_serving
from tests.support import headrace_command, unused_port
from tools.pure_build import copy_pure


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_it_says_when_it_is_ready_and_ends_cleanly(tmp_path: Path, how: signal.Signals) -> None:
    address, data = f"127.0.0.1:{unused_port()}", tmp_path / "data"
    command = [headrace_command(), "up", "--listen", address, "--data-dir", str(data)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        ready = process.stdout.readline()
        process.send_signal(how)
        others = process.stdout.readlines()
    # An uncompiled broker has to say that it is one, and says nothing else.
    assert [line for line in others if records.COMPILED or UNCOMPILED not in line] == []
    found = re.fullmatch(
        r"headrace \S+ ready on (.+), data in (.+), admin listener at (.+)\n", ready
    )
    assert found is not None, ready
    assert (found[1], found[2]) == (address, str(data))
    assert found[3].startswith("http://127.0.0.1:")
    assert process.returncode == 0


def test_an_uncompiled_broker_says_so_once_after_its_ready_line(tmp_path: Path) -> None:
    copy_pure(tmp_path)
    command = [headrace_command(), "up", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(
        [*command, "--data-dir", str(tmp_path / "data")],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment(tmp_path),
    ) as process:
        assert process.stdout is not None
        ready = process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        [warning] = process.stdout.readlines()
    assert " ready on " in ready
    assert warning.endswith(f" WARNING {UNCOMPILED}\n")
    assert process.returncode == 0


def test_verbose_shows_what_the_broker_does(tmp_path: Path) -> None:
    command = [headrace_command(), "up", "-v", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(
        [*command, "--data-dir", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        said = read_until(process.stdout, " ready on ")
        process.send_signal(signal.SIGINT)
        process.stdout.read()
    assert "INFO active controller in epoch 1" in said


def test_a_cluster_is_started_mended_and_ended(tmp_path: Path) -> None:
    data = tmp_path / "data"
    command = [headrace_command(), "up", "--brokers", "3", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(
        [*command, "--data-dir", str(data)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        ready = process.stdout.readline()
        found = re.fullmatch(
            r"headrace \S+ ready on (.+), data in (.+), admin listeners at (.+)\n", ready
        )
        assert found is not None, ready
        assert found[2] == str(data)
        admins = found[3].split(", ")
        assert [urlopen(f"{admin}/readyz").read() for admin in admins] == [b"ready\n"] * 3
        addresses = found[1].split(", ")
        assert len(set(addresses)) == 3
        assert all(is_serving(address) for address in addresses)
        children = psutil.Process(process.pid).children()
        assert len(children) == 3
        children[1].kill()
        said = read_until(process.stderr, " ended by SIGKILL; starts again in ")
        process.send_signal(signal.SIGINT)
        assert process.stdout.read() == ""
        said += process.stderr.read()
    assert process.returncode == 0, said
    assert "Traceback" not in said
    assert not any(child.is_running() for child in children)
    assert sorted(path.name for path in data.iterdir()) == ["broker-1", "broker-2", "broker-3"]


def read_until(stream: IO[str], text: str) -> str:
    """The lines up to the one that has a text."""
    said = ""
    while text not in said:
        line = stream.readline()
        assert line, said
        said += line
    return said


@pytest.mark.parametrize("brokers", [1, 3])
def test_secure_makes_a_cluster_that_only_its_client_file_opens(
    tmp_path: Path, brokers: int
) -> None:
    command = [headrace_command(), "up", "--secure", "--brokers", str(brokers)]
    command += ["--listen", "127.0.0.1:0", "--data-dir", str(tmp_path / "data")]
    file = tmp_path / "data" / "security" / "client.properties"
    with ended_by_sigterm(command) as process:
        assert process.stdout is not None
        said = read_until(process.stdout, "--client-config ")
        assert said.endswith(f" --client-config {file}\n")
        assert modes(file.parent) == {"ca.pem": 0o644}
        check_clients(file, tmp_path / "config")
        password = json.loads((file.parent / "passwords.json").read_text())["admin"]
        running = psutil.Process(process.pid)
        for each in (running, *running.children()):
            assert password not in " ".join(each.cmdline())
        process.send_signal(signal.SIGTERM)
        said += process.stdout.read()
    assert process.returncode == 0
    assert password not in said


def modes(directory: Path) -> dict[str, int]:
    """The modes of files that others than their owner may read."""
    assert directory.stat().st_mode & 0o777 == 0o700
    found = {path.name: path.stat().st_mode & 0o777 for path in directory.iterdir()}
    return {name: mode for name, mode in found.items() if mode != 0o600}


def check_clients(file: Path, config: Path) -> None:
    """Connect by the file, by a profile made of it, and in vain without either."""
    client = Cli("")
    client.environment |= {"HEADRACE_CONFIG_DIR": str(config)}
    client.text("topics", "create", "made", "--client-config", str(file))
    first = read_properties(file.read_text())["bootstrap.servers"].partition(",")[0]
    client.error("topics", "list", "--bootstrap-server", first)
    client.text("profile", "add", "local", "--from", str(file))
    assert "made" in client.text("topics", "list", "--profile", "local")


@contextmanager
def ended_by_sigterm(command: list[str]) -> Iterator["subprocess.Popen[str]"]:
    """A process that does not outlive the block, also if that fails."""
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            yield process
        finally:
            process.terminate()
