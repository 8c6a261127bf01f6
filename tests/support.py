"""What integration tests share: a real broker process that can be stopped, killed and restarted."""

import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

READY = re.compile(r"\bready\b.*?(?P<host>[\w.\-]+):(?P<port>\d+)")
START_SECONDS = 30.0
STOP_SECONDS = 30.0


class BrokerProcess:
    """`headrace up` as a child process, with its data in a directory of the test.

    A restart comes back on the same port, as a broker does in production, so clients find it again.
    Stopping asserts that the broker exited by itself with status 0; however the process ends, a
    traceback in what it printed fails the test.
    """

    def __init__(self, directory: Path, settings: Mapping[str, str] | None = None) -> None:
        self.data_dir = directory / "data"
        self.settings = dict(settings or {})
        self._port = 0
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None
        self._lines: list[str] = []
        self._ready = False
        self._settled = threading.Event()

    @property
    def address(self) -> str:
        assert self._port, "the broker was never started"
        return f"127.0.0.1:{self._port}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "the broker is not running"
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def log_text(self) -> str:
        """Everything every run of this broker has printed so far, stderr included."""
        return "".join(self._lines)

    def start(self) -> Self:
        """Start the process and return once it has said that it is ready."""
        assert self._process is None, "the broker is running already"
        self._port = self._port or unused_port()
        self._ready = False
        self._settled.clear()
        command = [headrace_command(), "up", "--listen", self.address]
        if "log.dirs" not in self.settings:
            command += ["--data-dir", str(self.data_dir)]
        for name, value in self.settings.items():
            command += ["--set", f"{name}={value}"]
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, bufsize=1
        )
        self._reader = threading.Thread(target=self._read_output, args=(self._process,))
        self._reader.start()
        self._settled.wait(START_SECONDS)
        if not self._ready:
            self._process.kill()
            self._reap()
            raise AssertionError(f"the broker did not become ready:\n{self.log_text}")
        return self

    def stop(self) -> None:
        """Ask the broker to shut down, and require that it does so cleanly."""
        status = self._end(signal.SIGTERM)
        assert status == 0, f"the broker exited with status {status}:\n{self.log_text}"
        self.check_log()

    def kill(self) -> None:
        """End the process as a power cut would, without a chance to write anything."""
        self._end(signal.SIGKILL)
        self.check_log()

    def restart(self) -> Self:
        """Start again on the same port and data: after `kill`, or after a clean stop made here."""
        if self._process is not None:
            self.stop()
        return self.start()

    def check_log(self) -> None:
        assert "Traceback (most recent call last)" not in self.log_text, self.log_text

    def forget_log(self) -> None:
        """Check what was printed so far and drop it: a long run would hold a line per request."""
        self.check_log()
        del self._lines[:-1]

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if self._process is not None:
                self.stop()
        finally:
            print(self.log_text)  # pytest shows it beside a failed test.

    def _read_output(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self._lines.append(line)
            if (ready := READY.search(line)) and int(ready["port"]) == self._port:
                self._ready = True
                self._settled.set()
        self._settled.set()  # Gone without a ready line: `start` has nothing to wait for.

    def _end(self, signum: signal.Signals) -> int:
        assert self._process is not None, "the broker is not running"
        if self._process.poll() is None:
            self._process.send_signal(signum)
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._reap()
            raise AssertionError(f"the broker did not stop:\n{self.log_text}") from None
        return self._reap()

    def _reap(self) -> int:
        assert self._process is not None
        assert self._reader is not None
        status = self._process.wait()
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._process = self._reader = None
        return status


def headrace_command() -> str:
    """The installed console script of the interpreter the tests run on."""
    return str(Path(sys.executable).with_name("headrace"))


def unused_port() -> int:
    """A free port below the range that outgoing connections take theirs from.

    A port of that range could be taken, between a kill and the restart, by a client that is trying
    to reconnect: even to itself.
    """
    for port in random.Random(os.urandom(8)).sample(range(20_000, 32_000), 100):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("no free port found")
