"""Helpers of integration tests: a real broker process that can be stopped, killed and restarted."""

import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from headrace.net.ports import HeldPort
from headrace.testing import Broker
from headrace.testing.broker_runners import PYTHON_WARNING
from headrace.testing.ports import hold_port

START_SECONDS = 60.0

# The broker's default, in place of the value that is fast in a test.
SETTINGS = {"offsets.topic.num.partitions": "50"}


class BrokerProcess:
    """A broker process of headrace.testing, with its data in a directory of the test.

    A restart comes back on the same port, as a broker does in production, so clients find it again.
    Stopping asserts that the broker exited by itself with status 0; however the process ends, a
    traceback or a warning of Python's in what it printed fails the test.
    """

    def __init__(self, directory: Path, settings: Mapping[str, str] | None = None) -> None:
        self.data_dir = directory / "data"
        self.settings = dict(settings or {})
        self._broker = Broker(
            config=SETTINGS | self.settings,
            data_dir=None if "log.dirs" in self.settings else self.data_dir,
            start_timeout_s=START_SECONDS,
        )
        self._started = False

    @property
    def address(self) -> str:
        return self._broker.bootstrap_servers

    @property
    def pid(self) -> int:
        return self._broker.pid

    @property
    def running(self) -> bool:
        return self._broker.is_running

    @property
    def log_text(self) -> str:
        """The output of every run of this broker so far, stderr included."""
        return self._broker.log

    def start(self) -> Self:
        """Start the process and return when it has reported to be ready."""
        assert not self._started, "the broker is running already, or has ended by itself"
        self._broker.start()
        self._started = True
        return self

    def stop(self) -> None:
        """Ask the broker to shut down, and check that it does so cleanly."""
        assert self._started, "the broker is not running"
        self._started = False
        self._broker.stop()
        self.check_log()

    def kill(self) -> None:
        """Kill the process, like a power cut, without a chance to write anything."""
        self._started = False
        self._broker.kill()
        self.check_log()

    def restart(self) -> Self:
        """Start again on the same port and data: after `kill`, or after a clean stop made here."""
        if self._started:
            self.stop()
        return self.start()

    def check_log(self) -> None:
        assert "Traceback (most recent call last)" not in self.log_text, self.log_text
        assert not PYTHON_WARNING.search(self.log_text), self.log_text

    def forget_log(self) -> None:
        """Check the output so far and drop it: a long run would hold a line per request."""
        self.check_log()
        self._broker.clear_log()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if self._started:
                self.stop()
        finally:
            print(self.log_text)  # pytest shows it beside a failed test.
            self._broker.close()


_held_ports: list[HeldPort] = []


def unused_port() -> int:
    """An unused port, reserved for this process until it ends."""
    _held_ports.append(hold_port())
    return _held_ports[-1].number


def headrace_command() -> str:
    """The installed console script of the interpreter the tests run on."""
    return str(Path(sys.executable).with_name("headrace"))
